"""Repeat the timed part of the gate on one commit against itself: every alarm it raises is a false one."""

import datetime
import json
import math
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from bench.core.provenance import device_name
from bench.errors import Parser, stop_with
from bench.gate import GateError
from bench.gate.timed import FEWEST_ROUNDS, ROOT, ROUNDS, Pair, commit_of, judge, measure, worktree
from bench.gate.timed_worker import BENCHMARKS, THREADS

SCHEMA = 1
CONFIDENCE = 0.95

_DESCRIPTION = """Repeat the timed part of the gate on this commit against itself, checked out twice, and write a line
of JSON per repetition. Lines that are there already count, so a run that was stopped goes on. Then, or with --summary
alone, the number of alarms and the upper bound of their rate are printed."""

Record = Mapping[str, Any]


def upper_bound(alarms: int, repetitions: int) -> float:
    """The 95 % upper bound of the alarm rate (Clopper and Pearson, one-sided): the rate at which so few are that rare.

    >>> round(upper_bound(0, 60), 4)  # 1 - 0.05^(1/60)
    0.0487
    """

    low, high = 0.0, 1.0
    for _ in range(60):
        rate = (low + high) / 2
        ways = (math.comb(repetitions, k) * rate**k * (1 - rate) ** (repetitions - k) for k in range(alarms + 1))
        low, high = (rate, high) if math.fsum(ways) > 1 - CONFIDENCE else (low, rate)
    return high


def read(path: Path) -> list[Record]:
    """The repetitions of a file, none if there is no file; a last line that a kill cut short is left out.

    Raises GateError: another line that is no repetition.
    """
    records = []
    for number, line in enumerate(_whole_lines(path).splitlines(), 1):
        try:
            records.append(record := json.loads(line))
            known = record["schema_version"] == SCHEMA and isinstance(record["alarm"], bool)
        except (ValueError, TypeError, KeyError):
            known = False
        if not known:
            raise GateError(f"{path}, line {number}: no repetition of schema {SCHEMA}.")
    return records


def _whole_lines(path: Path) -> bytes:
    content = path.read_bytes() if path.exists() else b""
    return content[: content.rfind(b"\n") + 1]


def summary(records: Sequence[Record]) -> str:
    """Alarms, the bound of their rate, and how the verdicts are spread.

    >>> summary([{"alarm": False, "benchmarks": {"a": {"kind": "unchanged"}}}] * 60)
    '0 alarms in 60 repetitions: at most 4.9 % false alarms (95 % bound); of 60 verdicts 60 unchanged'
    """
    if not records:
        return "no repetition is recorded"
    alarms = sum(record["alarm"] for record in records)
    bound = 100 * upper_bound(alarms, len(records))
    kinds = Counter(part["kind"] for record in records for part in record["benchmarks"].values())
    spread = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    rate = f"{alarms} alarm{'s' * (alarms != 1)} in {len(records)} repetitions: at most {bound:.1f} % false alarms"
    return f"{rate} (95 % bound); of {kinds.total()} verdicts {spread}"


def _repetition(tree: Path, base: Path, number: int, count: int) -> dict[str, Any]:
    """One timed part: verdicts by benchmark, with what was measured."""
    parts = {}
    with Pair(tree, base, seed=2 * number) as pair:
        for name in BENCHMARKS:
            rounds = measure(pair, name, count)
            if rounds.missing:
                raise GateError(f"{name} cannot run in {base} ({rounds.missing}).")
            decision = judge(rounds, name, tree, base, seed=2 * number + 1)
            parts[name] = {
                "kind": decision.kind,
                "first": decision.first.numbers(),
                "second": decision.second and decision.second.numbers(),
                "tree": [turn.ratio for turn in rounds.tree],
                "base": [turn.ratio for turn in rounds.base],
            }
    return {"alarm": any(part["kind"] == "regression" for part in parts.values()), "benchmarks": parts}


def repeat(path: Path, repetitions: int, count: int) -> None:
    """Bring the repetitions in ``path`` up to so many.

    Raises GateError: no commit, a worker that ended, or a file of another commit or number of rounds.
    """
    commit = commit_of(ROOT, "HEAD")
    if commit is None:
        raise GateError("There is no commit to compare with itself: the tree is no git repository.")
    done = read(path)
    for record in done:
        if (record["commit"], record["rounds"]) != (commit, count):
            there = f"repetitions of commit {record['commit'][:12]} with {record['rounds']} rounds"
            here = f"these would be of {commit[:12]} with {count}"
            raise GateError(f"{path} holds {there}, {here}; name another file with --into.")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_whole_lines(path))
    with worktree(ROOT, commit) as tree, worktree(ROOT, commit) as base:
        start, alarms = time.monotonic(), sum(record["alarm"] for record in done)
        for number in range(len(done), repetitions):
            began = time.monotonic()
            result = _repetition(tree, base, number, count)
            head = {
                "schema_version": SCHEMA,
                "repetition": number,
                "recorded_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "commit": commit,
                "device": device_name(on_cpu=True),
                "threads": THREADS,
                "torch_version": torch.__version__,
                "rounds": count,
                "seconds": round(time.monotonic() - began, 1),
            }
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps(head | result)}\n")
                file.flush()
                os.fsync(file.fileno())
            alarms += result["alarm"]
            each = (time.monotonic() - start) / (number + 1 - len(done))
            left = f"{each:.0f} s each, {each * (repetitions - number - 1) / 60:.0f} min left"
            print(f"{number + 1}/{repetitions} repetitions, {alarms} alarms, {left}", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> None:
    """Repeat and print the summary."""
    parser = Parser(prog="python -m bench.gate.repeat", description=_DESCRIPTION)
    parser.add_argument("--repetitions", type=int, default=60, help="how many there shall be (default: 60)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of a measurement (default: the gate's, {ROUNDS})")
    parser.add_argument(
        "--into", metavar="FILE", type=Path, default=Path("results") / "local" / "gate" / "repetitions.jsonl",
        help="where they are recorded (default: results/local/gate/repetitions.jsonl)",
    )  # fmt: skip
    parser.add_argument("--summary", action="store_true", help="measure nothing, print the summary of what is recorded")
    arguments = parser.parse_args(argv)
    for name, least in (("repetitions", 1), ("rounds", FEWEST_ROUNDS)):
        if getattr(arguments, name) < least:
            stop_with(f"--{name} is {getattr(arguments, name)}; allowed: whole numbers from {least}.")
    # A polite kill cleans up as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    torch.set_num_threads(THREADS)  # as the workers; the device's name says so
    path: Path = arguments.into
    try:
        if not arguments.summary:
            repeat(path, arguments.repetitions, arguments.rounds)
        print(f"{path}: {summary(read(path))}")
    except GateError as error:
        stop_with(str(error))
    except OSError as error:
        stop_with(f"--into is '{path}', which cannot be used ({error.strerror}); name another file.")
    except KeyboardInterrupt:
        stop_with("stopped; the same command goes on from here.", 130)


if __name__ == "__main__":
    main()
