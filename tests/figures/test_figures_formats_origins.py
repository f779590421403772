"""Formats from scratch, decomposed and pruned: which trainings are each other's rivals."""

from __future__ import annotations

import dataclasses

from made_up_formats import DENSE_SIZE, decomposed, pruned, searched

from figures.artifacts.beyond import formats_origins as artifact

SIZE = round(DENSE_SIZE / 2.7)
LESS = "less scratch"


def lines(records):
    """The table by arm, optimizer, origin and its amount, with the difference that people read."""
    [page] = artifact.select(records)
    table = artifact.table(page)
    table[LESS] = artifact.shown(page, table)[LESS]
    table["origin_amount"] = table["origin_amount"].fillna(0)
    return table.set_index(["arm", "optimizer", "origin", "origin_amount"]).sort_index()


def against(records):
    [page] = artifact.select(records)
    return artifact.about(page, artifact.table(page))["against"]


BOTH = [*searched(), *decomposed("btt", "muon", 1.85), *decomposed("comera", "muon", 2.1)]


def test_decomposed_formats_stand_beside_themselves_from_scratch():
    found = lines(BOTH)
    lower = found.loc[("btt rank 2", "muon", "decomposed", 800)]
    assert lower[LESS] == "-0.0310 (sure)"
    assert (lower["lr"], lower["at_edge"], lower["remarks"], lower["rates"]) == (0.01, False, "", 4)
    assert found.loc[("comera", "muon", "decomposed", 800), LESS] == "+0.0990 (sure)"
    assert found.loc[("btt rank 2", "muon", "scratch", 0), LESS] == "-"
    assert set(found.index.get_level_values("optimizer")) == {"muon"}  # nothing was decomposed under the other


def test_both_optimizers_are_shown_though_their_dense_rates_differ():
    found = lines([*searched(), *decomposed("btt", "muon", 1.85), *decomposed("btt", "adamw", 1.97)])
    assert found.loc[("btt rank 2", "adamw", "decomposed", 800), LESS] != "-"
    assert found.loc[("btt rank 2", "muon", "decomposed", 800), LESS] != "-"


def test_another_size_or_length_is_no_rival():
    for column, value in (("parameters", round(1.03 * SIZE)), ("train_steps", 1200)):
        changed = [dataclasses.replace(one, **{column: value}) for one in decomposed("btt", "muon", 1.85)]
        assert lines([*searched(), *changed]).loc[("btt rank 2", "muon", "decomposed", 800), LESS] == "-"


def test_every_share_that_is_left_is_a_row_with_its_size():
    both = [*pruned("comera", "muon", 1.99, 0.5, SIZE), *pruned("comera", "muon", 2.2, 0.25, SIZE // 2)]
    found = lines([*searched(), *both])
    assert found.loc[("comera", "muon", "pruned", 0.5), "parameters"] == SIZE
    assert found.loc[("comera", "muon", "pruned", 0.25), "test_loss"] > 2.2
    assert found.loc[("comera", "muon", "pruned", 0.5), LESS] == "-"  # it had twice as many steps


def test_formats_are_listed_by_where_they_end_beside_themselves():
    assert against(BOTH) == {"above": ["comera (Muon)"], "apart": [], "below": ["btt rank 2 (Muon)"]}
    few = [one for one in decomposed("btt", "muon", 1.0) if one.seed == 0]
    assert lines([*searched(), *few]).loc[("btt rank 2", "muon", "decomposed", 800), LESS] == "-0.882"
    assert against([*searched(), *few]) == {"above": [], "apart": ["btt rank 2 (Muon)"], "below": []}


def test_the_page_has_a_point_per_line_on_the_losses():
    [page] = artifact.ARTIFACT.render(BOTH, {})
    assert len(page.table) == len(lines(BOTH))
    [axes] = page.files._draw().axes
    points = sorted(x for line in axes.lines if line.get_marker() in "oDv" for x in line.get_xdata())
    assert points == sorted(lines(BOTH).drop("dense")["test_loss"])
    assert axes.get_yticklabels()[0].get_text() == "btt rank 2, 174 k"


def test_without_such_trainings_there_is_no_page():
    assert artifact.select(searched()) == []
