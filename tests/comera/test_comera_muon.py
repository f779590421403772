"""Muon: its iteration, what it takes of a model, its steps by the formula, its state through saving and truncation."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from two_processes import in_two_processes

import comera
from comera import BTT, TT, TTM, Muon
from comera.loops.muon import join_matrices, matrix_parameters, orthogonalized, split_matrices


class Factors(nn.Module):
    """A layer of another package, of two factors that it names."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Parameter(torch.randn(2, 12)), nn.Parameter(torch.randn(12, 2))

    def matrix_parameters(self):
        return ("first", "second")

    def forward(self, x):
        return x @ self.first.t() @ self.second.t()


class Net(nn.Module):
    """Blocks between a table and an output layer."""

    def __init__(self, kind="dense"):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(20, 12)
        layers = [nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 12)) for _ in range(2)]
        self.blocks = nn.ModuleList(layers + ([Factors()] if kind == "factors" else []))
        self.norm = nn.LayerNorm(12)
        self.head = nn.Linear(12, 20)
        plans = {"tt": {"blocks.*": TT(4, 2)}, "btt": {"blocks.*": BTT(2)}, "all": {"table": TTM(4), "*": TT(4, 2)}}
        if kind in plans:
            comera.tensorize(self, plans[kind])

    def forward(self, words):
        x = self.table(words)
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.norm(x))


def train(model, optimizer, steps, start=0):
    losses = []
    for step in range(start, start + steps):
        words = torch.randint(20, (16,), generator=torch.Generator().manual_seed(step % 4))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(words), (words * 3 + 1) % 20)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 4, 16), (3, 16, 4), (2, 1, 5), (2, 5, 1)])
def test_singular_values_are_set_to_about_one(shape):
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    left, values, right = torch.linalg.svd(drawn, full_matrices=False)
    found = orthogonalized(drawn * 1e3)
    set_to = (left.mT @ found @ right.mT).diagonal(dim1=-2, dim2=-1)
    large = values > 0.05 * values.norm(dim=-1, keepdim=True)
    assert ((set_to[large] > 0.6) & (set_to[large] < 1.3)).all()
    assert torch.allclose((left * set_to.unsqueeze(-2)) @ right, found, atol=1e-6)


def test_it_is_the_iteration_of_torchs_own_muon():
    """torch forms the products in bfloat16 and scales the step; here they are float32."""
    weight = nn.Parameter(torch.randn(8, 12, generator=torch.Generator().manual_seed(0)))
    ours, theirs = nn.Linear(12, 8, bias=False), nn.Parameter(weight.detach().clone())
    ours.weight.data.copy_(weight)
    one = Muon(ours, lr=0.1)
    other = torch.optim.Muon([theirs], lr=0.1, weight_decay=0.0, momentum=0.95, adjust_lr_fn="original")
    for step in range(3):
        gradient = torch.randn(8, 12, generator=torch.Generator().manual_seed(step))
        ours.weight.grad, theirs.grad = gradient.clone(), gradient.clone()
        before = ours.weight.detach().clone(), theirs.detach().clone()
        one.step()
        other.step()
        moved, other_moved = ours.weight.detach() - before[0], theirs.detach() - before[1]
        scale = math.sqrt(8 / 12)  # torch's own: max(1, 8 / 12) ** 0.5
        assert torch.allclose(moved / scale, other_moved, atol=0.1 * 0.05)


@pytest.mark.parametrize("kind", ["dense", "tt", "btt", "factors", "all"])
def test_every_parameter_is_in_one_group(kind):
    model = Net(kind)
    groups = {group["name"]: group["params"] for group in Muon(model).param_groups}
    everything = [parameter for group in groups.values() for parameter in group]
    assert {*everything} == {*model.parameters()}
    assert len(everything) == len({*everything})
    inside = {*model.blocks.parameters()}
    assert {*groups["matrices"]} == {
        parameter
        for layer in model.blocks.modules()
        for parameter in map(layer.get_parameter, matrix_parameters(layer))
    }
    assert {*groups["matrices"]} <= inside
    assert ("ranks" in groups) == (kind in ("tt", "all"))


def test_tables_and_what_is_tied_to_them_are_adams():
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9, bias=False))
    model[2].weight = model[0].weight
    groups = {group["name"]: group["params"] for group in Muon(model).param_groups}
    assert {*groups["matrices"]} == {model[1].weight}


@pytest.mark.parametrize("kind", ["dense", "tt", "btt", "factors"])
def test_a_step_is_the_formula_matrix_by_matrix(kind):
    model = Net(kind).double()
    optimizer = Muon(model, lr=0.3, momentum=0.9, weight_decay=0.1)
    averages = {}
    for step in range(3):
        before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        train(model, optimizer, 1, step)
        for name, layer in model.blocks.named_modules(prefix="blocks"):
            for parameter in matrix_parameters(layer):
                key, tensor = f"{name}.{parameter}", layer.get_parameter(parameter)
                average = averages[key] = 0.9 * averages.get(key, 0) + 0.1 * tensor.grad
                step_along = split_matrices(layer, parameter, 0.1 * tensor.grad + 0.9 * average)
                factors = {"dense": 1, "tt": 4, "btt": 2, "factors": 2}[
                    kind if not isinstance(layer, nn.Linear) else "dense"
                ]
                wanted = [
                    torch.stack(
                        [
                            math.sqrt(one.shape[1] / one.shape[0]) / factors * orthogonalized(one[None])[0]
                            for one in each
                        ]
                    )
                    for each in step_along
                ]
                moved = tensor.detach() - before[key] * (1 - 0.3 * 0.1)
                assert torch.allclose(moved, -0.3 * join_matrices(layer, parameter, wanted), atol=1e-9), key


def test_cores_are_the_factors_of_the_product():
    layer = comera.TTLinear(12, 18, (3, 4), (6, 3), ranks=2)
    sides = [each.shape for each in split_matrices(layer, "packed_cores", layer.packed_cores)]
    assert sides == [(1, 3, 2), (1, 8, 2), (1, 2, 12), (1, 2, 3)]
    assert torch.equal(
        join_matrices(layer, "packed_cores", split_matrices(layer, "packed_cores", layer.packed_cores)),
        layer.packed_cores,
    )


@pytest.mark.parametrize("kind", ["dense", "btt"])
def test_all_else_is_adamw(kind):
    model = Net(kind)
    other = copy.deepcopy(model)
    optimizer = Muon(model, lr=0.0, lr_dense=0.01, weight_decay=0.1)
    names = [name for name, _ in model.named_parameters()]
    matrices = {*optimizer.param_groups[0]["params"]}
    rest = [name for name, parameter in model.named_parameters() if parameter not in matrices]
    assert 0 < len(rest) < len(names)
    wide, flat = (
        [other.get_parameter(n) for n in rest if (other.get_parameter(n).ndim > 1) == w] for w in (True, False)
    )
    groups = [{"params": wide, "weight_decay": 0.1}, {"params": flat, "weight_decay": 0.0}]
    adam = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.95))
    train(model, optimizer, 4)
    train(other, adam, 4)
    for name, parameter in model.named_parameters():
        assert torch.allclose(parameter, other.get_parameter(name), atol=1e-6), name


@pytest.mark.parametrize("kind", ["dense", "tt", "btt", "factors", "all"])
def test_it_learns_and_its_state_comes_back(kind):
    model = Net(kind)
    optimizer = Muon(model)
    losses = train(model, optimizer, 40)
    assert losses[-1] < losses[0] * (0.9 if kind == "all" else 0.75)  # of "all" table and head are tensorized as well
    again, state = copy.deepcopy(model), copy.deepcopy(optimizer.state_dict())
    resumed = Muon(again)
    resumed.load_state_dict(state)
    assert train(again, resumed, 3, 40) == train(model, optimizer, 3, 40)


def test_truncation_cuts_its_state():
    torch.manual_seed(0)
    masked = Net("tt")
    optimizer = Muon(masked)
    train(masked, optimizer, 3)
    with torch.no_grad():
        for layer in comera.tensorized_layers(masked):
            layer.diagonals[1] = 0
    assert comera.truncate(masked, optimizer)
    for layer in comera.tensorized_layers(masked):
        assert optimizer.state[layer.packed_cores]["momentum_buffer"].shape == layer.packed_cores.shape
    assert all(math.isfinite(loss) for loss in train(masked, optimizer, 3, 3))


def test_a_layer_with_closed_bonds_is_passed_over():
    """Its cores have no entries left, but its bias does, and so has the rest of the model."""
    torch.manual_seed(0)
    model = Net("tt")
    closed, *_ = comera.tensorized_layers(model)
    optimizer = Muon(model)
    train(model, optimizer, 1)
    with torch.no_grad():
        for diagonal in closed.diagonals:
            diagonal.zero_()
    assert comera.truncate(model, optimizer)
    assert closed.packed_cores.numel() == 0
    assert all(math.isfinite(loss) for loss in train(model, optimizer, 3, 3))
    closed.packed_cores.grad = torch.zeros_like(closed.packed_cores)  # as every parameter has in a step on fake tensors
    optimizer.step()


def replica(rank):
    model = Net("btt")
    parallel = nn.parallel.DistributedDataParallel(model)
    optimizer = Muon(model)
    for step in range(4):
        words = torch.randint(20, (16,), generator=torch.Generator().manual_seed(step))[rank * 8 :][:8]
        optimizer.zero_grad()
        nn.functional.cross_entropy(parallel(words), (words * 3 + 1) % 20).backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.slow
def test_replicas_train_as_one_process():
    model = Net("btt")
    optimizer = Muon(model)
    for step in range(4):
        words = torch.randint(20, (16,), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(words), (words * 3 + 1) % 20).backward()
        optimizer.step()
    one, other = in_two_processes(replica)
    for ours, theirs, alone in zip(one, other, model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
        assert torch.allclose(ours, alone, atol=1e-4)


def test_conv1d_is_trained_as_the_linear_layer_it_is():
    pytorch_utils = pytest.importorskip("transformers.pytorch_utils")
    linear, conv1d = nn.Linear(6, 4), pytorch_utils.Conv1D(4, 6)
    conv1d.load_state_dict({"weight": linear.weight.t(), "bias": linear.bias})
    x = torch.randn(5, 6)
    for layer in (linear, conv1d):
        optimizer = Muon(nn.Sequential(layer), weight_decay=0.1)
        assert [len(group["params"]) for group in optimizer.param_groups] == [1, 1]
        for _ in range(3):
            optimizer.zero_grad()
            layer(x).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(conv1d.weight, linear.weight.t())
    torch.testing.assert_close(conv1d.bias, linear.bias)


@pytest.mark.parametrize(
    "computed",
    [
        nn.utils.parametrizations.spectral_norm,
        nn.utils.parametrizations.weight_norm,
        lambda layer: prune.random_unstructured(layer, "weight", amount=0.5),
    ],
    ids=["spectral norm", "weight norm", "pruned"],
)
def test_a_layer_that_computes_its_weight_is_adamws(computed):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), computed(nn.Linear(4, 4)), nn.Linear(4, 4))
    optimizer = Muon(model)
    matrices, rest = (group["params"] for group in optimizer.param_groups)
    assert [*map(id, matrices)] == [id(model[0].weight), id(model[2].weight)]
    before = [each.clone() for each in rest]
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    assert all(not torch.equal(*pair) for pair in zip(before, rest, strict=True))


def test_its_state_comes_back_on_another_device():
    def trained(device):
        model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)).to(device)
        return model, Muon(model)

    model, optimizer = trained("cpu")
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    other, loaded = trained("meta")
    loaded.load_state_dict(optimizer.state_dict())
    for parameter in other.parameters():
        assert {value.device.type for value in loaded.state[parameter].values()} == {"meta"}


def test_a_group_added_later_is_adamws():
    model, late = nn.Sequential(nn.Linear(4, 4)), nn.Parameter(torch.ones(3))
    optimizer = Muon(model, lr=0.5, lr_dense=0.25)
    optimizer.add_param_group({"params": [late]})
    (late * torch.tensor([1.0, -2.0, 3.0])).sum().backward()
    optimizer.step()
    assert torch.allclose(late, torch.tensor([0.75, 1.25, 0.75]))  # Adam's first step is the rate, by the sign
