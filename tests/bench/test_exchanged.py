"""Measure ``exchanged``: the gradients of real models, by the sizes that are known of them."""

import pytest
import torch
from small_cells import MODEL, run_bench

from bench.core.record import read_all
from bench.data.synthetic import synthetic_corpus
from bench.data.wordpiece import PairTokenizer, train_vocabulary
from bench.estimate.communication import Training, tensors_of
from bench.estimate.parameters import parameters_of
from bench.protocol.methods import build, default_settings
from bench.workloads.encoder import EncoderSettings, EncoderWorkload


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
    dense, ours = full_size["dense"], full_size["comera"]

    def sent(tensors, exchange="ddp") -> float:
        return Training(tensors=tensors, compute_ms=1.0, exchange=exchange).sent_mib(2)

    assert sent(dense) == pytest.approx(255.4, abs=0.05)
    assert sent(dense, "ddp_bf16") == pytest.approx(127.7, abs=0.05)
    assert sent(ours) == pytest.approx(5.68, abs=0.01)
    found = {rank: sent(dense, f"powersgd_{rank}") for rank in (1, 2, 4, 8, 12, 16, 32)}
    expected = {1: 0.69, 2: 1.14, 4: 2.04, 8: 3.82, 12: 5.61, 16: 7.40, 32: 14.5}
    assert found == pytest.approx(expected, abs=0.06)


def test_fsdp2_gathers_blocks_twice_and_all_else_once(full_size) -> None:
    """By the element counts of BERT: six blocks of 7,087,872 numbers, and tables, pooler and head outside of them."""
    dense = full_size["dense"]
    in_blocks = sum(one.bytes for one in dense if one.in_block)
    every = sum(one.bytes for one in dense)
    assert in_blocks == 4 * 6 * 7_087_872 < every
    sent = Training(tensors=dense, compute_ms=1.0, exchange="fsdp2").sent_mib(2) * 2**20
    assert sent == pytest.approx((2 * every + in_blocks) / 2, rel=1e-4)  # the head's three rows are padded


@pytest.mark.slow
def test_a_record(tmp_path) -> None:
    asked = ("experiment=steps", "measure=exchanged", "name=exchanged", "device=cuda", "batch_size=32")
    asked += ("methods=[comera,dense]", "sequence_length=32", "precision=bf16")
    ended = run_bench(tmp_path, *asked, *(f"model.{name}={value}" for name, value in MODEL.items()), "results=here")
    assert ended.status == 0, ended.error
    records = {record.arm: record for record in read_all(tmp_path / "here")}
    assert set(records) == {"comera", "dense"}
    for record in records.values():
        tensors = tensors_of(record.samples["tensors"])
        assert Training(tensors=tensors, compute_ms=1.0).gradient_mib == pytest.approx(record.gradient_mib)
        points = record.samples["bounds"]["h100"]["points"]
        assert [batch for batch, *_ in points] == [4, 32]
        assert points[1][1] == pytest.approx(8 * points[0][1], rel=0.3)
    assert records["comera"].gradient_mib < records["dense"].gradient_mib
