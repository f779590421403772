"""GPT-2's linear layer, ``Conv1D``, is replaced as the ``nn.Linear`` of the same function would be."""

from __future__ import annotations

import copy

import pytest
import torch
from drawn_chains import assert_all_close
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.pytorch_utils import Conv1D

from comera import TT, TTM, TTLinear, solve_model, tensorize
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


def twins(dtype: torch.dtype = torch.float32) -> tuple[nn.Sequential, nn.Sequential]:
    """Two Conv1D layers, and nn.Linear layers of the same function, between layers of other kinds."""
    convs = [Conv1D(24, 12), Conv1D(12, 24)]
    linears = [nn.Linear(12, 24), nn.Linear(24, 12)]
    for conv, linear in zip(convs, linears, strict=True):
        nn.init.normal_(conv.bias)
        linear.weight, linear.bias = nn.Parameter(conv.weight.detach().t().clone()), nn.Parameter(conv.bias.clone())
    one, other = (nn.Sequential(a, nn.Tanh(), b) for a, b in (convs, linears))
    return one.to(dtype), other.to(dtype)


@pytest.mark.parametrize("start", ["scratch", "weights"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("training", [True, False])
def test_it_becomes_what_the_linear_layer_of_the_same_function_becomes(start, dtype, training):
    models = twins(dtype)
    for model in models:
        model.train(training)
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


def test_patterns_choose_among_the_layers_of_gpt2():
    model = tensorize(gpt2(), {"*.0.attn.*": None, "*.c_proj": TT(ranks=2, order=2)})
    replaced = {name for name, module in model.named_modules() if isinstance(module, TTLinear)}
    assert replaced == {"transformer.h.0.mlp.c_proj", "transformer.h.1.mlp.c_proj", "transformer.h.1.attn.c_proj"}


def test_gpt2_trains():
    model = tensorize(gpt2(), {"*.wte": TTM(ranks=8, order=3), "*.h.*": TT(ranks=8, order=2)})
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    tokens, losses = torch.arange(64).view(4, 16) % 7, []
    for _ in range(60):
        loss = model(tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_the_device_is_kept():
    with torch.device("meta"):
        model = nn.Sequential(Conv1D(24, 12))
    tensorize(model, {"0": TT(2, order=2)})
    assert all(parameter.device.type == "meta" for parameter in model.parameters())


@pytest.mark.parametrize("start", ["scratch", "weights"])
def test_layers_that_share_a_weight_share_their_cores(start):
    model = nn.Sequential(Conv1D(12, 12), Conv1D(12, 12))
    model[1].weight = model[0].weight
    tensorize(model, {"*": TT(2, order=2)}, start)
    assert model[0].packed_cores is model[1].packed_cores
    assert model[0].bias is not model[1].bias


@pytest.mark.parametrize("plan", [{"0": TT(2, order=2)}, {"1": TT(2, order=2)}, {"*": TT(2, order=2)}])
@pytest.mark.parametrize("turned", [False, True])
def test_a_weight_shared_with_a_layer_that_reads_it_transposed_is_refused(plan, turned):
    layers = [Conv1D(12, 12), nn.Linear(12, 12)]
    layers[1].weight = layers[0].weight
    model = nn.Sequential(*(reversed(layers) if turned else layers))
    conv1d, linear = (1, 0) if turned else (0, 1)
    sentence = f"^{conv1d} is a Conv1D and shares its weight with {linear}, which reads it transposed; .* Leave both"
    with pytest.raises(ValueError, match=sentence):
        tensorize(model, plan)
    assert not any(isinstance(module, TTLinear) for module in model)


def test_a_weight_shared_with_an_embedding_is_refused():
    model = nn.Sequential(nn.Embedding(20, 12), Conv1D(12, 20))
    model[1].weight = model[0].weight
    for plan in ({"0": TTM(2, order=2)}, {"1": TT(2, order=2)}):
        with pytest.raises(ValueError, match=r"^1 is a Conv1D and shares its weight with 0, which reads it transposed"):
            tensorize(model, plan)
    assert isinstance(model[0], nn.Embedding)


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


def test_it_takes_no_ttm():
    with pytest.raises(ValueError, match=r"gives TTM, but 0 is of class Conv1D.*'0': None.*comera.TT\(\)"):
        tensorize(nn.Sequential(Conv1D(12, 12)), {"0": TTM(2, order=2)})


def test_a_class_of_the_same_name_elsewhere_is_none():
    other = type("Conv1D", (nn.Module,), {"__module__": "elsewhere"})()
    other.weight, other.bias = nn.Parameter(torch.ones(12, 12)), nn.Parameter(torch.ones(12))
    with pytest.raises(ValueError, match=r"fits no nn.Linear, Conv1D, nn.Embedding or nn.EmbeddingBag of the model"):
        tensorize(nn.Sequential(other), {"0": TT(2, order=2)})


def test_a_model_is_solved_for_a_ratio():
    model = gpt2()
    solution = solve_model(model, ["*.wte", "*.h.*"], ratio=8)
    assert len(solution.layers) == 1 + 2 * 4
    tensorize(model, solution.plan)
    assert sum(parameter.numel() for parameter in model.parameters()) == solution.parameter_count


@pytest.mark.parametrize(
    ("activation", "fuses"),
    [("gelu_new", True), ("gelu_pytorch_tanh", True), ("gelu", True), ("silu", True), ("relu", True), ("tanh", False)],
)
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


def test_another_dropout_keeps_a_feed_forward_as_it_is():
    model = tensorize(gpt2(), {"*.mlp.*": TT(ranks=4, order=2)})
    model.transformer.h[0].mlp.dropout = nn.LayerNorm(64)
    model.transformer.h[1].mlp.c_proj.register_forward_hook(lambda *_: None)
    assert fuse_feed_forwards(model) == ["transformer.h.1.mlp"]
    calls = []
    model.transformer.h[1].mlp.c_proj.register_forward_hook(lambda *_: calls.append(1))
    model(torch.zeros(1, 3, dtype=torch.long))
    assert calls == [1]
