"""``python -m bench speed``: launches in fresh processes, with either allocator, and each ratio as it comes."""

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


def test_every_ratio_is_printed_once_it_is_measured(monkeypatch, capsys):
    known = {speed.block_times: {"btt": 1.0, "plain": 0.5}}
    known |= {speed.format_step_times: {"btt": 1.0, "dense": 4.0, "Muon of btt": 0.1, "Muon of dense": 1.0}}
    printed = []

    def launched(times, *_):
        printed.append(capsys.readouterr().out)
        return {name: {(launch, 0): ms for launch in range(3)} for name, ms in known[times].items()}

    monkeypatch.setattr(speed, "in_launches", launched)
    imports = {"torch": dict.fromkeys(range(9), 1000.0), "comera": dict.fromkeys(range(9), 1100.0)}
    monkeypatch.setattr(speed, "import_times", lambda _: imports)
    speed.run(9)
    printed.append(capsys.readouterr().out)
    assert [len(text.splitlines()) for text in printed] == [1, 1, 1, 1, 1, 3, 4]
    ratios = [line.split("[")[0].split()[-1] for text in printed[1:] for line in text.splitlines()]
    assert ratios == ["2.000"] * 4 + ["0.250", "0.250", "0.100"] * 2 + ["0.100"]
