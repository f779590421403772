"""The timed part: ratios of times and full-size steps, this tree against its bases. Run by ``make gate``."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.gate import GateError, Regression
from bench.gate.timed import ROOT, Base, Measured, find_bases, judge, measure, vanished, worktree
from bench.gate.timed_worker import BENCHMARKS


@pytest.fixture(scope="module")
def bases() -> list[Base]:
    return find_bases(ROOT)


@pytest.fixture(scope="module")
def base_trees(bases: list[Base]) -> Iterator[list[Path]]:
    """The bases that there are, checked out."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(worktree(ROOT, base.commit)) for base in bases if base.commit]


@pytest.fixture(scope="module")
def measured(request: pytest.FixtureRequest, base_trees: list[Path]) -> dict[str, Measured]:
    """All benchmarks that were asked for, since a launch measures one after the other."""
    option = request.config.getoption
    if option("benchmark_disable") and not option("benchmark_enable"):
        raise GateError("Nothing can be timed with --benchmark-disable; give --benchmark-enable, as make gate does.")
    items = request.session.items
    names = {item.callspec.params["name"] for item in items if item.name.startswith("test_time[")}  # type: ignore[attr-defined]
    return measure([ROOT, *base_trees], [name for name in BENCHMARKS if name in names])


@pytest.mark.parametrize("name", BENCHMARKS)
def test_time(
    name: str,
    benchmark: BenchmarkFixture,
    measured: dict[str, Measured],
    bases: list[Base],
    base_trees: list[Path],
) -> None:
    own, trees, there = measured[name], [ROOT, *base_trees], [base for base in bases if base.commit]
    benchmark.extra_info |= {
        "tolerance": BENCHMARKS[name].tolerance,
        "bases": [base.commit for base in there],
        "values": [[[turn.value for turn in launch] for launch in launches] for launches in own.turns],
    }
    verdicts, regression = [], False

    def judged() -> None:
        nonlocal regression
        for number, base in enumerate(there, 1):
            which = f"base {str(base.commit)[:12]}, {base.reason}"
            if number in own.missing:
                verdicts.append(f"new, the base cannot run it ({own.missing[number]}); {which}")
                continue
            decision = judge(own, name, trees, number)
            verdicts.append(f"{decision}; {own.parts(number)}; {which}")
            regression |= decision.kind == "regression"

    benchmark.pedantic(judged, rounds=1)
    verdicts = verdicts or [f"not judged, there is no base ({bases[0].reason})"]
    verdict = f"{'; '.join(verdicts)}; {own.value()}"
    if regression:
        raise Regression(f"{name}: {verdict}")
    benchmark.extra_info["verdict"] = verdict


def test_bases(benchmark: BenchmarkFixture, bases: list[Base], base_trees: list[Path]) -> None:
    benchmark.extra_info["tolerance"] = 0
    names = benchmark.pedantic(lambda: {name for tree in base_trees for name in vanished(tree)}, rounds=1)
    remarks = [f"vanished, a base times them still: {', '.join(sorted(names))}"] if names else []
    remarks += [base.reason for base in bases if base.commit is None and len(bases) > 1]
    if remarks:
        benchmark.extra_info["verdict"] = "; ".join(remarks)
