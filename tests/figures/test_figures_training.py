"""Figures and tables of training: which runs they show, and that missing and failed ones stay visible."""

from __future__ import annotations

import dataclasses
import io
import json
from typing import Any

import pandas as pd
import pytest
from made_up_records import CPU, CUDA
from made_up_training import (
    EARLY_SIZE,
    FULL_SIZE,
    FULL_SIZE_MIB,
    curve,
    other_run,
    pages_of,
    point,
    ranks,
    text_of,
    trained,
    training_campaign,
)

from bench.core.record import Record, RecordError
from bench.core.samples import packed
from figures.artifacts import fig6, truncation
from figures.page.drawn import Caption
from figures.records.select import COMERA
from figures.records.studies import DENSE_RUN, EARLY, PAPER_STAGES, Spread, StudyRow, studies
from figures.records.training import TrainingSlot, block_shown, curve_of, ranks_of_block

EVERY = ("fig6", "table_mnli", "table_ranks", "truncation")
LATE_02 = TrainingSlot(COMERA, PAPER_STAGES, 0.2)


def row_of(records: list[Record], slot: TrainingSlot) -> StudyRow:
    [study] = studies(records)
    return {row.slot: row for row in study.rows}[slot]


def with_failures() -> list[Record]:
    """Late 0.8 diverged, late 0.5 out of time, late 0.2 never made, dense finished."""
    changed = []
    for one in training_campaign():
        if one.target_ratio in (0.8, 0.5):
            status = {0.8: "diverged", 0.5: "timeout"}[one.target_ratio]
            words = {"status": status, "message": f"made up: {status}.", "data_hash": one.data_hash}
            changed.append(trained("comera", "late", one.target_ratio, **words))
        elif one.target_ratio != 0.2:
            changed.append(one)
    return changed


def test_ranks_closed_at_the_deadline_are_told() -> None:
    changed = [
        dataclasses.replace(one, size_at_deadline=0.3) if one.target_ratio == 0.2 else one
        for one in training_campaign()
    ]
    [drawn] = pages_of("table_mnli", changed)
    said = "S was 0.300 when S0 had to be met, so ranks were closed, smallest entries first"
    assert said in text_of(drawn, ".md")
    assert said in " ".join(drawn.to_text().split())
    [other] = pages_of("table_mnli", training_campaign())
    assert "had to be met" not in text_of(other, ".md")


@pytest.mark.parametrize("name", EVERY)
def test_failed_and_missing_runs_are_shown_with_their_reasons(name: str) -> None:
    [drawn] = pages_of(name, with_failures())
    markdown, terminal, tidy = text_of(drawn, ".md"), " ".join(drawn.to_text().split()), text_of(drawn, ".csv")
    for text in (markdown, terminal):
        for words in ("diverged", "timeout", "not recorded", "made up: diverged", "made up: timeout"):
            assert words in text
    assert all(words in tidy for words in ("diverged", "timeout", "not recorded"))


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize(
    "records",
    [
        [trained("comera", "early", status="unsupported", message="made up")],
        [trained("dense", status="error", message="made up: a | pipe <b>\nand another line")],
        [trained("dense", curve=curve(0, "dense", 0.8, late=1.0), stored_mib=FULL_SIZE_MIB)],
        [trained("comera", "early", None, curve(0, "comera", 0.8), **EARLY_SIZE)],
        [trained("comera", "late", None, target_mib=3.0, status="oom", message="made up")],
        [trained("galore", curve=curve(0, "dense", 0.8, late=1.0), stored_mib=FULL_SIZE_MIB)],
    ],
)
def test_any_single_run_can_be_shown(name: str, records: list[Record]) -> None:
    [drawn] = pages_of(name, records)
    assert "not recorded" in text_of(drawn, ".md")
    assert "not recorded" in drawn.to_text()
    assert not {verdict.outcome for verdict in drawn.verdicts} & {"not reproduced"}


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_device_data_and_precision_are_named_and_never_mixed(name: str) -> None:
    ours, other = training_campaign(), training_campaign("nli_pool", device=CUDA)
    drawn = {one.device: one for one in pages_of(name, ours + other)}
    assert drawn[CPU].files == pages_of(name, ours)[0].files
    assert not set(drawn[CPU].files) & set(drawn[CUDA].files)
    for words in (CPU, "sst2", "bf16", "batch 32", "600 early steps (6 epochs)", "seed 0", "Recorded 2001-02-03"):
        assert words in text_of(drawn[CPU], ".md")
    assert "nli_pool" not in text_of(drawn[CPU], ".md")


def test_the_table_has_its_numbers() -> None:
    [drawn] = pages_of("table_mnli", training_campaign())
    table = drawn.table.set_index("run")
    assert list(table.index) == ["dense", "comera, early", "comera, late 0.8", "comera, late 0.5", "comera, late 0.2"]
    early = table.loc["comera, early"]
    assert (early["total, MiB"], early["total ratio"]) == ("5.68", "45.0x")
    assert (early["layers ratio"], early["S"], early["S0"], early["S <= S0"]) == ("64.7x", "1.00", "-", "-")
    assert (early["paper: MiB"], early["paper: total"], early["paper, MNLI: %"]) == ("5.9?", "43x", "63.3?")
    assert table.loc["comera, late 0.2", "S <= S0"] == "yes"
    assert table.loc["comera, late 0.2", "paper: layers"] == "361x"
    assert table.loc["dense", "less dense, points"] == "-"
    tidy = pd.read_csv(io.StringIO(text_of(drawn, ".csv"))).set_index(["arm", "stage"])
    first = tidy.loc[("comera", "early")]
    assert first["total_ratio"] == pytest.approx(FULL_SIZE_MIB / 5.68, rel=1e-5)
    assert (first["tensorized_mib"], first["tensorized_ratio"]) == pytest.approx((3.92, 253.67 / 3.92), rel=1e-5)
    assert first["less_dense_points"] == pytest.approx(first["accuracy"] - first["dense_accuracy_then"], abs=1e-3)
    for name in ("accuracy", "dense_accuracy_then", "less_dense_points"):
        assert first[f"{name}_low"] < first[name] < first[f"{name}_high"]


def test_a_missed_target_is_said() -> None:
    later = [point([True] * 4, 900, "late", ranks(0.5))]
    missed = trained("comera", "late", 0.2, later, **(EARLY_SIZE | {"size_fraction": 0.21, "size_target": 0.2}))
    [drawn] = pages_of("table_mnli", [missed])
    assert drawn.table.set_index("run").loc["comera, late 0.2", "S <= S0"] == "no"
    met = dataclasses.replace(missed, seed=1, size_fraction=0.2)
    assert row_of([met], LATE_02).size_met is True
    assert row_of([met, missed], LATE_02).size_met is False  # every seed must


def test_published_numbers_stand_beside_the_full_size_only() -> None:
    small = [dataclasses.replace(one, dense_mib=2.8) for one in training_campaign("synthetic")]
    [drawn] = pages_of("table_mnli", small)
    assert not [column for column in drawn.table.columns if column.startswith("paper")]
    assert "not the paper's size" in text_of(drawn, ".md")


def test_each_stage_is_compared_with_dense_after_as_many_steps() -> None:
    wrong, right = [False, False], [True, True]
    dense = trained(
        "dense", curve=[point(wrong, 500, "early", {}), point(right, 600, "early", {}), point(wrong, 900, "late", {})]
    )
    early = trained("comera", "early", None, [point(right, 600, "early", ranks(1))], **EARLY_SIZE)
    late = trained("comera", "late", 0.2, [point(right, 900, "late", ranks(0.2))], **EARLY_SIZE)
    found = {slot: row_of([dense, early, late], slot).less_dense for slot in (EARLY, LATE_02)}
    assert found[EARLY] is not None
    assert found[LATE_02] is not None
    assert (found[EARLY].value, found[LATE_02].value) == (0.0, 100.0)


@pytest.mark.parametrize(
    ("step", "value", "said"),
    [(650, 0.0, "50 steps before or after"), (551, 0.0, "49 steps"), (700, None, "no accuracy after as many steps")],
)
def test_dense_is_compared_at_most_half_an_epoch_away(step: int, value: float | None, said: str) -> None:
    dense = trained("dense", curve=[point([True], step, "early", {})])
    early = trained("comera", "early", None, [point([True], 600, "early", ranks(1))], **EARLY_SIZE)
    row = row_of([dense, early], EARLY)
    assert (row.less_dense.value if row.less_dense else None) == value
    assert any(said in remark for remark in row.remarks)


OLD, NEW = "2000-01-01T00:00:00+00:00", "2009-01-01T00:00:00+00:00"


def test_the_newest_of_duplicates_is_shown_and_older_code_marked() -> None:
    records = training_campaign()
    again = dataclasses.replace(records[0], recorded_at=NEW, cell_id="again", code_id="code-b")
    [study] = studies([again, *records])
    assert study.runs[DENSE_RUN, 0] is again
    assert any(note.startswith("1 further training record(s)") for note in study.left_out)
    assert study.older_code == {record.cell_id for record in records[1:]}
    [drawn] = pages_of("table_mnli", [again, *records])
    assert list(drawn.table["run"])[:2] == ["dense", "comera, early †"]
    assert any(note.startswith("† ") for note in drawn.notes)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"precision": "fp32"}, "precision fp32, not bf16"),
        ({"data_hash": "another"}, "data another, not data-sst2"),
        ({"sequence_length": 64}, "length 64, not 128"),
        ({"model": FULL_SIZE | {"layers": 2}}, "model layers 2, not 6"),
        ({"training": {"static": True}}, "equal shapes True, not False"),
        ({"training": {"stages": [{"name": "early", "steps": 5, "target": None}]}}, "early steps 5, not 600"),
        ({"method_settings": {"lr_cores": 1.0}}, "lr_cores 1.0, not None"),
    ],
)
def test_settings_are_never_mixed_and_the_others_named(other: dict, words: str) -> None:
    records = training_campaign()
    common = {"data_hash": "data-sst2", "recorded_at": NEW} | EARLY_SIZE
    stray = trained("comera", "early", None, curve(5, "stray", 0.9), **(common | other))
    [study] = studies([*records, stray])
    assert stray not in study.shown
    assert len(study.shown) == len(records)
    assert any(words in note and note.startswith("1 training record(s)") for note in study.left_out)


def test_late_stages_of_another_length_are_not_mixed_in() -> None:
    records = training_campaign()
    stages = [{"name": "early", "steps": 600, "target": None}, {"name": "late", "steps": 50, "target": 0.2}]
    stray = trained(
        "comera", "late", 0.2, status="error", recorded_at=NEW, data_hash="data-sst2", training={"stages": stages}
    )
    [study] = studies([*records, stray])
    assert len(study.shown) == len(records)
    assert any("late steps 50, not 300" in note for note in study.left_out)


def test_on_a_tie_the_newest_setting_is_shown() -> None:
    old, new = (
        trained(
            "dense", curve=[point([True], 900, "late", {})], precision=precision, recorded_at=day, cell_id=precision
        )
        for precision, day in (("fp32", OLD), ("bf16", NEW))
    )
    [study] = studies([new, old])
    assert study.shown == [new]


def test_records_of_other_measures_are_not_looked_at() -> None:
    records = training_campaign()
    assert studies([dataclasses.replace(records[0], measure="run")]) == []


def test_seeds_that_are_missing_or_failed_are_said() -> None:
    records = training_campaign(seeds=(0, 1))
    lost = [r for r in records if (r.arm, r.seed, r.stage) != ("comera", 1, "early")]
    assert row_of(lost, EARLY).remarks == ["seed 1: not recorded"]
    failed = trained("comera", "early", seed=1, status="timeout", message="made up", data_hash="data-sst2")
    row = row_of([*lost, failed], EARLY)
    assert row.remarks == ["seed 1: timeout: made up"]
    assert row.score is not None
    assert row.score.seeds == 1


def curves(records: list[Record]) -> pd.DataFrame:
    """What Fig. 6 draws: a line per run and step."""
    [study] = studies(records)
    return fig6.bands(fig6.table(study), study.metric.name).set_index(["run", "step"])


def test_fig6_continues_the_early_stage_once_per_target() -> None:
    found, name = curves(training_campaign()), "accuracy"
    assert list(found.loc["comera, early"].index) == [100, 200, 300, 400, 500, 600]
    assert list(found.loc["comera, late 0.2"].index) == [600, 700, 800, 900]
    assert found.loc[("comera, late 0.2", 600), name] == found.loc[("comera, early", 600), name]
    assert list(found.loc["dense"].index) == list(range(100, 1000, 100))
    [study] = studies(training_campaign())
    strokes = {(stroke.dashes, stroke.marker) for stroke in fig6.looks(study).values()}
    assert len(strokes) == 5


def test_fig6_band_is_the_interval_of_one_seed_or_the_range_of_several() -> None:
    def dense(seed: int, right: int) -> Record:
        return trained("dense", curve=[point([i < right for i in range(10)], 900, "late", {})], seed=seed)

    columns = ["accuracy", "accuracy_low", "accuracy_high"]
    one, several = ([dense(0, 5)], [dense(0, 5), dense(1, 8)])
    assert list(curves(one).loc[("dense", 900), columns]) == pytest.approx((50.0, 23.66, 76.34), abs=0.01)
    assert list(curves(several).loc[("dense", 900), columns]) == [65.0, 50.0, 80.0]
    for records, kind in ((one, "interval"), (several, "range")):
        [study] = studies(records)
        assert set(fig6.table(study)["band_bounds"].dropna()) == {kind}
        assert ("interval" in fig6.band_words(study)) == (kind == "interval")


def test_the_picture_of_fig6_has_the_numbers_of_its_table() -> None:
    [study] = studies(training_campaign())
    table = fig6.table(study)
    [axes] = fig6.draw(study, table, Caption("made up", ())).axes
    found = fig6.bands(table, "accuracy").groupby("run", sort=False)
    drawn = [line.get_xydata().tolist() for line in axes.lines[: len(found)]]
    assert drawn == [line[["epoch", "accuracy"]].to_numpy().tolist() for _, line in found]
    for (_, line), band in zip(found, axes.collections, strict=True):
        heights = band.get_paths()[0].vertices[:, 1]
        assert (heights.min(), heights.max()) == (line["accuracy_low"].min(), line["accuracy_high"].max())


def test_step_times_are_paired_by_block() -> None:
    late = [point([True], 900, "late", ranks(0.2))]
    times = {"trained": [[1.0, 3.0], [10.0, 10.0], [30.0]], "full": [[4.0], [20.0], [30.0]]}
    timed = trained("comera", "late", 0.2, late, samples={"step_ms": times}, **EARLY_SIZE)
    found = row_of([timed], LATE_02).times
    assert found is not None
    assert (found.ratio.value, found.ratio.low, found.ratio.high) == (0.5, 0.5, 1.0)  # of 1/2, 1/2 and 1
    assert (found.trained, found.full) == (14.0, 18.0)
    twice = [timed, dataclasses.replace(timed, seed=1)]
    assert row_of(twice, LATE_02).times.ratio.blocks == 6  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "times",
    [
        {"trained": [[1.0]]},
        {"trained": [[1.0]], "full": [[]]},
        {"trained": [[0.0]], "full": [[1.0]]},
        [1.0],
        {"trained": [[1.0], [1.0]], "full": [[1.0]]},
    ],
)
def test_step_times_that_cannot_be_read_are_refused(times: object) -> None:
    late = [point([True], 900, "late", ranks(0.2))]
    run = trained("comera", "late", 0.2, late, samples={"step_ms": times}, **EARLY_SIZE)
    with pytest.raises(RecordError, match="step_ms"):
        pages_of("truncation", [run])


def test_truncation_says_where_nothing_was_cut() -> None:
    [drawn] = pages_of("truncation", training_campaign())
    table = drawn.table.set_index("run")
    assert table.loc["comera, early", "step time, trained / full"] == "1 (nothing cut)"
    assert "[" in table.loc["comera, late 0.2", "step time, trained / full"]
    tidy = pd.read_csv(io.StringIO(text_of(drawn, ".csv"))).set_index("run")
    parts = [column for column in tidy.columns if column.startswith("predicted_") and "peak" not in column]
    assert tidy[parts].sum(axis=1).to_numpy() == pytest.approx(tidy["predicted_peak_mib"].to_numpy(), rel=1e-4)


def test_truncation_draws_the_sizes_times_and_memory_of_its_table() -> None:
    [study] = studies(training_campaign())
    table = truncation.table(study)
    sizes = table.set_index("run")[["stored_mib", "tensorized_mib"]]
    assert sizes.loc["comera, early"].tolist() == [5.68, 3.92]
    assert sizes.loc["dense", "stored_mib"] == pytest.approx(FULL_SIZE_MIB)
    times, memory, score = truncation.draw(study, table, Caption("made up", ())).axes
    ours = table[table["run"] != "dense"].sort_values("stored_mib", ascending=False)

    def points(axes: Any) -> list[list[float]]:
        return [line.get_xydata()[0].tolist() for line in axes.lines if line.get_marker() == "o"]

    ratios = ours["step_trained_over_full"].fillna(1.0)  # of the early stage nothing was cut
    assert points(times) == [[size, ratio] for size, ratio in zip(ours["stored_mib"], ratios, strict=True)]
    assert points(score) == ours[["stored_mib", "accuracy"]].to_numpy().tolist()
    tops = {round(bar.get_y() + bar.get_height(), 6) for bar in memory.patches}
    assert {round(peak, 6) for peak in ours["predicted_peak_mib"]} <= tops
    peak = table.set_index("run").loc["dense", "predicted_peak_mib"]
    assert any(set(line.get_ydata()) == {peak} for line in memory.lines)


def test_ranks_of_the_fifth_block_before_and_after_each_stage() -> None:
    [drawn] = pages_of("table_ranks", training_campaign())
    table = drawn.table.set_index("layer")
    assert list(table.index) == ["query", "key", "value", "output", "feed-forward 1", "feed-forward 2"]
    assert list(table.columns) == [
        "comera, before",
        "comera, early",
        "comera, late 0.8",
        "comera, late 0.5",
        "comera, late 0.2",
    ]
    assert table.loc["query", "comera, before"] == table.loc["query", "comera, early"] == "12 30 30 30 12"
    assert table.loc["query", "comera, late 0.2"] == "0 0 0 0 0"
    assert table.loc["key", "comera, late 0.2"] == "2 6 6 6 2"


def test_with_fewer_blocks_the_last_one_is_shown_and_said() -> None:
    names = ranks(1.0, blocks=2)
    assert block_shown(names) == 2
    assert block_shown(ranks(1.0)) == 5
    assert block_shown(["classifier.hidden"]) is None
    assert list(ranks_of_block({"blocks.1.attention.query": (1,), "blocks.1.odd": (2,)}, 2)) == ["query", "odd"]
    one = trained(
        "comera", "early", None, [point([True], 600, "early", names)], model=FULL_SIZE | {"layers": 2}, **EARLY_SIZE
    )
    [drawn] = pages_of("table_ranks", [one])
    assert drawn.title == "Ranks of encoder block 2 of 2, by stage: sst2"
    assert any("the paper shows its fifth" in note for note in drawn.notes)


def test_ranks_of_several_seeds_stand_apart() -> None:
    [drawn] = pages_of("table_ranks", training_campaign(seeds=(0, 1)))
    assert list(drawn.table["seed"]) == ["0"] * 6 + ["1"] * 6


def test_spread_is_hidden_where_rounding_hides_it() -> None:
    assert Spread(101.0, 100.9, 101.1).text("x") == "101x"
    assert Spread(52.6, 52.2, 53.1).text("x") == "52.6x (52.2 to 53.1)"
    assert Spread.of([1.0, None]) is None
    assert Spread.of([1.0, 3.0]) == Spread(2.0, 1.0, 3.0)


def test_a_target_in_mib_has_a_row_of_its_own() -> None:
    late = [point([True], 900, "late", ranks(0.2))]
    [drawn] = pages_of("table_mnli", [trained("comera", "late", None, late, target_mib=3.0, **EARLY_SIZE)])
    assert "comera, late 3 MiB" in list(drawn.table["run"])


def test_the_cell_of_a_failed_run_says_what_it_was_for() -> None:
    failed = trained("comera", "late", 0.5, status="diverged", message="made up")
    assert json.loads(failed.config_json)["training"]["stages"][-1]["target"] == 0.5
    assert failed.stage == ""
    assert row_of([failed], TrainingSlot(COMERA, PAPER_STAGES, 0.5)).status == "diverged"


def test_curves_are_decoded_in_order() -> None:
    [one] = curve_of(trained("dense", curve=[point([True, False, False, True, True], 900, "late", {})]))
    assert one.per_example is not None
    assert one.per_example.tolist() == [100.0, 0.0, 0.0, 100.0, 100.0]
    assert one.value == 60.0


AUC = [
    other_run("dense", [0.71, 0.74, 0.76], size=20.0),
    other_run("comera", [0.7]),
    other_run("comera", [0.7, 0.72], target=0.5, size=5.0),
    other_run("lora", [0.68, 0.69, 0.7], size=20.0),
]


@pytest.mark.parametrize("name", EVERY)
def test_a_workload_of_other_words_stages_and_metric_can_be_shown(name: str) -> None:
    [drawn] = pages_of(name, AUC)
    page = text_of(drawn, ".md")
    for words in (
        "Trained on drawn, validated on 500 clicks: 100 warm-up steps (1 epoch), 100 main steps (1 epoch),",
        "100 tail steps (1 epoch); seed 0.",
        "Dense model: 5,242,880 parameters.",
    ):
        assert words in page
    for strange in ("accuracy", "encoder", "paper", "length up to", "early", "late", "MNLI", "classes", "tokens"):
        assert strange not in page
    assert drawn.verdicts == ()
    assert "-clicks." in next(iter(drawn.files))


def test_a_learning_curve_follows_the_stages_that_its_records_name() -> None:
    found = curves(AUC)
    assert list(dict.fromkeys(run for run, _ in found.index)) == [
        "dense",
        "comera, warm-up",
        "comera, main 0.5",
        "lora",
    ]
    assert list(found.loc["dense", "stage"]) == ["warm-up", "main", "tail"]
    assert list(found.loc["comera, main 0.5"].index) == [100, 200]  # from the end of the stage before
    [drawn] = pages_of("fig6", AUC)
    assert drawn.title == "Validation AUC per epoch on drawn, dense against CoMERA"
    assert list(drawn.table["dense"]) == ["0.7100", "0.7400", "0.7600"]
    assert not any("interval" in note for note in drawn.notes)
    tidy = pd.read_csv(io.StringIO(text_of(drawn, ".csv"))).set_index(["run", "stage"])
    assert tidy.loc[("dense", "tail"), "auc"] == 0.76
    assert tidy[["auc_low", "auc_high"]].isna().all().all()
    svg = text_of(drawn, ".svg")
    assert all(f"<!-- {words} -->" in svg for words in ("warm-up stage", "main stage", "tail stage", "validation AUC"))


def test_several_seeds_without_values_per_example_have_a_band() -> None:
    [drawn] = pages_of("fig6", [other_run("dense", [0.7]), other_run("dense", [0.8], seed=1)])
    assert list(drawn.table["dense"]) == ["0.7500 [0.7000, 0.8000]"]
    assert "lowest to highest of 2 seeds." in text_of(drawn, ".md")


def test_a_loss_is_compared_with_its_interval_and_called_better_where_it_is_lower() -> None:
    runs = [other_run("dense", [2.0], "loss"), other_run("comera", [1.5], "loss")]
    [drawn] = pages_of("table_mnli", runs)
    table = drawn.table.set_index("run")
    low, high = (float(bound) for bound in table.loc["comera", "loss, nats"].partition("[")[2].strip("]").split(", "))
    assert 1.48 < low < 1.5 < high < 1.52
    assert table.loc["comera", "less dense, nats"].startswith("-0.500 [-0.50")
    tidy = pd.read_csv(io.StringIO(text_of(drawn, ".csv"))).set_index("arm").loc["comera"]
    assert tidy["dense_loss_then_low"] < tidy["dense_loss_then"] == 2.0 < tidy["dense_loss_then_high"]
    [curve] = pages_of("fig6", runs)
    assert "<!-- validation loss, nats (lower is better) -->" in text_of(curve, ".svg")


def of_code(runs: list[Record], **words: str) -> list[Record]:
    """The runs as those of source code, with these words beside their own."""
    changes = [{"workload": "code", "workload_words": {**run.workload_words, **words}} for run in runs]
    return [dataclasses.replace(run, **change) for run, change in zip(runs, changes, strict=True)]


@pytest.mark.parametrize(("words", "what"), [({}, "held-out files"), ({"validated": "module"}, "modules")])
def test_validation_values_are_called_what_they_are_of(words: dict[str, str], what: str) -> None:
    """Records of source code have a value per held-out file, though older ones do not say so."""
    runs = of_code([other_run("dense", [2.0], "loss"), other_run("comera", [1.5], "loss")], **words)
    [table], [curve] = pages_of("table_mnli", runs), pages_of("fig6", runs)
    assert f"validated on 500 {what}: 100 warm-up steps" in text_of(table, ".md")
    for page in (table, curve):
        assert sum(f"interval over {what}" in note for note in page.notes) == 1
        assert "clicks" not in " ".join(page.notes)


def test_stages_that_are_validated_on_other_numbers_say_so() -> None:
    runs = of_code([other_run("dense", [2.0, 1.5], "loss"), other_run("comera", [2.0, 1.7], "loss", target=0.5)])
    for run in runs:
        last = run.samples["curve"][-1]
        last["per_example"] = packed([last["metrics"]["loss"] + 0.001 * (number - 199.5) for number in range(400)])
    [drawn] = pages_of("table_mnli", runs)
    assert "validated on 500 (warm-up) and 400 (main) held-out files: 100 warm-up" in text_of(drawn, ".md")


def swept(arm: str, values: list[float], target: float | None = None, seed: int = 0) -> Record:
    """A run at one ratio, as on source code."""
    name = f"{arm}-{len(values)}-{target}-{seed}"
    return other_run(arm, values, "loss", target=target, seed=seed, ratio=2.0, cell_id=name)


STAGED = [
    other_run("dense", [2.0, 1.5], "loss"),
    other_run("dense", [2.0, 1.5], "loss", seed=1),
    swept("comera", [2.0]),
    swept("comera", [2.0, 1.7], 0.5),
    swept("comera", [2.0, 1.7], 0.5, seed=1),
]


def test_what_no_arm_was_to_run_has_no_row() -> None:
    """Dense goes through both stages in one run: a first stage alone is expected of what goes on from it."""
    [drawn] = pages_of("table_mnli", STAGED)
    assert list(drawn.table["run"]) == ["dense", "comera 2x, warm-up", "comera 2x, main 0.5"]
    [drawn] = pages_of("table_mnli", [run for run in STAGED if run.arm != "dense"])
    assert list(drawn.table["run"]) == ["comera 2x, warm-up", "comera 2x, main 0.5"]
    [drawn] = pages_of("table_mnli", [run for run in STAGED if run.arm == "dense"])
    assert list(drawn.table["run"]) == ["dense"]


def test_missing_seeds_and_stages_of_an_arm_that_has_records_stay() -> None:
    [drawn] = pages_of("table_mnli", STAGED)
    assert "comera 2x, warm-up, seed 1: not recorded." in drawn.notes
    [drawn] = pages_of("fig6", [run for run in STAGED if len(run.samples["curve"]) > 1])
    assert set(drawn.table["comera 2x, warm-up"]) == {"not recorded"}
    shallow = [other_run("dense", [2.0], "loss"), *STAGED[2:4]]
    [drawn] = pages_of("table_mnli", shallow)
    assert drawn.table.set_index("run").loc["dense", "loss, nats"] == "not recorded"


DENSE_FAILS = "No dense run surely beats the unigrams (0.9000 nats)"


@pytest.mark.parametrize("name", ["fig6", "table_mnli", "truncation", "table_search"])
@pytest.mark.parametrize(("reached", "said"), [(1.0, 1), (0.9, 1), (0.7, 0), (None, 0)])
def test_a_page_says_where_dense_does_not_beat_the_probe(name: str, reached: float | None, said: int) -> None:
    runs = [other_run("comera", [1.1], "loss")]
    if reached is not None:
        runs.append(other_run("dense", [reached], "loss", method_settings={"lr": 1.0}))
    [drawn] = pages_of(name, runs)
    assert sum(note.startswith(DENSE_FAILS) for note in drawn.notes) == said


def test_of_settings_that_were_tried_one_has_to_beat_the_probe() -> None:
    def tried(*reached: float) -> int:
        runs = [
            other_run("dense", [loss], "loss", method_settings={"lr": loss}, cell_id=f"lr-{loss}") for loss in reached
        ]
        [drawn] = pages_of("table_search", runs)
        return sum(note.startswith(DENSE_FAILS) for note in drawn.notes)

    assert [tried(1.0, 1.2), tried(1.0, 0.7)] == [1, 0]


def test_workloads_that_share_the_name_of_their_data_stand_apart() -> None:
    others = [dataclasses.replace(run, workload="views") for run in AUC]
    pages = pages_of("table_mnli", [*AUC, *others])
    stem = "table_mnli-made-up-cpu-2-threads-drawn"
    assert {name for page in pages for name in page.files if name.endswith(".md")} == {
        f"{stem}-clicks-clicks.md",
        f"{stem}-views-clicks.md",
    }
    [alone] = pages_of("table_mnli", AUC)
    assert f"{stem}-clicks.md" in alone.files


def test_metrics_are_never_mixed() -> None:
    [study] = studies([*AUC, other_run("galore", [1.5], "loss")])
    assert [run.arm for run in study.shown] == ["comera", "comera", "dense", "lora"]
    assert any("metric loss, not auc" in note for note in study.left_out)


def test_layers_outside_blocks_are_all_shown() -> None:
    [drawn] = pages_of("table_ranks", AUC)
    assert drawn.title == "Ranks, by stage: drawn"
    table = drawn.table.set_index("layer")
    assert list(table.index) == ["bags", "top.0"]
    assert table.loc["bags", "comera, main 0.5"] == "2 1"
