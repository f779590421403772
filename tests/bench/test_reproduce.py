"""Targets of make: they name experiments and artifacts there are, run in order, and end with what they started."""

import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from small_cells import ROOT

from bench.commands import reproduce
from bench.commands.reproduce import Target, targets
from bench.errors import CONF, TERMINAL, experiments
from figures.registry import artifacts, by_name


def experiments_of(target: Target) -> list[str]:
    """The experiments that a target runs."""
    return [re.search(r"experiment=(\w+)", words)[1] for words in target.runs]


def recorded_as(words: str) -> str:
    """The name under which a line's records lie: its own, or that of its experiment."""
    if own := re.search(r"\bname=(\w+)", words):
        return own[1]
    experiment = re.search(r"experiment=(\w+)", words)[1]
    text = (CONF / "experiment" / f"{experiment}.yaml").read_text(encoding="utf-8")
    found = re.search(r"^name: (\w+)", text, flags=re.MULTILINE)
    return found[1] if found else experiment


def test_the_list_fits_a_terminal_and_has_every_target():
    lines = reproduce.listed().splitlines()
    assert max(map(len, lines)) <= TERMINAL
    assert [line.split()[1] for line in lines if line.startswith("  make ")] == list(targets())


@pytest.mark.parametrize("name", targets())
def test_a_target_names_what_there_is(name):
    target = targets()[name]
    assert re.fullmatch(r"(reproduce|sweep|compare)-[a-z0-9-]+", name)
    assert set(experiments_of(target)) <= set(experiments())
    made = {recorded_as(words) for words in target.runs}
    for words in target.draws:
        artifact, *other = shlex.split(words)
        parts = by_name()[artifact]
        shown = {one for part in parts for one in part.experiments} if not other else {other[1]}
        assert made & {*shown, *(one for part in parts for one in part.lenders)}


@pytest.mark.parametrize("name", [name for name, one in artifacts().items() if one.made_by.startswith("make ")])
def test_an_artifact_is_drawn_by_the_target_that_it_names(name):
    target = targets()[artifacts()[name].made_by.removeprefix("make ")]
    assert (artifacts()[name].part_of or name) in [words.split()[0] for words in target.draws]
    assert artifacts()[name].experiments[0] in experiments_of(target)


def test_commands_run_in_order_and_stop_at_the_first_that_fails(monkeypatch, tmp_path, capfd):
    def commands(*_):
        note = "import sys, pathlib; pathlib.Path(sys.argv[1]).touch(); sys.exit(int(sys.argv[2]))"
        return [["-c", note, str(tmp_path / name), status] for name, status in (("a", "0"), ("b", "3"), ("c", "0"))]

    monkeypatch.setattr(Target, "commands", commands)
    with pytest.raises(SystemExit) as end:
        reproduce.run("reproduce-fig1", "x")
    assert end.value.code == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    assert "reproduce-fig1, 2 of 3: python -c" in capfd.readouterr().err


def test_a_note_of_a_target_comes_before_its_commands(monkeypatch, capfd):
    note = targets()["reproduce-fig1"].note
    assert re.search("COMERA_DATA.*generated.*1 and 16.*README.*batch 8 of docs/results.md.*reproduce-fig1-all", note)
    brief = pd.read_csv(ROOT / "figures/rendered/reference/fig1_brief-amd-epyc-2-threads.csv")
    assert set(brief.loc[brief["time_over_dense"].notna(), "batch_size"]) == {1, 16}
    assert "fig1_brief-amd-epyc-2-threads.png" in (ROOT / "README.md").read_text(encoding="utf-8")
    monkeypatch.setattr(Target, "commands", lambda *_: [["-c", "print('runs')"]])
    reproduce.run("reproduce-fig1", "x")
    printed = capfd.readouterr().err
    assert 0 <= printed.index(targets()["reproduce-fig1"].note) < printed.index("1 of 1")


def test_a_target_writes_a_line_before_torch_is_imported_and_any_command_starts():
    code = """if True:
        import sys
        from bench.__main__ import main
        from bench.commands import reproduce
        reproduce.status_of = lambda words: print("starts, torch" if "torch" in sys.modules else "starts", flush=True)
        main()
    """
    command = [sys.executable, "-c", code, "reproduce", "reproduce-fig1"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
    first, second, third, *_ = done.stdout.splitlines()
    assert first == f"reproduce-fig1: {targets()['reproduce-fig1'].note}"
    assert second.startswith("reproduce-fig1, 1 of ")
    assert third == "starts"


CHILD = """
import pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
def end(number, _):
    (folder / "ended").write_text(str(number))
    sys.exit(128 + number)
signal.signal(signal.SIGINT, end)
signal.signal(signal.SIGTERM, end)
(folder / "started").touch()
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_goes_to_the_command_whose_status_it_is(tmp_path: Path, number):
    program = "import sys; from bench.commands.programs import status_of; sys.exit(status_of(sys.argv[1:]))"
    process = subprocess.Popen([sys.executable, "-c", program, "-c", CHILD, str(tmp_path)])
    start = time.monotonic()
    while not (tmp_path / "started").exists():
        assert time.monotonic() - start < 60
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(30) == 128 + number
    assert (tmp_path / "ended").read_text() == str(int(number))
