"""Records: what is written is read back, whole or not at all, and nothing else is taken for a record."""

import dataclasses
import json
import math
import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_cells import ROOT, a_record, one_line

import bench.core.files
from bench.core.record import SCHEMA_VERSION, STATUSES, RecordError, device_folder, read, read_all, write

FULL = {
    "ratio": 12.5,
    "message": "naïve ∑",
    "machine": "0123456789ab",
    "step_time_median_ms": 1.25,
    "steps_measured": 6,
    "flops_per_step": 2**60,
    "samples": {"blocks": [{"block": 0, "ms": [1.0, 1.5], "calibration_ms": 0.1, "disturbed": False}]},
}


def test_what_is_written_is_read_back(tmp_path):
    record = a_record(**FULL)
    [path] = write([record], tmp_path)
    assert path == tmp_path / "made_up" / "some-processor-1-threads" / f"{record.cell_id}.json"
    assert read(path) == record
    assert read_all(tmp_path) == read_all(tmp_path, "made_up") == [record]
    assert read_all(tmp_path, "another") == []


@settings(deadline=None, max_examples=40)
@given(
    st.floats(0, allow_infinity=False) | st.none(),
    st.integers(0) | st.none(),
    st.text(st.characters(codec="utf-8")),
    st.sampled_from(STATUSES),
)
def test_any_values_survive_the_round_trip(tmp_path_factory, real, whole, text, status):
    record = a_record(step_time_median_ms=real, flops_per_step=whole, message=text, status=status)
    [path] = write([record], tmp_path_factory.mktemp("records"))
    assert read(path) == record


@pytest.mark.parametrize("survivors", [0, 1, 2])
def test_a_crash_leaves_whole_records_only(tmp_path, monkeypatch, survivors):
    """Killed after ``survivors`` renames, the files already in place are whole and the others absent."""
    records = [a_record(cell_id=f"{number:016x}") for number in range(3)]
    renamed = []

    def replace(source, target):
        if len(renamed) == survivors:
            raise KeyboardInterrupt
        renamed.append(target)
        os.rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(bench.core.files.os, "replace", replace)
        with pytest.raises(KeyboardInterrupt):
            write(records, tmp_path)
    assert read_all(tmp_path) == records[:survivors]
    leftovers = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".json"]
    assert leftovers == []
    write(records, tmp_path)
    assert read_all(tmp_path) == records


def test_nothing_is_renamed_before_all_contents_are_on_the_disk(tmp_path, monkeypatch):
    events = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(bench.core.files.os, "fsync", lambda handle: (events.append("fsync"), fsync(handle)))
    monkeypatch.setattr(bench.core.files.os, "replace", lambda *names: (events.append("replace"), replace(*names)))
    write([a_record(cell_id=f"{number:016x}") for number in range(2)], tmp_path)
    assert events == ["fsync", "fsync", "replace", "replace"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_none_is_not_written(tmp_path, value):
    with pytest.raises(ValueError, match="JSON"):
        write([a_record(), a_record(cell_id="f" * 16, step_time_median_ms=value)], tmp_path)
    assert list(tmp_path.rglob("*")) == []


def edited(ensure_ascii=False, **changes):
    content = {**json.loads(a_record(**FULL).to_json()), **changes}
    content = {name: value for name, value in content.items() if value is not ...}
    return json.dumps(content, ensure_ascii=ensure_ascii)


def assert_refused(folder, text, *named):
    path = folder / "made_up" / "here" / "edited.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    for reader in (lambda: read(path), lambda: read_all(folder)):
        with one_line(RecordError, path, *named):
            reader()


@pytest.mark.parametrize(
    ("changes", "column"),
    [
        ({"schema_version": SCHEMA_VERSION + 1}, "schema_version"),
        ({"schema_version": True}, "schema_version"),
        ({"schema_version": ...}, "schema_version"),
        ({"schema_version": SCHEMA_VERSION - 1}, "schema_version"),
        ({"device": ...}, "device"),
        ({"batch_size": "2"}, "batch_size"),
        ({"batch_size": 2.0}, "batch_size"),
        ({"batch_size": True}, "batch_size"),
        ({"batch_size": None}, "batch_size"),
        ({"batch_size": 0}, "batch_size"),
        ({"seed": -1}, "seed"),
        ({"git_dirty": 0}, "git_dirty"),
        ({"step_time_median_ms": "fast"}, "step_time_median_ms"),
        ({"step_time_median_ms": -0.5}, "step_time_median_ms"),
        ({"step_time_median_ms": math.nan}, "NaN"),
        ({"message": None}, "message"),
        ({"machine": 7}, "machine"),
        ({"samples": []}, "samples"),
        ({"status": "fine"}, "status"),
        ({"measure": "Guess it"}, "measure"),
        ({"metrics": {"auc": "high"}}, "auc"),
        ({"metrics": [1.0]}, "metrics"),
        ({"recorded_at": "2999-01-01T00:00:00+00:00"}, "recorded_at"),
        ({"workload_words": {"metric": {"name": "auc"}}}, "workload_words"),
        ({"config_json": "[]"}, "config_json"),
        ({"config_json": "{"}, "config_json"),
        ({"samples": {"blocks": [-math.inf]}}, "Infinity"),
        ({"config_json": '{"a": 1e999}'}, "config_json"),
    ],
)
def test_an_edited_record_is_one_line_that_names_file_and_column(tmp_path, changes, column):
    assert_refused(tmp_path, edited(**changes), column)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        edited().replace('"seed": 0', '"seed": 0, "seed": 1'),
        edited().replace("12.5", "1e999"),
        edited().replace("12.5", f"1{'0' * 400}"),
        edited(ensure_ascii=True).replace("\\u2211", "\\ud800"),
        edited().replace('"seed": 0', '"seed": 0, "\\udfffa": 1'),
    ],
)
def test_what_no_record_holds_is_one_line_that_names_the_file(tmp_path, text):
    assert_refused(tmp_path, text)


@pytest.mark.parametrize("place", ["made_up/some-processor-1-threads/x.json", "made_up/elsewhere/{}", "odd/{}"])
def test_a_record_that_lies_where_its_columns_do_not_say_is_refused(tmp_path, place):
    path = tmp_path / place.format(f"{a_record().cell_id}.json")
    path.parent.mkdir(parents=True)
    path.write_text(edited())
    with one_line(RecordError, path, a_record().cell_id):
        read_all(tmp_path)


def test_whole_numbers_stand_for_real_ones_and_defaults_for_later_columns(tmp_path):
    path = tmp_path / f"{a_record().cell_id}.json"
    missing = dict.fromkeys(("pairing", "samples", "metrics", "workload_words", "machine"), ...)
    path.write_text(edited(step_time_median_ms=2, **missing))
    record = read(path)
    assert (record.step_time_median_ms, record.pairing, record.samples) == (2, "", {})
    assert record.machine is None
    assert (record.metrics, record.workload_words, record.leading) == ({}, {}, None)


def test_columns_of_a_newer_writer_are_kept_and_written_back(tmp_path):
    new = {"brand_new": 1.5, "nested": {"a": [1, None]}}
    path = tmp_path / f"{a_record().cell_id}.json"
    path.write_text(edited(**new))
    record = read(path)
    assert record.extra == new
    [copy] = write([record], tmp_path)
    assert read(copy) == record
    assert {name: value for name, value in json.loads(copy.read_text()).items() if name in new} == new
    assert dataclasses.replace(record, extra={}) != record


@pytest.mark.parametrize(
    ("device", "folder"),
    [
        ("AMD EPYC, 2 threads", "amd-epyc-2-threads"),
        ("NVIDIA H100 80GB HBM3", "nvidia-h100-80gb-hbm3"),
        ("Intel(R) Xeon(R) CPU @ 2.20GHz, 8 threads", "intel-r-xeon-r-cpu-2-20ghz-8-threads"),
        ("../..", "unknown"),
        ("", "unknown"),
    ],
)
def test_devices_have_folder_names(device, folder):
    assert device_folder(device) == folder


def test_reading_records_needs_neither_torch_nor_hydra():
    code = "import sys, bench.core.record; print({'torch', 'hydra', 'omegaconf'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('"ratio": 12.5', '"ratio": 1e999', 12),
        ('"batch_size": 2', '"batch_size": 0', 14),
        ('"naïve ∑"', '"na\\ud800ve"', 29),
    ],
)
def test_the_line_of_what_is_wrong_is_named(tmp_path, old, new, line):
    [path] = write([a_record(**FULL)], tmp_path)
    text = json.dumps(json.loads(path.read_text()) | {"naïve ∑": 1}, indent=1, ensure_ascii=False)
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with one_line(RecordError, f"{path}, line {line}"):
        read(path)
