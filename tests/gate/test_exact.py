"""Every exact benchmark against the baseline; any difference is a regression until it is accepted."""

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.core.processors import usable_processors
from bench.gate.baseline import differences, read_baseline, refuse
from bench.gate.exact import ExactBenchmark, Numbers, all_benchmarks, measure

#: Differences that are let pass, as a share: these numbers do not depend on the machine.
TOLERANCE = 0.0

#: Up to so many benchmarks are traced here: a second process takes seconds to start.
FEW = 8


@pytest.fixture(scope="session")
def baseline() -> dict[str, Numbers]:
    """The accepted numbers by benchmark."""
    return read_baseline()


@pytest.fixture(scope="module")
def traced(request: pytest.FixtureRequest) -> Iterator[Callable[[ExactBenchmark], Numbers]]:
    """Trace the benchmarks in two processes: another one from the last to the first, this one from the first on."""
    cells = [item.callspec.params["cell"] for item in request.session.items if item.name.startswith("test_exact[")]  # type: ignore[attr-defined]
    if usable_processors() < 2 or len(cells) <= FEW:
        yield measure
        return
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        elsewhere = {cell.name: pool.submit(measure, cell) for cell in reversed(cells)}

        def numbers(cell: ExactBenchmark) -> Numbers:
            future = elsewhere[cell.name]
            if not future.cancel():
                with contextlib.suppress(BrokenProcessPool):  # that process has died; this one goes on alone
                    return future.result()
            return measure(cell)

        yield numbers
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("cell", all_benchmarks(), ids=lambda cell: cell.name)
def test_exact(
    cell: ExactBenchmark,
    baseline: dict[str, Numbers],
    traced: Callable[[ExactBenchmark], Numbers],
    benchmark: BenchmarkFixture,
) -> None:
    numbers = benchmark.pedantic(traced, (cell,), rounds=1, iterations=1)
    benchmark.extra_info.update(tolerance=TOLERANCE, numbers=numbers)
    refuse(differences(cell.name, baseline.get(cell.name), numbers))


def test_no_benchmark_has_vanished(baseline: dict[str, Numbers]) -> None:
    names = {cell.name for cell in all_benchmarks()}
    refuse([one for name in baseline if name not in names for one in differences(name, baseline[name], None)])
