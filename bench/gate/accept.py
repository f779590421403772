"""Accept the present numbers of the exact benchmarks as the baseline: ``make gate-accept``."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import track

from bench.gate.baseline import baseline_path, read_baseline, write_baseline
from bench.gate.differences import as_table, differences
from bench.gate.errors import GateError
from bench.gate.exact import all_benchmarks, measure

#: Columns of a table that goes to a file.
_WIDTH = 120


def main() -> None:
    """Count everything anew, show what has changed, and write the baseline."""
    errors, output = Console(stderr=True), Console(width=None if sys.stdout.isatty() else _WIDTH)
    try:
        old = read_baseline()
    except GateError as error:
        errors.print(f"{error} Every benchmark counts as new.", soft_wrap=True)
        old = {}
    benchmarks = track(all_benchmarks(), "counting", console=errors, disable=not sys.stderr.isatty())
    new = {benchmark.name: measure(benchmark) for benchmark in benchmarks}
    found = [one for name in sorted({*old, *new}) for one in differences(name, old.get(name), new.get(name))]
    if found:
        output.print(as_table(found))
    else:
        output.print("Nothing has changed.")
    write_baseline(new)
    path = baseline_path()
    output.print(
        f"{path.name} holds {len(new)} benchmarks; commit it with the change that it belongs to.", soft_wrap=True
    )


if __name__ == "__main__":
    main()
