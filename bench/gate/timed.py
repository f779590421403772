"""The timed part of the gate: the tree under test against its bases, in one job, on one machine, interleaved.

A base is another tree: the commit this one came from, and a pinned one, against which slowdowns add up that are too
small to be seen from commit to commit (``bench/gate/pinned.txt`` names it). Nothing is compared with stored numbers.

Each tree has a worker process of its own (:mod:`bench.gate.timed_worker`). In a round all measure the same benchmark,
one after the other, in random order; what disturbs the machine for a while then hits all. What holds for a process,
such as where its memory lies, is the same in all of its rounds, so a measurement is of several launches, that is, of
fresh processes; the median over launches of the median over rounds is judged. A slowdown as large as the tolerance is a
regression where further launches, on their own, find one as large again, and the 95 % interval of all six launches,
which draws launches first and rounds within, lies above no slowdown. Three launches alone have a range.
"""

import ast
import contextlib
import itertools
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bench.core.files import partial_folder, remove_abandoned, temporary_folder
from bench.core.intervals import Estimate, paired_ratio
from bench.gate import GateError, timed_worker
from bench.gate.timed_worker import BENCHMARKS

ROOT = Path(__file__).resolve().parents[2]
LAUNCHES = 3  # of fresh processes in a measurement, and as many again to confirm a slowdown
PINNED = Path(__file__).with_name("pinned.txt")

#: Set, it leaves the pinned commit out, where time is short.
SHORT = "GATE_SHORT"

#: Where the project's main line may be, the first one found counts.
_MAIN_LINES = {"refs/remotes/origin/main": "origin/main", "refs/heads/main": "main"}

#: Set by git where it runs a hook, of another place perhaps.
_PLACES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX")

_TREE = "gate-base-"  # how the folder of the base's tree begins

#: Timed folders. A change elsewhere, say of the README, does not make a tree differ from its commit.
_TIMED_CODE = ("comera", "baselines", "bench")


#: Slowdowns against a base: of every launch those of its rounds; 1.1 is a tenth slower.
Slowdowns = Sequence[Sequence[float]]


def estimate(slowdowns: Slowdowns) -> Estimate:
    """Return the median over launches of the median over rounds, with its range or, of six launches, its interval.

    >>> found = estimate([[1.0, 1.1, 1.2], [1.3, 1.3, 1.3], [1.2, 1.2, 1.2]])
    >>> found.value, found.launches
    (1.2, 3)
    """
    named = {(i, j): one for i, launch in enumerate(slowdowns) for j, one in enumerate(launch)}
    return paired_ratio(named, dict.fromkeys(named, 1.0))


def _written(found: Estimate) -> str:
    bounds = f" [{found.low:.3f}, {found.high:.3f}]" if found.low is not None else ""
    return f"{found.value:.3f}x{bounds}"


@dataclass(frozen=True)
class Decision:
    """Decision on a benchmark from its measurements; ``second`` is None where the first one settled it."""

    kind: str  # "unchanged", "inconclusive" or "regression"
    why: str
    first: Estimate
    second: Estimate | None = None

    def __str__(self) -> str:
        again = "" if self.second is None else f"; in further launches {_written(self.second)}"
        return f"{self.kind}, {self.why}: {_written(self.first)} of the base{again}"


def decide(first: Slowdowns, tolerance: float, measure_again: Callable[[], Slowdowns]) -> Decision:
    """Judge a measurement; a slowdown that counts is measured again, by further launches.

    ``tolerance`` is the slowdown that is accepted; 0.07 is 7 %.
    """
    found = estimate(first)
    if found.value < 1 + tolerance:
        slower = found.low is not None and found.low > 1
        kind, why = ("inconclusive", f"slower by less than {tolerance:.0%}") if slower else ("unchanged", "no slowdown")
        return Decision(kind, why, found)
    further = measure_again()
    second = estimate(further)
    if second.value >= 1 + tolerance and (estimate([*first, *further]).low or 0) > 1:
        return Decision("regression", f"slower by {tolerance:.0%} or more, twice", found, second)
    return Decision("inconclusive", "not confirmed", found, second)


@dataclass(frozen=True)
class Turn:
    """Measurements of a worker in one turn: seconds of numerator and denominator, or of the only action, by repeat."""

    seconds: Sequence[Sequence[float]]

    @property
    def value(self) -> float:
        """The median of the ratios, or of the seconds."""
        return statistics.median(one[0] / one[1] if one[1:] else one[0] for one in self.seconds)

    def medians(self) -> tuple[float, ...]:
        """Return the median of each action on its own."""
        return tuple(statistics.median(own) for own in zip(*self.seconds, strict=True))


class Worker(ExitStack):
    """The process that times benchmarks with the code of ``tree``; a context manager that ends it.

    ``planted`` slows what it judges by this share.
    """

    def __init__(self, tree: Path, planted: float = 0.0) -> None:
        super().__init__()
        self.tree = tree
        self._asked = "its start"
        self._errors = self.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._errors}
        command = [sys.executable, "-P", timed_worker.__file__, str(tree), *([str(planted)] if planted else [])]
        self.process = subprocess.Popen(command, cwd=tree, text=True, **pipes)
        self.callback(self.process.communicate)
        self.callback(self.process.kill)

    def ask(self, request: str, benchmark: str) -> None:
        """Send a request; the next one must wait for its answer."""
        assert self.process.stdin is not None
        self._asked = benchmark
        with contextlib.suppress(BrokenPipeError):  # which the lack of an answer tells as well
            self.process.stdin.write(f"{request}\n")
            self.process.stdin.flush()

    def answer(self) -> Mapping[str, Any]:
        """Return the next answer. Raises GateError: the process ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.endswith("\n"):
            status = self.process.wait()
            self._errors.seek(0)
            last = self._errors.read().decode(errors="replace").strip().splitlines()[-1:]
            reason = ": ".join([f"signal {-status}" if status < 0 else f"exit status {status}", *last])
            raise GateError(f"The worker of {self.tree} ended during {self._asked} ({reason}).")
        answer: Mapping[str, Any] = json.loads(line)
        return answer

    def turn(self, benchmark: str) -> Turn:
        """Time the benchmark that was made last. Raises GateError: the process ended."""
        self.ask("turn", benchmark)
        return Turn(self.answer()["seconds"])


@dataclass
class Measured:
    """A benchmark's turns by tree, launch and round; the first tree is the one under test, the others its bases."""

    turns: list[list[list[Turn]]]
    missing: dict[int, str] = field(default_factory=dict)  # why a base cannot run the benchmark, by number of the tree

    def slowdowns(self, base: int) -> Slowdowns:
        """Return the tree against a base, by launch and round."""
        launches = zip(self.turns[0], self.turns[base], strict=True)
        return [[a.value / b.value for a, b in zip(own, other, strict=True)] for own, other in launches]

    def _medians(self, tree: int) -> list[float]:
        turns = itertools.chain.from_iterable(self.turns[tree])
        return [statistics.median(values) for values in zip(*(turn.medians() for turn in turns), strict=True)]

    def parts(self, base: int) -> str:
        """Describe how numerator and denominator changed on their own: which of the two made the ratio what it is."""
        changes = [own / other for own, other in zip(self._medians(0), self._medians(base), strict=True)]
        names = ("numerator", "denominator")
        return ", ".join(f"{name} {change:.2f}x" for name, change in zip(names, changes, strict=False))

    def value(self) -> str:
        """Return the tree's own ratio or time: median and range over launches."""
        launches = [statistics.median(turn.value for turn in launch) for launch in self.turns[0]]
        spread = f"{statistics.median(launches):.3f} (launches {min(launches):.3f} to {max(launches):.3f})"
        return f"ratio {spread}" if len(self._medians(0)) > 1 else f"seconds {spread}"


def measure(
    trees: Sequence[Path], benchmarks: Iterable[str], seed: int = 0, planted: float = 0.0, launches: int = LAUNCHES
) -> dict[str, Measured]:
    """Measure benchmarks of a tree and its bases, in so many launches of fresh workers.

    ``seed`` is that of the order in which they take turns, ``planted`` a slowdown of the first tree. Raises GateError:
    a worker ended, or the tree under test cannot run a benchmark.
    """
    results = {name: Measured([[] for _ in trees]) for name in benchmarks}
    for number in range(launches):
        order = random.Random(launches * seed + number)
        with ExitStack() as stack:
            workers = [stack.enter_context(Worker(tree, 0.0 if i else planted)) for i, tree in enumerate(trees)]
            for worker in workers:
                worker.answer()
            for name, into in results.items():
                _launch(workers, name, into, order)
    return results


def _launch(workers: Sequence[Worker], benchmark: str, into: Measured, order: random.Random) -> None:
    """Append a launch's rounds of a benchmark to ``into``."""
    for worker in workers:
        worker.ask(f"make {benchmark}", benchmark)
    for i, worker in enumerate(workers):
        reason = worker.answer().get("missing")
        if reason and not i:
            raise GateError(f"{benchmark} cannot run in the tree under test ({reason}).")
        if reason:
            into.missing[i] = reason
        into.turns[i].append([])
    able = [i for i in range(len(workers)) if i not in into.missing]
    for _ in range(BENCHMARKS[benchmark].rounds):
        for i in order.sample(able, len(able)):
            into.turns[i][-1].append(workers[i].turn(benchmark))


def judge(measured: Measured, benchmark: str, trees: Sequence[Path], base: int) -> Decision:
    """Judge a benchmark against one of the bases; only launches of these two trees confirm a slowdown.

    Raises GateError: one of these processes ended.
    """

    def again() -> Slowdowns:
        return measure([trees[0], trees[base]], [benchmark], seed=1)[benchmark].slowdowns(1)

    return decide(measured.slowdowns(base), BENCHMARKS[benchmark].tolerance, again)


def vanished(base: Path) -> list[str]:
    """Return benchmarks that the base's own gate has and this one no longer does."""
    program = base / Path(timed_worker.__file__).relative_to(ROOT)
    body = ast.parse(program.read_text(encoding="utf-8")).body if program.exists() else []
    tables = [one.value for one in body if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "BENCHMARKS"]
    names = {ast.literal_eval(key) for table in tables for key in getattr(table, "keys", ())}
    return sorted(names - set(BENCHMARKS))


class Base(NamedTuple):
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
    """Return the full hash of the commit ``name``, or None."""
    return _git(root, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}").stdout.strip() or None


def _no_repository(root: Path) -> str:
    """Explain why ``root`` cannot be asked for commits; empty if it can."""
    top = _git(root, "rev-parse", "--show-toplevel")
    if top.returncode or Path(top.stdout.strip()).resolve() != root.resolve():
        return "git is not installed" if top.returncode == 127 else "the tree is no git repository"
    return ""


def find_base(root: Path, environ: Mapping[str, str] = os.environ) -> Base:
    """Return the commit that ``root`` is compared with.

    That is the one named by ``GATE_BASE``; else where HEAD left the main line (``origin/main``, else ``main``). Where
    HEAD is on the main line itself, it is HEAD if timed code has uncommitted changes, and HEAD's first parent if not.
    Raises GateError: ``GATE_BASE`` names no commit.
    """
    if reason := _no_repository(root):
        return Base(None, reason)
    named = environ.get("GATE_BASE", "").strip()
    if named.strip("0"):  # a new branch's "commit before" is written as zeros
        commit = commit_of(root, named)
        if commit is None:
            raise GateError(f"GATE_BASE is {named!r}; allowed: a commit of this repository.")
        return Base(commit, "named by GATE_BASE")
    head = commit_of(root, "HEAD")
    if head is None:
        return Base(None, "the repository has no commit")
    for main, short in _MAIN_LINES.items():
        if not commit_of(root, main):
            continue
        fork = _git(root, "merge-base", "HEAD", main).stdout.strip()
        if not fork:
            return Base(None, f"HEAD and {short} have no commit in common here, as in a shallow clone")
        if fork != head:
            return Base(fork, f"where HEAD left {short}")
        break
    if _git(root, "status", "--porcelain", "--", *_TIMED_CODE).stdout.strip():
        return Base(head, "HEAD, from which the tree differs")
    parent = commit_of(root, "HEAD~1")
    return Base(parent, "HEAD's first parent" if parent else "HEAD has no parent here, as in a shallow clone")


def find_bases(root: Path, environ: Mapping[str, str] = os.environ) -> list[Base]:
    """Return the base of :func:`find_base` and, unless equal, HEAD or skipped by ``GATE_SHORT``, the pinned commit.

    Raises GateError: as there, or ``pinned.txt`` names no commit at all.
    """
    bases = [find_base(root, environ)]
    if environ.get(SHORT, "") not in ("", "0") or _no_repository(root):
        return bases
    pinned = PINNED.read_text(encoding="utf-8").strip()
    if not re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", pinned):
        raise GateError(f"{PINNED.name} holds {pinned!r}; allowed: the full hash of a commit.")
    commit = commit_of(root, pinned)
    if commit is None:
        missing = f"the pinned commit {pinned[:12]} is not here, as in a shallow clone, and is not compared with"
        return [*bases, Base(None, missing)]
    return bases if commit in (bases[0].commit, commit_of(root, "HEAD")) else [*bases, Base(commit, "pinned")]


@contextlib.contextmanager
def worktree(root: Path, commit: str) -> Iterator[Path]:
    """Check out a commit of the repository ``root`` in a folder that is removed afterwards, even after an error.

    Raises GateError: git cannot check it out.
    """
    shared = temporary_folder()
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
