"""One list says how columns are written: units, bounds, marks and reasons look the same in every table."""

import pandas as pd
import pytest

from figures.columns import FORMATS, across, bounds_kinds, format_of, left_columns, readable, table_of, unit_of
from figures.text import rounded, significant, to_markdown

LINE = {"arm": "dense", "batch_size": 8, "time_status": "ok", "time_message": "", "step_time_ms": 44.0}


def written(**columns: object) -> dict[str, str]:
    """A line with these columns as people read it."""
    [line] = readable(table_of([{**LINE, **columns}])).to_dict("records")
    return {str(heading): str(cell) for heading, cell in line.items()}


@pytest.mark.parametrize(
    ("columns", "cell"),
    [
        ({}, "44.0"),
        ({"step_time_ms_low": 43.0, "step_time_ms_high": 45.5}, "44.0 [43.0, 45.5]"),
        ({"step_time_ms_low": 44.0, "step_time_ms_high": 44.0}, "44.0"),
        ({"step_time_ms": 1234.5}, "1,235"),
        ({"step_time_ms": 0.0}, "0"),
    ],
)
def test_a_number_has_three_digits_and_its_bounds_where_it_varies(columns: dict[str, object], cell: str) -> None:
    assert written(**columns)["step, ms"] == cell


@pytest.mark.parametrize(
    ("status", "cell"), [("oom", "oom"), ("not recorded", "not recorded"), ("not in the grid", "-"), ("ok", "-")]
)
def test_a_cell_without_number_says_why(status: str, cell: str) -> None:
    lines = [{**LINE, "step_time_ms": None, "time_status": status}, LINE]
    assert readable(table_of(lines))["step, ms"][0] == cell


@pytest.mark.parametrize(("pairing", "cell"), [("paired", "4.40x"), ("unpaired", "4.40x ‡"), ("", "4.40x")])
def test_a_ratio_is_marked_where_its_sides_were_not_timed_together(pairing: str, cell: str) -> None:
    assert written(time_over_comera=4.4, time_pairing=pairing)["time / comera"] == cell


def test_what_others_are_compared_with_is_one_and_older_code_marks_a_line_once() -> None:
    lines = [{**LINE, "arm": "comera", "time_over_comera": None}, {**LINE, "time_over_comera": 4.4}]
    assert list(readable(table_of(lines))["time / comera"]) == ["1", "4.40x"]
    found = readable(table_of([{**LINE, "older_code": True}, {**LINE, "older_code": False}]))
    assert list(found["arm"]) == ["dense †", "dense"]
    assert not any("†" in str(cell) for cell in found.drop(columns="arm").to_numpy().flat)


def test_columns_without_any_value_are_left_out_unless_asked_for() -> None:
    table = table_of([{**LINE, "allocated_mib": None}])
    assert "allocated MiB" not in readable(table)
    assert list(readable(table, ["arm", "allocated_mib"]).iloc[0]) == ["dense", "-"]


@pytest.mark.parametrize(
    ("seconds", "unit", "factor"), [(100.0, "seconds", 1.0), (200.0, "minutes", 1 / 60), (9e4, "hours", 1 / 3600)]
)
def test_the_unit_of_epochs_suits_the_longest(seconds: float, unit: str, factor: float) -> None:
    table = table_of([{**LINE, "epoch_time_s": one} for one in (seconds, seconds / 50)])
    assert unit_of(table, "epoch") == (unit, pytest.approx(factor))
    shown = readable(table)[f"epoch, {unit}"][0].replace(",", "")
    assert float(shown) == pytest.approx(seconds * factor, rel=0.01)


@pytest.mark.parametrize(
    ("kind", "launches", "words"),
    [
        ("range", 1, ["range over blocks"]),
        ("range", 3, ["range over launches"]),
        ("interval", 8, ["95% interval over launches and blocks"]),
        ("", 8, []),
    ],
)
def test_bounds_are_called_what_they_are(kind: str, launches: int, words: list[str]) -> None:
    line = {**LINE, "step_time_ms_low": 43.0, "step_time_ms_high": 45.0, "step_time_ms_bounds": kind}
    assert bounds_kinds(table_of([{**line, "launches": launches}])) == words
    assert bounds_kinds(table_of([{**line, "step_time_ms_high": 43.0, "launches": launches}])) == []


def test_a_table_across_has_a_line_per_arm_and_the_ratio_in_parentheses() -> None:
    ratio = {"time_over_comera": 4.4, "time_over_comera_low": 4.0, "time_over_comera_high": 5.0}
    lines = [{**LINE, **ratio}, {**LINE, "batch_size": 16, "step_time_ms": None, "time_status": "oom"}]
    lines += [{**LINE, "arm": "comera", "step_time_ms": 10.0}, {**LINE, "arm": "comera", "batch_size": 16}]
    table = across(table_of(lines), "arm", "batch_size", {"step_time_ms": "time_over_comera"})
    assert table.to_dict("records") == [
        {"arm": "dense", "step, ms, batch 8": "44.0 (4.40x)", "step, ms, batch 16": "oom"},
        {"arm": "comera", "step, ms, batch 8": "10.0", "step, ms, batch 16": "44.0"},
    ]


def test_numbers_stand_to_the_right_also_where_some_are_missing() -> None:
    table = pd.DataFrame({"arm": ["a", "b", "c"], "ms": ["1.0 [0.9, 1.1]", "oom", "2"], "why": ["no", "", "it"]})
    assert left_columns(table) == {"arm", "why"}


def test_details_are_in_the_csv_alone_and_patterns_take_the_name_of_what_they_are_over() -> None:
    for column in ("time_over_comera_low", "time_over_comera_bounds", "cuda_activations_mib", "launches"):
        assert format_of(column) is None
    found = format_of("time_over_low_rank")
    assert found is not None
    assert found.heading == "time / low rank"
    assert all(one.heading for one in FORMATS.values())


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
