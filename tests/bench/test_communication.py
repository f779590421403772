"""The model of exchanges: against values worked out by hand, its limits, and sizes of real models."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as some

from bench.estimate.communication import (
    BUCKET,
    Compute,
    Link,
    RatedMachine,
    Tensor,
    Training,
    all_reduce_s,
    all_to_all_s,
    gather_s,
    powersgd_parts,
    rows_of,
    sent_bytes,
    tensors_of,
    winners,
)

MIB = 2**20
LINK = Link("a megabyte per millisecond", 8.0, 10.0)  # 1e9 bytes per second, 10 us a hop
EXCHANGES = ("ddp", "ddp_bf16", "powersgd_4", "fsdp2", "local_steps")
MODEL = (
    Tensor((1000, 256), "table"),
    Tensor((512, 512), in_block=True),
    Tensor((512,), "vector", in_block=True),
    Tensor((1, 16, 30), "core", in_block=True),
)


def training(exchange: str = "ddp", **changes) -> Training:
    fields = {"tensors": MODEL, "compute_ms": 10.0, "exchange": exchange, "local_steps": 4}
    return Training(**(fields | changes))


def test_collectives_by_hand():
    assert all_reduce_s(6e6, 2, LINK) == pytest.approx(6e-3 + 2 * 10e-6)
    assert all_reduce_s(6e6, 3, LINK) == pytest.approx(8e-3 + 4 * 10e-6)
    assert all_reduce_s(8e6, 1024, LINK) == pytest.approx(2 * 1023 / 1024 * 8e-3 + 20 * 10e-6)  # a tree, not 2,046 hops
    assert gather_s(6e6, 3, LINK) == pytest.approx(4e-3 + 2 * 10e-6)
    assert all_to_all_s(6e6, 3, LINK) == pytest.approx(4e-3 + 10e-6)
    assert {what(6e6, 1, LINK) for what in (all_reduce_s, gather_s, all_to_all_s)} == {0.0}
    assert {what(0, 8, LINK) for what in (all_reduce_s, gather_s, all_to_all_s)} == {0.0}


def test_a_step_whose_gradients_fit_into_one_bucket_hides_nothing():
    one = training(tensors=(Tensor((500, 500)),))  # 1e6 bytes
    assert one.gradient_mib * MIB == 1e6
    assert one.step_ms(2, LINK) == pytest.approx(10 + 1 + 0.02)


def test_buckets_overlap_with_backward_by_hand():
    """Three matrices of 30 MB are three buckets, ready after 5/9, 7/9 and all of 90 ms; each takes 30.02 ms."""
    square = Tensor((7_500_000, 1))
    three = training(tensors=(square, square, square), compute_ms=90.0)
    assert 4 * square.numbers > BUCKET
    # the first begins at 50, and all follow one another: 50 + 3 * 30.02 lies behind 90 + 30.02
    assert three.step_ms(2, LINK) == pytest.approx(50 + 3 * 30.02)
    fast = LINK.at(80.0)  # 3.02 ms each: the last alone is seen
    assert three.step_ms(2, fast) == pytest.approx(90 + 3.02)
    waiting = training(tensors=(square, square, square), compute_ms=90.0, overlaps=False)
    assert waiting.step_ms(2, fast) == pytest.approx(90 + 3 * 3.02)


def test_a_table_s_gradient_comes_last_and_takes_no_time_of_its_own():
    table, matrix = Tensor((7_500_000, 1), "table"), Tensor((7_500_000, 1))
    both = training(tensors=(table, matrix), compute_ms=90.0)
    assert both.step_ms(2, LINK) == pytest.approx(90 + 2 * 30.02)  # the matrix's is ready when backward ends


def test_the_first_bucket_is_small_and_a_size_may_be_given():
    small = tuple(Tensor((MIB // 4, 1)) for _ in range(30))  # 1 MiB each
    assert [len(bucket) for bucket in training(tensors=small)._buckets] == [1, 25, 4]
    assert [len(bucket) for bucket in training(tensors=small, bucket=10 * MIB)._buckets] == [1, 10, 10, 9]


def test_sent_bytes_by_hand():
    numbers = 1000 * 256 + 512 * 512 + 512 + 480
    assert training().sent_mib(2) == pytest.approx(4 * numbers / MIB)
    assert training("ddp_bf16").sent_mib(2) == pytest.approx(2 * numbers / MIB)
    assert training().sent_mib(4) == pytest.approx(1.5 * 4 * numbers / MIB)
    plain, p, q = 512 + 480, 4 * (1000 + 512), 4 * (256 + 512)
    assert powersgd_parts(MODEL, 4) == (4 * plain, 4 * p, 4 * q)
    assert training("powersgd_4").sent_mib(2) == pytest.approx(4 * (plain + p + q) / MIB)
    in_blocks = 512 * 512 + 512  # gathered twice; the table, outside of them, once
    assert training("fsdp2").sent_mib(2) == pytest.approx((4 * 256_000 + 3 / 2 * 4 * in_blocks + 4 * 480) / MIB)
    assert training("local_steps").sent_mib(2) == pytest.approx(numbers / MIB)
    shared = training(rows_mib=10.0)  # the table is sharded
    assert shared.sent_mib(2) == pytest.approx(4 * (numbers - 256_000) / MIB + 10)


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


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_time_and_bytes_are_of_the_same_collectives(exchange):
    """Without latency the messages take as long as the link takes for what each rank sends."""
    link, one = Link("", 8.0, 0.0), training(exchange, tensors=(*MODEL, Tensor((7, 30), in_block=True, trained=False)))
    for ranks in (2, 3, 64):
        assert one.communication_ms(ranks, link) == pytest.approx(1e3 * one.sent_mib(ranks) * MIB / 1e9)


@pytest.mark.parametrize("exchange", [each for each in EXCHANGES if each != "fsdp2"])
def test_frozen_parameters_travel_under_fsdp2_alone(exchange):
    frozen = Tensor((300, 300), trained=False)
    assert sent_bytes([frozen, *MODEL], exchange, 4) == sent_bytes(MODEL, exchange, 4)
    assert training(exchange, tensors=(frozen, *MODEL)).step_ms(4, LINK) == training(exchange).step_ms(4, LINK)


def test_gradients_of_bf16_weights_travel_in_two_bytes():
    narrow = [Tensor((100, 200), width=2), Tensor((7,), "vector", width=2)]
    assert powersgd_parts(narrow, 4) == (14, 800, 1600)
    assert {sent_bytes(narrow, exchange, 2) for exchange in ("ddp", "ddp_bf16")} == {2 * 20_007.0}
    machine = RatedMachine(operations=1e12, bytes=1e11)
    assert training("ddp_bf16", tensors=tuple(narrow), machine=machine).busy_ms == 10.0  # nothing to cast


def test_powersgd_waits_for_p_and_its_arithmetic_is_priced():
    matrix = Tensor((2000, 1000))
    machine = RatedMachine(operations=1e12, bytes=1e11)
    one = training("powersgd_4", tensors=(matrix,), machine=machine)
    arithmetic = (6 * 2e6 * 4 + 2 * 2000 * 16) / 1e12 + 10 * 8e6 / 1e11
    assert one.busy_ms == pytest.approx(10 + 1e3 * arithmetic)
    # two dependent all-reduces of 32 and 16 kB; nothing is sent uncompressed
    assert one.step_ms(2, LINK) == pytest.approx(one.busy_ms + 0.032 + 0.016 + 2 * 0.02)
    casts = training("ddp_bf16", tensors=(matrix,), machine=machine)
    assert casts.busy_ms == pytest.approx(10 + 1e3 * 3 * 8e6 / 1e11)


def test_sharded_tables_cost_two_exchanges_of_rows():
    dense = training(rows_mib=2.0)
    assert training(rows_mib=0.1).step_ms(4, LINK) < training().step_ms(4, LINK) < dense.step_ms(4, LINK)
    without = training(tensors=MODEL[1:]).step_ms(4, LINK)
    assert dense.step_ms(4, LINK) == pytest.approx(without + 2e3 * all_to_all_s(2 * MIB, 4, LINK))


@given(
    exchange=some.sampled_from(EXCHANGES),
    ranks=some.integers(2, 1024),
    gbit=some.floats(1e-3, 1e4),
    compute=some.floats(0.1, 1e4),
)
def test_a_step_lies_between_the_larger_part_and_the_sum_and_falls_with_the_rate(exchange, ranks, gbit, compute):
    one, link = training(exchange, compute_ms=compute), LINK.at(gbit)
    communication, step = one.communication_ms(ranks, link), one.step_ms(ranks, link)
    assert max(compute, communication) <= step * (1 + 1e-9)
    assert step <= (compute + communication) * (1 + 1e-9)
    assert one.step_ms(ranks, link.at(2 * gbit)) <= step * (1 + 1e-9)
    assert one.sent_mib(ranks) <= one.sent_mib(2 * ranks) * (1 + 1e-9)


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_limits(exchange):
    free = Link("no limit", math.inf, 0.0)
    assert training(exchange).step_ms(1024, free) == pytest.approx(10.0)
    alone = training(exchange, machine=RatedMachine(1e9, 1e9))
    assert alone.sent_mib(1) == 0.0
    assert alone.step_ms(1, LINK) == 10.0
    slow = LINK.at(1e-9)
    one = training(exchange)
    assert one.step_ms(2, slow) == pytest.approx(one.communication_ms(2, slow), rel=1e-3)


def test_the_batch_of_a_rank_scales_its_compute():
    steps = Compute(((4.0, 1.0, 6.0), (12.0, 3.0, 7.0)))
    assert [steps.ms(batch) for batch in (4, 12, 40)] == pytest.approx([6.0, 7.0, 10.5])
    assert steps.ms(1000) == pytest.approx(250.0)
    assert Compute(((4.0, 2.0, 1.0),)).ms(2) == pytest.approx(1.0)


def test_who_wins_where():
    arms = {"few bytes": lambda gbit: 20 + 1 / gbit, "many": lambda gbit: 10 + 100 / gbit}
    [first, second] = winners(arms, 1e-3, 1e3)
    assert (first[0], second[0]) == ("few bytes", "many")
    assert first[2] == second[1] == pytest.approx(9.9)
    assert (first[1], second[2]) == (1e-3, 1e3)


def test_rows_of_a_record_are_tensors():
    assert tensors_of([{"shape": [3, 4], "kind": "table"}]) == (Tensor((3, 4), "table"),)  # of older code
    some = (*MODEL, Tensor((), "vector", trained=False, width=2))
    assert tensors_of(json.loads(json.dumps(rows_of(some)))) == some
