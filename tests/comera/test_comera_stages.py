"""The method's two stages: objectives taken up, ranks cut at their ends and on a schedule, targets checked."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from comera import (
    TT,
    EarlyStage,
    LateStage,
    close_smallest,
    exact_size,
    full_size,
    ranks_of,
    tensorize,
    tensorized_layers,
)
from comera.training import Settings, build


@dataclass(frozen=True)
class Stage:
    steps: int = 10_000
    target: float | None = None
    target_mib: float | None = None


def toy(**settings):
    method = build(Settings(ranks=4, order=2, **settings), "")
    model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 12), nn.Tanh(), nn.Linear(12, 3))
    model = method.adapt(model, {"0": "feed_forward", "2": "feed_forward"})
    return method, model, method.optimizer(model)


def learn(method, model, optimizer, steps):
    x = torch.randn(32, 12, generator=torch.Generator().manual_seed(0))
    changes = []
    for step in range(steps):
        optimizer.zero_grad()
        method.objective(F.cross_entropy(model(x), x[:, 0].gt(0).long()), model).backward()
        optimizer.step()
        changes.append(method.after_step(model, optimizer, step))
    return changes


def close_ranks(model, count):
    """Close the first ranks of the first bond of every layer."""
    with torch.no_grad():
        for layer in tensorized_layers(model):
            layer.diagonals[:count] = 0.0


def test_stages_take_up_their_objectives():
    method, model, optimizer = toy(gamma=0.3, rho=0.7, loss_target=0.1, loss_weight=2.0, size_weight=3.0)
    method.begin_stage(Stage(), model, optimizer)
    assert isinstance(method._objective, EarlyStage)
    assert method._objective.gamma == 0.3
    method.begin_stage(Stage(target=0.5), model, optimizer)
    late = method._objective
    assert isinstance(late, LateStage)
    assert (late.rho, late.loss_target, late.loss_weight, late.size_weight) == (0.7, 0.1, 2.0, 3.0)
    assert late.size_target == 0.5


def test_a_late_stage_reaches_its_target_in_real_tensors():
    method, model, optimizer = toy(lr_ranks=5e-3, lr_cores=1e-3)
    full = full_size(tensorized_layers(model))
    with torch.no_grad():
        for layer in tensorized_layers(model):
            layer.diagonals.uniform_(0.5, 1.5)  # as after an early stage; equal entries would all close at once
    method.begin_stage(Stage(steps=400, target=0.4), model, optimizer)
    assert learn(method, model, optimizer, 400).count("shapes") == 1
    cores = sum(layer.packed_cores.numel() for layer in tensorized_layers(model))
    assert 0.36 * full < cores <= 0.4 * full
    for layer in tensorized_layers(model):
        assert optimizer.state[layer.packed_cores]["exp_avg"].shape == layer.packed_cores.shape
    assert method.end_stage(model, optimizer) == "nothing"


def test_a_late_stage_may_lower_all_ranks_at_its_first_step():
    method, model, optimizer = toy(late="recompress", lr_ranks=5e-3)
    learn(method, model, optimizer, 3)
    full = full_size(tensorized_layers(model))
    method.begin_stage(Stage(steps=8, target=0.4), model, optimizer)
    assert learn(method, model, optimizer, 8) == ["shapes", *["nothing"] * 7]
    cores = sum(layer.packed_cores.numel() for layer in tensorized_layers(model))
    assert 0 < cores <= 0.4 * full
    assert method.sizes(model)["size_fraction"] <= method.sizes(model)["size_target"]
    assert method.end_stage(model, optimizer) == "nothing"


def test_ranks_are_cut_on_schedule_and_the_change_is_reported():
    method, model, optimizer = toy(truncate_every=4)
    close_ranks(model, 1)
    assert learn(method, model, optimizer, 8) == [*["nothing"] * 3, "shapes", *["nothing"] * 4]
    assert all(ranks[0] == 3 for ranks in ranks_of(model).values())


def test_what_is_still_open_when_recovery_begins_is_closed_smallest_first():
    method, model, optimizer = toy(recovery=0.25)
    with torch.no_grad():
        for number, layer in enumerate(tensorized_layers(model)):
            layer.diagonals.copy_(torch.linspace(0.5 + 0.1 * number, 1.0, layer.diagonals.numel()))
    full = full_size(tensorized_layers(model))
    method.begin_stage(Stage(steps=8, target=0.5), model, optimizer)
    changes = learn(method, model, optimizer, 8)
    assert changes == [*["nothing"] * 5, "shapes", *["nothing"] * 2]
    left = full_size(tensorized_layers(model))
    assert 0 < left <= 0.5 * full
    assert method.sizes(model)["size_at_deadline"] == 1.0
    entries = torch.cat([layer.diagonals.detach() for layer in tensorized_layers(model)])
    assert entries.abs().min() > 0.55  # the small ones are gone, whichever layer they were in


def test_the_size_of_what_no_longer_reaches_the_loss_is_spent_on_the_rest():
    """The second layer is closed, so the first counts in vain, and what counts in all is below the target without."""
    x, left = torch.randn(5, 12), {}
    for drop in (False, True):
        torch.manual_seed(0)
        method, model, optimizer = toy(recovery=0.25, drop_unreachable=drop)
        model = nn.Sequential(model, tensorize(nn.Sequential(nn.Linear(12, 3)), {"0": TT(4, order=2)}))
        model[0][4] = nn.Identity()
        with torch.no_grad():
            model[0][2].diagonals.zero_()
            model[0][2].bias.uniform_()
            model[1][0].diagonals.uniform_(0.1, 0.2)  # of the layers alive the last one has the smallest entries
        before = model(x)
        method.use_task_loss(lambda model: model(x).square().mean())
        first, last = (model[i][0].shape.parameter_count for i in (0, 1))
        method.begin_stage(Stage(steps=4, target=first / (first + last)), model, optimizer)
        method._late.done = method._late.steps - 1  # the next step is that of the deadline
        assert method.after_step(model, optimizer, 0) == "shapes"
        left[drop] = [model[i][j].shape.parameter_count for i, j in ((0, 0), (0, 2), (1, 0))]
        assert torch.equal(model(x), before) == drop
    assert left[True] == [0, 0, last]
    assert left[False][0] == first
    assert left[False][2] < last


@pytest.mark.parametrize("target", [0.9, 0.5, 0.1, 1e-6])
def test_closing_the_smallest_closes_no_more_than_it_must(target):
    _, model, _ = toy()
    layers = tensorized_layers(model)
    with torch.no_grad():
        for layer in layers:
            layer.diagonals.uniform_(0.1, 1.0)
    entries = torch.cat([layer.diagonals.detach() for layer in layers])
    full = full_size(layers)
    assert close_smallest(model, target)
    assert exact_size(layers) <= target * full
    left = torch.cat([layer.diagonals.detach() for layer in layers])
    closed = left == 0
    assert torch.equal(left[~closed], entries[~closed])
    assert entries[closed].max() < (entries[~closed].min() if bool((~closed).any()) else 2.0)
    largest = entries[closed].argmax()  # opening the last one again exceeds the target
    with torch.no_grad():
        place = closed.nonzero().flatten()[largest]
        for layer, values in zip(layers, left.split([sum(layer.shape.ranks) for layer in layers]), strict=True):
            layer.diagonals.copy_(values)
        start = 0
        for layer in layers:
            if start <= place < start + layer.diagonals.numel():
                layer.diagonals[place - start] = entries[place]
            start += layer.diagonals.numel()
    assert exact_size(layers) > target * full
    assert not close_smallest(model, 1.0)


def test_the_state_brings_back_the_objective():
    method, model, optimizer = toy()
    close_ranks(model, 2)
    method.end_stage(model, optimizer)
    method.begin_stage(Stage(target=0.5), model, optimizer)
    state = method.state_dict()
    other = build(method.settings, "")
    other.load_state_dict(state)
    loss = torch.tensor(0.3)
    assert other.objective(loss, model).item() == method.objective(loss, model).item()
    assert other.sizes(model) == method.sizes(model)


def test_layers_start_orthogonal_unless_told_and_the_arm_as_published():
    def starts(plan):
        return tensorize(nn.Sequential(nn.Linear(16, 16)), plan)[0].init

    assert starts({"0": TT(ranks=4)}) == "orthogonal"
    assert starts({"0": TT(ranks=4, init="normal")}) == "normal"
    with pytest.raises(ValueError, match=r"TT\(init='orthogonal'\) draws cores, and start='weights' does not"):
        tensorize(nn.Sequential(nn.Linear(16, 16)), {"0": TT(ranks=4, init="orthogonal")}, start="weights")
    for variant, expected in (("", "normal"), ("orthogonal", "orthogonal")):
        model = build(Settings(ranks=4, order=2), variant).adapt(nn.Sequential(nn.Linear(16, 16)), {"0": "classifier"})
        assert model[0].init == expected
