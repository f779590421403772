"""A campaign: what runs, in which order, within which time, and what it leaves, whatever becomes of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from small_campaigns import FakeClock, FakeMeasuring, small_stage, timed
from small_cells import ROOT, a_record, environment, run_bench

import bench.campaign.clock
import bench.campaign.run
import bench.campaign.stages
import bench.measures.check
import bench.measures.products
import bench.measures.profile
from bench.campaign.archive import RECORDS
from bench.campaign.clock import Clock, Run, seconds_of
from bench.campaign.run import Campaign, described, memory_rows
from bench.campaign.stages import STAGES, configuration, jobs_of, units_of
from bench.commands.merge import merge
from bench.core.provenance import device_name
from bench.core.record import read_all
from bench.errors import ConfigError, experiments
from bench.measures import named

DEVICE = "made-up device"


@pytest.fixture(autouse=True)
def no_server(monkeypatch):
    """Nothing is measured here, and a server would keep this module's environment for the cells of later ones."""
    monkeypatch.setattr(bench.campaign.run, "start_server", lambda: None)


@pytest.fixture
def campaign(tmp_path, monkeypatch):
    """A function that runs stages with a stand-in for measuring; it returns the campaign."""

    def run(stages, measuring, budget_s=1000.0, runs=(), folder="output"):
        monkeypatch.setattr(bench.campaign.run, "run_job", measuring)
        output = tmp_path / folder
        (output / "records").mkdir(parents=True, exist_ok=True)
        clock = Clock(budget_s, DEVICE, runs, now=measuring.clock)
        made = Campaign(stages, "cpu", output / "records", output, clock)
        made.run()
        return made

    return run


def report_in(folder):
    return json.loads((folder / "campaign.json").read_text())


def test_stages_run_in_order_and_all_cells_are_recorded(campaign, pairs):
    measuring = FakeMeasuring()
    stages = [timed("first", pairs), timed("second", pairs, "precision=bf16"), timed("third", pairs, "batch_size=4")]
    done = campaign(stages, measuring)
    assert measuring.started == [("fig1", 2, "fp32"), ("fig1", 2, "bf16"), ("fig1", 4, "fp32")]
    assert [(one.ran, one.done_before, one.left) for one in done.outcomes] == [(2, 0, 0)] * 3
    assert len(read_all(done.root)) == 6


def test_a_unit_starts_only_if_it_fits(campaign, pairs):
    """Two arms at 25 s each by default; once one pair has taken 100 s, another is expected to take 120 s."""
    stages = [timed("first", pairs), timed("second", pairs, "batch_size=4"), timed("third", pairs, "batch_size=8")]
    measuring = FakeMeasuring(takes=100.0)
    done = campaign(stages, measuring, budget_s=2 * named("run").seconds + 10.0)
    assert len(measuring.started) == 1
    assert [one.left for one in done.outcomes] == [0, 2, 2]
    [(label, seconds)] = done.outcomes[1].skipped.items()
    assert label == "batch 4, cpu, dense; low_rank@rank"
    assert seconds == 120
    measuring = FakeMeasuring(takes=100.0)
    campaign(stages, measuring, budget_s=10.0, folder="too little")
    assert measuring.started == []


def test_what_does_not_fit_makes_way_for_what_does(campaign, pairs):
    stages = [timed("long", pairs), small_stage("short", pairs, "experiment=fig1_memory", "methods=[dense]")]
    runs = [Run("long", "", "run", "encoder", DEVICE, 1, 500.0), Run("short", "", "predict", "encoder", DEVICE, 1, 0.1)]
    measuring = FakeMeasuring()
    done = campaign(stages, measuring, budget_s=100.0, runs=runs)
    assert {experiment for experiment, _, _ in measuring.started} == {"fig1_memory"}
    assert [one.left for one in done.outcomes] == [2, 0]


def test_an_estimate_is_of_what_is_most_alike(pairs):
    with configuration():
        [unit] = units_of(timed("fig1", pairs), jobs_of(timed("fig1", pairs), "cpu"))
    runs = [
        Run("other", "", "run", "encoder", DEVICE, 2, 20.0),
        Run("fig1", "another", "run", "encoder", DEVICE, 2, 40.0),
        Run("fig1", unit.label, "run", "encoder", DEVICE, 2, 60.0),
        Run("fig1", unit.label, "run", "encoder", "another device", 2, 1000.0),
    ]
    for count, seconds in ((0, 2 * named("run").seconds), (1, 24.0), (2, 48.0), (3, 72.0), (4, 72.0)):
        assert Clock(100.0, DEVICE, runs[:count], now=FakeClock()).estimate(unit, 2) == pytest.approx(seconds)


def test_what_runs_side_by_side_is_estimated_so(monkeypatch, pairs):
    monkeypatch.setattr("bench.campaign.clock.usable_processors", lambda: 4)
    stage = small_stage("check", pairs, "experiment=correctness", "+checked=steps")
    with configuration():
        [unit] = units_of(stage, jobs_of(stage, "cpu"))
    runs = [Run("check", "the layer alone", "check", "encoder", DEVICE, 1, 10.0)]
    clock = Clock(100.0, DEVICE, runs, now=FakeClock())
    assert [clock.estimate(unit, cells) for cells in (1, 4, 8)] == pytest.approx([12.0, 12.0, 24.0])


def test_a_call_that_is_out_of_time_says_what_is_left(pairs, tmp_path, monkeypatch):
    measuring = FakeMeasuring()
    monkeypatch.setattr(bench.campaign.run, "run_job", measuring)
    stages = (timed("first", pairs), timed("second", pairs, "batch_size=4"))
    monkeypatch.setattr(bench.campaign.stages, "STAGES", stages)
    ended = run_bench(tmp_path, "campaign", "output=out", "device=cpu", "budget=20s", "only=second")
    assert (ended.status, measuring.started) == (0, [])
    assert ended.output.splitlines() == ["second: 0 ran, 0 done before, 2 left", "call again: 2 cells left"]


def test_a_call_goes_on_from_the_archive_of_another(campaign, pairs, tmp_path, monkeypatch):
    stages = [timed("first", pairs), timed("second", pairs, "batch_size=4")]
    monkeypatch.setattr(bench.campaign.stages, "STAGES", tuple(stages))
    campaign(stages, FakeMeasuring(takes=100.0), budget_s=60.0)
    measuring = FakeMeasuring()
    monkeypatch.setattr(bench.campaign.run, "run_job", measuring)
    archive = tmp_path / "output" / RECORDS
    ended = run_bench(tmp_path, "campaign", "output=next", "device=cpu", "budget=1h", f"records={archive}")
    assert ended.status == 0, ended.error
    assert measuring.started == [("fig1", 4, "fp32")]
    assert ended.output.splitlines()[:2] == [
        "first: 0 ran, 2 done before, 0 left",
        "second: 2 ran, 0 done before, 0 left",
    ]
    assert ended.output.splitlines()[-1] == "everything is done"
    measuring.started.clear()
    again = run_bench(tmp_path, "campaign", "output=next", "device=cpu", "results=elsewhere")
    assert (again.status, measuring.started) == (0, [])
    assert len(read_all(tmp_path / "elsewhere")) == 4


def test_records_of_older_code_count(campaign, pairs):
    stages = [timed("first", pairs)]
    done = campaign(stages, FakeMeasuring())
    for path in done.root.glob("*/*/*.json"):
        path.write_text(path.read_text().replace('"code_id": "', '"code_id": "0ld'))
    measuring = FakeMeasuring()
    assert campaign(stages, measuring).outcomes[0].done_before == 2
    assert measuring.started == []


def test_a_failing_stage_does_not_stop_the_others(campaign, pairs, tmp_path):
    stages = [
        small_stage("broken", pairs, "experiment=fig1_memory", "methods=[dense]", "batch_size=2"),
        timed("misspelt", pairs, "batchsize=4"),
        timed("wrong", pairs, "precision=fp7"),
        timed("last", pairs),
    ]
    done = campaign(stages, FakeMeasuring(fails=("fig1_memory",)))
    assert [len(one.failures) for one in done.outcomes] == [1, 1, 1, 0]
    assert "RuntimeError: made up: it broke" in done.outcomes[0].failures[0]
    assert "batchsize is no setting" in done.outcomes[1].failures[0]
    allowed = "fp32, tf32, bf16, bf16_weights, fp8, fp8_row, fp8_delayed, fp8_split, fp8_filtered, fp8_row_filtered"
    assert done.outcomes[2].failures == [f"precision is 'fp7'; allowed: {allowed}."]
    assert (done.outcomes[0].left, done.outcomes[3].ran) == (1, 2)
    stages = report_in(tmp_path / "output")["stages"]
    assert [stage["failures"] for stage in stages] == [one.failures for one in done.outcomes]


def test_the_archive_is_there_after_every_stage_and_is_merged(campaign, pairs, tmp_path):
    counts = []

    class Watching(FakeMeasuring):
        def __call__(self, *arguments, **named):
            archive = tmp_path / "output" / RECORDS
            counts.append(len(merge([archive], tmp_path / f"merged-{len(counts)}").taken) if archive.exists() else 0)
            super().__call__(*arguments, **named)

    stages = [timed("first", pairs), timed("second", pairs, "batch_size=4"), timed("third", pairs, "batch_size=8")]
    done = campaign(stages, Watching())
    assert counts == [0, 2, 4]
    report = report_in(tmp_path / "output")
    assert (report["records"], report["stopped"], report["device"]) == (6, "", device_name(on_cpu=True))
    assert {"git_commit", "torch_version", "library_versions", "code_id"} <= report.keys()
    first = (tmp_path / "output" / RECORDS).read_bytes()
    done.write()
    assert (tmp_path / "output" / RECORDS).read_bytes() == first


def test_signals_are_as_before_after_a_campaign(campaign, pairs):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    campaign([timed("first", pairs)], FakeMeasuring())
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_the_end_of_the_budget_stops_what_takes_longer_than_expected(campaign, pairs):
    class Endless(FakeMeasuring):
        def __call__(self, *arguments, **named):
            super().__call__(*arguments, **named)
            if len(self.started) == 2:
                time.sleep(60)

    stages = [timed("first", pairs), timed("second", pairs, "batch_size=4"), timed("third", pairs, "batch_size=8")]
    runs = [Run("first", "", "run", "encoder", DEVICE, 1, 0.01)]
    begun = time.monotonic()
    done = campaign(stages, Endless(takes=0.0), budget_s=4.0, runs=runs)
    assert time.monotonic() - begun < 30
    assert done.stopped == "the end of the budget"
    assert [one.left for one in done.outcomes] == [0, 0, 0]
    assert [one.units is None for one in done.outcomes] == [False, False, True]


SLEEPING = """
import sys, time
import bench.campaign.run, bench.campaign.stages
from small_campaigns import FakeMeasuring, timed

class Slow(FakeMeasuring):
    def __call__(self, *arguments, **named):
        super().__call__(*arguments, **named)
        if len(self.started) == 2:
            print("two units have begun", flush=True)
            time.sleep(60)

if __name__ == "__main__":
    pairs = sys.argv.pop()
    bench.campaign.run.run_job = Slow()
    words = ((), ("batch_size=4",), ("batch_size=8",))
    bench.campaign.stages.STAGES = tuple(timed(f"stage{i}", pairs, *more) for i, more in enumerate(words))
    from bench.__main__ import main
    main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_the_archive(tmp_path, pairs, number):
    (tmp_path / "sleeping.py").write_text(SLEEPING)
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "bench")])
    process = subprocess.Popen(
        [sys.executable, "sleeping.py", "campaign", "output=out", "device=cpu", str(pairs)],
        cwd=tmp_path,
        env=environment(PYTHONPATH=path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "two units have begun\n", process.communicate()
    process.send_signal(number)
    output, error = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert f"stopped by {number.name}" in error
    assert output.splitlines()[-1] == "call again: not looked at: stage2"
    assert len(merge([tmp_path / "out" / RECORDS], tmp_path / "merged").taken) == 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("output=out device=cudda", ["device is 'cudda'", "auto, cpu, cuda"]),
        ("output=out device=cuda", ["device is 'cuda'", "no CUDA device"]),
        ("output=out budget=9minutes", ["budget is '9minutes'", "such as 9m"]),
        ("output=out budget=0m", ["budget is '0m'"]),
        ("output=out budget=", ["budget is ''"]),
        ("output=out only=fig99", ["only has 'fig99'", "correctness"]),
        ("output=out records=/no/such/folder", ["records is '/no/such/folder'", "not there"]),
        ("output=/dev/null/out", ["output is '/dev/null/out'", "name another"]),
        ("output=/proc/out", ["output is '/proc/out'", "name another"]),
        ("output=out results=/dev/null/out", ["results is '/dev/null/out'", "name another"]),
        ("device=cpu", ["output has no value"]),
        ("output=out batch_size=4", ["'batch_size=4' is no setting of a campaign", "budget"]),
        ("output=out nonsense", ["'nonsense' is no setting of a campaign"]),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path, monkeypatch, arguments, words):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(bench.campaign.run, "run_job", lambda *_, **__: pytest.fail("something has started"))
    ended = run_bench(tmp_path, "campaign", *arguments.split())
    assert (ended.status, ended.output) == (2, "")
    assert ended.error.startswith("error: ")
    assert ended.error.count("\n") == 1
    for word in words:
        assert word in ended.error


def test_a_damaged_archive_is_one_sentence(tmp_path):
    (tmp_path / "records.tar.gz").write_bytes(b"no archive")
    ended = run_bench(tmp_path, "campaign", "output=out", "device=cpu", "records=records.tar.gz")
    assert ended.status == 2
    assert "records.tar.gz: neither a readable folder nor a whole tar archive" in ended.error
    assert ended.error.count("\n") == 1


def test_a_damaged_record_is_one_sentence(tmp_path):
    folder = tmp_path / "out" / "records" / "fig1" / "made-up-device"
    folder.mkdir(parents=True)
    (folder / "0123.json").write_text("{")
    ended = run_bench(tmp_path, "campaign", "output=out", "device=cpu")
    assert ended.status == 2
    assert "0123.json: not a readable JSON record" in ended.error
    assert ended.error.count("\n") == 1


@pytest.mark.parametrize(("text", "seconds"), [("9m", 540.0), ("90s", 90.0), ("1.5h", 5400.0)])
def test_budgets(text, seconds):
    assert seconds_of(text) == seconds
    for wrong in (f"-{text}", text[:-1], f"{text} ", f"{text}in"):
        with pytest.raises(ConfigError, match=r"^budget is "):
            seconds_of(wrong)


def test_the_list_says_what_is_missing(campaign, pairs, tmp_path, monkeypatch):
    stages = (timed("first", pairs), timed("second", pairs, "batch_size=4"))
    monkeypatch.setattr(bench.campaign.stages, "STAGES", stages)
    campaign(stages[:1], FakeMeasuring())
    ended = run_bench(tmp_path, "campaign", "--list", "device=cpu", "results=output/records")
    assert ended.status == 0
    first, second, *units, last = ended.output.splitlines()
    assert first == "first: 0 of 2 cells missing: made up: first"
    assert second == "second: 2 of 2 cells missing: made up: second"
    assert units == ["  2  batch 4, cpu, dense; low_rank@rank"]
    assert last == "2 cells missing in all"


def test_every_stage_is_an_experiment_and_is_explained():
    assert len({stage.name for stage in STAGES}) == len(STAGES)
    for stage in STAGES:
        first = stage.arguments[0].removeprefix("experiment=")
        assert first in experiments()
        assert stage.why
    order = [stage.name for stage in STAGES]
    assert order[:4] == ["correctness", "prediction", "feed_forward", "fig1"]
    assert (
        order.index("fig1")
        < order.index("fig5")
        < order.index("ratios")
        < order.index("sst2")
        < order.index("sst2-fp32")
    )


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_every_stage_can_be_composed_for_cuda(stage, pairs):
    """Without the data that the accuracy stages name, which this machine need not have."""
    few = "settings.comera.lr_ranks=0.01", "training.late_steps=300"
    words = (f"data_folder={pairs}", "dataset=auto", *few) if "experiment=accuracy" in stage.arguments else ()
    with configuration():
        jobs = jobs_of(bench.campaign.stages.Stage("", (*stage.arguments, *words), ""), "cuda", elsewhere=True)
    units = units_of(stage, jobs)
    assert {cell.device for unit in units for cell in unit.cells} == {"cuda"}
    assert len({unit.label for unit in units}) == len(units)
    batches = {cell.batch_size for unit in units for cell in unit.cells}
    if stage.arguments[0] in ("experiment=fig1", "experiment=fig1_all"):
        assert batches == {1, 32, 64, 128}
    if stage.name in ("sst2", "nli"):
        assert {cell.seed for unit in units for cell in unit.cells} == {0, 1, 2}
        assert {cell.precision for unit in units for cell in unit.cells} == {"bf16"}


def test_memory_that_is_off_is_pointed_out():
    def record(batch, predicted, allocated, **changes):
        sizes = {"peak_memory_predicted_mib": predicted, "peak_memory_allocated_mib": allocated}
        return a_record(batch_size=batch, device=DEVICE, **sizes, **changes)

    records = [
        record(1, 100.0, 104.0),
        record(32, 100.0, 110.0),
        record(64, 100.0, None),
        record(128, 100.0, 300.0, status="error"),
    ]
    rows = memory_rows([*records, a_record(device="another", peak_memory_predicted_mib=1.0)], DEVICE)
    assert [(row["batch_size"], row["within"]) for row in rows] == [(1, True), (32, False)]
    assert described(rows) == [
        "predicted memory: 1 of 2 within 5% of the allocated peak",
        "  made_up, dense, batch 32, fp32: 100.0 MiB predicted, 110.0 MiB allocated (-9.1%)",
    ]
    assert described([]) == []


def test_cells_that_end_in_an_error_are_a_failure_of_their_stage_and_the_status(tmp_path, monkeypatch, pairs):
    class Breaking(FakeMeasuring):
        def __call__(self, job, results, parallel, progress, resume=True, stop_after_s=None):
            super().__call__(job, results, parallel, progress, resume, stop_after_s)
            if job.cells[0].batch_size == 4:
                progress.finish(job.cells[0], "error: made up: it broke", is_error=True)

    monkeypatch.setattr(bench.campaign.run, "run_job", Breaking())
    for words, status in (((), 0), (("batch_size=4",), 1)):
        monkeypatch.setattr(bench.campaign.stages, "STAGES", (timed("small", pairs, *words), timed("last", pairs)))
        ended = run_bench(tmp_path, "campaign", f"output=out{status}", "device=cpu")
        assert ended.status == status, ended.error
        lines = ended.output.splitlines()
        assert ("made up: it broke" in lines[0]) == bool(status)
        assert lines[1].startswith("last: ")
        assert lines[-1] == ("everything else is done" if status else "everything is done")
