"""Which format trains best: rates chosen by one loss and reported by another, rivals found by size."""

from __future__ import annotations

import dataclasses

import pytest
from made_up_formats import DENSE_SIZE, LOWEST, searched, steps, trained

from figures.artifacts.beyond import formats as artifact
from figures.records.searches import Search, SearchedArm, searches


def drawn(records):
    [page] = artifact.ARTIFACT.render(records, {})
    return page


def lines(records):
    """The table by optimizer and arm, and what people read of it."""
    [page] = artifact.select(records)
    table = artifact.table(page)
    read = artifact.shown(page, table).set_index(["optimizer", "arm"])
    return table.set_index(["optimizer", "arm"]), read


def against(records):
    [page] = artifact.select(records)
    return artifact.about(page, artifact.table(page))["against"]


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
    table, read = lines(searched())
    found = table.loc[("adamw", "btt rank 2"), ["test_loss_low", "test_loss", "test_loss_high"]]
    assert found.tolist() == pytest.approx([1.96, 1.962, 1.964])
    assert (table["seeds"] == 3).all()
    assert (table["remarks"] == "").all()
    assert read.loc[("AdamW", "btt rank 2"), "loss"] == "1.962 [1.960, 1.964]"


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
    assert lines(records)[1].loc[("Muon", "btt rank 2"), "less narrow"] == "+0.0200 (sure)"
    other = [
        dataclasses.replace(one, parameters=round(DENSE_SIZE / 2)) if one.variant == "narrow" else one
        for one in records
    ]
    assert lines(other)[1].loc[("Muon", "btt rank 2"), "less narrow"] == "-"
    assert against(other) == {}


def test_formats_are_counted_by_where_they_end_beside_their_narrow_rival():
    assert against(searched()) == {
        "AdamW": {"above": ["comera"], "apart": [], "below": ["btt rank 2", "low_rank@size:spectral"]},
        "Muon": {"above": ["btt rank 2", "low_rank@size:spectral", "comera"], "apart": [], "below": []},
    }
    few = [one for one in searched() if one.seed == 0]
    assert {len(found["apart"]) for found in against(few).values()} == {3}


def test_differences_are_to_the_two_dense_models_of_the_same_optimizer():
    _, read = lines(searched())
    assert read.loc[("Muon", "dense:narrow"), ["less narrow", "less dense"]].tolist() == ["-", "+0.140 (sure)"]
    assert read.loc[("AdamW", "dense"), ["less narrow", "less dense"]].tolist() == ["-", "-"]
    assert read.loc[("AdamW", "btt rank 2"), ["less narrow", "less dense"]].tolist() == [
        "-0.120 (sure)",
        "+0.0100 (sure)",
    ]


def test_training_time_is_steps_times_a_measured_step():
    table, read = lines([*searched(), *steps()])
    assert table.loc[("muon", "dense"), "training_s"] == pytest.approx(80.0)
    assert table.loc[("muon", "btt rank 2"), "training_s"] == pytest.approx(50.0)
    assert read.loc[("Muon", "dense"), "step, ms"] == "80.0"
    assert lines(searched())[0]["training_s"].isna().all()


def test_lines_go_by_optimizer_size_and_loss():
    table, _ = lines(searched())
    assert list(table.index.get_level_values("optimizer").unique()) == ["adamw", "muon"]
    for _, part in table.groupby("optimizer"):
        assert part.index.get_level_values("arm")[0] == "dense"
        assert part["test_loss"].iloc[1:].is_monotonic_increasing


def test_an_edge_and_few_seeds_are_notes():
    records = [trained("dense", "adamw", rate, 2 - rate) for rate in (0.1, 0.2, 0.4)]
    page = drawn(records)
    assert lines(records)[0]["remarks"].tolist() == ["best rate at an edge of those tried; 1 seed"]
    assert {note for note in page.notes if note.endswith(": dense (AdamW).")} == {
        "Best rate at an edge of those tried: dense (AdamW).",
        "1 seed: dense (AdamW).",
    }


def test_trainings_of_another_length_are_left_out_with_words():
    short = trained("btt", "adamw", 0.01, 3.0)
    short = dataclasses.replace(short, cell_id="short", config_json=short.config_json.replace("1000", "10"))
    page = drawn([*searched(), short])
    assert any("left out, of another setting" in note for note in page.notes)


def test_the_page_is_drawn_with_a_line_per_arm_and_optimizer():
    page = drawn([*searched(), *steps()])
    assert len(page.table) == 2 * len(LOWEST["adamw"])
    assert page.files["formats-made-up-cpu-2-threads-tiny.png"]
    axes = page.files._draw().axes
    assert [one.get_xlabel().partition(",")[0] for one in axes] == [
        *("size of the stored model", "training", "predicted peak memory of a step"),
    ] * 2
    seeds = [line for line in axes[1].lines if len(line.get_xdata()) == 2 and set(line.get_xdata()) == {80.0}]
    assert sorted(seeds[0].get_ydata()) == pytest.approx([1.95, 1.954])
