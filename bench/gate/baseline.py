"""The baseline: what the exact benchmarks counted when their numbers were last accepted, a file per version of PyTorch.

A file holds the numbers by benchmark, sorted, and a hash over its content, so that a number written in by hand is not
taken for one that was counted. ``make gate-accept`` runs this module, which shows what has changed and writes the file.
"""

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Column, Table

from bench.errors import TERMINAL, Parser
from bench.gate import GateError, Regression
from bench.gate.exact import QUANTITIES, Numbers, all_benchmarks, measure

FOLDER = Path(__file__).parent / "baselines"
SCHEMA = 1

_FIELDS = ("schema", "torch", "content_hash", "benchmarks")

#: Names of a change, by the word that it results in.
_CHANGES = {"present": "new", "absent": "vanished", "supported": "won", "unsupported": "lost"}


def torch_version() -> str:
    """Return the version of PyTorch without its local part: builds for a CPU and for CUDA trace the same operations."""
    return str(torch.__version__).partition("+")[0]


def baseline_path() -> Path:
    """Return the path of the baseline of this version of PyTorch."""
    return FOLDER / f"torch-{torch_version()}.json"


def read_baseline() -> dict[str, Numbers]:
    """Return the accepted numbers by benchmark.

    Raises GateError: there is none for this version of PyTorch, or it is not as :func:`write_baseline` left it.
    """
    path = baseline_path()
    content: Any = None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        problem = _problem(content)
    except FileNotFoundError:
        there = ", ".join(sorted(file.stem.removeprefix("torch-") for file in FOLDER.glob("torch-*.json"))) or "none"
        raise GateError(
            f"There is no baseline for torch {torch_version()} (there are: {there}); make gate-accept writes it."
        ) from None
    except (OSError, ValueError) as error:
        problem = f"cannot be read ({' '.join(str(error).split())})"
    if problem:
        raise GateError(f"{path.name} {problem}; make gate-accept writes it.")
    return content["benchmarks"]


def _problem(content: Any) -> str | None:
    """Name the mistake in the content of a file; None if there is none."""
    if not isinstance(content, dict) or set(content) != set(_FIELDS):
        return f"is no baseline, which has {', '.join(_FIELDS)}"
    if content["schema"] != SCHEMA:
        return f"has schema {content['schema']!r}, this gate reads {SCHEMA}"
    if content["content_hash"] != _content_hash(content):
        return "was edited by hand: its content does not have the hash it states"
    if content["torch"] != torch_version():
        return f"holds numbers of torch {content['torch']}"
    for name, numbers in content["benchmarks"].items():
        if numbers != "unsupported" and set(numbers) != set(QUANTITIES):
            return f"has other quantities than this gate counts, in {name}"
    return None


def write_baseline(benchmarks: Mapping[str, Numbers]) -> None:
    """Write the baseline of this version of PyTorch."""
    content = {"schema": SCHEMA, "torch": torch_version(), "benchmarks": dict(sorted(benchmarks.items()))}
    text = json.dumps({"content_hash": _content_hash(content), **content}, indent=1)
    baseline_path().parent.mkdir(exist_ok=True)
    baseline_path().write_text(text + "\n", encoding="utf-8")


def _content_hash(content: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in content.items() if name != "content_hash"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@dataclass(frozen=True)
class Difference:
    """A changed quantity: numbers, or words for whether a benchmark exists or an arm is supported."""

    benchmark: str
    quantity: str
    old: int | str
    new: int | str

    @property
    def change(self) -> str:
        """The change in percent, or in a word.

        >>> Difference("layer", "flops_per_step", 200, 201).change
        '+0.5 %'
        """
        if isinstance(self.old, int) and isinstance(self.new, int):
            return f"{100 * (self.new - self.old) / self.old:+.3g} %" if self.old else "from nothing"
        return _CHANGES[str(self.new)]

    @property
    def better(self) -> bool:
        """Return whether there is less of the quantity, or support where there was none."""
        if isinstance(self.old, int) and isinstance(self.new, int):
            return self.new < self.old
        return self.new == "supported"

    def cells(self) -> tuple[str, ...]:
        """Return a row of the table: benchmark, quantity, old, new, change."""
        old, new = (f"{value:,}" if isinstance(value, int) else value for value in (self.old, self.new))
        return self.benchmark, self.quantity, old, new, self.change

    def __str__(self) -> str:
        name, quantity, old, new, change = self.cells()
        end = ", better than the baseline: accept with make gate-accept" if self.better else ", worse than the baseline"
        end = ": accept with make gate-accept" if quantity == "benchmark" else end
        return f"{name}: {quantity} was {old}, is {new} ({change}){end}"


def differences(name: str, old: Numbers | None, new: Numbers | None) -> list[Difference]:
    """Return all changed quantities of a benchmark; None where there was no such benchmark, or is none.

    >>> for difference in differences("layer", {"parameters": 7}, {"parameters": 6}):
    ...     print(difference)
    layer: parameters was 7, is 6 (-14.3 %), better than the baseline: accept with make gate-accept
    >>> print(*differences("layer", None, {"parameters": 6}))
    layer: benchmark was absent, is present (new): accept with make gate-accept
    """
    pairs: list[tuple[Any, ...]]
    if old is None or new is None:
        pairs = [("benchmark", *("absent" if numbers is None else "present" for numbers in (old, new)))]
    elif isinstance(old, str) or isinstance(new, str):
        pairs = [("arm", *("unsupported" if isinstance(numbers, str) else "supported" for numbers in (old, new)))]
    else:
        pairs = [(quantity, old[quantity], new[quantity]) for quantity in old]
    return [Difference(name, quantity, before, after) for quantity, before, after in pairs if before != after]


def refuse(found: Sequence[Difference]) -> None:
    """Raise Regression over any difference, with a line for each."""
    if found:
        raise Regression("\n".join(map(str, found)))


def main() -> None:
    """Count everything again, print the changes, and write the baseline."""
    errors, output = Console(stderr=True), Console(width=TERMINAL)
    old: dict[str, Numbers] = {}
    try:
        old = read_baseline()
    except GateError as error:
        errors.print(f"{error} Every benchmark counts as new.", soft_wrap=True)
    benchmarks = track(all_benchmarks(), "counting", console=errors, disable=not sys.stderr.isatty())
    new = {benchmark.name: measure(benchmark) for benchmark in benchmarks}
    found = [one for name in sorted({*old, *new}) for one in differences(name, old.get(name), new.get(name))]
    names = (Column(heading, overflow="fold") for heading in ("benchmark", "quantity"))
    numbers = (Column(heading, justify="right", no_wrap=True) for heading in ("old", "new", "change"))
    table = Table(*names, *numbers, box=box.SIMPLE)
    for one in found:
        table.add_row(*one.cells())
    output.print(table if found else "Nothing has changed.")
    write_baseline(new)
    sentence = f"{baseline_path().name} holds {len(new)} benchmarks; commit it with the change that it belongs to."
    output.print(sentence, soft_wrap=True)


if __name__ == "__main__":
    Parser(prog="python -m bench.gate.baseline", description=main.__doc__).parse_args()
    main()
