"""What forward keeps for backward: against hand counts, against autograd's own hooks, and by kind and block."""

import pytest
from small_cells import a_cell
from tiny import TinyMethod, TinyWorkload
from torch import nn
from torch.utils.checkpoint import checkpoint

from bench.estimate.memory import fake_training
from bench.estimate.work import predict
from bench.measures.kept import kept_columns, kept_of
from bench.protocol import Data
from bench.protocol.methods import build, checked_settings
from bench.workloads import open_cell_workload
from comera.recomputing import keep_ranks

B, T, D, H = 8, 16, 32, 4  # batch, tokens, width and heads of the tiny encoder
MIB = 2**20
ARMS = {"dense": {}, "galore": {"rank": 8}, "comera": {"ranks": 4, "table_ranks": 4, "order": 2, "table_order": 2}}


def method_of(name: str):
    return build(name, "", checked_settings(name, ARMS[name]))


def kept(workload=None, method=None, batch_size=B, device="cpu"):
    given = (workload or TinyWorkload(), method or TinyMethod(), batch_size, "fp32", device)
    with fake_training(*given, seed=0) as (step, batch):
        samples = kept_of(step, batch)
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in step.model.blocks)
    return samples


def by_kind(samples) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for row in samples["tensors"]:
        sizes[row["kind"]] = sizes.get(row["kind"], 0) + round(row["mib"] * MIB)
    return sizes


def total(samples) -> int:
    return round(MIB * (samples["in_blocks_mib"] + sum(samples["outside_mib"].values())))


def test_an_encoder_s_block_against_a_hand_count():
    samples = kept(device="cuda")
    tokens = B * T
    assert (samples["blocks"], samples["alike"]) == (2, 2)
    found = by_kind(samples)
    assert found.pop("attention") == 4 * (tokens * D + B * H * 32) + 16  # log-sum-exp padded to 32 queries; two numbers
    assert found.pop("other", 0) <= 4 * B * T  # the mask as a bias
    assert found == {
        "outputs of linear layers": 4 * tokens * (3 * D + 4 * D),  # query, key, value, and what GELU keeps
        "activation functions": 4 * tokens * 4 * D,
        "masks": 2 * tokens * D,  # a byte each
        "sums": 4 * 2 * tokens * D,
        "norms": 4 * 2 * tokens * (D + 2),  # with mean and deviation
    }
    sizes = [row["mib"] * MIB for row in samples["tensors"]]
    assert samples["in_blocks_mib"] * MIB == pytest.approx(2 * sum(sizes))
    shapes = [tuple(row["shape"]) for row in samples["tensors"] if row["operator"] == "gelu"]
    assert shapes == [(B, T, 4 * D)]


@pytest.mark.slow
@pytest.mark.parametrize("arm", ARMS)
def test_what_is_alive_is_what_passes_the_hooks_of_autograd(arm):
    workload = TinyWorkload()
    hooked = predict(workload, method_of(arm), B, "fp32", "cuda", 0).work.saved_for_backward
    batch = sum(tensor.nbytes for tensor in next(workload.batches("train", B, 0, True)).values())
    # The batch passes the hooks; the loss, and scalars such as a seed of attention, do not.
    assert hooked - batch <= total(kept(workload, method_of(arm), device="cuda")) <= hooked + 4096


class Checkpointed(TinyWorkload):
    """Each block's forward is run again in backward."""

    def build(self):
        model = super().build()
        for block in model.blocks:
            forward = block.forward
            block.forward = lambda *given, forward=forward: checkpoint(forward, *given, use_reentrant=False)
        return model


class Recomputing(TinyWorkload):
    """Two-factor layers, whose wide outputs are formed again."""

    def build(self):
        model = super().build()
        for block in model.blocks:
            block.first = nn.Sequential(nn.Linear(D, 2, bias=False), nn.Linear(2, 4 * D))
        keep_ranks(model, "outputs")
        return model


@pytest.mark.slow
def test_what_is_recomputed_is_not_kept():
    plain, again = kept(), kept(Checkpointed())
    assert set(by_kind(again)) == {"norms"}  # what the next block begins with
    assert by_kind(again)["norms"] == 4 * B * T * D
    assert again["outside_mib"] == pytest.approx(plain["outside_mib"], abs=0.02)
    ranks = by_kind(kept(Recomputing()))
    assert ranks["rank-wide products"] == 4 * B * T * 2
    assert "activation functions" not in ranks
    assert ranks["outputs of linear layers"] == 4 * B * T * 3 * D


@pytest.mark.slow
def test_the_largest_batch_fits_and_the_next_one_does_not(monkeypatch):
    monkeypatch.setattr("bench.measures.kept.MEMORIES_GIB", (1.6, 1.7))
    cell = a_cell(measure="kept", device="cuda", batch_size=16, method="lte", settings={"heads": 4, "rank": 4})
    columns = kept_columns(cell, open_cell_workload(cell, Data()))
    rows = columns["samples"]["largest"]
    assert [row["memory_gib"] for row in rows] == [1.6, 1.7]
    for row in rows:
        assert row["room_mib"] == pytest.approx((1024 * row["memory_gib"] - 1536) / 1.05)
        assert row["peak_mib"] <= row["room_mib"] < row["next_mib"]
        assert row["batch_size"] % 4 == 0 < row["batch_size"]  # LTE's heads
    assert rows[0]["batch_size"] < rows[1]["batch_size"]
    assert columns["saved_for_backward_mib"] > columns["samples"]["kept"]["in_blocks_mib"] > 0
