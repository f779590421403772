"""Numbers in README and docs: filled in from drawn files and records, so that none can be out of date.

Four kinds of places in a Markdown file hold what this module writes. A number, or a range of several, with as many
digits as asked for::

    <!-- value fig1-amd-epyc-2-threads time_over_dense arm=comera batch_size=1 -->0.218<!-- /value -->

A table, by the values of two columns, with bounds where there are any::

    <!-- pivot fig1-amd-epyc-2-threads time_over_dense arm=comera|galore batch_size=1|8 -->
    | arm | 1 | 8 |
    …
    <!-- /pivot -->

``|`` separates values, and quotes hold those with blanks. ``digits=2`` changes how many
there are, three by default. Parts of the claims ledger are the third kind: ``<!-- claims summary -->``, ``changed``,
``alternatives``, ``artifacts``, ``bed``. The fourth are lines with numbers among words: ``<!-- template heart -->`` is
``heart.md.j2`` in the folder ``figures/places``, a jinja2 template with functions and a filter::

    {{ number("fig1-amd-epyc-2-threads", "time_over_dense", arm="comera", batch_size=1) }}      0.217896
    {{ numbers("fig1-amd-epyc-2-threads", "time_over_dense", arm="comera") | span(2) }}   0.21 to 0.23
    {{ known("fig1-amd-epyc-2-threads", "time_over_dense", arm="grouped") }}   False, where nothing is on record

``texts`` returns words in place of numbers.

A name is that of a drawn CSV file, or of an experiment's CSV beside the records (``probe``, ``fig10_time``). One with
an asterisk, ``fig5-*``, is that of all files like it together, for what a sentence says of every case.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
import pandas as pd

from figures.text import InputError, significant, templates, to_markdown

_PLACE = re.compile(r"<!-- (value|pivot|claims|template) ([^>]+?) -->(.*?)<!-- /\1 -->", re.DOTALL)

PLACES = Path(__file__).parent / "places"

#: Parts of the ledger's page, by the beginnings of their paragraphs.
_LEDGER = {
    "summary": (r"\d+ claims as published",),
    "changed": ("A rival takes part", r"\| claim, published"),
    "artifacts": (r"\| artifact \|",),
    "alternatives": (r"\| claim \| against",),
    "bed": (r"\| claim \| on a bed",),
}


class DocumentError(InputError):
    """A place that cannot be filled."""


@dataclass(frozen=True)
class Asked:
    """Words of a place, parsed.

    Args:
        name: of the CSV file, without its suffix.
        column: with the numbers.
        where: the values that other columns must have, in order.
        digits: significant ones.

    Example:
        >>> asked = Asked.of("fig1-cpu time arm=dense batch_size=1|8 digits=2")
        >>> asked.column, asked.where, asked.digits
        ('time', {'arm': ['dense'], 'batch_size': ['1', '8']}, 2)
    """

    name: str
    column: str
    where: Mapping[str, Sequence[str]]
    digits: int = 3

    @classmethod
    def of(cls, words: str) -> "Asked":
        """Parse the words of a place."""
        name, column, *pairs = re.findall(r'(?:[^\s"]|"[^"]*")+', words)
        split = [pair.split("=", 1) for pair in pairs]
        where = {key: values.strip('"').split("|") for key, values in split}
        digits = int(where.pop("digits", ["3"])[0])
        return cls(name, column, where, digits)


def filled(text: str, folders: Sequence[Path], ledger: Callable[[], str]) -> str:
    """Return a Markdown text with all its places filled.

    Args:
        text: of the file.
        folders: with the CSV files; the first that has a file of a name gives its numbers.
        ledger: returns the page of the claims ledger, as Markdown.

    Raises DocumentError: a place that names a file, a column or a value that there is not.
    """
    contents: Mapping[str, Callable[[str], str]] = {
        "value": lambda words: _value(*_drawn(words, folders)),
        "pivot": lambda words: f"\n{_pivot(*_drawn(words, folders))}",
        "claims": lambda words: _claims(words, ledger()),
        "template": lambda name: _template(name, folders),
    }

    def fill(found: re.Match[str]) -> str:
        kind, words = found[1], found[2]
        try:
            new = contents[kind](words)
        except (OSError, KeyError, TypeError, ValueError, jinja2.TemplateError) as error:
            raise DocumentError(f"<!-- {kind} {words} --> cannot be filled: {error}.") from None
        return f"<!-- {kind} {words} -->{new}<!-- /{kind} -->"

    return _PLACE.sub(fill, text)


def _claims(part: str, page: str) -> str:
    paragraphs = page.split("\n\n")
    chosen = [one for start in _LEDGER[part] for one in paragraphs if re.match(start, one)]
    return "\n" + "\n\n".join(one.strip() for one in chosen) + "\n"


def _template(name: str, folders: Sequence[Path]) -> str:
    environment = templates(PLACES)

    def texts(csv: str, column: str, **where: object) -> list[str]:
        asked = Asked(csv, column, {key: str(value).split("|") for key, value in where.items()})
        return list(_rows(asked, _read(csv, folders), asked.where)[column])

    def known(csv: str, column: str, **where: object) -> bool:
        table = _read(csv, folders)
        for key, value in where.items():
            table = table[table[key].isin(str(value).split("|"))]
        return bool((table[column] != "").any())

    def numbers(csv: str, column: str, **where: object) -> list[float]:
        return [float(text) for text in texts(csv, column, **where)]

    def number(csv: str, column: str, **where: object) -> float:
        found = numbers(csv, column, **where)
        if len(found) > 1:
            raise ValueError(f"{len(found)} rows of {csv} have {where}")
        return found[0]

    environment.globals.update(numbers=numbers, number=number, texts=texts, known=known, holds=_holds, refuse=_refuse)
    environment.filters.update(span=_span)
    template = environment.get_template(f"{name}.md.j2")
    return f"\n{template.render().strip()}\n"


def _holds(values: Sequence[float], below: float = math.inf, above: float = -math.inf) -> str:
    """Return no text where all of some values are within bounds: what a sentence says of each of them.

    Raises ValueError: one is not.
    """
    wrong = [value for value in values if not above < value < below]
    if wrong:
        raise ValueError(f"a sentence says of {len(values)} values what does not hold of {wrong[0]:g}")
    return ""


def _refuse(why: str) -> str:
    """Raise ValueError, for a sentence that a template must not write."""
    raise ValueError(why)


def _read(name: str, folders: Sequence[Path]) -> pd.DataFrame:
    for folder in folders:
        if paths := sorted(folder.glob(f"{name}.csv")):
            return pd.concat([pd.read_csv(path, dtype=str, keep_default_na=False) for path in paths]).fillna("")
    raise ValueError(f"{name}.csv is not in {' or '.join(map(str, folders))}")


def _drawn(words: str, folders: Sequence[Path]) -> tuple[Asked, pd.DataFrame]:
    asked = Asked.of(words)
    return asked, _read(asked.name, folders)


def _rows(asked: Asked, table: pd.DataFrame, where: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    for key, values in where.items():
        if lost := [value for value in values if value not in set(table[key])]:
            raise ValueError(f"column {key} has no {', '.join(lost)}")
        table = table[table[key].isin(values)]
    shown = table[table[asked.column] != ""]
    if shown.empty:
        raise ValueError(f"no {asked.column} in these rows")
    return shown


def _value(asked: Asked, table: pd.DataFrame) -> str:
    texts = _rows(asked, table, asked.where)[asked.column]
    return _span([float(text) for text in texts], asked.digits)


def _span(numbers: Sequence[float] | float, digits: int = 3) -> str:
    """Return a number, or the least and the largest of several."""
    several = [numbers] if isinstance(numbers, float) else numbers
    low, high = (significant(number, digits) for number in (min(several), max(several)))
    return low if low == high else f"{low} to {high}"


def _pivot(asked: Asked, table: pd.DataFrame) -> str:
    (down, names), (across, places), *more = asked.where.items()
    rest = dict(more)
    lines = []
    for name in names:
        cells = []
        for place in places:
            found = table[(table[down] == name) & (table[across] == place)]
            for key, values in rest.items():
                found = found[found[key].isin(values)]
            found = found[found[asked.column] != ""]
            if len(found) > 1:
                raise ValueError(f"{len(found)} rows have {down} {name} and {across} {place}")
            cells.append(_with_bounds(asked, found.iloc[0]) if len(found) else "-")
        if set(cells) == {"-"}:
            raise ValueError(f"no {asked.column} where {down} is {name}")
        lines.append([f"`{name}`" if down == "arm" else name, *cells])
    heading = [down.replace("_", " "), *(f"{across.replace('_', ' ')} {place}" for place in places)]
    return to_markdown(pd.DataFrame(lines, columns=heading), frozenset(heading[:1]))


def _with_bounds(asked: Asked, row: pd.Series) -> str:
    value = significant(float(row[asked.column]), asked.digits)
    ends = [row.get(f"{asked.column}_{side}", "") for side in ("low", "high")]
    if "" in ends:
        return value
    low, high = (significant(float(end), asked.digits) for end in ends)
    return f"{value} [{low}, {high}]"
