"""``python -m bench speed``: launches in fresh processes, with either allocator, and ratios beside their aims."""

from __future__ import annotations

import os
import resource
import sys

import pytest
import torch

from bench.commands import speed
from bench.commands.speed import in_launches


def faults_of_a_large_temporary(count: int) -> dict[str, dict[int, float]]:
    """Page faults per round of making and freeing 64 MiB, and the process it was."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(2**24)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    return {"faults": {i: once() for i in range(count)}, "process": dict.fromkeys(range(count), os.getpid())}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the allocator is set on Linux")
def test_each_launch_is_a_process_with_the_allocator_named():
    steady = in_launches(faults_of_a_large_temporary, "steady", 2, 3)
    assert set(steady["faults"]) == {(launch, i) for launch in range(2) for i in range(3)}
    assert len({*steady["process"].values(), os.getpid()}) == 3
    system = in_launches(faults_of_a_large_temporary, "system", 1, 3)
    assert steady["faults"][0, 2] == steady["faults"][1, 2] == 0  # the heap has its size by then
    assert system["faults"][0, 2] > 10_000


def test_every_ratio_is_printed_beside_its_aim(monkeypatch, capsys):
    layer = {"tt": 1.1, "two_factors": 1.0, "dense": 5.0}
    step = {"comera": 1.0, "low_rank": 1.0, "dense": 4.0}
    known = {speed.layer_times: layer, speed.step_times: step}
    known |= {speed.block_times: {"btt": 1.0, "plain": 1.0}}
    known |= {speed.format_step_times: {"btt": 1.0, "dense": 2.0, "Muon of btt": 0.1, "Muon of dense": 0.1}}
    monkeypatch.setattr(
        speed,
        "in_launches",
        lambda times, *_: {name: {(launch, 0): ms for launch in range(3)} for name, ms in known[times].items()},
    )
    imports = {"torch": {0: 1.0, 1: 1.0, 2: 1.0}, "comera": {0: 1.0, 1: 1.0, 2: 1.0}}
    monkeypatch.setattr(speed, "import_times", lambda _: imports)
    monkeypatch.setenv("COLUMNS", "200")
    speed.run(3)
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in capsys.readouterr().out.splitlines()]
    aims = {row[0]: row[-1] for row in cells if len(row) == 4}
    assert aims == {
        "TTLinear / two-factor map": "at most 1.15 (system)",
        "nn.Linear / TTLinear": "at least 4",
        "step comera / low_rank, batch 1": "at most 1.15",
        "step dense / comera, batch 1": "at least 3.5",
        "step comera / low_rank, batch 8": "at most 1.05",
        "step dense / comera, batch 8": "at least 3.0",
        "step comera / low_rank, batch 16": "at most 1.05",
        "step dense / comera, batch 16": "",
        "BTTLinear 768 x 768 / its two products": "at most 1.15",
        "BTTLinear 768 x 3072 / its two products": "at most 1.15",
        "step btt / dense, width 128": "at most 1.5",
        "Muon / step of dense, width 128": "",
        "Muon / step of btt, width 128": "",
        "step btt / dense, width 768": "below 1",
        "Muon / step of dense, width 768": "at most 0.1",
        "Muon / step of btt, width 768": "at most 0.1",
        "import comera on top of torch, s": "under 0.2",
    }
