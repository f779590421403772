"""Tables of records: a typed line each, whole or not at all, and current whatever happened before."""

import pandas as pd
import pytest
from interrupted import Killed, kill_at
from small_cells import a_record

import bench.core.files
import bench.core.table
from bench.core.record import COLUMNS, path_of, write
from bench.core.table import table_path, write_table

FULL = {
    "ratio": 0.1 + 0.2,
    "message": 'naïve "∑", of two\nlines',
    "step_time_median_ms": 1 / 3,
    "steps_measured": 6,
    "flops_per_step": 2**60 + 1,
    "cuda_graph": True,
    "metrics": {"auc": 0.75, "Loss": 1e-300},
    "extra": {"of_tomorrow": 1.5, "nested": {"a": 1}},
}


def table_of(root):
    texts = {"cell_id": str}  # hexadecimal digits may look like a number
    return pd.read_csv(table_path(root, "made_up"), float_precision="round_trip", keep_default_na=False, dtype=texts)


def test_a_line_per_record_with_the_values_to_the_last_digit(tmp_path):
    records = [a_record(cell_id=f"{number:016x}", **(FULL if number else {})) for number in range(3)]
    write(records, tmp_path)
    write_table(tmp_path, "made_up")
    table = table_of(tmp_path)
    assert list(table["cell_id"]) == [record.cell_id for record in records]
    line = table.iloc[1]
    assert float(line["ratio"]) == FULL["ratio"]
    assert float(line["step_time_median_ms"]) == 1 / 3
    assert int(line["flops_per_step"]) == 2**60 + 1
    assert float(line["metric_Loss"]) == 1e-300
    assert (line["message"], line["cuda_graph"], line["git_dirty"]) == (FULL["message"], True, False)
    assert (table.iloc[0]["ratio"], table.iloc[0]["metric_auc"], table.iloc[0]["message"]) == ("", "", "")


def test_columns_have_a_fixed_order_with_metrics_last(tmp_path):
    write([a_record(**FULL)], tmp_path)
    write_table(tmp_path, "made_up")
    own = [name for name in COLUMNS if name not in ("metrics", "workload_words")]
    assert list(table_of(tmp_path).columns) == [*own, "of_tomorrow", "metric_Loss", "metric_auc"]


def test_it_follows_records_that_come_change_and_go(tmp_path):
    write([a_record(status="error")], tmp_path)
    for change in (a_record(), a_record(cell_id="f" * 16), a_record(seed=3)):
        write([change], tmp_path)
        write_table(tmp_path, "made_up")
        assert change.seed in list(table_of(tmp_path)["seed"])
    assert list(table_of(tmp_path)["status"]) == ["ok", "ok"]
    path_of(a_record(), tmp_path).unlink()
    write_table(tmp_path, "made_up")
    assert list(table_of(tmp_path)["cell_id"]) == ["f" * 16]


def test_what_cannot_be_read_is_left_out_until_it_can(tmp_path):
    write([a_record(), a_record(cell_id="f" * 16)], tmp_path)
    path = path_of(a_record(), tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    write_table(tmp_path, "made_up")
    assert list(table_of(tmp_path)["cell_id"]) == ["f" * 16]
    path.write_bytes(whole)
    write_table(tmp_path, "made_up")
    assert len(table_of(tmp_path)) == 2


def test_only_changed_files_are_read_again(tmp_path, monkeypatch):
    write([a_record(cell_id=f"{number:016x}") for number in range(5)], tmp_path)
    write_table(tmp_path, "made_up")
    reads, read = [], bench.core.table.read
    monkeypatch.setattr(bench.core.table, "read", lambda path: reads.append(path) or read(path))
    write([a_record(cell_id="f" * 16)], tmp_path)
    write_table(tmp_path, "made_up")
    assert [path.stem for path in reads] == ["f" * 16]


def test_a_kill_leaves_the_table_before_and_the_next_start_makes_it_current(tmp_path, monkeypatch):
    write([a_record()], tmp_path)
    write_table(tmp_path, "made_up")
    before = table_path(tmp_path, "made_up").read_bytes()
    write([a_record(cell_id="f" * 16)], tmp_path)
    with monkeypatch.context() as patch:
        kill_at(patch, bench.core.files.os, "replace", 1)
        with pytest.raises(Killed):
            write_table(tmp_path, "made_up")
    assert table_path(tmp_path, "made_up").read_bytes() == before
    write_table(tmp_path, "made_up")
    assert len(table_of(tmp_path)) == 2
