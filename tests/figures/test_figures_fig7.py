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
from figures.artifacts.fig7 import Fig7Page
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
    """The table of the one page, by batch size, arm and what is on."""
    table = fig7.table(steps_of(records))
    toggles = [Toggles(*one) for one in table[["precision", "compile", "cuda_graph"]].itertuples(index=False)]
    return table.assign(on=[", ".join(one.names) for one in toggles]).set_index(["batch_size", "arm", "on"])


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


def test_every_arm_has_a_line_for_every_toggle_at_every_batch_size(drawn: dict[str, Drawn]) -> None:
    toggles = {CPU: ("", ", compile"), CUDA: ("", ", CUDA Graph", ", compile", ", bf16")}
    batches = {CPU: (1, 8, 16), CUDA: (32, 64, 128)}
    for device, figure in drawn.items():
        arms = [f"{arm}{words}" for arm in ("comera", "dense") for words in toggles[device]]
        assert [*figure.table["arm"]] == arms
        assert [*tidy_of(figure).index.get_level_values("batch_size")] == [
            size for size in batches[device] for _ in arms
        ]


def test_devices_are_never_mixed(drawn: dict[str, Drawn]) -> None:
    [alone] = render(toggled_campaign(CPU), read_claims())
    assert alone.files == drawn[CPU].files
    assert CUDA not in text_of(drawn[CPU], ".md")


def test_a_cpu_has_compile_in_place_of_the_graph(drawn: dict[str, Drawn]) -> None:
    for device, words in ((CPU, "torch.compile off and on"), (CUDA, "CUDA Graph off and on")):
        assert words in drawn[device].title
        assert any("392,702 examples padded to 128" in fact for fact in drawn[device].facts)
    assert len(drawn[CPU].facts) == len(drawn[CUDA].facts) + 1


GOLDEN = """\
| arm | epoch, minutes, batch 32 | off / on, batch 32 | allocated MiB, batch 32 |
|:--|--:|--:|--:|
| comera | 4.09 | - | 10.00 |
| comera, CUDA Graph | 2.05 | 2.00x ‡ | 20.00 |
| dense | 16.4 (4.00x) | - | 15.00 (1.50x) |
| dense, CUDA Graph † | 10.2 (5.00x) | 1.60x ‡ | 80.00 (4.00x) |
"""


def four_variants() -> list[Record]:
    """Dense over CoMERA is 4 of plain steps and 5 of captured ones; CoMERA gains 2 by CUDA Graph, dense 1.6."""
    means = {("comera", PLAIN): [10.0, 20.0, 30.0], ("dense", PLAIN): [40.0, 80.0, 120.0]}
    means |= {("comera", GRAPH): [5.0, 10.0, 15.0], ("dense", GRAPH): [25.0, 50.0, 75.0]}
    sizes = dict(zip(means, (10.0, 15.0, 20.0, 80.0), strict=True))
    old = {"code_id": "code-0", "recorded_at": "2000-01-01T00:00:00+00:00"}
    return [
        toggled(*key, values, peak_memory_allocated_mib=sizes[key], **(old if key == ("dense", GRAPH) else {}))
        for key, values in means.items()
    ]


def test_a_small_table_as_it_is_written() -> None:
    [figure] = fig7.ARTIFACT.for_experiment("own").render(
        [dataclasses.replace(one, experiment="own") for one in four_variants()], read_claims()
    )
    assert GOLDEN in text_of(figure, ".md")


def test_dense_over_comera_is_paired_within_equal_toggles_and_off_over_on_is_not() -> None:
    table = table_of(four_variants())
    assert table.loc[(32, "dense", ""), ["time_over_comera", "time_pairing"]].tolist() == [4.0, "paired"]
    graph = table.loc[(32, "dense", "CUDA Graph")]
    assert (graph["time_over_comera"], graph["time_pairing"]) == (5.0, "paired")
    assert (graph["time_off_over_on"], graph["off_over_on_pairing"]) == (1.6, "unpaired")
    assert graph["time_off_over_on_low"] < 1.6 < graph["time_off_over_on_high"]
    assert pd.isna(table.loc[(32, "comera", "CUDA Graph"), "time_over_comera"])
    assert pd.isna(table.loc[(32, "dense", ""), "time_off_over_on"])


def test_a_ratio_of_toggles_timed_together_would_be_paired() -> None:
    values = {PLAIN: [10.0, 20.0, 30.0], GRAPH: [5.0, 10.0, 15.0]}
    records = [toggled("comera", toggles, means, pairing="one") for toggles, means in values.items()]
    graph = table_of(records).loc[(32, "comera", "CUDA Graph")]
    assert graph[["time_off_over_on", "off_over_on_pairing"]].tolist() == [2.0, "paired"]
    [figure] = render(records, read_claims())
    assert "‡" not in text_of(figure, ".md")


def test_arms_that_did_not_fit_together_are_marked() -> None:
    records = [toggled(arm, PLAIN, [10.0, 20.0], pairing="") for arm in ("comera", "dense")]
    assert table_of(records).loc[(32, "dense", ""), "time_pairing"] == "unpaired"
    [figure] = render(records, read_claims())
    assert any(note.startswith("‡ not timed together") for note in figure.notes)


@pytest.mark.parametrize(
    ("toggles", "on", "plainer"),
    [
        (PLAIN, "", None),
        (GRAPH, "CUDA Graph", PLAIN),
        (COMPILED, "compile", PLAIN),
        (BF16, "bf16", PLAIN),
        (BF16_GRAPH, "bf16, CUDA Graph", BF16),
        (Toggles(compile=True, cuda_graph=True), "compile, CUDA Graph", COMPILED),
        (ALL_ON, "bf16, compile, CUDA Graph", Toggles("bf16", compile=True)),
    ],
)
def test_a_variant_is_compared_with_the_one_that_lacks_its_last_toggle(
    toggles: Toggles, on: str, plainer: Toggles | None
) -> None:
    means = {toggles: [10.0, 10.0]} | ({plainer: [30.0, 30.0]} if plainer else {})
    table = table_of([toggled("comera", one, values) for one, values in means.items()])
    assert toggles.without_last == plainer
    gain = table.loc[(32, "comera", on), "time_off_over_on"]
    assert gain == 3.0 if plainer else pd.isna(gain)


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
    failure = table.loc[(128, "dense", "CUDA Graph")]
    assert failure[["time_status", "time_message", "cuda_status"]].tolist() == [
        "oom",
        "made up: no room.",
        "not modelled",
    ]
    assert table.loc[(64, "comera", ""), ["time_status", "cuda_status"]].tolist() == ["unsupported"] * 2
    assert table.loc[(32, "dense", ""), "time_status"] == "not recorded"
    assert pd.isna(table.loc[(64, "dense", ""), "time_over_comera"])
    assert table.loc[(128, "dense", ""), "cuda_peak_mib"] > 0
    [figure] = render(records, read_claims())
    shown = figure.table.set_index("arm")
    assert shown.loc["dense, CUDA Graph", "epoch, minutes, batch 128"] == "oom"
    assert shown.loc["dense", "epoch, minutes, batch 32"] == "not recorded"
    assert {"dense, dense, CUDA Graph, batch 128: made up: no room.", "comera, batch 64: made up: cannot be had."} <= {
        *figure.notes
    }


def test_memory_is_predicted_for_plain_steps_and_measured_for_all(drawn: dict[str, Drawn]) -> None:
    tidy = tidy_of(drawn[CUDA]).sort_index()
    for precision in ("fp32", "bf16"):
        assert tidy.loc[("dense", precision, False, False, 32), "cuda_over_comera"] > 1
    for compiled, graph in ((False, True), (True, False)):
        line = tidy.loc[("dense", "fp32", compiled, graph, 32)]
        comera = tidy.loc[("comera", "fp32", compiled, graph, 32)]
        assert line["cuda_status"] == "not modelled"
        assert pd.isna(line["cuda_peak_mib"])
        assert line["allocated_over_comera"] == pytest.approx(line["allocated_mib"] / comera["allocated_mib"], 1e-4)
    assert "peak MiB, CPU, batch 16" in drawn[CPU].table
    assert "allocated MiB, batch 32" in drawn[CUDA].table


def test_compile_time_is_in_the_csv_and_its_range_in_a_note(drawn: dict[str, Drawn]) -> None:
    tidy = tidy_of(drawn[CPU]).sort_index()
    assert tidy.loc[("dense", "fp32", True, False, 16), "compile_time_s"] == 42.0
    assert pd.isna(tidy.loc[("dense", "fp32", False, False, 16), "compile_time_s"])
    assert any("40-42 s" in note for note in drawn[CPU].notes)


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
    table = table_of([new, old, other])
    assert table.loc[(32, "dense", "CUDA Graph"), "epoch_time_s"] == pytest.approx(392_702 / 32 * 5 / 1e3, 1e-3)
    assert [*table.index[table["older_code"]]] == [(32, "comera", "CUDA Graph")]


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
