"""Merging records of folders and archives: nothing is lost, nothing is written by halves, nothing lands elsewhere."""

from __future__ import annotations

import dataclasses
import io
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interrupted import Killed, files_in, kill_at
from small_cells import a_record, environment, run_bench

import bench.commands.merge
import bench.commands.sources
import bench.core.files
from bench.commands.merge import MergeError, merge
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


def archive_of(path, members):
    """A tar archive, compressed as its name says, of ``{name: content}`` or prepared members."""
    with tarfile.open(path, "w:gz" if path.suffix in (".gz", ".tgz") else "w") as archive:
        for name, content in members.items():
            if isinstance(content, tarfile.TarInfo):
                archive.addfile(content)
                continue
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


@pytest.mark.parametrize("packed", [False, True])
def test_manifests_of_the_data_come_along(tmp_path, packed):
    folder = folder_of(tmp_path / "there", some_records(2, dataset="files-1"))
    (folder / "one" / "files-1.csv").write_bytes(b"package,sha256\n")
    (folder / "one" / "other.csv").write_bytes(b"of no record\n")
    files = {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    source = archive_of(tmp_path / "records.tar.gz", files) if packed else folder
    merge([source], tmp_path / "here")
    assert {path.name for path in (tmp_path / "here").glob("*/*.csv")} == {"files-1.csv"}
    assert (tmp_path / "here" / "one" / "files-1.csv").read_bytes() == b"package,sha256\n"
    (tmp_path / "here" / "one" / "files-1.csv").write_bytes(b"mine\n")
    merge([source], tmp_path / "here")
    assert (tmp_path / "here" / "one" / "files-1.csv").read_bytes() == b"mine\n"


def as_bytes(record, **changes):
    return json.dumps({**json.loads(record.to_json()), **changes}).encode()


def by_cell(records):
    return {(record.experiment, record.device, record.cell_id): record for record in records}


def numbers(summary):
    return [len(places) for places in (summary.taken, summary.present, summary.replaced, summary.kept)]


@pytest.mark.parametrize("name", ["records.tar", "records.tar.gz", "records.tgz", "records"])
@pytest.mark.parametrize("prefix", ["", "./", "r/", "results/local/"])
def test_folders_and_archives_of_any_layout_are_taken(tmp_path, name, prefix):
    records = some_records()
    folder_of(tmp_path / "source" / prefix, records)
    source = tmp_path / "source"
    if "." in name:
        names = {f"{prefix}{path.relative_to(tmp_path / 'source' / prefix)}": path for path in source.rglob("*.json")}
        source = archive_of(tmp_path / name, {name: path.read_bytes() for name, path in names.items()})
    summary = merge([source], tmp_path / "into")
    assert by_cell(read_all(tmp_path / "into")) == by_cell(records)
    assert sorted(summary.taken) == sorted(path_of(record, tmp_path / "into") for record in records)
    assert numbers(summary) == [4, 0, 0, 0]
    assert (
        len(list((tmp_path / "into").rglob("*"))) == 4 + 4 + 2 + 2
    )  # files, devices, experiments, tables: nothing besides


def test_an_archive_made_by_tar_is_taken(tmp_path):
    records = some_records()
    source = folder_of(tmp_path / "source", records)
    (source / ".checkpoints" / "one").mkdir(parents=True)
    (source / ".checkpoints" / "one" / "state.json").write_text("{}")
    (source / ".latest").symlink_to("one")
    with tarfile.open(tmp_path / "whole.tar.gz", "w:gz") as archive:
        archive.add(source, arcname=".")
    assert numbers(merge([tmp_path / "whole.tar.gz", source], tmp_path / "into")) == [4, 4, 0, 0]
    assert by_cell(read_all(tmp_path / "into")) == by_cell(records)
    assert not (tmp_path / "into" / ".checkpoints").exists()


@settings(deadline=None, max_examples=30)
@given(
    rounds=st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(DAYS), st.sampled_from(["ok", "error", "oom"]), st.integers(0, 2)),
        max_size=12,
    ),
    parts=st.integers(1, 4),
    order=st.randoms(use_true_random=False),
)
def test_any_order_gives_the_same_folder_and_every_record_is_accounted_for(tmp_path_factory, rounds, parts, order):
    root = tmp_path_factory.mktemp("laws")
    records = [
        dataclasses.replace(some_records()[number], recorded_at=day, status=status, seed=seed)
        for number, day, status, seed in rounds
    ]
    sources = []
    for part in range(parts):  # a source has one record per cell at most, as folders do
        mine = by_cell(records[part::parts]).values()
        sources.append(folder_of(root / str(part), [a_record(), *mine]))
    read = sum(len(read_all(source)) for source in sources)
    assert sum(numbers(merge(sources, root / "into"))) == read
    order.shuffle(sources)
    merge(sources, root / "again")
    assert files_in(root / "into") == files_in(root / "again")
    before = files_in(root / "into")
    repeated = merge([root / "again", *sources], root / "into")
    assert (repeated.taken, repeated.replaced) == ([], [])
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
def test_conflicts_are_settled_and_named(tmp_path, there, comes, replaced):
    old, new = (a_record(status=status, recorded_at=day) for status, day in (there, comes))
    into, source = folder_of(tmp_path / "into", [old]), folder_of(tmp_path / "source", [new])
    ended = run_bench(tmp_path, "merge", str(source), "--into", "into")
    assert (ended.status, ended.error) == (0, "")
    assert read_all(into) == [new if replaced else old]
    first, second = ended.output.splitlines()
    assert first == f"into: 0 taken, 0 already there, {int(replaced)} replaced, {int(not replaced)} kept, 0 unreadable"
    stayed, lost = (comes, there) if replaced else (there, comes)
    where = "into/made_up/some-processor-1-threads/0123456789abcdef.json"
    texts = [" of ".join(one) for one in (stayed, lost)]
    assert second == f"{'replaced' if replaced else 'kept'}: {where} is now {texts[0]}, not {texts[1]}"


def test_a_round_that_loses_an_arm_is_named(tmp_path):
    first, again = (
        [a_record(cell_id=f"{number:016x}", pairing=name, recorded_at=day) for number in range(3)]
        for name, day in (("first", DAYS[0]), ("again", DAYS[1]))
    )
    into = folder_of(tmp_path / "into", first)
    summary = merge([folder_of(tmp_path / "arm", again[:1])], into)
    assert summary.unpaired == [path_of(record, into) for record in first[1:]]
    assert str(summary).count("was timed together with a record that is not here now") == 2
    assert merge([folder_of(tmp_path / "round", again)], into).unpaired == []  # all arms have come
    stale = dataclasses.replace(first[0], pairing="stale")
    summary = merge([folder_of(tmp_path / "stale", [stale, a_record(cell_id="f" * 16, pairing="stale")])], into)
    assert [path.stem for path in summary.unpaired] == ["f" * 16]


def test_records_timed_alone_are_not_called_unpaired(tmp_path):
    into = folder_of(tmp_path / "into", some_records())
    later = folder_of(tmp_path / "later", some_records(1, recorded_at=DAYS[2]))
    assert merge([later], into).unpaired == []


def a_member(name, kind, linkname=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, linkname
    return info


@pytest.mark.parametrize(
    ("name", "member", "reason"),
    [
        ("/tmp/absolute.json", None, "outside of the folder"),
        ("../beside.json", None, "outside of the folder"),
        ("one/../../beside.json", None, "outside of the folder"),
        ("one/link.json", a_member("one/link.json", tarfile.SYMTYPE, "/etc/passwd"), "neither a file nor a folder"),
        ("one/link.json", a_member("one/link.json", tarfile.LNKTYPE, "one/a.json"), "neither a file nor a folder"),
        ("one", a_member("one", tarfile.SYMTYPE, "/tmp"), "neither a file nor a folder"),
        ("one/pipe.json", a_member("one/pipe.json", tarfile.FIFOTYPE), "neither a file nor a folder"),
        ("one/disk.json", a_member("one/disk.json", tarfile.BLKTYPE), "neither a file nor a folder"),
    ],
)
def test_an_archive_that_reaches_outside_is_refused_whole(tmp_path, name, member, reason):
    good, evil = some_records(2)
    archive_of(tmp_path / "evil.tgz", {"one/a.json": as_bytes(good), name: member or as_bytes(evil)})
    ended = run_bench(tmp_path, "merge", "evil.tgz", "--into", "into")
    assert (ended.status, ended.output) == (2, "")
    assert ended.error.startswith(f"error: evil.tgz: {name!r} ")
    assert reason in ended.error
    assert ended.error.endswith("; nothing was merged, 1 unreadable.\n")
    assert [path.name for path in tmp_path.iterdir()] == ["evil.tgz"]


@pytest.mark.parametrize("column", ["experiment", "cell_id"])
@pytest.mark.parametrize("name", ["../../beside", "..", ".hidden", "/tmp/absolute", "", "a\nb"])
def test_a_record_that_names_another_place_is_refused(tmp_path, column, name):
    archive_of(tmp_path / "evil.tar", {"a.json": as_bytes(a_record(), **{column: name})})
    ended = run_bench(tmp_path, "merge", "evil.tar", "--into", "into")
    assert ended.status == 2
    assert f"{column} is {name!r}; allowed: letters, digits, " in ended.error
    assert [path.name for path in tmp_path.iterdir()] == ["evil.tar"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "not a readable JSON record"),
        (b"\xff", "not a readable JSON record"),
        (b"[" * 100_000, "not a readable JSON record"),
        (as_bytes(a_record(), schema_version=SCHEMA_VERSION + 1), f"schema_version is {SCHEMA_VERSION + 1}"),
        (as_bytes(a_record(), metrics={"auc": "high"}), "metrics has auc='high'"),
        (as_bytes(a_record(), batch_size="two"), "column 'batch_size' holds 'two'"),
    ],
)
@pytest.mark.parametrize("where", ["folder", "archive", "into"])
def test_one_unreadable_record_stops_the_merge_before_anything_is_written(tmp_path, content, reason, where):
    good = folder_of(tmp_path / "good", some_records())
    into = folder_of(tmp_path / "into", [a_record()])
    bad = {"folder": tmp_path / "bad", "archive": tmp_path / "bad.tgz", "into": into}[where]
    if where == "archive":
        archive_of(bad, {"one/bad.json": content})
    else:
        (bad / "one").mkdir(parents=True)
        (bad / "one" / "bad.json").write_bytes(content)
    before = files_in(into)
    sources = [str(good)] if where == "into" else [str(good), str(bad)]
    ended = run_bench(tmp_path, "merge", *sources, "--into", str(into))
    assert (ended.status, ended.output) == (2, "")
    separator = ": " if where == "archive" else "/"
    assert ended.error.startswith(f"error: {bad}{separator}one/bad.json: ")
    assert reason in ended.error
    assert ended.error.endswith("; nothing was merged, 1 unreadable.\n")
    assert files_in(into) == before


def test_all_that_cannot_be_read_is_named(tmp_path):
    folder = folder_of(tmp_path / "good", some_records(200))
    whole = shutil.make_archive(str(tmp_path / "whole"), "gztar", folder)
    (tmp_path / "cut.tgz").write_bytes(Path(whole).read_bytes()[:-100])
    (tmp_path / "text.tar").write_text("no archive")
    (tmp_path / "empty").mkdir()
    sources = ["good", "absent", "cut.tgz", "text.tar", "empty"]
    ended = run_bench(tmp_path, "merge", *sources, "--into", "into")
    assert (ended.status, ended.output) == (2, "")
    lines = ended.error.splitlines()
    assert [line.split(":")[1].strip() for line in lines] == sources[1:]
    assert "No such file" in lines[0]
    assert "end-of-stream" in lines[1]
    assert "no record in it" in lines[3]
    assert lines[3].endswith("; nothing was merged, 4 unreadable.")
    assert not (tmp_path / "into").exists()


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["gz", "bz2", "xz"])
def test_an_archive_that_is_damaged_anywhere_is_one_sentence(tmp_path, compression):
    with tarfile.open(tmp_path / "whole", f"w:{compression}") as archive:
        archive.add(folder_of(tmp_path / "source", some_records(200)), arcname=".")
    content = (tmp_path / "whole").read_bytes()
    damaged = tmp_path / f"damaged.tar.{compression}"
    for at in range(0, len(content), len(content) // 40):
        for kept in (content[:at], content[:at] + b"\0" * 64 + content[at + 64 :]):
            if kept.rstrip(b"\0") == content.rstrip(b"\0"):
                continue  # zeros behind an archive do not matter
            damaged.write_bytes(kept)
            with pytest.raises(MergeError) as caught:
                merge([damaged], tmp_path / "into")
            assert caught.value.sentences[-1].startswith(f"{damaged}: ")
    assert not (tmp_path / "into").exists()


@pytest.mark.parametrize("compression", ["", "gz", "bz2", "xz"])
@pytest.mark.parametrize(
    ("kind", "name", "reason"),
    [
        (tarfile.REGTYPE, "one/a.json", "a part of it is larger than 1 MiB"),
        (tarfile.XHDTYPE, "header", "a part of it is larger than 1 MiB"),
        (tarfile.GNUTYPE_LONGNAME, "header", "a part of it is larger than 1 MiB"),
        (tarfile.REGTYPE, ".hidden/a.bin", "holds more than 2 MiB"),
    ],
)
def test_what_is_decompressed_is_counted(tmp_path, monkeypatch, compression, kind, name, reason):
    monkeypatch.setattr(bench.commands.sources, "MEMBER_BYTES", 2**20)
    monkeypatch.setattr(bench.commands.sources, "ARCHIVE_BYTES", 2**21)
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, 2**23
    with tarfile.open(tmp_path / "bomb", f"w:{compression}") as archive:
        archive.fileobj.write(info.tobuf())
        archive.fileobj.write(bytes(2**23))
    with pytest.raises(MergeError) as caught:
        merge([tmp_path / "bomb"], tmp_path / "into")
    assert [sentence.startswith(f"{tmp_path / 'bomb'}: {reason}") for sentence in caught.value.sentences] == [True]


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
    assert numbers(merge([source], tmp_path / "into")) == [4 - renamed, renamed, 0, 0]
    assert by_cell(read_all(tmp_path / "into")) == by_cell(records)


def test_records_go_to_results_local_unless_told_otherwise(tmp_path):
    folder_of(tmp_path / "source", some_records())
    ended = run_bench(tmp_path, "merge", "source")
    assert ended.output == "results/local: 4 taken, 0 already there, 0 replaced, 0 kept, 0 unreadable\n"
    assert by_cell(read_all(tmp_path / "results" / "local")) == by_cell(some_records())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ["SOURCE", "--help"]),
        (("source", "--to", "x"), ["--to", "--help"]),
        (("source", "--into", "file"), ["--into is 'file'", "name another folder"]),
        (("source", "--into", "file/below"), ["--into is 'file/below'", "name another folder"]),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path, arguments, words):
    folder_of(tmp_path / "source", some_records())
    (tmp_path / "file").write_text("")
    ended = run_bench(tmp_path, "merge", *arguments)
    assert (ended.status, ended.output) == (2, "")
    assert ended.error.startswith("error: ")
    assert ended.error.count("\n") == 1
    assert all(word in ended.error for word in words)


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
