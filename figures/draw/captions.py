"""Captions: a template of each figure, filled with facts about its page.

A template is Markdown. Its first line is the title; the lines up to the first empty one say what was measured, on what,
when; each ``*`` begins a note that stands below table and picture, each ``>`` one about the picture alone, each ``-``
one about the table alone.
Macros that many captions share are in ``notes.md.j2``, which a template imports.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from figures.draw import facts
from figures.text import templates

SHARED = Path(__file__).parent


@dataclass(frozen=True)
class Caption:
    """Title, facts and notes of one page.

    Args:
        title: of the page.
        facts: what was measured, on what, when.
        notes: what one has to read beside the table, in the picture as well.
        of_picture: the same about the picture alone; the terminal, which has none, leaves it out.
        of_table: the same about the table alone, which the picture leaves out.
    """

    title: str
    facts: Sequence[str]
    notes: Sequence[str] = ()
    of_picture: Sequence[str] = ()
    of_table: Sequence[str] = ()


@functools.cache
def _template(source: Path | str) -> jinja2.Template:
    environment = templates(*([source.parent] if isinstance(source, Path) else []), SHARED)
    environment.globals["facts"] = facts
    if isinstance(source, Path):
        return environment.get_template(source.name)
    return environment.from_string(source)


def caption(template: Path | str, about: Mapping[str, Any]) -> Caption:
    r"""Fill a template.

    Args:
        template: its path, or its text.
        about: its variables; ``page`` and ``table`` at least.

    Raises:
        jinja2.UndefinedError: the template asks for a variable that there is not.

    Example:
        >>> found = caption("# Times on {{ page }}\nMeasured twice.\n\n* In ms.", {"page": "a CPU"})
        >>> found.title, found.facts, found.notes
        ('Times on a CPU', ['Measured twice.'], ['In ms.'])
    """
    title, _, rest = _template(template).render(about).strip().partition("\n")
    lines = [" ".join(line.split()) for line in rest.splitlines()]
    return Caption(
        title=" ".join(title.removeprefix("#").split()),
        facts=[line for line in lines if line and line[0] not in "*>-"],
        notes=_notes(lines, "*"),
        of_picture=_notes(lines, ">"),
        of_table=_notes(lines, "-"),
    )


def _notes(lines: Sequence[str], sign: str) -> list[str]:
    return [line[1:].strip() for line in lines if line.startswith(sign) and line[1:].strip()]
