"""Fig. 1: which records it shows, and that failed cells, devices and settings stay apart and visible."""

from __future__ import annotations

import dataclasses
import io
import json

import pandas as pd
import pytest
from made_up_records import ARMS, CPU, CUDA, LTE_REASON, campaign, record, timed

from bench.core.record import Record
from bench.core.times import epoch_time_s
from figures.artifacts import fig1
from figures.artifacts.fig1 import Fig1Page
from figures.claims.claims import Verdict, read_claims
from figures.columns import unit_of
from figures.page import bars
from figures.page.drawn import Drawn
from figures.page.footnotes import Footnotes
from figures.records.select import PLAIN, Toggles, device_kind
from figures.text import significant

render, pages = fig1.ARTIFACT.render, fig1.select


def page_of(records: list[Record], toggles: Toggles = PLAIN) -> Fig1Page:
    """The one page of these toggles."""
    [page] = [one for one in pages(records) if one.toggles == toggles]
    return page


def table_of(records: list[Record]) -> pd.DataFrame:
    return fig1.table(page_of(records)).set_index(["batch_size", "arm"])


GRAPH_REASON = "made up: it cannot be captured."
FAILURES = {
    "oom": "made up: no memory left.",
    "timeout": "made up: 600 s passed.",
    "diverged": "made up: the loss is NaN.",
    "error": "made up: a | pipe <b>and\nanother line",
}


def with_failures(records: list[Record]) -> list[Record]:
    """One failed timed cell of each kind at batch 1, one prediction failed, dense at batch 16 never made."""
    wanted = dict(zip(("low_rank@rank", "low_rank@rank:linear", "lora", "dense"), FAILURES.items(), strict=True))
    changed = []
    for one in records:
        if one.measure == "run" and one.batch_size == 1 and one.arm in wanted:
            status, message = wanted[one.arm]
            nothing = {"samples": {}, "peak_memory_predicted_mib": None}
            one = dataclasses.replace(one, status=status, message=message, **nothing)
        if one.measure == "predict" and (one.arm, one.batch_size, one.predicted_for) == ("galore", 64, "cuda"):
            one = dataclasses.replace(one, status="error", message="made up: no plan.", peak_memory_predicted_mib=None)
        if not (one.measure == "run" and (one.arm, one.batch_size) == ("dense", 16)):
            changed.append(one)
    return changed


@pytest.fixture(scope="module")
def drawn() -> dict[str, Drawn]:
    records = with_failures(campaign(CPU)) + campaign(CUDA, seed=8)
    return {figure.device: figure for figure in render(records, read_claims())}


def text_of(figure: Drawn, ending: str) -> str:
    return next(figure.files[name] for name in figure.files if name.endswith(ending)).decode()


def tidy_of(figure: Drawn) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(text_of(figure, ".csv")))


GOLDEN = """\
# Time per epoch and peak memory, six-encoder transformer

Device: Made-up CPU, 2 threads. torch 0.0.made-up, fp32, length 128, CUDA Graph off, compile off. Recorded 2001-02-02 \
to 2001-02-03.
Timed on synthetic: 2 undisturbed blocks in 1 launch. An epoch is the paper's whatever the data: 392,702 examples \
padded to 128 tokens.

![Time per epoch and peak memory, six-encoder transformer](fig1-made-up-cpu-2-threads-own.png)

| arm | epoch, hours, batch 8 | peak MiB, CPU, batch 8 |
|:--|--:|--:|
| comera | 1.02 | 100.0 |
| lora | 1.91 (1.87x ‡) | not recorded |
| lte | unsupported | unsupported |
| dense † | 4.09 (4.00x) | 250.0 (2.50x) |

* Bars start at zero; every panel has its own scale. Labels: value, and its ratio to CoMERA's (x).
* In parentheses: the ratio to CoMERA's. Memory is predicted for a CPU.
* [low, high]: range over blocks.
* lte, batch 8: batch_size is no multiple of LTE's 16 heads; allowed: 16, 32, 48 and so on.
* ‡ not timed together with CoMERA, so the ratio is less certain.
* † measured with older code than the newest result shown.
"""


def test_a_small_page_as_it_is_written() -> None:
    """Of another experiment: what it has, and no cells that the paper's page would expect."""
    sized = {"experiment": "own", "predicted_for": "cpu"}
    old = {"code_id": "code-0", "recorded_at": "2001-02-02T00:00:00+00:00"}
    records = [
        timed("comera", [70.0, 80.0], 8, peak_memory_predicted_mib=100.0, **sized),
        timed("dense", [280.0, 320.0], 8, peak_memory_predicted_mib=250.0, **sized, **old),
        timed("lora", [130.0, 150.0], 8, pairing="elsewhere", experiment="own", predicted_for=""),
        record("lte", 8, status="unsupported", message=LTE_REASON, experiment="own", predicted_for=""),
    ]
    [figure] = fig1.ARTIFACT.for_experiment("own").render(records, read_claims())
    assert text_of(figure, ".md").partition("\n## Claims")[0] == GOLDEN


def test_failed_missing_and_unsupported_cells_are_shown_with_their_reasons(drawn: dict[str, Drawn]) -> None:
    figure = drawn[CPU]
    shown = figure.table.set_index("arm")
    cells = {"low_rank@rank": "oom", "low_rank@rank:linear": "timeout", "lora": "diverged", "dense": "error"}
    assert dict(shown.loc[list(cells), "epoch, hours, batch 1"]) == cells
    assert shown.loc["dense", "epoch, hours, batch 16"] == "not recorded"
    assert shown.loc["lte", "epoch, hours, batch 8"] == "unsupported"
    notes = {note.partition(": ")[0]: note.partition(": ")[2] for note in figure.notes}
    assert notes["low_rank@rank, batch 1"] == FAILURES["oom"]
    assert notes["galore, batch 64"] == "made up: no plan."
    assert notes["lte, batch 1, 8"] == LTE_REASON
    assert all(reason.partition("|")[0] in text_of(figure, ".md") for reason in FAILURES.values())
    assert "made up: a \\| pipe &lt;b>" not in figure.to_text()
    tidy = tidy_of(figure)
    assert set(FAILURES) | {"ok", "unsupported", "not recorded", "not in the grid"} == set(tidy["time_status"])
    assert tidy.loc[tidy["time_status"] != "ok", "epoch_time_s"].isna().all()


def test_every_arm_has_a_line_at_every_batch_size(drawn: dict[str, Drawn]) -> None:
    for device, batches in ((CPU, (1, 8, 16, 32, 64, 128)), (CUDA, (1, 32, 64, 128))):
        tidy = tidy_of(drawn[device])
        assert list(zip(tidy["batch_size"], tidy["arm"], strict=True)) == [(b, a) for b in batches for a in ARMS]
        assert [*drawn[device].table["arm"]] == [*ARMS]
        for arm, count in (("lora", 1), ("dense", 0)):  # one of LoRA's blocks is made up as disturbed
            assert set(tidy.loc[tidy["arm"] == arm, "disturbed_blocks"].dropna()) == {count}


@pytest.mark.slow
def test_devices_are_never_mixed(drawn: dict[str, Drawn]) -> None:
    alone = {figure.device: figure for figure in render(campaign(CUDA, seed=8), read_claims())}
    assert list(alone) == [CUDA]
    assert alone[CUDA].files == drawn[CUDA].files
    for device, other in ((CPU, CUDA), (CUDA, CPU)):
        for name, content in drawn[device].files.items():
            assert "cpu" in name or device == CUDA
            assert other.encode() not in content
    assert not set(drawn[CPU].files) & set(drawn[CUDA].files)


def test_a_page_has_the_records_of_its_device_alone(drawn: dict[str, Drawn]) -> None:
    for device, figure in drawn.items():
        assert {one.device for one in figure.records} == {device}
        assert set(tidy_of(figure)["device"]) == {device}


def test_measured_peaks_are_marked_on_a_gpu_only(drawn: dict[str, Drawn]) -> None:
    assert "allocated, measured" in text_of(drawn[CUDA], ".svg")
    assert "allocated, measured" not in text_of(drawn[CPU], ".svg")
    finished = tidy_of(drawn[CUDA]).query("time_status == 'ok'")
    assert finished["allocated_mib"].notna().all()
    assert tidy_of(drawn[CPU])["allocated_mib"].isna().all()


def test_times_over_comera_s_are_paired_by_block_where_both_were_timed_together() -> None:
    records = [timed("comera", [10.0, 20.0, 30.0]), timed("dense", [40.0, 80.0, 120.0])]
    dense = table_of(records).loc[(1, "dense")]
    assert (dense["time_over_comera"], dense["time_pairing"]) == (4.0, "paired")
    assert (dense["time_over_comera_low"], dense["time_over_comera_high"]) == (4.0, 4.0)
    assert pd.isna(table_of(records).loc[(1, "comera"), "time_over_comera"])
    apart = [dataclasses.replace(records[0], pairing="elsewhere"), records[1]]
    assert table_of(apart).loc[(1, "dense"), "time_pairing"] == "unpaired"
    [figure] = render(apart, read_claims())
    assert figure.table.set_index("arm").loc["dense", "epoch, hours, batch 1"].endswith("x ‡)")


@pytest.mark.parametrize("column", [392_702 * 0.03, None])
def test_an_epoch_time_is_that_of_the_samples_whatever_an_older_record_says(column: float | None) -> None:
    one = timed("comera", [10.0, 20.0, 30.0], epoch_time_s=column)
    assert table_of([one]).loc[(1, "comera"), "epoch_time_s"] == pytest.approx(epoch_time_s(one))
    assert epoch_time_s(one) == pytest.approx(392_702 * 0.02)


def in_launches(arm: str, means: list[float], batch: int = 1) -> Record:
    """A record of as many launches as there are means, with one block each."""
    one = timed(arm, means, batch)
    blocks = [{**block, "launch": launch, "block": 0} for launch, block in enumerate(one.samples["blocks"])]
    return dataclasses.replace(one, samples={**one.samples, "blocks": blocks})


@pytest.mark.parametrize("launches", [(3, 3), (8, 8), (3, 8), (1, 3)])
def test_bounds_are_called_a_range_or_an_interval_cell_by_cell(launches: tuple[int, int]) -> None:
    """In the CSV with the launches, in the note on brackets, and in the legend of the picture."""
    arms = dict(zip(("comera", "dense"), launches, strict=True))
    records = [in_launches(arm, [20.0 + i for i in range(count)]) for arm, count in arms.items()]
    [figure] = render(records, read_claims())
    table = tidy_of(figure).dropna(subset=["launches"])
    tidy = table.set_index("arm").astype(object).fillna("")
    kinds = {count: "interval" if count >= 6 else "range" if count > 1 else "" for count in launches}
    assert dict(tidy["launches"]) == arms
    assert [*tidy["epoch_time_s_bounds"]] == [kinds[count] for count in launches]
    assert tidy.loc["dense", "time_over_comera_bounds"] == kinds[min(launches)]  # of the launches that both have
    for arm, count in arms.items():
        if count > 1:
            low, value, high = tidy.loc[arm, ["epoch_time_s_low", "epoch_time_s", "epoch_time_s_high"]]
            assert low < value < high
    [note] = [one for one in figure.notes if one.startswith("[low, high]")]
    found = {"range": "range over launches", "interval": "95% interval"}
    for where in (note, text_of(figure, ".svg")):
        assert {kind for kind, words in found.items() if words in where} == set(kinds.values()) - {""}


def test_categories_and_the_rest_add_up_to_the_peak() -> None:
    parts = {"predicted_parameters_mib": 10.0, "predicted_activations_mib": 50.0}
    one = record(measure="predict", predicted_for="cuda", peak_memory_predicted_mib=80.0, **parts)
    line = table_of([one]).loc[(1, "comera")]
    assert (line["cuda_parameters_mib"], line["cuda_activations_mib"], line["cuda_peak_mib"]) == (10.0, 50.0, 80.0)
    bar = bars.memory(fig1.table(page_of([one])).to_dict("records")[0], "cuda", "comera", Footnotes())
    assert bar.parts == (("parameters", 10.0), ("activations", 50.0), ("unsplit", 20.0))


@pytest.mark.parametrize("target", ["cuda", "cpu"])
def test_a_peak_is_that_of_its_target_and_over_comera_s(target: str) -> None:
    plan = {"measure": "predict", "predicted_for": target}
    table = table_of(
        [record(arm, peak_memory_predicted_mib=size, **plan) for arm, size in (("comera", 10.0), ("dense", 25.0))]
    )
    assert table.loc[(1, "dense"), [f"{target}_peak_mib", f"{target}_over_comera"]].tolist() == [25.0, 2.5]
    other = {"cuda": "cpu", "cpu": "cuda"}[target]
    assert table.loc[(1, "dense"), f"{other}_status"] == "not recorded"


def test_the_newest_record_of_a_cell_is_drawn_and_older_code_is_marked() -> None:
    old = timed("comera", [90.0, 90.0], code_id="code-0", recorded_at="2000-01-01T00:00:00+00:00", cell_id="old")
    new = timed("comera", [10.0, 10.0], recorded_at="2001-01-01T00:00:00+00:00", cell_id="new")
    dense = timed("dense", [40.0, 40.0], code_id="code-0", recorded_at="2000-01-01T00:00:00+00:00")
    chosen = page_of([new, old, dense])
    assert chosen.timed["comera", 1] is new
    assert chosen.older_code == {dense.cell_id}
    assert any(sentence.startswith("1 further timed record") for sentence in chosen.left_out)
    table = fig1.table(chosen)
    assert [*table.loc[table["older_code"], "arm"]] == ["dense"]
    assert {"dense †", "comera"} <= set(fig1.shown(chosen, table)["arm"])


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"dataset": "mnli", "data_hash": "data-b"}, "data mnli, not synthetic"),
        ({"sequence_length": 64}, "length 64, not 128"),
        ({"config_json": json.dumps({"workload_settings": {"blocks": 1}})}, "model blocks 1, not None"),
    ],
)
def test_settings_are_never_mixed(other: dict, words: str) -> None:
    main = [timed(arm, [10.0, 11.0]) for arm in ("comera", "dense")]
    stray = timed("lora", [1.0, 1.0], recorded_at="2009-01-01T00:00:00+00:00", **other)
    chosen = page_of([*main, stray])
    assert set(chosen.timed) == {("comera", 1), ("dense", 1)}
    [sentence] = chosen.left_out
    assert sentence.startswith("1 timed record(s) are left out, of another setting: ")
    assert words in sentence


def with_settings(**settings: float) -> str:
    return json.dumps({"device": "cpu", "workload_settings": {}, "method_settings": settings})


@pytest.mark.parametrize("stray", [{"ranks": 16}, {"ranks": 30, "ratio": 4.0}])
def test_an_arm_has_one_setting_of_its_own(stray: dict[str, float]) -> None:
    later = {"recorded_at": "2009-01-01T00:00:00+00:00", "config_json": with_settings(**stray)}
    plan = {"measure": "predict", "predicted_for": "cuda", "peak_memory_predicted_mib": 5.0}
    main = [timed("comera", [10.0, 11.0], batch, config_json=with_settings(ranks=30)) for batch in (1, 8)]
    kept = record(batch=32, config_json=with_settings(ranks=30), **plan)
    others = [timed("comera", [1.0, 1.0], 8, **later), *(record(batch=b, **plan, **later) for b in (32, 64))]
    dense = timed("dense", [40.0, 44.0], config_json=with_settings(lr=1))
    chosen = page_of([*main, kept, *others, dense])
    assert {id(one) for one in chosen.shown} == {id(one) for one in [*main, kept, dense]}
    times, predictions = chosen.left_out
    assert times.startswith("1 timed record(s) of comera are left out, of another setting: ra")
    assert predictions.startswith("2 prediction(s) of comera are left out, of another setting: ra")
    assert chosen.predicted["cuda", ("comera", 32)] is kept


def test_the_newest_of_settings_with_as_many_cells_is_shown() -> None:
    old, new = (
        timed("comera", [10.0, 11.0], config_json=with_settings(ranks=ranks), recorded_at=f"200{day}-01-01T00:00:00")
        for day, ranks in enumerate((30, 16))
    )
    assert page_of([new, old]).shown == [new]


@pytest.mark.slow
def test_precisions_and_toggles_have_pages_of_their_own() -> None:
    plain = campaign(CUDA)
    others = {
        "-bf16": {"precision": "bf16"},
        "-cuda-graph": {"cuda_graph": True},
        "-compile-cuda-graph": {"compile": True, "cuda_graph": True},
        "-tf32": {"precision": "tf32"},
    }
    further = [
        timed(arm, [1.0, 2.0], 32, device=CUDA, **toggles) for toggles in others.values() for arm in ("comera", "dense")
    ]
    refused = record("galore", 32, device=CUDA, cuda_graph=True, status="unsupported", message=GRAPH_REASON)
    half = record("comera", 32, measure="predict", device=CUDA, precision="bf16", peak_memory_predicted_mib=5.0)
    drawn = render([*plain, *further, refused, half], read_claims())
    figures = {next(iter(figure.files)).removesuffix(".png"): figure for figure in drawn}
    stem = "fig1-made-up-gpu-9000"
    assert list(figures) == [
        stem,
        *(stem + suffix for suffix in ("-cuda-graph", "-compile-cuda-graph", "-tf32", "-bf16")),
    ]
    assert figures[stem].files == render(plain, read_claims())[0].files
    graph = figures[f"{stem}-cuda-graph"]
    assert any(GRAPH_REASON.rstrip(".") in note for note in graph.notes)
    assert "CUDA Graph on" in graph.facts[0]
    keeps_more = {name for name, one in figures.items() if any("keep more" in note for note in one.notes)}
    assert keeps_more == {stem + "-cuda-graph", stem + "-compile-cuda-graph"}
    peaks = {name: tidy_of(figure)["cuda_peak_mib"].dropna() for name, figure in figures.items()}
    assert [*peaks[f"{stem}-cuda-graph"]] == [*peaks[stem]]
    assert [*peaks[f"{stem}-bf16"]] == [5.0]
    assert peaks[f"{stem}-tf32"].empty


def test_toggles_have_pages_of_their_own() -> None:
    records = [timed(arm, [2.0, 2.0], 32) for arm in ("comera", "dense")]
    records += [timed(arm, [1.0, 1.0], 32, cuda_graph=True, cell_id=f"graph-{arm}") for arm in ("comera", "dense")]
    plain, graph = pages(records)
    assert (plain.toggles, graph.toggles) == (Toggles(), Toggles(cuda_graph=True))
    for page, size in ((plain, 2.0), (graph, 1.0)):
        assert {one.samples["blocks"][0]["ms"][0] for one in page.shown} == {0.9 * size}
        assert {one.cuda_graph for one in page.shown} == {page.toggles.cuda_graph}


def test_a_page_needs_times_unless_it_is_the_plain_one() -> None:
    plan = {"measure": "predict", "predicted_for": "cuda", "peak_memory_predicted_mib": 5.0}
    half, whole = record(precision="bf16", **plan), record(**plan)
    graph = timed("comera", [1.0, 2.0], device=CPU, cuda_graph=True)
    assert pages([half]) == []
    assert [page.toggles for page in pages([graph, half])] == [Toggles(cuda_graph=True)]
    plain, captured = pages([graph, half, whole])
    assert (plain.toggles, plain.timed, captured.toggles) == (Toggles(), {}, Toggles(cuda_graph=True))
    assert plain.left_out == ("1 prediction(s) in a precision that nothing was timed in are left out.",)
    assert captured.left_out == ()
    assert ("cuda", ("comera", 1)) in captured.predicted


def test_a_driver_tells_a_gpu_of_which_there_are_predictions_alone() -> None:
    plan = record(measure="predict", predicted_for="cuda", peak_memory_predicted_mib=5.0)
    assert device_kind([plan]) == "cpu"
    assert device_kind([dataclasses.replace(plan, predicted_for="cpu", driver="1.2, CUDA 3.4")]) == "cuda"


def test_where_the_data_lie_does_not_separate_predictions_from_times() -> None:
    config = json.dumps({"device": "cpu", "workload_settings": {"data_folder": "somewhere"}})
    run = timed("comera", [1.0, 2.0], config_json=config)
    plan = record(measure="predict", predicted_for="cuda", peak_memory_predicted_mib=5.0)
    assert ("cuda", ("comera", 1)) in page_of([run, plan]).predicted


def test_the_prediction_inside_a_timed_record_stands_in() -> None:
    run = timed("comera", [1.0, 2.0], batch=8, peak_memory_predicted_mib=7.0)
    failed = record("comera", 8, measure="predict", status="error", message="made up")
    assert page_of([run]).predicted["cpu", ("comera", 8)] is run
    assert page_of([run, failed]).predicted["cpu", ("comera", 8)] is run
    assert 8 not in page_of([run]).memory_batches


def test_an_arm_beyond_the_seven_is_drawn_after_them() -> None:
    chosen = page_of([timed("comera", [1.0, 2.0]), timed("newcomer", [1.0, 2.0])])
    assert chosen.arms == [*ARMS, "newcomer"]


def test_any_single_record_can_be_drawn() -> None:
    lonely = [
        record(status="unsupported", message="made up"),
        record("dense", 4, measure="predict", predicted_for="cpu", peak_memory_predicted_mib=1.0),
        timed("galore", [1.0], batch=2, device=CUDA, peak_memory_allocated_mib=5.0, peak_memory_predicted_mib=None),
    ]
    for one in lonely:
        figure = render([one], read_claims())[0]
        assert len(figure.files) == 4
        assert {verdict.outcome for verdict in figure.verdicts} == {"not tested here"}
    [failed] = render(lonely[:1], read_claims())
    assert failed.table.set_index("arm").loc["comera", "epoch, seconds, batch 1"] == "unsupported"


@pytest.mark.parametrize(
    ("seconds", "unit"), [(0.0, "seconds"), (100.0, "seconds"), (200.0, "minutes"), (9e4, "hours")]
)
def test_the_unit_suits_the_longest_epoch(seconds: float, unit: str) -> None:
    records = [timed("comera", [], epoch_time_s=seconds) if seconds else record(), timed("dense", [], epoch_time_s=9.0)]
    page = page_of(records if seconds else records[:1])
    table = fig1.table(page)
    name, scale = unit_of(table, "epoch")
    assert (name, scale) == (unit, {"seconds": 1, "minutes": 1 / 60, "hours": 1 / 3600}[unit])
    if seconds:
        shown = fig1.shown(page, table).set_index("arm").loc["comera"]
        assert shown[f"epoch, {unit}, batch 1"] == significant(seconds * scale)


CLAIMED = {"time-epoch-speedup": (1, 32, 64, 128), "lte-time": (32, 64, 128), "galore-time-b1": (1,)}


@pytest.mark.parametrize(
    ("claim", "ratio", "outcome"),
    [
        ("time-epoch-speedup", 3.0, "reproduced"),
        ("time-epoch-speedup", 0.9, "not reproduced"),
        ("galore-time-b1", 1.6, "reproduced"),
        ("galore-time-b1", 1.3, "partly"),
        ("galore-time-b1", 0.9, "not reproduced"),
        ("lte-time", 3.1, "reproduced"),
        ("lte-time", 0.9, "not reproduced"),
        ("galore-memory-b1", 9.0, "reproduced"),
        ("galore-memory-b1", 1.1, "not reproduced"),
        ("lte-memory", 1.1, "reproduced"),
        ("lte-memory", 0.9, "not reproduced"),
        ("galore-all-batches", 1.05, "reproduced"),
        ("galore-all-batches", 0.9, "not reproduced"),
    ],
)
def test_a_claim_is_decided_by_captured_steps_of_a_gpu(claim: str, ratio: float, outcome: str) -> None:
    """Of the rival that it names; plain steps, and those of a CPU, decide nothing about time."""
    rival = {"time": "dense", "gal": "galore", "lte": "lte"}[claim[: 4 if claim.startswith("time") else 3]]

    def verdict(device: str, graph: bool) -> Verdict:
        records = []
        for batch in (1, 32, 64, 128):
            for arm, share in (("comera", 1.0), (rival, ratio)):
                peak = {f"peak_memory_{name}_mib": 1e5 * share for name in ("allocated", "reserved")}
                more = {"device": device, "cuda_graph": graph, **(peak if device == CUDA else {})}
                records.append(timed(arm, [share * ms for ms in (10.0, 11.0, 12.0)], batch, **more))
        [page] = render(records, read_claims())
        return next(one for one in page.verdicts if one.claim.id == claim)

    assert verdict(CUDA, True).outcome == outcome
    if "memory" not in claim:
        assert {verdict(CUDA, False).outcome, verdict(CPU, False).outcome} == {"not tested here"}
        assert {point.batch_size for point in verdict(CUDA, True).ours} >= set(CLAIMED.get(claim, ()))
