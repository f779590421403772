"""Models as they come: attention of torch, layers chosen for a ratio, tables of what was done, memory of a step."""

import copy

import pytest
import torch
from drawn_chains import assert_all_close
from torch import nn

import comera
from comera import TT, TTLinear
from comera.compatibility.attention import SplitAttention
from comera.inspection.step_memory import _Storages

FULL = 10**6  # a cap that no bond reaches


MASKS = {
    "none": {},
    "causal": {"attn_mask": nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64), "is_causal": True},
    "bool": {"attn_mask": torch.ones(5, 5, dtype=torch.bool).triu(1)},
    "per head": {"attn_mask": torch.randn(6, 5, 5, dtype=torch.float64)},
    "padding": {"key_padding_mask": torch.tensor([[False] * 4 + [True]] * 3)},
    "both": {
        "attn_mask": torch.randn(5, 5, dtype=torch.float64),
        "key_padding_mask": torch.tensor([[0.0] * 4 + [-torch.inf]] * 3, dtype=torch.float64),
    },
}


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("weights", [{}, {"need_weights": False}, {"average_attn_weights": False}])
def test_attention_with_its_projections_apart_is_the_same(masks, batch_first, weights):
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, batch_first=batch_first).double()
    nn.init.normal_(attention.in_proj_bias)
    x = torch.randn(3, *((3, 5) if batch_first else (5, 3)), 8, dtype=torch.float64)  # query, key, value
    wanted, found = (module(*x, **MASKS[masks], **weights) for module in (attention, SplitAttention(attention)))
    assert_all_close([found[0]], [wanted[0]])
    assert (found[1] is None) == (wanted[1] is None)
    if wanted[1] is not None:
        assert_all_close([found[1]], [wanted[1]])


@pytest.mark.parametrize("training", [True, False])
def test_a_transformer_of_torch_is_tensorized_whole(training):
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, dtype=torch.float64)
    dense = nn.TransformerEncoder(block, 2, enable_nested_tensor=False).train(training)
    model = comera.tensorize(copy.deepcopy(dense), {"*": TT(FULL, order=2)}, "weights")
    assert sum(isinstance(module, TTLinear) for module in model.modules()) == 2 * 6
    x, padding = torch.randn(3, 5, 8, dtype=torch.float64), torch.tensor([[False] * 4 + [True]] * 3)
    for grad in (True, False):  # without one, torch goes a way of its own around dense layers
        with torch.set_grad_enabled(grad):
            found, wanted = (each(x, src_key_padding_mask=padding)[:, :4] for each in (model, dense))
            assert_all_close([found], [wanted])


class Everything(nn.Module):
    """Layers of all kinds that a model may come with."""

    def __init__(self):
        super().__init__()
        self.table, self.bag = nn.Embedding(1000, 64), nn.EmbeddingBag(800, 64, mode="sum")
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)
        self.blocks = nn.ModuleList([nn.Linear(64, 64) for _ in range(3)])
        self.frozen = nn.Linear(64, 64).requires_grad_(False)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(64, 64))
        self.table_with_norm = nn.Embedding(100, 64, max_norm=1.0)
        self.head, self.scores = nn.Linear(64, 1000, bias=False), nn.Linear(64, 3)
        self.head.weight = self.table.weight

    def forward(self, tokens):
        x = self.table(tokens) + self.bag(tokens)[:, None] + self.table_with_norm(tokens % 100)
        x = x + self.attention(x, x, x)[0]
        for block in (*self.blocks, self.frozen, self.normed):
            x = x + block(x).relu()
        return self.head(x).mean() + self.scores(x).mean()


def test_layers_are_chosen_for_a_ratio_and_a_table_says_which(capsys):
    torch.manual_seed(0)
    model = Everything()
    before = sum(parameter.numel() for parameter in model.parameters())
    model = comera.tensorize(model, "auto", ratio=3)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert abs(count * 3 / before - 1) <= 0.02
    chosen = {name for name, module in model.named_modules() if hasattr(module, "packed_cores")}
    attention = {f"attention.{name}" for name in ("q_proj", "k_proj", "v_proj", "out_proj")}
    assert chosen == {"table", "bag", *attention, *(f"blocks.{i}" for i in range(3))}
    printed = capsys.readouterr().out
    for line in (
        "frozen stays dense: is frozen",
        "table_with_norm stays dense: uses max_norm=1.0",
        "scores stays dense: is small: 64 → 3",
        "with a forward of its own",
        f"parameters: {before:,} dense, {count:,} now",
    ):
        assert line in printed
    assert str(comera.summary(model)) in printed
    model(torch.randint(0, 800, (2, 5))).backward()


def test_a_summary_counts_what_is_there_at_any_time():
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64))
    dense = comera.summary(model)
    assert (dense.rows, dense.parameters) == ((), dense.dense_parameters)
    assert "no tensorized layer" in str(dense)
    comera.tensorize(model, {"[01]": TT(ranks=8, order=2)})
    both = comera.summary(model)
    assert [row.names for row in both.rows] == [("0", "1")]
    assert both.dense_parameters == dense.parameters
    assert both.dense_memory == dense.memory
    with torch.no_grad():
        model[0].diagonals[0] = 0.0
    comera.truncate(model)
    apart = comera.summary(model)
    assert [row.ranks for row in apart.rows] == [(7, 8, 8), (8, 8, 8)]
    assert apart.parameters == sum(parameter.numel() for parameter in model.parameters()) < both.parameters
    assert apart.dense_parameters == dense.parameters


@pytest.mark.parametrize("recompute", ["none", "outputs"])
def test_the_memory_of_a_step_is_what_a_real_one_keeps(recompute):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(100, 64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    comera.tensorize(model, {"0": comera.TTM(4), "[13]": TT(ranks=4)}, recompute=recompute)
    tokens = torch.arange(24).view(2, 12)  # each row once, as a prediction without data has it
    predicted = comera.step_memory(model, tokens)
    own = {id(tensor.untyped_storage()) for tensor in (*model.parameters(), tokens)}
    with _Storages() as storages:
        output = model(tokens)
    kept = storages.bytes_alive(own)
    assert output.requires_grad
    assert predicted.kept == pytest.approx(kept, rel=0.1)
    assert predicted.parameters == sum(parameter.nbytes for parameter in model.parameters())
    for batch in ((tokens,), {"input": tokens}):
        assert comera.step_memory(model, batch) == predicted
    assert not any(type(parameter) is not nn.Parameter for parameter in model.parameters())
