"""What make hands to the bench, whatever the folder of results is called."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from bench.commands.reproduce import targets

ROOT = Path(__file__).resolve().parent.parent
TARGETS = re.findall(r"^([a-z0-9-]+):.*## ", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)


@pytest.mark.parametrize("results", ["results/local", "a b", "a,b", "it is (mine)"])
def test_the_folder_of_results_is_one_argument(results):
    asked = [*targets(), "claims", "explore"]
    command = ["make", "-n", "-o", ".venv/.ready", *asked, f"RESULTS={results}"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines = [shlex.split(line) for line in printed.splitlines() if "python -m " in line]
    assert len(lines) == len(asked)
    assert {line[-1] for line in lines} == {results}


def test_help_has_a_line_for_each_of_few_targets():
    printed = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines = printed.splitlines()
    assert len(lines) == len(TARGETS) <= 25
    assert [line.split()[1] for line in lines[:3]] == ["help", "reproduce-fig1", "test"]
    assert max(map(len, lines)) <= 100


def test_every_file_with_a_slow_test_is_run_by_test_slow():
    command = ["make", "-n", "-o", ".venv/.ready", "test-slow"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    mark = "mark." + "slow"
    marked = [path for path in (ROOT / "tests").rglob("*.py") if mark in path.read_text(encoding="utf-8")]
    assert {str(path.relative_to(ROOT)) for path in marked} == {word for word in printed.split() if "tests/" in word}
