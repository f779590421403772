"""The ``weight`` of a tensorized layer has attributes at no cost, and is the dense matrix in every operation."""

import copy

import pytest
import torch
from drawn_chains import assert_all_close
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from comera import BTTLinear, GroupedLinear, TiedTTMLinear, TTLinear, TTMEmbedding

LINEAR = TTLinear(6, 4, (3, 2), (2, 2), 2).double()
TABLE = TTMEmbedding(9, 4, (3, 3), (2, 2), 2, padding_idx=1)


@pytest.fixture
def formed(monkeypatch):
    """The layers whose dense weight has been formed, in order."""
    layers = []
    for kind in (TTLinear, TTMEmbedding):
        form = kind.to_dense
        monkeypatch.setattr(kind, "to_dense", lambda self, form=form: (layers.append(self), form(self))[1])
    return layers


@pytest.mark.parametrize("layer", [LINEAR, TABLE])
@pytest.mark.parametrize(
    "attribute",
    [
        *("dtype", "device", "shape", "ndim", "requires_grad", "layout", "is_cuda", "nbytes"),
        *("size", "dim", "numel", "is_floating_point", "element_size", "get_device", "__len__"),
    ],
)
def test_an_attribute_forms_nothing(layer, attribute, formed):
    assert isinstance(layer.weight, torch.Tensor)
    light = getattr(layer.weight, attribute)
    assert not formed
    dense = getattr(layer.weight.clone(), attribute)
    assert len(formed) == 1
    assert (light() if callable(light) else light) == (dense() if callable(dense) else dense)


def test_a_gradient_is_required_where_one_is_formed():
    layer = copy.deepcopy(LINEAR)
    assert layer.weight.requires_grad
    with torch.no_grad():
        assert not layer.weight.requires_grad
        assert not (layer.weight * 2).requires_grad
    layer.requires_grad_(False)
    assert not layer.weight.requires_grad
    layer.diagonals.requires_grad_(True)
    assert layer.weight.requires_grad
    assert (layer.weight * 2).requires_grad


@pytest.mark.parametrize(
    "use",
    [
        lambda weight, x: F.linear(x, weight),
        lambda weight, x: x @ weight.t(),
        lambda weight, x: x.matmul(weight.T),
        lambda weight, _: weight[0, 0],
        lambda weight, x: torch.einsum("bn,mn->bm", x, weight),
        lambda weight, x: torch.addmm(x.new_zeros(4), x, weight.transpose(0, 1)),
        lambda weight, x: torch.cat([x, weight]).sum(0),
        lambda weight, _: weight.to(torch.float32),
        lambda weight, _: weight.square().sum(),
        lambda weight, _: -weight,
    ],
)
def test_an_operation_forms_the_matrix_once_with_its_gradient(use, formed):
    x = torch.randn(3, 6, dtype=torch.float64)
    answer = use(LINEAR.weight, x)
    assert formed == [LINEAR]
    assert type(answer) is torch.Tensor
    wanted = use(LINEAR.to_dense(), x)
    inputs = [LINEAR.packed_cores, LINEAR.diagonals]
    assert_all_close([answer], [wanted])
    assert_all_close(torch.autograd.grad(answer.sum(), inputs), torch.autograd.grad(wanted.sum(), inputs))


WRITES = {
    "nn.init.zeros_": torch.nn.init.zeros_,
    "nn.init.normal_": torch.nn.init.normal_,
    "a method": lambda weight: weight.mul_(2.0),
    "an item": lambda weight: weight.__setitem__(0, 0.0),
    "an augmented assignment": lambda weight: weight.__iadd__(1.0),
    "data": lambda weight: weight.data.copy_(torch.zeros(weight.shape)),
    "an item of data": lambda weight: weight.data.__setitem__(0, 0.0),
    "data of data": lambda weight: weight.data.data.zero_(),
    "other data": lambda weight: setattr(weight, "data", torch.zeros(weight.shape)),
    "a gradient": lambda weight: setattr(weight, "grad", torch.zeros(weight.shape)),
    "out": lambda weight: torch.add(weight.data, 1.0, out=weight.data),
    "inplace": lambda weight: F.relu(weight.data, inplace=True),
    "foreach": lambda weight: torch._foreach_mul_([weight.data], 2.0),
    "no gradient": lambda weight: weight.requires_grad_(False),
    "no gradient by assignment": lambda weight: setattr(weight, "requires_grad", False),
    "a hook": lambda weight: weight.register_hook(print),
}


@pytest.mark.parametrize("layer", [LINEAR, TABLE, TiedTTMLinear(TABLE)], ids=lambda layer: type(layer).__name__)
@pytest.mark.parametrize("without_gradients", [False, True])
@pytest.mark.parametrize("write", WRITES)
def test_what_would_have_no_effect_is_refused(layer, without_gradients, write):
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    with torch.set_grad_enabled(not without_gradients), pytest.raises(RuntimeError) as caught:
        WRITES[write](layer.weight)
    assert "packed_cores" in str(caught.value)
    assert all(torch.equal(layer.state_dict()[name], value) for name, value in before.items())


@pytest.mark.parametrize(
    "read",
    [
        lambda weight: weight.detach().mul_(2.0),
        lambda weight: weight.clone().mul_(2.0),
        lambda weight: weight.data.clone().zero_(),
        lambda weight: torch.zeros(weight.shape, dtype=weight.dtype).copy_(weight),
        lambda weight: torch.zeros(weight.shape, dtype=weight.dtype).add_(weight.data),
        lambda weight: torch.nn.Parameter(weight.detach()),
        lambda weight: weight.data + 1,
        lambda weight: weight.requires_grad_(True),
        lambda weight: setattr(weight, "requires_grad", True),
        lambda weight: setattr(weight, "grad", None),
        lambda weight: F.relu(weight, inplace=False),
    ],
)
@pytest.mark.parametrize("layer", [LINEAR, TABLE])
def test_reading_it_and_what_changes_nothing_are_allowed(layer, read):
    with torch.no_grad():
        read(layer.weight)
        assert torch.equal(layer.weight.data + 0, layer.to_dense())


@pytest.mark.parametrize(
    "make",
    [
        lambda **how: TTLinear(6, 4, (3, 2), (2, 2), 2, **how),
        lambda **how: BTTLinear(6, 4, rank=1, **how),
        lambda **how: GroupedLinear(6, 4, 2, **how),
    ],
    ids=["tensor train", "block tensor train", "groups"],
)
def test_on_fake_tensors_it_has_its_attributes_and_forms_nothing(make, monkeypatch):
    with FakeTensorMode():
        layer = make(dtype=torch.bfloat16)
        monkeypatch.setattr(type(layer), "to_dense", None)
        weight = layer.weight
    assert (weight.shape, weight.dtype, weight.requires_grad) == ((4, 6), torch.bfloat16, True)
