"""Trainings: what runs are compared with, rivals of searched formats, and plans beside the planner's own."""

import dataclasses
import json
import re
from collections.abc import Collection
from typing import Any

import pandas as pd
import pytest
from made_up import (
    EARLY_SIZE,
    FULL_SIZE,
    LOSS,
    answered,
    code_runs,
    failed,
    other_run,
    point,
    ranks,
    record,
    stages_of_accuracy,
    trained,
)
from pages import committed, page, pages, table, text_of
from torch import nn

from baselines import grouped
from bench.core.record import Record, RecordError
from bench.measures.shapes import described_shape
from bench.workloads.text.model import CausalLanguageModel, TextSettings
from comera.contraction import candidates, plan_contraction
from comera.modes import balanced_modes
from comera.tensor_train import TTShape
from figures import frame
from figures.artifacts import formats
from figures.artifacts.formats import Formats, bars, beside_probes, beside_smaller, matrices_ratio, select
from figures.draw import style
from figures.frame import each as frame_each
from figures.stats.curves import metric_of
from figures.stats.searches import against, are_sure, with_sure, worded
from figures.stats.seeds import over_seeds, with_sizes


def early_line(*records: Record) -> pd.Series:
    return table("table_mnli", records, "arm", "stage").loc[("comera", "early")]


def test_each_stage_is_compared_with_dense_after_as_many_steps() -> None:
    wrong, right = [False, False], [True, True]
    curve = [point(wrong, 500, "early", {}), point(right, 600, "early", {}), point(wrong, 900, "late", {})]
    early = trained("comera", "early", None, [point(right, 600, "early", ranks(1))], **EARLY_SIZE)
    late = trained("comera", "late", 0.2, [point(right, 900, "late", ranks(0.2))], **EARLY_SIZE)
    found = table("table_mnli", [trained("dense", curve=curve), early, late]).set_index("target_ratio")
    assert found.loc[0.2, "less_dense_points"] == 100.0
    assert early_line(trained("dense", curve=curve), early)["less_dense_points"] == 0.0


def test_sizes_over_seeds_are_means_with_the_least_and_the_greatest() -> None:
    sizes = {0: 2.0, 1: 3.0, 2: 7.0}
    runs = [other_run("comera", [0.7, 0.8, 0.9], seed=seed, size=size) for seed, size in sizes.items()]
    df = with_sizes(frame.of(runs))
    row = over_seeds(df, "arm", ["comera"], metric_of(df["training"].iloc[0])).loc["comera"]
    assert (row["stored_mib"], row["stored_mib_low"], row["stored_mib_high"]) == (4.0, 2.0, 7.0)


@pytest.mark.parametrize(
    ("step", "value", "said"),
    [(650, 0.0, "50 steps before or after"), (551, 0.0, "49 steps"), (700, None, "no accuracy after as many steps")],
)
def test_dense_is_compared_at_most_half_an_epoch_away(step: int, value: float | None, said: str) -> None:
    dense = trained("dense", curve=[point([True], step, "early", {})])
    early = trained("comera", "early", None, [point([True], 600, "early", ranks(1))], **EARLY_SIZE)
    found = early_line(dense, early)
    assert pd.isna(found["less_dense_points"]) if value is None else found["less_dense_points"] == value
    assert said in found["remarks"]


def test_every_seed_must_meet_its_size() -> None:
    def met(*sizes: float) -> Any:
        runs = [
            answered(target=0.2, seed=seed, **EARLY_SIZE | {"size_fraction": size, "size_target": 0.2})
            for seed, size in enumerate(sizes)
        ]
        return page("table_mnli", runs).table.set_index("run").loc["comera, late 0.2", "S <= S0"]

    assert [met(0.2), met(0.21), met(0.2, 0.21), met(0.2, 0.2)] == ["yes", "no", "no", "yes"]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"precision": "fp32"}, "precision fp32, not bf16"),
        ({"data_hash": "another"}, "data another, not data-a"),
        ({"sequence_length": 64}, "length 64, not 128"),
        ({"model": FULL_SIZE | {"layers": 2}}, "model layers 2, not 6"),
        ({"training": {"static": True}}, "equal shapes True, not False"),
        ({"training": {"stages": [{"name": "early", "steps": 5, "target": None}]}}, "early steps 5, not 600"),
        ({"method_settings": {"lr_cores": 1.0}}, "lr_cores 1.0, not None"),
    ],
)
def test_settings_are_never_mixed_and_the_others_named(other: dict[str, Any], words: str) -> None:
    records = stages_of_accuracy()
    stray = answered("comera", "early", share=0.5, examples=10, recorded_at="2009-01-01", **other)
    found = page("table_mnli", [*records, stray])
    assert len(found.records) == len(records)
    assert any(words in note and note.startswith("1 training record(s)") for note in found.notes)


def test_late_stages_of_another_length_and_other_metrics_are_not_mixed_in() -> None:
    records = stages_of_accuracy()
    stages = [{"name": "early", "steps": 600}, {"name": "late", "steps": 50, "target": 0.2}]
    failure = {"status": "error", "recorded_at": "2009-01-01"}
    stray = trained("comera", "late", 0.2, training={"stages": stages}, **failure)
    found = page("table_mnli", [*records, stray])
    assert len(found.records) == len(records)
    assert any("late steps 50, not 300" in note for note in found.notes)
    aucs = [other_run(arm, [0.7]) for arm in ("dense", "comera", "lora")]
    found = page("table_mnli", [*aucs, other_run("galore", [1.5], LOSS)])
    assert any("metric loss, not auc" in note for note in found.notes)


def test_workloads_that_share_the_name_of_their_data_stand_apart() -> None:
    runs = [other_run("dense", [0.7]), other_run("comera", [0.7])]
    others = [dataclasses.replace(one, workload="views") for one in runs]
    stems = {next(iter(one.files)).rpartition(".")[0] for one in pages("table_mnli", [*runs, *others])}
    assert stems == {f"table_mnli-made-up-cpu-2-threads-drawn-{name}-clicks" for name in ("clicks", "views")}


def test_what_no_arm_was_to_run_has_no_line() -> None:
    """Dense goes through both stages in one run: a first stage alone is expected of what goes on from it."""
    dense = [other_run("dense", [2.0, 1.5], LOSS, seed=seed) for seed in (0, 1)]
    ours = [other_run("comera", [2.0], LOSS, ratio=2.0)]
    ours += [other_run("comera", [2.0, 1.7], LOSS, target=0.5, ratio=2.0, seed=seed) for seed in (0, 1)]
    names = ["comera 1/2, warm-up", "comera 1/2, main 0.5"]
    for records, expected in ((dense + ours, ["dense", *names]), (ours, names), (dense, ["dense"])):
        assert list(page("table_mnli", records).table["run"]) == expected
    assert "comera 1/2, warm-up, seed 1: not recorded." in page("table_mnli", dense + ours).notes


def test_the_picture_of_fig6_has_the_numbers_of_its_table() -> None:
    records = stages_of_accuracy()
    drawn = page("fig6", records, picture=True)
    [axes] = drawn.files._draw().axes  # type: ignore[misc]
    found = table("fig6", records)
    shown = {round(float(y), 3) for line in axes.lines for y in line.get_ydata()}
    assert {round(value, 3) for value in found["accuracy"].dropna()} <= shown


@pytest.mark.parametrize(("length", "said"), [(None, False), (512, True)])
def test_the_probe_is_of_the_first_phase_where_the_second_has_other_rows(length: int | None, said: bool) -> None:
    """Dense reaches 2.0 nats in the first and 1.5 in the second; the probe 1.8."""
    records = []
    for one in code_runs(1.52, 1e9):
        cell = json.loads(one.config_json)
        cell["workload_settings"]["late_length"] = length
        records.append(dataclasses.replace(one, config_json=json.dumps(cell)))
    notes = [note for note in page("fig10_loss", records).notes if "surely beats" in note]
    assert bool(notes) == said
    assert all("in the warm-up stage" in note for note in notes)


def test_a_curve_without_times_is_refused() -> None:
    broken = []
    for one in code_runs(1.5, 1e9):
        rows = [{name: value for name, value in row.items() if name != "seconds"} for row in one.samples["curve"]]
        broken.append(dataclasses.replace(one, samples={**one.samples, "curve": rows}))
    with pytest.raises(RecordError, match="has no times"):
        text_of(page("fig10_loss", broken, picture=True), ".svg")


# searched formats, from the committed trainings


def tiny(change: Any = lambda _: {}) -> pd.DataFrame:
    """The lines of people's table of the smallest model, with some columns of its trainings changed."""
    own = ("formats_tiny", "formats_tiny_time")
    records = [one for one in committed("formats") if one.experiment in own]
    changed = [dataclasses.replace(one, **change(one)) for one in records]
    return page("formats", changed).table.set_index(["optimizer", "arm"]).sort_index()


def pages_of_tiny(change: Any = lambda _: {}) -> list[Formats]:
    """The page of the smallest model with its probes, of which some are changed."""
    own = [one for one in committed("formats") if one.experiment in ("formats_tiny", "probe_text")]
    return select([dataclasses.replace(one, **change(one)) for one in own])


def test_matrices_are_counted_apart_from_the_whole_model() -> None:
    """A narrower model keeps more of its matrices than the formats of its size, as many as the model itself has."""

    def matrices(model: CausalLanguageModel) -> int:
        return sum(
            one.numel() for name, one in model.named_parameters() if name.startswith("blocks") and one.dim() == 2
        )

    [found] = pages_of_tiny()
    lines = found.lines.assign(matrices_ratio=matrices_ratio(found))
    dense = CausalLanguageModel(TextSettings(), 256)
    assert sum(one.numel() for one in dense.parameters()) == lines.loc[lines["arm"] == "dense", "parameters"].iloc[0]
    narrow = lines[lines["arm"] == "dense:narrow"].drop_duplicates("ratio")
    assert len(narrow) == 2
    for line in frame_each(narrow):
        exact = matrices(dense) / matrices(dense.narrowed(line.parameters))
        assert line.matrices_ratio == pytest.approx(exact, rel=0.01)
    tensorized = lines[~lines["arm"].str.startswith("dense")]
    assert (tensorized["matrices_ratio"].round() == tensorized["ratio"].map({2.7: 4, 3.77: 8})).all()
    for groups, depth in ((4, 0.5), (8, 1.5)):
        arm = grouped.build(grouped.Settings(groups=groups, depth=depth, ratio=2.7))
        inside = dense.blocks.named_modules(prefix="blocks")
        adapted = arm.adapt(dense, {name: "attention" for name, one in inside if isinstance(one, nn.Linear)})
        line = lines[lines["arm"] == "dense:narrow"].head(1).assign(depth=depth, groups=groups, cell_id="")
        parameters = sum(one.numel() for one in adapted.parameters())
        line = line.assign(arm=f"grouped depth {depth}", parameters=parameters)
        reshaped = dataclasses.replace(found, lines=pd.concat([lines, line], ignore_index=True))
        kept = sum(one.numel() for one in adapted.blocks.parameters() if one.dim() > 1)
        assert matrices_ratio(reshaped).iloc[-1] == pytest.approx(matrices(dense) / kept, rel=0.03)


@pytest.mark.parametrize("own", select(committed("formats")), ids=lambda own: own.place)
def test_a_picture_has_one_stroke_per_arm_and_the_best_of_each_shape(own: Formats) -> None:
    lines = formats.table(own).assign(chosen_by=own.lines["chosen_by"])
    drawn = formats.best_shapes(lines)
    strokes = style.strokes([arm for arm in drawn["arm"].unique() if arm != "dense"])
    looks = [(stroke.look["marker"], str(stroke.look["linestyle"])) for stroke in strokes.values()]
    assert len(set(looks)) == len(looks)
    for line in frame_each(drawn[drawn["arm"].str.endswith(", best shape")]):
        arm = line.arm.removesuffix(", best shape")
        shapes = lines[lines["arm"].str.match(rf"{arm} .*depth") & (lines["ratio"] == line.ratio)]
        assert line.chosen_by == shapes.loc[shapes["optimizer"] == line.optimizer, "chosen_by"].min()


def test_trainings_of_other_processors_join_the_page_of_the_one_that_made_most() -> None:
    own = ("formats_tiny", "formats_tiny_time")
    records = [one for one in committed("formats") if one.experiment in own]
    moved = [one.cell_id for one in records if one.measure == "train" and one.seed == 1]
    other = "Another CPU, 1 thread"

    def made_on(driver: str = "", device: str = other) -> list[Record]:
        changes = {"device": device, "driver": driver}
        return [dataclasses.replace(one, **changes) if one.cell_id in moved else one for one in records]

    together, alone = page("formats", made_on()), page("formats", records)
    assert together.device == alone.device
    assert together.table.equals(alone.table)
    [note] = set(together.notes) - set(alone.notes)
    assert re.fullmatch(rf".*\b{len(moved)} of {len(together.records)} records .* {other}, .*", note)
    assert len(pages("formats", made_on("550.54", "A GPU"))) == 2  # whose products have other precisions


def test_steps_of_a_page_are_those_of_the_processor_that_timed_most_arms() -> None:
    own = ("formats_tiny", "formats_tiny_time")
    records = [one for one in committed("formats") if one.experiment in own]
    timed = {one.cell_id for one in records if one.measure == "run"}
    muon = {one.cell_id for one in records if one.cell_id in timed and "muon" in one.config_json}
    step, said = "step, ms", "were timed on another machine: Another CPU"

    def timed_on(moved: Collection[str], **changes: str) -> Any:
        changed = [dataclasses.replace(one, **changes) if one.cell_id in moved else one for one in records]
        [found] = [found for found in pages("formats", changed) if found.device == alone.device]
        return found

    alone = page("formats", records)
    untimed = (alone.table[step] == "-").sum()
    few, most = timed_on(sorted(muon)[:1], device="Another CPU"), timed_on(sorted(muon)[1:], device="Another CPU")
    assert [note for one in (alone, few) for note in one.notes if said in note] == []
    assert [note for note in most.notes if said in note] == [f"Steps under Muon {said}."]
    assert (few.table[step] == "-").sum() == (most.table[step] == "-").sum() == untimed + 1  # one machine each
    assert timed_on(timed, device="Another CPU").table.equals(alone.table)
    assert set(timed_on(timed, device="A GPU", driver="550.54").table[step]) == {"-"}


def test_the_loss_at_step_0_is_a_column_where_trainings_start_from_trained_weights() -> None:
    def begun(one: Record) -> dict[str, Any]:
        return {"samples": {**one.samples, "start": {"loss": 1.0, "test_loss": 2.0 + one.seed}}}

    heading = "loss at step 0"
    assert heading not in tiny()
    assert tiny(begun).loc[("Muon", "comera"), heading] == "3.000"  # of the seeds 0, 1 and 2


def with_loss(name: str, changed: Any, loss: Any) -> Any:
    """Return what changes a loss of some records, by its value."""

    def change(one: Record) -> dict[str, Any]:
        found = {name: loss(one.metrics.get(name, 0.0))} if changed(one) else {}
        return {"metrics": {**one.metrics, **found}}

    return change


def test_a_rival_is_of_equal_size_and_three_seeds_that_lie_apart_are_counted() -> None:
    assert tiny().loc[("Muon", "comera"), "less smaller dense"].endswith("(3 of 3 above)")
    other_size = tiny(lambda one: {"parameters": (one.parameters or 0) // 2} if one.variant == "narrow" else {})
    assert set(other_size["less smaller dense"]) == {"-"}
    first = [one for one in committed("formats") if one.experiment == "formats_tiny" and one.seed == 0]
    assert not any(" of " in cell for cell in page("formats", first).table["less smaller dense"])
    far, above = (
        tiny(with_loss("test_loss", lambda one: (one.seed, one.arm) == (1, "comera"), lambda _, to=to: to))
        for to in (9.0, 0.1)
    )
    assert far.loc[("Muon", "comera"), "less smaller dense"].endswith("(3 of 3 above)")
    assert " of " not in above.loc[("Muon", "comera"), "less smaller dense"]  # one of its seeds lies below


def test_three_seeds_are_never_sure_and_many_seeds_are_where_chance_is_small() -> None:
    """With Holm's correction: a comparison that is sure alone is none among many."""

    def against_rival(seeds: int, rivals: int = 1) -> list[str]:
        arm = {
            "optimizer": "muon",
            "parameters": 100,
            "seeds": seeds,
            "losses": tuple(1.0 + 0.01 * n for n in range(seeds)),
        }
        lines = pd.DataFrame([arm | {"arm": name} for name in ("comera", *("dense:narrow",) * rivals)])
        lines["losses"] = [arm["losses"], *[tuple(loss + 1 for loss in arm["losses"])] * rivals]
        lines["test_loss"] = lines["losses"].map(lambda losses: sum(losses) / len(losses))
        lines["test_loss_low"], lines["test_loss_high"] = lines["losses"].map(min), lines["losses"].map(max)
        found = against(lines[1:], lines[:1], ["optimizer"])
        return list(worded(*with_sure(found)))

    assert against_rival(3) == ["+1.00 (3 of 3 above)"]
    assert against_rival(5) == ["+1.00 (sure)"]
    assert against_rival(5, rivals=20) == ["+1.00 (5 of 5 above)"] * 20


def test_a_few_pairs_of_many_seeds_are_sure_beside_many_pairs_of_three() -> None:
    """Pairs that three seeds can never decide do not count against those that six can (Tarone)."""
    assert are_sure([0.1] * 40 + [2 / 924] * 2, [0.1] * 40 + [2 / 924] * 2) == [False] * 40 + [True] * 2
    assert not any(are_sure([0.04] * 3, [2 / 924] * 3))


def test_the_rival_is_the_smaller_dense_model_that_the_data_for_choosing_prefers() -> None:
    def line(arm: str, loss: float, chosen_by: float) -> dict[str, Any]:
        seeds = {"seeds": 3, "losses": (loss,) * 3, "test_loss_low": loss, "test_loss_high": loss}
        return {"arm": arm, "optimizer": "muon", "parameters": 100, "test_loss": loss, "chosen_by": chosen_by, **seeds}

    lines = [line("dense:narrow", 1.0, 1.5), line("dense:small depth 0.5", 1.2, 1.4), line("comera", 1.1, 1.3)]
    found = beside_smaller(pd.DataFrame(lines))
    assert list(found.index) == [2]
    assert found.loc[2, "apart"] == pytest.approx(-0.1)
    assert found.loc[2, "beside"] == "below"


def test_a_rate_is_chosen_by_one_loss_and_another_is_reported() -> None:
    before = list(tiny()["best rate"])
    for name, is_same in (("test_loss", True), ("loss", False)):
        reversed_loss = with_loss(name, lambda _: True, lambda loss: -loss)
        assert (list(tiny(reversed_loss)["best rate"]) == before) == is_same


def test_every_arm_on_text_has_a_probe_of_its_size() -> None:
    found = {own.experiment: own for own in select(committed("formats"))}
    for own in (found["formats_tiny"], found["formats_small"]):
        assert set(beside_probes(own).index) == set(own.lines.index)
    compressed = found["formats_base"].lines.query("arm != 'dense'")
    assert set(beside_probes(found["formats_base"]).index) == set(compressed.index)
    assert beside_probes(found["formats_teacher"]).empty


def test_an_arm_is_beside_the_probe_of_its_own_size_and_apart_where_all_its_seeds_are() -> None:
    numbers = {round(limit) for own in pages_of_tiny() for limit in own.probes["parameters"].dropna()}
    smallest = min(numbers)

    def moved(loss: float) -> Any:
        def change(one: Record) -> dict[str, Any]:
            if one.config["workload_settings"].get("probe_numbers") != smallest:
                return {}
            limited = {"equal-size n-gram model": {"metrics": {"test_loss": loss}}}
            return {"samples": {**one.samples, "probes": {**one.samples["probes"], **limited}}}

        (own,) = pages_of_tiny(change)
        return beside_probes(own).join(own.lines[["arm", "optimizer", "parameters", "test_loss_low"]])

    before, below = moved(0.5), moved(9.0)
    own_size = before["parameters"].astype(float).sub(smallest).abs() < 0.02 * smallest
    assert 1 < own_size.sum() < len(before)
    assert set(before.loc[own_size, "beside"]) == {"above"}
    assert set(below.loc[own_size, "beside"]) == {"below"}
    assert below.loc[~own_size, "apart"].equals(before.loc[~own_size, "apart"])
    narrow = before[own_size & (before["arm"] == "dense:narrow") & (before["optimizer"] == "adamw")]
    between = moved(narrow["test_loss_low"].item() + 1e-6)
    assert between.loc[narrow.index, "beside"].item() == "mixed"


def test_a_difference_is_counted_where_its_better_side_ends_below_its_simple_model() -> None:
    def moved(loss: float) -> tuple[Formats, dict[str, Any]]:
        """Give all limited n-grams this loss."""

        def change(one: Record) -> dict[str, Any]:
            if one.config["workload_settings"].get("probe_numbers") is None or one.measure != "probe":
                return {}
            limited = {"equal-size n-gram model": {"metrics": {"test_loss": loss}}}
            return {"samples": {**one.samples, "probes": {**one.samples["probes"], **limited}}}

        (own,) = pages_of_tiny(change)
        return own, formats.about(own, formats.table(own))

    (page_high, high), (page_low, low) = moved(9.0), moved(0.5)
    assert high["unproven"] == []
    assert len(low["unproven"]) == len(page_low.lines) == len(page_high.lines)
    assert set(bars(page_low)) == {0.5}
    for optimizer, sides in high["against"].items():
        assert not sides["void"]
        assert len(low["against"][optimizer]["void"]) == sum(map(len, sides.values()))
        assert low["surely"][optimizer] == {"above": [], "mixed": [], "below": [], "void": []}


def test_a_step_is_over_that_of_dense_in_the_same_job() -> None:
    def slowed(one: Record) -> dict[str, Any]:
        """Dense takes four times as long beside the smaller models."""
        if one.measure != "run" or one.arm != "dense" or one.ratio != 3.77:
            return {}
        blocks = [{**block, "ms": [4 * ms for ms in block["ms"]]} for block in one.samples["blocks"]]
        return {"samples": {**one.samples, "blocks": blocks}}

    own = [one for one in committed("formats") if one.experiment in ("formats_tiny", "formats_tiny_time")]
    usual, changed = (
        found.lines[found.lines["step_over_dense"].notna()].set_index(["optimizer", "arm", "ratio"])
        for change in (lambda _: {}, slowed)
        for found in select([dataclasses.replace(one, **change(one)) for one in own])
    )
    assert set(usual.index.get_level_values("ratio")) == {2.7, 3.77}
    factor = (usual["step_over_dense"] / changed["step_over_dense"]).groupby("ratio").agg(["min", "max"])
    assert factor.loc[2.7].tolist() == [1.0, 1.0]
    assert factor.loc[3.77].tolist() == pytest.approx([4.0, 4.0])
    assert (usual["step_over_dense_low"] <= usual["step_over_dense"]).all()


def test_a_training_that_diverged_is_never_the_best() -> None:
    chosen = float(tiny().loc[("Muon", "comera"), "best rate"])

    def lost(one: Record) -> dict[str, Any]:
        recipe = json.loads(one.config_json).get("training", {}).get("recipe", {})
        return {"status": "diverged"} if one.arm == "comera" and recipe.get("lr") == chosen else {}

    assert float(tiny(lost).loc[("Muon", "comera"), "best rate"]) != chosen


def test_a_page_is_drawn_where_no_training_ended_well() -> None:
    assert set(tiny(lambda _: {"status": "diverged", "metrics": {}})["loss"]) == {"-"}


# contraction plans: their records hold what the planner listed


def planned(order: int = 3, most: int = 30, tokens: int = 128, **columns: Any) -> Record:
    """The plans of a square layer, whose times are twice their estimates."""
    modes = balanced_modes(768, order)
    shape = TTShape(768, 768, modes, modes[::-1], most)
    plans = [
        {
            **{name: getattr(plan, name) for name in ("name", "segments", "trees", "flops")},
            "products": [dataclasses.asdict(product) for product in plan.products],
            "saved_mib": plan.saved * 4 / 2**20,
            "largest_mib": plan.largest * 4 / 2**20,
            "estimated_ms": 1e3 * plan.seconds("cpu"),
            "ms": [2e3 * plan.seconds("cpu")] * 2,
            "message": "",
        }
        for plan in candidates(shape, tokens)
    ]
    layer = {"in_features": 768, "out_features": 768, "optimizer_step": True}
    cell = {"device": "cpu", "method_settings": {"order": order, "ranks": most}, "workload_settings": layer}
    values = {
        "cell_id": f"{order}-{most}-{tokens}",
        "experiment": "fig11",
        "workload": "linear",
        "contraction": plan_contraction(shape, tokens, "cpu").name,
        "samples": json.loads(json.dumps({"shape": described_shape(shape), "plans": plans, "dense_ms": [5.0, 5.0]})),
        "config_json": json.dumps(cell),
    }
    return record("comera", tokens, measure="plan", **(values | columns))


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("tokens", [1, 4096])
def test_fig11_lists_the_planner_s_products_and_gradients(order: int, tokens: int) -> None:
    modes = balanced_modes(768, order)
    shape = TTShape(768, 768, modes, modes[::-1], 30)
    for plan in candidates(shape, tokens):
        steps = table("fig11", [planned(order, tokens=tokens, contraction=plan.name)])
        theirs = [*plan.products, *plan.backward]
        columns = ["left", "right", "result", "rows", "inner", "columns", "flops"]
        assert steps[columns].to_numpy().tolist() == [[getattr(one, name) for name in columns] for one in theirs]
        assert steps["flops"].sum() == steps["plan_flops"].iloc[0]
        assert steps["moved_mib"].tolist() == pytest.approx([one.numbers * 4 / 2**20 for one in theirs], rel=1e-4)
        assert steps["plan_saved_mib"].iloc[0] == pytest.approx(plan.saved * 4 / 2**20, rel=1e-4)
        assert set(steps["dense_flops"]) == {6 * tokens * 768 * 768}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"samples": {}}, "KeyError('samples.shape')"),
        ({"contraction": "fastest"}, "the chosen plan 'fastest' is not among them"),
        ({"config_json": "{}"}, "plans need in_features, out_features, order and ranks in config_json"),
        ({"ms": [0.0]}, "times must be above 0"),
        ({"ms": "soon"}, "cannot be read"),
        ({"products": [{"left": "z1", "right": "G1", "result": "y"}]}, "uses what is not there"),
        ({"products": [{"left": "x", "right": "G1", "result": "z1"}]}, "forms no y"),
    ],
)
def test_plans_that_cannot_be_read_are_one_sentence(change: dict[str, Any], words: str) -> None:
    own = {"samples", "contraction", "config_json"}
    one = planned(**{name: value for name, value in change.items() if name in own})
    for name in change.keys() - own:
        one.samples["plans"][0][name] = change[name]
    with pytest.raises(RecordError, match=f"^[^\n]*{re.escape(words)}[^\n]*$"):
        page("fig11", [one])


def chosen_over_best(ratio: float, tokens: int, **columns: Any) -> Record:
    """A shape whose chosen plan, 'cores', takes ``ratio`` times as long as the best, 'halves'."""
    one = planned(tokens=tokens, contraction="cores", experiment="contraction", **columns)
    for row in one.samples["plans"]:
        row["ms"] = [{"cores": 10.0 * ratio, "halves": 10.0}.get(row["name"], 50.0)] * 3
    return one


@pytest.mark.parametrize(
    ("ratios", "missed"),
    [
        ([1.0] * 54 + [1.49] * 6, []),
        ([1.0] * 59, ["59 shapes"]),
        ([1.0] * 53 + [1.2] * 7, ["88.3% within 1.10"]),
        ([1.0] * 59 + [1.6], ["1 beyond 1.50"]),
        ([1.0, 1.6], ["2 shapes", "50.0% within 1.10", "1 beyond 1.50"]),
    ],
)
def test_the_planner_is_held_to_what_is_asked_of_it(ratios: list[float], missed: list[str]) -> None:
    found = page("plans", [chosen_over_best(ratio, tokens) for tokens, ratio in enumerate(ratios, start=1)])
    said = " ".join(found.facts)
    assert all(words in said for words in missed or ["Met"])
    assert ("Met" in said) == (not missed)


def test_plans_without_time_or_record_say_so() -> None:
    lost = chosen_over_best(1.2, 128)
    lost.samples["plans"][1] |= {"ms": [], "message": "needs about 9 MiB, 1 MiB are free"}
    broken = failed(chosen_over_best(1.0, 2), contraction="")
    found = page("plans", [lost, chosen_over_best(1.2, 1), broken])
    cells = found.table[["1 tokens", "2 tokens", "128 tokens"]].to_numpy().tolist()
    assert cells == [["cores 1.20x", "oom", "no time"]]
    assert any("needs about 9 MiB" in note for note in found.notes)
    once = chosen_over_best(1.2, 1)
    once.samples["plans"][1]["ms"] = [60.0]
    line = table("plans", [once]).iloc[0]
    assert (line["chosen_over_best"], pd.isna(line["chosen_over_best_low"])) == (6.0, True)
