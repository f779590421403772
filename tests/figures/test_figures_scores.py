"""What models reach: intervals of a table's CSV against numbers worked out by hand, and curves that cannot be read."""

import dataclasses
import random
from typing import Any

import numpy as np
import pytest
from made_up import EARLY_SIZE, LOSS, other_run, packed, point, ranks, trained
from pages import page, pages, table

from bench.core.record import Record, RecordError


def run(arm: str, right: str, seed: int = 0) -> Record:
    """A training whose answers are these: dense's after its whole run, CoMERA's after the early stage."""
    answers = [character == "1" for character in right]
    if arm == "dense":
        points = [point(answers, 600, "early", {}), point(answers, 900, "late", {})]
        return trained("dense", curve=points, seed=seed)
    return trained(arm, "early", None, [point(answers, 600, "early", ranks(1.0))], seed=seed, **EARLY_SIZE)


def scored(records: list[Record], name: str) -> list[Any]:
    """A column of the early stage's line, or of dense's where that is alone, with its bounds and what they are."""
    lines = table("table_mnli", records, "arm", "stage")
    line = lines.loc[("comera", "early")] if any(one.arm == "comera" for one in records) else lines.loc["dense"].iloc[0]
    return [line[f"{name}{end}"] for end in ("", "_low", "_high", "_bounds")]


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
def test_wilson_s_interval_of_one_seed(right: int, examples: int, value: float, low: float, high: float) -> None:
    found = scored([run("dense", "1" * right + "0" * (examples - right))], "accuracy")
    assert found[:3] == pytest.approx([value, low, high], abs=2e-3)
    assert found[3] == "interval"


@pytest.mark.parametrize(
    ("ours", "theirs", "value", "low", "high"),
    [
        # The mean of 4 draws from {1, 0, 0, 0} is Binomial(4, 1/4)/4: P(0) = 0.316, P(≤ 2) = 0.949, P(≤ 3) = 0.996.
        ("1111", "1110", 25.0, 0.0, 75.0),
        ("11", "10", 50.0, 0.0, 100.0),  # of 2 draws from {1, 0}: 0, 1/2 and 1 with 1/4, 1/2, 1/4
        ("10", "11", -50.0, -100.0, 0.0),
        ("10", "01", 0.0, -100.0, 100.0),  # {1, -1}: the same accuracy, and yet -1, 0 and 1
        ("1100", "1100", 0.0, 0.0, 0.0),
        ("111", "000", 100.0, 100.0, 100.0),
        # Binomial(10, 1/10): P(≤ 2) = 0.930, P(≤ 3) = 0.987
        ("1111111111", "1111111110", 10.0, 0.0, 30.0),
    ],
)
def test_a_difference_has_a_paired_bootstrap(ours: str, theirs: str, value: float, low: float, high: float) -> None:
    found = scored([run("comera", ours), run("dense", theirs)], "less_dense_points")
    assert found[:3] == pytest.approx([value, low, high])


def test_seeds_are_resampled_too_with_the_same_examples_and_only_common_ones_compared() -> None:
    # Seed 0 differs by 100 points at every example and seed 1 by none: 0, 50 and 100 with 1/4, 1/2, 1/4.
    pairs = [run("comera", "11"), run("comera", "10", 1), run("dense", "00"), run("dense", "10", 1)]
    assert scored(pairs, "less_dense_points") == [50.0, 0.0, 100.0, "bootstrap"]
    # Eight seeds differ at the first of two examples: 0, 50 and 100 points with 1/4, 1/2, 1/4. Drawn anew for
    # each seed, 0 and 100 would be rarer than one in 40.
    alike = [run(arm, right, seed) for seed in range(8) for arm, right in (("comera", "11"), ("dense", "01"))]
    assert scored(alike, "less_dense_points")[1:] == [0.0, 100.0, "interval"]
    apart = [run("comera", "11"), run("comera", "00", 1), run("dense", "00"), run("dense", "00", 2)]
    assert scored(apart, "less_dense_points")[0] == 100.0


@pytest.mark.parametrize(("seeds", "kind"), [(1, "interval"), (2, "bootstrap"), (5, "bootstrap"), (6, "interval")])
def test_few_seeds_give_no_interval(seeds: int, kind: str) -> None:
    records = [run("dense", "1" * (5 + seed) + "0" * 5, seed) for seed in range(seeds)]
    records = [dataclasses.replace(one, samples=run("dense", "1" * 6 + "0" * 4).samples) for one in records]
    drawn = page("table_mnli", records)
    assert scored(records, "accuracy")[3] == kind
    assert any("no 95 % interval" in note for note in drawn.notes) == (kind == "bootstrap")


def test_pairing_narrows_what_agrees() -> None:
    generator = random.Random(0)
    theirs = [generator.random() < 0.8 for _ in range(1000)]
    ours = [not right if i % 50 == 0 else right for i, right in enumerate(theirs)]
    words = ["".join("01"[right] for right in answers) for answers in (ours, theirs)]
    records = [run("comera", words[0]), run("dense", words[1])]
    _, low, high, _ = scored(records, "less_dense_points")
    assert high - low < 2.0
    _, low, high, _ = scored(records, "accuracy")
    assert high - low > 4.0


def test_a_mean_of_numbers_has_a_bootstrap_and_a_metric_without_values_no_bounds() -> None:
    # The mean of 2 draws from {0, 2} is 0, 1 and 2 with 1/4, 1/2, 1/4; Wilson's interval would not reach 0 and 2.
    one = other_run("dense", [1.0], LOSS)
    one.samples["curve"][0] |= {"per_example": packed([0.0, 2.0]), "validation_examples": 2}
    found = table("table_mnli", [one]).iloc[0]
    assert found[["loss", "loss_low", "loss_high"]].tolist() == [1.0, 0.0, 2.0]
    both = table("table_mnli", [other_run("dense", [0.75]), other_run("comera", [0.9])], "arm").loc["comera"]
    assert both[["auc", "less_dense"]].tolist() == pytest.approx([0.9, 0.15])
    assert both[["auc_low", "less_dense_low"]].isna().all()


def test_an_answer_is_right_or_wrong_in_any_unit() -> None:
    hits = {**LOSS, "text": "hit rate", "unit": "", "higher_is_better": True}
    one = other_run("dense", [0.5], hits)
    one.samples["curve"][0]["per_example"] = packed([1.0, 0.0] * 5)
    found = table("table_mnli", [one]).iloc[0]
    assert found[["loss", "loss_low", "loss_high"]].tolist() == pytest.approx([0.5, 0.23659, 0.76341], abs=2e-5)


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"per_example": {"bits": "ff", "count": 4}}, "2 hexadecimal digits for 4 rows"),
    ({"per_example": {"bits": "x", "count": 4}}, "non-hexadecimal"),
    ({"per_example": {"bits": "7", "count": 4}}, "4 values with a mean of 75, not 100"),
    ({"per_example": {"bits": "f", "count": 3}}, "more right answers than rows"),
    ({"per_example": [100.0, 50.0]}, "2 values with a mean of 75, not 100"),
    ({"per_example": {"bits": None, "count": 4}}, "TypeError"),
    ({"ranks": [1, 2]}, "ranks are a list"),
    ({"metrics": {"loss": 0.5}}, "KeyError.*accuracy"),
    *(({name: None}, name) for name in ("metrics", "step", "ranks")),
]


@pytest.mark.parametrize(("changed", "message"), BROKEN)
def test_a_curve_that_cannot_be_read_is_refused(changed: dict[str, Any], message: str) -> None:
    row = point([True] * 4, 900, "late", {})
    one = trained("dense", curve=[row])
    row |= changed
    for name in [name for name, value in changed.items() if value is None]:
        del row[name]
    with pytest.raises(RecordError, match=f"its learning curve cannot be read .*{message}"):
        pages("table_mnli", [one])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"samples": {}, "stored_mib": 1.0}, "needs its learning curve"),
        ({"config_json": "{}"}, "needs training.stages"),
        ({"workload_words": {"metric": {"name": "auc"}}}, "needs its leading metric, with name and text"),
        ({"workload_words": {}}, "needs its leading metric, with name and text"),
    ],
)
def test_a_training_without_what_it_needs_is_refused(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(RecordError, match=message):
        pages("table_mnli", [trained("dense", **columns)])


def test_the_order_of_seeds_and_examples_does_not_matter() -> None:
    generator = np.random.default_rng(1)
    rows = generator.random((2, 3, 40)) < 0.7
    order = generator.permutation(40)

    def records(answers: np.ndarray) -> list[Record]:
        words = ["".join("01"[int(right)] for right in row) for row in answers.reshape(6, 40)]
        seeds = [(arm, seed) for arm in ("comera", "dense") for seed in range(3)]
        return [run(arm, text, seed) for (arm, seed), text in zip(seeds, words, strict=True)]

    one, other = records(rows), records(rows[:, :, order])
    for name in ("accuracy", "less_dense_points"):
        assert scored(one, name) == scored(other[::-1], name)
