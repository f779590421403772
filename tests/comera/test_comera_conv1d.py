"""GPT-2's linear layer, ``Conv1D``, is replaced as the ``nn.Linear`` of the same function would be."""

import copy

import pytest
import torch
from drawn_chains import assert_all_close
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.pytorch_utils import Conv1D

from comera import TT, TTM, TTLinear, tensorize
from comera.functional import fuse_feed_forwards

FULL = 10**6  # a cap that no bond reaches


def gpt2(**options) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100, "n_positions": 40}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, **options))
    for parameter in model.parameters():
        if parameter.dim() == 1:  # biases of zero would hide a lost one
            nn.init.normal_(parameter, 1.0, 0.1)
    return model


def twins() -> tuple[nn.Sequential, nn.Sequential]:
    """Two Conv1D layers, and nn.Linear layers of the same function, between layers of other kinds."""
    convs = [Conv1D(24, 12), Conv1D(12, 24)]
    linears = [nn.Linear(12, 24), nn.Linear(24, 12)]
    for conv, linear in zip(convs, linears, strict=True):
        nn.init.normal_(conv.bias)
        linear.weight, linear.bias = nn.Parameter(conv.weight.detach().t().clone()), nn.Parameter(conv.bias.clone())
    one, other = (nn.Sequential(a, nn.Tanh(), b).double() for a, b in (convs, linears))
    return one, other


@pytest.mark.parametrize("start", ["scratch", "weights"])
def test_it_becomes_what_the_linear_layer_of_the_same_function_becomes(start):
    models = twins()
    for model in models:
        model[0].weight.requires_grad_(False)
        model[2].bias.requires_grad_(False)
        torch.manual_seed(1)
        tensorize(model, {"*": TT(ranks=3, order=2)}, start)
    conv, linear = models
    assert [type(module) for module in conv] == [TTLinear, nn.Tanh, TTLinear]
    assert [repr(module) for module in conv] == [repr(module) for module in linear]
    assert [module.training for module in conv.modules()] == [module.training for module in linear.modules()]
    for (name, one), (other_name, other) in zip(conv.named_parameters(), linear.named_parameters(), strict=True):
        assert (name, one.dtype, one.requires_grad) == (other_name, other.dtype, other.requires_grad)
        assert torch.equal(one, other)


def test_from_weights_at_full_ranks_gpt2_is_the_same_function():
    dense = gpt2().double().eval()
    model = copy.deepcopy(dense)
    tensorize(model, {"*.wte": TTM(FULL, order=2), "*.h.*": TT(FULL, order=2)}, "weights")
    assert not any(isinstance(module, Conv1D) for module in model.modules())
    assert sum(isinstance(module, TTLinear) for module in model.modules()) == 2 * 4
    tokens = torch.randint(0, 100, (3, 7))
    assert_all_close([model(tokens).logits], [dense(tokens).logits])


@pytest.mark.parametrize("start", ["scratch", "weights"])
def test_layers_that_share_a_weight_share_their_cores(start):
    model = nn.Sequential(Conv1D(12, 12), Conv1D(12, 12))
    model[1].weight = model[0].weight
    tensorize(model, {"*": TT(2, order=2)}, start)
    assert model[0].packed_cores is model[1].packed_cores
    assert model[0].bias is not model[1].bias


@pytest.mark.parametrize("turned", [False, True])
def test_a_weight_shared_with_a_layer_that_reads_it_transposed_is_refused(turned):
    layers = [Conv1D(12, 12), nn.Linear(12, 12)]
    layers[1].weight = layers[0].weight
    model = nn.Sequential(*(reversed(layers) if turned else layers))
    conv1d, linear = (1, 0) if turned else (0, 1)
    with pytest.raises(ValueError, match=f"^{conv1d} is a Conv1D .* {linear}, which reads it transposed"):
        tensorize(model, {"*": TT(2, order=2)})
    assert not any(isinstance(module, TTLinear) for module in model)


class Doubled(Conv1D):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def with_a_class_of_its_own(model):
    model[0] = Doubled(12, 12)


def with_a_weight_norm(model):
    nn.utils.parametrizations.weight_norm(model[0])


def with_a_hook(model):
    model[0].register_forward_hook(lambda *_: None)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (with_a_class_of_its_own, r"is a \S+\.Doubled with a forward of its own"),
        (with_a_weight_norm, r"is a \S+\.ParametrizedConv1D with a forward of its own"),
        (with_a_hook, "has hooks"),
    ],
)
def test_a_layer_that_does_more_than_its_class_is_refused_by_name(change, reason):
    model = nn.Sequential(Conv1D(12, 12))
    change(model)
    with pytest.raises(ValueError, match=rf"^plan pattern '\*' fits 0, which {reason}"):
        tensorize(model, {"*": TT(2, order=2)})


@pytest.mark.parametrize(("activation", "fuses"), [("gelu_new", True), ("tanh", False)])
def test_gpt2s_feed_forward_runs_fused_with_its_dropout(activation, fuses):
    plain = tensorize(gpt2(activation_function=activation).double(), {"*.mlp.*": TT(ranks=4, order=2)})
    fused = copy.deepcopy(plain)
    assert fuse_feed_forwards(fused) == (["transformer.h.0.mlp", "transformer.h.1.mlp"] if fuses else [])
    tokens = torch.randint(0, 100, (2, 9))
    for training in (True, False):
        found = []
        for model in (plain.train(training), fused.train(training)):
            torch.manual_seed(3)
            model.zero_grad()
            loss = model(tokens, labels=tokens).loss
            loss.backward()
            found.append([loss, *(parameter.grad for parameter in model.parameters()), torch.get_rng_state()])
        assert_all_close(*found)
