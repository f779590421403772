"""What models reach in a metric: intervals against numbers worked out by hand, and metrics of other kinds."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_training import METRICS, point, trained

from bench.core.record import RecordError
from bench.core.samples import packed, unpacked
from figures.records import metric
from figures.records.metric import Metric, Reached, Score
from figures.records.training import curve_of, metric_of

ACCURACY = Metric("accuracy", "validation accuracy", "%", guess=50.0)
AUC, LOSS = (Metric.of(METRICS[name]) for name in ("auc", "loss"))

few = settings(max_examples=25, deadline=None)
answers = st.lists(st.booleans(), min_size=1, max_size=40)


def bits(text: str) -> Reached:
    return answered([character == "1" for character in text])


def answered(right: list[bool]) -> Reached:
    values = 100.0 * np.array(right, dtype=np.float64)
    return Reached(value=float(values.mean()), per_example=values)


def difference(ours: dict[int, Reached], theirs: dict[int, Reached]) -> Score | None:
    return metric.difference(ACCURACY, ours, theirs)


def accuracy(models: dict[int, Reached]) -> Score:
    return metric.score(ACCURACY, models)


@pytest.mark.parametrize(
    ("right", "examples", "value", "low", "high"),
    [
        # z = 1.95996; z² = 3.84146. 5 of 10: (0.5 + 0.19207 ± 1.95996·√(0.025 + 0.0096)) / 1.384146
        (5, 10, 50.0, 23.659, 76.341),
        (0, 10, 0.0, 0.0, 27.753),  # high: z²/(n + z²)
        (10, 10, 100.0, 72.247, 100.0),
        (9, 10, 90.0, 59.585, 98.212),
        (80, 100, 80.0, 71.117, 86.663),
    ],
)
def test_wilson_interval(right: int, examples: int, value: float, low: float, high: float) -> None:
    found = metric.wilson(ACCURACY, right, examples)
    assert found == accuracy({0: answered([i < right for i in range(examples)])})
    assert (found.value, found.low, found.high) == pytest.approx((value, low, high), abs=2e-3)


@pytest.mark.parametrize(
    ("ours", "theirs", "value", "low", "high"),
    [
        # The mean of 4 draws from {1, 0, 0, 0} is Binomial(4, 1/4)/4: P(0) = 0.316, P(≤ 2) = 0.949, P(≤ 3) = 0.996.
        ("1111", "1110", 25.0, 0.0, 75.0),
        # Of 2 draws from {1, 0}: 0, 1/2 and 1 with 1/4, 1/2, 1/4.
        ("11", "10", 50.0, 0.0, 100.0),
        ("10", "11", -50.0, -100.0, 0.0),
        # {1, -1}: the same accuracy, and yet -1, 0 and 1 with 1/4, 1/2, 1/4.
        ("10", "01", 0.0, -100.0, 100.0),
        ("1100", "1100", 0.0, 0.0, 0.0),
        ("111", "000", 100.0, 100.0, 100.0),
        # Binomial(10, 1/10): P(0) = 0.349, P(≤ 2) = 0.930, P(≤ 3) = 0.987.
        ("1111111111", "1111111110", 10.0, 0.0, 30.0),
    ],
)
def test_paired_bootstrap_of_one_seed(ours: str, theirs: str, value: float, low: float, high: float) -> None:
    found = difference({0: bits(ours)}, {0: bits(theirs)})
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((value, low, high))
    assert found.seeds == 1


def test_seeds_are_resampled_too() -> None:
    # Seed 0 differs by 100 points at every example and seed 1 by none, so examples do not matter: 0, 50 and 100 with
    # 1/4, 1/2, 1/4.
    found = difference({0: bits("11"), 1: bits("10")}, {0: bits("00"), 1: bits("10")})
    assert found is not None
    assert (found.value, found.low, found.high, found.seeds) == (50.0, 0.0, 100.0, 2)


def test_examples_are_the_same_for_all_seeds_of_a_resample() -> None:
    # Both seeds differ at the first of two examples: of 2 draws 0, 50 and 100 points with 1/4, 1/2, 1/4. Drawn anew for
    # each seed it would be Binomial(4, 1/2)/4 for a quarter of the seed draws and 100 rarer than one in 40.
    same = {seed: bits("11") for seed in range(8)}
    other = {seed: bits("01") for seed in range(8)}
    found = difference(same, other)
    assert found is not None
    assert (found.low, found.high) == (0.0, 100.0)


def test_only_seeds_found_on_both_sides_are_compared() -> None:
    found = difference({0: bits("11"), 1: bits("00")}, {0: bits("00"), 2: bits("00")})
    assert found is not None
    assert (found.value, found.seeds) == (100.0, 1)
    assert difference({0: bits("1")}, {1: bits("1")}) is None


def test_pairing_narrows_what_agrees() -> None:
    generator = random.Random(0)
    theirs = [generator.random() < 0.8 for _ in range(1000)]
    ours = [not right if i % 50 == 0 else right for i, right in enumerate(theirs)]
    found = difference({0: answered(ours)}, {0: answered(theirs)})
    assert found is not None
    assert found.high - found.low < 2.0
    alone = metric.wilson(ACCURACY, sum(ours), 1000)
    assert alone.high - alone.low > 4.0


@few
@given(answers, st.randoms(use_true_random=False))
def test_order_of_examples_does_not_matter(right: list[bool], shuffler) -> None:
    order = list(range(len(right)))
    shuffler.shuffle(order)
    backward = right[::-1]
    ours, theirs = answered(right), answered(backward)
    plain = difference({0: ours, 1: theirs}, {0: theirs, 1: theirs})
    ours, theirs = answered([right[i] for i in order]), answered([backward[i] for i in order])
    assert plain == difference({1: theirs, 0: ours}, {0: theirs, 1: theirs})


@few
@given(answers)
def test_one_seed_twice_is_no_narrower_than_the_value_it_repeats(right: list[bool]) -> None:
    found = accuracy({0: answered(right), 1: answered(right)})
    assert found.value == pytest.approx(100 * sum(right) / len(right))
    assert 0 <= found.low <= found.value + 1e-9
    assert found.value - 1e-9 <= found.high <= 100


def test_numbers_of_examples_must_agree() -> None:
    with pytest.raises(ValueError, match=r"differ in number: 1, 2\."):
        difference({0: bits("1")}, {0: bits("11")})
    with pytest.raises(ValueError, match="differ in number"):
        accuracy({0: bits("1"), 1: bits("11")})
    with pytest.raises(ValueError, match="no seed"):
        accuracy({})


@few
@given(answers)
def test_answers_survive_the_way_through_a_record(right: list[bool]) -> None:
    assert unpacked(packed(right)).tolist() == right
    [one] = curve_of(trained("dense", curve=[point(right, 900, "late", {})]))
    assert one.per_example is not None
    assert one.per_example.tolist() == [100.0 * answer for answer in right]
    assert one.value == pytest.approx(100 * sum(right) / len(right))


BROKEN = [
    ({"per_example": {"bits": "ff", "count": 4}}, "2 hexadecimal digits for 4 rows"),
    ({"per_example": {"bits": "x", "count": 4}}, "non-hexadecimal"),
    ({"per_example": {"bits": "7", "count": 4}}, "4 values with a mean of 75, not 100"),
    ({"per_example": {"bits": "e", "count": 3}, "metrics": {"accuracy": 50.0}}, "3 values with a mean of 100, not 50"),
    ({"per_example": {"bits": "f", "count": 3}}, "more right answers than rows"),
    ({"per_example": [100.0, 50.0]}, "2 values with a mean of 75, not 100"),
    ({"per_example": {"bits": None, "count": 4}}, "TypeError"),
    ({"ranks": [1, 2]}, "ranks are a list"),
    ({"metrics": {"loss": 0.5}}, "KeyError.*accuracy"),
]


@pytest.mark.parametrize(("changed", "message"), BROKEN)
def test_a_curve_that_cannot_be_read_is_refused(changed: dict, message: str) -> None:
    row = point([True] * 4, 10, "early", {}) | changed
    with pytest.raises(RecordError, match=f"its learning curve cannot be read .*{message}"):
        curve_of(trained("dense", curve=[row]))


@pytest.mark.parametrize("lacking", ["metrics", "step", "ranks"])
def test_a_point_of_a_curve_that_lacks_something_is_refused(lacking: str) -> None:
    row = point([True] * 4, 10, "early", {})
    del row[lacking]
    with pytest.raises(RecordError, match=f"its learning curve cannot be read .*{lacking}"):
        curve_of(trained("dense", curve=[row]))


@pytest.mark.parametrize("words", [{}, {"metric": None}, {"metric": {"name": "auc"}}])
def test_a_training_record_without_a_leading_metric_is_refused(words: dict) -> None:
    with pytest.raises(RecordError, match="needs its leading metric, with name and text"):
        metric_of(trained("dense", status="error", message="made up", workload_words=words))


def test_a_mean_of_numbers_has_a_bootstrap_interval() -> None:
    # The mean of 2 draws from {0, 2} is 0, 1 and 2 with 1/4, 1/2, 1/4; a Wilson interval would not reach 0 and 2.
    losses = Reached(value=1.0, per_example=np.array([0.0, 2.0]))
    found = metric.score(LOSS, {0: losses})
    assert (found.value, found.low, found.high, found.examples) == (1.0, 0.0, 2.0, 2)
    apart = metric.difference(LOSS, {0: losses}, {0: Reached(value=2.0, per_example=np.array([1.0, 3.0]))})
    assert apart is not None
    assert (apart.value, apart.low, apart.high) == (-1.0, -1.0, -1.0)
    assert apart.text(sign=True, unit=True) == "-1.00 [-1.00, -1.00] nats"


def test_shares_without_percent_are_answers_too() -> None:
    hits = Metric("hits", "hit rate")
    found = metric.score(hits, {0: Reached(value=0.5, per_example=np.array([1.0, 0.0] * 5))})
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.23659, 0.76341), abs=2e-5)
    assert str(found) == "0.5000 [0.2366, 0.7634]"


@pytest.mark.parametrize(
    ("seeds", "kind"), [(1, "interval"), (2, "bootstrap"), (3, "bootstrap"), (5, "bootstrap"), (6, "interval")]
)
def test_few_seeds_give_no_interval(seeds: int, kind: str) -> None:
    draws = np.random.default_rng(seeds).normal(1, 1, (2, seeds, 20))
    ours, theirs = (
        {seed: Reached(value=float(values.mean()), per_example=values) for seed, values in enumerate(drawn)}
        for drawn in draws
    )
    for found in (metric.score(LOSS, ours), metric.difference(LOSS, ours, theirs)):
        assert (found.seeds, found.kind) == (seeds, kind)
        assert ("interval" in found.bounds_are) == (kind == "interval")


def test_without_values_per_example_there_is_no_interval() -> None:
    ours, theirs = Reached(value=0.9, examples=500), Reached(value=0.75, examples=500)
    found = metric.score(AUC, {0: ours, 1: theirs})
    assert (found.value, found.low, found.high, found.examples, found.seeds) == (0.825, None, None, 500, 2)
    assert str(found) == "0.8250"
    apart = metric.difference(AUC, {0: ours}, {0: theirs, 1: ours})
    assert apart is not None
    assert apart.text(sign=True) == "+0.150"
    half = metric.difference(AUC, {0: answered([True])}, {0: theirs})  # one side alone decides nothing
    assert half is not None
    assert half.low is None


@pytest.mark.parametrize(
    ("metric_of_all", "values", "bound", "beats"),
    [
        (ACCURACY, (60.0, 55.0, 65.0), 50.0, True),
        (ACCURACY, (60.0, 50.0, 65.0), 50.0, False),
        (ACCURACY, (40.0, 35.0, 49.0), 50.0, False),
        (LOSS, (0.6, 0.5, 0.7), 0.9, True),
        (LOSS, (0.6, 0.5, 0.9), 0.9, False),
        (LOSS, (1.2, 1.0, 1.3), 0.9, False),
        (AUC, (0.6, None, None), 0.5, True),
        (AUC, (0.4, None, None), 0.5, False),
    ],
)
def test_better_follows_the_direction_of_the_metric(
    metric_of_all: Metric, values: tuple, bound: float, beats: bool
) -> None:
    assert Score(metric_of_all, *values, 100, 1).beats(bound) == beats


def test_metrics_are_written_with_their_units() -> None:
    assert [one.written(0.81234) for one in (AUC, LOSS)] == ["0.8123", "0.8123 nats"]
    assert [one.axis for one in (AUC, LOSS)] == ["validation AUC", "validation loss, nats (lower is better)"]
    assert [one.heading for one in (ACCURACY, AUC, LOSS)] == ["accuracy, %", "AUC", "loss, nats"]
