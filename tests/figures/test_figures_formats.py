"""Which format trains best: rates chosen by one loss and reported by another, rivals found by size."""

from __future__ import annotations

import dataclasses
import math

import pytest
from made_up_formats import DENSE_SIZE, LOWEST, searched, steps, trained

from figures.artifacts.beyond import formats as artifact
from figures.claims.claims import read_claims
from figures.records.searches import Search, SearchedArm, searches


def page_of(records):
    [page] = artifact.ARTIFACT.render(records, read_claims())
    return page


def rows_by_name(records):
    [page] = artifact.select(records)
    return {(row.optimizer, row.search.slot.arm): row for row in artifact.rows_of(page)}


def test_the_rate_is_chosen_by_one_loss_and_reported_by_another():
    runs = [trained("btt", "adamw", rate, loss) for rate, loss in ((0.1, 2.0), (0.2, 1.9), (0.4, 1.8))]
    runs[1] = dataclasses.replace(runs[1], metrics={"loss": 1.0, "test_loss": 1.95})
    [search] = searches(runs, [])
    assert (search.best, search.loss, search.at_edge) == (0.2, 1.95, False)
    assert [*search.tried] == [0.1, 0.2, 0.4]


def test_a_run_that_diverged_is_never_the_best():
    runs = [trained("btt", "adamw", 0.1, 2.0), trained("btt", "adamw", 0.2, 1.0, status="diverged", metrics={})]
    [search] = searches(runs, [])
    assert (search.best, search.at_edge) == (0.1, True)
    [none] = searches([dataclasses.replace(runs[1], status="error")], [])
    assert (none.best, none.loss, none.range) == (None, None, None)


def test_seeds_beside_the_search_are_reported_together():
    row = rows_by_name(searched())["AdamW", "btt rank 2"]
    assert row.search.reached == {0: 1.96, 1: pytest.approx(1.962), 2: pytest.approx(1.964)}
    assert row.search.range == (1.96, pytest.approx(1.964))
    assert row.search.loss == pytest.approx(1.962)
    assert row.search.remarks == ""


@pytest.mark.parametrize(("ours", "theirs", "sure"), [([1.0] * 3, [1.1] * 3, True), ([1.0] * 2, [1.1] * 3, False)])
def test_less_is_sure_with_three_seeds_on_either_side(ours, theirs, sure):
    def search(arm, losses):
        return Search(
            SearchedArm(arm, "muon", 2.7), tuple(trained(arm, "muon", 0.1, loss, n) for n, loss in enumerate(losses))
        )

    assert search("btt", ours).surely_below(search("comera", theirs)) is sure
    assert search("comera", theirs).surely_below(search("btt", ours)) is False


def test_a_narrower_model_of_another_size_is_no_rival():
    records = searched()
    assert rows_by_name(records)["Muon", "btt rank 2"].less_narrow == "+0.020 (sure)"
    other = [
        dataclasses.replace(one, parameters=round(DENSE_SIZE / 2)) if one.variant == "narrow" else one
        for one in records
    ]
    assert rows_by_name(other)["Muon", "btt rank 2"].less_narrow is None


def test_what_goes_against_structured_formats_comes_first():
    page = page_of([*searched(), *steps()])
    assert page.title == (
        "Formats against a narrower dense model of equal size, tiny: under AdamW 1 surely worse, 0 undecided, "
        "2 surely better; under Muon 3 surely worse, 0 undecided, 0 surely better"
    )
    notes = [note for note in page.notes if "dense model of equal size" in note or "than it" in note]
    assert notes[0].startswith("AdamW, surely worse than a narrower dense model of equal size: comera, 2.7x.")
    assert any(note.startswith("Muon less than AdamW, in loss: dense 0.230") for note in page.notes)
    assert len(page.table) == 2 * len(LOWEST["adamw"])
    assert "formats-made-up-cpu-2-threads-tiny.png" in page.files


def test_training_time_is_steps_times_a_measured_step():
    rows = rows_by_name([*searched(), *steps()])
    assert rows["Muon", "dense"].training_s == pytest.approx(80.0)
    assert rows["Muon", "btt rank 2"].training_s == pytest.approx(50.0)
    assert rows_by_name(searched())["Muon", "dense"].training_s is None


def test_an_edge_and_few_seeds_are_said():
    records = [trained("dense", "adamw", rate, 2 - rate) for rate in (0.1, 0.2, 0.4)]
    page = page_of(records)
    assert page.table["remarks"].tolist() == ["best rate at an edge of those tried; 1 seed"]
    assert any(note == "Best rate at an edge, so that more rates may do better: dense (AdamW)." for note in page.notes)
    assert page.title == "Loss of formats, tiny: nothing to compare yet"


def test_trainings_of_another_length_are_left_out_with_words():
    short = trained("btt", "adamw", 0.01, 3.0)
    short = dataclasses.replace(short, cell_id="short", config_json=short.config_json.replace("1000", "10"))
    page = page_of([*searched(), short])
    assert any("left out, of another setting" in note for note in page.notes)


def test_the_table_has_what_programs_need():
    [drawn] = artifact.ARTIFACT.render([*searched(), *steps()], read_claims())
    text = drawn.files["formats-made-up-cpu-2-threads-tiny.csv"].decode()
    header, first = text.splitlines()[:2]
    for column in ("optimizer", "ratio", "parameters", "test_loss", "seeds", "lr", "at_edge", "training_s", "rates"):
        assert column in header.split(","), column
    assert "dense" in first
    assert not math.isnan(rows_by_name(searched())["AdamW", "dense"].search.loss)
