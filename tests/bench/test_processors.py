"""The number of usable processors: the least limit of affinity, control groups and Slurm, for every worker count."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest
from small_cells import ROOT

from bench.core.processors import usable_processors

CGROUP, V1 = "sys/fs/cgroup", "sys/fs/cgroup/cpu,cpuacct"
QUOTA, PERIOD = "cpu.cfs_quota_us", "cpu.cfs_period_us"

#: Files, Slurm's variables, and the number expected of a process that may run on 16 processors.
CASES = {
    "no limit": ({}, {}, 16),
    "version 2, no quota": ({"proc/self/cgroup": "0::/\n", f"{CGROUP}/cpu.max": "max 100000\n"}, {}, 16),
    "version 2": ({"proc/self/cgroup": "0::/\n", f"{CGROUP}/cpu.max": "400000 100000\n"}, {}, 4),
    "version 2, part of a processor": ({"proc/self/cgroup": "0::/\n", f"{CGROUP}/cpu.max": "50000 100000\n"}, {}, 1),
    "version 2, one and a half": ({"proc/self/cgroup": "0::/\n", f"{CGROUP}/cpu.max": "150000 100000\n"}, {}, 1),
    "version 2, a group below": (
        {"proc/self/cgroup": "0::/a/b\n", f"{CGROUP}/a/b/cpu.max": "300000 100000\n"},
        {},
        3,
    ),
    "version 2, the group above is tighter": (
        {
            "proc/self/cgroup": "0::/a/b\n",
            f"{CGROUP}/a/b/cpu.max": "max 100000\n",
            f"{CGROUP}/a/cpu.max": "200000 100000\n",
        },
        {},
        2,
    ),
    "version 2, a path of the host": (
        {"proc/self/cgroup": "0::/system.slice/some\n", f"{CGROUP}/cpu.max": "500000 100000\n"},
        {},
        5,
    ),
    "version 2, more than there are": ({"proc/self/cgroup": "0::/\n", f"{CGROUP}/cpu.max": "6400000 100000\n"}, {}, 16),
    "version 2, damaged": ({"proc/self/cgroup": "0::/\n", f"{CGROUP}/cpu.max": "100000 0\n"}, {}, 16),
    "version 2, another controller's file": ({"proc/self/cgroup": "0::/\n", f"{CGROUP}/memory.max": "1 1\n"}, {}, 16),
    "version 1": (
        {"proc/self/cgroup": "4:cpu,cpuacct:/\n", f"{V1}/{QUOTA}": "300000\n", f"{V1}/{PERIOD}": "100000\n"},
        {},
        3,
    ),
    "version 1, no quota": (
        {"proc/self/cgroup": "4:cpu,cpuacct:/\n", f"{V1}/{QUOTA}": "-1\n", f"{V1}/{PERIOD}": "100000\n"},
        {},
        16,
    ),
    "version 1, its short name, below": (
        {
            "proc/self/cgroup": "9:memory:/x\n5:cpuacct,cpu:/docker/1\n0::/\n",
            f"{CGROUP}/cpu/docker/1/{QUOTA}": "700000\n",
            f"{CGROUP}/cpu/docker/1/{PERIOD}": "100000\n",
        },
        {},
        7,
    ),
    "version 1, set of processors alone": (
        {"proc/self/cgroup": "4:cpuset:/\n", f"{V1}/{QUOTA}": "100000\n", f"{V1}/{PERIOD}": "100000\n"},
        {},
        16,
    ),
    "a task of Slurm": ({}, {"SLURM_CPUS_PER_TASK": "6", "SLURM_CPUS_ON_NODE": "12"}, 6),
    "a node of Slurm": ({}, {"SLURM_CPUS_ON_NODE": "12"}, 12),
    "Slurm without a number": ({}, {"SLURM_CPUS_PER_TASK": "", "SLURM_CPUS_ON_NODE": "12(x2)"}, 16),
    "the least of all": (
        {"proc/self/cgroup": "0::/\n", f"{CGROUP}/cpu.max": "300000 100000\n"},
        {"SLURM_CPUS_PER_TASK": "6"},
        3,
    ),
    "none left": ({}, {"SLURM_CPUS_PER_TASK": "0"}, 1),
}


@pytest.mark.parametrize("case", CASES)
def test_the_least_limit_counts(case, tmp_path, monkeypatch) -> None:
    files, environment, expected = CASES[case]
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(os, "process_cpu_count", lambda: 16, raising=False)
    assert usable_processors(environment, tmp_path) == expected


@pytest.mark.parametrize("without", [(), ("process_cpu_count",), ("process_cpu_count", "sched_getaffinity")])
def test_affinity_is_read_as_the_system_and_the_version_of_python_have_it(without, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(os, "process_cpu_count", lambda: 5, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3, 9}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    for name in without:
        monkeypatch.delattr(os, name)
    assert usable_processors({}, tmp_path) == (5, 3, 1)[len(without)]


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
    found = {path.relative_to(ROOT) for path in files if names & _attributes(path)}
    assert found <= {Path("bench/core/processors.py")}


def _attributes(path: Path) -> set[str]:
    """Return the names of all attributes that a module reads."""
    return {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
