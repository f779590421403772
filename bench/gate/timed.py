"""The timed part of the gate: the tree under test against its base, in one job, on one machine, interleaved.

Each of the two has a worker process of its own (:mod:`bench.gate.timed_worker`). In a round both measure the same
ratio, one after the other, in random order; what disturbs the machine for a while then hits both. Nothing is compared
with stored numbers.
"""

from __future__ import annotations

import json
import random
import runpy
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.gate import timed_worker
from bench.gate.errors import GateError
from bench.gate.timed_rule import Decision, Slowdown, decide
from bench.gate.timed_worker import BENCHMARKS

ROOT = Path(__file__).resolve().parents[2]

#: Rounds of a measurement: with 30, four benchmarks take less than a minute on a quiet machine.
ROUNDS = 30

#: Seeds of the order in which trees take turns, of a measurement and of its confirmation.
FIRST_SEED, SECOND_SEED = 0, 1


@dataclass(frozen=True)
class Turn:
    """What a worker measured in one go: pairs of seconds, numerator and denominator."""

    seconds: Sequence[tuple[float, float]]

    @property
    def ratio(self) -> float:
        """The median over the pairs."""
        return statistics.median(above / below for above, below in self.seconds)

    def medians(self) -> tuple[float, float]:
        """Numerator and denominator on their own."""
        above, below = zip(*self.seconds, strict=True)
        return statistics.median(above), statistics.median(below)


@dataclass(frozen=True)
class Missing:
    """A benchmark that a tree cannot run, and why."""

    reason: str


class Worker(ExitStack):
    """The process that times benchmarks with the code of ``tree``; a context manager that ends it."""

    def __init__(self, tree: Path) -> None:
        super().__init__()
        self.tree = tree
        self._errors = self.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
        self.process = subprocess.Popen(
            [sys.executable, "-P", timed_worker.__file__, str(tree)],
            cwd=tree,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self.callback(self.process.communicate)
        self.callback(self.process.kill)

    def turn(self, benchmark: str) -> Turn | Missing:
        """Time one turn.

        Raises:
            GateError: the process ended.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(f"{benchmark}\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line.endswith("\n"):
            raise GateError(self._end_of(benchmark))
        answer = json.loads(line)
        if "missing" in answer:
            return Missing(answer["missing"])
        return Turn([(above, below) for above, below in answer["seconds"]])

    def _end_of(self, benchmark: str) -> str:
        """One sentence on a process that ended."""
        status = self.process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        reason = f"signal {-status}" if status < 0 else f"exit status {status}"
        return f"The worker of {self.tree} ended during {benchmark} ({reason}{f': {said[-1]}' if said else ''})."


@dataclass
class Rounds:
    """Turns of both trees, round by round; without a base, or where it lacks the benchmark, of one."""

    tree: list[Turn] = field(default_factory=list)
    base: list[Turn] = field(default_factory=list)
    missing: Missing | None = None  # in the base

    def slowdown(self) -> Slowdown:
        """Tree against base."""
        return Slowdown.between([turn.ratio for turn in self.tree], [turn.ratio for turn in self.base])

    def parts(self) -> str:
        """How numerator and denominator changed on their own: which of the two made the ratio what it is."""
        own, other = (
            [statistics.median(values) for values in zip(*(turn.medians() for turn in turns), strict=True)]
            for turns in (self.tree, self.base)
        )
        return f"numerator {own[0] / other[0]:.2f}x, denominator {own[1] / other[1]:.2f}x"

    def ratio(self) -> str:
        """The tree's own ratio: median and range over rounds."""
        ratios = [turn.ratio for turn in self.tree]
        return f"{statistics.median(ratios):.3f} (rounds {min(ratios):.3f} to {max(ratios):.3f})"


class Pair(ExitStack):
    """The workers of a tree and of its base, if it has one; a context manager that ends them.

    Args:
        tree: the folder of the tree under test.
        base: that of its base, or None.
        seed: of the order in which they take turns.
    """

    def __init__(self, tree: Path, base: Path | None, seed: int = FIRST_SEED) -> None:
        super().__init__()
        self._order = random.Random(seed)
        self.tree = self.enter_context(Worker(tree))
        self.base = self.enter_context(Worker(base)) if base is not None else None

    def round(self, benchmark: str, rounds: Rounds) -> None:
        """Let both have a turn, in random order, and note it.

        Raises:
            GateError: a worker ended, or the tree under test cannot run the benchmark.
        """
        turns: dict[Worker, Turn] = {}
        workers = [self.tree] if self.base is None or rounds.missing else [self.tree, self.base]
        for worker in self._order.sample(workers, len(workers)):
            turn = worker.turn(benchmark)
            if isinstance(turn, Turn):
                turns[worker] = turn
            elif worker is self.tree:
                raise GateError(f"{benchmark} cannot run in the tree under test ({turn.reason}).")
            else:
                rounds.missing = turn
        rounds.tree.append(turns[self.tree])
        if self.base in turns:
            rounds.base.append(turns[self.base])


def measure(pair: Pair, benchmark: str, count: int = ROUNDS) -> Rounds:
    """So many rounds of a benchmark."""
    rounds = Rounds()
    for _ in range(count):
        pair.round(benchmark, rounds)
    return rounds


def judge(rounds: Rounds, benchmark: str, tree: Path, base: Path, seed: int = SECOND_SEED) -> Decision:
    """Judge a benchmark's rounds; a slowdown that counts is confirmed by processes of its own.

    Raises:
        GateError: one of these processes ended.
    """

    def again() -> Slowdown:
        with Pair(tree, base, seed) as pair:
            return measure(pair, benchmark, len(rounds.tree)).slowdown()

    return decide(rounds.slowdown(), BENCHMARKS[benchmark].tolerance, again)


def vanished(base: Path) -> list[str]:
    """Benchmarks that the base's own gate has and this one no longer does."""
    program = base / Path(timed_worker.__file__).relative_to(ROOT)
    names = runpy.run_path(str(program)).get("BENCHMARKS", {}) if program.exists() else {}
    return sorted(set(names) - set(BENCHMARKS))
