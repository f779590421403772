"""Repeat the timed part of the gate on one commit against itself: every alarm it raises is a false one.

A repetition does what the gate does, and records the slowdown of every round by launch, those of further launches
included where the rule asked for them. So ``--power`` can tell what the rule would have said of the same blocks, had
the tree been slower: all slowdowns are multiplied by a factor, and the rule is applied again. Where it then asks for
further launches that were not needed, those of the next repetition take their place: a measurement of the same trees,
minutes later. What no multiplication imitates is tried with ``--planted``, which makes the tree under test wait busily.
"""

import contextlib
import datetime
import hashlib
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from bench import gate
from bench.core.provenance import device_name
from bench.errors import Parser, stop_with
from bench.gate import GateError
from bench.gate.timed import (
    LAUNCHES,
    ROOT,
    Decision,
    Measured,
    Slowdowns,
    commit_of,
    decide,
    estimate,
    measure,
    worktree,
)
from bench.gate.timed_worker import BENCHMARKS, THREADS

GATE = Path(gate.__file__).parent

#: Of schema 1 are repetitions of one launch with 30 rounds, from before the gate had several.
SCHEMA, ONE_LAUNCH = 2, 1
CONFIDENCE = 0.95

#: By what a tree's time is multiplied for ``--power``; 1 shows the false alarms.
SCALES = (1.0, 1.05, 1.10, 1.15)

#: Columns in which repetitions of one file agree. The commit may differ: each is compared with itself alone.
_SETTINGS = ("gate", "launches", "planted", "busy", "of")

#: Keeps a core and the memory busy: products of matrices beyond the caches.
_BUSY = "import torch; torch.set_num_threads(1); x = torch.randn(1536, 1536)\nwhile True: x = (x @ x).div_(x.norm())"

#: Between the seed of a repetition's launches and that of further ones.
_FURTHER = 1_000_000

#: Load on the other core, in a record's words.
_LOADS = {False: "products of matrices", True: "what else ran on the machine"}

_DESCRIPTION = """Repeat the timed part of the gate on this commit against itself, checked out twice, and write a line
of JSON per repetition. Lines that are there already count, so a run that was stopped goes on, also on a later commit
whose gate is the same. Then, or with --summary alone, the number of alarms and the upper bound of their rate are
printed; with --power also what the rule would have said of the same blocks, had the tree been slower."""

Record = Mapping[str, Any]


def lower_bound(caught: int, repetitions: int) -> float:
    """Return the 95 % lower bound of the rate at which a slowdown is caught.

    >>> round(lower_bound(60, 60), 3)
    0.951
    """
    return 1 - upper_bound(repetitions - caught, repetitions)


def upper_bound(alarms: int, repetitions: int) -> float:
    """Return the 95 % upper bound of the alarm rate, one-sided, by Clopper and Pearson.

    >>> round(upper_bound(0, 60), 4)  # 1 - 0.05^(1/60)
    0.0487
    """
    low, high = 0.0, 1.0
    for _ in range(60):
        rate = (low + high) / 2
        ways = (math.comb(repetitions, k) * rate**k * (1 - rate) ** (repetitions - k) for k in range(alarms + 1))
        low, high = (rate, high) if math.fsum(ways) > 1 - CONFIDENCE else (low, rate)
    return high


def gate_code() -> str:
    """Return a hash of the code that measures and decides; repetitions with different hashes are not combined."""
    digest = hashlib.sha256()
    for module in ("timed.py", "timed_worker.py"):
        digest.update((GATE / module).read_bytes())
    return digest.hexdigest()[:16]


def read(path: Path) -> list[Record]:
    """Return the repetitions of a file, empty without a file; a last line that a kill cut short is dropped.

    Raises GateError: another line that is no repetition.
    """
    records = []
    for number, line in enumerate(_whole_lines(path).splitlines(), 1):
        try:
            records.append(record := json.loads(line))
            known = record["schema_version"] in (ONE_LAUNCH, SCHEMA) and isinstance(record["alarm"], bool)
        except (ValueError, TypeError, KeyError):
            known = False
        if not known:
            raise GateError(f"{path}, line {number}: no repetition of schema {SCHEMA}.")
    return records


def _whole_lines(path: Path) -> bytes:
    content = path.read_bytes() if path.exists() else b""
    return content[: content.rfind(b"\n") + 1]


def summary(records: Sequence[Record]) -> str:
    """Return alarms, the bound of their rate, and the spread of the verdicts.

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


Blocks = tuple[Slowdowns, Slowdowns]


def blocks_of(records: Sequence[Record], benchmark: str) -> list[Blocks]:
    """Return slowdowns of the first and of the further launches of a benchmark, by repetition.

    The further launches of a repetition that needed none are the next one's, and for the last one the first one's. Of
    schema 1, a repetition is one launch. As many such as a measurement has launches, spread over the file, are taken
    for one repetition, which starts with each; so they share launches, and their bounds are narrower than they look.
    """
    found: list[Blocks] = []
    for i, record in enumerate(records):
        if record["schema_version"] == SCHEMA:
            launches, count = record["benchmarks"][benchmark]["slowdowns"], record["launches"]
            after = records[(i + 1) % len(records)]["benchmarks"][benchmark]["slowdowns"]
            launches = [*launches[:count], *(launches[count:] or after[:count])]
        else:
            spread = [records[(i + j * len(records) // (2 * LAUNCHES)) % len(records)] for j in range(2 * LAUNCHES)]
            parts = [one["benchmarks"][benchmark] for one in spread]
            rounds = BENCHMARKS[benchmark].rounds
            launches = [
                [own / other for own, other in zip(part["tree"][:rounds], part["base"][:rounds], strict=True)]
                for part in parts
            ]
        found.append((launches[: len(launches) // 2], launches[len(launches) // 2 :]))
    return found


def _scaled(slowdowns: Slowdowns, factor: float) -> Slowdowns:
    return [[one * factor for one in launch] for launch in slowdowns]


def _decided(blocks: Blocks, tolerance: float) -> Decision:
    """Return the gate's rule, where the further launches are there already."""
    return decide(blocks[0], tolerance, lambda: blocks[1])


def _caught(blocks: Blocks, factor: float, tolerance: float) -> tuple[bool, bool]:
    """Return whether the rule alarms, and whether one would that requires the ranges to lie above the tolerance."""
    first, further = (_scaled(part, factor) for part in blocks)
    rule = _decided((first, further), tolerance).kind == "regression"
    lows = [estimate(part).low for part in (first, further)] if rule else [None]
    return rule, all(low is not None and low >= 1 + tolerance for low in lows)


def power(records: Sequence[Record]) -> str:
    """Return a table: in how many repetitions the gate alarms where the tree is slower by each of :data:`SCALES`.

    By benchmark, and of any one of them; with the 95 % bounds of the rates, one-sided.
    """
    if not records:
        return "no repetition is recorded"
    lines = ["alarms where the tree's times are multiplied by a factor; in brackets, were the ranges to lie above"]
    names = list(records[0]["benchmarks"])
    of = {name: blocks_of(records, name) for name in names}
    for factor in SCALES:
        alarms = {name: [_caught(one, factor, BENCHMARKS[name].tolerance) for one in of[name]] for name in names}
        together = list(zip(*alarms.values(), strict=True))
        alarms["any"] = [(any(one[0] for one in own), any(one[1] for one in own)) for own in together]
        for name, own in alarms.items():
            count, strict = (sum(kind) for kind in zip(*own, strict=True))
            low, high = lower_bound(count, len(own)), upper_bound(count, len(own))
            lines.append(f"x {factor:.2f}  {name:22} {count:3} of {len(own)} [{low:.3f}, {high:.3f}]  ({strict})")
    return "\n".join(lines)


def _repetition(tree: Path, base: Path, number: int, settings: Record) -> dict[str, Any]:
    """Run the timed part once; return verdicts by benchmark, with the measurements."""
    parts: dict[str, Any] = {}
    planted, launches = settings["planted"], settings["launches"]
    for name, first in measure([tree, base], settings["of"], number, planted, launches).items():
        if first.missing:
            raise GateError(f"{name} cannot run in {base} ({first.missing[1]}).")
        all_of = [first]

        def again(name: str = name, all_of: list[Measured] = all_of) -> Slowdowns:
            all_of.append(measure([tree, base], [name], number + _FURTHER, planted, launches)[name])
            return all_of[-1].slowdowns(1)

        decision = decide(first.slowdowns(1), BENCHMARKS[name].tolerance, again)
        slowdowns = itertools.chain.from_iterable(one.slowdowns(1) for one in all_of)
        turns = [itertools.chain.from_iterable(one.turns[of] for one in all_of) for of in range(2)]
        parts[name] = {
            "kind": decision.kind,
            "slowdowns": [[round(one, 5) for one in launch] for launch in slowdowns],
            "seconds": [[[_rounded(turn.medians()) for turn in launch] for launch in of] for of in turns],
        }
    return {"alarm": any(part["kind"] == "regression" for part in parts.values()), "benchmarks": parts}


def _rounded(seconds: Sequence[float]) -> list[float]:
    return [float(f"{one:.5g}") for one in seconds]


@contextlib.contextmanager
def _busy() -> Iterator[None]:
    """Keep a core busy with a process."""
    with subprocess.Popen([sys.executable, "-c", _BUSY]) as process:
        try:
            yield
        finally:
            process.kill()


def repeat(path: Path, repetitions: int, settings: dict[str, Any], elsewhere: bool = False) -> None:
    """Bring the repetitions in ``path`` up to so many.

    ``settings`` are ``launches``, ``planted``, ``busy`` and ``of``, the benchmarks; ``elsewhere`` says that the caller
    keeps another core busy. Raises GateError: no commit, a worker that ended, or a file of another gate's
    code or other settings.
    """
    commit = commit_of(ROOT, "HEAD")
    if commit is None:
        raise GateError("There is no commit to compare with itself: the tree is no git repository.")
    settings = {"gate": gate_code(), **settings}
    done = read(path)
    for record in done:
        if other := [name for name in _SETTINGS if record.get(name) != settings[name]]:
            there, here = ({name: one.get(name) for name in other} for one in (record, settings))
            raise GateError(f"{path} holds repetitions with {there}, these would have {here}; name another file.")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_whole_lines(path))
    with (
        worktree(ROOT, commit) as tree,
        worktree(ROOT, commit) as base,
        _busy() if settings["busy"] and not elsewhere else contextlib.nullcontext(),
    ):
        start, alarms = time.monotonic(), sum(record["alarm"] for record in done)
        for number in range(len(done), repetitions):
            began = time.monotonic()
            result = _repetition(tree, base, number, settings)
            head = {
                "schema_version": SCHEMA,
                "repetition": number,
                "recorded_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "commit": commit,
                **settings,
                **({"load": _LOADS[elsewhere]} if settings["busy"] else {}),
                "device": device_name(on_cpu=True),
                "threads": THREADS,
                "torch_version": torch.__version__,
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
    parser = Parser(prog="python tools/gate_power.py", description=_DESCRIPTION)
    parser.add_argument("--repetitions", type=int, default=60, help="how many there shall be (default: 60)")
    parser.add_argument(
        "--launches",
        type=int,
        default=LAUNCHES,
        help=f"of a measurement, before those that confirm (default: {LAUNCHES})",
    )
    parser.add_argument("--planted", type=float, default=0.0, help="share by which the tree under test is made slower")
    parser.add_argument(
        "--busy",
        nargs="?",
        const="here",
        choices=("here", "elsewhere"),
        help="keep another core busy meanwhile; elsewhere: one that something else keeps busy, such as a training",
    )
    parser.add_argument(
        "--of", nargs="+", metavar="NAME", default=list(BENCHMARKS), help="benchmarks to measure (default: all)"
    )
    parser.add_argument(
        "--into",
        metavar="FILE",
        type=Path,
        default=Path("results") / "local" / "gate" / "repetitions.jsonl",
        help="where they are recorded (default: results/local/gate/repetitions.jsonl)",
    )
    parser.add_argument("--summary", action="store_true", help="measure nothing, print the summary of what is recorded")
    parser.add_argument("--power", action="store_true", help="as --summary, and what it says of scaled blocks")
    arguments = parser.parse_args(argv)
    for name in ("repetitions", "launches"):
        if getattr(arguments, name) < 1:
            stop_with(f"--{name} is {getattr(arguments, name)}; allowed: whole numbers from 1.")
    if not 0 <= arguments.planted <= 1:
        stop_with(f"--planted is {arguments.planted}; allowed: shares from 0 to 1.")
    if unknown := [name for name in arguments.of if name not in BENCHMARKS]:
        stop_with(f"--of names {unknown[0]!r}; allowed: {', '.join(BENCHMARKS)}.")
    # A polite kill cleans up as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    torch.set_num_threads(THREADS)  # as the workers; the device's name says so
    path: Path = arguments.into
    try:
        if not (arguments.summary or arguments.power):
            settings = {name: getattr(arguments, name) for name in ("launches", "planted", "of")}
            settings["busy"] = arguments.busy is not None
            repeat(path, arguments.repetitions, settings, arguments.busy == "elsewhere")
        print(f"{path}: {summary(read(path))}")
        if arguments.power:
            print(power(read(path)))
    except GateError as error:
        stop_with(str(error))
    except OSError as error:
        stop_with(f"--into is '{path}', which cannot be used ({error.strerror}); name another file.")
    except KeyboardInterrupt:
        stop_with("stopped; the same command goes on from here.", 130)


if __name__ == "__main__":
    main()
