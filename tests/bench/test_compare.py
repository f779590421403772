"""``python -m bench compare``: every cell is compared once or named, and nothing is compared that cannot be."""

import csv
import io
import json
import shutil

import numpy as np
import pytest
from small_cells import a_record, assert_refused, git, run_bench

from bench.commands.compare import ComparedPair
from bench.commands.sources import read_source
from bench.core.intervals import unpaired_ratio
from bench.core.record import SCHEMA_VERSION, write
from bench.core.samples import packed


def blocks(means, calibration=1.0, disturbed=()):
    return {
        "blocks": [
            {"block": place, "ms": [mean, mean], "calibration_ms": calibration, "disturbed": place in disturbed}
            for place, mean in enumerate(means)
        ]
    }


def timed(cell, means, calibration=1.0, disturbed=(), **columns):
    usual = {"step_time_median_ms": means[0], "flops_per_step": 1000, "peak_memory_predicted_mib": 50.0}
    return a_record(cell_id=cell, samples=blocks(means, calibration, disturbed), **(usual | columns))


ACCURACY = {"name": "accuracy", "text": "validation accuracy", "unit": "%", "higher_is_better": True}
LOSS = {"name": "loss", "text": "validation loss", "unit": "", "higher_is_better": False}


def trained(cell, values, metric=ACCURACY, **columns):
    """A training record with one value per validation example, or, where it is a number, with the metric alone."""
    scale = 100 if metric["unit"] else 1
    reached = float(values) if isinstance(values, float) else scale * sum(values) / len(values)
    row = {"metrics": {metric["name"]: reached}, "validation_examples": None}
    if not isinstance(values, float):
        row |= {"per_example": packed(values), "validation_examples": len(values)}
    columns = {**row, "workload_words": {"metric": metric}, "samples": {"curve": [row]}, **columns}
    columns.pop("per_example", None)
    return a_record(cell_id=cell, measure="train", stage="early", **columns)


def folder_of(path, *records):
    path.mkdir()
    write(records, path)
    return path


def rows_of(text):
    return {row["cell_id"]: row for row in csv.DictReader(io.StringIO(text))}


@pytest.fixture
def two(tmp_path):
    """Two folders with a shared cell that became slower, and a cell of its own in each."""
    folder = tmp_path / "in"
    folder.mkdir()
    a = folder_of(folder / "a", timed("one", [10.0, 11.0, 12.0]), timed("left", [5.0], method="lora"))
    b = folder_of(
        folder / "b",
        timed("one", [15.0, 16.5, 18.0, 99.0], 2.0, disturbed=(3,), peak_memory_predicted_mib=55.0),
        timed("right", [5.0], method="galore"),
    )
    return a, b


def test_a_ratio_is_of_b_over_a_with_both_sides_resampled(two, tmp_path):
    ended = run_bench(tmp_path, "compare", *map(str, two), "--format", "csv")
    assert (ended.status, ended.error) == (0, "")
    row = rows_of(ended.output)["one"]
    expected = unpaired_ratio([15.0, 16.5, 18.0], [10.0, 11.0, 12.0])
    assert float(row["step_time_ratio"]) == expected.value == 1.5
    assert float(row["step_time_ratio_low"]) == expected.low
    assert float(row["step_time_ratio_high"]) == expected.high
    assert (row["step_time_ratio_bounds"], row["launches"]) == ("range", "1")
    assert (float(row["step_time_ms_a"]), float(row["step_time_ms_b"])) == (11.0, 16.5)
    assert float(row["calibration_ratio"]) == 2.0
    assert float(row["peak_memory_predicted_mib_ratio"]) == pytest.approx(1.1)
    assert float(row["flops_per_step_ratio"]) == 1
    assert row["metric_difference"] == ""


def test_cells_of_one_side_are_named(two, tmp_path):
    rows = rows_of(run_bench(tmp_path, "compare", *map(str, two), "--format", "csv").output)
    assert {name: row["in"] for name, row in rows.items()} == {"one": "both", "left": "A", "right": "B"}
    text = run_bench(tmp_path, "compare", *map(str, two)).output
    assert "Only in A: 1 cell(s)\n  made_up on Some Processor, 1 threads: lora, batch 2" in text
    assert "Only in B: 1 cell(s)\n  made_up on Some Processor, 1 threads: galore, batch 2" in text
    assert "1.500 [" in text
    assert "2.000" in text
    assert "different runs" in text
    assert list(tmp_path.iterdir()) == [tmp_path / "in"]


def test_accuracies_are_compared_by_example(tmp_path):
    right = [True] * 60 + [False] * 40
    better = [True] * 70 + [False] * 30
    a = folder_of(tmp_path / "a", trained("x", right))
    b = folder_of(tmp_path / "b", trained("x", better))
    pair = ComparedPair(*(read_source(str(path)).records[0] for path in (a, b)))
    found = pair.difference
    assert found.value == pytest.approx(10.0)
    assert 0 < found.low < 10 < found.high < 20
    text = run_bench(tmp_path, "compare", str(a), str(b)).output
    assert "validation accuracy" in text
    assert "+10.0 [+" in text
    row = rows_of(run_bench(tmp_path, "compare", str(a), str(b), "--format", "csv").output)["x"]
    assert (row["metric"], float(row["metric_a"]), float(row["metric_b"])) == ("accuracy", 60.0, 70.0)
    assert (float(row["metric_difference"]), float(row["metric_difference_low"])) == (found.value, found.low)
    assert ComparedPair(pair.a, trained("x", [True] * 50)).difference is None  # another validation set
    assert ComparedPair(pair.a, trained("x", [0.5] * 100, LOSS)).difference is None  # another metric
    alone = ComparedPair(trained("x", 60.0), trained("x", 70.0)).difference
    assert (alone.value, alone.low, alone.high) == (10.0, None, None)  # the metric without examples
    same = ComparedPair(pair.a, pair.a).difference
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("examples", [40, 2000])
def test_real_numbers_are_compared_by_example_too(examples):
    """The interval of the mean of paired differences, against its textbook form."""
    source = np.random.default_rng(0)
    before = source.normal(2.0, 1.0, examples)
    after = before + source.normal(-0.5, 0.3, examples)
    pair = ComparedPair(trained("x", before.tolist(), LOSS), trained("x", after.tolist(), LOSS))
    found = pair.difference
    spread = 1.96 * (after - before).std() / examples**0.5
    assert found.value == pytest.approx((after - before).mean(), abs=1e-4)
    assert found.low == pytest.approx(found.value - spread, abs=0.2 * spread)
    assert found.high == pytest.approx(found.value + spread, abs=0.2 * spread)
    backward = ComparedPair(pair.b, pair.a).difference
    assert backward.value == -found.value


def test_devices_are_kept_apart(tmp_path):
    here, there = timed("x", [1.0, 1.0]), timed("x", [3.0, 3.0], device="Another")
    a, b = folder_of(tmp_path / "a", here), folder_of(tmp_path / "b", there)
    ended = run_bench(tmp_path, "compare", str(a), str(b))
    assert_refused(ended, "Some Processor, 1 threads", "Another")
    write([here], b)
    text = run_bench(tmp_path, "compare", str(a), str(b)).output
    assert "Only in B: 1 cell(s)\n  made_up on Another" in text
    assert "3.000" not in text


def newer(folder):
    path = next(folder.rglob("*.json"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": SCHEMA_VERSION + 1}))


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (newer, "schema_version"),
        (lambda folder: next(folder.rglob("*.json")).write_text("{"), ".json"),
        (lambda folder: shutil.rmtree(folder / "made_up"), "no record"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(two, tmp_path, spoil, named):
    spoil(two[1])
    assert_refused(run_bench(tmp_path, "compare", *map(str, two)), two[1], named)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_commits_are_read_without_touching_the_tree(tmp_path):
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", "nothing")
    git(tmp_path, "tag", "empty")
    reference = tmp_path / "results" / "reference"
    reference.mkdir(parents=True)
    for tag, means in (("first", [10.0, 10.0]), ("second", [20.0, 20.0])):
        write([timed("x", means)], reference)
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "--quiet", "--message", tag)
        git(tmp_path, "tag", tag)
    inside = tmp_path / "results"
    ended = run_bench(inside, "compare", "first", "second", "--format", "csv")  # from wherever in the tree
    assert float(rows_of(ended.output)["x"]["step_time_ratio"]) == 2.0
    ended = run_bench(tmp_path, "compare", "first", "results", "--format", "csv")
    assert float(rows_of(ended.output)["x"]["step_time_ratio"]) == 2.0
    assert_refused(run_bench(tmp_path, "compare", "empty", "first"), "results/reference")
    assert_refused(run_bench(tmp_path, "compare", "--", "--all", "first"), "--all")
    assert "A: commit " in run_bench(tmp_path, "compare", "first", "second").output
