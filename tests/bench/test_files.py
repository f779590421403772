"""Files are written whole or not at all; what a kill leaves is removed later, what another process writes is not."""

import contextlib
import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from interrupted import files_in
from small_cells import a_record, environment

import bench.core.files
from bench.core.files import check_folder, partial_folder, remove_abandoned, write_whole
from bench.core.record import write
from bench.errors import ConfigError

WRITER = """
import sys, time
from pathlib import Path
from bench.core.files import partial_folder
with partial_folder(Path(sys.argv[1])) as folder:
    (folder / "half").write_text("of a rec")
    print(folder, flush=True)
    time.sleep(600)
"""

#: Runs the command of its arguments, then names what its process has opened in a folder.
OPENED = """
import os, runpy, sys
folder, opened = sys.argv.pop(1) + os.sep, []
def note(event, arguments):
    if event == "open" and str(arguments[0]).startswith(folder):
        opened.append(str(arguments[0]))
sys.addaudithook(note)
try:
    runpy.run_module("bench", run_name="__main__", alter_sys=True)
finally:
    print("opened: ", *opened, file=sys.stderr)
"""


def full_disk(patch: pytest.MonkeyPatch, call: int) -> None:
    """Let the flush to the disk of that number, and every later one, find no space."""
    calls = iter(range(1, 1000))

    def fsync(_):
        if next(calls) >= call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    patch.setattr(bench.core.files.os, "fsync", fsync)


@pytest.mark.parametrize("call", [1, 2])
def test_a_full_disk_leaves_everything_as_it_was(tmp_path, monkeypatch, call):
    old, new = tmp_path / "old", tmp_path / "below" / "new"
    old.write_bytes(b"before")
    full_disk(monkeypatch, call)
    with pytest.raises(OSError, match=r"No space left on device: '.*(old|new)'"):
        write_whole({old: b"after", new: b"after"})
    assert files_in(tmp_path) == {"old": b"before"}
    assert [path for path in tmp_path.rglob("*") if "partial" in path.name] == []


def test_the_dead_ones_are_removed_and_a_live_one_is_not(tmp_path):
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as writer:
        other = Path(writer.stdout.readline().strip())
        (tmp_path / ".of-an-older-version.partial").write_text("half")
        with partial_folder(tmp_path) as own:
            remove_abandoned(tmp_path)
            assert sorted(tmp_path.iterdir()) == sorted([other, own])
            assert (other / "half").is_file()
        writer.kill()
    remove_abandoned(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_taken_for_an_abandoned_one_before_it_is_locked_is_made_anew(tmp_path, monkeypatch):
    make, made = bench.core.files.tempfile.mkdtemp, []

    def slow_mkdtemp(**arguments):
        made.append(make(**arguments))
        if len(made) == 1:
            remove_abandoned(tmp_path)
        return made[-1]

    monkeypatch.setattr(bench.core.files.tempfile, "mkdtemp", slow_mkdtemp)
    with partial_folder(tmp_path) as folder:
        assert [str(folder)] == made[1:]
        remove_abandoned(tmp_path)
        assert folder.is_dir()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        "list",
        pytest.param(
            "run experiment=fig1 measure=predict methods=[dense] batch_size=1 device=cpu results=results",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["list", "run"],
)
def test_a_kill_finds_no_file_of_a_trial_in_the_temporary_folder(tmp_path, words):
    write([a_record(cell_id="0")], tmp_path / "records")
    with tempfile.TemporaryDirectory() as folder:  # its path is short enough for sockets
        command = [sys.executable, "-c", OPENED, folder, *words.split()]
        kept = {"env": environment(TMPDIR=folder), "capture_output": True, "text": True}
        done = subprocess.run(command, cwd=tmp_path, check=False, **kept)
        assert done.returncode == 0, done.stderr
        opened = [Path(name).relative_to(folder).parts[0] for name in done.stderr.split("opened:")[-1].split()]
    assert [name for name in opened if not (name.startswith(".") and name.endswith(".partial"))] == []


@pytest.mark.parametrize("place", ["file/below", "/proc/nothing", "odd\0name"])
def test_a_place_that_cannot_be_a_folder_is_refused(tmp_path, place):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"^results is '.*name another folder\.$"):
        check_folder("results", tmp_path / place)
    assert files_in(tmp_path) == {"file": b""}


def test_a_place_that_can_is_accepted_and_not_made(tmp_path):
    check_folder("results", tmp_path / "new" / "below")
    assert list(tmp_path.iterdir()) == []


def test_a_fork_leaves_the_folder_to_the_process_that_made_it(tmp_path):
    with partial_folder(tmp_path) as folder:
        stack = contextlib.ExitStack()
        other = stack.enter_context(partial_folder(tmp_path))
        if (child := os.fork()) == 0:
            try:
                stack.close()
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert other.is_dir()
        stack.close()
        assert not other.exists()
        assert folder.is_dir()
