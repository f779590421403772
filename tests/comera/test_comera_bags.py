"""Bags of rows of a TTM table equal those of the dense table, by every variant, and so do all gradients."""

import copy
import math

import pytest
import torch
from drawn_chains import SEEDS, assert_all_close, dense_ttm, draw_parameters, gradients, ttm_shapes
from hypothesis import given
from hypothesis import strategies as st
from noted_operations import NotedOperations
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from comera import (
    TT,
    TTM,
    TTMEmbedding,
    TTMEmbeddingBag,
    exact_size,
    full_size,
    ranks_of,
    set_ranks,
    tensorize,
    tensorized_layers,
    truncate,
)
from comera.capture import fixed_shapes
from comera.lookup import VARIANTS, bags, ttm_bags
from comera.tensor_train import TTMShape


def draw_bags(rows, items, count, source):
    """Indices of which half are among three rows, and offsets: some bags are empty."""
    favourites = torch.tensor([0, rows // 2, rows - 1])[torch.randint(0, 3, (items,), generator=source)]
    anywhere = torch.randint(0, rows, (items,), generator=source)
    indices = torch.where(torch.rand(items, generator=source) < 0.5, favourites, anywhere)
    inner = torch.randint(0, items + 1, (max(count - 1, 0),), generator=source).sort().values
    return indices, torch.cat([torch.zeros(min(count, 1), dtype=torch.long), inner])


@pytest.fixture
def slices_first(monkeypatch):
    """Groups are made whatever they cost."""
    found = bags._groups_if_cheaper

    def made(indices, bounds, weights, _, *rest):
        return found(indices, bounds, weights, 10**9, *rest)

    monkeypatch.setattr(bags, "_groups_if_cheaper", made)


def compare(shape, seed, items, count, mode, padded, weighted, kind=torch.int64, variants=VARIANTS):
    source = torch.Generator().manual_seed(seed)
    packed, diagonals = (tensor.requires_grad_() for tensor in draw_parameters(shape, seed))
    indices, offsets = draw_bags(shape.num_embeddings, items, count, source)
    padding_idx = shape.num_embeddings // 2 if padded else None
    weights = torch.randn(items, dtype=torch.float64, generator=source).requires_grad_() if weighted else None
    table = dense_ttm(packed, diagonals, shape)[: shape.num_embeddings]
    wanted = F.embedding_bag(indices, table, offsets, mode=mode, per_sample_weights=weights, padding_idx=padding_idx)
    upstream = torch.randn(count, shape.embedding_dim, dtype=torch.float64, generator=source)
    inputs = [packed, diagonals, *([weights] if weighted else [])]
    oracle = gradients(wanted, upstream, inputs)
    for variant in variants:
        layer_like = (packed, diagonals, shape, mode, padding_idx, variant)
        bounds = F.pad(offsets, (0, 1), value=items)
        found = ttm_bags(indices.to(kind), bounds.to(kind), *layer_like, weights_T=weights)
        assert_all_close([found], [wanted])
        assert_all_close(gradients(found, upstream, inputs), oracle)


DRAWN = (
    ttm_shapes(),
    SEEDS,
    st.sampled_from([0, 1, 7, 60]),
    st.sampled_from([0, 1, 3, 9]),
    st.sampled_from([("sum", False), ("sum", True), ("mean", False)]),
    st.booleans(),
)


@given(*DRAWN, st.sampled_from([torch.int64, torch.int32]))
def test_every_variant_and_its_gradients_equal_the_dense_bag(shape, seed, items, count, kind_of_sum, padded, kind):
    mode, weighted = kind_of_sum
    compare(shape, seed, items if count else 0, count, mode, padded, weighted, kind)


@pytest.mark.parametrize(("weighted", "padded"), [(False, True), (True, False)])
@pytest.mark.parametrize(("rows", "columns"), [((4, 5, 3), (2, 3, 2)), ((9, 2), (2, 3)), ((2, 3, 4, 3), (1, 2, 3, 1))])
@pytest.mark.parametrize("items", [5, 200])
@pytest.mark.usefixtures("slices_first")
def test_slices_summed_before_the_last_product_give_the_same(monkeypatch, items, rows, columns, padded, weighted):
    """Either half may be the one that is shared: (9, 2) has fewer tuples right, (4, 5, 3) left."""
    monkeypatch.setattr(bags.HalvesLookup, "apply", None)  # rows are not formed
    shape = TTMShape(torch.tensor(rows).prod().item() - 1, torch.tensor(columns).prod().item(), rows, columns, 3)
    modes = ("sum",) if weighted else ("sum", "mean")
    for seed, mode in enumerate(modes):
        compare(
            shape, seed, items, 1 if items == 1 else 4, mode, padded and items > 5, weighted, variants=["optimized"]
        )


def test_what_is_summed_first_follows_the_counts():
    """Rows first where each bag has one row; slices first where bags are long. Numbers of products: U or G."""
    layer = TTMEmbeddingBag(9999, 12, (10, 10, 10, 10), (1, 2, 2, 3), 4, mode="sum")
    indices = torch.arange(9999)
    for bags_of, wanted in ((indices.view(-1, 1), 9999), (indices.view(1, -1), 100), (torch.tensor([[7, 7, 7, 8]]), 2)):
        with NotedOperations() as ran, torch.no_grad():
            layer(bags_of)
        products = [each for each in ran.named("bmm", "mm") if each.given[1][0][-2:] == (4, 6)]
        assert sum(math.prod(each.made[0]) // 12 for each in products) == wanted


@given(ttm_shapes(), SEEDS, st.booleans(), st.sampled_from(VARIANTS), st.sampled_from(["sum", "mean"]))
def test_the_layer_calls_like_torchs(shape, seed, padded, variant, mode):
    sizes = (shape.num_embeddings, shape.embedding_dim, shape.row_modes, shape.column_modes, shape.ranks)
    padding_idx = -1 if padded else None
    layer = TTMEmbeddingBag(*sizes, mode, False, padding_idx, variant, dtype=torch.float64)
    dense = nn.EmbeddingBag.from_pretrained(layer.to_dense().detach(), mode=mode, padding_idx=padding_idx)
    indices, offsets = draw_bags(shape.num_embeddings, 24, 5, torch.Generator().manual_seed(seed))
    assert_all_close([layer(indices, offsets)], [dense(indices, offsets)])
    assert_all_close([layer(indices.view(6, 4))], [dense(indices.view(6, 4))])
    assert_all_close([layer(indices[:0].view(0, 3))], [dense(indices[:0].view(0, 3))])
    layer.include_last_offset = dense.include_last_offset = True
    bounds = F.pad(offsets, (0, 1), value=24)
    assert_all_close([layer(indices, bounds)], [dense(indices, bounds)])
    if mode == "sum":
        weights = torch.randn(24, dtype=torch.float64)
        assert_all_close([layer(indices, bounds, weights)], [dense(indices, bounds, weights)])


def test_ten_million_rows_are_looked_up_without_a_buffer_of_their_size():
    """Nothing is larger than the distinct rows, the merged halves or the batch; what is kept, than numbers of it."""
    layer = TTMEmbeddingBag(10_131_227, 32, (57, 57, 56, 56), (2, 2, 2, 4), 8, mode="sum")
    indices = torch.randint(0, 10_131_227, (2000,)).repeat(3)
    kept = []

    def keep(tensor):
        kept.append(tensor.numel())
        return tensor

    half = 57 * 57 * 2 * 2 * 8
    with NotedOperations() as ran, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        bagged = layer(indices, torch.arange(0, 6000, 3))
        bagged.square().sum().backward()
    assert max(math.prod(made) for each in ran.operations for made in each.made) <= max(2000 * 8 * 8, 2 * half)
    assert sum(kept) <= 2000 * 32 + 5 * 6000 + layer.parameter_count() + 3 * half  # the first is of the square
    assert layer.parameter_count() < 30_000


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_compiled_captured_faked_and_transformed_it_computes_the_same():
    layer = TTMEmbeddingBag(59, 12, (4, 5, 3), (2, 3, 2), 4, padding_idx=0, dtype=torch.float64)
    indices = torch.randint(0, 59, (3, 40))
    wanted = layer(indices)
    with fixed_shapes():
        assert_all_close([layer(indices)], [wanted])
    assert_all_close([torch.compile(layer, fullgraph=True, backend="eager")(indices)], [wanted])
    parameters = dict(layer.named_parameters())

    def loss(parameters, row):
        return torch.func.functional_call(layer, parameters, (row.unsqueeze(0),)).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, indices)
    wanted.square().sum().backward()
    for name, parameter in parameters.items():
        assert_all_close([each[name].sum(0)], [parameter.grad])
    with FakeTensorMode():
        fake = TTMEmbeddingBag(59, 12, (4, 5, 3), (2, 3, 2), 4)
        fake(torch.zeros(6, dtype=torch.long), torch.zeros(4, dtype=torch.long)).sum().backward()
        assert fake.packed_cores.grad.shape == fake.packed_cores.shape


@pytest.mark.parametrize(
    ("call", "kind", "named"),
    [
        ({"input": [[0, 59]]}, IndexError, "59"),
        ({"input": [[0, 1]], "offsets": [0]}, ValueError, "offsets"),
        ({"input": [0, 1]}, ValueError, "offsets"),
        ({"input": [[[0]]]}, ValueError, "input"),
        ({"input": [0, 1], "offsets": [1]}, IndexError, "offsets"),
        ({"input": [0, 1, 2], "offsets": [0, 2, 1]}, IndexError, "offsets"),
        ({"input": [[0, 1]], "per_sample_weights": [1.0, 2.0]}, ValueError, "per_sample_weights"),
        ({"input": [[0]], "per_sample_weights": [[1.0]]}, ValueError, "mode"),
    ],
)
def test_a_wrong_call_is_refused_by_name(call, kind, named):
    layer = TTMEmbeddingBag(59, 12, (4, 5, 3), (2, 3, 2), 4)
    with pytest.raises(kind, match=named):
        layer(**{name: torch.tensor(value) for name, value in call.items()})


class Clicks(nn.Module):
    def __init__(self, mode="sum", tied=False):
        super().__init__()
        self.words = nn.Embedding(30, 8, padding_idx=3)
        self.bag = nn.EmbeddingBag(30, 8, mode=mode, padding_idx=3, include_last_offset=True)
        self.click = nn.Linear(8, 1)
        if tied:
            self.bag.weight = self.words.weight

    def forward(self, items, bounds):
        return self.click(self.bag(items, bounds)) + self.words(items).sum()


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("tied", [False, True])
def test_tensorize_swaps_bags_and_keeps_what_they_are(mode, tied):
    model = Clicks(mode, tied).double().eval()
    model.bag.weight.requires_grad_(tied)
    dense = copy.deepcopy(model)
    plan = {"bag": TTM(99, order=2)} if tied else {"bag": TTM(99, order=2), "words": TTM(99, order=2)}
    tensorize(model, plan, "weights")
    assert type(model.bag) is TTMEmbeddingBag
    assert type(model.words) is TTMEmbedding
    assert (model.bag.packed_cores is model.words.packed_cores) == tied
    assert not model.bag.training
    assert model.bag.packed_cores.requires_grad == tied
    given = torch.tensor([0, 3, 29, 7, 7]), torch.tensor([0, 2, 2, 5])
    assert_all_close([model(*given)], [dense(*given)])
    assert len(tensorized_layers(model)) == (1 if tied else 2)


def test_a_bag_takes_part_in_ranks_sizes_and_state_dicts():
    model = tensorize(Clicks(tied=True), {"*bag": TTM(4, order=3), "click": TT(2, order=2)})
    layer = model.bag
    given = torch.tensor([0, 3, 29, 7, 7]), torch.tensor([0, 2, 5])
    with torch.no_grad():
        layer.diagonals[[0, 5]] = 0.0
    wanted, alive = model(*given), exact_size(tensorized_layers(model))
    optimizer = torch.optim.Adam(model.parameters())
    model(*given).sum().backward()
    optimizer.step()
    with torch.no_grad():
        layer.diagonals[[0, 5]] = 0.0
    wanted = model(*given)
    assert truncate(model, optimizer)
    assert layer.active_ranks() == layer.shape.ranks == model.words.shape.ranks == (3, 3)
    assert full_size(tensorized_layers(model)) == alive
    assert optimizer.state[layer.packed_cores]["exp_avg"].shape == layer.packed_cores.shape
    torch.testing.assert_close(model(*given), wanted)
    other = tensorize(Clicks(tied=True), {"bag": TTM(4, order=3), "click": TT(2, order=2)})
    set_ranks(other, ranks_of(model))
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(*given), model(*given))
