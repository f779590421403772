"""What a campaign carries to its next call: records, its diary, and checkpoints in parts of a bounded size."""

from __future__ import annotations

import io
import tarfile

import pytest
import torch
from small_cells import a_record, a_training_cell

import bench.campaign.archive as archive
from bench.campaign.archive import (
    CHECKPOINTS,
    RECORDS,
    checkpoints_in,
    take_in,
    write_checkpoints,
    write_records,
)
from bench.campaign.run import useless_checkpoints
from bench.core.record import read_all, write
from bench.processes.process import Outcome
from bench.protocol import Data
from bench.protocol.methods import ConfigError
from bench.runner import checkpoint
from bench.runner.resolve import Job
from bench.runner.results import Results

DIARY = {"runs": [{"stage": "made up"}]}


@pytest.fixture
def folders(tmp_path):
    for name in ("results", "output", "next"):
        (tmp_path / name).mkdir()
    return tmp_path / "results", tmp_path / "output", tmp_path / "next"


def a_checkpoint(root, name, numbers=1000):
    """A checkpoint with so many random numbers, which cannot be compressed."""
    values = torch.randint(256, (numbers,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    checkpoint.save(root / ".checkpoints" / "accuracy" / name, f"identity of {name}", {"values": values})
    return root / ".checkpoints" / "accuracy" / name


def loaded(root, name):
    return checkpoint.load(root / ".checkpoints" / "accuracy" / name, f"identity of {name}")


def test_records_and_diary_come_back(folders):
    results, output, later = folders
    write([a_record(), a_record(cell_id="fedcba9876543210")], results)
    assert write_records(results, output, DIARY) == 2
    assert take_in(output, later) == DIARY
    assert read_all(later) == read_all(results)


def test_a_folder_of_records_has_no_diary(folders):
    results, _, later = folders
    write([a_record()], results)
    assert take_in(results, later) == {}
    assert read_all(later) == read_all(results)


def test_without_records_there_is_no_archive(folders):
    results, output, _ = folders
    assert write_records(results, output, DIARY) == 0
    assert list(output.iterdir()) == []


def test_the_same_records_give_the_same_bytes(folders, tmp_path):
    results, output, later = folders
    records = [a_record(), a_record(cell_id="fedcba9876543210")]
    write(records, results)
    write(records[::-1], later)
    (tmp_path / "other").mkdir()
    write_records(results, output, DIARY)
    write_records(later, tmp_path / "other", DIARY)
    assert (output / RECORDS).read_bytes() == (tmp_path / "other" / RECORDS).read_bytes()


def test_checkpoints_are_cut_in_parts_and_put_together(folders, monkeypatch):
    results, output, later = folders
    write([a_record()], results)
    write_records(results, output, DIARY)
    monkeypatch.setattr(archive, "PART_BYTES", 2000)
    a_checkpoint(results, "large", 9000)
    a_checkpoint(results, "small")
    assert write_checkpoints(results, output, ()) == []
    parts = sorted(path.name for path in output.glob(f"{CHECKPOINTS}.*"))
    assert parts == [f"{CHECKPOINTS}.{number}" for number in range(len(parts))]
    assert len(parts) > 3
    take_in(output, later)
    for name in ("small", "large"):
        assert torch.equal(loaded(later, name)["values"], loaded(results, name)["values"])
    a_checkpoint(later, "small", 10)  # a newer one
    take_in(output, later)
    assert len(loaded(later, "small")["values"]) == 10


def test_old_parts_go(folders, monkeypatch):
    results, output, _ = folders
    monkeypatch.setattr(archive, "PART_BYTES", 2000)
    large = a_checkpoint(results, "large", 9000)
    a_checkpoint(results, "small")
    write_checkpoints(results, output, ())
    before = len(list(output.iterdir()))
    write_checkpoints(results, output, [large])
    assert 0 < len(list(output.iterdir())) < before
    write_checkpoints(results, output, [large, results / ".checkpoints" / "accuracy" / "small"])
    assert list(output.iterdir()) == []


def test_what_is_too_large_stays_behind_and_is_named(folders, monkeypatch):
    results, output, later = folders
    monkeypatch.setattr(archive, "CARRIED_BYTES", 3000)
    large = a_checkpoint(results, "large", 9000)
    a_checkpoint(results, "small")
    [left] = write_checkpoints(results, output, ())
    assert left.folder == large
    assert left.bytes > 9000
    write([a_record()], results)
    write_records(results, output, DIARY)
    take_in(output, later)
    assert loaded(later, "large") is None
    assert loaded(later, "small") is not None


def test_a_checkpoint_between_two_renames_is_carried(folders):
    """A kill there leaves the former one alone."""
    results, output, later = folders
    write([a_record()], results)
    write_records(results, output, DIARY)
    folder = a_checkpoint(results, "small")
    folder.rename(folder.with_name(".small.former"))
    folder.with_name(".small-x.partial").mkdir()
    assert [one.folder for one in checkpoints_in(results)] == [folder]
    write_checkpoints(results, output, ())
    take_in(output, later)
    assert loaded(later, "small") is not None


@pytest.mark.parametrize("name", ["../outside", ".checkpoints/../../x/y", "elsewhere/a/b/c", "/tmp/x/y/z"])
def test_parts_that_would_reach_elsewhere_are_refused(folders, name):
    results, output, later = folders
    write([a_record()], results)
    write_records(results, output, DIARY)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as made:
        info = tarfile.TarInfo(name)
        info.size = 1
        made.addfile(info, io.BytesIO(b"x"))
    (output / f"{CHECKPOINTS}.0").write_bytes(packed.getvalue())
    with pytest.raises(ConfigError):
        take_in(output, later)
    assert not (later.parent / "outside").exists()


def test_a_missing_part_is_one_sentence(folders, monkeypatch):
    results, output, later = folders
    write([a_record()], results)
    write_records(results, output, DIARY)
    monkeypatch.setattr(archive, "PART_BYTES", 2000)
    a_checkpoint(results, "large", 9000)
    write_checkpoints(results, output, ())
    (output / f"{CHECKPOINTS}.1").unlink()
    with pytest.raises(ConfigError, match=r"checkpoints\.tar\.gz\.\*: not all parts of a whole archive"):
        take_in(output, later)


def test_checkpoints_that_nothing_goes_on_from_are_useless(tmp_path):
    early, first, second = (
        a_training_cell("comera", late=late, target=target) for late, target in ((0, 0.0), (7, 0.5), (7, 0.2))
    )
    results = Results(tmp_path, "config")
    job = Job((early, first, second), Data("synthetic"), "d")
    own = [results.upkeep(cell, "d", resume=True).folder for cell in job.cells]
    for done, useless in ((early, set()), (first, {own[1]}), (second, set(own))):
        results.record([Outcome(done)], "d", job.data)
        assert useless_checkpoints([job], results) == useless
