"""Fig. 10: a page per phase, and the verdicts on size and time of the full CodeBERT-like model."""

from __future__ import annotations

import pytest
from made_up_code import SMALL, campaign
from made_up_records import CPU

from figures.artifacts import fig10
from figures.claims.claims import read_claims


def verdicts(records):
    found = {}
    for page in fig10.ARTIFACT.render(records, read_claims()):
        for verdict in page.verdicts:
            found.setdefault(verdict.claim.id, []).append(verdict)
    return found


def test_a_page_per_phase():
    first, second = fig10.select(campaign())
    assert [(page.length, page.time_batches, page.per) for page in (first, second)] == [
        (128, [8], "step"),
        (512, [2], "step"),
    ]
    table = fig10.ARTIFACT.table(first)
    assert [*table["arm"]] == ["comera", "low_rank@size", "dense"]
    assert dict(zip(table["arm"], table["time_over_comera"].round(6), strict=True))["dense"] == 2.0
    assert fig10.about(first, table)["smaller"] == pytest.approx({"comera": 4.23, "low_rank@size": 4.3}, 1e-6)
    drawn = fig10.ARTIFACT.render(campaign(), read_claims())
    assert [page.title.rpartition(", phase ")[2] for page in drawn] == [
        "1 (rows of 128 tokens)",
        "2 (rows of 512 tokens)",
    ]
    assert [*drawn[0].table.columns] == ["arm", "step, ms, batch 8", "peak MiB, CUDA, batch 8"]
    assert "comera 4.23, low_rank@size 4.30" in " ".join(drawn[0].facts)


@pytest.mark.parametrize(
    ("ratios", "outcomes"),
    [
        ((2.0, 2.4), ["reproduced", "reproduced"]),
        ((1.87, 2.27), ["reproduced", "reproduced"]),
        ((2.4, 2.0), ["reproduced", "partly"]),
        ((0.9, 0.8), ["not reproduced", "not reproduced"]),
        ((5.0, 2.3), ["partly", "reproduced"]),
    ],
)
def test_each_phase_has_its_end_of_the_published_range(ratios, outcomes):
    assert [verdict.outcome for verdict in verdicts(campaign(ratios=ratios))["codebert-speedup"]] == outcomes


def test_times_of_a_cpu_or_of_another_model_decide_nothing():
    [one, _] = verdicts(campaign(CPU))["codebert-speedup"]
    assert one.outcome == "not tested here"
    assert "GPU" in one.why
    assert "2.0" in one.ours_text
    found = verdicts(campaign(small={**SMALL, "dense": 1000}))
    assert {v.outcome for of in found.values() for v in of} == {"not tested here"}


@pytest.mark.parametrize(
    ("times", "outcome"),
    [(4.19, "by construction"), (4.27, "by construction"), (4.1, "not reproduced"), (6.0, "not reproduced")],
)
def test_the_size_is_held_against_what_was_published_within_one_percent(times, outcome):
    found = verdicts(campaign(CPU, small={**SMALL, "comera": fig10.FULL_SIZE / times}))["codebert-ratio"]
    assert [verdict.outcome for verdict in found] == [outcome] * 2
    assert f"{times:.3f}x" in found[0].ours_text


@pytest.mark.parametrize(("times", "outcome"), [(9.74, "by construction"), (9.6, "not reproduced")])
def test_the_size_without_the_word_embedding_is_held_against_its_own_claim(times, outcome):
    left = fig10.WORD_EMBEDDING + (fig10.FULL_SIZE - fig10.WORD_EMBEDDING) / times
    found = verdicts(campaign(CPU, small={**SMALL, "comera": left}))["codebert-encoder-ratio"]
    assert [verdict.outcome for verdict in found] == [outcome] * 2
    assert f"{times:.3f}x" in found[0].ours_text
