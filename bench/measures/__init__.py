"""The measures there are, by name: those of this folder, and those of modules that the environment names.

A measure is a :class:`Measure`. It is found in a module that names it in ``MEASURE``, or among ``MEASURES``: one of
``bench/measures``, or one that the variable ``BENCH_PLUGINS`` of the environment names. No other module of the bench
names a measure.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.core.cell import Cell
from bench.core.plugins import Registry
from bench.core.record import Record
from bench.errors import ConfigError
from bench.processes.process import answers
from bench.protocol import Outcome, Session, Workload
from bench.step.low_precision import PRECISIONS


def described(record: Record) -> str:
    """Return the main numbers of a record in words."""
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


def _same(cell: Cell, config: Mapping[str, Any], workload: Workload) -> list[Cell]:  # noqa: ARG001
    return [cell]


def _cost(cell: Cell) -> float:
    return (cell.timing_settings.get("blocks", 0) + 3) * (1.0 + 0.2 * cell.batch_size)


@dataclass(frozen=True, kw_only=True)
class Measure:
    """Measure of a cell; without ``serve`` and ``outcomes`` it raises ConfigError.

    ``serve`` makes a record's columns from a cell and its workload, in a process of the cell's own; under ``samples``
    lies what records have no column for, under ``failure`` why the cell is an ``error``. Where that is not enough,
    ``outcomes`` says what becomes of the cells of a job, in lists that are recorded together.

    >>> def weigh(cell, workload):
    ...     return {"parameters": sum(p.numel() for p in workload.build().parameters())}
    >>> Measure(name="weight", words="count parameters", serve=weigh).on_device
    True
    """

    name: str  # by which a configuration asks for it
    words: str  # what it does, as a line of the help
    serve: Callable[[Cell, Workload], dict[str, Any]] | None = None
    outcomes: Callable[[Sequence[Cell], Session], Iterator[list[Outcome]]] | None = None
    unsupported: Callable[[Cell], str | None] = lambda _: None  # why a cell cannot be measured
    expand: Callable[[Cell, Mapping[str, Any], Workload], list[Cell]] = _same  # the cells that one stands for
    about: str = ""  # what it measures, for the sentence on a workload or method that it is not about
    workloads: Callable[[type[Any]], bool] = lambda _: True  # whether it is about a class of workloads
    precisions: tuple[str, ...] = PRECISIONS  # those that it has something to say about
    methods: tuple[str, ...] = ()  # those that it is about; all, where there is none
    parallel: bool = False  # cells run side by side, with one thread each, instead of one after another
    paired: bool = False  # arms are compared within a job, so that one without a ratio carries that of the others
    on_device: bool = True  # it needs the cell's device
    timed: bool = True  # the timing settings are part of its cells
    resumes: bool = False  # a cell that was stopped goes on where it was
    on_ranks: bool = False  # cells may have several ranks
    cost: Callable[[Cell], float] = _cost  # of a cell, in no particular unit, for progress
    text: Callable[[Record], str] = described  # a record's numbers in words, for progress

    def __post_init__(self) -> None:
        if self.serve is None and self.outcomes is None:
            raise ConfigError(f"measure {self.name!r} lacks serve, which makes a record's columns.")

    def refusal(self, cell: Cell) -> str | None:
        """Explain why this measure has nothing to show of a cell; None if it has."""
        if (reason := self.unsupported(cell)) or cell.precision in self.precisions:
            return reason
        allowed = ", ".join(self.precisions)
        return f"precision={cell.precision} is not measured with measure={self.name}; use {allowed}."


_REGISTRY: Registry[Measure] = Registry(
    kind="measure",
    package=__name__,
    missing=lambda measure: [name for name in Measure.__dataclass_fields__ if not hasattr(measure, name)],
)
available, named = _REGISTRY.names, _REGISTRY.named


def outcomes_of(measure: Measure, cells: Sequence[Cell], session: Session) -> Iterator[list[Outcome]]:
    """Yield the outcomes of the cells of a job; outcomes of one list are recorded together."""
    if measure.outcomes is not None:
        return measure.outcomes(cells, session)
    assert measure.serve is not None
    parallel = session.parallel if measure.parallel else None
    return ([outcome] for outcome in answers(measure.serve, cells, session.data, parallel))
