"""The encoder's matrices: the paper's tensorization of each beside the solver's for the same ratio, and the dense one.

``render`` is a pure function: the same records give the same bytes under the same file names.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pandas as pd

from bench.core.intervals import CONFIDENCE, Estimate
from bench.core.record import Record, device_folder
from bench.core.samples import block_means_ms
from figures.claims.claims import Claim
from figures.page.drawn import Caption, Drawn, csv, markdown
from figures.page.table import (
    DISTURBED,
    NOT_ASKED,
    OLDER,
    OLDER_WORDS,
    REMARKS,
    UNPAIRED,
    bounds,
    significant,
    with_interval,
)
from figures.records.select import by_device
from figures.tensorization_rows import DENSE, PAPER, SOLVER, Comparison, Row, has_optimizer_step, rows_of, select

#: The experiment whose records the table is made of.
EXPERIMENT = "tensorization"
TITLE = "The encoder's matrices: the paper's tensorization and the solver's for the same ratio"

_MATRIX, _SETTING = "matrix", "setting"
LEFT_ALIGNED = frozenset({_MATRIX, _SETTING, "modes", "ranks", REMARKS})

#: Whether a step ends with the optimizer's, in words.
STEPS = {False: "forward and backward", True: "with the optimizer's step"}

#: Columns of the tidy table that stay whole numbers where some are empty.
_WHOLE_NUMBERS = ("parameters", "published_parameters", "rank_entries", "recorded_parameters", "batch_size",
                  "flops_per_step", "blocks", "disturbed_blocks")  # fmt: skip

_MARK_WORDS = {
    OLDER: OLDER_WORDS,
    UNPAIRED: "ratio unpaired: the two were not timed block by block together",
    DISTURBED: "every block was disturbed: the median of all steps, without interval",
}


def _count(number: int | None) -> str:
    return NOT_ASKED if number is None else f"{number:,}"


def _size(number: float | None, digits: int = 3, unit: str = "") -> str:
    return NOT_ASKED if number is None else f"{significant(number, digits)}{unit}"


def _modes(row: Row) -> str:
    if row.setting == DENSE:
        return f"{row.matrix.rows} {'x' if row.matrix.published.is_table else '→'} {row.matrix.columns}"
    return str(row.cores) if row.cores else NOT_ASKED


def _time(row: Row) -> str:
    if row.step is None:
        return row.status
    return f"{with_interval(row.step)} {'' if row.step.blocks else DISTURBED}".rstrip()


def _over(ratio: Estimate | None, is_itself: bool) -> str:
    """A ratio of times; 1 for what it is the ratio to."""
    if ratio is None:
        return "1" if is_itself else NOT_ASKED
    return f"{with_interval(ratio, unit='x')} {UNPAIRED if ratio.paired is False else ''}".rstrip()


def _whole(kind: str, row: Row) -> dict[str, str]:
    """A line of the table a person reads; peaks of the allocator are on a CUDA device alone."""
    record = row.record
    flops = record.flops_per_step if record else None
    line = {
        _MATRIX: row.matrix.name,
        _SETTING: f"{row.setting} {row.mark}".rstrip(),
        "modes": _modes(row),
        "ranks": " ".join(map(str, row.cores.ranks)) if row.cores else NOT_ASKED,
        "parameters": _count(row.parameters),
        "published": _count(row.matrix.published_parameters) if row.setting == PAPER else NOT_ASKED,
        "rank entries": _count(row.cores.rank_entries if row.cores else None),
        "ratio": "1" if row.setting == DENSE else _size(row.ratio, unit="x"),
        "GFLOP": _size(None if flops is None else flops / 1e9),
        f"peak MiB, {kind}": _size(record.peak_memory_predicted_mib if record else None, 4),
    }
    if kind == "cuda":
        line["allocated MiB"] = _size(record.peak_memory_allocated_mib if record else None, 4)
        line["reserved MiB"] = _size(record.peak_memory_reserved_mib if record else None, 4)
    return line | {
        "time, ms": _time(row),
        "/ dense": _over(row.over_dense, row.setting == DENSE and row.step is not None),
        "/ paper": _over(row.over_paper, row.setting == PAPER and row.step is not None),
        REMARKS: "; ".join(row.remarks),
    }


def text_table(comparison: Comparison, rows: Sequence[Row]) -> pd.DataFrame:
    """The table a person reads, as strings."""
    return pd.DataFrame(_whole(comparison.kind, row) for row in rows)


def _pairing(ratio: Estimate | None) -> str:
    return {None: "", True: "paired", False: "unpaired"}[ratio.paired if ratio else None]


def _numbers(sizes: Sequence[int] | None) -> str:
    return " ".join(map(str, sizes or ()))


def tidy_table(comparison: Comparison, rows: Sequence[Row]) -> pd.DataFrame:
    """The table a program reads: milliseconds and MiB, empty where there is none; modes and ranks parted by blanks."""
    lines = []
    for row in rows:
        record, cores = row.record, row.cores
        line: dict[str, object] = {
            "device": comparison.device,
            "matrix": row.matrix.name,
            "rows": row.matrix.rows,
            "columns": row.matrix.columns,
            "setting": row.setting,
            "status": row.status,
            REMARKS: "; ".join(row.remarks),
            "row_modes": _numbers(cores.row_modes if cores else None),
            "column_modes": _numbers(cores.column_modes if cores else None),
            "ranks": _numbers(cores.ranks if cores else None),
            "parameters": row.parameters,
            "published_parameters": row.matrix.published_parameters if row.setting == PAPER else None,
            "rank_entries": cores.rank_entries if cores else None,
            "bias": row.matrix.bias,
            "wanted_ratio": record.ratio if record and row.setting == SOLVER else None,
            "ratio": row.ratio,
            "recorded_parameters": record.parameters if record else None,
            "batch_size": record.batch_size if record else None,
            "flops_per_step": record.flops_per_step if record else None,
            **bounds("step_time_ms", row.step),
            "blocks": row.step.blocks if row.step else None,
            "disturbed_blocks": row.disturbed if row.step else None,
            **bounds("time_over_dense", row.over_dense),
            "dense_pairing": _pairing(row.over_dense),
            **bounds("time_over_paper", row.over_paper),
            "paper_pairing": _pairing(row.over_paper),
            "predicted_for": record.predicted_for if record else "",
            "predicted_peak_mib": record.peak_memory_predicted_mib if record else None,
            "allocated_mib": record.peak_memory_allocated_mib if record else None,
            "reserved_mib": record.peak_memory_reserved_mib if record else None,
            "older_code": bool(row.mark),
        }
        lines.append(line)
    return pd.DataFrame(lines).astype(dict.fromkeys(_WHOLE_NUMBERS, "Int64"))


def _facts(comparison: Comparison) -> tuple[str, ...]:
    shown = comparison.shown
    if not shown:
        return (f"Device: {comparison.device}. None of the settings is recorded.",)

    def listed(column: str) -> str:
        return ", ".join(str(value) for value in comparison.values(column) if value != "")

    def switch(column: str) -> str:
        return " / ".join("on" if value else "off" for value in comparison.values(column))

    days = dict.fromkeys([shown[0].recorded_at[:10], shown[-1].recorded_at[:10]])
    counts = sorted({len(block_means_ms(record)) for record in shown if record.status == "ok"})
    blocks = f"{counts[0]}-{counts[-1]}" if len(counts) > 1 else "".join(map(str, counts))
    timed = f"timed in {blocks} undisturbed block(s), dense, paper and solver in turn" if counts else "nothing timed"
    drivers = f", driver {listed('driver')}" if listed("driver") else ""
    [batch] = comparison.values("batch_size")
    return (
        f"Device: {comparison.device}. torch {listed('torch_version')}{drivers}, {listed('precision')}, "
        f"CUDA Graph {switch('cuda_graph')}, compile {switch('compile')}. Recorded {' to '.join(days)}.",
        f"A step: {STEPS[has_optimizer_step(shown[0])]} of the layer alone, {batch:,} rows at a time (data: "
        f"{listed('dataset')}); {timed}.",
    )


def _notes(comparison: Comparison, rows: Sequence[Row], table: pd.DataFrame) -> list[str]:
    notes = [
        "paper: the setting of the released code, which gives the word embedding ranks of 32; a transcription of the "
        "paper's own table, which nobody has confirmed, says 30. solver: modes and ranks solved for the paper's ratio.",
        "attention: query, key, value, output, and the classifier's hidden layer, which are alike.",
        "parameters: of the weight, or of the cores as modes and ranks have it, without bias; published: of the cores. "
        "rank entries: of the diagonals on the bonds.",
        "ratio: the dense layer over this one, with rank entries and bias.",
        "GFLOP: matrix products of a step; look-ups and element-wise work are not counted.",
        f"/ dense, / paper: ratios of times within blocks; intervals of {CONFIDENCE:.0%}. Peak MiB: predicted, of the "
        "layer's step alone.",
    ]
    if any(row.repeats_the_paper for row in rows):
        notes.append(
            "Where the solver arrives at the paper's own modes and ranks, / paper compares a layer with itself."
        )
    cells = " ".join(table.drop(columns=REMARKS).to_numpy().flat)
    notes += [f"{mark} {words}." for mark, words in _MARK_WORDS.items() if mark in cells]
    if any(record.git_dirty for record in comparison.shown):
        notes.append("Some records come from a tree with uncommitted changes.")
    return notes + list(comparison.left_out)


def _narrow(table: pd.DataFrame) -> tuple[pd.DataFrame, ...]:
    """The table in parts for a terminal: the settings, what they cost by count, what they cost by the clock."""
    columns = [str(column) for column in table.columns]
    cuts = [columns.index("modes"), columns.index("rank entries"), columns.index("time, ms"), columns.index(REMARKS)]
    parts = [columns[begin:end] for begin, end in itertools.pairwise(cuts)]
    return tuple(table[[_MATRIX, _SETTING, *part]] for part in parts)


def of_device(records: Sequence[Record], device: str) -> Drawn:
    """The table of one device; other devices' records are ignored."""
    comparison = select(records, device)
    rows = rows_of(comparison)
    table = text_table(comparison, rows)
    facts, notes = _facts(comparison), _notes(comparison, rows, table)
    stem = f"table_tensorization-{device_folder(device)}"
    files = {
        f"{stem}.md": markdown(Caption(TITLE, facts, notes), "", table, LEFT_ALIGNED, ()),
        f"{stem}.csv": csv(tidy_table(comparison, rows)),
    }
    remarks = (f"{row.matrix.name}, {row.setting}: {remark}" for row in rows for remark in row.remarks)
    return Drawn(
        title=TITLE,
        device=device,
        facts=facts,
        notes=tuple(notes),
        table=table,
        files=files,
        below=(*remarks, *notes),
        left_aligned=LEFT_ALIGNED,
        section=_MATRIX,
        narrow=_narrow(table),
        records=tuple(comparison.shown),
    )


def render(records: Sequence[Record], claims: dict[str, Claim]) -> list[Drawn]:  # noqa: ARG001 - as every artifact
    """One table per device found, in order of device names; it touches no claim."""
    return [of_device(records, device) for device, _ in by_device(records)]
