"""Every exact benchmark against the baseline; any difference is a regression until it is accepted."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.gate.baseline import differences, read_baseline, refuse
from bench.gate.exact import Benchmark, Numbers, all_benchmarks, measure

#: Differences that are let pass, as a share: these numbers do not depend on the machine.
TOLERANCE = 0.0


@pytest.fixture(scope="session")
def baseline() -> dict[str, Numbers]:
    """The accepted numbers by benchmark."""
    return read_baseline()


@pytest.mark.parametrize("cell", all_benchmarks(), ids=lambda cell: cell.name)
def test_exact(cell: Benchmark, baseline: dict[str, Numbers], benchmark: BenchmarkFixture) -> None:
    numbers = benchmark.pedantic(measure, (cell,), rounds=1, iterations=1)
    benchmark.extra_info.update(tolerance=TOLERANCE, numbers=numbers)
    refuse(differences(cell.name, baseline.get(cell.name), numbers))


def test_no_benchmark_has_vanished(baseline: dict[str, Numbers]) -> None:
    names = {cell.name for cell in all_benchmarks()}
    refuse([one for name in baseline if name not in names for one in differences(name, baseline[name], None)])
