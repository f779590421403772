"""Tables of text: one DataFrame as Markdown and in the terminal."""

from __future__ import annotations

import pandas as pd
from rich import box
from rich.table import Table
from rich.text import Text

from bench.core.intervals import Estimate

#: Stands where a cell is not part of the grid; a missing cell of the grid says so in words.
NOT_ASKED = "-"

#: Stands where a cell of the grid has no record.
NOT_RECORDED = "not recorded"

#: Marks what comes from a record made by older code than the newest one shown.
OLDER = "†"
OLDER_WORDS = "from a record made by older code than the newest one shown"

#: Mark a ratio whose two sides were not timed together, and a time all of whose blocks were disturbed.
UNPAIRED, DISTURBED = "‡", "§"


def significant(value: float, digits: int = 3) -> str:
    """A number with ``digits`` significant digits, thousands separated, never in scientific notation.

    >>> significant(12345.6), significant(0.01234), significant(7.0)
    ('12,346', '0.0123', '7.00')
    """
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - int(f"{value:.{digits - 1}e}".partition("e")[2]))
    return f"{value:,.{decimals}f}"


def with_interval(estimate: Estimate, scale: float = 1.0, unit: str = "") -> str:
    """``value [low, high]``; the brackets are absent where nothing varies or too few blocks were measured."""
    text = f"{significant(estimate.value * scale)}{unit}"
    if estimate.low is None or estimate.high is None or estimate.low == estimate.high:
        return text
    return f"{text} [{significant(estimate.low * scale)}, {significant(estimate.high * scale)}]"


def bounds(prefix: str, estimate: Estimate | None) -> dict[str, float | None]:
    """A value and its interval as three columns of a tidy table, empty where there is none."""
    if estimate is None:
        return dict.fromkeys((prefix, f"{prefix}_low", f"{prefix}_high"))
    return {prefix: estimate.value, f"{prefix}_low": estimate.low, f"{prefix}_high": estimate.high}


def pairing(ratio: Estimate | None) -> str:
    """Whether a ratio of times is ``paired`` or ``unpaired``; empty where there is none."""
    return {None: "", True: "paired", False: "unpaired"}[ratio.paired if ratio else None]


def _escape(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())


def to_markdown(frame: pd.DataFrame, left: frozenset[str] = frozenset()) -> str:
    """A frame of strings as a Markdown table; columns named in ``left`` are aligned left, the rest right."""
    columns = [str(column) for column in frame.columns]
    lines = [
        "| " + " | ".join(_escape(column) for column in columns) + " |",
        "|" + "|".join(":--" if column in left else "--:" for column in columns) + "|",
    ]
    lines += ["| " + " | ".join(_escape(str(value)) for value in row) + " |" for row in frame.itertuples(index=False)]
    return "\n".join(lines) + "\n"


def to_terminal(frame: pd.DataFrame, title: str, left: frozenset[str] = frozenset(), by: str | None = None) -> Table:
    """A frame of strings as a rich table; a rule is drawn where the column ``by`` changes."""
    table = Table(title=Text(title), box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for column in frame.columns:
        table.add_column(Text(str(column)), justify="left" if str(column) in left else "right", no_wrap=True)
    rows = frame.to_dict("records")
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        section = by is not None and following is not None and row[by] != following[by]
        table.add_row(*(Text(str(value)) for value in row.values()), end_section=section)
    return table
