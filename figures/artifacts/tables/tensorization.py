"""The encoder's matrices: the paper's tensorization of each beside the solver's for the same ratio, and the dense one.

A table that touches no claim; one per device.
"""

import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.core.intervals import Estimate
from bench.core.record import Record, RecordError
from bench.core.samples import disturbed_blocks
from figures.artifact import Artifact
from figures.page.drawn import Caption
from figures.page.notes import blocks_timed, last_notes, listed, mark_notes, step_fact
from figures.records.cells import Select, TimesAndMemory
from figures.records.select import COMERA, by_device, method_settings, oldest_first, workload_settings
from figures.records.time_values import TimeCell, mark_words, time_cell, time_ratio
from figures.text import (
    DISTURBED,
    REMARKS,
    UNPAIRED,
    Column,
    bounds,
    brackets_note,
    counted,
    pairing,
    ratio_text,
    significant,
    unpaired,
    with_bounds,
)

#: The lines of a matrix.
SETTINGS = DENSE, PAPER, SOLVER = ("dense", "paper", "solver")

#: The experiment writes the published settings' ratios down in five or six digits.
_RATIO_DIGITS = 1e-4

#: How a record names rows and columns of a matrix, their modes, and the settings for the number of modes and the ranks.
_SIZES = {"linear": ("in_features", "out_features"), "lookup": ("rows", "columns")}
_MODES = {"linear": ("in_modes", "out_modes"), "lookup": ("row_modes", "column_modes")}
_CAPS = {"linear": ("order", "ranks"), "lookup": ("table_order", "table_ranks")}


@dataclass(frozen=True)
class Cores:
    """Modes and ranks of a tensorized matrix, and what follows from them.

    Example:
        >>> cores = Cores((12, 8, 8), (8, 8, 12), (12, 30, 30, 30, 12), is_table=False)
        >>> str(cores), cores.parameters, cores.rank_entries
        ('12·8·8 → 8·8·12', 20448, 114)
        >>> Cores((16, 20, 10, 10), (4, 4, 8, 6), (32, 32, 32), is_table=True).parameters
        167808
    """

    row_modes: tuple[int, ...]  # in-features of a layer, or rows of a table
    column_modes: tuple[int, ...]
    ranks: tuple[int, ...]  # of the inner bonds
    is_table: bool  # whether a core holds a row and a column mode (TTM), or one of either (TT)

    @property
    def parameters(self) -> int:
        """Entries of all cores; raises ValueError where modes and ranks do not fit one another."""
        modes = (*self.row_modes, *self.column_modes)
        if self.is_table:
            modes = tuple(r * c for r, c in zip(self.row_modes, self.column_modes, strict=True))
        bonds = itertools.pairwise((1, *self.ranks, 1))
        return sum(mode * left * right for mode, (left, right) in zip(modes, bonds, strict=True))

    @property
    def rank_entries(self) -> int:
        """Entries of the diagonals on the inner bonds."""
        return sum(self.ranks)

    def __str__(self) -> str:
        rows, columns = ("·".join(map(str, modes)) for modes in (self.row_modes, self.column_modes))
        return f"{rows} {'x' if self.is_table else '→'} {columns}"


@dataclass(frozen=True)
class Matrix:
    """One of the encoder's matrices with its published setting; a linear layer has a bias, a table has none."""

    name: str
    workload: str  # "linear" or "lookup"
    rows: int
    columns: int
    published: Cores
    published_parameters: int

    @property
    def size(self) -> int:
        return self.rows * self.columns

    @property
    def bias(self) -> int:
        return self.columns if self.workload == "linear" else 0

    def ratio(self, cores: Cores) -> float:
        """How many times smaller the layer is than the dense one, rank-control entries and bias counted."""
        return (self.size + self.bias) / (cores.parameters + cores.rank_entries + self.bias)


#: METHOD.md, Settings of the six-encoder model: as the released code has them.
MATRICES = (
    Matrix("attention", "linear", 768, 768, Cores((12, 8, 8), (8, 8, 12), (12, 30, 30, 30, 12), False), 20_448),
    Matrix("feed-forward 1", "linear", 768, 3072, Cores((12, 8, 8), (12, 16, 16), (12, 30, 30, 30, 16), False), 28_960),
    Matrix("feed-forward 2", "linear", 3072, 768, Cores((16, 16, 12), (8, 8, 12), (16, 30, 30, 30, 12), False), 28_960),
    Matrix("word embedding", "lookup", 30_522, 768, Cores((16, 20, 10, 10), (4, 4, 8, 6), (32,) * 3, True), 167_808),
)

#: A matrix and one of SETTINGS.
Slot = tuple[Matrix, str]


@dataclass(frozen=True)
class TensorizationRow:
    """One line of the table."""

    matrix: Matrix
    setting: str
    record: Record | None
    cores: Cores | None
    parameters: int | None  # entries of the weight, or of the cores as modes and ranks have it, bias apart
    ratio: float | None  # how many times smaller the layer is than the dense one
    time: TimeCell  # of a step; its ratio is to the dense layer's
    over_paper: Estimate | None  # of the solver's line alone

    @property
    def step(self) -> Estimate | None:
        return self.time.time.total if self.time.time else None

    @property
    def repeats_the_paper(self) -> bool:
        """Whether the solver arrives at what was published."""
        return self.setting == SOLVER and self.cores == self.matrix.published

    @property
    def remarks(self) -> list[str]:
        """What went wrong, and what the numbers alone do not show."""
        record, words = self.record, []
        if record is None:
            return []
        status = "" if self.time.status == "ok" else self.time.status
        words.append(": ".join(filter(None, (status, record.message))))
        if self.parameters is None and record.status == "ok":
            words.append("modes and ranks are not in the record")
        if self.parameters is not None:
            entries = self.parameters + (self.cores.rank_entries if self.cores else 0) + self.matrix.bias
            if record.parameters not in (None, entries):
                counted = f"the record counts {record.parameters:,} parameters with bias"
                words.append(f"{counted}; {entries:,} follow from {'modes and ranks' if self.cores else 'its size'}")
        if self.setting == PAPER and self.cores not in (None, self.matrix.published):
            words.append("not the published modes and ranks")
        if self.repeats_the_paper:
            words.append("the paper's own modes and ranks")
        if disturbed := disturbed_blocks(record):
            words.append(f"{disturbed} disturbed block(s) left out")
        return list(filter(None, words))


def cores_of(record: Record) -> Cores | None:
    """Modes and ranks of the record's one tensorized layer, None where it holds none; raises RecordError for others."""
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
    sizes = workload_settings(record)
    here = (record.workload, *(sizes.get(name) for name in _SIZES.get(record.workload, ())))
    return next((one for one in MATRICES if (one.workload, one.rows, one.columns) == here), None)


def _slot(record: Record) -> Slot | None:
    """The line that a record belongs to; None for other matrices, methods, look-ups, modes, ranks and ratios."""
    matrix, settings = _matrix(record), method_settings(record)
    if matrix is None:
        return None
    if record.arm == DENSE:
        return matrix, DENSE
    order, ranks = (settings.get(name) for name in _CAPS[matrix.workload])
    if record.arm != COMERA or order != len(matrix.published.row_modes) or settings.get("lookup") != "optimized":
        return None
    if record.ratio is None:
        return (matrix, PAPER) if ranks == max(matrix.published.ranks) else None
    wanted = math.isclose(record.ratio, matrix.ratio(matrix.published), rel_tol=_RATIO_DIGITS)
    return (matrix, SOLVER) if wanted else None


def _with_optimizer(record: Record) -> bool:
    return bool(workload_settings(record).get("optimizer_step", True))


def _setting(record: Record) -> dict[str, Any]:
    toggles = {name: getattr(record, name) for name in ("precision", "cuda_graph", "compile")}
    return {"batch size": record.batch_size, **toggles, "optimizer_step": _with_optimizer(record)}


_SELECT = Select(
    _slot,
    same=_setting,
    same_per_arm=lambda record: {"data": record.dataset},
    arm=lambda record: getattr(_matrix(record), "name", ""),
)


def select(records: Sequence[Record]) -> list[TimesAndMemory]:
    """A selection per device, of the newest record of each line; all of a matrix are on the same data."""
    pages = [_SELECT(mine, TimesAndMemory, **device) for device, mine in by_device(records)]
    return [replace(page, shown=oldest_first(page.timed.values())) for page in pages]


def _row(page: TimesAndMemory, matrix: Matrix, setting: str) -> TensorizationRow:
    record, dense, paper = (page.timed.get((matrix, one)) for one in (setting, DENSE, PAPER))
    time = time_cell(record, dense if setting != DENSE else None, page.older(record), "step")
    over_paper = time_ratio(record, paper) if setting == SOLVER else None
    cores = cores_of(record) if record and setting != DENSE else None
    dense_size = (matrix.size, 1.0) if setting == DENSE else (None, None)
    parameters, ratio = (cores.parameters, matrix.ratio(cores)) if cores else dense_size
    return TensorizationRow(matrix, setting, record, cores, parameters, ratio, time, over_paper)


def rows_of(page: TimesAndMemory) -> list[TensorizationRow]:
    """Every setting of every matrix."""
    return [_row(page, matrix, setting) for matrix in MATRICES for setting in SETTINGS]


def columns(page: TimesAndMemory, rows: Sequence[TensorizationRow]) -> list[Column[TensorizationRow]]:  # noqa: ARG001 - as every artifact
    def of_record(row: TensorizationRow, name: str) -> Any:
        return getattr(row.record, name, None)

    def peak(name: str, heading: str) -> Column[TensorizationRow]:
        return Column(heading, lambda row: significant(of_record(row, f"peak_memory_{name}_mib"), 4))

    def published(row: TensorizationRow) -> int | None:
        return row.matrix.published_parameters if row.setting == PAPER else None

    def sizes(row: TensorizationRow, name: str) -> str:
        return " ".join(map(str, getattr(row.cores, name, ())))

    def modes(row: TensorizationRow) -> object:
        if row.setting == DENSE:
            return f"{row.matrix.rows} {'x' if row.matrix.published.is_table else '→'} {row.matrix.columns}"
        return row.cores

    def time(row: TensorizationRow) -> str:
        if row.step is None:
            return row.time.status
        return f"{with_bounds(row.step)} {'' if row.step.blocks else DISTURBED}".rstrip()

    def over(ratio: Estimate | None, is_itself: bool, row: TensorizationRow) -> str:
        return f"{ratio_text(ratio, is_itself and row.step)} {UNPAIRED * unpaired(ratio)}".rstrip()

    def tidy(row: TensorizationRow) -> dict[str, object]:
        matrix, blocks = row.matrix, (row.step.blocks, row.time.disturbed) if row.step else (None, None)
        return {
            "device": page.device,
            "matrix": matrix.name,
            "rows": matrix.rows,
            "columns": matrix.columns,
            "setting": row.setting,
            "status": row.time.status,
            REMARKS: "; ".join(row.remarks),
            **{name: sizes(row, name) for name in ("row_modes", "column_modes", "ranks")},
            "parameters": row.parameters,
            "published_parameters": published(row),
            "rank_entries": row.cores.rank_entries if row.cores else None,
            "bias": matrix.bias,
            "wanted_ratio": of_record(row, "ratio") if row.setting == SOLVER else None,
            "ratio": row.ratio,
            "recorded_parameters": of_record(row, "parameters"),
            "batch_size": of_record(row, "batch_size"),
            "flops_per_step": of_record(row, "flops_per_step"),
            **bounds("step_time_ms", row.step),
            "launches": row.step and row.step.launches,
            "blocks": blocks[0],
            "disturbed_blocks": blocks[1],
            **bounds("time_over_dense", row.time.ratio),
            "dense_pairing": pairing(row.time.ratio),
            **bounds("time_over_paper", row.over_paper),
            "paper_pairing": pairing(row.over_paper),
            "predicted_for": of_record(row, "predicted_for") or "",
            "predicted_peak_mib": of_record(row, "peak_memory_predicted_mib"),
            "allocated_mib": of_record(row, "peak_memory_allocated_mib"),
            "reserved_mib": of_record(row, "peak_memory_reserved_mib"),
            "older_code": bool(page.older(row.record)),
        }

    return [
        Column("matrix", lambda row: row.matrix.name, left=True),
        Column("setting", lambda row: f"{row.setting} {page.older(row.record)}".rstrip(), left=True),
        Column("modes", modes, left=True),
        Column("ranks", lambda row: sizes(row, "ranks") or None, left=True),
        Column("parameters", lambda row: counted(row.parameters)),
        Column("published", lambda row: counted(published(row))),
        Column("rank entries", lambda row: counted(row.cores.rank_entries if row.cores else None)),
        Column("ratio", lambda row: ratio_text(row.ratio, row.setting == DENSE)),
        Column("GFLOP", lambda row: significant((flops := of_record(row, "flops_per_step")) and flops / 1e9)),
        peak("predicted", f"peak MiB, {page.kind}"),
        *(peak(name, f"{name} MiB") for name in ("allocated", "reserved") if page.kind == "cuda"),
        Column("time, ms", time),
        Column("/ dense", lambda row: over(row.time.ratio, row.setting == DENSE, row)),
        Column("/ paper", lambda row: over(row.over_paper, row.setting == PAPER, row)),
        Column(REMARKS, lambda row: "; ".join(row.remarks), left=True),
        Column(tidy=tidy, whole=True),
    ]


def _facts(page: TimesAndMemory) -> tuple[str, ...]:
    if not page.shown:
        return (f"Device: {page.device}. None of the settings is recorded.",)
    blocks = blocks_timed(page.shown)
    timed = f"timed in {blocks}, dense, paper and solver in turn" if blocks else "nothing timed"
    end = "with the optimizer's step" if _with_optimizer(page.shown[0]) else "forward and backward"
    [batch] = page.values("batch_size")
    step = f"A step: {end} of the layer alone, {batch:,} rows at a time (data: {listed(page, 'dataset')}); {timed}."
    return step_fact(page), step


def caption(page: TimesAndMemory, rows: Sequence[TensorizationRow]) -> Caption:
    marks = [row.time.marks + UNPAIRED * unpaired(row.over_paper) for row in rows]
    repeating = "Where the solver arrives at the paper's own modes and ranks, / paper compares a layer with itself."
    return Caption(
        title="The encoder's matrices: the paper's tensorization and the solver's for the same ratio",
        facts=_facts(page),
        notes=(
            "paper: the setting of the released code, which gives the word embedding ranks of 32; a transcription of "
            "the paper's own table, which nobody has confirmed, says 30. solver: modes and ranks solved for the "
            "paper's ratio.",
            "attention: query, key, value, output, and the classifier's hidden layer, which are alike.",
            "parameters: of the weight, or of the cores as modes and ranks have it, without bias; published: of the "
            "cores. rank entries: of the diagonals on the bonds.",
            "ratio: the dense layer over this one, with rank entries and bias.",
            "GFLOP: matrix products of a step; look-ups and element-wise work are not counted.",
            "/ dense, / paper: ratios of times within blocks. Peak MiB: predicted, of the layer's step alone.",
            *brackets_note(estimate for row in rows for estimate in (row.step, row.time.ratio, row.over_paper)),
            *([repeating] if any(row.repeats_the_paper for row in rows) else []),
            *mark_notes(marks, mark_words("step", "settings")),
            *last_notes(page),
        ),
        remarks=[f"{row.matrix.name}, {row.setting}: {remark}" for row in rows for remark in row.remarks],
    )


ARTIFACT = Artifact(
    name="table_tensorization",
    heading="Modes and ranks of the encoder's matrices",
    summary="modes, ranks, sizes, FLOPs and time of the encoder's matrices: dense, in the paper's tensorization, in "
    "the solver's; a table per device",
    experiments=("tensorization",),
    measure="run",
    made_by="make reproduce-table-tensorization",
    order=160,
    select=select,
    rows=rows_of,
    columns=columns,
    caption=caption,
    section="matrix",
    keys=("matrix", "setting"),
    breaks=("rank entries", "time, ms"),
)
