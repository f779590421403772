"""Joint merging leaves parameters alone, uses no halves but a call's own, and gives autograd what layers alone give."""

from __future__ import annotations

import copy
import io
import threading

import pytest
import torch
from drawn_chains import assert_all_close
from torch import nn
from torch.func import functional_call
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

from comera import TT, TTLinear, tensorize
from comera.contraction import joint_merging
from comera.contraction.merging import two_half_linear
from comera.layers import DIAGONALS

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


def test_parameters_keep_their_memory(pair):
    model, _ = pair
    places = [parameter.data_ptr() for parameter in model.parameters()]
    step(model)
    assert [parameter.data_ptr() for parameter in model.parameters()] == places
    saved = io.BytesIO()
    torch.save(model.second.state_dict(), saved)
    alone = io.BytesIO()
    torch.save(copy.deepcopy(model.second).state_dict(), alone)
    assert saved.tell() == alone.tell()


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


def test_shared_memory_stays_shared(pair):
    model, _ = pair
    model.share_memory()
    step(model)
    assert all(parameter.is_shared() for parameter in model.parameters())


def test_functional_call_uses_the_callers_tensors_and_leaves_them_alone(pair):
    _, alone = pair
    tensors = {name: (parameter.detach() * 1.25).requires_grad_() for name, parameter in alone.named_parameters()}
    places = [tensor.data_ptr() for tensor in tensors.values()]
    found, wanted = (functional_call(model, tensors, (drawn(),)) for model in pair)
    assert_all_close([found], [wanted])
    found.sum().backward()
    assert [tensor.data_ptr() for tensor in tensors.values()] == places
    assert tensors["second.packed_cores"].grad is not None


def test_function_transforms_differentiate_a_jointly_merging_model(pair):
    together, alone = pair
    tensors = {name: parameter.detach() for name, parameter in alone.named_parameters()}

    def loss(tensors, x):
        return functional_call(together, tensors, (x,)).square().sum()

    found = torch.func.grad(loss)(tensors, drawn())
    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(tensors, drawn().unsqueeze(1))
    step(alone, rate=0.0)
    for name, gradient in gradients(alone).items():
        assert_all_close([found[name], each[name].sum(0)], [gradient, gradient])


# --- Halves belong to one call of one thread in one grad mode, and to the parameters that they were made from.


def test_the_layers_of_a_call_take_jointly_merged_halves(pair, joint_halves):
    model, _ = pair
    step(model)
    assert joint_halves == [model.first, model.second, model.third]


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


def test_a_layer_called_in_another_thread_amid_a_step_merges_alone(pair, joint_halves):
    model, _ = pair
    model.between = lambda: run_beside(lambda: model.fourth(drawn()))
    model(drawn())
    assert joint_halves == [model.first, None, model.second, model.third]


def test_a_pass_broken_off_from_the_keyboard_leaves_no_old_weights(pair):
    together, alone = pair

    def interrupted():
        raise KeyboardInterrupt

    together.between = interrupted
    with pytest.raises(KeyboardInterrupt):
        together(drawn())
    for model in pair:
        model.between = lambda: None
        for parameter in model.parameters():
            parameter.data.mul_(1.5)  # which autograd does not notice
    assert_all_close([together.second(drawn())], [alone.second(drawn())])
    assert_all_close([step(together)], [step(alone)])
    assert not joint_merging._calls.stack


def test_a_step_inside_the_forward_pass_is_seen_by_what_follows(pair):
    def moved(model):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.5)

    found = []
    for model in pair:
        model.between = lambda model=model: moved(model)
        found.append(model(drawn()))
    assert_all_close(found[:1], found[1:])


def test_pruned_layers_use_their_masks(pair):
    for model in pair:
        torch.manual_seed(0)
        prune.l1_unstructured(model.second, "packed_cores", amount=0.5)
        prune.l1_unstructured(model.third, "packed_cores", amount=0.5)
    together, alone = pair
    for _ in range(2):
        assert_all_close([step(together)], [step(alone)])
        assert_same_gradients(together, alone)


def test_weights_swapped_by_a_later_pre_hook_are_those_used(pair):
    for model in pair:
        averaged = [parameter.detach() * 0.5 for parameter in model.parameters()]

        def swap(module, _, averaged=averaged):
            for parameter, values in zip(module.parameters(), averaged, strict=True):
                parameter.data.copy_(values)

        model.register_forward_pre_hook(swap)
    together, alone = pair
    assert_all_close([together(drawn())], [alone(drawn())])


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


def test_a_region_out_of_autocast_in_a_pass_under_it(pair):
    together, alone = (model.float() for model in pair)
    found = []
    for model in (together, alone):

        def call(layer, x, model=model):
            if layer is not model.second:
                return layer(x)
            with torch.autocast("cpu", enabled=False):
                return layer(x.float())

        model.call = call
        with torch.autocast("cpu", torch.bfloat16):
            found.append(model(drawn().float()))
    torch.testing.assert_close(*found)


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


@pytest.mark.parametrize("part", ["packed_cores", DIAGONALS])
def test_one_part_of_a_layer_frozen(pair, part):
    for model in pair:
        getattr(model.second, part).requires_grad_(False)
        step(model, rate=0.0)
    assert f"second.{part}" not in gradients(pair[0])
    assert_same_gradients(*pair)


def test_unused_layers_get_no_gradient(pair):
    together, alone = pair
    for model in pair:
        optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.5)
        step(model, rate=0.0)
        optimizer.step()
    assert together.fourth.packed_cores.grad is None
    assert_same_gradients(together, alone)
    assert_all_close(list(together.parameters()), list(alone.parameters()))


class Heads(nn.Module):
    """Two parts that share nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.left(x), self.right(x)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_independent_losses_need_no_retained_graph(order):
    model = tensorize(Heads().double(), {"*": TT(ranks=3, order=2)})
    losses = [y.square().sum() for y in model(drawn())]
    losses[order[0]].backward()
    untouched = (model.left, model.right)[order[1]]
    assert untouched.packed_cores.grad is None
    losses[order[1]].backward()
    alone = tensorize(Heads().double(), {"*": TT(ranks=3, order=2)}, merge_jointly=False)
    alone.load_state_dict(model.state_dict())
    sum(y.square().sum() for y in alone(drawn())).backward()
    assert_same_gradients(model, alone)


# --- Regions that run again in backward.


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("checkpointed", ["first", "second", "third"])
def test_activation_checkpointing(pair, reentrant, checkpointed):
    together, alone = pair

    def call(layer, x):
        if layer is not getattr(together, checkpointed):
            return layer(x)
        return checkpoint(layer, x, use_reentrant=reentrant)

    together.call = call
    x = drawn().requires_grad_()
    for model in pair:
        model.zero_grad()
        model(x).square().sum().backward()
    assert_same_gradients(together, alone)


def test_checkpointing_the_whole_model(pair):
    together, alone = pair
    checkpoint(together, drawn(), use_reentrant=False).square().sum().backward()
    step(alone, rate=0.0)
    assert_same_gradients(together, alone)


def test_saved_tensors_may_be_read_twice_by_hooks(pair):
    """Checkpointing hands every saved tensor out once; so backward must ask once."""
    together, alone = pair
    asked = {}

    def unpack(place):
        asked[place] = asked.get(place, 0) + 1
        return held[place]

    held: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(t.detach()) or len(held) - 1, unpack):
        loss = together(drawn()).square().sum()
    loss.backward()
    step(alone, rate=0.0)
    assert_same_gradients(together, alone)
    assert set(asked.values()) == {1}


@pytest.mark.parametrize("jointly", [True, False])
def test_a_trainable_model_is_exported(jointly):
    model = tensorize(Blocks(), PLAN, merge_jointly=jointly)
    x = drawn().float()
    torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), model(x))


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


def test_the_product_of_halves_takes_their_type_from_autocast():
    layer = TTLinear(6, 6, (2, 3), (3, 2), ranks=2)
    with torch.autocast("cpu", torch.bfloat16):
        assert two_half_linear(torch.ones(2, 6), torch.ones(2, 6), torch.ones(2, 6), layer.bias).dtype == torch.bfloat16
