"""Tables: one list of columns gives the table that people read and the one that programs read; numbers as text."""

from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from rich import box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from bench.core.intervals import Estimate
from bench.errors import TERMINAL

#: Stands where a cell is not part of the grid; a missing cell of the grid says so in words.
NOT_ASKED = "-"

#: Stands where a cell of the grid has no record.
NOT_RECORDED = "not recorded"

#: Stands where the grid has no cell.
NOT_IN_GRID = "not in the grid"

#: Stands for the memory of steps with CUDA Graph or torch.compile, since predictions are of plain ones.
NOT_MODELLED = "not modelled"

#: Marks what comes from a record made by older code than the newest one shown.
OLDER = "†"

#: Mark a ratio whose two sides were not timed together, and a time all of whose blocks were disturbed.
UNPAIRED, DISTURBED = "‡", "§"

#: The column of a table that holds sentences; the terminal shows them below the table.
REMARKS = "remarks"

_ENDS = {"": "value", "_low": "low", "_high": "high", "_bounds": "kind"}


class InputError(ValueError):
    """Something that the user can put right; the message is one sentence."""


def one_line(message: str) -> str:
    """Return a message as a part of a sentence."""
    return " ".join(message.split()).rstrip(".")


def listed(numbers: Sequence[float]) -> str:
    """Return numbers as a sentence has them.

    >>> listed([1.5, 2, 100]), listed([2])
    ('1.5, 2 and 100', '2')
    """
    *words, last = (f"{number:.3g}" for number in numbers)
    return f"{', '.join(words)} and {last}" if words else last


def rounded(value: float, decimals: int) -> str:
    """Return a number with so many decimals, thousands separated, rounded once: half goes away from zero.

    What is rounded are the digits that the number is written with (``repr``), so that 2.675 gives 2.68.

    >>> rounded(2.675, 2), rounded(0.125, 2), rounded(-1234.5, 0)
    ('2.68', '0.13', '-1,235')
    """
    return f"{Decimal(repr(float(value))).quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP):,f}"


def significant(value: float | None, digits: int = 3) -> str:
    """Return a number with so many significant digits, thousands separated; a dash where there is none.

    >>> significant(1234.4), significant(0.9996), significant(0.000123), significant(None)
    ('1,234', '1.00', '0.000123', '-')
    """
    if not value:
        return NOT_ASKED if value is None else "0"
    decimals = digits - 1 - Decimal(repr(float(value))).adjusted()
    if decimals > 0 and abs(Decimal(rounded(value, decimals).replace(",", ""))) >= Decimal(10) ** (digits - decimals):
        decimals -= 1  # rounding has added a digit, as in 9.996
    return rounded(value, max(0, decimals))


def with_bounds(estimate: Estimate | None, unit: str = "") -> str:
    """Return ``value [low, high]``, bare where nothing varies or too few blocks were measured; or a dash."""
    if estimate is None:
        return NOT_ASKED
    text = f"{significant(estimate.value)}{unit}"
    if estimate.low is None or estimate.high is None or estimate.low == estimate.high:
        return text
    return f"{text} [{significant(estimate.low)}, {significant(estimate.high)}]"


def bounds(prefix: str, estimate: Any) -> dict[str, Any]:
    """Return ``value``, ``low``, ``high`` and ``kind`` of an estimate as four columns of the CSV, empty without one."""
    return {f"{prefix}{end}": getattr(estimate, name, None) for end, name in _ENDS.items()}


def bounds_kinds_of(estimates: Iterable[Any]) -> list[str]:
    """Return what the bounds of estimates are, in words for a legend.

    >>> bounds_kinds_of([Estimate(2.0, 1.0, 3.0, 3, launches=3, kind="range"), None])
    ['range over launches']
    """
    return sorted({one.bounds_are for one in estimates if one is not None} - {""}, reverse=True)


def unpaired(ratio: Estimate | None) -> bool:
    """Return whether the two sides of a ratio were not timed together."""
    return ratio is not None and ratio.paired is False


def pairing(ratio: Estimate | None) -> str:
    """Return whether a ratio of times is ``paired`` or ``unpaired``; empty where there is none."""
    return {None: "", True: "paired", False: "unpaired"}[ratio.paired if ratio else None]


def _escape(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())


def to_markdown(frame: pd.DataFrame, left: frozenset[str] = frozenset()) -> str:
    """Return a frame of strings as a Markdown table; columns named in ``left`` are aligned left, the rest right."""
    rows = [[_escape(str(cell)) for cell in line] for line in (frame.columns, *frame.to_numpy())]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    sides = [":--" if str(column) in left else "--:" for column in frame.columns]
    lines.insert(1, f"|{'|'.join(sides)}|")
    return "\n".join(lines) + "\n"


def to_terminal(
    frame: pd.DataFrame, title: str, left: frozenset[str] = frozenset(), by: str | None = None
) -> list[Table]:
    """Return a frame of strings as rich tables of at most :data:`bench.errors.TERMINAL` columns.

    A frame that is too wide comes in parts. Each part begins with the leading columns that tell rows apart; a cell that
    does not fit beside them is wrapped. A rule is drawn where the column ``by`` changes.
    """
    widths = {str(name): _width(frame[name]) for name in frame.columns}
    keys = _keys(frame, widths)
    parts = [keys.copy()]
    for name in (name for name in widths if name not in keys):
        if len(parts[-1]) > len(keys) and _total(parts[-1] + [name], widths) > TERMINAL:
            parts.append(keys.copy())
        parts[-1].append(name)
    groups = [""] * len(frame) if by is None else list(frame[by])
    ends = [group != following for group, following in zip(groups, [*groups[1:], *groups[-1:]], strict=True)]
    tables: list[Table] = []
    for part in parts:
        look: Any = {"title": Text("" if tables else title), "title_justify": "left"}
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, **look)
        fits = _total(part, widths) <= TERMINAL
        for name in part:
            table.add_column(Text(name), justify="left" if name in left else "right", no_wrap=fits, overflow="fold")
        for row, end in zip(frame[part].to_numpy(), ends, strict=True):
            table.add_row(*(Text(str(value)) for value in row), end_section=end)
        tables.append(table)
    return tables


def _width(column: pd.Series) -> int:
    return max(cell_len(str(text)) for text in (column.name, *column))


def _total(names: Sequence[str], widths: Mapping[str, int]) -> int:
    """Return the width of a table, whose edges take a column of the terminal each and whose gaps take three."""
    return sum(widths[name] for name in names) + 3 * (len(names) - 1) + 2


def _keys(frame: pd.DataFrame, widths: Mapping[str, int]) -> list[str]:
    """Return the fewest leading columns that tell rows apart; wide ones do not count, nor what fills the terminal."""
    names = [name for name, width in widths.items() if width <= TERMINAL * 2 // 5] or list(widths)[:1]
    distinct = (number for number in range(1, len(names)) if not frame.duplicated(names[:number]).any())
    most = next(distinct, 1)
    return next((names[:n] for n in range(most, 1, -1) if _total(names[:n], widths) <= TERMINAL * 2 // 3), names[:1])


def csv(table: pd.DataFrame) -> bytes:
    """Return a tidy table as CSV, whose numbers round as the unrounded ones do (:func:`csv_number`)."""
    return table.to_csv(index=False, float_format=csv_number, lineterminator="\n").encode()


def csv_number(value: Any) -> str:
    """Return a number with six significant digits, or with more where the last of them is a 5.

    Whoever rounds six digits that end in a 5 once more cannot tell which way the whole number goes.

    >>> csv_number(1.844496), csv_number(0.25), csv_number(4.585523)
    ('1.844496', '0.25', '4.58552')
    """
    for digits in (6, 9):
        text = f"{value:.{digits}g}"
        if not text.partition("e")[0].replace(".", "").rstrip("0").endswith("5"):
            return text
    return f"{value:.12g}"


def templates(*folders: Path, autoescape: bool = False) -> jinja2.Environment:
    """Return the templates of folders, in which a variable that is not given is an error."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
        undefined=jinja2.StrictUndefined,
        autoescape=autoescape,
        trim_blocks=True,
        lstrip_blocks=True,
    )
