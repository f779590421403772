"""Which record of a folder answers a cell: every rule of reuse, without a process."""

import fcntl
import json
import subprocess
import sys

import pytest
from small_cells import a_cell, a_training_cell, one_line

import bench.runner.results
from bench.core.record import RecordError
from bench.errors import ConfigError
from bench.measures import named
from bench.protocol import Data, Outcome
from bench.runner.resolve import Job
from bench.runner.results import Results

HASH = "d"
BLOCK = {"launch": 0, "block": 0, "ms": [1.0], "calibration_ms": 1.0, "disturbed": False}
LACKS_MEMORY = {"status": "oom", "peak_memory_predicted_mib": 100.0, "samples": {"lacks": "memory"}}
LACKS_COMPILER = {"status": "unsupported", "samples": {"lacks": "compiler"}}


def a_layer(**changes):
    return a_cell(workload="linear", dataset="normal", workload_settings={}, **changes)


def a_job(*cells):
    measure = named(cells[0].measure)
    return Job(cells[0].experiment, measure, cells, Data("normal"), HASH, parallel=1, resume=True)


def recorded(folder, cell, data="normal", columns=None, **changes):
    """Record an outcome, then give columns of its file other values; return the file."""
    results = Results(folder, "exact")
    results.record([Outcome(cell, "ok", columns=columns or {})], HASH, Data(data))
    [path] = folder.rglob(f"{cell.cell_id(HASH)}.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return path


@pytest.mark.parametrize(
    ("changes", "answers"),
    [
        ({}, {"exact", "config"}),
        *(({column: "older"}, {"config"}) for column in ("code_id", "torch_version", "library_versions")),
        *(({"status": status}, {"exact", "config"}) for status in ("oom", "timeout", "diverged", "unsupported")),
        ({"status": "error"}, set()),
    ],
)
def test_a_record_answers_its_cell_by_the_rule_of_reuse(tmp_path, changes, answers):
    cell = a_layer()
    recorded(tmp_path, cell, **changes)
    for reuse in ("exact", "config", "never"):
        assert (Results(tmp_path, reuse).answer(cell, HASH) is not None) == (reuse in answers)
    assert Results(tmp_path, "config").answer(a_layer(batch_size=4), HASH) is None


@pytest.mark.parametrize(
    ("changes", "name", "value", "is_done"),
    [
        (LACKS_MEMORY, "free_memory_mib", 99.0, True),
        (LACKS_MEMORY, "free_memory_mib", 100.0, False),
        (LACKS_COMPILER, "compile_unsupported", "no compiler", True),
        (LACKS_COMPILER, "compile_unsupported", None, False),
    ],
)
def test_what_a_machine_lacked_is_tried_again_once_it_is_there(tmp_path, monkeypatch, changes, name, value, is_done):
    cell = a_layer()
    recorded(tmp_path, cell, **changes)
    monkeypatch.setattr(bench.runner.results, name, lambda _: value)
    assert (Results(tmp_path, "exact").answer(cell, HASH) is not None) is is_done


def test_a_folder_that_was_read_before_has_what_is_recorded_since(tmp_path):
    cell, results = a_layer(), Results(tmp_path, "exact")
    assert results.answer(cell, HASH) is None
    [record] = results.record([Outcome(cell)], HASH, Data("normal"))
    assert results.answer(cell, HASH) == record == Results(tmp_path, "exact").answer(cell, HASH)


def test_a_cell_that_another_process_has_recorded_before_it_is_claimed_is_done(tmp_path):
    cell, results = a_layer(), Results(tmp_path, "exact")
    assert results.waiting(a_job(cell)) == [cell]
    recorded(tmp_path, cell)
    results.claim(a_job(cell))
    assert results.waiting(a_job(cell)) == []


def test_a_training_that_ran_out_of_time_goes_on(tmp_path):
    cell = a_training_cell()
    recorded(tmp_path, cell, "synthetic", status="timeout")
    assert Results(tmp_path, "config").answer(cell, HASH) is None


def test_energy_is_the_median_over_launches(tmp_path):
    energy = [
        {"launch": number, "energy_j": j, "idle_w": 70.0, "window_s": 2.0} for number, j in enumerate((3.0, 1.0, 2.0))
    ]
    outcome = Outcome(a_layer(), columns={"samples": {"blocks": [BLOCK], "energy": energy}})
    [record] = Results(tmp_path, "exact").record([outcome], HASH, Data("normal"))
    assert (record.energy_j, record.idle_w, record.samples["energy"]) == (2.0, 70.0, energy)
    [record] = Results(tmp_path, "exact").record([Outcome(a_layer(), columns={"samples": {}})], HASH, Data("normal"))
    assert (record.energy_j, record.idle_w) == (None, None)


def test_times_of_rare_events_are_taken_from_the_same_arm_and_code_alone(tmp_path):
    cell, larger = a_layer(method="galore"), a_layer(method="galore", batch_size=64)
    samples = {"blocks": [BLOCK], "rare": {"svd": [5.0, 7.0, 6.0]}}
    periods = {"rare_periods": {"svd": 200}}
    recorded(tmp_path, cell, columns={"samples": samples, **periods})
    results = Results(tmp_path, "exact")
    [record] = results.record([Outcome(larger, columns={"samples": {}, **periods})], HASH, Data("normal"))
    assert (record.rare_time_ms, record.rare_period_steps, record.samples["rare"]) == (6.0, 200, samples["rare"])
    assert results.rare_times(a_layer(method="galore", settings={"rank": 4})) is None
    anew = Results(tmp_path, "never")
    assert anew.rare_times(cell) is None
    anew.record([Outcome(cell, columns={"samples": samples, **periods})], HASH, Data("normal"))
    assert anew.rare_times(larger) is not None
    for file in tmp_path.rglob("*.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"code_id": "older"}))
    assert Results(tmp_path, "exact").rare_times(cell) is None


@pytest.mark.parametrize("changes", [{"schema_version": 10**6}, {"batch_size": "two"}])
def test_an_unreadable_record_beside_a_cell_is_an_error(tmp_path, changes):
    path = recorded(tmp_path, a_layer(), **changes)
    with one_line(RecordError, path):
        Results(tmp_path, "never").check(a_job(a_layer(batch_size=4)))


#: A lock that others may share, so that a claim which could be shared would show.
LOCK = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_SH | (fcntl.LOCK_NB if len(sys.argv) > 2 else 0))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_cell_is_claimed_by_one_process(tmp_path):
    """A claim keeps other processes away, another's keeps this one away, and a killed one leaves none."""
    cells = [a_cell(batch_size=2), a_cell(batch_size=4)]
    results = Results(tmp_path, reuse="exact")
    results.claim(a_job(*cells))
    [file] = [path for path in (tmp_path / ".claims").rglob("*") if path.is_file()]
    tried = subprocess.run(
        [sys.executable, "-c", LOCK, str(file), "now"], check=False, capture_output=True, stdin=subprocess.DEVNULL
    )
    assert b"BlockingIOError" in tried.stderr

    elsewhere = tmp_path / "other"
    Results(elsewhere, reuse="exact").claim(a_job(cells[0]))
    [file] = [path for path in (elsewhere / ".claims").rglob("*") if path.is_file()]
    with file.open("r+b") as own:  # closing it gives up what this process has claimed in it
        fcntl.lockf(own, fcntl.LOCK_UN)
    holder = subprocess.Popen(
        [sys.executable, "-c", LOCK, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "held\n"
    with one_line(ConfigError, "results", elsewhere):
        Results(elsewhere, reuse="exact").claim(a_job(cells[1]))
    holder.kill()
    holder.communicate()
    Results(elsewhere, reuse="exact").claim(a_job(*cells))


def test_a_step_s_time_is_the_median_of_undisturbed_blocks():
    block = {"calibration_ms": 2.0, "disturbed": False}
    blocks = [
        {**block, "launch": 0, "ms": [1.0, 2.0, 9.0]},
        {**block, "launch": 1, "ms": [3.0, 4.0, 5.0], "calibration_ms": 3.0},
        {**block, "launch": 2, "ms": [0.1, 100.0], "disturbed": True},
    ]
    columns = bench.runner.results._time_columns(blocks)
    assert columns == {
        "step_time_median_ms": 3.5,
        "step_time_p20_ms": 2.0,
        "step_time_p80_ms": 5.0,
        "steps_measured": 6,
        "launches": 3,
        "calibration_drift": 0.5,
    }
    disturbed = [{**one, "disturbed": True} for one in blocks]
    assert bench.runner.results._time_columns(disturbed)["steps_measured"] == 8
    assert bench.runner.results._time_columns([]) == {}
