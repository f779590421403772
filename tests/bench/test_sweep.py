"""Sweeps of small cells in real processes: what is recorded, what counts as done, what is refused."""

import functools
import json
import shutil
import statistics
import time
from pathlib import Path

import pytest
from small_cells import a_cell, a_training_cell, run_bench, small

import bench.measures.run
import bench.runner.results
import bench.runner.sweep
from bench.core.cell import Cell
from bench.core.provenance import provenance
from bench.core.record import read_all
from bench.measures import named
from bench.processes.process import Outcome
from bench.protocol import Data
from bench.runner.progress import SweepProgress
from bench.runner.resolve import resolve

pytestmark = pytest.mark.usefixtures("cell_processes")


def sweep(folder, pairs, *arguments):
    return run_bench(folder, "experiment=fig1", *small(pairs, folder / "results"), *arguments)


def records_in(folder):
    return {(record.arm, record.batch_size): record for record in read_all(folder / "results")}


def files_in(folder):
    return {path: path.stat().st_mtime_ns for path in (folder / "results").rglob("*.json")}


def edit(folder, changes, which=lambda content: True):  # noqa: ARG005
    """Change columns of the record files for which ``which`` holds."""
    for path in (folder / "results").rglob("*.json"):
        content = json.loads(path.read_text())
        if which(content):
            path.write_text(json.dumps(content | changes))


GRID = ("methods=[comera,lte,galore]", "batch_size=2,4")


@pytest.fixture(scope="module")
def first(tmp_path_factory, pairs, cell_processes):  # noqa: ARG001
    """A folder in which the grid has been swept, and how that ended."""
    folder = tmp_path_factory.mktemp("sweep")
    return folder, sweep(folder, pairs, *GRID)


@pytest.fixture
def swept(first, tmp_path):
    """A copy of that folder, to do as one likes with."""
    return Path(shutil.copytree(first[0], tmp_path / "copy"))


@pytest.fixture
def asked(monkeypatch):
    """The cells that would be measured from now on; nothing is."""
    cells = []

    def predicted(possible, data, parallel):  # noqa: ARG001 - as bench.measures.predict.predicted
        cells.extend((cell.arm, cell.batch_size) for cell in possible)
        return iter([Outcome(cell, "oom", "not measured in this test") for cell in possible])

    monkeypatch.setattr(bench.measures.run, "predicted", predicted)
    return cells


def test_every_cell_of_the_grid_is_recorded(first):
    folder, ended = first
    assert (ended.status, ended.output) == (0, "")
    records = records_in(folder)
    assert {cell: record.status for cell, record in records.items()} == {
        ("comera", 2): "ok",
        ("comera", 4): "ok",
        ("galore", 2): "ok",
        ("galore", 4): "ok",
        ("lte", 2): "unsupported",
        ("lte", 4): "unsupported",
    }
    predictions = {(one.status, one.predicted_for, one.saved_for_backward_mib is None) for one in records.values()}
    assert predictions == {("ok", "cpu", False), ("unsupported", "", True)}
    pairings = {(arm, batch): one.pairing for (arm, batch), one in records.items()}
    assert pairings["lte", 2] == pairings["lte", 4] == ""
    assert "" != pairings["comera", 2] == pairings["galore", 2] != pairings["comera", 4] == pairings["galore", 4] != ""
    for counter in range(1, 7):
        assert f" {counter}/6 cells  fig1 batch " in ended.error
    assert "Traceback" not in ended.error
    assert "16 heads, and batch size 4 is no multiple" in records["lte", 4].message


def test_a_record_says_what_was_measured_and_by_whom(first, pairs):
    for record in read_all(first[0] / "results"):
        cell = Cell.from_json(record.config_json)
        assert record.cell_id == cell.cell_id(record.data_hash)
        assert (record.arm, record.experiment, record.dataset) == (cell.arm, "fig1", pairs.name)
        here = provenance()
        assert (record.code_id, record.device, record.threads) == (here.code_id, here.device, 1)
        assert (record.git_commit, record.library_versions) == (here.git_commit, here.library_versions)


def test_rare_events_are_timed_once_per_device(first):
    """GaLore's SVD works on the gradients of the weights, which are as large at any batch size."""
    small_batch, large_batch = (records_in(first[0])["galore", batch] for batch in (2, 4))
    assert statistics.median(small_batch.samples["rare"]["svd"]) == small_batch.rare_time_ms
    assert large_batch.samples["rare"] == small_batch.samples["rare"]
    assert large_batch.rare_time_ms == small_batch.rare_time_ms > 0
    assert large_batch.rare_period_steps == 200


def test_what_is_done_is_not_measured_again(first, pairs, asked):
    folder, _ = first
    before = files_in(folder)
    again = sweep(folder, pairs, *GRID)
    assert again.status == 0
    assert again.error.count("done before") == 6
    assert files_in(folder) == before
    assert asked == []


@pytest.mark.slow
def test_never_means_never(swept, pairs):
    before, records = files_in(swept), records_in(swept)
    assert sweep(swept, pairs, "methods=[galore]", "batch_size=2,4", "reuse=never").status == 0
    changed = {path for path, written in files_in(swept).items() if written != before[path]}
    assert len(changed) == 2
    after = records_in(swept)
    assert after["galore", 2].samples["rare"] == after["galore", 4].samples["rare"]  # those too, once for the sweep
    assert after["galore", 2].rare_time_ms != records["galore", 2].rare_time_ms
    assert after["galore", 2].pairing == ""  # it was alone this time


def test_an_unreadable_record_beside_the_cells_stops_the_sweep_before_it_starts(swept, pairs, asked):
    edit(swept, {"batch_size": "two"}, lambda content: content["method"] == "lte" and content["batch_size"] == 4)
    before = files_in(swept)
    ended = sweep(swept, pairs, "methods=[dense]", "batch_size=16,2")
    assert (ended.status, ended.error.count("\n")) == (2, 1)
    assert "batch_size" in ended.error
    assert asked == []
    assert files_in(swept) == before


def test_a_ratio_out_of_reach_is_recorded_as_unsupported_with_the_largest_within_reach(tmp_path, pairs, asked):
    ended = sweep(tmp_path, pairs, "methods=[comera,low_rank,dense]", "ratio=1000")
    assert ended.status == 0
    assert asked == [("dense", 2)]
    records = {record.arm: record for record in read_all(tmp_path / "results")}
    assert {*records} == {"comera", "dense", "low_rank@size"}
    for arm in ("comera", "low_rank@size"):
        record = records[arm]
        assert (record.status, record.ratio) == ("unsupported", 1000.0)
        [(side, largest)] = record.samples["reach"].items()
        assert side == "largest"
        assert f"the largest within reach is {largest:.6g}," in record.message
        for ratio, within in ((0.99 * largest, True), (1.1 * largest, False)):
            cell = a_cell(method=record.method, variant=record.variant, settings={"ratio": ratio})
            assert (bench.runner.sweep.cell_unsupported(cell, Data("synthetic")) is None) == within


GRAPH, COMPILED = {"cuda_graph": True}, {"compile": True}


@pytest.mark.parametrize(
    ("cell", "named_toggle"),
    [
        (a_cell(**GRAPH, device="cuda", measure="predict"), "cuda_graph"),
        (a_cell(**COMPILED, measure="predict"), "compile"),
        (a_training_cell(**GRAPH, device="cuda"), "training.static"),
        (a_training_cell(**GRAPH, device="cuda", static=True), None),
        (a_training_cell(**COMPILED), None),
    ],
)
def test_a_measure_takes_a_toggle_or_names_it(cell, named_toggle):
    found = named(cell.measure).refusal(cell)
    assert (found is None) if named_toggle is None else named_toggle in found


def test_a_cell_that_fails_is_recorded_with_its_message(tmp_path, pairs, monkeypatch):
    """Alone in its job, so that nothing is left to be timed."""
    monkeypatch.setattr(bench.runner.sweep, "resolve", functools.partial(resolve, any_batch=True))
    ended = sweep(tmp_path, pairs, "methods=[dense]", "batch_size=1000")
    assert ended.status == 1
    [record] = read_all(tmp_path / "results")
    assert (record.status, record.step_time_median_ms) == ("error", None)
    assert record.message == "ValueError: batch_size is 1000; allowed: 1 to the 240 training rows"
    assert f"1/1 cells  fig1 batch 1000 on cpu  dense  error: {record.message}" in ended.error


def test_a_cell_that_several_jobs_share_counts_once(capsys):
    shared, other = a_cell(), a_cell(batch_size=64)
    progress = SweepProgress([shared, other, shared])
    assert progress._bar.tasks[0].total == sum(progress._weights.values())
    assert len(progress._weights) == 2
    for cell, outcome in ((shared, "ok: first"), (shared, "done before"), (other, "ok: last")):
        progress.finish(cell, outcome)
    assert progress._bar.finished
    progress.close()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("]")[1].split("  ")[0].strip() for line in lines] == ["1/2 cells", "2/2 cells"]
    assert "ok: first" in lines[0]
    assert "ok: last" in lines[1]


def test_without_a_terminal_long_work_says_what_it_is_at(capsys, monkeypatch):
    monkeypatch.setattr("bench.runner.progress.SILENCE_S", 0.05)
    cell = a_cell()
    progress = SweepProgress([cell, a_cell(batch_size=64)])
    progress.advance(cell, 0.5, "step 50 of 100, loss 0.25")
    time.sleep(0.4)
    progress.close()
    lines = capsys.readouterr().err.splitlines()
    assert 2 <= len(lines) <= 9
    share = 0.5 * progress._weights[cell.to_json()] / sum(progress._weights.values())
    assert all(line.endswith(f"{cell.arm}  step 50 of 100, loss 0.25") for line in lines)
    assert f"0/2 cells  sweep {share:.0%} done, about 1 min left" in lines[0]


def test_what_was_done_before_does_not_shorten_the_time_that_is_left(monkeypatch):
    known, cell = a_cell(batch_size=64), a_cell()
    progress = SweepProgress([known, cell])
    progress.done_before(known)
    assert "left" not in progress._share()
    progress.advance(cell, 0.1)
    monkeypatch.setattr(progress, "_start", time.monotonic() - 600.0)
    assert progress._share().endswith(", about 90 min left")
    progress.close()
