"""The late stage's objective equals its formula in both branches, and pulls where the branch says."""

import pytest
import torch
from drawn_chains import SEEDS, assert_all_close
from drawn_models import SHAPES, model_of, surrogate_by_hand
from hypothesis import assume, given
from hypothesis import strategies as st

from comera import LateStage, ModelSize, TTLinear, exact_size, full_size
from comera.rank_control import THRESHOLD


@given(SHAPES, SEEDS)
def test_the_models_size_is_that_counted_layer_by_layer(shapes, seed):
    model = model_of(shapes, seed)
    assert ModelSize(model, full=64).exact().item() == pytest.approx(exact_size(list(model)) / 64)


def test_the_size_of_a_small_chain():
    layer = TTLinear(4, 6, (2, 2), (3, 2), 2)
    with torch.no_grad():
        layer.diagonals.copy_(torch.tensor([1.0, -0.5, 0.25, 0.0, 2.0, 0.001]))
    # Active ranks 2, 1, 1; modes 2, 2, 3, 2; full size 2·2 + 2·2·2 + 3·2·2 + 2·2 = 28.
    assert ModelSize(layer).exact().item() == pytest.approx((2 * 2 + 2 * 2 * 1 + 3 * 1 * 1 + 2 * 1) / 28)
    with torch.no_grad():
        layer.diagonals[2:4] = 0.0
    assert ModelSize(layer).exact().item() == 0.0  # one closed bond silences the chain


@given(SHAPES, SEEDS, st.floats(0.01, 1), st.floats(0, 2), st.tuples(*[st.floats(0, 3)] * 4))
def test_the_papers_objective_is_its_formula(shapes, seed, target, loss_target, weights):
    w1, w2, rho, beta = weights
    model = model_of(shapes, seed)
    full = max(full_size(list(model)), 1)
    size = exact_size(list(model)) / full
    task = 0.7
    assume(abs(w2 * (size - target) - w1 * (task - loss_target)) > 1e-6)
    loss = torch.tensor(task, dtype=torch.float64, requires_grad=True)
    value = LateStage(target, "paper", loss_target, w1, w2, rho, beta)(loss, model)
    surrogate, slopes = surrogate_by_hand(model)
    slopes = torch.tensor(slopes, dtype=torch.float64)
    squares = sum(layer.packed_cores.detach().square().sum().item() for layer in model)
    size_leads = w2 * (size - target) > w1 * (task - loss_target)
    leading = w2 * (surrogate - target) if size_leads else w1 * (task - loss_target)
    assert value.item() == pytest.approx(leading + rho * (task + surrogate) + beta * squares)
    inputs = [loss, *(layer.diagonals for layer in model), *(layer.packed_cores for layer in model)]
    by_loss, *others = torch.autograd.grad(value, inputs, materialize_grads=True)
    assert by_loss.item() == pytest.approx(rho + (0.0 if size_leads else w1))
    assert_all_close(
        [torch.cat(others[: len(model)]), torch.cat(others[len(model) :])],
        [
            (rho + (w2 if size_leads else 0.0)) * slopes,
            2 * beta * torch.cat([layer.packed_cores.detach() for layer in model]),
        ],
    )


def chain(*entries: float) -> TTLinear:
    """A chain with these rank-control entries on its only bond; its size is the share of live ones."""
    n = len(entries)
    layer = TTLinear(n, n, (n,), (n,), n, dtype=torch.float64)
    with torch.no_grad():
        layer.diagonals.copy_(torch.tensor(entries))
    return layer


@pytest.mark.parametrize(
    ("entries", "size_pulls"),
    [
        ((1.0, 1.0, 1.0, 1.0), True),  # S = 1 > S0 = 0.5
        ((0.1, 0.1, 0.1, 0.0), True),  # Ŝ = 0.075 < S0, but the exact S = 0.75 decides
        ((2.0, 2.0, 0.0, 0.0), False),  # S = S0 although Ŝ = 1
        ((2.0, 0.0, 0.0, 0.0), False),
    ],
)
@pytest.mark.parametrize("loss_target", [0.0, None])
def test_the_exact_size_chooses_the_branch(entries, size_pulls, loss_target):
    layer = chain(*entries)
    loss = torch.tensor(0.01, dtype=torch.float64, requires_grad=True)
    value = LateStage(0.5, "paper", loss_target, loss_weight=1.0, size_weight=10.0, rho=0.0, beta=0.0)(loss, layer)
    by_loss, by_rank = torch.autograd.grad(value, [loss, layer.diagonals], materialize_grads=True)
    assert by_loss.item() == (0.0 if size_pulls else 1.0)
    assert by_rank.tolist() == ([2.5 * (entry > 0) for entry in entries] if size_pulls else [0.0] * 4)


@pytest.mark.parametrize(
    ("task", "entries", "size_leads"),
    [
        (1.0, (1.0, 1.0, 1.0, 1.0), True),  # (1 - 0.8)/1 = 0.2 < (1 - 0.5)/1
        (2.0, (1.0, 1.0, 1.0, 1.0), False),  # 0.6 > 0.5
        (0.5, (0.4, 0.0, 0.0, 0.0), False),  # -0.6 > -1
        (0.5, (0.4, 0.4, 0.0, 0.0), True),  # -0.6 < 0
    ],
)
def test_the_released_objective_is_its_formula(task, entries, size_leads):
    layer = chain(*entries)
    loss = torch.tensor(task, dtype=torch.float64, requires_grad=True)
    value = LateStage(0.5, "released")(loss, layer)
    alive = [entry for entry in entries if entry > THRESHOLD]
    p = sum(alive) / len(alive)
    assert value.item() == pytest.approx(0.1 * task + 0.01 * p + (p if size_leads else task))
    by_loss, by_rank = torch.autograd.grad(value, [loss, layer.diagonals])
    assert by_loss.item() == pytest.approx(0.1 + (0.0 if size_leads else 1.0))
    weight = 0.01 + (1.0 if size_leads else 0.0)
    assert by_rank.tolist() == pytest.approx([weight / len(alive) * (entry > 0) for entry in entries])


@pytest.mark.parametrize("task", [0.0, 50.0])
@pytest.mark.parametrize("leads", [True, False])
def test_without_a_target_for_the_loss_the_size_leads_whatever_the_loss(task, leads):
    layer = chain(1.0, 1.0, 1.0, 0.0 if leads else 1.0)
    late = LateStage(0.8 if leads else 1.0, loss_weight=2.0, size_weight=3.0, rho=0.5, beta=0.0)
    loss = torch.tensor(task, dtype=torch.float64, requires_grad=True)
    value = late(loss, layer)
    surrogate = 0.75 if leads else 1.0
    assert value.item() == pytest.approx(max(0.0, 3.0 * (surrogate - late.size_target)) + 0.5 * (task + surrogate))


def test_ranks_fall_to_the_target_and_no_further_than_the_last_step():
    layer = chain(*(1.0 + 0.01 * i for i in range(20)))
    late = LateStage(0.5, size_weight=1000.0, rho=0.0, beta=0.0)
    rate = torch.optim.SGD([layer.diagonals], lr=1e-4)
    sizes = []
    for _ in range(1000):
        rate.zero_grad()
        late(torch.tensor(0.0, dtype=torch.float64), layer).backward()
        rate.step()
        sizes.append(ModelSize(layer).exact().item())
    assert sizes[-1] <= 0.5
    assert sizes[-1] >= 0.4
    assert sizes == sorted(sizes, reverse=True)
