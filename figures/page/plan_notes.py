"""Sentences on pages of contraction plans."""

from figures.page.notes import closing_notes, device_fact, listed, span
from figures.records.plans import ONCE, ONCE_WORDS, Grid


def timing_fact(grid: Grid) -> str:
    """What was timed, on what and when."""
    blocks = span(max(len(one.ms) for one in planned.candidates) for planned in grid.planned.values())
    timing = f"Forward pass and all gradients, medians of {blocks} blocks in turns" if blocks else "Nothing timed"
    return f"{device_fact(grid, listed(grid, 'precision'))} {timing}."


def closing_lines(grid: Grid) -> list[str]:
    """Marks, code, and records that are left out."""
    once = any(planned.mark(one) for planned in grid.planned.values() for one in planned.candidates)
    return [*([f"{ONCE} {ONCE_WORDS}."] if once else []), *closing_notes(grid)]
