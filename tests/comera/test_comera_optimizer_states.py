"""Every optimizer's state is cut along with the ranks, or refused by its name before anything is changed."""

import copy
import math
import sys

import pytest
import torch
from model_states import assert_same
from torch import nn

import comera
from comera.compatibility.living import living
from comera.compatibility.optimizer_states import check_states, cut_state
from comera.loops.control import RankPlan

CLOSED = (0, 1, 5, 33, 34)  # places in the rank entries of a layer, no bond as a whole


def model_of(modules=2, size=128):
    model = nn.Sequential(*(nn.Linear(size, size) for _ in range(modules)))
    return comera.tensorize(model, {"*": comera.TT(ranks=32, order=2)})


def train(model, optimizer, steps=3):
    for step in range(steps):
        x = torch.randn(4, 128, generator=torch.Generator().manual_seed(step))

        def closure(x=x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)


def close(model, places=CLOSED):
    with torch.no_grad():
        for layer in comera.tensorized_layers(model):
            layer.diagonals[list(places)] = 0.0


class Plain(torch.optim.Optimizer):
    """Gradient descent, to which the optimizers below add states."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure):
        with torch.enable_grad():
            closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=group["lr"])
            self.fill(group)

    def entries(self, group):
        return sum(parameter.numel() for parameter in group["params"])


def with_state(made):
    """An optimizer that keeps something for each parameter, made by a function of it."""

    def fill(self, group):
        for parameter in group["params"]:
            self.state[parameter].setdefault("more", made(parameter))

    return type("Soap", (Plain,), {"fill": fill})


class Fused(Plain):
    """One flat buffer for all parameters, under a key of its own."""

    def fill(self, group):
        self.state["flat"] = {"buffer": torch.zeros(self.entries(group))}


class InGroups(Plain):
    """A flat buffer in each group."""

    def fill(self, group):
        group["buffer"] = torch.zeros(self.entries(group))


class AtTheFirst(Plain):
    """A flat buffer of all parameters in the state of the first, which is no core."""

    def fill(self, group):
        self.state[group["params"][0]]["buffer"] = torch.zeros(2, self.entries(group))


def flat(*sizes):
    """A function that gives tensors of these sizes, whatever the parameter."""
    return lambda _: [torch.zeros(size) for size in sizes]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.Adam, {"amsgrad": True}),
        (torch.optim.AdamW, {"fused": True}),
        (torch.optim.NAdam, {}),
        (torch.optim.RAdam, {}),
        (torch.optim.Adamax, {}),
        (torch.optim.Adadelta, {}),
        (torch.optim.Adagrad, {}),
        (torch.optim.Adafactor, {}),
        (torch.optim.ASGD, {}),
        (torch.optim.RMSprop, {"centered": True, "momentum": 0.9}),
        (torch.optim.Rprop, {}),
        (torch.optim.SGD, {"momentum": 0.9}),
        (with_state(lambda parameter: [{"of its shape": torch.zeros_like(parameter)}, None, 3, torch.ones(1)]), {}),
    ],
)
def test_states_of_a_parameters_shape_go_on_as_with_masked_ranks(kind, options):
    """What was cut would not have moved: its diagonals are zero, and so are the gradients that pass them."""
    masked = model_of()
    close(masked)
    cut, optimizers = copy.deepcopy(masked), []
    for model in (masked, cut):
        optimizers.append(kind([layer.packed_cores for layer in model], lr=1e-4, **options))
        train(model, optimizers[-1])
    assert comera.truncate(cut, optimizers[1])
    x = torch.randn(4, 128)
    for model, optimizer in zip((masked, cut), optimizers, strict=True):
        train(model, optimizer)
    assert torch.allclose(cut(x), masked(x), rtol=1e-3, atol=1e-4)  # Adafactor's rates come from means over entries


@pytest.mark.parametrize(
    "kind",
    [
        torch.optim.LBFGS,
        Fused,
        InGroups,
        AtTheFirst,
        with_state(lambda parameter: torch.zeros(math.ceil(parameter.numel() / 256))),  # a scale per block
        with_state(lambda parameter: parameter.detach().to_sparse()),
        with_state(flat((16,), (20,))),  # rows and columns
        with_state(lambda _: object()),  # a projector
    ],
    ids=lambda kind: kind.__name__,
)
def test_other_states_are_refused_by_name_before_anything_changes(kind):
    model = model_of()
    optimizer = kind([nn.Parameter(torch.ones(2)), *model.parameters()], lr=1e-4)
    train(model, optimizer)
    close(model)
    before = [copy.deepcopy(model.state_dict()), comera.ranks_of(model)]
    for call in (
        lambda: comera.truncate(model, optimizer),
        lambda: model[0].truncate(optimizer),
        lambda: comera.control_ranks(model, optimizer, RankPlan(early_steps=9)),
    ):
        with pytest.raises(ValueError, match=kind.__name__):
            call()
        assert_same([model.state_dict(), comera.ranks_of(model)], before)


BLOCKWISE = {
    "AdamW8bit": {},
    "Adam8bit": {},
    "Lion8bit": {},
    "Adagrad8bit": {},
    "RMSprop8bit": {},
    "SGD8bit": {"momentum": 0.9},
    "LAMB8bit": {},
    "AdEMAMix8bit": {},
    "AdEMAMix": {},  # in 32 bits, two moments stacked
    "AdamW": {},
}


def decoded(state, number):
    """A state of bitsandbytes as numbers, by its own function where it is in 8 bits."""
    functional = pytest.importorskip("bitsandbytes.functional")
    values = state[f"state{number}"]
    if values.dtype != torch.uint8 or not values.numel():
        return values.float()
    stacked = (
        values.reshape(-1, values.shape[-1]),
        state[f"absmax{number}"].reshape(-1, state[f"absmax{number}"].shape[-1]),
    )
    code = state[f"qmap{number}"]
    rows = [
        functional.dequantize_blockwise(codes, absmax=scales, code=code, blocksize=256)
        for codes, scales in zip(*stacked, strict=True)
    ]
    return torch.stack(rows).reshape(values.shape)


@pytest.mark.parametrize(
    ("name", "closed"),
    [
        *((name, CLOSED) for name in BLOCKWISE),
        *((name, closed) for name in ("AdamW8bit", "AdEMAMix") for closed in ((0,), range(1, 16), range(16))),
    ],
    ids=str,
)
def test_bitsandbytes_states_are_cut_with_the_scales_of_their_blocks(name, closed):
    optimizers = pytest.importorskip("bitsandbytes.optim")
    model = model_of(1)
    [layer] = model
    optimizer = getattr(optimizers, name)(model.parameters(), lr=1e-4, **BLOCKWISE[name])
    train(model, optimizer)
    close(model, closed)
    state, kept = optimizer.state[layer.packed_cores], torch.arange(layer.packed_cores.numel())
    former = {number: decoded(state, number) for number in "12" if f"state{number}" in state}
    steps, alone = state["step"], copy.deepcopy(layer)
    alone.packed_cores.data = kept.float()  # small enough to be exact
    alone.truncate()
    places = alone.packed_cores.detach().long()
    assert comera.truncate(model, optimizer)
    for number, then in former.items():
        now, wanted = decoded(state, number), then[..., places]
        assert now.shape == wanted.shape
        assert state["step"] == steps
        if not wanted.numel():
            continue
        if state[f"state{number}"].dtype != torch.uint8:
            assert torch.equal(now, wanted)
            continue
        blocks = wanted.split(256, dim=-1)
        assert state[f"absmax{number}"].shape[-1] == len(blocks)
        for one, other in zip(now.split(256, dim=-1), blocks, strict=True):
            # Codes lie at most 1/55 of the block's largest entry apart, and a nearest one is taken.
            assert (one - other).abs().max() <= other.abs().max() / 55
    train(model, optimizer)
    assert all(parameter.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("kind", ["Adam8bit", "AdamW8bit", "Adam4bit", "AdamWFp8"])
@pytest.mark.parametrize("entries", [8192 - 2048, 8192 - 100, 1000])
def test_torchaos_tensors_become_what_torchao_keeps_for_a_parameter_of_the_new_size(kind, entries):
    torchao = pytest.importorskip("torchao.optim")
    with torch.compiler.set_stance("force_eager"):
        weights, optimizers = [], []
        for size in (8192, entries):
            weights.append(nn.Parameter(torch.ones(size)))
            optimizers.append(getattr(torchao, kind)([weights[-1]], lr=1e-3))
            weights[-1].grad = torch.randn(size)
            optimizers[-1].step()
        state, fresh = (o.state[weight] for o, weight in zip(optimizers, weights, strict=True))
        former = {name: state[name].dequantize() for name in ("exp_avg", "exp_avg_sq")}
        places = torch.randperm(8192)[:entries].sort().values
        check_states("truncate", optimizers[0], [weights[0]])
        cut_state(optimizers[0], weights[0], places)
        for name, then in former.items():
            now = state[name]
            assert type(now) is type(fresh[name])
            assert now.shape == fresh[name].shape
            plain = now.dequantize() if hasattr(now, "dequantize") and type(now) is not torch.Tensor else now
            steps = {"Adam4bit": 1 / 4}.get(kind, 1 / 15)
            assert (plain - then[places]).abs().max() <= then.abs().max() * steps
        weights[0].data, weights[0].grad = weights[0].data[places], torch.randn(entries)
        optimizers[0].step()
        assert weights[0].isfinite().all()


def test_living_objects_are_found_among_many_objects_without_a_call_for_each():
    class Own(torch.optim.SGD):
        """Of a class that this process has just made."""

    own, plain = Own([nn.Parameter(torch.zeros(1))]), torch.optim.Adam([nn.Parameter(torch.zeros(1))])
    crowd = [[number] for number in range(300_000)]
    calls = 0

    def count(_frame, _event, _function):
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        found = living([torch.optim.Optimizer])
    finally:
        sys.setprofile(None)
    assert own in found
    assert plain in found
    assert calls < len(crowd) / 100
