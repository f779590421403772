"""Numbers as text: significant digits, rounding half away from zero, cells that cannot break a table."""

from __future__ import annotations

import pandas as pd
import pytest

from figures.text import rounded, significant, to_markdown


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.9996, "1.00"), (9.996, "10.0"), (1234.4, "1,234"), (0.000123, "0.000123"), (99.95, "100")],
)
def test_numbers_have_three_significant_digits(value: float, text: str) -> None:
    assert significant(value) == text


@pytest.mark.parametrize(
    ("value", "decimals", "text"),
    [
        (0.925, 2, "0.93"),
        (2.55, 1, "2.6"),
        (6.25, 1, "6.3"),
        (61.5, 0, "62"),
        (2.675, 2, "2.68"),
        (0.125, 2, "0.13"),
        (6.251, 1, "6.3"),
        (0.9249, 2, "0.92"),
        (2.5449, 1, "2.5"),
        (2.5449, 2, "2.54"),
        (-0.125, 2, "-0.13"),
        (1234.5, 0, "1,235"),
        (0.0, 1, "0.0"),
        (1e-9, 2, "0.00"),
        (9.995, 2, "10.00"),
        (1e6, 0, "1,000,000"),
    ],
)
def test_a_number_is_rounded_once_and_half_of_its_written_digits_away_from_zero(
    value: float, decimals: int, text: str
) -> None:
    assert rounded(value, decimals) == text


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.925, 2, "0.93"),
        (2.5449, 2, "2.5"),
        (2.545, 3, "2.55"),
        (0.9995, 3, "1.00"),
        (0.99949, 3, "0.999"),
        (61.5, 2, "62"),
        (99.95, 3, "100"),
        (0.00012345, 4, "0.0001235"),
        (-2.545, 3, "-2.55"),
        (862.5, 3, "863"),
    ],
)
def test_significant_digits_are_rounded_the_same_way(value: float, digits: int, text: str) -> None:
    assert significant(value, digits) == text


def test_markdown_cells_cannot_break_the_table() -> None:
    frame = pd.DataFrame([{"arm": "a|b", "remarks": "two\nlines <i>"}])
    lines = to_markdown(frame, frozenset({"arm"})).splitlines()
    assert lines == ["| arm | remarks |", "|:--|--:|", "| a\\|b | two lines &lt;i> |"]
