"""What is kept and what fits: sums by kind, what is formed again, ratios over dense, which records stand together."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from made_up_records import CALM, CPU, CUDA, blocks, record, sizes
from redrawn import redrawn_here
from test_figures_layout import _check

from bench.core.record import Record, write
from figures.artifacts.beyond import activations
from figures.artifacts.beyond.activations import (
    EXPERIMENTS,
    KINDS,
    ORDER,
    ActivationsPage,
    formed_again,
    kinds,
    plain_arm,
    select_pages,
    slower,
)
from figures.page.drawn import Caption
from figures.page.style import house_style

ACTIVATIONS, MEMORY, TIME = EXPERIMENTS
STEM = "activations-made-up-cpu-2-threads"

#: MiB of a block's tensors, invented; two products are of one kind.
PLAIN = [("outputs of linear layers", 40.0), ("outputs of linear layers", 30.0), ("activation functions", 20.0)]
PLAIN += [("norms", 10.0), ("a kind of tomorrow", 3.0)]
LEAN = [("rank-wide products", 5.0), ("norms", 10.0), ("masks", 1.0)]
KEPT = {
    "comera": [*PLAIN, ("rank-wide products", 5.0)],
    "comera:lean": LEAN,
    "dense": PLAIN,
    "dense+checkpoint": [PLAIN[3]],
}
LARGEST = {"comera": (100, 400), "comera:lean": (500, 2000), "dense": (80, 320), "dense+checkpoint": (160, 0)}


def named(arm: str) -> dict[str, str]:
    """The columns of an arm whose name may end with a way to recompute; records have them by method and variant."""
    method, _, variant = arm.partition(":")
    return {"method": method, "variant": variant, "cell_id": f"kept-{arm.replace(':', '-').replace('+', '-')}"}


def kept(arm: str, **columns: object) -> Record:
    tensors = [{"kind": kind, "operator": "made_up", "shape": [2], "mib": size} for kind, size in KEPT[arm]]
    samples = {
        "kept": {"blocks": 6, "alike": 6, "tensors": tensors, "outside_mib": {"norms": 7.0, "other": 1.0}},
        "largest": [
            {"memory_gib": gib, "room_mib": 1000.0 * gib, "batch_size": batch, "peak_mib": 1.0, "next_mib": 2.0}
            for gib, batch in zip((8, 80), LARGEST[arm], strict=True)
        ],
    }
    values = {"experiment": ACTIVATIONS, "predicted_for": "cuda", "samples": samples, **named(arm)}
    return record(arm, 128, measure="kept", **(values | columns))


def campaign(device: str = CPU, arms: tuple[str, ...] = tuple(KEPT)) -> list[Record]:
    """Everything of one device: kept tensors, predictions for CUDA, and times at two batch sizes."""
    records = [kept(arm, device=device) for arm in arms]
    for arm in arms:
        name, own = named(arm)["cell_id"], {key: named(arm)[key] for key in ("method", "variant")}
        for batch in (1, 64, 128, 512):
            at = {
                "experiment": MEMORY,
                "predicted_for": "cuda",
                "cell_id": f"{name}-{batch}",
                **sizes(arm, batch, "cuda"),
                **own,
            }
            records.append(record(arm, batch, measure="predict", device=device, **at))
        for batch, ms in ((1, 20.0), (64, 900.0)):
            at = {"experiment": TIME, "cell_id": f"{name}-{batch}-time", **sizes(arm, batch, "cpu"), **own}
            records.append(record(arm, batch, device=device, samples=blocks([ms, 1.1 * ms]), pairing=f"{batch}", **at))
    return records


def page_of(records: list[Record], device: str = CPU) -> ActivationsPage:
    [page] = [one for one in select_pages(records) if one.device == device]
    return page


def lines_of(arm: str, records: list[Record] | None = None) -> pd.DataFrame:
    """The lines of an arm in the table, by quantity, what it is of, and batch size."""
    table = activations.table(page_of(records or campaign()))
    mine = table[table["arm"] == arm].assign(batch_size=table["batch_size"].fillna(0))
    return mine.set_index(["quantity", "of", "batch_size"]).sort_index()


def shown_of(records: list[Record]) -> pd.DataFrame:
    page = page_of(records)
    return activations.shown(page, activations.table(page)).set_index("arm")


def test_a_block_is_added_up_by_kind_and_unknown_kinds_are_other() -> None:
    dense = lines_of("dense")
    by_kind = {"outputs of linear layers": 70.0, "activation functions": 20.0, "norms": 10.0, "other": 3.0}
    assert kinds(page_of(campaign()).kept["dense"]) == by_kind
    assert dict(dense.loc["kept per block"].droplevel("batch_size")["value"]) == {**by_kind, "all kinds": 103.0}
    assert dense.loc[("kept per block", "all kinds", 128), "unit"] == "MiB"
    assert pd.isna(dense.loc[("kept per block", "all kinds", 128), "over_dense"])
    assert dense.loc["kept outside of blocks", "value"].sum() == 8.0
    assert lines_of("comera").loc[("kept per block", "all kinds", 128), "over_dense"] == pytest.approx(108 / 103)


def test_what_is_formed_again_is_what_the_plain_arm_keeps() -> None:
    again = {"outputs of linear layers": 70.0, "activation functions": 20.0, "other": 3.0}
    assert formed_again(page_of(campaign()), "comera:lean") == again
    assert dict(lines_of("comera:lean").loc["formed again per block"].droplevel("batch_size")["value"]) == again
    assert sum(formed_again(page_of(campaign()), "dense+checkpoint").values()) == 93.0
    assert formed_again(page_of(campaign()), "dense") == {}
    without = [one for one in campaign() if one.arm != "comera"]
    assert formed_again(page_of(without), "comera:lean") == {}


def test_times_are_compared_with_those_of_the_plain_arm() -> None:
    records = [
        replace(one, samples=blocks([30.0, 33.0])) if (one.arm, one.batch_size) == ("comera:lean", 1) else one
        for one in campaign()
    ]
    found = lines_of("comera:lean", records).loc[("time over plain", "comera")]
    assert (found.loc[1, "value"], found.loc[64, "value"]) == (pytest.approx(1.5), pytest.approx(1.0))
    page = page_of(records)
    assert slower(page, "comera", page.records) == {}
    assert shown_of(records).loc["comera:lean", "time over plain, batch 1"] == "1.50x"


def test_the_usual_allocator_has_columns_of_its_own() -> None:
    def usual(arm: str, ms: float) -> Record:
        own = {key: named(arm)[key] for key in ("method", "variant")}
        at = {"experiment": TIME, "cell_id": f"usual-{arm}", **sizes(arm, 64, "cpu"), **own}
        config = json.dumps({"device": "cpu", "timing_settings": {**CALM, "allocator": "system"}})
        return record(arm, 64, samples=blocks([ms, 1.1 * ms]), pairing="usual", config_json=config, **at)

    some = [*campaign(), usual("comera", 1000.0), usual("comera:lean", 1050.0)]
    found = lines_of("comera:lean", some)
    assert found.loc[("time over plain", "comera", 64), "value"] == pytest.approx(1.0)
    assert found.loc[("time over plain, usual allocator", "comera", 64), "value"] == pytest.approx(1.05)
    shown = shown_of(some).loc["comera:lean"]
    assert shown["time over plain, batch 64, usual allocator"] == "1.05x"
    assert shown["time over plain, batch 64"] == "1.00x"


def test_records_of_fig1_count_for_arms_that_this_figure_has() -> None:
    def lent(arm: str) -> Record:
        own = {key: named(arm)[key] for key in ("method", "variant")}
        at = {"experiment": "fig1", "cell_id": f"fig1-{arm}", **sizes(arm, 16, "cpu"), **own}
        return record(arm, 16, samples=blocks([500.0, 550.0]), **at)

    table = activations.table(page_of([*campaign(), lent("dense"), lent("lora")]))
    assert set(table.loc[table["batch_size"] == 16, "arm"]) == {"dense"}
    assert not select_pages([lent("dense")])


def test_largest_batches_are_compared_with_dense_s() -> None:
    lean = lines_of("comera:lean").loc[("largest batch", "8 GiB", 0)]
    assert lean[["value", "unit", "over_dense"]].tolist() == [500, "examples", 6.25]
    assert pd.isna(lines_of("dense").loc[("largest batch", "80 GiB", 0), "over_dense"])
    assert lines_of("dense+checkpoint").loc[("largest batch", "80 GiB", 0), "value"] == 0
    assert lines_of("dense").loc[("predicted peak", "cuda", 128), "value"] == pytest.approx(10_252.8)
    shown = shown_of(campaign())
    assert shown.loc["comera:lean", ["kept per block, MiB", "batch in 8 GiB"]].tolist() == [
        "16.0 (0.155x)",
        "500 (6.25x)",
    ]
    assert shown.loc["dense", ["batch in 8 GiB", "batch in 80 GiB"]].tolist() == ["80", "320"]


def test_arms_stand_in_order_whatever_they_are() -> None:
    assert [plain_arm(arm) for arm in ORDER[:4]] == ["comera"] * 4
    given = ("dense+checkpoint", "tomorrow", "comera:lean_block", "low_rank@rank:lean", "galore", "comera", "dense")
    assert sorted(given, key=activations.by_arm) == [
        *("comera", "comera:lean_block", "low_rank@rank:lean", "galore", "dense", "dense+checkpoint", "tomorrow")
    ]
    assert page_of(campaign()).arms == list(KEPT)
    strokes = {arm: activations._stroke(arm, ["tomorrow"]) for arm in (*ORDER[:8], *given)}
    shapes = {(one.dashes, one.marker, one.filled) for one in strokes.values()}
    assert len(shapes) == len(strokes)


def test_an_arm_without_a_record_says_so() -> None:
    failed = kept("comera", status="error", message="no room.", samples={})
    some = [failed, *(one for one in campaign() if one.arm != "comera" or one.measure != "kept")]
    page = page_of(some)
    assert shown_of(some).loc["comera", "kept per block, MiB"] == "error"
    assert page.left_out == ()
    [drawn] = activations.ARTIFACT.render(some, {})
    assert "comera, batch 128: no room." in drawn.notes
    [drawn] = activations.ARTIFACT.render([one for one in some if one.arm != "comera" or one.measure == "run"], {})
    assert drawn.table.set_index("arm").loc["comera", "kept per block, MiB"] == "not recorded"


def test_devices_precisions_and_toggles_do_not_mix() -> None:
    half = [
        kept(arm, precision="bf16", cell_id=f"half-{arm.partition(':')[0]}-{len(arm)}") for arm in ("comera", "dense")
    ]
    graph = record("dense", 8, experiment=TIME, cuda_graph=True, device=CUDA)
    pages = select_pages([*campaign(), *half, *campaign(CUDA, ("dense",)), graph])
    assert [(one.device, one.place) for one in pages] == [(CPU, "fp32"), (CPU, "bf16"), (CUDA, "fp32")]
    assert pages[1].arms == ["comera", "dense"]
    assert ("dense", 8) not in pages[2].timed


def test_another_model_or_batch_is_left_out_in_words() -> None:
    other = kept("dense", batch_size=64, cell_id="other-batch", recorded_at="2001-02-03T05:00:00+00:00")
    page = page_of([*campaign(), other, record("dense", 1, experiment=TIME, workload="clicks", cell_id="clicks")])
    assert page.kept["dense"].batch_size == 128
    assert any("batch 64, not 128" in note for note in page.left_out)
    assert "1 record(s) of another model are left out." in page.left_out
    assert {one.workload for one in page.shown} == {"encoder"}


@pytest.mark.slow
def test_same_records_same_bytes_with_every_number(tmp_path: Path) -> None:
    write(campaign(), tmp_path / "records")
    written, printed = redrawn_here("activations", tmp_path / "records", tmp_path / "out")
    assert set(written) == {f"{STEM}.{ending}" for ending in ("png", "svg", "md", "csv")}
    lines = list(csv.DictReader(io.StringIO(written[f"{STEM}.csv"].decode())))
    found = {(one["arm"], one["batch_size"], one["quantity"], one["of"]): one for one in lines}
    assert len(found) == len(lines)
    assert float(found["comera:lean", "128", "kept per block", "all kinds"]["value"]) == 16
    assert float(found["dense", "", "largest batch", "80 GiB"]["value"]) == 320
    assert float(found["comera", "64", "time per epoch", "this device"]["value"]) == pytest.approx(0.945 * 392_702 / 64)
    assert found["dense", "512", "predicted peak", "cuda"]["unit"] == "MiB"
    assert "8,000 MiB on 8 GiB" in printed


@pytest.mark.slow
def test_nothing_overlaps_with_every_arm_and_times(monkeypatch: pytest.MonkeyPatch) -> None:
    arms = ORDER[:8] + ORDER[20:]
    every = [(kind, 20.0) for kind in KINDS]
    monkeypatch.setitem(globals(), "KEPT", {arm: every if arm == plain_arm(arm) else LEAN for arm in arms})
    monkeypatch.setitem(globals(), "LARGEST", dict.fromkeys(arms, (20_000, 123_456)))
    page = page_of(campaign(arms=arms))
    with house_style():
        [drawn] = activations.ARTIFACT.render(campaign(arms=arms), {})
        figure = activations.draw(page, activations.table(page), Caption(drawn.title, drawn.facts, drawn.notes))
        _check(figure, axes=1 + 2 + 2, texts=6)


@pytest.mark.slow
@pytest.mark.parametrize("measure", ["kept", "predict", "run"])
def test_any_part_of_the_records_makes_a_page(measure: str) -> None:
    some = [one for one in campaign() if one.measure == measure]
    [drawn] = activations.ARTIFACT.render(some, {})
    assert drawn.files[f"{STEM}.png"]


def test_every_experiment_it_reads_exists() -> None:
    from bench.errors import experiments

    assert set(EXPERIMENTS) <= set(experiments())
