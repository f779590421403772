"""Merging copies record files: nothing is lost, nothing is written by halves, and the newest good record stays."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interrupted import Killed, files_in, kill_at
from small_cells import a_record, environment, run_bench

import bench.core.files
from bench.commands.merge import merge
from bench.core.record import SCHEMA_VERSION, path_of, read_all, write
from bench.core.table import as_csv, line_of, table_path

DAYS = [f"2026-01-0{day}T00:00:00+00:00" for day in (1, 2, 3)]


def some_records(count=4, **changes):
    """Records of as many cells, in two experiments and on two devices."""
    return [
        a_record(
            cell_id=f"{number:016x}",
            experiment=("one", "two")[number % 2],
            device=f"Processor, {1 + number // 2 % 2} threads",
            samples={"blocks": [{"block": 0, "ms": [0.1 * number], "calibration_ms": 0.1, "disturbed": False}]},
            **changes,
        )
        for number in range(count)
    ]


def folder_of(path, records):
    path.mkdir(parents=True, exist_ok=True)
    write(records, path)
    return path


def by_cell(records):
    return {(record.experiment, record.device, record.cell_id): record for record in records}


def as_bytes(record, **changes):
    return json.dumps({**json.loads(record.to_json()), **changes}).encode()


def test_records_and_manifests_are_copied(tmp_path):
    records = some_records(dataset="files-1")
    source = folder_of(tmp_path / "source", records)
    (source / "one" / "files-1.csv").write_bytes(b"package,sha256\n")
    (source / ".checkpoints").mkdir()
    (source / ".checkpoints" / "state.json").write_text("{}")
    into = tmp_path / "into"
    assert merge([source], into) == ([path_of(record, into) for record in read_all(source)], 0)
    assert by_cell(read_all(into)) == by_cell(records)
    assert (into / "one" / "files-1.csv").read_bytes() == b"package,sha256\n"
    assert not (into / ".checkpoints").exists()
    (into / "one" / "files-1.csv").write_bytes(b"mine\n")
    assert merge([source], into) == ([], 4)
    assert (into / "one" / "files-1.csv").read_bytes() == b"mine\n"


@settings(deadline=None, max_examples=30)
@given(
    rounds=st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(DAYS), st.sampled_from(["ok", "error", "oom"]), st.integers(0, 2)),
        max_size=12,
    ),
    parts=st.integers(1, 4),
    order=st.randoms(use_true_random=False),
)
def test_any_order_gives_the_same_folder_with_the_newest_good_records(tmp_path_factory, rounds, parts, order):
    root = tmp_path_factory.mktemp("laws")
    records = [
        dataclasses.replace(some_records()[number], recorded_at=day, status=status, seed=seed)
        for number, day, status, seed in rounds
    ]
    sources = []
    for part in range(parts):  # a source has one record per cell at most, as folders do
        mine = by_cell(records[part::parts]).values()
        sources.append(folder_of(root / str(part), [a_record(), *mine]))
    merge(sources, root / "into")
    order.shuffle(sources)
    merge(sources, root / "again")
    assert files_in(root / "into") == files_in(root / "again")
    before = files_in(root / "into")
    assert merge([root / "again", *sources], root / "into")[0] == []
    assert files_in(root / "into") == before
    lines = [line_of(record) for record in read_all(root / "into", "made_up")]
    assert table_path(root / "into", "made_up").read_text() == as_csv(lines)
    for source in sources:
        for place, record in by_cell(read_all(source)).items():
            stayed = by_cell(read_all(root / "into"))[place]
            assert (stayed.status == "ok", stayed.recorded_at) >= (record.status == "ok", record.recorded_at)


@pytest.mark.parametrize(
    ("there", "comes", "replaced"),
    [
        (("ok", DAYS[0]), ("ok", DAYS[1]), True),
        (("ok", DAYS[1]), ("ok", DAYS[0]), False),
        (("error", DAYS[1]), ("ok", DAYS[0]), True),
        (("ok", DAYS[0]), ("error", DAYS[1]), False),
        (("timeout", DAYS[0]), ("oom", DAYS[1]), True),
        (("timeout", DAYS[1]), ("oom", DAYS[0]), False),
    ],
)
def test_the_newest_good_record_of_a_cell_stays(tmp_path, there, comes, replaced):
    old, new = (a_record(status=status, recorded_at=day) for status, day in (there, comes))
    into, source = folder_of(tmp_path / "into", [old]), folder_of(tmp_path / "source", [new])
    ended = run_bench(tmp_path, "merge", str(source), "--into", "into")
    assert (ended.status, ended.error) == (0, "")
    assert read_all(into) == [new if replaced else old]
    assert ended.output.startswith(f"into: {int(replaced)} records copied, {int(not replaced)} not")


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"\xff",
        b"[" * 100_000,
        as_bytes(a_record(), schema_version=SCHEMA_VERSION + 1),
        as_bytes(a_record(), batch_size="two"),
        as_bytes(a_record(), cell_id="../../beside"),
        as_bytes(a_record(), experiment="elsewhere"),
    ],
)
@pytest.mark.parametrize("where", ["bad", "into"])
def test_one_unreadable_record_stops_the_merge_before_anything_is_written(tmp_path, content, where):
    folder_of(tmp_path / "good", some_records())
    folder_of(tmp_path / "into", [a_record()])
    bad = folder_of(tmp_path / where, [a_record(cell_id="f" * 16)])
    path_of(a_record(cell_id="f" * 16), bad).write_bytes(content)
    before = files_in(tmp_path)
    ended = run_bench(tmp_path, "merge", "good", *(["bad"] if where == "bad" else []), "--into", "into")
    assert (ended.status, ended.output, ended.error.count("\n")) == (2, "", 1)
    assert f"{where}/made_up/" in ended.error
    assert files_in(tmp_path) == before


@pytest.mark.parametrize("renamed", [0, 1, 3])
def test_a_merge_that_is_killed_leaves_whole_records_and_can_be_repeated(tmp_path, monkeypatch, renamed):
    records = some_records()
    source = folder_of(tmp_path / "source", records)
    with monkeypatch.context() as patch:
        kill_at(patch, bench.core.files.os, "replace", renamed + 1)
        with pytest.raises(Killed):
            merge([source], tmp_path / "into")
    there = read_all(tmp_path / "into")
    assert len(there) == renamed
    assert all(record in records for record in there)
    assert len(merge([source], tmp_path / "into")[0]) == 4 - renamed
    assert by_cell(read_all(tmp_path / "into")) == by_cell(records)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "FOLDER"),
        (("absent",), "absent"),
        (("file",), "file"),
        (("source", "--to", "x"), "--to"),
        (("source", "--into", "file"), "--into"),
        (("source", "--into", "file/below"), "--into"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path, arguments, named):
    folder_of(tmp_path / "source", some_records())
    (tmp_path / "file").write_text("")
    ended = run_bench(tmp_path, "merge", *arguments)
    assert (ended.status, ended.output, ended.error.count("\n")) == (2, "", 1)
    assert ended.error.startswith("error: ")
    assert named in ended.error
    assert not (tmp_path / "results").exists()


def test_merging_needs_neither_torch_nor_hydra(tmp_path):
    folder_of(tmp_path / "source", some_records())
    code = (
        "import sys; sys.argv = ['bench', 'merge', 'source']; import bench.__main__; bench.__main__.main(); "
        "print({'torch', 'hydra', 'omegaconf', 'numpy', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[1:] == ["set()"]
    assert len(read_all(tmp_path / "results" / "local")) == 4
