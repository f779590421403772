"""GaLore against the formulas, and its state against a file without pickle."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from toy_encoder import LINEARS, TARGETS, ToyEncoder, batch, train

from baselines import galore
from baselines.galore import GaLoreWithFusedAdamW, Settings


class ByHand:
    """One GaLore weight in plain torch: project, Adam, project back."""

    def __init__(self, weight: torch.Tensor, s: Settings) -> None:
        self.weight, self.s, self.step_count = weight.clone(), s, 0
        self.first = self.second = torch.zeros((), dtype=weight.dtype)

    def step(self, gradient: torch.Tensor) -> None:
        s, tall = self.s, gradient.shape[0] >= gradient.shape[1]
        if self.step_count % s.update_gap == 0:
            left, _, right = torch.linalg.svd(gradient.float(), full_matrices=False)
            basis = right[: s.rank] if tall else left[:, : s.rank]
            self.basis = basis.to(gradient.dtype)
        low = gradient @ self.basis.T if tall else self.basis.T @ gradient
        self.step_count += 1
        self.first = 0.9 * self.first + 0.1 * low
        self.second = 0.999 * self.second + 0.001 * low**2
        bias_1, bias_2 = 1 - 0.9**self.step_count, 1 - 0.999**self.step_count
        # The package adds epsilon before it corrects the second moment's bias; torch's Adam does so after.
        direction = self.first / (self.second.sqrt() + s.eps) * bias_2**0.5 / bias_1
        back = direction @ self.basis if tall else self.basis @ direction
        self.weight = self.weight - s.lr_projected * s.scale * back


@settings(max_examples=15, deadline=None)
@given(rows=st.integers(2, 9), columns=st.integers(2, 9), data=st.data())
def test_steps_are_the_projection_steps_of_the_paper(rows, columns, data):
    rank = data.draw(st.integers(1, min(rows, columns)))
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    chosen = Settings(rank=rank, update_gap=2, lr_projected=0.1)
    weight = nn.Parameter(torch.randn(rows, columns, dtype=torch.float64))
    by_hand, optimizer = ByHand(weight.detach(), chosen), GaLoreWithFusedAdamW([weight], [], chosen)
    for _ in range(5):  # renewals at steps 0, 2 and 4
        weight.grad = torch.randn_like(weight)
        by_hand.step(weight.grad)
        optimizer.step()
        torch.testing.assert_close(weight.detach(), by_hand.weight, rtol=1e-10, atol=1e-12)
    moments = (rows, rank) if rows >= columns else (rank, columns)
    assert optimizer.state[weight]["exp_avg"].shape == moments


def built(rank: int = 3, gap: int = 3, variant: str = ""):
    torch.manual_seed(0)
    arm = galore.build(Settings(rank=rank, update_gap=gap, lr_projected=1e-2, lr=1e-2), variant)
    model = arm.adapt(ToyEncoder(), TARGETS)
    return arm, model, arm.optimizer(model)


def test_updates_per_layer_are_the_same_and_leave_no_gradient():
    """Over a renewal of the projections, with the largest gradient as the most that is there at a time."""
    losses, most = {}, {}
    for variant in galore.VARIANTS:
        torch.manual_seed(0)
        arm, there = galore.build(galore.Settings(rank=4, update_gap=3, lr_projected=4e-2, lr=1e-2), variant), [0]
        model = arm.adapt(ToyEncoder(), TARGETS)
        optimizer = arm.optimizer(model)

        def count(_, model=model, there=there):
            there[0] = max(there[0], sum(p.grad.numel() for p in model.parameters() if p.grad is not None))

        for parameter in model.parameters():  # after the optimizer's own hook
            parameter.register_post_accumulate_grad_hook(count)
        losses[variant], most[variant] = train(arm, model, optimizer, batch(), range(5)), there[0]
        if variant.endswith("per_layer"):
            assert all(parameter.grad is None for parameter in model.parameters())
    assert losses["per_layer"] == losses[""]
    assert losses["8bit_per_layer"] == losses["8bit"]
    assert most["per_layer"] == most["8bit_per_layer"] == 0 < most[""]


def test_moments_of_8_bits_follow_the_packages_own_optimizer():
    """bitsandbytes' AdamW on a plain weight, and GaLore with moments of 32 bits on a projected one."""
    import bitsandbytes

    torch.manual_seed(0)
    weight, other = nn.Parameter(torch.randn(96, 64)), nn.Parameter(torch.randn(70, 64))
    alone, exact = (nn.Parameter(one.detach().clone()) for one in (other, weight))
    settings = Settings(rank=48, lr=0.05, lr_projected=0.05, scale=1.0)
    optimizer = GaLoreWithFusedAdamW([weight], [other], settings, eight_bit=True)
    reference = bitsandbytes.optim.AdamW8bit([alone], lr=0.05, weight_decay=0.0)
    unquantised = GaLoreWithFusedAdamW([exact], [], settings)
    for _ in range(5):
        weight.grad, other.grad = torch.randn_like(weight), torch.randn_like(other)
        exact.grad, alone.grad = weight.grad.clone(), other.grad.clone()
        for one in (optimizer, reference, unquantised):
            one.step()
    assert torch.equal(other, alone)
    moved = (weight - exact).norm() / exact.norm()
    assert 0 < moved < 0.02
    assert optimizer.state[weight]["state1"].shape == (96, 48)
    assert {optimizer.state[one]["state2"].dtype for one in (weight, other)} == {torch.uint8}


def test_exactly_the_linear_targets_are_projected():
    _, model, optimizer = built()
    projected, plain = optimizer.param_groups
    assert [id(p) for p in projected["params"]] == [id(model.get_parameter(f"{name}.weight")) for name in LINEARS]
    assert any(p is model.word.weight for p in plain["params"])
    assert plain["fused"] is True


def through_plain_files(state: dict) -> dict:
    """Tensors to one side, the rest through JSON, and back: fails on anything that is neither."""
    tensors: list[torch.Tensor] = []

    def outward(value):
        if isinstance(value, torch.Tensor):
            tensors.append(value.detach().clone())
            return {"tensor": len(tensors) - 1}
        if isinstance(value, dict):
            return {"pairs": [[key, outward(item)] for key, item in value.items()]}
        return [outward(item) for item in value] if isinstance(value, list | tuple) else value

    def inward(value):
        if isinstance(value, list):
            return [inward(item) for item in value]
        if not isinstance(value, dict):
            return value
        return tensors[value["tensor"]] if "tensor" in value else {key: inward(item) for key, item in value["pairs"]}

    return inward(json.loads(json.dumps(outward(state), allow_nan=False)))


@pytest.mark.parametrize("variant", ["", "8bit"])
@pytest.mark.parametrize("steps_before", [0, 1, 2, 3])
def test_the_state_survives_plain_files_bit_for_bit(steps_before, variant):
    arm, model, optimizer = built(variant=variant)
    train(arm, model, optimizer, batch(), range(steps_before))
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    state = through_plain_files(optimizer.state_dict())
    undisturbed = train(arm, model, optimizer, batch(1), range(5))

    arm_again, model_again, optimizer_again = built(variant=variant)
    model_again.load_state_dict(weights)
    optimizer_again.load_state_dict(state)
    assert train(arm_again, model_again, optimizer_again, batch(1), range(5)) == undisturbed
    for one, other in zip(model.parameters(), model_again.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_rare_svd_costs_time_and_changes_nothing():
    arm, model, optimizer = built()
    (event,) = arm.rare_events()
    assert (event.name, event.period_steps, event.offset_steps) == ("svd", 3, 0)
    with pytest.raises(RuntimeError, match="run a backward pass first"):
        event.run(model, optimizer)
    train(arm, model, optimizer, batch(), range(2))
    gradients = {name: p.grad for name, p in model.named_parameters()}
    live = {"optimizer": optimizer.state_dict()["state"], "model": dict(model.state_dict()), "gradients": gradients}
    before = through_plain_files(live)
    event.run(model, optimizer)
    now = {**live, "optimizer": optimizer.state_dict()["state"]}
    for state in (*before["optimizer"].values(), *now["optimizer"].values()):
        state.pop("projector", None)  # holds a string, which assert_close does not compare
    torch.testing.assert_close(through_plain_files(now), before, rtol=0, atol=0)


def test_a_renewal_is_the_matrix_the_next_step_would_use():
    weight = nn.Parameter(torch.randn(7, 4))
    optimizer = GaLoreWithFusedAdamW([weight], [], Settings(rank=2, update_gap=1))
    weight.grad = torch.randn_like(weight)
    optimizer.step()
    weight.grad = torch.randn_like(weight)
    renewed = optimizer.state[weight]["projector"].renewed(weight.grad)
    assert not torch.equal(renewed, optimizer.state[weight]["projection"])
    optimizer.step()
    assert torch.equal(renewed, optimizer.state[weight]["projection"])


@pytest.mark.parametrize("variant", ["", "8bit"])
def test_the_first_basis_is_that_of_the_first_gradient_that_is_not_zero(variant):
    torch.manual_seed(0)
    weight, late = (nn.Parameter(torch.ones(6, 4)) for _ in range(2))
    chosen = Settings(rank=2, update_gap=3, lr_projected=0.1)
    optimizer, other = (GaLoreWithFusedAdamW([each], [], chosen, variant == "8bit") for each in (weight, late))
    gradients = [torch.randn(6, 4) for _ in range(4)]
    late.grad = torch.zeros(6, 4)
    other.step()
    assert torch.equal(late, torch.ones(6, 4))
    state = other.state_dict()
    other = GaLoreWithFusedAdamW([late], [], chosen, variant == "8bit")
    other.load_state_dict(state)  # a training killed here goes on alike
    for number in (0, 1):
        weight.grad, late.grad = gradients[number].clone(), gradients[number].clone()
        optimizer.step()
        other.step()
        assert torch.equal(optimizer.state[weight]["projection"], other.state[late]["projection"])
    late.grad = torch.zeros(6, 4)  # a renewal is due
    basis = other.state[late]["projection"].clone()
    other.step()
    assert torch.equal(other.state[late]["projection"], basis)
