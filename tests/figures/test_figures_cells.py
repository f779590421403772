"""Times of cells and the notes that pages share: what counts as one time, and what is said of the machine."""

import dataclasses
import re
from collections.abc import Sequence

import pandas as pd
import pytest
import yaml
from made_up import ARMS, CODE, blocks, epochs, failed, peaks, record, timed
from pages import ROOT, page, pages, parsed, small_page, table, text_of

from bench.core.record import Record
from figures import frame
from figures.artifacts import fig1, fig5, fig7
from figures.draw import facts

EXAMPLES = 392_702


def line(*records: Record, arm: str = "dense", name: str = "fig1") -> pd.Series:
    """The line of an arm at batch 1 of Fig. 1."""
    return table(name, records, "batch_size", "arm").loc[(1, arm)]


def test_disturbed_blocks_count_nowhere() -> None:
    quiet = timed("dense", [10.0, 11.0, 12.0])
    noisy = timed("dense", [10.0, 11.0, 12.0, 900.0], disturbed=(3,))
    columns = ["epoch_time_s", "epoch_time_s_low", "epoch_time_s_high", "blocks"]
    assert line(noisy)[columns].tolist() == line(quiet)[columns].tolist()
    assert (line(noisy)["disturbed_blocks"], line(quiet)["disturbed_blocks"]) == (1, 0)


def test_without_an_undisturbed_block_the_mean_of_all_stands_alone() -> None:
    found = line(timed("dense", [5.0, 6.0], disturbed=(0, 1)))
    assert found["epoch_time_s"] == pytest.approx(0.0055 * EXAMPLES, rel=1e-5)
    assert pd.isna(found["epoch_time_s_low"])


def test_an_epoch_is_its_steps_and_its_share_of_rare_events() -> None:
    rare = {"rare_time_ms": 4000.0, "rare_period_steps": 200}
    found = line(timed("dense", [100.0, 110.0, 120.0], **rare))
    assert found["epoch_time_s"] == pytest.approx((0.110 + 0.020) * EXAMPLES, rel=1e-5)
    assert found["epoch_rare_s"] == pytest.approx(0.020 * EXAMPLES, rel=1e-5)
    galore = timed("galore", [100.0, 200.0, 300.0], rare_time_ms=4000.0, rare_period_steps=40)
    ratio = line(galore, timed("dense", [50.0, 75.0, 100.0]), arm="galore")
    assert ratio["time_over_dense"] == ratio["time_over_dense_low"] == 4  # (100 + 100) / 50 in each block


def test_an_epoch_time_is_that_of_the_samples_whatever_an_older_record_says() -> None:
    found = line(timed("dense", [10.0, 20.0], epoch_time_s=1.0))["epoch_time_s"]
    assert found == pytest.approx(0.015 * EXAMPLES, rel=1e-5)
    assert line(timed("dense", [], epoch_time_s=7.0))["epoch_time_s"] == 7


def test_the_epoch_times_of_a_page_are_those_of_its_records() -> None:
    """One definition: what a page shows is what a record has held since it was written."""
    records = [one for one in small_page("fig7") if one.epoch_time_s is not None]
    shown = sorted(table("fig7", records)["epoch_time_s"].dropna())
    assert shown == pytest.approx(sorted(one.epoch_time_s for one in records), rel=1e-5)
    assert len(shown) > 5


def test_a_ratio_is_paired_by_the_blocks_that_both_have() -> None:
    comera, dense = timed("comera", [30.0, 60.0, 100.0]), timed("dense", [10.0, 20.0])
    assert line(comera, dense, arm="comera")[["time_over_dense", "time_pairing"]].tolist() == [3.0, "paired"]
    for pairing in ("elsewhere", ""):
        other = dataclasses.replace(dense, pairing=pairing)
        assert line(comera, other, arm="comera")["time_pairing"] == "unpaired"
    nameless = [dataclasses.replace(one, pairing="") for one in (dense, comera)]
    assert line(*nameless, arm="comera")["time_pairing"] == "unpaired"
    disjoint = timed("dense", [10.0, 20.0, 30.0, 40.0], disturbed=(0, 1, 2))
    assert line(comera, disjoint, arm="comera")["time_pairing"] == "unpaired"


def test_two_ranks_need_half_the_steps_for_an_epoch() -> None:
    dense = timed("dense", [100.0] * 3, world_size=2)
    [found] = pages("fig1", [dense, timed("comera", [100.0] * 3, world_size=2)])
    alone = line(timed("dense", [100.0] * 3))["epoch_time_s"]
    assert line(dense)["epoch_time_s"] == pytest.approx(alone / 2)
    assert not found.notes or all("left out" not in note for note in found.notes)
    others = [timed("dense", [100.0] * 3), timed("comera", [9.0] * 3, 8)]
    mixed = page("fig1", [*others, dataclasses.replace(dense, batch_size=8)])
    assert any("ranks 2, not 1" in note for note in mixed.notes)


@pytest.mark.parametrize("status", ["oom", "timeout", "error"])
def test_a_cell_without_time_has_none_and_no_ratio(status: str) -> None:
    comera, dense = timed("comera", [1.0, 2.0]), timed("dense", [2.0, 4.0])
    with_samples = dataclasses.replace(comera, status=status, message="made up", epoch_time_s=3.0)
    for one in (failed(comera, status), with_samples):
        found = line(dense, one, arm="comera")
        assert found["time_status"] == status
        assert found[["epoch_time_s", "time_over_dense"]].isna().all()
    assert line(record("comera"), dense, arm="comera")["time_status"] == "no time"


@pytest.mark.parametrize("launches", [(3, 3), (8, 8), (3, 8), (1, 3)])
def test_bounds_are_called_a_range_or_an_interval_cell_by_cell(launches: tuple[int, int]) -> None:
    arms = dict(zip(("comera", "dense"), launches, strict=True))
    records = [timed(arm, [20.0 + i for i in range(n)], launches=n) for arm, n in arms.items()]
    drawn = page("fig1", records)
    found = table("fig1", records, "batch_size", "arm").loc[1].astype(object).fillna("")
    kinds = {n: "interval" if n >= 6 else "range" if n > 1 else "" for n in launches}
    assert found.loc[list(arms), "epoch_time_s_bounds"].tolist() == [kinds[n] for n in launches]
    assert found.loc["comera", "time_over_dense_bounds"] == kinds[min(launches)]  # of the launches that both have
    [note] = [one for one in drawn.notes if one.startswith("[low, high]")]
    words = {"range": "range over launches", "interval": "95% interval"}
    assert {kind for kind, said in words.items() if said in note} == set(kinds.values()) - {""}


def test_a_page_needs_times_unless_it_is_the_plain_one() -> None:
    plan = {"measure": "predict", "predicted_for": "cuda", "peak_memory_predicted_mib": 5.0}
    half, whole = record(precision="bf16", **plan), record(**plan)
    graph = timed("comera", [1.0, 2.0], cuda_graph=True)
    assert pages("fig1", [half]) == []
    assert len(pages("fig1", [graph, half])) == 1
    plain, captured = pages("fig1", [graph, half, whole])
    assert any("in a precision that nothing was timed in" in note for note in plain.notes)
    for found, stem in ((plain, "threads"), (captured, "cuda-graph")):
        assert next(iter(found.files)).rpartition(".")[0].endswith(stem)
        assert parsed(text_of(found, ".csv"), "batch_size", "arm").loc[(1, "comera"), "cuda_peak_mib"] == 5.0


def test_where_the_data_lie_does_not_separate_predictions_from_times() -> None:
    config = '{"device": "cpu", "workload_settings": {"data_folder": "somewhere"}}'
    plan = record(measure="predict", predicted_for="cuda", peak_memory_predicted_mib=5.0)
    assert line(timed("comera", [1.0, 2.0], config_json=config), plan, arm="comera")["cuda_peak_mib"] == 5.0


def test_the_prediction_beside_a_time_stands_in_where_none_was_asked_for() -> None:
    run = timed("comera", [1.0, 2.0], peak_memory_predicted_mib=7.0)
    for plan, peak in (({"status": "error"}, 7.0), ({"peak_memory_predicted_mib": 6.0}, 6.0)):
        asked = record("comera", measure="predict", recorded_at="1999", predicted_for="cpu", **plan)
        assert line(run, asked, arm="comera")["cpu_peak_mib"] == peak


def test_an_arm_has_one_setting_and_the_newest_of_those_with_as_many_cells() -> None:
    def ranked(ranks: int, batch: int, **columns: object) -> Record:
        cell = f'{{"device": "cpu", "workload_settings": {{}}, "method_settings": {{"ranks": {ranks}}}}}'
        return timed("comera", [float(ranks)] * 2, batch, config_json=cell, **columns)

    stray = ranked(16, 8, recorded_at="2009-01-01")
    drawn = page("fig1", [ranked(30, 1), ranked(30, 8), stray, timed("dense", [2.0, 2.0])])
    assert any("comera are left out, of another setting: ranks 16, not 30" in note for note in drawn.notes)
    assert 2 not in drawn.records  # the stray one
    days = {(30, 1): "2001", (30, 8): "2004", (16, 1): "2002", (16, 8): "2003"}
    equal = [ranked(*cell, recorded_at=day) for cell, day in days.items()]
    assert sorted(page("fig1", equal).records) == [0, 1]
    assert sorted(page("fig1", equal[::-1]).records) == [2, 3]


@pytest.mark.parametrize("name", ["fig1", "fig7"])
def test_any_workload_has_a_page_of_time_and_memory(name: str) -> None:
    words = {"model": "click model", "epoch": "", "examples_per_epoch": None}
    own = {"workload": "clicks", "experiment": "clicks", "sequence_length": 1}
    own |= {"workload_words": words}
    records = [dataclasses.replace(one, **own) for one in epochs()]
    [drawn] = pages(name, records)
    found = table(name, records, "batch_size", "arm").loc[8]
    assert found.loc["dense", "step_time_ms"] == pytest.approx(176.0)
    for foreign in ("Fig.", "epoch", "encoder", "length", "the paper"):
        assert foreign not in text_of(drawn, ".md")
    assert drawn.verdicts == ()
    own["workload_words"] = {**words, "epoch": "A day.", "examples_per_epoch": 1000}
    day = table(name, [dataclasses.replace(one, **own) for one in epochs()], "batch_size", "arm")
    assert day.loc[(8, "dense"), "epoch_time_s"] == pytest.approx(176.0 * 125 / 1e3)


@pytest.mark.parametrize(
    ("machines", "words"),
    [
        (["one", "one"], " on 1 machine."),
        (["one", "other", "one"], " on 2 machines."),
        ([None, None], "Recorded 2001-02-03."),
        ([None, "one", "one"], " on 1 machine (unknown for 1 of 3 records)."),
    ],
)
def test_a_page_says_on_how_many_machines_it_was_seen(machines: list[str | None], words: str) -> None:
    """Predictions and cells that did not run count for none."""
    batches = enumerate(machines, start=1)
    seen = [timed("comera", [1.0, 2.0], batch, machine=machine) for batch, machine in batches]
    seen.append(record("dense", measure="predict", machine="third", predicted_for="cuda", **peaks(1.0)))
    seen.append(record("lora", status="unsupported", machine="fourth"))
    assert words in page("fig1", seen).facts[0]


#: Of each page of times, the columns of a step that it shows.
TIMED = {
    "fig1": {},
    "fig7": {"experiment": "fig7"},
    "fig10": {"experiment": "fig10_time", "workload": "code", "workload_words": CODE},
    "activations": {"experiment": "activations_time"},
}


def calibrated(one: Record, products: list[float], **more: float) -> Record:
    """The record with these times of the product that tells whether the machine is busy."""
    rows = blocks(products)["blocks"]
    for row, ms in zip(rows, products, strict=True):
        row |= {"calibration_ms": ms, **more}
    return dataclasses.replace(one, machine="abc", samples={"blocks": rows})


@pytest.mark.parametrize("variant", ["", "per_layer"])
@pytest.mark.parametrize("name", TIMED)
def test_every_page_of_times_says_what_is_not_fused_and_when_the_machine_was_busy(name: str, variant: str) -> None:
    arms = ("comera", f"galore:{variant}".rstrip(":"))
    steps = [timed(arm, [1.0, 2.0], **TIMED[name]) for arm in arms]
    quick, slow = map(calibrated, steps, ([1.0, 1.1, 1.0], [2.1, 2.0, 2.0]))
    for galore, count in ((slow, 1), (failed(slow), 0)):
        notes = page(name, [quick, galore]).notes
        for words in ("unfused", "was busy during 1 of 2"):
            assert sum(words in note for note in notes) == count


def test_a_machine_is_busy_where_a_product_takes_far_longer_than_the_best_that_it_knows() -> None:
    quick = calibrated(timed("comera", []), [1.0, 1.1, 1.0])
    slow = calibrated(timed("galore", []), [2.1, 2.0, 2.0])
    assert facts.busy(frame.of([quick, slow])) == (1, 2, 2.0, "galore, batch 1")
    elsewhere = dataclasses.replace(slow, machine="other")
    for alike in (calibrated(slow, [1.1, 1.2, 1.1]), failed(slow), elsewhere):
        assert facts.busy(frame.of([quick, alike])) is None
    known = calibrated(quick, [2.0, 2.0, 2.0], calibration_cpu_ms=1.0)
    assert facts.busy(frame.of([known])) == (1, 1, 2.0, "comera, batch 1")


def test_pages_of_a_gpu_and_of_a_cpu_are_told_by_the_driver() -> None:
    plan = record(measure="predict", predicted_for="cuda", peak_memory_predicted_mib=5.0)
    for driver, target, batches in (
        ("", "cuda", {1, 16, 32, 64, 128}),
        ("1.2, CUDA 3.4", "cpu", {1, 32, 64, 128}),
    ):
        found = table("fig1", [dataclasses.replace(plan, predicted_for=target, driver=driver)])
        assert set(found["batch_size"]) == batches
        assert list(found["arm"].unique()) == list(ARMS)  # the paper's page expects all of them


@pytest.mark.parametrize(
    ("experiment", "expected"),
    [
        ("fig1", [fig1.CPU_BATCHES, fig1.PAPER_BATCHES]),
        ("fig5", [fig5.BATCHES]),
        ("fig7", [fig7.BATCHES["cpu"], fig7.BATCHES["cuda"]]),
    ],
)
def test_a_page_expects_the_batches_that_its_experiment_measures(
    experiment: str, expected: list[tuple[int, ...]]
) -> None:
    """Else it has empty panels for whoever just measured all of them."""
    config = yaml.safe_load((ROOT / "bench" / "conf" / "experiment" / f"{experiment}.yaml").read_text())
    swept = config["hydra"]["sweeper"]["params"]["batch_size"]  # one list, or one for a CPU and one for a GPU
    lists = re.findall(r'"([^"]*)"', swept) or [swept]
    assert [tuple(map(int, each.split(","))) for each in lists] == expected


def in_calls(arm: str, means: Sequence[float], calls: int, launches: int = 3) -> Record:
    """A record whose launches are of several calls; the launches of each call have one of the means."""
    each = [mean for mean in means for _ in range(launches)]
    one = timed(arm, each, launches=len(each), pairing=f"call-{calls - 1}")
    earlier = [{"recorded_at": f"2001-02-0{n + 1}", "machine": "m", "launches": launches} for n in range(calls - 1)]
    names = {str(n * launches + launch): f"call-{n}" for n in range(calls - 1) for launch in range(launches)}
    return dataclasses.replace(one, samples={**one.samples, "earlier_calls": earlier, "pairings": names})


def test_ranges_are_over_calls_and_an_arm_of_fewer_calls_is_named() -> None:
    comera = in_calls("comera", (4.6, 3.2, 4.8), 3)
    lora = dataclasses.replace(in_calls("lora", (2.0,), 1), pairing="call-0")
    found = page("fig1", [in_calls("dense", (1.0, 1.0, 1.0), 3), comera, lora])
    line = parsed(text_of(found, ".csv"), "batch_size", "arm").loc[(1, "comera")]
    bounds = line[["time_over_dense_low", "time_over_dense_high", "time_over_dense_bounds"]]
    assert bounds.tolist() == [pytest.approx(3.2), pytest.approx(4.8), "range over calls"]
    assert line["launches"] == 9
    text = text_of(found, ".md")
    assert "9 launches of 1-3 calls" in text or "3-9 launches of 1-3 calls" in text
    assert "Timed in 1 of dense's 3 calls, with bounds of that one alone: lora." in text
