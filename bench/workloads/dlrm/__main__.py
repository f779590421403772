"""``python -m bench.workloads.dlrm FOLDER`` reads Criteo's log of a folder into arrays, or goes on with it."""

import sys
from pathlib import Path

from bench.data.corpus import DataError
from bench.workloads.dlrm.criteo import SOURCE, prepare, target_of


def main(arguments: list[str]) -> None:
    """Read the log of the folder that is named, with progress on the other stream."""
    if len(arguments) != 1:
        raise SystemExit(f"{len(arguments)} folders are named; name the one with {SOURCE}.")
    folder = Path(arguments[0])
    try:
        state = prepare(folder, target_of(folder), lambda text: print(text, file=sys.stderr, flush=True))
    except (DataError, OSError) as error:
        raise SystemExit(str(error)) from None
    print(f"{state['lines']:,} lines in '{target_of(folder)}', {state['wrong']:,} wrong ones named in wrong_lines.txt")


if __name__ == "__main__":
    main(sys.argv[1:])
