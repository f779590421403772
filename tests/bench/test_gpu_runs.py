"""``tools/gpu.sh``: each run names an experiment, a failed one stops no other, an archive ends it."""

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from small_cells import ROOT

from bench.errors import experiments

SCRIPT = ROOT / "tools" / "gpu.sh"
RUNS = re.findall(r"^experiment=.*$", SCRIPT.read_text(encoding="utf-8"), flags=re.MULTILINE)

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


def run(folder: Path, does: str, *seconds: str) -> tuple[int, list[str]]:
    stub = folder / "python"
    stub.write_text(STUB.format(python=sys.executable, folder=str(folder)))
    stub.chmod(0o755)
    (folder / "does").write_text(does)
    environment = {**os.environ, "PYTHON": str(stub)}
    done = subprocess.run([SCRIPT, "results", *seconds], cwd=folder, env=environment, timeout=120, check=False)
    return done.returncode, (folder / "asked").read_text().splitlines()


def test_every_run_names_an_experiment() -> None:
    assert {re.match(r"experiment=(\w+)", words)[1] for words in RUNS} <= {*experiments()}
    assert len(SCRIPT.read_text(encoding="utf-8").splitlines()) < 60


@pytest.mark.parametrize(("does", "status"), [("0", 0), ("1", 1)])
def test_all_run_and_an_archive_ends_them(tmp_path, does, status) -> None:
    ended, asked = run(tmp_path, does)
    assert ended == status
    assert asked == [f"-m bench {words} device=cuda reuse=config results=results" for words in RUNS]
    with tarfile.open(tmp_path / "results.tar.gz") as archive:
        assert "results/record.json" in archive.getnames()


def test_it_stops_when_the_time_is_up(tmp_path) -> None:
    ended, asked = run(tmp_path, "sleep", "2")
    assert (ended, len(asked)) == (0, 1)
    assert (tmp_path / "results.tar.gz").is_file()
