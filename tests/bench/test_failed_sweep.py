"""Sweeps that fail on their way: one sentence, exit status 1, and what was recorded is kept."""

import tempfile

import pytest
from small_cells import assert_refused, run_bench, small
from test_files import full_disk

import bench.runner.sweep
from bench.core.record import read_all
from bench.protocol import Outcome

PREDICTED = ("experiment=fig1", "measure=predict", "methods=[dense,comera]", "batch_size=2,4")


@pytest.fixture
def outcomes(monkeypatch):
    """What becomes of the cells, by method and batch size; "ok" where nothing else is said."""
    statuses: dict[tuple[str, int], str] = {}

    def outcomes_of(_, cells, session):  # noqa: ARG001
        for cell in cells:
            status = statuses.get((cell.method, cell.batch_size), "ok")
            yield [Outcome(cell, status, "it broke." if status != "ok" else "")]

    monkeypatch.setattr(bench.runner.sweep, "outcomes_of", outcomes_of)
    return statuses


def sweep(folder, pairs):
    first, *others = PREDICTED
    return run_bench(folder, first, *small(pairs, folder / "results"), *others)


def test_a_cell_that_ends_in_an_error_makes_the_sweep_fail(tmp_path, pairs, outcomes):
    outcomes["comera", 2] = "error"
    outcomes["comera", 4] = "timeout"  # an answer, though not a good one
    ended = sweep(tmp_path, pairs)
    *_, last = ended.error.splitlines()
    assert (ended.status, ended.output) == (1, "")
    assert last.startswith("error: 1 of 4 cell(s) ended in an error, the first: comera, batch 2: error: it broke; all")
    assert sorted(record.status for record in read_all(tmp_path / "results")) == ["error", "ok", "ok", "timeout"]
    outcomes.clear()
    again = sweep(tmp_path, pairs)
    assert (again.status, again.error.count("done before")) == (0, 3)


def test_a_wrong_value_in_a_list_is_refused_before_anything_runs(tmp_path, pairs, outcomes):  # noqa: ARG001
    first, *others = PREDICTED
    ended = run_bench(tmp_path, first, *small(pairs, tmp_path / "results"), *others[:-1], "batch_size=2,0")
    assert_refused(ended, "batch_size is 0")
    assert not (tmp_path / "results").exists()


SEARCHED = ("search", "experiment=formats_teacher", "methods=[dense,comera]", "ratio=1.3", "+formats=adamw", "--seeds=")


def test_a_search_whose_trainings_end_in_an_error_fails_after_its_summary(tmp_path, outcomes):
    outcomes["comera", 1024] = "error"
    ended = run_bench(tmp_path, *SEARCHED)
    *_, last = ended.error.splitlines()
    assert ended.status == 1
    assert last.startswith("error: 4 of 8 cell(s) ended in an error, the first: comera")
    assert "comera, adamw, ratio 1.3: no training ended well" in ended.output


def test_a_full_disk_ends_a_search_with_a_sentence(tmp_path, outcomes, monkeypatch):  # noqa: ARG001
    with monkeypatch.context() as patch:
        full_disk(patch, 3)
        ended = run_bench(tmp_path, *SEARCHED)
    *_, last = ended.error.splitlines()
    assert ended.status == 1
    assert "Traceback" not in ended.error
    assert "cannot be used (No space left on device); what is recorded is kept" in last


def test_a_full_disk_ends_the_sweep_with_a_sentence(tmp_path, pairs, outcomes, monkeypatch):  # noqa: ARG001
    with monkeypatch.context() as patch:
        full_disk(patch, 3)  # a record and its table are written before
        ended = sweep(tmp_path, pairs)
    *_, last = ended.error.splitlines()
    assert (ended.status, ended.output) == (1, "")
    assert "Traceback" not in ended.error
    assert last.startswith(f"error: {tmp_path / 'results' / 'fig1'}/")
    assert "cannot be used (No space left on device); what is recorded is kept" in last
    assert len(read_all(tmp_path / "results")) == 1
    assert [path for path in tmp_path.rglob("*") if "partial" in path.name] == []
    again = sweep(tmp_path, pairs)
    assert (again.status, again.error.count("done before")) == (0, 1)


def test_a_start_removes_what_a_kill_has_left(tmp_path, pairs, outcomes, monkeypatch):  # noqa: ARG001
    (tmp_path / ".bench-12345678.partial" / "pymp-1").mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = [tmp_path / "results" / place for place in (".a.partial", "fig1/some-device/.b.partial/content")]
    for path in left:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert sweep(tmp_path, pairs).status == 0
    assert [path for path in tmp_path.rglob("*") if "partial" in path.name] == []
