"""Joint merging leaves parameters alone, uses no halves but a call's own, and gives autograd what layers alone give."""

import copy
import io
import threading

import pytest
import torch
from drawn_chains import assert_all_close
from torch import nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from comera import TT, tensorize
from comera.contraction import joint_merging

PLAN = {"[!h]*": TT(ranks=3, order=2)}


class Blocks(nn.Module):
    """Equal layers one behind another; what stands between them, and how each is called, is the tests' to choose."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third, self.fourth = (nn.Linear(6, 6) for _ in range(4))
        self.head = nn.Linear(6, 2)
        self.between = lambda: None

    def call(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return layer(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.call(self.first, x))
        self.between()
        x = torch.tanh(self.call(self.second, x))
        return self.head(torch.tanh(self.call(self.third, x)))


@pytest.fixture
def pair():
    """The same model with joint merging and without."""
    together = tensorize(Blocks().double(), PLAN)
    alone = tensorize(Blocks().double(), PLAN, merge_jointly=False)
    alone.load_state_dict(together.state_dict())
    return together, alone


def drawn(seed=3):
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def step(model, rate=0.1, seed=3):
    """A step of SGD; the loss and all gradients."""
    model.zero_grad()
    loss = model(drawn(seed)).square().sum()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.sub_(rate * parameter.grad)
    return loss.detach()


def gradients(model):
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def assert_same_gradients(together, alone):
    found, wanted = gradients(together), gradients(alone)
    assert found.keys() == wanted.keys()
    assert_all_close(list(found.values()), list(wanted.values()))


@pytest.fixture
def joint_halves(monkeypatch):
    """Which layers took jointly merged halves, in order; each call without them counts as None."""
    taken = []
    original = joint_merging.jointly_merged

    def noted(layer, x):
        found = original(layer, x)
        taken.append(None if found is None else layer)
        return found

    monkeypatch.setattr("comera.layers.jointly_merged", noted)
    return taken


# --- Parameters stay where they are.


def test_an_optimizer_over_one_flat_buffer_moves_the_layers(pair):
    """As ZeRO does it: parameters become views of a buffer, and the buffer alone is updated."""
    for model in pair:
        parameters = list(model.parameters())
        flat = torch.cat([parameter.detach().flatten() for parameter in parameters])
        for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            parameter.data = part.view_as(parameter)
        for _ in range(3):
            model.zero_grad()
            model(drawn()).square().sum().backward()
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
            flat -= 0.1 * torch.cat([grad.flatten() for grad in grads])
    assert_all_close(*[list(model.parameters()) for model in pair])


def test_functional_call_uses_the_callers_tensors_and_leaves_them_alone(pair):
    _, alone = pair
    tensors = {name: (parameter.detach() * 1.25).requires_grad_() for name, parameter in alone.named_parameters()}
    places = [tensor.data_ptr() for tensor in tensors.values()]
    found, wanted = (functional_call(model, tensors, (drawn(),)) for model in pair)
    assert_all_close([found], [wanted])
    found.sum().backward()
    assert [tensor.data_ptr() for tensor in tensors.values()] == places
    assert tensors["second.packed_cores"].grad is not None


# --- Halves belong to one call of one thread in one grad mode, and to the parameters that they were made from.


def run_beside(work):
    """Run something in another thread from here, to its end."""
    errors = []

    def guarded():
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    thread.join()
    assert not errors


def test_evaluation_in_another_thread_amid_a_step(pair):
    together, alone = pair

    def evaluate():
        together.between = lambda: None
        with torch.no_grad():
            together(drawn())

    for _ in range(3):
        together.between = lambda: run_beside(evaluate)
        assert_all_close([step(together)], [step(alone)])
        assert_same_gradients(together, alone)


@pytest.mark.parametrize("region", [torch.no_grad, torch.inference_mode])
def test_a_region_without_gradients_in_a_pass_with_them(pair, region):
    """As a frozen feature extractor before a trained head."""
    for model in pair:

        def call(layer, x, model=model):
            if layer is not model.first:
                return layer(x)
            with region():
                x = layer(x)
            return x.clone()

        model.call = call
        step(model, rate=0.0)
    together, alone = pair
    assert set(gradients(together)) == {name for name in gradients(alone) if not name.startswith("first")}
    assert_same_gradients(together, alone)


# --- Autograd sees what it would see of layers alone.


def test_frozen_layers_keep_nothing_for_backward(pair):
    """Though a layer behind them is trained, whose cores are merged at the same time."""
    kept = []
    for model in pair:
        for frozen in (model.first, model.second, model.fourth):
            frozen.requires_grad_(False)
        saved: list[int] = []

        def call(layer, x, model=model):
            y = layer(x)
            assert y.requires_grad == (layer is model.third)
            return y

        model.call = call
        with torch.autograd.graph.saved_tensors_hooks(lambda t, saved=saved: saved.append(t.numel()) or t, lambda t: t):
            model(drawn())
        kept.append(sum(saved))
    assert kept[0] == kept[1]


def test_unused_layers_get_no_gradient(pair):
    together, alone = pair
    for model in pair:
        optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.5)
        step(model, rate=0.0)
        optimizer.step()
    assert together.fourth.packed_cores.grad is None
    assert_same_gradients(together, alone)
    assert_all_close(list(together.parameters()), list(alone.parameters()))


# --- Regions that run again in backward.


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing(pair, reentrant):
    together, alone = pair

    def call(layer, x):
        if layer is not together.second:
            return layer(x)
        return checkpoint(layer, x, use_reentrant=reentrant)

    together.call = call
    x = drawn().requires_grad_()
    for model in pair:
        model.zero_grad()
        model(x).square().sum().backward()
    assert_same_gradients(together, alone)


def test_a_copy_and_a_pickle_of_a_model_merge_jointly_too(pair, joint_halves):
    together, _ = pair
    together.__dict__.pop("between")  # a lambda cannot be pickled
    together.between = str
    step(together)
    saved = io.BytesIO()
    torch.save(together, saved)
    saved.seek(0)
    for twin in (copy.deepcopy(together), torch.load(saved, weights_only=False)):
        joint_halves.clear()
        step(twin)
        assert joint_halves == [twin.first, twin.second, twin.third]
