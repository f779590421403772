"""Accuracy against size: points, the front, where tensorizing loses, and ratios out of reach."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import pandas as pd
import pytest
from made_up_records import CALM, CPU, CUDA, timed
from made_up_training import (
    BEYOND,
    EARLY_SIZE,
    FULL_SIZE_MIB,
    RATIOS,
    SMALL,
    SMALL_MIB,
    other_run,
    pages_of,
    point,
    ranks,
    ratio_campaign,
    text_of,
    trained,
    training_campaign,
)

from bench.core.record import Record, write
from figures.__main__ import main
from figures.artifacts.beyond import pareto
from figures.artifacts.beyond.pareto import COSTS, limits_of
from figures.page.drawn import Caption, Drawn
from figures.records.select import DENSE
from figures.records.studies import studies
from figures.records.training import TrainingSlot


def render(records: list[Record]) -> list[Drawn]:
    return pages_of("pareto", records)


def run(arm: str, ratio: float | None, right: int, size: float | None = None, **columns: object) -> Record:
    """A run with so many of ten answers right; its size follows from the ratio unless it is given."""
    own = {} if ratio is None else {"ratio": ratio, "method_settings": {"ratio": ratio}}
    shape = ranks(1.0, blocks=2) if arm == "comera" else {}
    curve = [point([i < right for i in range(10)], 600, "early", shape)]
    values = {"experiment": "ratios_accuracy", "model": SMALL, "dense_mib": SMALL_MIB, "seed": 0}
    values |= {"stored_mib": size or SMALL_MIB / (ratio or 1), "cell_id": f"{arm}-{ratio}-{columns.get('seed', 0)}"}
    return trained(arm, "early", None, curve, **(values | own | columns))


def table_of(records: list[Record]) -> pd.DataFrame:
    """The table with the names of its runs, which its lines are called by."""
    [study] = studies(records)
    return pareto.table(study).assign(run=[row.name for row in study.rows]).set_index("run")


def front(records: list[Record]) -> set[str]:
    table = table_of(records)
    return set(table.index[table["on_front"] == True])  # noqa: E712 - it may be empty


def beaten(records: list[Record]) -> dict[str, str]:
    """By run, which one beats it."""
    table = table_of(records)
    return dict(table.loc[table["dominated_by"] != "", "dominated_by"])


def test_the_files_are_called_after_device_data_and_experiment() -> None:
    [figure] = render(ratio_campaign(experiment="ratios_accuracy"))
    stem = "pareto-made-up-cpu-2-threads-synthetic-ratios-accuracy"
    assert set(figure.files) == {f"{stem}.{ending}" for ending in ("png", "svg", "md", "csv")}
    [again] = render(ratio_campaign(experiment="ratios_accuracy")[::-1])
    assert again.files == figure.files  # whatever the order of the records


def test_the_small_preset_is_shown_when_asked_for_and_called_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(ratio_campaign(), tmp_path / "records")
    arguments = ["pareto", "--records", str(tmp_path / "records"), "--out", str(tmp_path / "out")]
    assert main(arguments) == 2
    assert "no training record below ratios_accuracy/" in capsys.readouterr().err
    assert main([*arguments, "--experiment", "ratios_accuracy_small"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for words in (
        "on synthetic after 600 steps, small preset",
        "735,491 parameters, not the paper's size",
        "The text is generated, so these values prove nothing about real data.",
    ):
        assert words in said


def test_every_ratio_has_a_row_per_arm_below_dense() -> None:
    [figure] = render(ratio_campaign())
    expected = ["dense", *(f"{arm} {ratio:g}x" for arm in ("comera", "low_rank@size") for ratio in RATIOS)]
    assert list(figure.table["run"]) == expected
    tidy = pd.read_csv(io.StringIO(text_of(figure, ".csv")))
    assert list(tidy["arm"] + tidy["ratio"].map("{:g}".format)) == [
        "densenan",
        *(f"{arm}{ratio:g}" for arm in ("comera", "low_rank@size") for ratio in RATIOS),
    ]
    four = tidy.set_index(["arm", "ratio"]).loc[("comera", 4.0)]
    assert four["total_ratio"] == pytest.approx(4 / 1.004, rel=1e-4)
    assert four["accuracy_low"] < four["accuracy"] < four["accuracy_high"]
    assert figure.verdicts == ()


def test_ratios_out_of_reach_are_shown_with_the_largest_within() -> None:
    [study] = studies(ratio_campaign(seeds=(0, 1)))
    found = {arm: (str(reach), ratios) for arm, (reach, ratios) in limits_of(study).items()}
    assert found == {"comera": ("at most 10.4x", [16.0]), "low_rank@size": ("at most 9.57x", [16.0])}
    [figure] = render(ratio_campaign())
    table = figure.table.set_index("run")
    assert table.loc["comera 16x", "accuracy, %"] == "unsupported"
    for text in (text_of(figure, ".md"), " ".join(figure.to_text().split())):
        assert all(words in text for words in (*BEYOND.values(), "largest within reach is 9.56637"))


def test_a_run_that_is_missing_beside_others_is_said() -> None:
    records = [one for one in ratio_campaign() if (one.arm, one.ratio) != ("low_rank@size", 4.0)]
    [figure] = render(records)
    assert figure.table.set_index("run").loc["low_rank@size 4x", "accuracy, %"] == "not recorded"
    assert "Not recorded: low_rank@size 4x." in figure.notes


def test_an_arm_without_any_record_is_left_out() -> None:
    [figure] = render([one for one in ratio_campaign() if one.arm != "dense"])
    assert "dense" not in set(figure.table["run"])
    assert "| not recorded" not in text_of(figure, ".md")
    assert "\n* Not recorded" not in text_of(figure, ".md")


def test_the_front_holds_what_none_beats() -> None:
    records = [
        run("dense", None, 9),
        run("comera", 2, 8),
        run("comera", 4, 8),
        run("low_rank", 2, 6),
        run("low_rank", 4, 9, SMALL_MIB / 4.02),
        run("low_rank", 8, 3),
    ]
    assert front(records) == {"low_rank@size 8x", "low_rank@size 4x"}
    lost = ("dense", "comera 2x", "comera 4x", "low_rank@size 2x")
    assert beaten(records) == dict.fromkeys(lost, "low_rank@size 4x")


@pytest.mark.parametrize(("size", "loses"), [(1.01, True), (0.99, True), (1.03, False), (0.97, True)])
def test_sizes_within_the_solvers_tolerance_are_equal(size: float, loses: bool) -> None:
    assert ("comera 4x" in beaten([run("comera", 4, 5, 1.0), run("low_rank", 4, 6, size)])) is loses


def test_of_two_as_accurate_ones_the_smaller_wins() -> None:
    assert beaten([run("comera", 2, 5), run("comera", 4, 5)]) == {"comera 2x": "comera 4x"}
    assert beaten([run("comera", 4, 5, 1.0), run("low_rank", 4, 5, 0.99)]) == {}


def test_comera_is_compared_with_low_rank_at_the_same_ratio_and_with_dense() -> None:
    records = [run("dense", None, 9), run("comera", 4, 5), run("low_rank", 4, 7), run("comera", 8, 5)]
    [figure] = render(records)
    table = figure.table.set_index("run")
    assert table.loc["comera 4x", "less low_rank, points"].startswith("-20.0 [")
    assert table.loc["comera 8x", "less low_rank, points"] == "-"
    assert table.loc["low_rank@size 4x", "less low_rank, points"] == "-"
    assert table.loc["comera 4x", "less dense, points"].startswith("-40.0 [")
    assert "Not surely better than guessing, so sizes prove nothing: comera 4x; comera 8x." in figure.notes
    differences = table_of(records).loc["comera 4x", ["less_dense_points", "less_low_rank_points"]]
    assert differences.tolist() == [-40.0, -20.0]


def test_another_form_of_both_arms_is_compared_with_itself() -> None:
    right = {"dense": 9, "comera": 5, "low_rank": 7, "comera:orthogonal": 8, "low_rank:orthogonal": 6}
    records = []
    for arm, count in right.items():
        method, _, variant = arm.partition(":")
        one = run(method, None if arm == "dense" else 4, count)
        records.append(dataclasses.replace(one, variant=variant, cell_id=f"made up {arm}"))
    [figure] = render(records)
    table = figure.table.set_index("run")
    assert table.loc["comera 4x", "less low_rank, points"].startswith("-20.0 [")
    assert table.loc["comera:orthogonal 4x", "less low_rank, points"].startswith("+20.0 [")
    picture = text_of(figure, ".svg")
    assert picture.count("<!-- 4x -->") == 1  # CoMERA's point alone has a name


def test_seeds_are_pooled() -> None:
    [study] = studies([run("comera", 4, 5), run("comera", 4, 9, seed=1)])
    [line] = pareto.table(study).to_dict("records")
    assert (line["accuracy"], line["seeds"], line["accuracy_bounds"]) == (70.0, "0 1", "bootstrap")


def test_settings_beside_the_ratio_are_never_mixed() -> None:
    stray = run("comera", 4, 9, method_settings={"ratio": 4.0, "order": 2}, cell_id="stray")
    ours = [run("comera", ratio, 5) for ratio in (2, 4)]
    [study] = studies([*ours, stray])
    assert study.shown == ours
    assert any("order 2, not None" in note for note in study.left_out)


def test_devices_and_datasets_stand_apart() -> None:
    ours = ratio_campaign()
    figures = {one.device: one for one in render(ours + ratio_campaign(device=CUDA, dataset="sst2"))}
    assert figures[CPU].files == render(ours)[0].files
    assert "sst2" not in text_of(figures[CPU], ".md")


@pytest.mark.parametrize(
    "records",
    [
        [run("comera", 4, 5)],
        [run("dense", None, 5)],
        [trained("comera", "early", status="unsupported", message="made up", ratio=9.0)],
        [trained("dense", "early", status="oom", message="made up")],
        [trained("comera", "early", None, [point([True], 600, "early", ranks(1.0))], **EARLY_SIZE)],
    ],
)
def test_any_single_run_can_be_drawn(records: list[Record]) -> None:
    [figure] = render(records)
    assert len(figure.files) == 4


def test_the_stages_of_the_main_experiment_can_be_drawn_too() -> None:
    [figure] = render(training_campaign())
    assert "comera, late 0.2" in list(figure.table["run"])
    assert "after" not in figure.title
    sizes = figure.table.set_index("run")["total, MiB"]
    assert sizes["dense"] == f"{FULL_SIZE_MIB:.0f}"


def test_a_sweep_of_ratios_can_be_shown_by_the_other_figures_of_training() -> None:
    [study] = studies(ratio_campaign())
    assert study.slots[0] == TrainingSlot(DENSE, ("early",))
    assert len(study.slots) == 1 + 2 * len(RATIOS)
    for name in ("fig6", "table_mnli"):
        [figure] = pages_of(name, ratio_campaign())
        assert "comera 4x" in text_of(figure, ".md")


def test_where_lower_is_better_the_front_falls_with_the_loss() -> None:
    runs = [
        other_run("dense", [2.0], "loss", size=20.0),
        other_run("comera", [1.5], "loss", size=10.0),
        other_run("galore", [1.8], "loss", size=5.0),
        other_run("lora", [2.1], "loss", size=12.0),
    ]
    assert front(runs) == {"galore", "comera"}
    assert beaten(runs) == {"lora": "comera", "dense": "comera"}
    [figure] = pages_of("pareto", runs)
    assert figure.table.set_index("run").loc["comera", "less dense, nats"].startswith("-0.500 [")
    assert figure.title == "Loss against the model's size on drawn after 100 steps"
    assert "No run surely beats guessing, so sizes prove nothing." in figure.notes


def test_work_memory_and_times_measured_apart_have_panels_and_columns() -> None:
    def one(arm: str, loss: float, ratio: float | None, gflop: float, ms: float) -> list[Record]:
        own = {"ratio": ratio, "experiment": "code_ratios", "flops_per_step": int(gflop * 1e9)}
        own |= {"peak_memory_predicted_mib": 30 * gflop, "cell_id": arm}
        run = other_run(arm, [loss], "loss", size=20 / (ratio or 1), **own, method_settings={"ratio": ratio})
        alike = {name: getattr(run, name) for name in ("workload", "dataset", "batch_size", "precision")}
        alike |= {"sequence_length": 1, "ratio": ratio or 4.0, "experiment": "code_ratios_time", "cell_id": f"t{arm}"}
        config = {**json.loads(run.config_json), "timing_settings": CALM}
        return [run, timed(arm, [ms, ms], **alike, config_json=json.dumps(config))]

    records = [*one("dense", 0.5, None, 2.0, 40.0), *one("comera", 0.6, 4.0, 0.5, 30.0)]
    records += one("low_rank", 0.8, 4.0, 0.4, 20.0)
    [figure] = pages_of("pareto", records)
    table = figure.table.set_index("run")
    costs = table.loc["comera 4x", [cost.heading for cost in COSTS[1:]]]
    assert costs.tolist() == ["0.500", "15.0", "30.0"]
    assert table.loc["dense", "step, ms"] == "40.0"
    picture = text_of(figure, ".svg")
    assert all(f"<!-- {cost.axis} -->" in picture for cost in COSTS)
    [without] = pages_of("pareto", [one for one in records if one.measure == "train"])
    assert "step, ms" not in without.table


def test_runs_that_do_not_beat_the_probe_are_named_or_those_that_do() -> None:
    """The probe reaches 0.9 nats."""

    def said(*losses: float) -> list[str]:
        arms = ("dense", "comera", "galore", "lora")
        runs = [other_run(arm, [loss], "loss", size=20.0) for arm, loss in zip(arms, losses, strict=False)]
        [figure] = pages_of("pareto", runs)
        return [note for note in figure.notes if "unigrams" in note]

    probe = "the unigrams (0.9000 nats)"
    assert said(0.5, 0.6, 0.7) == []
    assert said(0.5, 0.6, 1.0) == [f"Not surely better than {probe}, so sizes prove nothing: galore."]
    assert said(0.5, 1.1, 1.0) == [f"Only dense surely beats {probe}; sizes of the others prove nothing."]
    assert said(1.2, 1.1, 0.9) == [f"No run surely beats {probe}, so sizes prove nothing."]


def test_the_picture_has_the_points_of_the_table_and_their_front() -> None:
    records = [run("dense", None, 9), run("comera", 4, 5), run("comera", 8, 4), run("low_rank", 4, 7)]
    [study] = studies(records)
    table = pareto.table(study)
    [axes, *_] = pareto.draw(study, table, Caption("made up", ())).axes
    drawn = [line.get_xydata().tolist() for line in axes.lines if line.get_marker() in ("o", "s", "^", "D")]
    for arm in ("comera", "low_rank@size", "dense"):
        mine = table[table["arm"] == arm].dropna(subset="stored_mib").sort_values("stored_mib")
        assert mine[["stored_mib", "accuracy"]].to_numpy().tolist() in drawn
    front = axes.lines[0].get_xydata().tolist()
    expected = table[table["on_front"] == True].sort_values("stored_mib")  # noqa: E712 - it may be empty
    assert front[:-1] == expected[["stored_mib", "accuracy"]].to_numpy().tolist()


def test_a_metric_without_values_per_example_has_points_without_bounds() -> None:
    [figure] = pages_of("pareto", [other_run("dense", [0.8]), other_run("comera", [0.85], size=5.0)])
    table = figure.table.set_index("run")
    assert (table.loc["comera", "AUC"], table.loc["comera", "less dense"]) == ("0.8500", "+0.0500")
    tidy = pd.read_csv(io.StringIO(text_of(figure, ".csv"))).set_index("arm")
    assert tidy.loc["comera", ["auc", "less_dense"]].tolist() == [0.85, 0.05]
    assert tidy[["auc_low", "auc_high"]].isna().all().all()
    assert tidy.loc["dense", "dominated_by"] == "comera"
    assert not any("interval" in note for note in figure.notes)
