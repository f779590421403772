"""How every column of every table is headed and written: one list for all figures, their pages and the terminal.

A table is a DataFrame whose columns are those of its CSV. People read the columns that :data:`FORMATS` knows, in the
order of the table; the others are details of the CSV.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any

import pandas as pd

from bench.core.intervals import Estimate
from figures.text import NOT_ASKED, NOT_RECORDED, OLDER, UNPAIRED, rounded, significant

#: Statuses of a cell that no word is needed for.
_SILENT = ("", "ok", "not in the grid")


def _time_unit(longest: float) -> tuple[str, float]:
    """Return the unit that suits seconds up to ``longest``, and how many of it one second is."""
    if longest >= 2 * 3600:
        return "hours", 1 / 3600
    return ("minutes", 1 / 60) if longest >= 120 else ("seconds", 1.0)


def time_column(per: str) -> str:
    """Return the column that has the time of an ``epoch`` or of a ``step``."""
    return {"epoch": "epoch_time_s", "step": "step_time_ms"}[per]


def unit_of(table: pd.DataFrame, per: str) -> tuple[str, float]:
    """Return the unit that suits the longest time of a table, and how many of it the table's own unit is."""
    if per == "step":
        return "ms", 1.0
    longest = table[time_column(per)].max()
    return _time_unit(0.0 if pd.isna(longest) else float(longest))


@dataclass(frozen=True)
class Format:
    """How a column is written for people.

    Args:
        heading: of the column; ``{}`` is the unit that :attr:`unit_of` chooses.
        digits: significant ones of a number; 0 for whole numbers.
        form: a format specification for numbers, such as ``.1e``, in place of ``digits``.
        decimals: digits behind the point, in place of significant ones.
        sign: whether a difference above zero has a plus.
        bare: whether its bounds are in the CSV alone.
        suffix: what follows each number, such as ``x``.
        left: whether it holds words, which are aligned left.
        status: the column that says why there is no number.
        pairing: the column that says whether a ratio's sides were timed together; a table with ratios to several
            references has one for each, such as ``dense_pairing``.
        unit_of: from the largest number, a unit for all of them and how many of it one is.
    """

    heading: str
    digits: int = 3
    form: str = ""
    decimals: int | None = None
    sign: bool = False
    bare: bool = False
    suffix: str = ""
    left: bool = False
    status: str = ""
    pairing: str = ""
    unit_of: Callable[[float], tuple[str, float]] | None = None

    def for_values(self, values: pd.Series) -> "tuple[str, float]":
        """Return the heading of a column with these values, and what they are multiplied by."""
        if self.unit_of is None:
            return self.heading, 1.0
        longest = pd.to_numeric(values, errors="coerce").max()
        unit, scale = self.unit_of(0.0 if pd.isna(longest) else float(longest))
        return self.heading.format(unit), scale


def _words(heading: str) -> Format:
    return Format(heading, left=True)


#: Columns of words, and of whole numbers, that are headed by their own names.
_OF_WORDS = (
    *("arm", "variant", "part", "toggles", "optimizer", "layer", "form"),
    *("matrix", "setting", "modes", "ranks", "plan", "workload", "batches", "what"),
    *("precision", "run", "stage", "settings", "best", "remarks"),
)
_COUNTS = ("width", "parameters", "rows", "tokens", "cells", "step", "seed")

#: By the name of a column, or a pattern of names; the first that fits counts.
FORMATS: Mapping[str, Format] = {
    **{name: _words(name) for name in _OF_WORDS},
    **{name: Format(name, digits=0) for name in _COUNTS},
    "batch_size": Format("batch", digits=0),
    "size_ratio": Format("times smaller", digits=4),
    "epoch_time_s": Format("epoch, {}", status="time_status", unit_of=_time_unit),
    "step_time_ms": Format("step, ms", status="time_status"),
    "step_ms": Format("step, ms", status="status"),
    "time_over_*": Format("time / *", suffix="x", pairing="time_pairing"),
    "time_on_over_off": Format("on / off", suffix="x", pairing="on_over_off_pairing"),
    "compile_time_s": Format("compile, s"),
    "cuda_peak_mib": Format("peak MiB, CUDA", digits=4, status="cuda_status"),
    "cuda_over_*": Format("CUDA / *", suffix="x"),
    "cpu_peak_mib": Format("peak MiB, CPU", digits=4, status="cpu_status"),
    "cpu_over_*": Format("CPU / *", suffix="x"),
    "allocated_over_*": Format("allocated / *", suffix="x"),
    "allocated_mib": Format("allocated MiB", digits=4),
    "plain_allocated_over_*": Format("allocated, plain steps / *", suffix="x"),
    "plain_allocated_mib": Format("allocated MiB, plain steps", digits=4),
    "cuda_workspaces_over_*": Format("CUDA with workspaces / *", suffix="x"),
    "reserved_mib": Format("reserved MiB", digits=4),
    # searches of rates
    "ratio": Format("times smaller"),
    "matrices_ratio": Format("matrices, times smaller", digits=2),
    "train_steps": Format("steps", digits=0),
    "start_loss": Format("loss at step 0", digits=4),
    "test_loss": Format("loss", digits=4),
    "less_*": Format("less *"),
    "training_s": Format("training, s"),
    "peak_memory_predicted_mib": Format("peak MiB, predicted"),
    "lr": Format("best rate", form="g"),
    # layers and products by precision
    "ms": Format("ms", status="status"),
    "mib": Format("MiB"),
    "*_least_ms": Format("least ms"),
    # tensorized matrices
    "gflops_per_step": Format("GFLOP"),
    "predicted_peak_mib": Format("predicted peak, MiB", digits=4),
    # several ranks
    "link": Format("link, setting"),  # marks of older code stand at the arm
    "value": Format("value", form="g"),
    "sent_buckets_mib": Format("sent, MiB"),
    "exchange_memory_mib": Format("held, MiB"),
    # contraction plans
    "plan_mflop": Format("MFLOP"),
    "flops_over_*": Format("FLOPs / *", suffix="x"),
    "plan_saved_mib": Format("kept, MiB"),
    "plan_estimated_ms": Format("estimated, ms"),
    "plan_measured_ms": Format("measured, ms"),
    "best_plan": _words("fastest"),
    "best_measured_ms": Format("fastest, ms"),
    "dense_ms": Format("nn.Linear, ms"),
    # predictions
    "lowest_error": Format("lowest error", form="+.2%"),
    "median_error": Format("median", form="+.2%"),
    "highest_error": Format("highest", form="+.2%"),
    "within": Format("within"),
    # checks
    "passed": Format("passed"),
    "error": Format("error", form=".1e", status="status"),
    "gradient_error": Format("gradient error", form=".1e"),
    "tolerance": Format("allowed", form=".0e"),
    "check": _words("of"),
    # trainings
    "epoch": Format("epoch", decimals=2),
    "stored_mib": Format("total, MiB", bare=True, status="status"),
    "total_ratio": Format("total, times smaller", bare=True),
    "tensorized_mib": Format("layers, MiB", bare=True),
    "tensorized_ratio": Format("layers, times smaller", bare=True),
    "size_fraction": Format("S"),
    "size_target": Format("S0"),
    "size_met": Format("S <= S0"),
}


def format_of(column: str, more: Mapping[str, Format] = MappingProxyType({})) -> Format | None:
    """Return how a column is written, which ``more`` may say instead; None for one that the CSV alone has.

    >>> format_of("time_over_dense").heading, format_of("time_over_dense_low")
    ('time / dense', None)
    """
    if column in more:
        return more[column]
    if column.endswith(("_low", "_high", "_bounds")):
        return None
    for pattern, found in FORMATS.items():
        if fnmatchcase(column, pattern):
            over = column.removeprefix(pattern.rstrip("*")) if pattern.endswith("*") else ""
            return Format(**{**vars(found), "heading": found.heading.replace("*", over.replace("_", " "))})
    return None


def _is_missing(value: Any) -> bool:
    return value is None or value == "" or (not isinstance(value, str) and bool(pd.isna(value)))


def _written(value: Any, column: Format, scale: float) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if column.form:
        return format(float(value) * scale, column.form)
    if column.decimals is not None:
        text = rounded(float(value) * scale, column.decimals)
    elif column.digits == 0:
        text = f"{round(value):,}"
    else:
        text = significant(float(value) * scale, column.digits)
    return f"+{text}" if column.sign and not text.startswith("-") else text


def _cell(line: Mapping[Any, Any], name: str, column: Format, scale: float) -> str:
    """Write one cell: its value with bounds and marks, or why there is none."""
    value = line[name]
    if _is_missing(value):
        status = str(line.get(column.status) or "")
        is_reference = "_over_" in name and line.get("arm") == name.rpartition("_over_")[2]
        return "1" if is_reference else NOT_ASKED if status in _SILENT else status
    text = _written(value, column, scale) + column.suffix * (not isinstance(value, str))
    low, high = (None, None) if column.bare else (line.get(f"{name}_low"), line.get(f"{name}_high"))
    if not _is_missing(low) and not _is_missing(high) and low != high:
        text += f" [{_written(low, column, scale)}, {_written(high, column, scale)}]"
    reference = name.rpartition("_over_")[2]
    paired = line.get(column.pairing, line.get(f"{reference}_pairing")) if column.pairing else None
    return f"{text} {UNPAIRED}" if paired == "unpaired" else text


def bounds_kinds(table: pd.DataFrame, *columns: str) -> list[str]:
    """Return what the bounds of columns are, in words for a legend; of all columns by default.

    Example:
        >>> table = pd.DataFrame({"ms": [2.0], "ms_low": [1.0], "ms_high": [3.0], "ms_bounds": "range"})
        >>> bounds_kinds(table)
        ['range over blocks']
    """
    found = set()
    for name in columns or [str(name).removesuffix("_bounds") for name in table if str(name).endswith("_bounds")]:
        low, high = table[f"{name}_low"], table[f"{name}_high"]
        for line in table[low.notna() & (low != high)].to_dict("records"):
            launches = line.get("launches")
            count = 0 if launches is None or pd.isna(launches) else int(launches)
            found.add(Estimate(0.0, None, None, 0, launches=count, kind=line[f"{name}_bounds"]).bounds_are)
    return sorted(found - {""}, reverse=True)


def readable(
    table: pd.DataFrame, columns: Sequence[str] | None = None, more: Mapping[str, Format] = MappingProxyType({})
) -> pd.DataFrame:
    """Return the table that people read, of strings.

    Args:
        table: with the CSV's columns.
        columns: those to show; by default all of a known format, but for those without any value.
        more: formats of columns that records name, such as their metric.

    Example:
        >>> table = pd.DataFrame({"arm": ["comera", "dense"], "batch_size": 8, "time_over_dense": [0.23, None]})
        >>> readable(table).to_dict("records")[0]
        {'arm': 'comera', 'batch': '8', 'time / dense': '0.230x'}
    """
    lines = table.to_dict("records")
    shown: dict[str, list[str]] = {}
    marked = False
    for name in columns if columns is not None else map(str, table.columns):
        column = format_of(name, more)
        if column is None or (columns is None and all(_is_missing(line[name]) for line in lines)):
            continue
        heading, scale = column.for_values(table[name])
        cells = [_cell(line, name, column, scale) for line in lines]
        if column.left and not marked and "older_code" in table:
            marked = True
            pairs = zip(cells, lines, strict=True)
            cells = [f"{cell} {OLDER}" if line["older_code"] else cell for cell, line in pairs]
        shown[heading] = cells
    return pd.DataFrame(shown)


def left_columns(table: pd.DataFrame) -> frozenset[str]:
    """Return the headings, of a table for people, that stand above words."""
    numbers = r"^(?:[-+]?[\d,.]+(?:e[-+]\d+)?(?:x|%)?|-|)(?: (?:of \d|[\[(†‡§])|$)"
    shares = {str(name): cells.astype(str).str.match(numbers).mean() for name, cells in table.items()}
    return frozenset(name for name, share in shares.items() if share < 0.5)


def across(
    table: pd.DataFrame, rows: str, columns: str, values: Mapping[str, str], once: Sequence[str] = ()
) -> pd.DataFrame:
    """Return a table for people with a line per value of ``rows``, and columns for each value of ``columns``.

    Args:
        table: with the CSV's columns; one line per pair of ``rows`` and ``columns``, the latter numbers or words.
        values: by the column that is shown the one with its ratio, which follows in parentheses; or an empty string.
        once: columns that are the same for all ``columns``, which come first.

    Example:
        >>> table = pd.DataFrame({"arm": ["comera", "dense"], "batch_size": 8, "step_time_ms": [10.0, 44.0],
        ...     "time_over_dense": [0.23, None]})
        >>> across(table, "arm", "batch_size", {"step_time_ms": "time_over_dense"}).to_dict("records")[0]
        {'arm': 'comera', 'step, ms, batch 8': '10.0 (0.230x)'}
    """
    table = table.reset_index(drop=True)
    names = list(dict.fromkeys(table[rows]))
    older = set(table.loc[table["older_code"].astype(bool), rows]) if "older_code" in table else set()
    heading = readable(table[[rows]], [rows]).columns[0]
    shown = {heading: [f"{name} {OLDER}" if name in older else name for name in names]}
    shown |= readable(table.drop_duplicates(rows), once).to_dict("list")  # type: ignore[arg-type]
    for value, ratio in values.items():
        ends = [f"{name}{end}" for name in (value, ratio) for end in ("_low", "_high")]
        some = [rows, columns, value, *([ratio] if ratio else [])]
        text = readable(table.drop(columns=ends, errors="ignore"), some)
        cells = text.iloc[:, 2]
        if ratio:
            ratios = text.iloc[:, 3]
            cells = cells.where(ratios.isin([NOT_ASKED, "1"]), cells + " (" + ratios + ")")
        for place, here in cells.groupby(table[columns], sort=False):
            if not set(here) <= {NOT_ASKED, NOT_RECORDED}:  # a column of failures stays
                where = place if isinstance(place, str) else f"{text.columns[1]} {place:,}"
                by_name = dict(zip(table.loc[here.index, rows], here, strict=True))
                shown[f"{text.columns[2]}, {where}"] = [by_name.get(name, NOT_ASKED) for name in names]
    return pd.DataFrame(shown)
