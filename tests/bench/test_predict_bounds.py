"""The roofline bound and the largest batch, against counts by hand and by brute force."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import ModelWorkload, TinyMethod, TinyWorkload
from torch import nn

from bench.estimate.devices import GPUS, LIMIT, cache_bytes, largest_batch
from bench.estimate.memory import predict_memory
from bench.estimate.work import Traffic, Work, bound, predict

B, N, M = 64, 8, 512
FLOAT = 4


def perceptron():
    return nn.Sequential(nn.Linear(N, M), nn.GELU(), nn.Linear(M, 1))


def traffic_of(workload):
    return predict(workload, TinyMethod(), B, "fp32", "cpu", 0).traffic


def test_traffic_of_a_perceptron_against_a_hand_count():
    numbers = N * M + M + M * 1 + 1
    state = 2 * numbers + 4  # Adam's moments, and its step for each of four parameters
    kept = B * M + B * M  # before and after gelu; the batch is kept too, but it was there
    assert traffic_of(ModelWorkload(perceptron, (N,))) == Traffic(
        read=FLOAT * (numbers + state + B * N), written=FLOAT * (numbers + state), kept=FLOAT * kept
    )


def test_a_frozen_weight_is_read_and_not_written():
    def model():
        net = perceptron()
        net[0].requires_grad_(False)
        return net

    trained = M * 1 + 1
    state = 2 * trained + 2
    traffic = traffic_of(ModelWorkload(model, (N,)))
    assert traffic.written == FLOAT * (trained + state)
    assert traffic.read == FLOAT * (N * M + M + trained + state + B * N)


def test_a_table_that_is_only_looked_into_is_not_read():
    class Looks(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(1000, N).requires_grad_(False)
            self.linear = nn.Linear(N, 1, bias=False)

        def forward(self, x):
            return self.linear(self.table(x[:, 0].long()))

    traffic = traffic_of(ModelWorkload(Looks, (1,)))
    assert traffic.read == FLOAT * (3 * N + 1 + B)  # weight and moments, the step counter, the batch


def test_predicting_work_and_traffic_does_not_change_memory():
    for batch_size in (1, 48):
        arguments = (TinyWorkload(), TinyMethod(), batch_size, "fp32", "cuda", 0)
        assert predict(*arguments).memory == predict_memory(*arguments)


def test_the_bound_is_the_larger_of_two_times():
    device = dataclasses.replace(GPUS["h100"], peak_flops={"fp32": 1e12}, bandwidth=1e9, cache=1000)
    traffic = Traffic(read=3_001_000, written=1_001_000, kept=501_000)  # 5 MB beside the cache
    by_operations = bound(Work(20 * 10**9, 0), traffic, device, "fp32")
    assert (by_operations.operations_ms, by_operations.traffic_ms) == pytest.approx((20.0, 5.0))
    assert by_operations.step_ms == pytest.approx(20.0)
    assert bound(Work(10**9, 0), traffic, device, "fp32").step_ms == pytest.approx(5.0)


def test_what_fits_into_the_caches_need_not_move():
    assert Traffic(read=10, written=10, kept=10).compulsory(cache=10) == 0
    assert Traffic(read=11, written=10, kept=12).compulsory(cache=10) == 1 + 0 + 4


@given(st.floats(0.5, 1e4), st.floats(1e-3, 1e3), st.floats(0, 1e3), st.sampled_from([1, 3, 16]), st.floats(1, 1e6))
def test_the_largest_batch_fits_and_the_next_does_not(start, slope, flat, multiple, room):
    def peak(batch):
        assert batch % multiple == 0
        return max(start + flat, start + slope * batch)  # at small batches something else makes the peak

    largest = largest_batch(peak, room, multiple)
    if largest.batch_size == 0:
        assert peak(multiple) > room
        return
    assert largest.peak_mib == peak(largest.batch_size) <= room
    if largest.next_mib is None:
        assert largest.batch_size == LIMIT // multiple * multiple
    else:
        assert largest.next_mib == peak(largest.batch_size + multiple) > room


def test_caches_count_once_however_many_processors_share_them(tmp_path):
    for cpu in (0, 1):
        for index, (level, kind, shared, size) in enumerate(
            [("1", "Data", str(cpu), "48K"), ("1", "Instruction", str(cpu), "32K"), ("3", "Unified", "0-1", "32M")]
        ):
            folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{index}"
            folder.mkdir(parents=True)
            for name, text in (("level", level), ("type", kind), ("shared_cpu_list", shared), ("size", size)):
                (folder / name).write_text(f"{text}\n")
    assert cache_bytes(tmp_path) == 2 * 48 * 2**10 + 32 * 2**20
    (tmp_path / "cpu0" / "cache" / "index0" / "size").write_text("unknown\n")
    assert cache_bytes(tmp_path) is None
    assert cache_bytes(tmp_path / "nothing") is None
