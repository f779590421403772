"""A campaign runs experiments in order, goes on over what fails, and stops when its time is up."""

import time
from types import SimpleNamespace

import pytest
from small_cells import run_bench, small

from bench.commands import campaign
from bench.commands.programs import status_of
from bench.core.record import read_all
from bench.errors import ConfigError

RUNS = ("experiment=fig7", "experiment=fig1 precision=bf16", "experiment=fig5")


@pytest.fixture
def started(monkeypatch):
    """What a campaign starts; each run ends with the next of the ``statuses``, 0 unless set."""
    commands, statuses = [], []

    def status_of(words, seconds):
        commands.append((words, seconds))
        return statuses.pop(0) if statuses else 0

    monkeypatch.setattr(campaign, "status_of", status_of)
    return commands, statuses


def test_runs_come_in_order_with_the_settings_that_all_share(started, capsys):
    campaign.run([*RUNS, "device=cuda"], None)
    assert started[0] == [
        (["-m", "bench", "experiment=fig7", "device=cuda"], None),
        (["-m", "bench", "experiment=fig1", "precision=bf16", "device=cuda"], None),
        (["-m", "bench", "experiment=fig5", "device=cuda"], None),
    ]
    assert capsys.readouterr().out == "3 of 3 runs are done\n"


def test_a_failed_run_stops_no_other_and_is_the_exit_status(started, capsys):
    started[1].extend([0, 1, 0])
    with pytest.raises(SystemExit, match="1"):
        campaign.run(RUNS, None)
    assert len(started[0]) == 3
    assert capsys.readouterr().out == "2 of 3 runs are done\n"


def test_nothing_starts_once_the_time_is_up(started, monkeypatch, capsys):
    now = iter([0.0, 0.0, 7.0, 11.0])  # the start, then before each run
    monkeypatch.setattr(campaign, "time", SimpleNamespace(monotonic=lambda: next(now)))
    campaign.run(RUNS, 10.0)
    assert [seconds for _, seconds in started[0]] == [10.0, 3.0]
    assert capsys.readouterr().out == "2 of 3 runs are done; stopped after 10 s, the same command goes on\n"


ENDING = """
import pathlib, signal, sys, time
def end(*_):
    time.sleep(0.3)
    pathlib.Path(sys.argv[1]).touch()
    sys.exit(143)
signal.signal(signal.SIGTERM, end)
time.sleep(60)
"""


def test_a_run_is_stopped_politely_and_waited_for(tmp_path):
    begun = time.monotonic()
    assert status_of(["-c", ENDING, str(tmp_path / "ended")], 2.0) is None
    assert (tmp_path / "ended").exists()
    assert time.monotonic() - begun < 30
    assert status_of(["-c", "import sys; sys.exit(3)"], 60.0) == 3


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], "no run is named"),
        (["device=cpu"], "no run is named"),
        (["experiment=fig99"], "'fig99'"),
        (["experiment=fig1", "nonsense"], "'nonsense'"),
        (["experiment=fig1", "reproduce-fig99"], "'reproduce-fig99'"),
    ],
)
def test_a_wrong_word_is_named_before_anything_starts(started, words, named):
    with pytest.raises(ConfigError, match=named):
        campaign.run(words, None)
    assert started[0] == []


@pytest.mark.slow
def test_the_same_command_goes_on(tmp_path, pairs):
    shared = [word for word in small(pairs, tmp_path / "results") if not word.startswith("batch_size")]
    (tmp_path / "runs.txt").write_text("# two runs\nexperiment=fig1_memory methods=[dense] batch_size=2\n")
    words = ("campaign", "@runs.txt", "experiment=fig1_memory methods=[lora] batch_size=2", *shared)
    first = run_bench(tmp_path, *words, "--stop-after=0.5", as_given=True)  # before it has imported anything
    assert (first.status, read_all(tmp_path / "results")) == (0, [])
    assert first.output.startswith("0 of 2 runs are done; stopped after 0.5 s")
    ended = run_bench(tmp_path, *words, as_given=True)
    assert (ended.status, ended.output) == (0, "2 of 2 runs are done\n")
    assert {(record.arm, record.status) for record in read_all(tmp_path / "results")} == {
        ("dense", "ok"),
        ("lora", "ok"),
    }
