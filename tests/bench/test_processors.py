"""The number of usable processors: the least of what the process may use and of what Slurm has given it."""

import ast
import os
from pathlib import Path

import pytest
from small_cells import ROOT

from bench.core.processors import usable_processors


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, 16),
        ({"SLURM_CPUS_PER_TASK": "6", "SLURM_CPUS_ON_NODE": "12"}, 6),
        ({"SLURM_CPUS_ON_NODE": "12"}, 12),
        ({"SLURM_CPUS_PER_TASK": "", "SLURM_CPUS_ON_NODE": "12(x2)"}, 16),
        ({"SLURM_CPUS_PER_TASK": "64"}, 16),
        ({"SLURM_CPUS_PER_TASK": "0"}, 1),
    ],
)
def test_the_least_limit_counts(variables, expected, monkeypatch) -> None:
    monkeypatch.setattr("joblib.cpu_count", lambda: 16)
    assert usable_processors(variables) == expected


def test_a_process_that_is_bound_to_a_processor_has_one() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert usable_processors({}) == 1
    finally:
        os.sched_setaffinity(0, before)


def test_no_other_module_counts_processors() -> None:
    """Whoever starts workers asks this function, not the machine."""
    names = {"cpu_count", "process_cpu_count", "sched_getaffinity"}
    files = [path for package in ("comera", "baselines", "bench", "figures") for path in (ROOT / package).rglob("*.py")]
    texts = {path.relative_to(ROOT): path.read_text() for path in files}
    suspects = {path: ast.parse(text) for path, text in texts.items() if any(name in text for name in names)}
    assert suspects
    for path, tree in suspects.items():
        read = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert not names & read or path == Path("bench/core/processors.py")
