"""Pointer labels beside SST-2: which trainings the pages show, and what the ledger makes of them.

The records are committed ones; a case moves their accuracies or leaves some out.
"""

import dataclasses
import functools
import json
from collections.abc import Sequence
from typing import Any

import pandas as pd
import pytest
from made_up import failed, stages_of_accuracy
from pages import CLAIMS, committed, page, parsed, table

from bench.core.record import Record
from figures.arms import DENSE
from figures.claims.claims import AGREEING, Judgement
from figures.frame import of as frame_of
from figures.ledger.judging import Entry, judge
from figures.ledger.pages import to_csv, to_markdown_page, to_text
from figures.stats.metric import LeadingMetric, MetricValue, difference, score
from figures.stats.pointer import searched_by_way

TARGET, WAY = 0.2, "saliency"


def settings_of(one: Record) -> dict[str, Any]:
    return dict(json.loads(one.config_json)["method_settings"])


def is_closed_by_saliency(one: Record) -> bool:
    settings = settings_of(one)
    return settings.get("late") == WAY and settings.get("order") != 1 and one.seed < 3


@functools.cache
def bed() -> tuple[Record, ...]:
    """Dense, its narrower form and CoMERA from scratch, one way and target of closing, and the probe."""
    from_scratch = (DENSE, "dense:narrow", "comera")
    return tuple(
        one
        for one in committed("fig6", "pointer_stages")
        if (one.measure == "probe" and one.workload == "pointer")
        or (one.experiment == "pointer" and one.arm in from_scratch and one.ratio in (None, 1.6008))
        or (one.experiment == "pointer_stages" and one.target_ratio == TARGET and is_closed_by_saliency(one))
    )


def staged(one: Record) -> bool:
    return one.experiment == "pointer_stages"


def learning_rate(one: Record) -> float:
    return float(json.loads(one.config_json)["training"]["recipe"]["lr"])


def has_two_blocks(one: Record) -> bool:
    return bool(json.loads(one.config_json)["workload_settings"]["layers"] == 2)


def is_dense(one: Record) -> bool:
    by_muon = one.measure == "train" and json.loads(one.config_json)["training"]["recipe"]["optimizer"] == "muon"
    return by_muon and one.arm == DENSE and has_two_blocks(one)


def moved(one: Record, points: float) -> Record:
    """The same training with another accuracy on the reported data."""
    curve = [dict(row) for row in one.samples["curve"]]
    for row in curve:
        row["metrics"] = row["metrics"] | {"test_accuracy": row["metrics"]["test_accuracy"] + points}
    metrics = one.metrics | {"test_accuracy": one.metrics["test_accuracy"] + points}
    return dataclasses.replace(one, metrics=metrics, samples=one.samples | {"curve": curve})


def published(one: Record) -> Record:
    """The same training as if the published late stage had closed its ranks."""
    cell = json.loads(one.config_json)
    cell["method_settings"] |= {"late": "paper"}
    return dataclasses.replace(one, config_json=json.dumps(cell), cell_id=f"{one.cell_id}-published")


def entry_of(claim: str, records: Sequence[Record]) -> Entry:
    [entry] = judge(list(records), only={claim})
    return entry


def on_bed(claim: str, records: Sequence[Record]) -> Judgement:
    [(_, found)] = entry_of(claim, records).beds
    return found


def test_each_arm_is_shown_at_its_best_rate_with_the_accuracy_that_is_reported() -> None:
    found = table("table_mnli", bed(), "arm")
    assert set(found.index) == {DENSE, "dense:narrow", "comera", "comera:orthogonal, closed by saliency"}
    dense = [one for one in bed() if is_dense(one)]
    best = min((one for one in dense if one.seed == 0), key=lambda one: one.leading or float("inf"))
    rate = json.loads(best.config_json)["training"]["recipe"]["lr"]
    reported = [
        one.metrics["test_accuracy"] for one in dense if json.loads(one.config_json)["training"]["recipe"]["lr"] == rate
    ]
    assert len(reported) == 3
    row = found.loc[DENSE, ["test_accuracy", "test_accuracy_low", "test_accuracy_high"]]
    assert row.tolist() == pytest.approx([sum(reported) / 3, min(reported), max(reported)], abs=1e-3)


def test_the_reported_accuracy_chooses_no_rate() -> None:
    before = table("fig6", bed())
    worst = [one for one in bed() if is_dense(one) and one.metrics["test_accuracy"] < 90]
    better = [moved(one, 99.99 - one.metrics["test_accuracy"]) if one in worst else one for one in bed()]
    assert worst
    assert table("fig6", better).equals(before)


@pytest.mark.parametrize("name", ["fig6", "table_mnli", "table_ranks"])
def test_pages_of_other_data_stay_as_they_are(name: str) -> None:
    """A page is drawn for each target, and only where ranks closed."""
    own = table(name, stages_of_accuracy())
    with_scratch = [*stages_of_accuracy(), *(one for one in bed() if not staged(one))]
    assert table(name, with_scratch).equals(own)


def test_the_picture_has_the_mean_of_every_arm_at_every_step() -> None:
    drawn = page("fig6", bed(), picture=True)
    [axes] = drawn.files._draw().axes  # type: ignore[misc]
    means = table("fig6", bed()).groupby(["run", "step"])["test_accuracy"].mean()
    shown = {round(float(y), 2) for line in axes.lines for y in line.get_ydata()}
    assert {round(value, 2) for value in means} <= shown
    assert means.index.get_level_values("run").nunique() == 4


def shifted(records: Sequence[Record], points: float) -> list[Record]:
    """CoMERA's accuracies so many points away from where they are."""
    return [moved(one, points) if one.arm.startswith("comera") else one for one in records]


@pytest.mark.parametrize(
    ("claim", "points", "outcome"),
    [
        ("mnli-same-accuracy", 0.0, "reproduced"),
        ("mnli-same-accuracy", -1.0, "partly"),
        ("mnli-early-acc", -9.0, "not reproduced"),
        ("mnli-late02-acc", 0.0, "reproduced"),
        ("mnli-late02-acc", -9.0, "not reproduced"),
    ],
)
def test_the_margin_decides_on_the_bed_and_nothing_about_mnli(claim: str, points: float, outcome: str) -> None:
    records = shifted([published(one) if staged(one) else one for one in bed()], points)
    assert on_bed(claim, records).outcome == outcome
    assert on_bed(claim, records).ours
    assert entry_of(claim, records).outcome == "not tested here"


@pytest.mark.parametrize("claim", ["mnli-same-accuracy", "mnli-late02-acc"])
def test_two_seeds_or_a_dense_model_below_the_probe_decide_nothing(claim: str) -> None:
    records = [published(one) if staged(one) else one for one in bed()]
    few = on_bed(claim, [one for one in records if one.seed < 2])
    assert (few.outcome, "2 seeds, 3 are needed" in few.why) == ("not tested here", True)
    void = on_bed(claim, [moved(one, -40.0) if is_dense(one) else one for one in records])
    assert (void.outcome, "Void" in void.why) == ("not tested here", True)


def test_without_an_end_or_without_dense_a_page_says_so() -> None:
    diverged = [failed(published(one), "diverged", "made up.") if staged(one) else one for one in bed()]
    found = on_bed("mnli-late02-acc", diverged)
    assert (found.outcome, "is diverged" in found.why) == ("not tested here", True)
    found = on_bed("mnli-late02-acc", [published(one) for one in bed() if staged(one)])
    assert (found.outcome, "dense is not recorded" in found.why) == ("not tested here", True)


def test_another_way_of_closing_does_not_decide_the_published_one() -> None:
    found = on_bed("mnli-late02-acc", bed())
    assert (found.outcome, len(found.ours)) == ("not tested here", 1)
    assert "reproduced" in found.why
    both = [*bed(), *(moved(published(one), -9.0) for one in bed() if staged(one))]
    assert (on_bed("mnli-late02-acc", both).outcome, len(on_bed("mnli-late02-acc", both).ours)) == ("not reproduced", 2)


def test_the_bed_changes_no_verdict_and_each_form_of_the_ledger_has_it() -> None:
    stages = stages_of_accuracy()
    alone, beside = judge(stages), judge([*stages, *bed()])
    for before, after in zip(alone, beside, strict=True):
        assert (before.outcome, before.fair_outcome) == (after.outcome, after.fair_outcome)
        assert not before.rule.bed or after.outcome not in AGREEING
    with_bed = {entry.claim.id for entry in beside if entry.beds}
    assert with_bed == {name for name in CLAIMS if name.endswith(("early-acc", "same-accuracy"))} | {
        f"mnli-late{digits}-acc" for digits in ("08", "05", "02")
    }
    assert to_text(beside).count("  on a bed that decides") == len(with_bed)
    assert "## On a bed that decides" in to_markdown_page(beside)
    lines = parsed(to_csv(beside)).dropna(subset="bed_verdict")
    assert set(lines["claim"]) == {"mnli-early-acc", "mnli-late02-acc", "mnli-same-accuracy"}


@pytest.mark.parametrize(("by_seed", "bounds"), [(True, (50.0, 70.0)), (False, (None, None))])
def test_only_a_metric_that_asks_for_it_has_the_range_over_seeds(by_seed: bool, bounds: tuple[Any, Any]) -> None:
    metric = LeadingMetric("accuracy", "accuracy", "%", by_seed=by_seed)
    seeds = {seed: MetricValue(value) for seed, value in enumerate((50.0, 60.0, 70.0))}
    found = score(metric, seeds)
    assert found is not None
    assert (found.value, (found.low, found.high)) == (60.0, bounds)
    apart = difference(metric, seeds, {seed: MetricValue(50.0) for seed in seeds})
    assert apart is not None
    assert (apart.value, apart.low) == (10.0, 0.0 if by_seed else None)
    assert pd.isna(score(metric, {0: MetricValue(50.0)}).low)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("section", "changes", "expected"),
    [
        ("method_settings", {}, "closed by saliency"),
        ("method_settings", {"order": 1}, "closed by saliency, low rank"),
        ("method_settings", {"late": "magnitude"}, "closed by magnitude"),
        ("method_settings", {"late": "magnitude", "recovery": 0.999}, "cut at once by magnitude"),
        ("method_settings", {"late": "recompress"}, "rounded at once"),
        ("method_settings", {"late": "recompress", "order": 1}, "rounded at once, low rank"),
        ("method_settings", {"late": "paper"}, "published late stage"),
        ("workload_settings", {"pre_norm": False}, "closed by saliency, post-LN"),
        ("workload_settings", {"compress_table": True}, "closed by saliency, tensorized table"),
        ("training", {"recipe": {"optimizer": "adamw", "lr": 0.1}}, "closed by saliency, AdamW"),
        ("training", {"schedule": {"warmup": 0.0, "final": 1}}, "closed by saliency, constant rates"),
    ],
)
def test_a_search_is_named_by_how_it_comes_to_its_size_and_what_differs_from_the_recipe(section, changes, expected):
    one = next(record for record in bed() if staged(record))
    cell = json.loads(one.config_json)
    cell[section] |= changes
    frame = frame_of([dataclasses.replace(one, config_json=json.dumps(cell))])
    lines, _, _ = searched_by_way(frame, "pointer_stages")
    assert list(lines["way"]) == [expected]


def test_a_page_of_two_stages_gives_means_over_seeds_and_steps_between_points_of_the_curve():
    found = table("pointer_stages", bed(), "way").loc["closed by saliency"]
    best = [one for one in bed() if staged(one) and learning_rate(one) == found["lr"]]
    assert len(best) == found["seeds"] == 3
    assert found["test_accuracy"] == pytest.approx(sum(one.metrics["test_accuracy"] for one in best) / 3)
    assert 130 < found["steps_to"] < 1000
    before = [max(p["step"] for p in one.samples["curve"] if p["metrics"]["accuracy"] < 95) for one in best]
    after = [min(p["step"] for p in one.samples["curve"] if p["metrics"]["accuracy"] >= 95) for one in best]
    assert sum(before) / 3 < found["steps_to"] < sum(after) / 3


def rate_of(galore: Record) -> float:
    return float(settings_of(galore)["lr_projected"])


def test_arms_with_an_optimizer_of_their_own_stand_beside_those_of_a_recipe():
    trained = [one for one in committed("formats", "pointer") if one.workload == "pointer" and one.measure == "train"]
    records = [one for one in trained if is_dense(one) or one.arm == "galore"]
    found = table("formats", records, "arm")
    assert dict(found["optimizer"]) == {DENSE: "muon", "galore": "own"}
    best = min((one for one in records if one.arm == "galore"), key=lambda one: one.leading)
    assert found.loc["galore", "lr"] == rate_of(best)
    at_best = [one.metrics["test_loss"] for one in records if one.arm == "galore" and rate_of(one) == rate_of(best)]
    assert found.loc["galore", "test_loss"] == pytest.approx(sum(at_best) / len(at_best), rel=1e-4)


@pytest.mark.parametrize("status", ["diverged", "timeout"])
def test_a_rate_without_an_end_counts_among_those_tried(status):
    """A record without an end has the target of its stage in its settings alone."""
    rates = sorted({learning_rate(one) for one in bed() if staged(one)})
    best = table("pointer_stages", bed(), "way").loc["closed by saliency", "lr"]
    kept = [one for one in bed() if not staged(one) or learning_rate(one) <= best]
    nothing = dict.fromkeys(("stage", "target_ratio", "train_steps", "parameters"))
    ended = [failed(one, status, **nothing) if staged(one) and learning_rate(one) > best else one for one in bed()]
    assert best < rates[-1]
    assert table("pointer_stages", kept, "way").loc["closed by saliency", "at_edge"]
    found = table("pointer_stages", ended, "way")
    assert set(found.index) == set(table("pointer_stages", kept, "way").index)
    assert not found.loc["closed by saliency", "at_edge"]


def test_the_time_of_another_model_is_not_that_of_dense():
    records = [
        one
        for one in committed("formats", "pointer")
        if one.arm == DENSE and one.experiment in ("pointer", "pointer_time") and has_two_blocks(one)
    ]
    timed = max((one for one in records if one.measure == "run"), key=lambda one: one.recorded_at)
    cell = json.loads(timed.config_json)
    cell["workload_settings"] |= {"layers": 1}
    blocks = [{**block, "ms": [10 * ms for ms in block["ms"]]} for block in timed.samples["blocks"]]
    samples = {**timed.samples, "blocks": blocks}
    one_block = dataclasses.replace(
        timed, config_json=json.dumps(cell), cell_id="one-block", ratio=None, samples=samples, recorded_at="2099"
    )
    found = table("formats", [*records, one_block], "arm")
    assert found["training_s"].notna().any()
    assert found.equals(table("formats", records, "arm"))


def test_a_study_shows_each_arm_at_the_rate_that_ended_best():
    records = [one for one in committed("fig10_loss", "code_phases") if one.experiment == "code_phases"]
    dense = {learning_rate(one): one for one in records if one.arm == DENSE}
    best = min(dense, key=lambda rate: dense[rate].leading)
    worst = max(dense, key=lambda rate: dense[rate].leading)
    assert best != worst

    def end(of: Sequence[Record]) -> float:
        found = table("fig10_loss", of)
        return float(found[found["run"] == DENSE].sort_values("step")["loss"].iloc[-1])

    assert end(records) == pytest.approx(dense[best].leading, rel=1e-4)
    changed = dataclasses.replace(dense[best], metrics=dense[best].metrics | {"loss": 9.0})
    assert end([changed if one is dense[best] else one for one in records]) == pytest.approx(
        dense[worst].leading, rel=1e-4
    )
