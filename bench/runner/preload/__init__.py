"""Heavy imports of a cell's process, paid once by the server that the processes are forked from.

The server imports :mod:`bench.runner.preload.each_cell`, and one further module for each arm of a library that takes
seconds to import. A library that is not installed is left out; the arm that needs it is recorded with the reason.
"""

from collections.abc import Iterable

from bench.processes.process import preload

#: Methods that have a module in this folder.
HEAVY = ("galore", "lora")


def prepare_processes(methods: Iterable[str]) -> None:
    """Choose what the server imports for processes of these methods; without effect once it has started."""
    for name in ("each_cell", *(method for method in HEAVY if method in set(methods))):
        preload(f"{__name__}.{name}")
