"""The timed part: ratios of times, this tree against its base. Run by ``make gate``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.gate import GateError, Regression
from bench.gate.timed import ROOT, ROUNDS, Base, Pair, Rounds, find_base, judge, vanished, worktree
from bench.gate.timed_worker import BENCHMARKS


@pytest.fixture(scope="module")
def base() -> Base:
    return find_base(ROOT)


@pytest.fixture(scope="module")
def base_tree(base: Base) -> Iterator[Path | None]:
    """The base, checked out."""
    if base.commit is None:
        yield None
    else:
        with worktree(ROOT, base.commit) as tree:
            yield tree


@pytest.fixture(scope="module")
def pair(base_tree: Path | None) -> Iterator[Pair]:
    with Pair(ROOT, base_tree) as pair:
        yield pair


@pytest.mark.parametrize("name", BENCHMARKS)
def test_time(name: str, benchmark: BenchmarkFixture, pair: Pair, base: Base, base_tree: Path | None) -> None:
    if benchmark.disabled:
        raise GateError("Nothing can be timed with --benchmark-disable; give --benchmark-enable, as make gate does.")
    rounds = Rounds()
    benchmark.pedantic(pair.round, args=(name, rounds), rounds=ROUNDS)
    benchmark.extra_info |= {
        "tolerance": BENCHMARKS[name].tolerance,
        "base": base.commit,
        "ratios": [turn.ratio for turn in rounds.tree],
        "ratios_of_the_base": [turn.ratio for turn in rounds.base],
    }
    if base_tree is None:
        benchmark.extra_info["verdict"] = f"not judged, there is no base ({base.reason}): ratio {rounds.ratio()}"
        return
    if rounds.missing:
        reason = rounds.missing
        benchmark.extra_info["verdict"] = f"new, the base cannot run it ({reason}): ratio {rounds.ratio()}"
        return
    decision = judge(rounds, name, ROOT, base_tree)
    verdict = f"{decision}; {rounds.parts()}; ratio {rounds.ratio()}; base {str(base.commit)[:12]}, {base.reason}"
    if decision.kind == "regression":
        raise Regression(f"{name}: {verdict}")
    benchmark.extra_info["verdict"] = verdict


def test_vanished(benchmark: BenchmarkFixture, base_tree: Path | None) -> None:
    benchmark.extra_info["tolerance"] = 0
    names = benchmark.pedantic(vanished, args=(base_tree,)) if base_tree else []
    if names:
        benchmark.extra_info["verdict"] = f"vanished, the base times them still: {', '.join(names)}"
