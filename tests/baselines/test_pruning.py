"""``dense:pruned``: a dense model that loses heads and inner columns along a curve."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from baselines import dense
from bench.workloads.encoder import block_targets
from bench.workloads.pointer.model import PointerModel, PointerSettings
from comera.protocol import Stage

SETTINGS = PointerSettings(layers=2, width=32, heads=4, feed_forward=64, vocabulary=40, context=12, dropout=0.0)
TARGETS = block_targets(2)


def built(recovery=0.5):
    torch.manual_seed(0)
    arm = dense.build(dense.Settings(lr=1e-3, recovery=recovery), dense.PRUNED)
    model = arm.adapt(PointerModel(SETTINGS), TARGETS)
    return arm, model, arm.optimizer(model)


def loss_of(model):
    words = torch.randint(2, 40, (16, 12), generator=torch.Generator().manual_seed(1))
    return F.cross_entropy(model(words).flatten(0, -2), words.flatten() % 8)


def train(arm, model, optimizer, steps, scale=1.0):
    for step in range(steps):
        optimizer.zero_grad()
        (scale * loss_of(model)).backward()
        optimizer.step()
        arm.after_step(model, optimizer, step)


def weights(model):
    return sum(model.get_submodule(name).weight.numel() for name in TARGETS)


@pytest.mark.parametrize("target", [0.6, 0.3])
def test_the_target_is_met_and_the_cut_changes_no_output(target):
    arm, model, optimizer = built()
    full = weights(model)
    train(arm, model, optimizer, 5)
    arm.begin_stage(Stage("prune", 40, target), model, optimizer)
    train(arm, model, optimizer, 40)
    assert weights(model) == full  # zeros until the end
    before = loss_of(model).item()
    assert arm.end_stage(model, optimizer) == "shapes"
    assert 0.95 * target * full <= weights(model) <= target * full
    assert arm.sizes(model) == pytest.approx({"size_fraction": weights(model) / full, "size_target": target})
    assert loss_of(model).item() == pytest.approx(before, abs=1e-6)
    assert all(block.attention.heads >= 1 for block in model.blocks)
    train(arm, model, optimizer, 2)  # the optimizer's state has the new sizes


@pytest.mark.parametrize("scale", [0.01, 100.0])
@pytest.mark.parametrize("make", [lambda p: torch.optim.SGD(p, lr=0.1), lambda p: torch.optim.Adam(p, lr=1e-3)])
def test_neither_the_scale_of_the_loss_nor_zeros_at_the_start_keep_it_from_its_target(scale, make):
    arm, model, _ = built()
    with torch.no_grad():
        for block in model.blocks:  # as the language model starts
            block.attention.output.weight.zero_()
            block.feed_forward.contract.weight.zero_()
    optimizer, full = make(model.parameters()), weights(model)
    arm.begin_stage(Stage("prune", 40, 0.3), model, optimizer)
    train(arm, model, optimizer, 40, scale)
    arm.end_stage(model, optimizer)
    assert 0.95 * 0.3 * full <= weights(model) <= 0.3 * full
    assert torch.isfinite(loss_of(model))


def test_what_the_loss_does_not_hang_on_goes_first():
    arm, model, optimizer = built(recovery=0.01)
    dead = model.blocks[1].feed_forward
    with torch.no_grad():
        dead.contract.weight[:, 10:20] = 0.0
        dead.expand.weight[10:20], dead.expand.bias[10:20] = 0.0, -50.0  # GELU passes nothing, so they stay at zero
    arm.begin_stage(Stage("prune", 4, 0.97), model, optimizer)
    train(arm, model, optimizer, 4)
    is_open = next(one for one in arm._pruning_of(model).parts if one.owner is dead).is_open
    assert not all(is_open[10:20])
    assert all([*is_open[:10], *is_open[20:]])


def test_a_pruned_model_is_read_back_and_a_stage_goes_on_where_it_was():
    arm, model, optimizer = built()
    arm.begin_stage(Stage("prune", 40, 0.4), model, optimizer)
    train(arm, model, optimizer, 20)
    again, other, stepped = built()
    other.load_state_dict(model.state_dict())
    stepped.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    again.load_state_dict(arm.state_dict())
    for one in ((arm, model, optimizer), (again, other, stepped)):
        train(*one, 20)
        one[0].end_stage(*one[1:])
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    _, whole, _ = built()
    whole.load_state_dict(model.state_dict())
    assert loss_of(whole).item() == loss_of(model).item()


def test_what_cannot_be_pruned_is_refused_in_a_sentence():
    arm, model, optimizer = built()
    with pytest.raises(ValueError, match=r"target is 0.02; one head and one column .* weigh 0\.\d+ of it"):
        arm.begin_stage(Stage("prune", 40, 0.02), model, optimizer)
    with torch.device("meta"):  # as plans are checked
        arm, model, optimizer = built()
    with pytest.raises(ValueError, match=r"target is 0\.02; one head"):
        arm.begin_stage(Stage("prune", 40, 0.02), model, optimizer)
    assert "needs heads or inner columns" in arm.model_unsupported(nn.Sequential(nn.Linear(2, 2)), {"0": "classifier"})
    plain = dense.build(dense.Settings(recovery=0.5), "")
    assert plain.model_unsupported(model, TARGETS).startswith(
        "settings.dense.recovery is 0.5, which is for dense:pruned"
    )
    with pytest.raises(ValueError, match=r"dense\.recovery is 1; allowed"):
        dense.Settings(recovery=1)
