"""Fig. 7: a figure per device, with every arm and toggle, its ratios paired or marked, and the verdict."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import pandas as pd
import pytest
from made_up_records import CPU, CUDA, campaign
from made_up_toggles import toggled, toggled_campaign
from matplotlib.backends.backend_agg import FigureCanvasAgg
from redrawn import redrawn_here

from bench.core.record import Record, write
from figures.artifacts import fig7
from figures.artifacts.fig7 import Fig7Page, rows_of
from figures.claims.claims import LedgerError, Verdict, read_claims
from figures.page import bars
from figures.page.drawn import Drawn
from figures.page.style import TIME_FILLS, house_style
from figures.records.select import Toggles
from figures.records.sizes import FULL_SIZE_PARAMETERS

render = fig7.ARTIFACT.render


def steps_of(records: list[Record]) -> Fig7Page:
    [page] = fig7.select(records)
    return page


PLAIN, GRAPH, COMPILED = Toggles(), Toggles(cuda_graph=True), Toggles(compile=True)
BF16, BF16_GRAPH, ALL_ON = Toggles("bf16"), Toggles("bf16", cuda_graph=True), Toggles("bf16", True, True)
LARGE = (32, 64, 128)


@pytest.fixture(scope="module")
def drawn() -> dict[str, Drawn]:
    figures = render(toggled_campaign(CPU) + toggled_campaign(CUDA, [COMPILED, BF16]), read_claims())
    return {figure.device: figure for figure in figures}


def text_of(figure: Drawn, ending: str) -> str:
    return next(figure.files[name] for name in figure.files if name.endswith(ending)).decode()


def tidy_of(figure: Drawn) -> pd.DataFrame:
    tidy = pd.read_csv(io.StringIO(text_of(figure, ".csv")))
    return tidy.set_index(["arm", "precision", "compile", "cuda_graph", "batch_size"])


def table_of(records: list[Record]) -> pd.DataFrame:
    [figure] = render(records, read_claims())
    return figure.table.set_index(["batch", "arm"])


def verdict_on(records: list[Record]) -> Verdict:
    [figure] = render(records, read_claims())
    [verdict] = figure.verdicts
    return verdict


@pytest.mark.slow
def test_the_same_records_give_the_same_bytes(tmp_path: Path) -> None:
    write(toggled_campaign(CPU) + toggled_campaign(CUDA), tmp_path / "records")
    written, printed = redrawn_here("fig7", tmp_path / "records", tmp_path / "out")
    stems = ("fig7-made-up-cpu-2-threads", "fig7-made-up-gpu-9000")
    assert set(written) == {f"{stem}.{ending}" for stem in stems for ending in ("png", "svg", "md", "csv")}
    assert "graph-speedup: reproduced" in printed


def test_every_arm_has_a_row_for_every_toggle_at_every_batch_size(drawn: dict[str, Drawn]) -> None:
    toggles = {CPU: ("", ", compile"), CUDA: ("", ", CUDA Graph", ", compile", ", bf16")}
    batches = {CPU: ("1", "8", "16"), CUDA: ("32", "64", "128")}
    for device, figure in drawn.items():
        arms = [f"{arm}{words}" for arm in ("comera", "dense") for words in toggles[device]]
        assert list(figure.table["batch"]) == [batch for batch in batches[device] for _ in arms]
        assert list(figure.table["arm"]) == arms * 3
        assert len(tidy_of(figure)) == len(figure.table)


def test_devices_are_never_mixed(drawn: dict[str, Drawn]) -> None:
    [alone] = render(toggled_campaign(CPU), read_claims())
    assert alone.files == drawn[CPU].files
    assert CUDA not in text_of(drawn[CPU], ".md")


def test_a_cpu_says_that_compile_takes_the_place_of_the_graph(drawn: dict[str, Drawn]) -> None:
    words = "A CPU has no CUDA Graph: torch.compile takes its place, at batch 1, 8 and 16"
    assert words in text_of(drawn[CPU], ".md")
    assert words not in text_of(drawn[CUDA], ".md")
    assert "on a CPU" in drawn[CPU].title
    for figure in drawn.values():
        text = text_of(figure, ".md")
        assert all(words in text for words in (figure.device, "392,702 examples padded to 128", "'synthetic'"))


def test_dense_over_comera_is_paired_within_equal_toggles_and_off_over_on_is_not() -> None:
    means = {("comera", PLAIN): [10.0, 20.0, 30.0], ("dense", PLAIN): [40.0, 80.0, 120.0]}
    means |= {("comera", GRAPH): [5.0, 10.0, 15.0], ("dense", GRAPH): [25.0, 50.0, 75.0]}
    records = [toggled(arm, toggles, values) for (arm, toggles), values in means.items()]
    table = table_of(records)
    assert table.loc[("32", "dense"), "time / comera"] == "4.00x"
    assert table.loc[("32", "dense, CUDA Graph"), "time / comera"] == "5.00x"
    assert table.loc[("32", "comera, CUDA Graph"), "time / comera"] == "1"
    gain = table.loc[("32", "comera, CUDA Graph"), "off / on"]
    assert gain.startswith("2.00x [")
    assert gain.endswith(" ‡")
    assert set(table.loc[(slice(None), ["comera", "dense"]), "off / on"]) == {"-"}
    [figure] = render(records, read_claims())
    graph = tidy_of(figure).loc[("dense", "fp32", False, True, 32)]
    assert (graph["time_pairing"], graph["off_over_on_pairing"]) == ("paired", "unpaired")
    assert any(note.startswith("‡ ratio unpaired") for note in figure.notes)


def test_a_ratio_of_toggles_timed_together_would_be_paired() -> None:
    values = {PLAIN: [10.0, 20.0, 30.0], GRAPH: [5.0, 10.0, 15.0]}
    records = [toggled("comera", toggles, means, pairing="one") for toggles, means in values.items()]
    assert table_of(records).loc[("32", "comera, CUDA Graph"), "off / on"] == "2.00x"
    [figure] = render(records, read_claims())
    assert not any("unpaired" in note for note in figure.notes)


def test_arms_that_did_not_fit_together_are_marked() -> None:
    records = [toggled(arm, PLAIN, [10.0, 20.0], pairing="") for arm in ("comera", "dense")]
    assert table_of(records).loc[("32", "dense"), "time / comera"].endswith("‡")


@pytest.mark.parametrize(
    ("toggles", "name", "plainer"),
    [
        (PLAIN, "comera", None),
        (GRAPH, "comera, CUDA Graph", PLAIN),
        (COMPILED, "comera, compile", PLAIN),
        (BF16, "comera, bf16", PLAIN),
        (BF16_GRAPH, "comera, bf16, CUDA Graph", BF16),
        (Toggles(compile=True, cuda_graph=True), "comera, compile, CUDA Graph", COMPILED),
        (ALL_ON, "comera, bf16, compile, CUDA Graph", Toggles("bf16", compile=True)),
    ],
)
def test_a_row_is_compared_with_the_one_that_lacks_its_last_toggle(
    toggles: Toggles, name: str, plainer: Toggles | None
) -> None:
    means = {toggles: [10.0, 10.0]} | ({plainer: [30.0, 30.0]} if plainer else {})
    records = [toggled("comera", one, values) for one, values in means.items()]
    rows = {row.name: row for row in rows_of(steps_of(records)) if row.batch == 32}
    assert toggles.without_last == plainer
    gain = rows[name].gain
    assert (gain.value if gain else None) == (3.0 if plainer else None)


def test_another_arm_or_batch_size_is_drawn_after_the_expected_ones() -> None:
    records = [*toggled_campaign(CUDA), toggled("lora", PLAIN, [9.0, 9.0], 256)]
    steps = steps_of(records)
    assert steps.variants[-1] == ("lora", PLAIN)
    assert len(steps.variants) == 5
    assert steps.batches == [32, 64, 128, 256]


def failed(record: Record, status: str, message: str, keep: bool = False) -> Record:
    """The record of a cell that failed, before any prediction unless ``keep``."""
    names = [name for name in vars(record) if name.startswith(("peak_", "predicted_")) and name.endswith("mib")]
    if keep:
        names = ["peak_memory_allocated_mib", "peak_memory_reserved_mib"]
    return dataclasses.replace(record, status=status, message=message, samples={}, **dict.fromkeys(names))


def test_failures_and_missing_cells_are_shown_with_their_reasons() -> None:
    records = []
    for one in toggled_campaign(CUDA):
        slot = (one.arm, one.cuda_graph, one.batch_size)
        if slot == ("dense", True, 128):
            one = failed(one, "oom", "made up: no room.", keep=True)
        if slot == ("dense", False, 128):
            one = failed(one, "oom", "made up: no room.", keep=True)
        if slot == ("comera", False, 64):
            one = failed(one, "unsupported", "made up: cannot be had.")
        if slot != ("dense", False, 32):
            records.append(one)
    table = table_of(records)
    assert table.loc[("128", "dense, CUDA Graph"), ["epoch, minutes", "peak MiB, cuda"]].tolist() == [
        "oom",
        "not modelled",
    ]
    assert table.loc[("128", "dense, CUDA Graph"), "remarks"] == "oom: made up: no room. (time)"
    assert table.loc[("64", "comera"), "remarks"] == "unsupported: made up: cannot be had. (time, memory for cuda)"
    assert table.loc[("32", "dense"), "epoch, minutes"] == "not recorded"
    assert table.loc[("64", "dense"), "time / comera"] == "-"
    [figure] = render(records, read_claims())
    assert "dense, CUDA Graph, batch 128: oom: made up: no room. (time)" in figure.below
    assert tidy_of(figure).loc[("dense", "fp32", False, False, 128), "cuda_peak_mib"] > 0


def test_memory_is_predicted_for_plain_steps_and_measured_for_all(drawn: dict[str, Drawn]) -> None:
    table = drawn[CUDA].table.set_index(["batch", "arm"])
    assert table.loc[("32", "dense"), "cuda / comera"].endswith("x")
    assert table.loc[("32", "dense, bf16"), "cuda / comera"].endswith("x")
    for words in ("CUDA Graph", "compile"):
        row = table.loc[("32", f"dense, {words}")]
        assert row["peak MiB, cuda"] == "not modelled"
        assert row["allocated / comera"].endswith("x")
    tidy = tidy_of(drawn[CUDA])
    graph = tidy.loc[("dense", "fp32", False, True, 32)]
    comera = tidy.loc[("comera", "fp32", False, True, 32)]
    assert graph["allocated_over_comera"] == pytest.approx(graph["allocated_mib"] / comera["allocated_mib"], 1e-4)
    assert "Predictions are of steps without CUDA Graph and compile." in text_of(drawn[CPU], ".md")
    assert "allocated MiB" not in drawn[CPU].table


def test_compile_time_is_in_the_table_where_anything_was_compiled(drawn: dict[str, Drawn]) -> None:
    table = drawn[CPU].table.set_index(["batch", "arm"])
    assert table.loc[("16", "dense, compile"), "compile, s"] == "42.0"
    assert table.loc[("16", "dense"), "compile, s"] == "-"
    assert "compile, s" not in table_of(toggled_campaign(CUDA)).columns


def pair(ratios: dict[int, float], toggles: Toggles = GRAPH, spread: float = 0.01, **columns) -> list[Record]:
    """Both arms, where dense takes ``ratios[batch]`` times CoMERA's time."""
    rounds = [10.0, 12.0, 11.0, 13.0, 14.0]
    records = []
    for batch, ratio in ratios.items():
        records.append(toggled("comera", toggles, rounds, batch, **columns))
        noisy = [ms * (ratio + spread * (i - 2)) for i, ms in enumerate(rounds)]
        records.append(toggled("dense", toggles, noisy, batch, **columns))
    return records


CASES = [
    (pair(dict.fromkeys(LARGE, 3.0)), "reproduced", "3 of 3 ratios reach 2.5x"),
    (pair(dict.fromkeys(LARGE, 3.0), parameters=FULL_SIZE_PARAMETERS), "reproduced", "CUDA Graph"),
    (pair(dict.fromkeys(LARGE, 5.0)), "reproduced", "larger than published in places"),
    (pair(dict.fromkeys(LARGE, 9.0)), "partly", "too good to be comparable"),
    (pair(dict.fromkeys(LARGE, 2.0)), "partly", "3 short of it but at least 1.25x"),
    (pair(dict.fromkeys(LARGE, 1.2)), "not reproduced", "3 surely below 2.5x"),
    (pair({32: 3.0, 64: 3.0, 128: 0.9}), "partly", "1 surely below 2.5x"),
    (pair({32: 3.0}), "partly", "2 could not be formed"),
    (pair(dict.fromkeys(LARGE, 0.8)), "not reproduced", "3 surely below 2.5x"),
    (pair(dict.fromkeys(LARGE, 2.0), spread=0.6), "not tested here", "leave it open: 0 of 3"),
    (pair({1: 3.0, 256: 3.0}), "not tested here", "no such pair"),
    (pair(dict.fromkeys(LARGE, 3.0), PLAIN), "not tested here", "FP32 with CUDA Graph; no such pair"),
    (pair(dict.fromkeys(LARGE, 3.0), BF16_GRAPH), "not tested here", "FP32 with CUDA Graph; no such pair"),
    (pair(dict.fromkeys(LARGE, 3.0), Toggles("fp32", True, True)), "not tested here", "no such pair"),
    (pair(dict.fromkeys(LARGE, 3.0), parameters=1234), "not tested here", "not the paper's full-size"),
    (pair(dict.fromkeys(LARGE, 3.0), PLAIN, device=CPU), "not tested here", "times of a CPU cannot decide it"),
]


@pytest.mark.parametrize(("records", "outcome", "why"), CASES)
def test_the_verdict(records: list[Record], outcome: str, why: str) -> None:
    verdict = verdict_on(records)
    assert verdict.outcome == outcome, verdict.why
    assert why in verdict.why
    assert "\n" not in str(verdict)
    assert "published 3x (recalled: unconfirmed transcription)" in str(verdict)


def test_one_block_decides_nothing() -> None:
    verdict = verdict_on([toggled(arm, GRAPH, [ms]) for arm, ms in (("comera", 1.0), ("dense", 3.0))])
    assert (verdict.outcome, verdict.why) == ("not tested here", "Fewer than two undisturbed blocks.")


def test_times_of_a_cpu_are_shown_though_they_decide_nothing(drawn: dict[str, Drawn]) -> None:
    [verdict] = drawn[CPU].verdicts
    assert {point.heading for point in verdict.ours} == {"time, on a CPU, plain", "time, on a CPU, compile"}
    assert [point.batch_size for point in verdict.ours] == [1, 8, 16] * 2


def test_a_ledger_without_the_claim_is_an_error() -> None:
    with pytest.raises(LedgerError, match="has no claim 'graph-speedup'"):
        render(toggled_campaign(CPU), {})


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"sequence_length": 64}, "1 timed record(s) are left out, of another setting: length 64, not 128."),
        ({"dataset": "mnli", "data_hash": "data-b"}, "1 timed record(s) are left out, of another setting: contents"),
        ({"config_json": json.dumps({"workload_settings": {"layers": 1}})}, "1 timed record(s) are left out, of"),
        (
            {"config_json": json.dumps({"workload_settings": {}, "method_settings": {"ranks": 8}})},
            "1 timed record(s) of comera are left out, of another setting: ranks 8, not None.",
        ),
    ],
)
def test_settings_are_never_mixed(other: dict, words: str) -> None:
    main = [toggled(arm, PLAIN, [10.0, 11.0], batch) for arm in ("comera", "dense") for batch in (32, 64)]
    stray = toggled("comera", GRAPH, [1.0, 1.0], recorded_at="2009-01-01T00:00:00+00:00", **other)
    steps = steps_of([*main, stray])
    assert {toggles for _, toggles, _ in steps.timed} == {PLAIN}
    [sentence] = steps.left_out
    assert sentence.startswith(words)


def test_the_newest_record_is_drawn_and_older_code_is_marked() -> None:
    old = toggled("dense", GRAPH, [9.0, 9.0], recorded_at="2000-01-01T00:00:00+00:00", code_id="code-0")
    new = toggled("dense", GRAPH, [5.0, 5.0])
    other = toggled("comera", GRAPH, [2.0, 2.0], recorded_at="2000-01-01T00:00:00+00:00", code_id="code-0")
    steps = steps_of([new, old, other])
    assert steps.timed["dense", GRAPH, 32] is new
    assert steps.left_out[0].startswith("1 further timed record(s)")
    marks = {row.name: row.time.marks for row in rows_of(steps) if row.batch == 32}
    assert (marks["dense, CUDA Graph"], marks["comera, CUDA Graph"]) == ("", "†")


def test_predictions_alone_are_no_figure() -> None:
    predictions = [record for record in campaign(CPU) if record.measure == "predict"]
    assert render(predictions, read_claims()) == []
    assert render([dataclasses.replace(one, experiment="fig7") for one in predictions], read_claims()) == []


@pytest.mark.parametrize("name", ["comera", "comera, bf16, compile, CUDA Graph"])
def test_names_of_rows_stay_on_the_page_and_off_the_bars(name: str) -> None:
    bar = bars.Bar((("steps", 3.0),), label="3.00")
    band = bars.Band("made up", (bars.BarPanel("batch 1", (bar, bar)),), TIME_FILLS, (("steps", "steps"),))
    with house_style():
        figure = bars.draw_bars("made up", (), (name, name), (band,), (), references=1)
        renderer = FigureCanvasAgg(figure).get_renderer()
        [axes] = figure.axes
        boxes = [label.get_window_extent(renderer) for label in axes.get_yticklabels()]
        assert [label.get_fontweight() for label in axes.get_yticklabels()] == ["bold", "normal"]
        assert all(box.x0 > 0 and box.x1 < axes.get_window_extent().x0 for box in boxes)
