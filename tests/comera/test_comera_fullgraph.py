"""Every layer, format and tie under torch.compile(fullgraph=True), with static and dynamic sizes, beside eager."""

import copy

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional as F
from transformers.pytorch_utils import Conv1D

from comera import TT, TTM, TTLinear, TTMEmbedding, TTMEmbeddingBag, tensorize, truncate
from comera.functional import tt_feed_forward
from comera.low_precision import FP8

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`"),
]


def outcome(call, model, inputs):
    """The output, and the gradient of every parameter."""
    model.zero_grad()
    output = call(*inputs)
    output.float().square().sum().backward()
    return [output.detach(), *(parameter.grad for parameter in model.parameters())]


def check_whole(model, *calls, dynamic, backend):
    """Compile a model as one graph and compare it with an uncompiled twin, for the inputs of several calls.

    ``dynamic=None``: sizes are static in the first call, and dynamic from the second one on. ``dynamic=True``: all
    sizes, and numbers that modules hold, may change from the beginning.
    """
    twin = copy.deepcopy(model)
    call = torch.compile(model, backend=backend, fullgraph=True, dynamic=dynamic)
    for inputs in calls:
        found, wanted = outcome(call, model, inputs), outcome(twin, twin, inputs)
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
    if backend != "eager":
        with torch.no_grad():
            torch.testing.assert_close(call(*calls[0]), twin(*calls[0]), rtol=1e-3, atol=1e-3)


def in_pairs(names, alone, with_autograd):
    """Cases for the compiler's front end alone, where graphs break, and others for it with its autograd.

    The front end is the same in both, so no case needs both.
    """
    cases = [(*case, True, "eager") for case in alone]
    cases += [pytest.param(*case, None, "aot_eager", marks=pytest.mark.slow) for case in with_autograd]
    return pytest.mark.parametrize((*names, "dynamic", "backend"), cases)


def tokens(vocabulary, *sizes):
    return [(torch.randint(vocabulary, size),) for size in sizes]


MODES = {1: ((6,), (8,)), 2: ((2, 3), (4, 2)), 3: ((1, 2, 3), (2, 2, 2))}


@in_pairs(("order", "bias"), [(2, False)], [(3, True)])
def test_linear_layers(order, bias, dynamic, backend):
    layer = TTLinear(6, 8, *MODES[order], 3, bias)
    check_whole(layer, *[(torch.randn(*size, 6),) for size in ((5,), (7,), (2, 3))], dynamic=dynamic, backend=backend)


#: Rows, columns and modes of tables, whose halves have one core or two.
TABLES = {3: (500, 64, (10, 10, 5), (4, 4, 4)), 4: (500, 64, (5, 5, 5, 4), (2, 2, 4, 4))}

#: Two calls with few indices beside the rows of a half, and with many.
CALLS = {"few": ((3,), (2, 2)), "many": ((600,), (2, 301))}


@in_pairs(
    ("lookup", "cores", "calls"),
    [("optimized", 3, "few"), ("order", 4, "many")],
    [("optimized", 4, "many"), ("order", 3, "few")],
)
def test_tables(lookup, cores, calls, dynamic, backend):
    table = TTMEmbedding(*TABLES[cores], 3, padding_idx=0, lookup=lookup)
    check_whole(table, *tokens(table.num_embeddings, *CALLS[calls]), dynamic=dynamic, backend=backend)


def bag_inputs(kind, items, vocabulary):
    """The arguments of a bag's forward, for one number of items that three divides."""
    if kind == "offsets":
        return torch.randint(vocabulary, (items,)), torch.tensor([0, 2, 2])
    rows = torch.randint(vocabulary, (items // 3, 3))
    return (rows, None, torch.rand(rows.shape)) if kind == "weights" else (rows,)


FEW, MANY = (6, 9), (600, 603)  # items of two calls beside the rows of a half


@in_pairs(("kind", "mode", "items"), [("rows", "sum", FEW), ("offsets", "mean", MANY)], [("weights", "sum", FEW)])
def test_bags(kind, mode, items, dynamic, backend):
    bag = TTMEmbeddingBag(*TABLES[3], 3, mode=mode, padding_idx=0, lookup="optimized")
    check_whole(
        bag, *(bag_inputs(kind, count, bag.num_embeddings) for count in items), dynamic=dynamic, backend=backend
    )


class Tied(nn.Module):
    """A table, a layer between, and an output layer with a weight of its own or that of the table."""

    def __init__(self, tied=True, bias=True):
        super().__init__()
        self.words, self.between, self.output = nn.Embedding(50, 16), nn.Linear(16, 16), nn.Linear(16, 50, bias=bias)
        if tied:
            self.output.weight = self.words.weight

    def forward(self, indices):
        return self.output(torch.tanh(self.between(self.words(indices))))


class ThreeTied(nn.Module):
    """A table, a bag and an output layer of one weight."""

    def __init__(self):
        super().__init__()
        self.words, self.bag, self.output = nn.Embedding(50, 16), nn.EmbeddingBag(50, 16, mode="sum"), nn.Linear(16, 50)
        self.bag.weight = self.output.weight = self.words.weight

    def forward(self, indices):
        return self.output(self.words(indices).sum(1) + self.bag(indices))


class Twice(nn.Module):
    """Layers that share cores, one of which runs twice."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(torch.tanh(self.first(torch.tanh(self.first(x)))))


class Attention(nn.Module):
    """Attention of torch, a feed-forward and a norm."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.forwards = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.norm = nn.LayerNorm(16)

    def forward(self, x):
        y = self.attention(x, x, x, need_weights=False)[0]
        return self.norm(y + self.forwards(y))


class Fused(nn.Module):
    """The feed-forward of :mod:`comera.functional`, at the end of a block."""

    def __init__(self):
        super().__init__()
        self.first, self.second = TTLinear(16, 32, (4, 4), (4, 8), 3), TTLinear(32, 16, (4, 8), (4, 4), 3)
        self.norm = nn.LayerNorm(16)

    def forward(self, x):
        y = tt_feed_forward(x, self.first, self.second)
        return self.norm(y + tt_feed_forward(y, self.first, self.second))


class Read(nn.Module):
    """The weights of layers, multiplied with by other code."""

    def __init__(self):
        super().__init__()
        self.linear, self.table = TTLinear(16, 8, (4, 4), (4, 2), 3), TTMEmbedding(12, 8, (4, 3), (2, 4), 3)

    def forward(self, x):
        return F.linear(F.linear(x, self.linear.weight, self.linear.bias), self.table.weight)


def words_and_between(**options):
    return tensorize(Tied(), {"words": TTM(3, order=3), "between": TT(3, order=2)}, **options)


def closed(entries, cut):
    """A tied model some of whose rank entries are below the threshold, cut out of the cores or not."""
    model = words_and_between()
    with torch.no_grad():
        for layer in (model.words, model.between):
            layer.diagonals[entries] = 0.001
    if cut:
        truncate(model)
    return model


def activations():
    return [(torch.randn(size),) for size in ((2, 5, 16), (3, 6, 16))]


def indices():
    return tokens(50, (3, 4), (5, 4))


#: How models are made, and inputs of two calls.
MODELS = {
    "tied": (words_and_between, indices),
    "tied, outputs formed again": (lambda: words_and_between(recompute="outputs"), indices),
    "tied, FP8": (lambda: words_and_between(fp8=FP8()), indices),
    "tied table, bag and output": (
        lambda: tensorize(ThreeTied(), {"words": TTM(3, order=3), "bag": TTM(3, order=3)}),
        indices,
    ),
    "a rank cut": (lambda: closed(slice(0, 1), cut=True), indices),
    "all ranks closed": (lambda: closed(slice(None), cut=False), indices),
    "shared cores, run twice": (lambda: tensorize(Twice(), {"*": TT(3, order=2)}), activations),
    "Conv1D": (
        lambda: tensorize(nn.Sequential(Conv1D(32, 16), nn.GELU(), Conv1D(16, 32)), {"*": TT(3)}, recompute="outputs"),
        activations,
    ),
    "attention": (lambda: tensorize(Attention(), {"*": TT(3, order=2)}), activations),
    "attention as a block": (lambda: tensorize(Attention(), {"*": TT(3, order=2)}, recompute="block"), activations),
    "fused feed-forward": (Fused, activations),
    "weights that are read": (Read, activations),
}


#: Models whose backward the others do not have: what is recomputed, in FP8, cut, shared or read.
OWN_BACKWARD = [
    *("tied, outputs formed again", "tied, FP8", "a rank cut"),
    *("shared cores, run twice", "attention as a block", "fused feed-forward"),
]


@in_pairs(("name",), [(name,) for name in MODELS if name not in OWN_BACKWARD], [(name,) for name in OWN_BACKWARD])
def test_models(name, dynamic, backend):
    make, inputs = MODELS[name]
    check_whole(make(), *inputs(), dynamic=dynamic, backend=backend)


@pytest.mark.parametrize("dynamic", [None, True])
def test_another_threshold_compiles_again(dynamic):
    model = words_and_between()
    with torch.no_grad():
        for layer in (model.words, model.between):
            layer.diagonals[0] = 0.5
    call = torch.compile(model, backend="eager", fullgraph=True, dynamic=dynamic)
    first, _ = indices()
    for threshold in (0.01, 0.6, 0.01):
        model.words.threshold = model.between.threshold = threshold
        found, wanted = (outcome(each, model, first) for each in (call, model))
        torch.testing.assert_close(found, wanted)
        assert (model.words.diagonals.grad[0] == 0) == (threshold > 0.5)


def small_bert(**options):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(**sizes, vocab_size=60, max_position_embeddings=16)
    plan = {"*.word_embeddings": TTM(4), "bert.encoder.*": TT(4, order=2)}
    return tensorize(transformers.BertForMaskedLM(config).eval(), plan, **options)


def small_gpt2(**options):
    config = transformers.GPT2Config(
        vocab_size=60, n_positions=16, n_embd=16, n_layer=1, n_head=2, use_cache=False, bos_token_id=0, eos_token_id=0
    )
    plan = {"*.wte": TTM(4), "*.h.*": TT(4, order=2)}
    return tensorize(transformers.GPT2LMHeadModel(config).eval(), plan, **options)


class Logits(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, indices):
        return self.model(input_ids=indices).logits


def words():
    return tokens(60, (2, 8), (3, 9))


def test_a_masked_language_model():
    check_whole(Logits(small_bert()), *words(), dynamic=True, backend="eager")


@pytest.mark.slow
@pytest.mark.parametrize(("build", "options"), [(small_bert, {"recompute": "block"}), (small_gpt2, {})])
def test_language_models(build, options):
    check_whole(Logits(build(**options)), *words(), dynamic=True, backend="aot_eager")
