"""One list says how columns are written: units, bounds, marks and reasons look the same in every table."""

import io

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from bench.errors import TERMINAL
from figures import columns
from figures.columns import across, bounds_kinds, format_of, readable
from figures.text import csv_number, rounded, significant, to_markdown, to_terminal

LINE: dict[str, object] = {"arm": "dense", "batch_size": 8, "older_code": False}
LINE |= {"time_status": "ok", "step_time_ms": 44.0}


def table(*lines: dict[str, object]) -> pd.DataFrame:
    """A table whose lines differ from LINE in these columns."""
    return pd.DataFrame([{**LINE, **line} for line in lines])


@pytest.mark.parametrize(
    ("line", "heading", "cell"),
    [
        ({}, "step, ms", "44.0"),
        ({"step_time_ms_low": 43.0, "step_time_ms_high": 45.5}, "step, ms", "44.0 [43.0, 45.5]"),
        ({"step_time_ms_low": 44.0, "step_time_ms_high": 44.0}, "step, ms", "44.0"),
        ({"step_time_ms": None, "time_status": "oom"}, "step, ms", "oom"),
        ({"step_time_ms": None, "time_status": "not recorded"}, "step, ms", "not recorded"),
        ({"step_time_ms": None, "time_status": "not in the grid"}, "step, ms", "-"),
        ({"step_time_ms": None}, "step, ms", "-"),
        ({"time_over_dense": 4.4, "time_pairing": "paired"}, "time / dense", "4.40x"),
        ({"time_over_dense": 4.4, "time_pairing": "unpaired"}, "time / dense", "4.40x ‡"),
        ({"time_over_dense": 4.4, "time_pairing": ""}, "time / dense", "4.40x"),
        ({"time_over_dense": None, "arm": "dense"}, "time / dense", "1"),  # to itself
        ({"older_code": True}, "arm", "dense †"),
    ],
)
def test_a_cell_has_its_number_bounds_and_marks_or_says_why_there_is_none(
    line: dict[str, object], heading: str, cell: str
) -> None:
    written = readable(table(line, {"time_over_dense": 1.0}))[heading]
    assert written[0] == cell
    assert "†" not in written[1]


def test_older_code_marks_a_line_once() -> None:
    [line] = readable(table({"older_code": True, "toggles": "fp32"})).to_numpy()
    assert list(line) == ["dense †", "8", "44.0", "fp32"]


def test_columns_without_any_value_are_left_out_unless_asked_for() -> None:
    found = table({"allocated_mib": None})
    assert "allocated MiB" not in readable(found)
    assert list(readable(found, ["arm", "allocated_mib"]).iloc[0]) == ["dense", "-"]


@pytest.mark.parametrize(
    ("seconds", "unit", "factor"), [(100.0, "seconds", 1.0), (200.0, "minutes", 1 / 60), (9e4, "hours", 1 / 3600)]
)
def test_the_unit_of_epochs_suits_the_longest(seconds: float, unit: str, factor: float) -> None:
    found = table({"epoch_time_s": seconds}, {"epoch_time_s": seconds / 50})
    assert columns.unit_of(found, "epoch") == (unit, pytest.approx(factor))
    shown = readable(found)[f"epoch, {unit}"][0].replace(",", "")
    assert float(shown) == pytest.approx(seconds * factor, rel=0.01)


@pytest.mark.parametrize(
    ("kind", "launches", "words"),
    [
        ("range", 1, ["range over blocks"]),
        ("range", 3, ["range over launches"]),
        ("interval", 8, ["95% interval over launches and blocks"]),
        ("range over calls", 9, ["range over calls"]),
        ("interval over calls", 18, ["95% interval over calls and launches"]),
        ("", 8, []),
    ],
)
def test_bounds_are_called_what_they_are(kind: str, launches: int, words: list[str]) -> None:
    line = {"launches": launches, "step_time_ms_bounds": kind, "step_time_ms_low": 43.0}
    assert bounds_kinds(table({**line, "step_time_ms_high": 45.0})) == words
    assert bounds_kinds(table({**line, "step_time_ms_high": 43.0})) == []


def test_a_table_across_has_a_line_per_arm_and_the_ratio_in_parentheses() -> None:
    ratio = {"time_over_dense": 0.23, "time_over_dense_low": 0.2, "time_over_dense_high": 0.25}
    lines = [{}, {"batch_size": 16, "step_time_ms": None, "time_status": "oom"}]
    lines += [{"arm": "comera", "step_time_ms": 10.0, **ratio}, {"arm": "comera", "batch_size": 16}]
    found = across(table(*lines), "arm", "batch_size", {"step_time_ms": "time_over_dense"})
    assert found.to_dict("records") == [
        {"arm": "dense", "step, ms, batch 8": "44.0", "step, ms, batch 16": "oom"},
        {"arm": "comera", "step, ms, batch 8": "10.0 (0.230x)", "step, ms, batch 16": "44.0"},
    ]


def test_numbers_stand_to_the_right_also_where_some_are_missing() -> None:
    numbers = {"ms": ["1.0 [0.9, 1.1]", "oom", "2"], "arm": ["a", "b", "c"]}
    found = pd.DataFrame({**numbers, "why": ["no", "", "it"]})
    assert columns.left_columns(found) == {"arm", "why"}


def test_details_are_in_the_csv_alone_and_patterns_take_the_name_of_what_they_are_over() -> None:
    for end in ("time_over_dense_low", "time_over_dense_bounds", "cuda_activations_mib", "blocks"):
        assert format_of(end) is None
    found = format_of("time_over_low_rank")
    assert found is not None
    assert found.heading == "time / low rank"
    assert all(one.heading for one in columns.FORMATS.values())


@pytest.mark.parametrize(
    ("value", "decimals", "text"),
    [
        (0.925, 2, "0.93"),
        (2.55, 1, "2.6"),
        (61.5, 0, "62"),
        (2.675, 2, "2.68"),
        (6.251, 1, "6.3"),
        (2.5449, 2, "2.54"),
        (-0.125, 2, "-0.13"),
        (1234.5, 0, "1,235"),
        (1e-9, 2, "0.00"),
        (9.995, 2, "10.00"),
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
        (2.545, 3, "2.55"),
        (0.9995, 3, "1.00"),
        (0.99949, 3, "0.999"),
        (61.5, 2, "62"),
        (99.95, 3, "100"),
        (9.996, 3, "10.0"),
        (0.00012345, 4, "0.0001235"),
        (-2.545, 3, "-2.55"),
        (1234.4, 3, "1,234"),
        (0.0, 3, "0"),
    ],
)
def test_significant_digits_are_rounded_the_same_way(value: float, digits: int, text: str) -> None:
    assert significant(value, digits) == text


def test_markdown_cells_cannot_break_the_table() -> None:
    frame = pd.DataFrame([{"arm": "a|b", "remarks": "two\nlines <i>"}])
    lines = to_markdown(frame, frozenset({"arm"})).splitlines()
    assert lines == ["| arm | remarks |", "|:--|--:|", "| a\\|b | two lines &lt;i> |"]


@given(st.integers(min_value=1, max_value=10**9), st.integers(min_value=1, max_value=5))
def test_a_number_of_a_csv_rounds_as_the_unrounded_one(millionths: int, digits: int) -> None:
    value = millionths / 1e6
    assert f"{float(csv_number(value)):.{digits}g}" == f"{value:.{digits}g}"


def test_the_loss_that_pages_and_documents_once_wrote_in_two_ways() -> None:
    assert f"{float(csv_number(1.844496)):.4g}" == "1.844"


@pytest.mark.parametrize(
    ("width", "columns", "expected"),
    [
        (8, 3, [["key", "run", "a0", "a1", "a2"]]),
        (30, 4, [["key", "run", "a0", "a1"], ["key", "run", "a2", "a3"]]),
        (200, 2, [["key", "run"], ["key", "a0"], ["key", "a1"]]),  # wrapped
    ],
)
def test_a_table_too_wide_for_a_terminal_comes_in_parts_that_name_their_rows(width, columns, expected) -> None:
    table = pd.DataFrame({"key": ["x", "x", "y"], "run": ["1", "2", "1"]})
    table = table.assign(**{f"a{place}": "n" * width for place in range(columns)})
    parts = to_terminal(table, "title")
    assert [[str(column.header) for column in part.columns] for part in parts] == expected
    assert [str(part.title) for part in parts] == ["title", *[""] * (len(parts) - 1)]
    lines = []
    for part in parts:
        console = Console(width=TERMINAL, file=io.StringIO())
        with console.capture() as shown:
            console.print(part)
        lines += shown.get().splitlines()
    assert max(map(len, lines)) <= TERMINAL
    assert "".join(lines).count("n") == 3 * width * columns + sum("run" in part for part in expected)
