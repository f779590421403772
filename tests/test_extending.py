"""The worked example of docs/extending.md: its modules and commands, which time steps only for a moment."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from bench.core.record import read_all

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.slow

#: Added to the commands that time, so that each arm is timed for a moment: what is timed is no part of these tests.
BRIEF = ["timing.launches=1", "timing.blocks=1", "timing.extra_blocks=0", "timing.block_seconds=0.05"]


def timed(words: list[str]) -> list[str]:
    """Return the words of a command as a list for the interpreter, brief where they time a step."""
    times = words[2:3] == ["bench"] and words[3].startswith("experiment=") and "measure=" not in " ".join(words)
    return [sys.executable, *words[1:], *(BRIEF if times else [])]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Where all modules lie and all commands have run."""
    folder = tmp_path_factory.mktemp("extending")
    blocks = re.findall(r"`(\w+\.py)`:\n\n```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert [name for name, _ in blocks] == ["clicks.py", "reviews.py", "weighed.py", "weights_table.py"]
    for name, code in blocks:
        (folder / name).write_text(code, encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for block in re.findall(r"```\n(export .*?)```", PAGE, flags=re.DOTALL):
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            if words[0] == "export":
                environment |= dict(word.split("=") for word in words[1:])
                environment["PYTHONPATH"] = f"{folder}{os.pathsep}{ROOT}"
                continue
            assert words[:2] == ["python", "-m"]
            done = subprocess.run(
                timed(words), cwd=folder, env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{line}\n{done.stderr}"
            (folder / f"{len(list(folder.glob('*.out')))}.out").write_text(done.stdout, encoding="utf-8")
    return folder


def test_every_cell_is_recorded(folder) -> None:
    records = read_all(folder / "results" / "local")
    assert {record.status for record in records} == {"ok"}, [record.message for record in records]
    assert {record.measure for record in records} == {"run", "train", "check", "weighed"}
    assert {record.experiment for record in records} == {
        *("clicks", "clicks_trained", "clicks_checked", "weights", "reviews", "reviews_trained")
    }
    trained = [record for record in records if record.measure == "train"]
    assert all(0 < record.metrics["log_loss"] < 1 for record in trained if record.workload == "clicks")
    assert all(40 < record.metrics["accuracy"] <= 100 for record in trained if record.workload == "reviews")
    assert all(record.samples["heaviest"] for record in records if record.measure == "weighed")


def test_tables_of_all_experiments_are_left_beside_the_records(folder) -> None:
    table = pd.read_csv(folder / "results" / "local" / "clicks_trained.csv")
    assert set(table["workload"]) == {"clicks"}
    assert table["metric_log_loss"].notna().all()
    assert (folder / "results" / "local" / "clicks.csv").is_file()


def test_figures_and_the_verdict_are_drawn(folder) -> None:
    drawn = {path.name.partition("-")[0] for path in (folder / "figures" / "rendered" / "local").iterdir()}
    assert drawn == {"fig1", "fig6", "weights_table"}
    printed = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.out"))
    assert re.search(r"clicks-size.*?reproduced", printed, flags=re.DOTALL)


@pytest.fixture(scope="module")
def clone(tmp_path_factory) -> Path:
    """A copy of the project with the page's rival in it."""
    clone = tmp_path_factory.mktemp("clone")
    for name in ("comera", "baselines", "bench", "figures", "tests/baselines"):
        unwanted = shutil.ignore_patterns("__pycache__", "rendered")
        shutil.copytree(ROOT / name, clone / name, ignore=unwanted)
    for name in ("conftest.py", "pyproject.toml", "tests/conftest.py"):
        shutil.copy(ROOT / name, clone / name)
    [(name, code, line)] = re.findall(
        r"`(\w+\.py)` in `baselines`:\n\n```python\n(.*?)```.*?```python\n( {4}.*?\n)```", PAGE, flags=re.DOTALL
    )
    (clone / "baselines" / name).write_text(code, encoding="utf-8")
    toys = clone / "tests" / "baselines" / "toy_encoder.py"
    head, arms, rest = toys.read_text(encoding="utf-8").partition(
        "ARMS: dict[str, tuple[str, str, dict[str, Any]]] = {\n"
    )
    assert arms
    toys.write_text(head + arms + line + rest, encoding="utf-8")
    return clone


def test_the_rival_is_held_to_the_laws_compared_and_drawn(clone) -> None:
    section = PAGE[PAGE.index("## A method") : PAGE.index("## Before a change is sent")]
    commands = [
        line for block in re.findall(r"```\n(python .*?)```", section, re.DOTALL) for line in block.splitlines()
    ]
    assert len(commands) == 4
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(clone)}
    printed = []
    for line in commands:
        words = shlex.split(line)
        done = subprocess.run(timed(words), cwd=clone, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        printed.append(done.stdout)
    laws = (clone / "tests" / "baselines" / "test_every_arm.py").read_text(encoding="utf-8")
    assert (
        int(re.search(r"(\d+) passed", printed[0])[1])
        >= len(re.findall(r"^def test_\w+\(name\)", laws, re.MULTILINE))
        > 5
    )
    records = read_all(clone / "results" / "local")
    assert {(record.arm, record.status) for record in records} == {("bias_only", "ok"), ("dense", "ok")}
    assert "bias_only" in printed[-1]
