"""The encoder's matrices as rows: each dense, in its published tensorization, and in the one solved for that ratio."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.core.intervals import Estimate, mean_interval
from bench.core.record import Record, RecordError
from bench.core.samples import block_means_ms, disturbed_blocks
from figures.matrices import MATRICES, Cores, Matrix
from figures.page.table import NOT_RECORDED, OLDER
from figures.records.select import config_of, device_kind
from figures.records.time_values import time_ratio

#: The lines of a matrix.
SETTINGS = DENSE, PAPER, SOLVER = ("dense", "paper", "solver")

#: The experiment writes the published settings' ratios down in five or six digits.
_RATIO_DIGITS = 1e-4

#: How a record names rows and columns of a matrix, their modes, and the settings for the number of modes and the ranks.
_SIZES = {"linear": ("in_features", "out_features"), "lookup": ("rows", "columns")}
_MODES = {"linear": ("in_modes", "out_modes"), "lookup": ("row_modes", "column_modes")}
_CAPS = {"linear": ("order", "ranks"), "lookup": ("table_order", "table_ranks")}

#: A matrix and one of SETTINGS.
Slot = tuple[Matrix, str]


@dataclass(frozen=True)
class Comparison:
    """The records of one device, at most one per slot; a cell without record is simply absent."""

    device: str
    kind: str  # "cpu" or "cuda"
    chosen: Mapping[Slot, Record]
    left_out: tuple[str, ...]

    @property
    def shown(self) -> list[Record]:
        """Every record shown, oldest first."""
        return sorted(self.chosen.values(), key=lambda record: (record.recorded_at, record.cell_id))

    def older(self, record: Record) -> str:
        """The mark of a record that other code made than the newest one."""
        return OLDER if record.code_id != self.shown[-1].code_id else ""

    def values(self, column: str) -> list[Any]:
        """The distinct values of a column among the records shown."""
        return sorted({getattr(record, column) for record in self.chosen.values()})


@dataclass(frozen=True)
class Row:
    """One line of the table; times in ms per step."""

    matrix: Matrix
    setting: str
    record: Record | None = None
    mark: str = ""  # † where older code made the record
    cores: Cores | None = None
    step: Estimate | None = None
    over_dense: Estimate | None = None
    over_paper: Estimate | None = None  # of the solver's line alone

    @property
    def status(self) -> str:
        """``ok``, or the words that stand in place of the time."""
        if self.record is None:
            return NOT_RECORDED
        return "no time" if self.record.status == "ok" and self.step is None else self.record.status

    @property
    def parameters(self) -> int | None:
        """Entries of the weight, or of the cores as modes and ranks have it, bias apart."""
        if self.setting == DENSE:
            return self.matrix.size
        return self.cores.parameters if self.cores else None

    @property
    def ratio(self) -> float | None:
        """How many times smaller the layer is than the dense one."""
        if self.setting == DENSE:
            return 1.0
        return self.matrix.ratio(self.cores) if self.cores else None

    @property
    def repeats_the_paper(self) -> bool:
        """Whether the solver arrives at what was published."""
        return self.setting == SOLVER and self.cores == self.matrix.published

    @property
    def disturbed(self) -> int:
        """Blocks that are left out."""
        return disturbed_blocks(self.record) if self.record else 0

    @property
    def remarks(self) -> list[str]:
        """What went wrong, and what the numbers alone do not say."""
        found = [] if self.record is None else [*self._failures(self.record), *self._miscounts(self.record)]
        if self.setting == PAPER and self.cores not in (None, self.matrix.published):
            found.append("not the published modes and ranks")
        if self.repeats_the_paper:
            found.append("the paper's own modes and ranks")
        if self.disturbed:
            found.append(f"{self.disturbed} disturbed block(s) left out")
        return found

    def _failures(self, record: Record) -> list[str]:
        words = record.message if self.status == "ok" else ": ".join(filter(None, (self.status, record.message)))
        return [words] if words else []

    def _miscounts(self, record: Record) -> list[str]:
        """Where the record counts other parameters than its modes and ranks have, or does not hold these."""
        if self.parameters is None:
            return ["modes and ranks are not in the record"] if record.status == "ok" else []
        counted = self.parameters + (self.cores.rank_entries if self.cores else 0) + self.matrix.bias
        if record.parameters in (None, counted):
            return []
        source = "modes and ranks" if self.cores else "its size"
        return [f"the record counts {record.parameters:,} parameters with bias; {counted:,} follow from {source}"]


def cores_of(record: Record) -> Cores | None:
    """Modes and ranks of the record's one tensorized layer; None where it holds none.

    Raises:
        RecordError: something else in their place, in one sentence.
    """
    layers = record.samples.get("tensorized")
    if layers is None:
        return None
    names = (*_MODES[record.workload], "ranks")
    try:
        [layer] = layers
        row_modes, column_modes, ranks = (tuple(operator.index(size) for size in layer[name]) for name in names)
        cores = Cores(row_modes, column_modes, ranks, is_table=record.workload == "lookup")
        _ = cores.parameters
    except (KeyError, TypeError, ValueError):
        raise RecordError(
            f"record {record.cell_id}: samples.tensorized is {layers!r}; expected {', '.join(names)} of one layer, "
            "which fit one another."
        ) from None
    return cores


def _matrix(record: Record) -> Matrix | None:
    """The matrix that a record is about; None for others."""
    sizes = config_of(record).get("workload_settings", {})
    here = (record.workload, *(sizes.get(name) for name in _SIZES.get(record.workload, ())))
    return next((one for one in MATRICES if (one.workload, one.rows, one.columns) == here), None)


def _slot(record: Record) -> Slot | None:
    """The line that a record belongs to; None for other matrices, methods, look-ups, modes, ranks and ratios."""
    matrix = _matrix(record)
    if matrix is None or record.measure != "run":
        return None
    if record.arm == "dense":
        return matrix, DENSE
    settings = config_of(record).get("method_settings", {})
    order, ranks = (settings.get(name) for name in _CAPS[matrix.workload])
    fits = order == len(matrix.published.row_modes) and settings.get("lookup") == "optimized"
    if record.arm != "comera" or not fits:
        return None
    if record.ratio is None:
        return (matrix, PAPER) if ranks == max(matrix.published.ranks) else None
    wanted = math.isclose(record.ratio, matrix.ratio(matrix.published), rel_tol=_RATIO_DIGITS)
    return (matrix, SOLVER) if wanted else None


def has_optimizer_step(record: Record) -> bool:
    """Whether a step ends with the optimizer's."""
    return bool(config_of(record).get("workload_settings", {}).get("optimizer_step", True))


def _job(record: Record) -> str:
    """What must be equal for two records to stand in one table."""
    toggles = (record.precision, record.cuda_graph, record.compile, has_optimizer_step(record))
    return json.dumps([record.batch_size, *toggles])


def _main(slots: Sequence[tuple[Slot, Record]], key: Callable[[Record], str]) -> list[tuple[Slot, Record]]:
    """The records with the key that most slots have; the newest of those where several have as many."""
    groups: dict[str, list[tuple[Slot, Record]]] = {}
    for slot, record in slots:
        groups.setdefault(key(record), []).append((slot, record))

    def weight(name: str) -> tuple[int, str, str]:
        return len({slot for slot, _ in groups[name]}), max(record.recorded_at for _, record in groups[name]), name

    return groups[max(groups, key=weight)] if groups else []


def select(records: Sequence[Record], device: str) -> Comparison:
    """Choose what the table of ``device`` shows; other devices are never looked at."""
    mine = [record for record in records if record.device == device]
    alike = _main([(slot, record) for record in mine if (slot := _slot(record))], _job)
    candidates: dict[Slot, list[Record]] = {}
    for matrix in MATRICES:
        for slot, record in _main([one for one in alike if one[0][0] == matrix], lambda record: record.dataset):
            candidates.setdefault(slot, []).append(record)
    fitting = sum(map(len, candidates.values()))
    notes = []
    if others := len(mine) - fitting:
        notes.append(f"{others} record(s) of other matrices, methods, modes, ranks, ratios or settings are left out.")
    if older := fitting - len(candidates):
        notes.append(f"{older} further record(s) of the cells shown are left out; the newest of each is shown.")
    chosen = {slot: max(those, key=lambda r: (r.recorded_at, r.cell_id)) for slot, those in candidates.items()}
    return Comparison(device, device_kind(mine), chosen, tuple(notes))


def _step(record: Record) -> Estimate | None:
    """Time per step in ms; without an undisturbed block the record's own median, without interval."""
    if record.status != "ok":
        return None
    if means := list(block_means_ms(record).values()):
        return mean_interval(means)
    median = record.step_time_median_ms
    return None if median is None else Estimate(median, None, None, 0)


def _row(comparison: Comparison, matrix: Matrix, setting: str) -> Row:
    record, dense, paper = (comparison.chosen.get((matrix, one)) for one in (setting, DENSE, PAPER))
    if record is None:
        return Row(matrix, setting)
    return Row(
        matrix,
        setting,
        record,
        comparison.older(record),
        cores_of(record) if setting != DENSE else None,
        _step(record),
        time_ratio(record, dense) if dense and setting != DENSE else None,
        time_ratio(record, paper) if paper and setting == SOLVER else None,
    )


def rows_of(comparison: Comparison) -> list[Row]:
    """Every setting of every matrix."""
    return [_row(comparison, matrix, setting) for matrix in MATRICES for setting in SETTINGS]
