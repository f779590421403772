"""Bytes that ranks send, on paper: against values worked out by hand, and sizes of real models."""

import pytest
import torch

from bench.core.cell import EXCHANGES
from bench.data.synthetic import synthetic_corpus
from bench.data.wordpiece import PairTokenizer, train_vocabulary
from bench.estimate.communication import Tensor, powersgd_parts, sent_bytes
from bench.estimate.parameters import parameters_of
from bench.protocol.methods import build, default_settings
from bench.workloads.encoder import EncoderSettings, EncoderWorkload

MIB = 2**20
MODEL = (
    Tensor((1000, 256), "table"),
    Tensor((512, 512), in_block=True),
    Tensor((512,), "vector", in_block=True),
    Tensor((1, 16, 30), "core", in_block=True),
)


def test_sent_bytes_by_hand():
    numbers = 1000 * 256 + 512 * 512 + 512 + 480
    assert sent_bytes(MODEL, "ddp", 1) == 0
    assert sent_bytes(MODEL, "ddp", 2) == pytest.approx(4 * numbers)
    assert sent_bytes(MODEL, "ddp", 4) == pytest.approx(1.5 * 4 * numbers)
    plain, p, q = 512 + 480, 4 * (1000 + 512), 4 * (256 + 512)
    assert powersgd_parts(MODEL, 4) == (4 * plain, 4 * p, 4 * q)
    assert sent_bytes(MODEL, "powersgd_4", 2) == pytest.approx(4 * (plain + p + q))
    in_blocks = 512 * 512 + 512  # gathered twice; the table, outside of them, once
    assert sent_bytes(MODEL, "fsdp2", 2) == pytest.approx(4 * 256_000 + 3 / 2 * 4 * in_blocks + 4 * 480)


#: A parameter, and the bytes that each of four ranks sends for it under FSDP2: three quarters of what is gathered for
#: forward, gathered for backward, and scattered.
OF_FSDP2 = {
    "outside of blocks": (Tensor((8, 10)), 0.75 * (320 + 320)),
    "in a block": (Tensor((8, 10), in_block=True), 0.75 * (320 + 320 + 320)),
    "frozen outside of blocks": (Tensor((8, 10), trained=False), 0.75 * 320),
    "frozen in a block": (Tensor((8, 10), in_block=True, trained=False), 0.75 * (320 + 320)),
    "rows that four ranks do not divide": (Tensor((5, 10)), 0.75 * (320 + 320)),
    "a bias shorter than the ranks are many": (Tensor((3,), "vector"), 0.75 * (16 + 16)),
    "a single number": (Tensor((), "vector"), 0.75 * (16 + 16)),
    "BF16 weights": (Tensor((8, 10), in_block=True, width=2), 0.75 * (160 + 160 + 160)),
    "a tensor train": (Tensor((80,), "core", in_block=True), 0.75 * (320 + 320)),
    "a frozen tensor train": (Tensor((80,), "core", in_block=True, trained=False), 0.0),
}


@pytest.mark.parametrize("case", OF_FSDP2)
def test_what_fsdp2_sends_by_place_and_kind(case):
    tensor, expected = OF_FSDP2[case]
    assert sent_bytes([tensor], "fsdp2", 4) == pytest.approx(expected)
    assert sent_bytes([tensor, *MODEL], "fsdp2", 4) == pytest.approx(expected + sent_bytes(MODEL, "fsdp2", 4))


@pytest.mark.parametrize("exchange", [each for each in EXCHANGES if each != "fsdp2"])
def test_frozen_parameters_travel_under_fsdp2_alone(exchange):
    frozen = Tensor((300, 300), trained=False)
    assert sent_bytes([frozen, *MODEL], exchange, 4) == sent_bytes(MODEL, exchange, 4)


def test_gradients_of_bf16_weights_travel_in_two_bytes():
    narrow = [Tensor((100, 200), width=2), Tensor((7,), "vector", width=2)]
    assert powersgd_parts(narrow, 4) == (14, 800, 1600)
    assert sent_bytes(narrow, "ddp", 2) == 2 * 20_007.0


@pytest.fixture(scope="module")
def full_size() -> dict[str, tuple]:
    """The tensors of the six-encoder model, dense and as CoMERA has it."""
    corpus = synthetic_corpus(30, 30)
    found = {}
    for method in ("dense", "comera"):
        workload = EncoderWorkload(EncoderSettings(classes=3), corpus, PairTokenizer(train_vocabulary(corpus, 100)))
        with torch.device("meta"):
            arm = build(method, "", default_settings(method))
            found[method] = parameters_of(arm.adapt(workload.build(), workload.targets()))
    return found


def test_bytes_of_the_full_model(full_size) -> None:
    """Dense 255.4 MiB; PowerSGD rank 4 sends less than CoMERA, which lies at its rank 12."""
    dense = full_size["dense"]
    assert sent_bytes(dense, "ddp", 2) / MIB == pytest.approx(255.4, abs=0.05)
    assert sent_bytes(full_size["comera"], "ddp", 2) / MIB == pytest.approx(5.68, abs=0.01)
    found = {rank: sent_bytes(dense, f"powersgd_{rank}", 2) / MIB for rank in (1, 2, 4, 8, 12, 16, 32)}
    expected = {1: 0.69, 2: 1.14, 4: 2.04, 8: 3.82, 12: 5.61, 16: 7.40, 32: 14.5}
    assert found == pytest.approx(expected, abs=0.06)


def test_fsdp2_gathers_blocks_twice_and_all_else_once(full_size) -> None:
    """By the element counts of BERT: six blocks of 7,087,872 numbers, and tables, pooler and head outside of them."""
    dense = full_size["dense"]
    in_blocks = sum(one.bytes for one in dense if one.in_block)
    every = sum(one.bytes for one in dense)
    assert in_blocks == 4 * 6 * 7_087_872 < every
    assert sent_bytes(dense, "fsdp2", 2) == pytest.approx((2 * every + in_blocks) / 2, rel=1e-4)  # the head's is padded
