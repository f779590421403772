"""Merging copies record files: nothing is lost, nothing is written by halves, and the newest good record stays."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interrupted import Killed, files_in, kill_at
from small_cells import a_record

import bench.core.files
from bench.commands.merge import merge
from bench.core.record import read_all, write
from bench.core.table import as_csv, line_of, table_path

DAYS = [f"2026-01-0{day}T00:00:00+00:00" for day in (1, 2, 3)]


def some_records():
    """Records of as many cells, in two experiments and on two devices."""
    return [
        a_record(
            cell_id=f"{number:016x}",
            experiment=("one", "two")[number % 2],
            device=f"Processor, {1 + number // 2 % 2} threads",
            samples={"blocks": [{"block": 0, "ms": [0.1 * number], "calibration_ms": 0.1, "disturbed": False}]},
        )
        for number in range(4)
    ]


def folder_of(path, records):
    path.mkdir(parents=True, exist_ok=True)
    write(records, path)
    return path


def by_cell(records):
    return {(record.experiment, record.device, record.cell_id): record for record in records}


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
