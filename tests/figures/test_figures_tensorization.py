"""The table of tensorization settings: counts that follow from modes and ranks, what is shown, what is left out."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made_up_matrices import BY_NAME, SOLVED, counted, measured, tensorization_campaign
from made_up_records import CPU, CUDA, campaign
from redrawn import drawn_once

from bench.core.record import Record, RecordError, write
from comera import TTLinear, TTMEmbedding
from figures.__main__ import main
from figures.artifacts.tables import tensorization as table_tensorization
from figures.artifacts.tables.tensorization import MATRICES, SETTINGS, Cores, Matrix, select
from figures.page.drawn import Drawn
from figures.records.cells import TimesAndMemory
from figures.text import REMARKS

render = table_tensorization.ARTIFACT.render
#: What is said of records that fill no line of the table.
NO_CELL = "that belong to no cell of this page"
OLD = {"recorded_at": "2000-01-01T00:00:00+00:00", "code_id": "code-0"}


def drawn(records: list[Record]) -> Drawn:
    [table] = render(records, {})
    return table


def selected(records: list[Record]) -> TimesAndMemory:
    [page] = select(records)
    return page


def cells(records: list[Record]) -> pd.DataFrame:
    """The text table by matrix and setting, the setting without its mark."""
    table = drawn(records).table
    return table.set_index([table["matrix"], table["setting"].str.partition(" ")[0]])


def tidy(table: Drawn) -> pd.DataFrame:
    content = next(table.files[name] for name in table.files if name.endswith(".csv"))
    return pd.read_csv(io.BytesIO(content)).set_index(["matrix", "setting"])


def layer(matrix: Matrix, cores: Cores) -> TTLinear | TTMEmbedding:
    """The library's layer in these modes and ranks."""
    kind = TTMEmbedding if cores.is_table else TTLinear
    return kind(matrix.rows, matrix.columns, cores.row_modes, cores.column_modes, cores.ranks, device="meta")


@pytest.mark.parametrize("matrix", MATRICES, ids=lambda matrix: matrix.name)
def test_counts_are_those_of_the_library_s_layers_and_the_published_ones(matrix: Matrix) -> None:
    assert matrix.published.parameters == matrix.published_parameters
    for cores in (matrix.published, SOLVED[matrix.name]):
        built = layer(matrix, cores)
        assert cores.parameters == built.shape.parameter_count
        assert counted(matrix, cores) == built.parameter_count()
        assert matrix.ratio(cores) == (matrix.size + matrix.bias) / built.parameter_count()


@pytest.mark.slow
def test_the_command_draws_the_same_bytes_from_the_same_records(tmp_path: Path) -> None:
    records = tensorization_campaign(CPU) + tensorization_campaign(CUDA, seed=9)
    write(records, tmp_path / "records")
    written, printed = drawn_once("table_tensorization", tmp_path / "records", tmp_path / "out")
    stems = ("table_tensorization-made-up-cpu-2-threads", "table_tensorization-made-up-gpu-9000")
    assert set(written) == {f"{stem}.{ending}" for stem in stems for ending in ("md", "csv")}
    assert written == {name: content for page in render(records[::-1], {}) for name, content in page.files.items()}
    assert "12·8·8 → 12·16·16" in printed
    assert "Claims" not in printed


def test_every_setting_of_every_matrix_has_a_line() -> None:
    for device in (CPU, CUDA):
        table = drawn(tensorization_campaign(device))
        assert table.verdicts == ()
        assert list(table.table["setting"]) == list(SETTINGS) * 4
        assert list(table.table["matrix"][::3]) == [matrix.name for matrix in MATRICES]
        assert ("allocated MiB" in table.table) == (device == CUDA)


def test_a_line_holds_modes_ranks_counts_and_work() -> None:
    table = cells(tensorization_campaign())
    columns = ["modes", "ranks", "parameters", "ratio", "GFLOP", "predicted peak, MiB"]
    assert {line: list(table.loc[line, columns]) for line in (("attention", "paper"), ("feed-forward 2", "dense"))} == {
        ("attention", "paper"): ["12·8·8 → 8·8·12", "12 30 30 30 12", "20,448", "27.7x", "118", "75.50"],
        ("feed-forward 2", "dense"): ["3072 → 768", "-", "2,359,296", "1.00x", "472", "75.50"],
    }
    assert list(table.loc[("word embedding", "solver"), columns[:4]]) == [
        "14·13·13·13 x 4·4·6·8",
        "35 36 35",
        "169,400",
        "138x",
    ]
    assert table.loc[("word embedding", "dense"), "modes"] == "30522 x 768"


def test_a_solver_that_repeats_the_paper_is_pointed_out() -> None:
    for name, repeats in (("attention", ["attention"]), ("word embedding", [])):
        page = selected([measured(name, setting, [9.0, 9.0]) for setting in SETTINGS])
        found = table_tensorization.about(page, table_tensorization.table(page))
        assert found["repeating"] == repeats
        assert not found["remarks"]


def test_the_tidy_table_holds_the_same_as_numbers() -> None:
    table = tidy(drawn(tensorization_campaign()))
    line = table.loc[("word embedding", "solver")]
    assert (line["row_modes"], line["column_modes"], line["ranks"]) == ("14 13 13 13", "4 4 6 8", "35 36 35")
    assert (line["parameters"], line["rank_entries"], line["bias"]) == (169_400, 106, 0)
    assert (line["recorded_parameters"], line["batch_size"], line["blocks"]) == (169_506, 4096, 5)
    assert line["wanted_ratio"] == pytest.approx(23_440_896 / 167_904, rel=1e-4)
    assert line["ratio"] == pytest.approx(23_440_896 / 169_506, rel=1e-4)
    assert (line["dense_pairing"], line["paper_pairing"]) == ("paired", "paired")
    assert table.loc[("attention", "paper"), "published_parameters"] == 20_448
    assert table["status"].eq("ok").all()
    assert not table["older_code"].any()


def test_ratios_of_times_are_paired_by_block() -> None:
    means = {"dense": [10.0, 20.0, 30.0], "paper": [5.0, 10.0, 15.0], "solver": [4.0, 8.0, 12.0]}
    records = [measured("attention", setting, values) for setting, values in means.items()]
    table = cells(records).loc["attention"]
    assert list(table["time / dense"]) == ["1", "0.500x", "0.400x"]
    assert list(table["time / paper"]) == ["-", "1", "0.800x"]
    assert table.loc["dense", "step, ms"].startswith("20.0 [")
    records[1] = measured("attention", "paper", means["paper"], pairing="elsewhere")
    apart = drawn(records)
    assert all(text.endswith(" ‡") for text in (apart.table.loc[1, "time / dense"], apart.table.loc[2, "time / paper"]))
    assert apart.table.loc[2, "time / dense"] == "0.400x"
    assert any(note.startswith("‡") for note in apart.notes)


@pytest.mark.parametrize(
    ("setting", "columns", "remark"),
    [
        (
            "paper",
            {"parameters": 21_331},
            "the record counts 21,331 parameters with bias; 21,330 follow from modes and",
        ),
        ("dense", {"parameters": 1}, "the record counts 1 parameters with bias; 590,592 follow from its size"),
        ("paper", {"cores": SOLVED["feed-forward 1"]}, "not the published modes and ranks"),
        ("solver", {"samples": {"blocks": []}, "step_time_median_ms": 7.0}, "modes and ranks are not in the record"),
        ("paper", {"status": "oom", "message": "made up: no room.", "samples": {}}, "oom: made up: no room."),
        ("solver", {"status": "unsupported", "message": "out of reach.", "samples": {}}, "unsupported: out of reach."),
        ("paper", {"samples": {}}, "no time"),
    ],
)
def test_what_is_wrong_with_a_record_is_said(setting: str, columns: dict[str, Any], remark: str) -> None:
    table = drawn([measured("attention", setting, [9.0, 9.0], **columns)])
    [said] = tidy(table)[REMARKS].dropna()
    assert said.startswith(remark)
    assert any(line.startswith(f"attention, {setting}: {remark}".rstrip(".")) for line in table.below)


def test_failures_and_missing_records_are_words_in_place_of_the_time() -> None:
    failed = measured("attention", "paper", [], status="timeout", message="made up.", samples={}, parameters=None)
    table = cells([failed, measured("attention", "dense", [9.0, 9.0])])
    assert list(table.loc["attention", "step, ms"]) == ["9.00", "timeout", "not recorded"]
    assert list(table.loc["word embedding", "step, ms"]) == ["not recorded"] * 3
    assert list(table.loc[("attention", "paper"), ["modes", "parameters", "time / dense"]]) == ["-", "-", "-"]


def test_without_an_undisturbed_block_the_mean_of_all_stands_alone() -> None:
    one = measured("attention", "dense", [9.0, 8.0], step_time_median_ms=7.0)
    for block in one.samples["blocks"]:
        block["disturbed"] = True
    table = drawn([one])
    assert table.table.loc[0, "step, ms"] == "8.50"
    assert tidy(table).loc[("attention", "dense"), REMARKS] == "2 disturbed block(s) left out"
    assert any(note.startswith("§ attention, dense, batch 4096") for note in table.notes)


def test_the_newest_record_is_shown_and_older_code_is_marked() -> None:
    records = [
        measured("attention", "paper", [9.0, 9.0], cell_id="other-blocks", **OLD),
        measured("attention", "paper", [5.0, 5.0]),
        measured("attention", "dense", [7.0, 7.0], **OLD),
    ]
    table = drawn(records)
    assert list(table.table["setting"][:3]) == ["dense †", "paper", "solver"]
    assert table.table.loc[1, "step, ms"] == "5.00"
    assert any(note.startswith("1 further timed record(s)") for note in table.notes)
    assert list(tidy(table)["older_code"][:3]) == [True, False, False]


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"batch": 8}, "batch size 8, not 4096"),
        ({"precision": "bf16"}, "precision bf16, not fp32"),
        ({"compile": True}, "compile True, not False"),
        ({"cuda_graph": True}, "cuda_graph True, not False"),
        ({"workload_settings": {"optimizer_step": True}}, "optimizer_step True, not False"),
        ({"dataset": "zipf"}, "of word embedding are left out, of another setting: data zipf, not uniform"),
        ({"settings": {"table_ranks": 16}}, NO_CELL),
        ({"settings": {"table_order": 3}}, NO_CELL),
        ({"settings": {"lookup": "plain"}}, NO_CELL),
        ({"variant": "released"}, NO_CELL),
        ({"method": "lora"}, NO_CELL),
        ({"workload_settings": {"rows": 1000}}, NO_CELL),
        ({"workload": "encoder"}, NO_CELL),
        ({"ratio": 50.0}, NO_CELL),
    ],
    ids=str,
)
def test_other_settings_are_left_out_and_counted(other: dict[str, Any], why: str) -> None:
    main = [measured("word embedding", setting, [9.0, 9.0]) for setting in SETTINGS]
    stray = measured("word embedding", "paper", [1.0, 1.0], recorded_at="2009-01-01T00:00:00+00:00", **other)
    page = selected([*main, stray])
    assert list(page.timed.values()) == page.shown == main
    [note] = page.left_out
    assert note.startswith("1 ")
    assert why in note


def test_the_newest_record_alone_is_shown_also_where_it_failed() -> None:
    main = [measured("attention", setting, [9.0], **OLD) for setting in SETTINGS]
    failed = measured("attention", "paper", [], status="oom", samples={}, peak_memory_predicted_mib=None)
    assert failed in selected([*main, failed]).shown
    assert main[1] not in selected([*main, failed]).shown


def test_predictions_are_no_part_of_the_table() -> None:
    table = drawn([measured("attention", "dense", [9.0]), measured("attention", "paper", [], measure="predict")])
    assert list(table.table["step, ms"][:3]) == ["9.00", "not recorded", "not recorded"]


def test_the_solver_s_line_takes_the_published_ratio_alone() -> None:
    ratio = BY_NAME["attention"].ratio(BY_NAME["attention"].published)
    for asked, shown in ((ratio, True), (27.688, True), (27.7, False), (40.0, False)):
        assert bool(selected([measured("attention", "solver", [9.0], ratio=asked)]).timed) == shown


def test_records_of_nothing_in_the_table_say_so() -> None:
    table = drawn([dataclasses.replace(one, experiment="tensorization") for one in campaign(CPU)])
    assert set(table.table["step, ms"]) == {"not recorded"}
    assert table.facts[-1].endswith("None of the settings is recorded.")
    assert NO_CELL in table.notes[-1]


def test_other_devices_are_never_looked_at() -> None:
    alone, both = (
        render(records, {})
        for records in (tensorization_campaign(CUDA), tensorization_campaign(CUDA) + tensorization_campaign(CPU))
    )
    assert [table.device for table in both] == [CPU, CUDA]
    assert both[1].files == alone[0].files


def test_the_terminal_gets_parts_that_fit_a_hundred_columns() -> None:
    table = drawn(tensorization_campaign())
    named = [column for part in table.narrow for column in part.columns[2:]]
    assert ["matrix", "setting", *named] == list(table.table.columns)
    tables = [line for line in table.to_text().splitlines() if any(name in line for name in BY_NAME) and "  " in line]
    assert len(tables) == 3 * 12
    assert max(map(len, (line.rstrip() for line in tables))) <= 100


@pytest.mark.parametrize(
    "layers",
    [
        "none",
        [],
        [{"layers": 1, "in_modes": [12, 8, 8], "out_modes": [8, 8, 12]}],
        [{"layers": 1, "in_modes": [12, 8, 8], "out_modes": [8, 8, 12], "ranks": [12, 30]}],
        [{"layers": 1, "in_modes": [12, 8.5, 8], "out_modes": [8, 8, 12], "ranks": [12, 30, 30, 30, 12]}],
        [{"layers": 1, "row_modes": [12, 8], "column_modes": [8, 8], "ranks": [12]}],
        [{"in_modes": [2], "out_modes": [2], "ranks": [1]}, {"in_modes": [2], "out_modes": [3], "ranks": [1]}],
    ],
)
def test_misshapen_modes_are_one_sentence(layers: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [measured("attention", "paper", [9.0], samples={"tensorized": layers})]
    with pytest.raises(RecordError, match="expected in_modes, out_modes, ranks of one layer"):
        table_tensorization.table(selected(records))
    write(records, tmp_path / "records")
    assert main(["table_tensorization", "--records", str(tmp_path / "records"), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("record 768x768-paper: samples.tensorized is ")
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_without_a_timed_record_there_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write([measured("attention", "paper", [], measure="predict", samples={})], tmp_path)
    assert main(["table_tensorization", "--records", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    words = "no timed record below tensorization/; make some with: make reproduce-table-tensorization.\n"
    assert capsys.readouterr().err.endswith(words)
