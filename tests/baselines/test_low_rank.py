"""Two-factor layers: the product, its start, its size."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paper_encoder import DENSE, paper_encoder
from torch import nn
from toy_encoder import LINEARS, TARGETS, ToyEncoder

from baselines import low_rank
from baselines.low_rank import TwoFactorEmbedding, TwoFactorLinear, ranks_for_ratio
from comera.protocol import OutOfReach

sizes = st.integers(1, 12)
shapes = st.lists(st.integers(0, 4), max_size=3)


@settings(max_examples=30, deadline=None)
@given(n=sizes, m=sizes, rank=sizes, shape=shapes, bias=st.booleans())
def test_a_layer_is_its_product_matrix(n, m, rank, shape, bias):
    dense = nn.Linear(n, m, bias=bias, dtype=torch.float64)
    layer = TwoFactorLinear.like(dense, rank)
    matrix = layer.second.T @ layer.first  # (M, N)
    x = torch.randn(*shape, n, dtype=torch.float64)
    torch.testing.assert_close(layer(x), nn.functional.linear(x, matrix, dense.bias))
    torch.testing.assert_close(layer.weight.clone(), matrix)
    assert layer.weight.shape == dense.weight.shape
    assert layer.bias is dense.bias
    kept = min(rank, n, m)
    assert sum(p.numel() for p in layer.parameters()) == kept * (n + m) + (m if bias else 0)


@settings(max_examples=30, deadline=None)
@given(v=sizes, d=sizes, rank=sizes, shape=shapes, padding=st.booleans())
def test_an_embedding_is_its_product_table(v, d, rank, shape, padding):
    padding_idx = v - 1 if padding else None
    dense = nn.Embedding(v, d, padding_idx=padding_idx, dtype=torch.float64)
    layer = TwoFactorEmbedding.like(dense, rank)
    table = layer.first.weight @ layer.second  # (V, D)
    indices = torch.randint(0, v, tuple(shape))
    torch.testing.assert_close(layer(indices), table[indices])
    assert sum(p.numel() for p in layer.parameters()) == min(rank, v, d) * (v + d)
    if padding_idx is not None:
        assert not table[padding_idx].any()
        layer(torch.arange(v)).sum().backward()
        assert not layer.first.weight.grad[padding_idx].any()


@pytest.mark.parametrize(("n", "m"), [(768, 768), (300, 1200)])
def test_entries_start_with_the_variance_of_comeras(n, m):
    torch.manual_seed(0)
    layer = TwoFactorLinear(n, m, rank=30)
    matrix = layer.second.T @ layer.first
    assert matrix.var().item() == pytest.approx(1 / (n + m), rel=0.1)
    table = TwoFactorEmbedding(5000, 768, rank=32)
    assert (table.first.weight @ table.second).var().item() == pytest.approx(1.0, rel=0.1)
    dense = nn.Embedding(5000, 768)
    nn.init.normal_(dense.weight, std=0.02)
    table = TwoFactorEmbedding.like(dense, rank=32)
    assert (table.first.weight @ table.second).std().item() == pytest.approx(0.02, rel=0.1)


def test_variants_differ_by_the_embedding_alone():
    chosen = low_rank.Settings(rank=2, embedding_rank=3)
    whole = low_rank.build(chosen, "").adapt(ToyEncoder(), TARGETS)
    linear = low_rank.build(chosen, "linear").adapt(ToyEncoder(), TARGETS)
    for model in (whole, linear):
        assert all(isinstance(model.get_submodule(name), TwoFactorLinear) for name in LINEARS)
        assert type(model.out) is nn.Linear
    assert isinstance(whole.word, TwoFactorEmbedding)
    assert whole.word.first.padding_idx == 0
    assert whole.word.first.embedding_dim == 3
    assert type(linear.word) is nn.Embedding


@pytest.mark.parametrize("variant", low_rank.LEAN)
def test_lean_variants_keep_less_and_train_alike(variant):
    """A feed-forward four times as wide, whose hidden activations thin products give, and its GELU."""
    inputs = torch.randn(64, 32, generator=torch.Generator().manual_seed(1))
    chosen, kept, gradients = low_rank.Settings(rank=2), [], []
    for name in ("", variant):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32))
        model = low_rank.build(chosen, name).adapt(model, {"0": "feed_forward", "2": "feed_forward"})
        sizes = {}
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x, sizes=sizes: sizes.update({x.data_ptr(): x.nbytes}) or x, lambda x: x
        ):
            output = model(inputs)
        output.square().sum().backward()
        kept.append(sum(sizes.values()))
        gradients.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(*gradients, rtol=0, atol=0)
    assert kept[1] < 0.5 * kept[0]


def test_factors_have_their_own_rate():
    chosen = low_rank.Settings(rank=2, lr_factors=0.5, lr=0.25)
    arm = low_rank.build(chosen, "")
    factors, rest = arm.optimizer(arm.adapt(ToyEncoder(), TARGETS)).param_groups
    assert (factors["lr"], rest["lr"]) == (0.5, 0.25)
    assert len(factors["params"]) == 2 * (len(LINEARS) + 1)
    assert all(p.dim() == 2 for p in factors["params"])


def test_an_orthogonal_start_has_equal_singular_values_and_the_usual_norm():
    torch.manual_seed(0)
    arm = low_rank.build(low_rank.Settings(rank=3), "orthogonal")
    layer = arm.adapt(nn.Sequential(nn.Linear(20, 30)), {"0": "feed_forward"})[0]
    values = torch.linalg.svdvals(layer.second.T @ layer.first).detach()[:3]
    torch.testing.assert_close(values, values.new_tensor([(20 * 30 / 50 / 3) ** 0.5] * 3))


def size_of(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("variant", "ratio"),
    [*(("", ratio) for ratio in (1.0, 1.5, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 100.0)), ("linear", 1.5), ("linear", 2.0)],
)
def test_a_ratio_is_met_over_the_whole_model(variant, ratio):
    model, targets = paper_encoder()
    arm = low_rank.build(low_rank.Settings(ratio=ratio, rank=1, embedding_rank=1), variant)
    assert arm.model_unsupported(model, targets) is None
    model = arm.adapt(model, targets)
    assert DENSE / size_of(model) == pytest.approx(ratio, rel=0.001)
    ranks = [len(model.get_submodule(name).first) for name in targets if "attention" in name]
    assert max(ranks) - min(ranks) <= 1


@pytest.mark.parametrize(
    ("variant", "dense", "largest"), [("", "459,267", "116.44"), ("linear", "23,900,163", "2.79167")]
)
def test_a_ratio_beyond_rank_one_names_the_largest(variant, dense, largest):
    model, targets = paper_encoder()
    arm = low_rank.build(low_rank.Settings(ratio=200.0), variant)
    reason = arm.model_unsupported(model, targets)
    assert all(word in reason for word in ("ratio=200", dense, f"{DENSE:,}", largest))
    with pytest.raises(OutOfReach, match=f"the largest within reach is {largest}, "):
        arm.adapt(model, targets)


@settings(max_examples=60, deadline=None)
@given(
    shapes=st.lists(st.tuples(st.integers(2, 80), st.integers(2, 80)), min_size=1, max_size=5), ratio=st.floats(1, 30)
)
def test_ranks_stay_within_their_layers_and_meet_the_ratio_or_say_what_can(shapes, ratio):
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(n, m) for n, m in shapes))
    layers = {str(place): layer for place, layer in enumerate(model)}
    dense = size_of(model)
    kept = sum(m for _, m in shapes)
    try:
        ranks = ranks_for_ratio(model, layers, ratio)
    except OutOfReach:
        offer = "the largest within reach" if ratio > dense / (kept + sum(map(sum, shapes))) else "the nearest found is"
        with pytest.raises(OutOfReach, match=offer):
            ranks_for_ratio(model, layers, ratio)
        return
    assert all(1 <= ranks[str(place)] <= min(shape) for place, shape in enumerate(shapes))
    size = kept + sum(ranks[str(place)] * sum(shape) for place, shape in enumerate(shapes))
    assert abs(size - dense / ratio) <= 0.02 * dense / ratio
