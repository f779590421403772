"""Laws of ranges and intervals over launches, and which blocks of a record they are of."""

import json
import math
from itertools import pairwise
from statistics import fmean, median
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_cells import a_record

from bench.core.intervals import MIN_LAUNCHES, mean_estimate, paired_ratio, unpaired_ratio
from bench.core.record import Record, RecordError
from bench.core.samples import block_means_ms, disturbed_blocks
from bench.core.times import epoch_time_s, rare_ms_per_step, step_time_ms

times = st.floats(min_value=0.01, max_value=1e5)
many_times = st.lists(times, min_size=2, max_size=9)
few = settings(max_examples=25, deadline=None)


@few
@given(many_times, st.integers(min_value=-6, max_value=6))
def test_scaling_one_side_scales_value_and_interval(values: list[float], exponent: int) -> None:
    factor = 2.0**exponent  # a power of two loses no bit
    below = {i: 1.0 + i for i in range(len(values))}
    scaled = [factor * value for value in values]
    for plain, larger in (
        (paired_ratio(dict(enumerate(values)), below), paired_ratio(dict(enumerate(scaled)), below)),
        (unpaired_ratio(values, list(below.values())), unpaired_ratio(scaled, list(below.values()))),
        (mean_estimate(values), mean_estimate(scaled)),
    ):
        assert larger.value == pytest.approx(factor * plain.value)
        assert larger.low == pytest.approx(factor * plain.low)
        assert larger.high == pytest.approx(factor * plain.high)
        assert larger.paired == plain.paired


@few
@given(many_times, st.randoms(use_true_random=False))
def test_order_of_blocks_does_not_matter(values: list[float], shuffler: Any) -> None:
    shuffled = list(values)
    shuffler.shuffle(shuffled)
    assert mean_estimate(values) == mean_estimate(shuffled)
    assert unpaired_ratio(values, [1.0, 2.0]) == unpaired_ratio(shuffled, [2.0, 1.0])


@few
@given(many_times)
def test_an_interval_stays_within_the_values_and_holds_the_estimate(values: list[float]) -> None:
    estimate = mean_estimate(values)
    slack = 1e-9 * max(values)
    assert min(values) - slack <= estimate.low <= estimate.value + slack
    assert estimate.value - slack <= estimate.high <= max(values) + slack


def test_pairing_removes_what_all_arms_share() -> None:
    drift = [1.0, 2.0, 3.0, 4.0, 5.0]
    above, below = {i: 3 * d for i, d in enumerate(drift)}, dict(enumerate(drift))
    paired, unpaired = paired_ratio(above, below), unpaired_ratio(list(above.values()), list(below.values()))
    assert (paired.low, paired.value, paired.high, paired.paired, paired.blocks) == (3, 3, 3, True, 5)
    assert (unpaired.value, unpaired.paired) == (3, False)
    assert unpaired.high - unpaired.low > 1


def test_only_common_blocks_are_paired() -> None:
    estimate = paired_ratio({0: 2.0, 1: 4.0, 7: 100.0}, {0: 1.0, 1: 2.0, 3: 50.0})
    assert (estimate.value, estimate.blocks) == (2.0, 2)


def test_more_launches_narrow_the_interval() -> None:
    widths = []
    for repeats in (2, 4, 16):
        estimate = mean_estimate({(launch, 0): value for launch, value in enumerate([1.0, 1.2, 1.4] * repeats)})
        assert estimate.kind == "interval"
        widths.append(estimate.high - estimate.low)
    assert all(wide > narrow for wide, narrow in pairwise(widths))


@pytest.mark.parametrize("launches", range(1, 10))
@pytest.mark.parametrize("statistic", ["mean", "paired", "unpaired"])
def test_bounds_are_a_range_until_launches_suffice_for_an_interval(launches: int, statistic: str) -> None:
    random = np.random.default_rng(launches)
    above, below = ({(i, j): v for i in range(launches) for j, v in enumerate(random.uniform(1, 2, 3))} for _ in "ab")
    found = {
        "mean": mean_estimate(above),
        "paired": paired_ratio(above, below),
        "unpaired": unpaired_ratio(above, below),
    }
    estimate = found[statistic]
    assert (estimate.launches, estimate.kind) == (launches, "range" if launches < MIN_LAUNCHES else "interval")
    assert "interval" in estimate.bounds_are or estimate.kind == "range"

    def ends(values: dict[tuple[int, int], float], of: Any) -> tuple[float, float]:
        per_launch = [of([v for (i, _), v in values.items() if i == launch]) for launch in range(launches)]
        return (min(values.values()), max(values.values())) if launches == 1 else (min(per_launch), max(per_launch))

    ratios = {block: above[block] / below[block] for block in above}
    (low, high), (least, greatest) = ends(above, median), ends(below, median)
    expected = {"mean": ends(above, fmean), "paired": ends(ratios, median), "unpaired": (low / greatest, high / least)}
    if launches < MIN_LAUNCHES:
        assert (estimate.low, estimate.high) == pytest.approx(expected[statistic])
    else:
        assert estimate.low < estimate.value < estimate.high
        assert estimate.high - estimate.low < 1.5 * (expected[statistic][1] - expected[statistic][0])


def test_fewer_launches_than_suffice_cannot_hold_the_median_as_often_as_an_interval_says() -> None:
    """The least and the greatest of n hold the median but where all n lie on one side of it."""
    coverage = {n: 1 - 2 ** (1 - n) for n in range(2, 9)}
    assert max(share for n, share in coverage.items() if n < MIN_LAUNCHES) < 0.95 <= coverage[MIN_LAUNCHES]


#: Nine launches of two blocks in three calls, the second of which met another machine state.
THREE_CALLS = {
    (call, 3 * call + launch, block): mean + 0.01 * launch + 0.001 * block
    for call, mean in enumerate((4.6, 3.2, 4.7))
    for launch in range(3)
    for block in range(2)
}


def test_launches_of_several_calls_give_a_range_over_calls() -> None:
    for found in (mean_estimate(THREE_CALLS), paired_ratio(THREE_CALLS, dict.fromkeys(THREE_CALLS, 1.0))):
        assert (found.kind, found.bounds_are) == ("range over calls", "range over calls")
        assert (found.low, found.high) == (pytest.approx(3.2105), pytest.approx(4.7105))
        assert (found.launches, found.blocks) == (9, 18)
    assert mean_estimate(THREE_CALLS).value == pytest.approx(fmean((4.6105, 3.2105, 4.7105)))


def test_an_interval_over_calls_draws_calls() -> None:
    calls = {
        (call, 3 * call + launch, block): 1.0 + call + 0.01 * launch
        for call in range(MIN_LAUNCHES)
        for launch in range(3)
        for block in range(2)
    }
    over_calls = mean_estimate(calls)
    over_launches = mean_estimate({name[1:]: value for name, value in calls.items()})
    assert (over_calls.kind, over_launches.kind) == ("interval over calls", "interval")
    assert over_calls.high - over_calls.low > 1.4 * (over_launches.high - over_launches.low)


def test_launches_of_one_call_are_as_without_its_name() -> None:
    one = {(0, *name[1:]): value for name, value in THREE_CALLS.items()}
    assert mean_estimate(one) == mean_estimate({name[1:]: value for name, value in THREE_CALLS.items()})


def test_one_block_has_no_interval() -> None:
    for estimate in (mean_estimate([3.0]), paired_ratio({0: 3.0}, {0: 1.0}), unpaired_ratio([3.0], [1.0, 1.0])):
        assert (estimate.value, estimate.low, estimate.high) == (3.0, None, None)


@pytest.mark.parametrize("values", [[], [1.0, 0.0], [1.0, -2.0], [math.nan, 1.0], [math.inf]])
def test_values_that_are_no_times_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="block"):
        mean_estimate(values)
    with pytest.raises(ValueError, match="block"):
        unpaired_ratio([1.0], values)


def test_a_range_holds_what_differs_from_launch_to_launch() -> None:
    """Three launches whose blocks agree among themselves and not with one another."""
    level = {0: 1.0, 1: 1.2, 2: 1.1}
    blocks = {(launch, block): level[launch] * (1 + 0.001 * block) for launch in level for block in range(8)}
    among, within = mean_estimate(blocks), mean_estimate([*blocks.values()])
    assert (among.launches, within.launches, among.blocks) == (3, 1, 24)
    assert among.value == pytest.approx(within.value)
    assert 1.0 < among.low < 1.02  # about the lowest launch and the highest
    assert 1.19 < among.high < 1.21
    assert (among.bounds_are, within.bounds_are) == ("range over launches", "range over blocks")
    for ratio in (paired_ratio(blocks, dict.fromkeys(blocks, 2.0)), unpaired_ratio(blocks, [2.0] * 9)):
        assert ratio.value == pytest.approx(0.5 * 1.1 * 1.0035, rel=1e-3)  # the median of medians
        assert 0.5 <= ratio.low < 0.51 < 0.59 < ratio.high < 0.605


@pytest.mark.slow
def test_intervals_cover_launches_as_often_as_they_say() -> None:
    """Of a normal law over launches; blocks renamed to launches of their own would hold it in about half of all."""
    random, inside = np.random.default_rng(5), {True: 0, False: 0}
    for _ in range(150):
        blocks = {
            (i, j): 10 + a + b
            for i, a in enumerate(random.normal(0, 1, 8))
            for j, b in enumerate(random.normal(0, 0.5, 4))
        }
        for by_launch in inside:
            found = mean_estimate(blocks if by_launch else {(n, 0): one for n, one in enumerate(blocks.values())})
            inside[by_launch] += found.low <= 10 <= found.high
    assert inside[True] >= 127  # 85 %: a percentile bootstrap of eight gives about 89 for a mean, and no false comfort
    assert inside[False] <= inside[True] - 20


def of_blocks(
    *blocks: dict[str, Any], config: str = '{"timing_settings": {"disturbed": 1e9}}', **columns: Any
) -> Record:
    """A record at batch 8 of a workload with 800 examples an epoch."""
    words = {"model": "made up", "epoch": "", "examples_per_epoch": 800}
    fields = {"batch_size": 8, "workload_words": words, "config_json": config, "samples": {"blocks": list(blocks)}}
    return a_record(**(fields | columns))


def block(
    number: int, *ms: float, launch: int = 0, disturbed: bool | None = False, product: float = 1.0
) -> dict[str, Any]:
    found = {"launch": launch, "block": number, "calibration_ms": product, "ms": list(ms)}
    return found if disturbed is None else {**found, "disturbed": disturbed}


def test_a_repeated_block_takes_the_place_of_the_disturbed_one() -> None:
    one = of_blocks(block(0, 10.0), block(1, 900.0, disturbed=True), block(1, 20.0))
    assert block_means_ms(one) == {(0, 0): 10.0, (0, 1): 20.0}


def test_the_rule_on_disturbed_blocks_holds_for_records_older_than_it() -> None:
    """Within each launch: the second one is slower as a whole, which is no disturbance."""
    times = [(0, 10.0, 1.0), (0, 10.5, 1.0), (0, 13.5, 1.0), (0, 10.2, 1.3), (1, 14.0, 1.4), (1, 14.5, 1.4)]
    blocks = [
        block(n, ms, launch=launch, product=product, disturbed=None) for n, (launch, ms, product) in enumerate(times)
    ]
    one = of_blocks(*blocks, config="{}")
    assert [*block_means_ms(one)] == [(0, 0), (0, 1), (1, 4), (1, 5)]  # a slow step, then a slow product
    assert disturbed_blocks(one) == 2
    assert disturbed_blocks(of_blocks(*blocks, config=json.dumps({"timing_settings": {"disturbed": 1.4}}))) == 0


def test_a_launch_counts_once_however_many_blocks_and_steps_it_has() -> None:
    """The mean over launches of the mean over blocks of the mean over steps: neither is pooled."""
    noise = block(1, 900.0, launch=1, disturbed=True)
    one = of_blocks(block(0, *[10.0] * 5), block(1, 20.0), block(0, 30.0, launch=1), noise)
    assert step_time_ms(one).value == 22.5
    assert epoch_time_s(one) == pytest.approx(0.0225 * 100)


def test_rare_events_timed_in_every_launch_vary_with_it() -> None:
    one = of_blocks(
        *(block(0, 100.0, launch=launch) for launch in range(3)), rare_time_ms=4000.0, rare_period_steps=200
    )
    one.samples["rare"] = {"svd": [3000.0, 4000.0, 6000.0]}
    assert [rare_ms_per_step(one, launch) for launch in (0, 1, 2)] == [15, 20, 30]
    step = step_time_ms(one)
    assert 115 <= step.low < step.value < step.high <= 130
    assert step.value == pytest.approx(100 + 65 / 3)


@pytest.mark.parametrize("wrong", [{"blocks": 3}, {"blocks": [{"ms": [1.0]}]}, {"blocks": [{"block": 0, "ms": [0]}]}])
def test_samples_of_another_shape_are_refused_in_one_sentence(wrong: dict[str, Any]) -> None:
    with pytest.raises(RecordError, match=r"samples|block"):
        block_means_ms(of_blocks(samples=wrong))
