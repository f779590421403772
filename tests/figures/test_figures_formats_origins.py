"""Formats from scratch, decomposed and pruned: which trainings are each other's rivals, and what the page concludes."""

from __future__ import annotations

import dataclasses

from made_up_formats import DENSE_SIZE, decomposed, pruned, searched

from figures.artifacts.beyond import formats_origins as artifact
from figures.claims.claims import read_claims

SIZE = round(DENSE_SIZE / 2.7)


def rows_of(records):
    [page] = artifact.select(records)
    return {
        (row.search.slot.arm, row.optimizer, row.origin.kind, row.origin.amount): row for row in artifact.rows_of(page)
    }


def test_decomposed_formats_stand_beside_themselves_from_scratch():
    rows = rows_of([*searched(), *decomposed("btt", "muon", 1.85), *decomposed("comera", "muon", 2.1)])
    lower = rows["btt rank 2", "Muon", "decomposed", 800]
    assert lower.less_scratch == "-0.031 (sure)"
    assert (lower.search.best, lower.search.at_edge, lower.search.remarks) == (0.01, False, "")
    assert rows["comera", "Muon", "decomposed", 800].less_scratch == "+0.099 (sure)"
    assert rows["btt rank 2", "Muon", "scratch", 0].less_scratch is None
    assert not any(optimizer == "AdamW" for _, optimizer, _, _ in rows)  # nothing was decomposed under it


def test_both_optimizers_are_shown_though_their_dense_rates_differ():
    rows = rows_of([*searched(), *decomposed("btt", "muon", 1.85), *decomposed("btt", "adamw", 1.97)])
    assert rows["btt rank 2", "AdamW", "decomposed", 800].less_scratch is not None
    assert rows["btt rank 2", "Muon", "decomposed", 800].less_scratch is not None


def test_another_size_or_length_is_no_rival():
    for column, value in (("parameters", round(1.03 * SIZE)), ("train_steps", 1200)):
        changed = [dataclasses.replace(one, **{column: value}) for one in decomposed("btt", "muon", 1.85)]
        assert rows_of([*searched(), *changed])["btt rank 2", "Muon", "decomposed", 800].less_scratch is None


def test_every_share_that_is_left_is_a_row_with_its_size():
    both = [*pruned("comera", "muon", 1.99, 0.5, SIZE), *pruned("comera", "muon", 2.2, 0.25, SIZE // 2)]
    rows = rows_of([*searched(), *both])
    assert rows["comera", "Muon", "pruned", 0.5].search.run.parameters == SIZE
    assert rows["comera", "Muon", "pruned", 0.25].search.loss > 2.2
    assert rows["comera", "Muon", "pruned", 0.5].less_scratch is None  # it had twice as many steps


def test_the_page_says_first_where_a_format_is_at_fault():
    records = [*searched(), *decomposed("btt", "muon", 1.85), *decomposed("comera", "muon", 2.1)]
    [page] = artifact.ARTIFACT.render(records, read_claims())
    assert page.title.endswith("1 higher, 0 not surely apart, 1 lower")
    assert page.notes[0].endswith("limits it: comera (Muon).")
    assert page.notes[1].endswith("finds: btt rank 2 (Muon).")
    assert len(page.table) == len(rows_of(records))


def test_one_seed_says_nothing_for_sure():
    few = [one for one in decomposed("btt", "muon", 1.0) if one.seed == 0]
    records = [*searched(), *few]
    assert rows_of(records)["btt rank 2", "Muon", "decomposed", 800].less_scratch == "-0.882"
    [page] = artifact.ARTIFACT.render(records, read_claims())
    assert "0 higher, 1 not surely apart, 0 lower" in page.title


def test_without_such_trainings_there_is_no_page():
    assert artifact.select(searched()) == []
