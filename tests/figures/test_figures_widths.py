"""From which width on tensor trains pay: every arm at its best, and what belongs to no panel left out with words."""

from __future__ import annotations

import dataclasses

import pytest
from made_up_widths import FORMS, step, widths

from figures.artifacts.beyond import widths as artifact
from figures.claims.claims import read_claims


def page_of(records):
    [page] = artifact.ARTIFACT.render(records, read_claims())
    return page


def test_each_arm_is_compared_at_its_best():
    [page] = artifact.select(widths())
    table = artifact.table(page)
    best = artifact.fastest(table).set_index(["part", "width", "arm"])
    assert len(table) == 2 * 3 * 4 * 3
    assert len(best) == 2 * 3 * 3
    dense, ours = 8192**2 / 1e5 * 0.4, 8192 / 100 * 0.9
    assert best.loc[("encoder", 8192, "comera"), "best_dense_over_arm"] == pytest.approx(dense / ours, rel=0.02)
    assert best.loc[("encoder", 768, "comera"), "best_dense_over_arm"] < 1
    assert table.loc[table["arm"] == "dense", "best_dense_over_arm"].isna().all()


def test_the_page_says_first_where_nothing_is_won():
    page = page_of(widths())
    assert page.notes[2] == "One encoder block, comera: not surely faster than dense at width 768, 2048."
    assert len(page.table) == 2 * 3 * 4 * 3
    assert list(page.table) == ["part", "width", "arm", "toggles", "parameters", "step, ms", "best dense / arm"]
    assert page.files["widths-made-up-gpu-9000.png"] == page_of(widths()).files["widths-made-up-gpu-9000.png"]


def test_a_form_without_a_time_is_a_note_and_no_point():
    records = widths()
    failed = dataclasses.replace(
        step("encoder", 768, "dense", FORMS[2], 1.0), status="error", message="made up: no memory.", samples={}
    )
    records = [failed if one.cell_id == failed.cell_id else one for one in records]
    page = page_of(records)
    assert "error: made up: no memory." in list(page.table["remarks"])
    assert "error" in list(page.table["step, ms"])
    [selection] = artifact.select(records)
    assert selection.best("encoder", 768, "dense").compile is False


def test_another_batch_does_not_stand_in_the_same_panel():
    other = step("linear", 768, "comera", FORMS[0], 1.0, batch_size=64, cell_id="other")
    page = page_of([*widths(), other])
    assert any("batch 64, not 32" in note for note in page.notes)
