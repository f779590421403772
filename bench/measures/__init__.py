"""The measures there are, by name: those of this folder, those of other packages, and those registered by hand.

A measure is a :class:`Measure`. It is found

* in a module of ``bench/measures`` that names it in ``MEASURE``;
* through an entry point of another package, group ``comera_bench.measures``;
* through :func:`register`, in this process and in those of its cells.

No other module of the bench names a measure.
"""

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.core.cell import Cell
from bench.core.plugins import Registry
from bench.core.record import Record
from bench.errors import ConfigError
from bench.protocol import Outcome, Session, Workload


def _any_workload(workload: type[Any]) -> bool:  # noqa: ARG001 - the class is passed to whatever decides
    return True


def _supported(cell: Cell) -> str | None:  # noqa: ARG001
    return None


def _same(cell: Cell, config: Mapping[str, Any], workload: Workload) -> list[Cell]:  # noqa: ARG001
    return [cell]


def _cost(cell: Cell) -> float:
    return (cell.timing_settings.get("blocks", 0) + 3) * (1.0 + 0.2 * cell.batch_size)


def described(record: Record) -> str:
    """The main numbers of a record in words."""
    parts = []
    if record.leading is not None:
        metric = f"{record.metric['text']} {record.leading:.4g} {record.metric['unit']}".rstrip()
        parts.append(f"{metric}, {record.stored_mib:.2f} MiB stored")
    if record.step_time_median_ms:
        parts.append(f"{record.step_time_median_ms:,.0f} ms per step")
    if record.peak_memory_predicted_mib:
        parts.append(f"{record.peak_memory_predicted_mib:,.0f} MiB predicted for {record.predicted_for}")
    if record.peak_memory_allocated_mib:
        parts.append(f"{record.peak_memory_allocated_mib:,.0f} MiB measured")
    return ", ".join(parts)


@dataclass(frozen=True, kw_only=True)
class Measure:
    """What is measured of a cell, and how; either ``serve`` or ``outcomes`` is given.

    Args:
        name: by which a configuration asks for it.
        words: what it does, as a line of the help.
        serve: makes a record's columns from a cell and its workload, in a process of the cell's own; under ``samples``
            lies what records have no column for, under ``failure`` why the cell is an ``error``.
        outcomes: where that is not enough, what becomes of the cells of a job, in lists that are recorded together.
        unsupported: why a cell cannot be measured, or None; asked before anything is built.
        expand: the cells that one cell of a configuration stands for.
        about: what it measures, for the sentence on a workload or method that it is not about.
        workloads: whether it is about a class of workloads.
        methods: those that it is about; all, where there is none.
        parallel: whether cells run side by side, with one thread each, instead of one after another.
        together: whether a campaign starts all cells of a job or none.
        paired: whether arms are compared within a job, so that one without a ratio carries that of the others.
        on_device: whether it needs the cell's device.
        timed: whether the timing settings are part of its cells.
        resumes: whether a cell that was stopped goes on where it was.
        cost: of a cell in no particular unit, for progress.
        seconds: that a cell is expected to take where nothing like it has run yet; of one that resumes, what a start
            is worth.
        text: a record's numbers in words, for progress.

    Raises ConfigError: there is neither ``serve`` nor ``outcomes``.

    >>> def weigh(cell, workload):
    ...     return {"parameters": sum(p.numel() for p in workload.build().parameters())}
    >>> Measure(name="weight", words="count parameters", serve=weigh).on_device
    True
    """

    name: str
    words: str
    serve: Callable[[Cell, Workload], dict[str, Any]] | None = None
    outcomes: Callable[[Sequence[Cell], Session], Iterator[list[Outcome]]] | None = None
    unsupported: Callable[[Cell], str | None] = _supported
    expand: Callable[[Cell, Mapping[str, Any], Workload], list[Cell]] = _same
    about: str = ""
    workloads: Callable[[type[Any]], bool] = _any_workload
    methods: tuple[str, ...] = ()
    parallel: bool = False
    together: bool = False
    paired: bool = False
    on_device: bool = True
    timed: bool = True
    resumes: bool = False
    cost: Callable[[Cell], float] = _cost
    seconds: float = 30.0
    text: Callable[[Record], str] = described

    def __post_init__(self) -> None:
        if self.serve is None and self.outcomes is None:
            raise ConfigError(f"measure {self.name!r} lacks serve, which makes a record's columns.")

    @property
    def module(self) -> str:
        """Of the function that measures."""
        return str((self.serve or self.outcomes).__module__)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, ...]]:
        for name, value in vars(sys.modules[self.module]).items():
            if value is self:  # by reference, so that its functions need not be importable one by one
                return _attribute, (self.module, name)
        raise ConfigError(f"no name of module {self.module} holds it")


def _attribute(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def _missing(measure: Any) -> list[str]:
    return [name for name in ("module", *Measure.__dataclass_fields__) if not hasattr(measure, name)]


_REGISTRY: Registry[Measure] = Registry(
    "measure", __name__, _missing, lambda measure: f"{measure.module}.{measure.name}"
)
register, registered, adopt = _REGISTRY.register, _REGISTRY.registered, _REGISTRY.adopt
available, named = _REGISTRY.names, _REGISTRY.named


def unsupported_toggles(cell: Cell, reason: str) -> str | None:
    """Why ``cuda_graph`` or ``compile`` cannot be had with a measure of plain steps or calls, or None.

    Args:
        cell: it may ask for one of them.
        reason: goes on after ``cuda_graph=true``.
    """
    for toggle in ("cuda_graph", "compile"):
        if getattr(cell, toggle):
            return f"{toggle}=true {reason}; use {toggle}=false."
    return None
