"""The timed part of the gate: the tree under test against its base, in one job, on one machine, interleaved.

Each of the two has a worker process of its own (:mod:`bench.gate.timed_worker`). In a round both measure the same
ratio, one after the other, in random order; what disturbs the machine for a while then hits both. Nothing is compared
with stored numbers. A slowdown counts where it is significant by a rank test, as large as the tolerance, and found
again by processes of their own.
"""

import contextlib
import json
import math
import os
import random
import runpy
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from bench.core.files import partial_folder, remove_abandoned
from bench.core.intervals import Estimate, paired_ratio
from bench.gate import GateError, timed_worker
from bench.gate.timed_worker import BENCHMARKS

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 30  # rounds of a measurement: with 30, four benchmarks take less than a minute on a quiet machine

#: Probability, without any slowdown, of a rank test that says otherwise, and the rounds with which the rank test can
#: reach that at all: 2^-7 < 0.01.
SIGNIFICANCE, FEWEST_ROUNDS = 0.01, 7

#: Where the project's main line may be, the first one found counts.
_MAIN_LINES = ("refs/remotes/origin/main", "refs/heads/main")

#: Set by git where it runs a hook, of another place perhaps.
_PLACES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX")

_TREE = "gate-base-"  # how the folder of the base's tree begins

#: What is timed. A change elsewhere, say of the README, does not make a tree differ from its commit.
_TIMED_CODE = ("comera", "baselines", "bench")


def signed_rank_p(differences: Sequence[float]) -> float:
    """One-sided p-value of Wilcoxon's signed-rank test, exact, that the differences tend to be above zero.

    Zeros are left out and equal magnitudes share their mean rank; the distribution is over all signs of the ranks that
    are there.

    >>> signed_rank_p([1, 2, 3, 4, 5])  # one of 2^5 assignments of signs
    0.03125
    """
    magnitudes = sorted(abs(value) for value in differences if value)
    # Twice the mean rank, which is whole.
    doubled = {size: 2 * magnitudes.index(size) + magnitudes.count(size) + 1 for size in magnitudes}
    observed = sum(doubled[value] for value in differences if value > 0)
    ways = [1]  # number of assignments of signs, by the sum of the doubled ranks above zero
    for size in magnitudes:
        none = [0] * doubled[size]
        ways = [without + with_it for without, with_it in zip([*ways, *none], [*none, *ways], strict=True)]
    return sum(ways[observed:]) / 2 ** len(magnitudes)


@dataclass(frozen=True)
class Slowdown:
    """A measurement's result: how many times slower than the base, with its interval, and the rank test's p-value."""

    estimate: Estimate
    p: float

    @classmethod
    def between(cls, tree: Sequence[float], base: Sequence[float]) -> Self:
        """From one ratio per round and tree; the rounds pair them."""
        differences = [math.log(own / other) for own, other in zip(tree, base, strict=True)]
        return cls(paired_ratio(dict(enumerate(tree)), dict(enumerate(base))), signed_rank_p(differences))

    def __str__(self) -> str:
        interval = f"[{self.estimate.low:.3f}, {self.estimate.high:.3f}]" if self.estimate.low is not None else ""
        return f"{self.estimate.value:.3f}x {interval} of the base, p = {self.p:.2g}"

    def numbers(self) -> Mapping[str, float | None]:
        """For records."""
        found = self.estimate
        return {"slowdown": found.value, "low": found.low, "high": found.high, "p": self.p}


@dataclass(frozen=True)
class Decision:
    """What the measurements of a benchmark amount to; ``second`` is None where the first one settled it."""

    kind: Literal["unchanged", "inconclusive", "regression"]
    why: str
    first: Slowdown
    second: Slowdown | None = None

    def __str__(self) -> str:
        again = "" if self.second is None else f"; measured again {self.second}"
        return f"{self.kind}, {self.why}: {self.first}{again}"


def decide(first: Slowdown, tolerance: float, measure_again: Callable[[], Slowdown]) -> Decision:
    """Judge a measurement; a slowdown that counts is measured again, independently, before it is called a regression.

    ``tolerance`` is the slowdown that is accepted; 0.25 is a quarter.
    """
    significant, large = first.p < SIGNIFICANCE, first.estimate.value >= 1 + tolerance
    if significant and not large:
        return Decision("inconclusive", f"slower by less than {tolerance:.0%}", first)
    if not significant:
        return Decision(*(("inconclusive", "not significant") if large else ("unchanged", "no slowdown")), first)
    second = measure_again()
    if second.p < SIGNIFICANCE and second.estimate.value >= 1 + tolerance:
        return Decision("regression", f"slower by {tolerance:.0%} or more, twice", first, second)
    return Decision("inconclusive", "not confirmed", first, second)


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


class Worker(ExitStack):
    """The process that times benchmarks with the code of ``tree``; a context manager that ends it."""

    def __init__(self, tree: Path) -> None:
        super().__init__()
        self.tree = tree
        self._errors = self.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._errors}
        command = [sys.executable, "-P", timed_worker.__file__, str(tree)]
        self.process = subprocess.Popen(command, cwd=tree, text=True, **pipes)
        self.callback(self.process.communicate)
        self.callback(self.process.kill)

    def turn(self, benchmark: str) -> Turn | str:
        """Time one turn, or say why this tree cannot run the benchmark. Raises GateError: the process ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(f"{benchmark}\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line.endswith("\n"):
            status = self.process.wait()
            self._errors.seek(0)
            last = self._errors.read().decode(errors="replace").strip().splitlines()[-1:]
            reason = ": ".join([f"signal {-status}" if status < 0 else f"exit status {status}", *last])
            raise GateError(f"The worker of {self.tree} ended during {benchmark} ({reason}).")
        answer = json.loads(line)
        if "missing" in answer:
            return str(answer["missing"])
        return Turn([(above, below) for above, below in answer["seconds"]])


@dataclass
class Rounds:
    """Turns of both trees, round by round; without a base, or where it lacks the benchmark, of one."""

    tree: list[Turn] = field(default_factory=list)
    base: list[Turn] = field(default_factory=list)
    missing: str = ""  # why the base cannot run the benchmark

    def slowdown(self) -> Slowdown:
        """Tree against base."""
        return Slowdown.between([turn.ratio for turn in self.tree], [turn.ratio for turn in self.base])

    def parts(self) -> str:
        """How numerator and denominator changed on their own: which of the two made the ratio what it is."""
        sides = (zip(*(turn.medians() for turn in turns), strict=True) for turns in (self.tree, self.base))
        own, other = ([statistics.median(values) for values in side] for side in sides)
        return f"numerator {own[0] / other[0]:.2f}x, denominator {own[1] / other[1]:.2f}x"

    def ratio(self) -> str:
        """The tree's own ratio: median and range over rounds."""
        ratios = [turn.ratio for turn in self.tree]
        return f"{statistics.median(ratios):.3f} (rounds {min(ratios):.3f} to {max(ratios):.3f})"


class Pair(ExitStack):
    """The workers of a tree and of its base, if it has one; a context manager that ends them.

    ``seed`` is that of the order in which they take turns.
    """

    def __init__(self, tree: Path, base: Path | None, seed: int = 0) -> None:
        super().__init__()
        self._order = random.Random(seed)
        self.tree = self.enter_context(Worker(tree))
        self.base = self.enter_context(Worker(base)) if base is not None else None

    def round(self, benchmark: str, rounds: Rounds) -> None:
        """Let both have a turn, in random order, and note it.

        Raises GateError: a worker ended, or the tree under test cannot run the benchmark.
        """
        turns: dict[Worker, Turn] = {}
        workers = [self.tree] if self.base is None or rounds.missing else [self.tree, self.base]
        for worker in self._order.sample(workers, len(workers)):
            turn = worker.turn(benchmark)
            if isinstance(turn, Turn):
                turns[worker] = turn
            elif worker is self.tree:
                raise GateError(f"{benchmark} cannot run in the tree under test ({turn}).")
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


def judge(rounds: Rounds, benchmark: str, tree: Path, base: Path, seed: int = 1) -> Decision:
    """Judge a benchmark's rounds; a slowdown that counts is confirmed by processes of its own.

    Raises GateError: one of these processes ended.
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


@dataclass(frozen=True)
class Base:
    """The commit to compare with, or None, and in a few words why it is that one or why there is none."""

    commit: str | None
    reason: str


def _git(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in _PLACES}
    command = ["git", "-c", f"core.hooksPath={os.devnull}", *arguments]
    try:
        return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    except OSError:
        return subprocess.CompletedProcess(command, 127, "", "git is not installed")


def commit_of(root: Path, name: str) -> str | None:
    """The full hash of the commit that ``name`` stands for, or None."""
    return _git(root, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}").stdout.strip() or None


def find_base(root: Path, environ: Mapping[str, str] = os.environ) -> Base:
    """The commit that ``root`` is compared with.

    That is the one named by ``GATE_BASE``; else where HEAD left the main line (``origin/main``, else ``main``). Where
    HEAD is on the main line itself, it is HEAD if timed code has uncommitted changes, and HEAD's first parent if not.
    Raises GateError: ``GATE_BASE`` names no commit.
    """
    top = _git(root, "rev-parse", "--show-toplevel")
    if top.returncode or Path(top.stdout.strip()).resolve() != root.resolve():
        return Base(None, "git is not installed" if top.returncode == 127 else "the tree is no git repository")
    named = environ.get("GATE_BASE", "").strip()
    if named.strip("0"):  # a new branch's "commit before" is written as zeros
        commit = commit_of(root, named)
        if commit is None:
            raise GateError(f"GATE_BASE is {named!r}; allowed: a commit of this repository.")
        return Base(commit, "named by GATE_BASE")
    head = commit_of(root, "HEAD")
    if head is None:
        return Base(None, "the repository has no commit")
    main = next((name for name in _MAIN_LINES if commit_of(root, name)), None)
    if main is not None:
        short = main.removeprefix("refs/remotes/").removeprefix("refs/heads/")
        fork = _git(root, "merge-base", "HEAD", main).stdout.strip()
        if not fork:
            return Base(None, f"HEAD and {short} have no commit in common here, as in a shallow clone")
        if fork != head:
            return Base(fork, f"where HEAD left {short}")
    if _git(root, "status", "--porcelain", "--", *_TIMED_CODE).stdout.strip():
        return Base(head, "HEAD, from which the tree differs")
    parent = commit_of(root, "HEAD~1")
    return Base(parent, "HEAD's first parent" if parent else "HEAD has no parent here, as in a shallow clone")


@contextlib.contextmanager
def worktree(root: Path, commit: str) -> Iterator[Path]:
    """A commit of the repository ``root``, checked out in a folder that is gone afterwards, whatever happens.

    Raises GateError: git cannot check it out.
    """
    shared = Path(tempfile.gettempdir())
    remove_abandoned(shared, _TREE, below=False)
    _git(root, "worktree", "prune")
    with partial_folder(shared, _TREE) as folder:
        tree = folder.resolve() / "tree"
        try:
            added = _git(root, "worktree", "add", "--quiet", "--detach", str(tree), commit)
            if added.returncode:
                reason = (added.stderr.strip().splitlines() or ["no reason given"])[-1]
                raise GateError(f"The base {commit[:12]} cannot be checked out beside the tree ({reason}).")
            yield tree
        finally:
            _git(root, "worktree", "remove", "--force", str(tree))
