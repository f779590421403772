"""``tools/gpu.sh``: its lines compose, on a GPU and in rehearsal; a failed one stops no other; an archive ends it."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch
from small_cells import ROOT

from bench.advise.question import question_of
from bench.runner.configuration import composed, configuration, job_configuration
from bench.runner.resolve import resolve

SCRIPT = ROOT / "tools" / "gpu.sh"
LINES = SCRIPT.read_text(encoding="utf-8").partition("<<'END'\n")[2].partition("\nEND")[0].splitlines()

#: Stands for the interpreter: notes its arguments, and ends or sleeps as the file ``does`` of this folder has it.
STUB = """#!{python}
import pathlib, sys, time
folder = pathlib.Path({folder!r})
with (folder / "asked").open("a") as file:
    print(*sys.argv[1:], file=file)
(folder / "results" / "record.json").touch()
does = (folder / "does").read_text()
time.sleep(60) if does == "sleep" else sys.exit(int(does))
"""


def run(folder: Path, does: str, *arguments: str) -> tuple[int, list[str]]:
    """Run the script with a stub for the interpreter; its exit status and the commands that it has run."""
    stub = folder / "python"
    stub.write_text(STUB.format(python=sys.executable, folder=str(folder)))
    stub.chmod(0o755)
    (folder / "does").write_text(does)
    environment = {**os.environ, "PYTHON": str(stub)}
    done = subprocess.run([SCRIPT, *arguments], cwd=folder, env=environment, timeout=120, check=False)
    return done.returncode, (folder / "asked").read_text().splitlines()


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_every_line_composes(tmp_path, monkeypatch, device) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: device == "cuda")
    _, asked = run(tmp_path, "0", *(["--rehearse"] if device == "cpu" else []), "results")
    assert len(asked) == len(LINES)
    for command in asked:
        module, first, *words = command.removeprefix("-m ").split()
        keys = [word.partition("=")[0] for word in words if "=" in word]
        assert len({*keys}) == len(keys), f"given twice, which the command refuses: {command}"
        if module == "pytest":
            assert all((ROOT / word).is_file() for word in words if word.endswith(".py"))
        elif first == "advise":
            assert question_of(words[1:]).kind == device
        else:
            if "experiment=pointer_full" in command:  # on a small text, since WordPiece is trained on it
                words.append("pointer.packages=[packaging]")
            with configuration():
                _, jobs = composed([first, *words])
                cells = [cell for own in jobs for cell in resolve(job_configuration(own)).cells]
            assert {cell.device for cell in cells} == {device}
            assert {cell.timing_settings["launches"] for cell in cells if cell.measure == "run"} <= {1}
    assert len(SCRIPT.read_text(encoding="utf-8").splitlines()) < 60


@pytest.mark.parametrize(("does", "status"), [("0", 0), ("1", 1)])
def test_all_run_and_an_archive_ends_them(tmp_path, does, status) -> None:
    ended, asked = run(tmp_path, does, "results")
    assert ended == status
    assert len(asked) == len(LINES)
    with tarfile.open(tmp_path / "results.tar.gz") as archive:
        assert {"results/record.json", "results/output.txt"} <= {*archive.getnames()}


@pytest.mark.parametrize(("rehearsed", "status"), [([], 0), (["--rehearse"], 1)])
@pytest.mark.parametrize(("does", "seconds", "started"), [("sleep", "2", 1), ("0", "0", 0)])
def test_it_stops_when_the_time_is_up(tmp_path, does, seconds, started, rehearsed, status) -> None:
    """A borrowed GPU may be out of time; a rehearsal that did not reach every line has failed."""
    (tmp_path / "asked").touch()
    ended, asked = run(tmp_path, does, *rehearsed, "results", seconds)
    assert (ended, len(asked)) == (status, started)
    assert (tmp_path / "results.tar.gz").is_file()
