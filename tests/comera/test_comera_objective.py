"""The early stage's objective equals its formula, and so does its gradient."""

import pytest
import torch
from drawn_chains import SEEDS, assert_all_close, dense_tt, dense_ttm, gradients
from drawn_models import SHAPES, model_of, surrogate_by_hand
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from comera import TT, TTM, EarlyStage, TTLinear, exact_size, full_size, tensorize, tensorized_layers
from comera.objective import ModelSize
from comera.rank_control import THRESHOLD


@given(SHAPES, SEEDS)
def test_the_surrogate_and_its_gradient_are_those_by_hand(shapes, seed):
    model = model_of(shapes, seed)
    objective = EarlyStage(gamma=1.0, beta=0.0)
    loss = torch.tensor(2.0, dtype=torch.float64)
    value = objective(loss, model) - loss
    wanted, slopes = surrogate_by_hand(model)
    diagonals = [layer.diagonals for layer in model]
    found = torch.cat(torch.autograd.grad(value, diagonals, materialize_grads=True))
    assert_all_close(
        [value, found], [torch.tensor(wanted, dtype=torch.float64), torch.tensor(slopes, dtype=torch.float64)]
    )


def test_the_surrogate_of_a_small_chain():
    layer = TTLinear(4, 6, (2, 2), (3, 2), 2, dtype=torch.float64)
    with torch.no_grad():
        layer.diagonals.copy_(torch.tensor([1.0, -0.5, 0.25, 0.0, 2.0, 0.001]))
    objective = EarlyStage(gamma=0.1, beta=0.0)
    loss = torch.tensor(0.0, dtype=torch.float64)
    # Norms 1.5, 0.25, 2.001; modes 2, 2, 3, 2; full size 2·2 + 2·2·2 + 3·2·2 + 2·2 = 28.
    wanted = (2 * 1.5 + 2 * 1.5 * 0.25 + 3 * 0.25 * 2.001 + 2 * 2.001) / 28
    assert objective(loss, nn.Sequential(layer)).item() == pytest.approx(0.1 * wanted)


@given(SHAPES.filter(lambda shapes: any(shape.parameter_count for shape in shapes)))
def test_the_surrogate_starts_at_one(shapes):
    model = model_of(shapes, 0)
    for layer in model:
        nn.init.ones_(layer.diagonals)
    zero = torch.zeros((), dtype=torch.float64)
    assert EarlyStage(gamma=1.0, beta=0.0)(zero, model).item() == pytest.approx(1.0)


@given(SHAPES, SEEDS, st.floats(0, 2), st.floats(0, 2))
def test_the_papers_objective_is_its_formula(shapes, seed, gamma, beta):
    model = model_of(shapes, seed)
    loss = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    value = EarlyStage("paper", gamma, beta)(loss, model)
    surrogate, slopes = surrogate_by_hand(model)
    squares = sum(layer.packed_cores.detach().square().sum().item() for layer in model)
    assert value.item() == pytest.approx(0.7 + gamma * surrogate + beta * squares)
    inputs = [loss, *(layer.diagonals for layer in model), *(layer.packed_cores for layer in model)]
    found = torch.autograd.grad(value, inputs, materialize_grads=True)
    assert found[0].item() == 1.0
    assert_all_close(
        [torch.cat(found[1 : len(model) + 1]), torch.cat(found[len(model) + 1 :])],
        [
            gamma * torch.tensor(slopes, dtype=torch.float64),
            2 * beta * torch.cat([layer.packed_cores.detach() for layer in model]),
        ],
    )


@given(SHAPES, SEEDS)
def test_the_released_objective_is_the_mean_of_the_live_entries(shapes, seed):
    model = model_of(shapes, seed)
    loss = torch.tensor(0.7, dtype=torch.float64)
    value = EarlyStage("released")(loss, model)
    entries = [entry for layer in model for entry in layer.diagonals.tolist()]
    alive = [entry for entry in entries if entry > THRESHOLD]
    assert value.item() == pytest.approx(0.7 + 0.01 * (sum(alive) / len(alive) if alive else 0.0))
    slopes = [0.01 / len(alive) if entry > THRESHOLD else 0.0 for entry in entries]
    inputs = [*(layer.diagonals for layer in model), *(layer.packed_cores for layer in model)]
    found = torch.autograd.grad(value, inputs, allow_unused=True)
    assert_all_close([torch.cat(found[: len(model)])], [torch.tensor(slopes, dtype=torch.float64)])
    assert found[len(model) :] == (None,) * len(model)


def test_weights_of_zero_and_a_model_without_tensorized_layers_leave_the_loss():
    loss = torch.tensor(0.7)
    model = tensorize(nn.Sequential(nn.Linear(4, 4)), {"0": TT(ranks=2, order=2)})
    assert EarlyStage(gamma=0.0, beta=0.0)(loss, model) is loss
    for variant in ("paper", "released"):
        assert EarlyStage(variant)(loss, nn.Linear(4, 4)) is loss


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_the_objective_follows_truncation(variant):
    model = nn.Sequential(nn.Embedding(12, 6), nn.Linear(6, 6), nn.Linear(6, 6)).double()
    model = tensorize(model, {"0": TTM(ranks=3, order=2), "[12]": TT(ranks=3, order=2)})
    objective = EarlyStage(variant, gamma=0.5, beta=0.1)
    zero = torch.zeros((), dtype=torch.float64)
    layers = tensorized_layers(model)
    for dead, layer in enumerate(layers):
        with torch.no_grad():
            layer.diagonals[:dead] = 0.0
    before = full_size(layers)
    found = []
    for cut in (False, True, True):
        for layer in layers if cut else ():
            layer.truncate()
        found.append(objective(zero, model).item())
        fresh = EarlyStage(variant, gamma=0.5, beta=0.1, full=before)(zero, model).item()
        assert found[-1] == pytest.approx(fresh)  # still a fraction of what it was before any cut
    assert full_size(layers) < before
    assert found[1] == found[2]
    objective(zero, model).backward()
    assert all(layer.diagonals.grad.shape == layer.diagonals.shape for layer in layers)


@given(SHAPES, SEEDS, st.data())
def test_the_size_counts_the_core_entries_that_the_weights_depend_on(shapes, seed, data):
    """An entry at a closed rank moves no weight, and none of a chain does whose bond is closed as a whole."""
    model = model_of(shapes, seed)
    for layer in model:
        bonds = layer.diagonals.detach().split(layer.shape.ranks)
        for closed in data.draw(st.sets(st.sampled_from(range(len(bonds))), max_size=1)):
            bonds[closed].zero_()
    wanted = 0
    for layer in model:
        packed, dense = layer.packed_cores, dense_tt if isinstance(layer, TTLinear) else dense_ttm
        weight = dense(packed, layer.diagonals, layer.shape)
        [moved] = gradients(weight, torch.randn_like(weight), [packed])
        wanted += int(moved.count_nonzero())
    layers = tensorized_layers(model)
    assert exact_size(layers) == wanted
    assert ModelSize(model).exact().item() == pytest.approx(wanted / max(full_size(layers), 1))


@pytest.mark.parametrize("shared", [True, False])
def test_shared_cores_count_once(shared):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    if shared:
        model[1].weight = model[0].weight
    tensorize(model, {"*": TT(ranks=2, order=2)})
    layers = tensorized_layers(model)
    assert len(layers) == (1 if shared else 2)
    assert full_size(layers) == len(layers) * layers[0].shape.parameter_count
