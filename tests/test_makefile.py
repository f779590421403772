"""What make hands to the bench, whatever the folder of results is called."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TARGETS = re.findall(r"^([a-z0-9-]+):.*## ", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)


@pytest.mark.parametrize("results", ["results/local", "a b", "a,b", "it is (mine)"])
def test_the_folder_of_results_is_one_argument(results):
    targets = [target for target in TARGETS if re.match("reproduce|sweep|plan|claims|report", target)]
    command = ["make", "-n", "-o", ".venv/.ready", *targets, f"RESULTS={results}"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines = [shlex.split(line) for line in printed.replace("\\\n", "").splitlines() if "python -m " in line]
    assert len(lines) > len(targets)
    named = [line[line.index("--records") + 1] if "--records" in line else line[-1] for line in lines]
    assert {name.removesuffix(";") for name in named} == {results, f"results='{results}'"}
