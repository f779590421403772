"""Fig. 1: which records it shows, and that failed cells, devices and settings stay apart and visible."""

from __future__ import annotations

import dataclasses
import io
import json

import pandas as pd
import pytest
from made_up_records import ARMS, CPU, CUDA, LTE_REASON, campaign, record, timed
from rich.console import Console

from bench.core.record import Record
from bench.core.times import epoch_time_s
from figures.artifacts import fig1
from figures.artifacts.fig1 import Fig1Page, rows_of
from figures.claims.claims import read_claims
from figures.page.drawn import Drawn
from figures.records.select import PLAIN, Toggles, device_kind
from figures.records.time_values import time_unit
from figures.text import rounded, significant, text_table, tidy_table, to_markdown, to_terminal

render, pages = fig1.ARTIFACT.render, fig1.select


def page_of(records: list[Record], toggles: Toggles = PLAIN) -> Fig1Page:
    """The one page of these toggles."""
    [page] = [one for one in pages(records) if one.toggles == toggles]
    return page


def table_of(page: Fig1Page) -> pd.DataFrame:
    rows = rows_of(page)
    return text_table(fig1.columns(page, rows), rows).set_index(["batch", "arm"])


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


def test_failed_missing_and_unsupported_cells_are_shown_with_their_reasons(drawn: dict[str, Drawn]) -> None:
    markdown = text_of(drawn[CPU], ".md")
    for status in (*FAILURES, "unsupported", "not recorded"):
        assert f" {status} " in markdown
    for message in ("made up: no memory left.", "made up: no plan.", LTE_REASON):
        assert message in markdown
    console = Console(file=io.StringIO(), width=300)
    console.print(to_terminal(drawn[CPU].table, "made up", by="batch"))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(status in shown for status in (*FAILURES, "unsupported", "not recorded"))
    tidy = pd.read_csv(io.StringIO(text_of(drawn[CPU], ".csv")))
    assert set(FAILURES) | {"ok", "unsupported", "not recorded", "not in the grid"} == set(tidy["time_status"])
    assert tidy.loc[tidy["time_status"] != "ok", "epoch_time_s"].isna().all()


def test_every_arm_has_a_row_at_every_batch_size(drawn: dict[str, Drawn]) -> None:
    for device, batches in ((CPU, "1 8 16 32 64 128"), (CUDA, "1 32 64 128")):
        table = drawn[device].table
        assert list(zip(table["batch"], table["arm"], strict=True)) == [(b, a) for b in batches.split() for a in ARMS]


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


def test_the_text_names_device_library_data_and_epoch(drawn: dict[str, Drawn]) -> None:
    markdown = text_of(drawn[CPU], ".md")
    for words in (CPU, "torch 0.0.made-up", "'synthetic'", "392,702 examples padded to 128", "Recorded 2001-02-03"):
        assert words in markdown
    assert "disturbed block(s)" in markdown
    image = text_of(drawn[CPU], ".svg")
    assert "<dc:date>" not in image


def test_measured_peaks_appear_for_a_gpu_only(drawn: dict[str, Drawn]) -> None:
    assert {"allocated MiB", "reserved MiB"} <= set(drawn[CUDA].table.columns)
    assert "allocated MiB" not in drawn[CPU].table.columns


def test_ratios_in_the_table_are_the_paired_ones() -> None:
    records = [timed("comera", [10.0, 20.0, 30.0]), timed("dense", [40.0, 80.0, 120.0])]
    table = table_of(page_of(records))
    assert table.loc[("1", "dense"), "time / comera"] == "4.00x"
    assert table.loc[("1", "comera"), "time / comera"] == "1"
    apart = [dataclasses.replace(records[0], pairing="elsewhere"), records[1]]
    assert "‡" in table_of(page_of(apart)).loc[("1", "dense"), "epoch, hours"]
    rows = rows_of(page_of(apart))
    tidy = tidy_table(fig1.columns(page_of(apart), rows), rows)
    assert tidy.set_index("arm").loc["dense", "time_pairing"].iloc[0] == "unpaired"


@pytest.mark.parametrize("column", [392_702 * 0.03, None])
def test_an_epoch_time_is_that_of_the_samples_whatever_an_older_record_says(column: float | None) -> None:
    one = timed("comera", [10.0, 20.0, 30.0], epoch_time_s=column)
    tidy = pd.read_csv(io.StringIO(text_of(render([one], read_claims())[0], ".csv"))).set_index("arm")
    assert tidy.loc["comera", "epoch_time_s"].dropna().tolist() == pytest.approx([epoch_time_s(one)])


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
    figure = render(records, read_claims())[0]
    table = pd.read_csv(io.StringIO(text_of(figure, ".csv"))).dropna(subset=["launches"])
    tidy = table.set_index("arm").astype(object).fillna("")
    kinds = {count: "interval" if count >= 6 else "range" if count > 1 else "" for count in launches}
    assert dict(tidy["launches"]) == arms
    assert [*tidy["epoch_time_s_bounds"]] == [kinds[count] for count in launches]
    assert tidy.loc["dense", "time_over_comera_bounds"] == kinds[min(launches)]  # of the launches that both have
    [note] = [one for one in figure.notes if one.startswith("[low, high]")]
    found = set(kinds.values())
    assert {"interval": "95% interval" in note, "range": "the range over launches" in note} == {
        kind: kind in found for kind in ("interval", "range")
    }
    picture = text_of(figure, ".svg")
    assert ("range over launches" in picture, "95% interval" in picture) == ("range" in found, "interval" in found)


def test_categories_add_up_to_the_peak() -> None:
    parts = {"predicted_parameters_mib": 10.0, "predicted_activations_mib": 50.0}
    one = record(measure="predict", predicted_for="cuda", peak_memory_predicted_mib=80.0, **parts)
    cell = rows_of(page_of([one]))[0].memory["cuda"]
    assert cell.parts == (("parameters", 10.0), ("activations", 50.0), ("unsplit", 20.0))


def test_the_newest_record_of_a_cell_is_drawn_and_older_code_is_marked() -> None:
    old = timed("comera", [90.0, 90.0], code_id="code-0", recorded_at="2000-01-01T00:00:00+00:00", cell_id="old")
    new = timed("comera", [10.0, 10.0], recorded_at="2001-01-01T00:00:00+00:00", cell_id="new")
    dense = timed("dense", [40.0, 40.0], code_id="code-0", recorded_at="2000-01-01T00:00:00+00:00")
    chosen = page_of([new, old, dense])
    assert chosen.timed["comera", 1] is new
    assert chosen.older_code == {dense.cell_id}
    assert any(sentence.startswith("1 further timed record") for sentence in chosen.left_out)
    assert "†" in table_of(chosen).loc[("1", "dense"), "epoch, hours"]


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
    graph, bf16 = figures[f"{stem}-cuda-graph"], figures[f"{stem}-bf16"]
    assert GRAPH_REASON in text_of(graph, ".md")
    assert "CUDA Graph on" in graph.facts[0]
    assert any("Predicted memory is that of plain steps" in note for note in graph.notes)
    assert not any("Predicted memory is that" in note for note in (*bf16.notes, *figures[stem].notes))
    peaks = {name: set(figure.table["peak MiB, cuda"]) for name, figure in figures.items()}
    assert peaks[f"{stem}-cuda-graph"] == peaks[stem]
    assert peaks[f"{stem}-bf16"] == {"5.000", "not recorded"}
    assert peaks[f"{stem}-tf32"] == {"not recorded"}


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


@pytest.mark.parametrize(
    ("seconds", "unit"), [(0.0, "seconds"), (100.0, "seconds"), (200.0, "minutes"), (9e4, "hours")]
)
def test_the_unit_suits_the_longest_epoch(seconds: float, unit: str) -> None:
    one = timed("comera", [], epoch_time_s=seconds) if seconds else record()
    assert time_unit(rows_of(page_of([one])))[0] == unit


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.9996, "1.00"), (9.996, "10.0"), (1234.4, "1,234"), (0.000123, "0.000123"), (99.95, "100")],
)
def test_numbers_have_three_significant_digits(value: float, text: str) -> None:
    assert significant(value) == text


@pytest.mark.parametrize(
    ("value", "decimals", "text"),
    [
        (0.925, 2, "0.93"),
        (2.55, 1, "2.6"),
        (6.25, 1, "6.3"),
        (61.5, 0, "62"),
        (2.675, 2, "2.68"),
        (0.125, 2, "0.13"),
        (6.251, 1, "6.3"),
        (0.9249, 2, "0.92"),
        (2.5449, 1, "2.5"),
        (2.5449, 2, "2.54"),
        (-0.125, 2, "-0.13"),
        (1234.5, 0, "1,235"),
        (0.0, 1, "0.0"),
        (1e-9, 2, "0.00"),
        (9.995, 2, "10.00"),
        (1e6, 0, "1,000,000"),
    ],
)
def test_a_number_is_rounded_once_and_half_of_its_written_digits_away_from_zero(
    value: float, decimals: int, text: str
) -> None:
    assert rounded(value, decimals) == text


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.925, 2, "0.93"),
        (2.5449, 2, "2.5"),
        (2.545, 3, "2.55"),
        (0.9995, 3, "1.00"),
        (0.99949, 3, "0.999"),
        (61.5, 2, "62"),
        (99.95, 3, "100"),
        (0.00012345, 4, "0.0001235"),
        (-2.545, 3, "-2.55"),
        (862.5, 3, "863"),
    ],
)
def test_significant_digits_are_rounded_the_same_way(value: float, digits: int, text: str) -> None:
    assert significant(value, digits) == text


def test_markdown_cells_cannot_break_the_table() -> None:
    frame = pd.DataFrame([{"arm": "a|b", "remarks": "two\nlines <i>"}])
    lines = to_markdown(frame, frozenset({"arm"})).splitlines()
    assert lines == ["| arm | remarks |", "|:--|--:|", "| a\\|b | two lines &lt;i> |"]


def profile(arm: str, attention: float, products: float, **columns: object) -> Record:
    """A profile of an arm at batch 8 with so many ms of attention and of products."""
    kinds = [{"kind": "attention", "ms": attention}, {"kind": "gemm", "ms": products}, {"kind": "copy", "ms": 1.0}]
    busy = attention + products + 1.0
    samples = {"kinds": kinds, "busy_ms": busy, "step_ms": [busy]}
    own = {"device": CPU, "measure": "profile", "experiment": "profile", "samples": samples}
    return record(arm, 8, **(own | columns))


def shared_work(profiles: list[Record]) -> tuple[list[str], list[str]]:
    """The sentences on shared work of a page of times and these profiles, and its other notes."""
    [page] = fig1.ARTIFACT.render([*campaign(CPU), *profiles], read_claims())
    told = [note for note in page.notes if "same work" in note]
    return told, [note for note in page.notes if note not in told]


def test_work_that_all_arms_share_is_named_with_its_share() -> None:
    shared = [profile("comera", 30.0, 69.0), profile("dense", 33.0, 600.0)]
    for profiles, told in ((shared, True), (shared[:1], False), ([shared[0], profile("dense", 60.0, 600.0)], False)):
        sentences, _ = shared_work(profiles)
        assert [("attention 30%" in note, "gemm" in note) for note in sentences] == [(True, False)] * told


@pytest.mark.parametrize(
    ("arm", "toggles"),
    [("comera:lean", {}), ("dense", {"checkpoint": True}), ("lora", {"compile": True}), ("lora", {"cuda_graph": True})],
)
def test_an_arm_with_a_variant_or_toggles_hides_no_shared_work(arm: str, toggles: dict[str, bool]) -> None:
    shared = [profile("comera", 30.0, 69.0), profile("dense", 33.0, 600.0)]
    other = profile(arm, 90.0, 69.0, recorded_at="2009-01-01T00:00:00+00:00", **toggles)
    [sentence], _ = shared_work([*shared, other])
    assert sentence.startswith("The same work in comera, dense, as shares")


def test_profiles_of_older_code_than_the_newest_time_are_marked_where_they_are_named() -> None:
    old = {"code_id": "code-0", "recorded_at": "2000-01-01T00:00:00+00:00"}
    [sentence], others = shared_work([profile("comera", 30.0, 69.0), profile("dense", 33.0, 600.0, **old)])
    assert sentence.startswith("The same work in comera, dense †, as shares")
    assert [note for note in others if note.startswith("† from a record made by older code")]
    newer = {"code_id": "code-b", "recorded_at": "2009-01-01T00:00:00+00:00"}
    [sentence], others = shared_work([profile("comera", 30.0, 69.0, **newer), profile("dense", 33.0, 600.0)])
    assert "†" not in sentence
