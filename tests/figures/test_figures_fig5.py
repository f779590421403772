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
from figures.artifacts.fig5 import VARIANTS, rows_of
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


def test_every_variant_has_a_row_at_every_batch_size_without_and_with_the_optimizer(drawn: dict[str, Drawn]) -> None:
    for figure in drawn.values():
        table = figure.table
        assert list(table["variant"]) == list(VARIANTS) * 6
        assert list(table["indices"][:: len(VARIANTS)]) == ["10,000", "20,000", "40,000"] * 2
        tidy = pd.read_csv(io.StringIO(text_of(figure, ".csv")))
        assert len(tidy) == 6 * len(VARIANTS)
        assert set(tidy["variant"]) == set(VARIANTS)


def test_a_cell_without_memory_is_shown_with_its_reason_and_its_prediction(drawn: dict[str, Drawn]) -> None:
    figure = drawn["fig5-made-up-cpu-2-threads-10000000x64-zipf"]
    assert "oom: made up: no room. (time)" in text_of(figure, ".md")
    tidy = pd.read_csv(io.StringIO(text_of(figure, ".csv"))).set_index(["optimizer_step", "batch_size", "variant"])
    cell = tidy.loc[(True, 10_000, "uncompressed")]
    assert (cell["time_status"], cell["cpu_peak_mib"]) == ("oom", 236.0)
    assert not tidy["older_code"].any()


def test_missing_cells_are_shown() -> None:
    [figure] = render([timed_lookup("plain", [10.0, 11.0], 123)], read_claims())
    assert set(figure.table["time, ms"]) >= {"not recorded"}
    assert "123" in set(figure.table["indices"])
    assert {verdict.outcome for verdict in figure.verdicts} == {"not tested here"}


def test_a_variant_without_any_record_has_no_row() -> None:
    """One that lacks a batch size, or its time, keeps its rows."""
    plan = looked_up("unique", measure="predict", predicted_for="cuda", peak_memory_predicted_mib=1.0)
    failed = looked_up("uncompressed", 20_000, status="oom", message="made up")
    [figure] = render([timed_lookup("plain", [10.0, 11.0]), plan, failed], read_claims())
    assert list(figure.table["variant"][:3]) == ["unique", "plain", "uncompressed"]
    assert len(figure.table) == 6 * 3
    assert not any("row-wise" in fact for fact in figure.facts)
    assert figure.files[next(name for name in figure.files if name.endswith(".svg"))]  # which has no reference
    [figure] = render([timed_lookup("uncompressed, sparse", [1.0, 2.0])], read_claims())
    assert set(figure.table["variant"]) == {"uncompressed, sparse"}
    assert any("row-wise" in fact for fact in figure.facts)


def test_ratios_are_paired_and_to_the_optimized_variant() -> None:
    means = {"optimized": [10.0, 20.0, 30.0], "plain": [45.0, 90.0, 135.0], "uncompressed": [5.0, 10.0, 15.0]}
    records = [timed_lookup(variant, values) for variant, values in means.items()]
    [figure] = render(records, read_claims())
    table = figure.table.set_index(["step", "indices", "variant"])
    assert table.loc[("forward and backward", "10,000", "plain"), "/ optimized"] == "4.50x"
    assert table.loc[("forward and backward", "10,000", "optimized"), "/ optimized"] == "1"
    assert any("with a dense gradient, time, forward and backward: 2.00x at 10,000" in note for note in figure.notes)
    assert "Tables with sparse gradients, the stronger rivals, are not recorded here." in figure.notes
    apart = [records[0], timed_lookup("plain", means["plain"], pairing="elsewhere")]
    [figure] = render(apart, read_claims())
    assert any(note.startswith("‡ ratio unpaired") for note in figure.notes)


def test_the_fastest_uncompressed_table_is_named_first() -> None:
    means = {"optimized": 12.0, "uncompressed": 8.0, "uncompressed, sparse": 4.0, "uncompressed, row-wise Adagrad": 3.0}
    records = [
        timed_lookup(variant, [value, value, value], step=step)
        for variant, value in means.items()
        for step in (False, True)
        if step or "row-wise" not in variant
    ]
    [figure] = render(records, read_claims())
    over = [note for note in figure.notes if note.startswith("Optimized look-up over")]
    fastest = "Optimized look-up over the fastest uncompressed table, time"
    assert over[0].startswith(f"{fastest}, forward and backward: 3.00x")
    assert over[0].endswith("at 10,000 indices (uncompressed, sparse).")
    assert over[1].startswith(f"{fastest}, with the optimizer's step: 4.00x")
    assert over[1].endswith("at 10,000 indices (uncompressed, row-wise Adagrad).")
    plain = [note for note in over[2:] if "over the uncompressed table with a dense gradient, time" in note]
    assert [note.partition(": ")[2][:5] for note in plain] == ["1.50x", "1.50x"]


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
    marks = {row.variant: row.time.marks for row in rows_of(lookups) if (row.step, row.batch) == (False, 10_000)}
    assert (marks["plain"], marks["optimized"]) == ("", "†")


@pytest.mark.slow
def test_other_devices_and_workloads_are_never_looked_at(drawn: dict[str, Drawn]) -> None:
    alone = render(lookup_campaign(CUDA, seed=9), read_claims())
    for figure in alone:
        stem = next(iter(figure.files)).rpartition(".")[0]
        assert figure.files == drawn[stem].files
    assert render(campaign(CPU), read_claims()) == []
