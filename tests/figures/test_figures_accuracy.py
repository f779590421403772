"""Intervals of accuracies against numbers worked out by hand."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_training import point, trained

from bench.core.record import RecordError
from bench.core.samples import packed, unpacked
from figures.accuracy import accuracy, difference, wilson
from figures.curve import curve_of

few = settings(max_examples=25, deadline=None)
answers = st.lists(st.booleans(), min_size=1, max_size=40)


def bits(text: str) -> np.ndarray:
    return np.array([character == "1" for character in text])


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
    found = wilson(right, examples)
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
    found = difference({0: np.array(ours)}, {0: np.array(theirs)})
    assert found is not None
    assert found.high - found.low < 2.0
    alone = wilson(sum(ours), 1000)
    assert alone.high - alone.low > 4.0


@few
@given(answers, st.randoms(use_true_random=False))
def test_order_of_examples_does_not_matter(right: list[bool], shuffler) -> None:
    order = list(range(len(right)))
    shuffler.shuffle(order)
    ours, theirs = np.array(right), np.array(right[::-1])
    plain = difference({0: ours, 1: theirs}, {0: theirs, 1: theirs})
    assert plain == difference({1: theirs[order], 0: ours[order]}, {0: theirs[order], 1: theirs[order]})


@few
@given(answers)
def test_one_seed_twice_is_no_narrower_than_the_value_it_repeats(right: list[bool]) -> None:
    found = accuracy({0: np.array(right), 1: np.array(right)})
    assert found.value == pytest.approx(100 * sum(right) / len(right))
    assert 0 <= found.low <= found.value + 1e-9
    assert found.value - 1e-9 <= found.high <= 100


def test_numbers_of_examples_must_agree() -> None:
    with pytest.raises(ValueError, match=r"differ in number: 1 and 2\."):
        difference({0: bits("1")}, {0: bits("11")})
    with pytest.raises(ValueError, match="differ in number"):
        accuracy({0: bits("1"), 1: bits("11")})
    with pytest.raises(ValueError, match="no seed"):
        accuracy({})


@few
@given(answers)
def test_answers_survive_the_way_through_hexadecimal_digits(right: list[bool]) -> None:
    assert unpacked(packed(right)).tolist() == right


BROKEN = [
    ({"per_example": {"bits": "ff", "count": 4}}, "2 hexadecimal digits for 4 rows"),
    ({"per_example": {"bits": "x", "count": 4}}, "non-hexadecimal"),
    ({"per_example": {"bits": "7", "count": 4}}, "3 of 4 right answers are not 100 %"),
    (
        {"per_example": {"bits": "e", "count": 3}, "metrics": {"accuracy": 50.0}},
        "3 of 3 right answers are not 50 %",
    ),
    ({"per_example": {"bits": "f", "count": 3}}, "more right answers than rows"),
    ({"ranks": [1, 2]}, "ranks are a list"),
    ({"per_example": None}, "TypeError"),
    ({"metrics": {"loss": 0.5}}, "KeyError"),
]


@pytest.mark.parametrize(("changed", "message"), BROKEN)
def test_a_curve_that_cannot_be_read_is_refused(changed: dict, message: str) -> None:
    row = point([True] * 4, 10, "early", {}) | changed
    with pytest.raises(RecordError, match=f"its learning curve cannot be read .*{message}"):
        curve_of(trained("dense", curve=[row]))
    del row["per_example"]
    with pytest.raises(RecordError, match="per_example"):
        curve_of(trained("dense", curve=[row]))
