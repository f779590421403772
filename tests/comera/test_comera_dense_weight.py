"""The ``weight`` of a tensorized layer has attributes at no cost, and is the dense matrix in every operation."""

from __future__ import annotations

import copy

import pytest
import torch
from drawn_chains import assert_all_close
from torch.nn import functional as F

from comera import TiedTTMLinear, TTLinear, TTMEmbedding

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


@pytest.mark.parametrize("layer", [LINEAR, TABLE, TiedTTMLinear(TABLE)])
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


def test_the_entries_leave_torch_as_they_are():
    weight, dense = LINEAR.weight, LINEAR.to_dense()
    assert weight.detach().numpy() == pytest.approx(dense.detach().numpy())
    assert weight.tolist() == dense.tolist()
    assert repr(weight) == repr(dense)
    assert weight.data_ptr() != weight.data_ptr()  # formed anew each time
    with pytest.raises(RuntimeError, match="requires_grad flags of leaf variables"):
        weight.requires_grad = False
