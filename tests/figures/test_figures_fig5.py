"""Fig. 5: a figure per device, table and distribution, with every variant, failure and verdict in its place."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd
import pytest
from made_up_lookups import looked_up, lookup_campaign, timed_lookup
from made_up_records import CPU, CUDA, campaign
from redrawn import redrawn_here

from bench.core.record import Record, write
from figures.artifacts import fig5
from figures.artifacts.fig5 import VARIANTS
from figures.claims.claims import read_claims
from figures.page.drawn import Drawn

render = fig5.ARTIFACT.render

PLACES = ("30522x768-uniform", "30522x768-zipf", "10000000x64-uniform", "10000000x64-zipf")


@pytest.fixture(scope="module")
def drawn() -> dict[str, Drawn]:
    figures = render(lookup_campaign(CPU) + lookup_campaign(CUDA, seed=9) + campaign(CPU), read_claims())
    return {next(iter(figure.files)).rpartition(".")[0]: figure for figure in figures}


def text_of(figure: Drawn, ending: str) -> str:
    return next(figure.files[name] for name in figure.files if name.endswith(ending)).decode()


def table_of(records: list[Record]) -> pd.DataFrame:
    """The table of the one page, by the optimizer's step, batch size and variant."""
    [page] = fig5.select(records)
    return fig5.table(page).set_index(["optimizer_step", "batch_size", "variant"])


def outcomes(records: list[Record]) -> dict[str, tuple[str, str]]:
    [figure] = render(records, read_claims())
    return {verdict.claim.id: (verdict.outcome, str(verdict)) for verdict in figure.verdicts}


@pytest.mark.slow
def test_the_same_records_give_the_same_bytes(tmp_path: Path) -> None:
    records = [one for one in lookup_campaign(CPU) if one.dataset == "zipf"]
    write(records, tmp_path / "records")
    written, printed = redrawn_here("fig5", tmp_path / "records", tmp_path / "out")
    stems = [f"fig5-made-up-cpu-2-threads-{place}" for place in PLACES if place.endswith("zipf")]
    assert set(written) == {f"{stem}.{ending}" for stem in stems for ending in ("png", "svg", "md", "csv")}
    assert "lookup-memory" in printed


def test_there_is_a_figure_for_each_device_table_and_distribution(drawn: dict[str, Drawn]) -> None:
    devices = ("made-up-cpu-2-threads", "made-up-gpu-9000")
    assert set(drawn) == {f"fig5-{device}-{place}" for device in devices for place in PLACES}


def test_every_variant_has_a_line_at_every_batch_size_without_and_with_the_optimizer(drawn: dict[str, Drawn]) -> None:
    for figure in drawn.values():
        tidy = pd.read_csv(io.StringIO(text_of(figure, ".csv")))
        assert [*tidy["variant"]] == list(VARIANTS) * 6
        assert [*tidy["batch_size"][:: len(VARIANTS)]] == [10_000, 20_000, 40_000] * 2
        assert [*figure.table["variant"]] == [*VARIANTS, *(f"{variant} + step" for variant in VARIANTS)]


def test_a_cell_without_memory_is_shown_with_its_reason_and_its_prediction(drawn: dict[str, Drawn]) -> None:
    figure = drawn["fig5-made-up-cpu-2-threads-10000000x64-zipf"]
    assert "uncompressed + step, batch 10000, 20000, 40000: made up: no room." in figure.notes
    assert figure.table.set_index("variant").loc["uncompressed + step", "step, ms, batch 10,000"] == "oom"
    tidy = pd.read_csv(io.StringIO(text_of(figure, ".csv"))).set_index(["optimizer_step", "batch_size", "variant"])
    cell = tidy.loc[(True, 10_000, "uncompressed")]
    assert (cell["time_status"], cell["cpu_peak_mib"]) == ("oom", 236.0)
    assert not tidy["older_code"].any()


GOLDEN = """\
| variant | step, ms, batch 10,000 | peak MiB, CPU, batch 10,000 |
|:--|--:|--:|
| optimized | 15.0 | 10.00 |
| plain † | 67.5 (4.50x) | 25.00 (2.50x) |
| uncompressed | 7.50 (0.500x ‡) | 12.50 (1.25x) |
"""


def test_a_small_table_as_it_is_written() -> None:
    means = {"optimized": [10.0, 20.0, 30.0], "plain": [45.0, 90.0, 135.0], "uncompressed": [5.0, 10.0, 15.0]}
    more = {
        "optimized": {"peak_memory_predicted_mib": 10.0},
        "plain": {"peak_memory_predicted_mib": 25.0, "code_id": "code-0", "recorded_at": "2000-01-01T00:00:00+00:00"},
        "uncompressed": {"peak_memory_predicted_mib": 12.5, "pairing": "elsewhere"},
    }
    [figure] = render([timed_lookup(name, values, **more[name]) for name, values in means.items()], read_claims())
    lines = [line for line in text_of(figure, ".md").splitlines() if line.startswith("|")]
    assert "\n".join(lines).startswith(GOLDEN)


def test_missing_cells_are_shown() -> None:
    [figure] = render([timed_lookup("plain", [10.0, 11.0], 123)], read_claims())
    assert "step, ms, batch 123" in figure.table
    assert set(table_of([timed_lookup("plain", [10.0, 11.0], 123)])["time_status"]) == {"ok", "not recorded"}
    assert {verdict.outcome for verdict in figure.verdicts} == {"not tested here"}


def test_a_variant_without_any_record_has_no_line() -> None:
    """One that lacks a batch size, or its time, keeps its lines."""
    plan = looked_up("unique", measure="predict", predicted_for="cuda", peak_memory_predicted_mib=1.0)
    failed = looked_up("uncompressed", 20_000, status="oom", message="made up")
    records = [timed_lookup("plain", [10.0, 11.0]), plan, failed]
    assert [*fig5.table(fig5.select(records)[0])["variant"]] == ["unique", "plain", "uncompressed"] * 6
    [figure] = render(records, read_claims())
    assert "Tables with sparse gradients, the stronger rivals, are not recorded here." in figure.notes
    assert figure.files[next(name for name in figure.files if name.endswith(".svg"))]  # which has no reference
    [figure] = render([timed_lookup("uncompressed, sparse", [1.0, 2.0])], read_claims())
    assert {*figure.table["variant"]} == {"uncompressed, sparse", "uncompressed, sparse + step"}
    assert not any("stronger rivals" in note for note in figure.notes)


def test_ratios_are_paired_and_to_the_optimized_variant_of_the_same_step_and_batch_size() -> None:
    means = {"optimized": [10.0, 20.0, 30.0], "plain": [45.0, 90.0, 135.0], "uncompressed": [5.0, 10.0, 15.0]}
    records = [timed_lookup(variant, values) for variant, values in means.items()]
    records += [timed_lookup("optimized", [1.0, 1.0, 1.0], 20_000), timed_lookup("optimized", [1.0, 1.0], step=True)]
    table = table_of(records)
    plain = table.loc[(False, 10_000, "plain")]
    assert plain[["time_over_optimized", "time_over_optimized_low", "time_pairing"]].tolist() == [4.5, 4.5, "paired"]
    assert table.loc[(False, 10_000, "uncompressed"), "time_over_optimized"] == 0.5
    assert pd.isna(table.loc[(False, 10_000, "optimized"), "time_over_optimized"])
    apart = [records[0], timed_lookup("plain", means["plain"], pairing="elsewhere")]
    assert table_of(apart).loc[(False, 10_000, "plain"), "time_pairing"] == "unpaired"
    [figure] = render(apart, read_claims())
    assert any(note.startswith("‡ not timed together") for note in figure.notes)


def test_tables_with_sparse_gradients_are_rows_of_their_own() -> None:
    tables = ("uncompressed", "uncompressed, sparse", "uncompressed, row-wise Adagrad")
    [lookups] = fig5.select([timed_lookup(table, [value, value]) for value, table in enumerate(tables, 1)])
    assert {variant for _, _, variant in lookups.timed} == set(tables)
    assert lookups.left_out == ()


def test_a_gpu_decides_and_a_cpu_s_time_does_not(drawn: dict[str, Drawn]) -> None:
    for device, time in (("made-up-cpu-2-threads", "not tested here"), ("made-up-gpu-9000", "reproduced")):
        verdicts = {v.claim.id: v for v in drawn[f"fig5-{device}-30522x768-zipf"].verdicts}
        assert {name: verdict.outcome for name, verdict in verdicts.items()} == {
            "lookup-time": time,
            "lookup-memory": "predicted" if "cpu" in device else "reproduced",
        }
        source = "for cuda, predicted" if "cpu" in device else "allocated on CUDA"
        assert source in str(verdicts["lookup-memory"])
        assert "at batch 10000" in str(verdicts["lookup-time"])


def test_predictions_for_a_cpu_alone_decide_nothing() -> None:
    sizes = {"optimized": 10.0, "plain": 25.0}
    records = [looked_up(variant, peak_memory_predicted_mib=size) for variant, size in sizes.items()]
    outcome, text = outcomes(records)["lookup-memory"]
    assert outcome == "not tested here"
    assert "2.50x at batch 10000 (memory, for cpu, predicted)" in text


@pytest.mark.parametrize(
    ("plain", "outcome"),
    [(2.6, "predicted"), (6.0, "predicted"), (6.1, "partly"), (1.2, "partly"), (0.9, "not reproduced")],
)
def test_the_verdict_on_memory_follows_the_ratio(plain: float, outcome: str) -> None:
    records = [
        looked_up(variant, batch, measure="predict", predicted_for="cuda", peak_memory_predicted_mib=size)
        for batch in (10_000, 20_000, 40_000)
        for variant, size in (("optimized", 1e6), ("plain", 1e6 * plain))
    ]
    assert outcomes(records)["lookup-memory"][0] == outcome


def test_two_of_three_batch_sizes_reproduce_a_part() -> None:
    records = [
        looked_up(variant, batch, measure="predict", predicted_for="cuda", peak_memory_predicted_mib=size)
        for batch in (10_000, 20_000)
        for variant, size in (("optimized", 1e6), ("plain", 2.5e6))
    ]
    outcome, text = outcomes(records)["lookup-memory"]
    assert outcome == "partly"
    assert "6 of 7 ratios reach 1.5x, 1 could not be formed" in text


@pytest.mark.parametrize("other", [{"precision": "bf16"}, {"compile": True}, {"cuda_graph": True}])
def test_settings_are_never_mixed(other: dict) -> None:
    main = [timed_lookup(variant, [10.0, 11.0]) for variant in ("optimized", "plain")]
    stray = timed_lookup("order", [1.0, 1.0], recorded_at="2009-01-01T00:00:00+00:00", **other)
    [lookups] = fig5.select([*main, stray])
    assert {variant for _, _, variant in lookups.timed} == {"optimized", "plain"}
    [sentence] = lookups.left_out
    assert sentence.startswith("1 timed record(s) are left out, of another setting: ")


def test_the_newest_record_is_drawn_and_older_code_is_marked() -> None:
    old = timed_lookup("plain", [9.0, 9.0], recorded_at="2000-01-01T00:00:00+00:00", code_id="code-0")
    new = timed_lookup("plain", [5.0, 5.0])
    other = timed_lookup("optimized", [2.0, 2.0], recorded_at="2000-01-01T00:00:00+00:00", code_id="code-0")
    [lookups] = fig5.select([new, old, other])
    assert lookups.timed[False, 10_000, "plain"] is new
    table = fig5.table(lookups)
    assert [*table.loc[table["older_code"], "variant"]] == ["optimized"]
    assert table.loc[table["variant"] == "plain", "step_time_ms"].dropna().tolist() == [5.0]


@pytest.mark.slow
def test_other_devices_and_workloads_are_never_looked_at(drawn: dict[str, Drawn]) -> None:
    alone = render(lookup_campaign(CUDA, seed=9), read_claims())
    for figure in alone:
        stem = next(iter(figure.files)).rpartition(".")[0]
        assert figure.files == drawn[stem].files
    assert render(campaign(CPU), read_claims()) == []
