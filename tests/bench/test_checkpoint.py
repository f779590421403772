"""Checkpoints: what is saved comes back to the bit, whole or not at all, and what is damaged is one sentence."""

import errno
import json
import os
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from interrupted import Killed, as_bytes, files_in, kill_at
from safetensors import SafetensorError
from small_cells import assert_one_line, one_line

from bench.core import checkpoint
from bench.core.checkpoint import CheckpointError, load, save, settle

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8)

keys = st.text("abc._", min_size=1, max_size=3) | st.integers(-3, 3)
tensors = st.builds(
    lambda dtype, shape: (100 * torch.rand(shape, dtype=torch.float64)).to(dtype),
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 3), max_size=3),
)
json_values = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
contents = st.recursive(
    json_values | tensors, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3)
)


FORMER = {"step": 1, "weights": torch.arange(6.0)}
FRESH = {"step": 2, "weights": torch.arange(6.0) + 1}


@pytest.fixture
def folder(tmp_path):
    """A checkpoint of the run "mine"."""
    save(tmp_path / "runs" / "one", "mine", FORMER)
    return tmp_path / "runs" / "one"


@settings(max_examples=40, deadline=None)  # the disk decides how long it takes
@given(content=st.dictionaries(keys, contents, max_size=4))
def test_nested_content_comes_back(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("checkpoints") / "one"
    save(folder, "mine", content)
    assert as_bytes(load(folder, "mine")) == as_bytes(content)


def test_views_of_shared_storage_and_numbers_that_are_hard_to_write(tmp_path):
    whole, odd = torch.arange(12.0).reshape(3, 4), torch.tensor([float("nan"), float("inf"), -0.0, 1e-45])
    content = {"whole": whole, "again": whole, "turned": whole.t(), "part": whole[1:, ::2], "odd": odd}
    content |= {"floats": [0.1 + 0.2, -0.0, 5e-324, 1.7976931348623157e308], "int": 2**70}
    save(tmp_path / "one", "mine", content)
    assert as_bytes(load(tmp_path / "one", "mine")) == as_bytes(content)


def test_nothing_is_pickled(tmp_path, monkeypatch):
    for module, names in ((pickle, ("dump", "dumps", "load", "loads")), (torch, ("save", "load"))):
        for name in names:
            kill_at(monkeypatch, module, name, call=1)
    save(tmp_path / "one", "mine", FORMER)
    assert as_bytes(load(tmp_path / "one", "mine")) == as_bytes(FORMER)
    with pytest.raises(TypeError):
        save(tmp_path / "two", "mine", {"odd": object()})
    assert load(tmp_path / "two", "mine") is None


#: What saving calls on its way, and which checkpoint is there when that call fails.
MOMENTS = [
    (checkpoint, "save_file", 1, FORMER),
    (Path, "write_text", 1, FORMER),
    (os, "fsync", 1, FORMER),
    (os, "fsync", 3, FORMER),
    (Path, "rename", 1, FORMER),
    (Path, "rename", 2, FORMER),
    (os, "fsync", 4, FRESH),
    (shutil, "rmtree", 1, FRESH),
]


@pytest.mark.parametrize(("owner", "name", "call", "left"), MOMENTS)
def test_an_interrupted_save_leaves_a_whole_checkpoint(folder, monkeypatch, owner, name, call, left):
    with monkeypatch.context() as patch:
        kill_at(patch, owner, name, call)
        with pytest.raises(Killed):
            save(folder, "mine", FRESH)
    assert as_bytes(load(folder, "mine")) == as_bytes(left)
    third = {"step": 3, "weights": torch.zeros(2)}
    save(folder, "mine", third)
    assert as_bytes(load(folder, "mine")) == as_bytes(third)
    assert not folder.with_name(".one.former").exists()


def test_two_processes_may_save_the_same_checkpoint(folder):
    """Locks are those of open files, so that two threads stand for two processes."""

    def saved(number):
        for step in range(60):
            save(folder, "mine", {"step": step, "writer": number, "weights": torch.full((5,), float(number))})
        return True

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(saved, range(2))) == [True, True]
    last = load(folder, "mine")
    assert (last["step"], last["weights"].tolist()) == (59, [last["writer"]] * 5)
    assert [path.name for path in folder.parent.iterdir()] == ["one"]


@pytest.mark.parametrize(
    ("owner", "name", "error"),
    [
        (checkpoint, "save_file", SafetensorError("IoError(StorageFull)")),
        (Path, "write_text", OSError(errno.ENOSPC, "No space left on device")),
        (os, "fsync", OSError(errno.ENOSPC, "No space left on device")),
    ],
)
def test_on_a_full_disk_the_one_before_stays(folder, monkeypatch, owner, name, error):
    before = files_in(folder.parent)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, mock.Mock(side_effect=error))
        with pytest.raises(CheckpointError, match=r"No space|Full") as caught:
            save(folder, "mine", FRESH)
        assert_one_line(caught, folder)
    assert files_in(folder.parent) == before
    assert [path.name for path in folder.parent.iterdir()] == ["one"]


def test_what_a_kill_between_the_renames_left_is_settled(folder):
    former = folder.with_name(".one.former")
    folder.rename(former)
    settle(folder.parent)
    assert as_bytes(load(folder, "mine")) == as_bytes(FORMER)
    shutil.copytree(folder, former)
    save(folder.with_name("two"), "mine", FRESH)
    settle(folder.parent)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["one", "two"]


def edit(name, change):
    """A kind of damage: the file's bytes changed, or the file gone where nothing is left."""

    def damage(folder):
        path = folder / name
        content = change(path.read_bytes())
        path.unlink()
        if content is not None:
            path.write_bytes(content)

    return damage


def with_state(**changes):
    """A kind of damage: other entries in ``state.json``; None takes one out."""

    def change(content):
        state = json.loads(content) | changes
        return json.dumps({name: value for name, value in state.items() if value is not None}).encode()

    return edit("state.json", change)


TENSORS, STATE = "tensors.safetensors", "state.json"


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (edit(TENSORS, lambda content: content[:-5]), TENSORS),
        (edit(TENSORS, lambda _: b""), TENSORS),
        (edit(TENSORS, lambda _: None), TENSORS),
        (edit(TENSORS, lambda content: content[:-1] + bytes([content[-1] ^ 1])), TENSORS),
        (edit(STATE, lambda content: content[:-5]), STATE),
        (edit(STATE, lambda _: b"\xff{}"), STATE),
        (edit(STATE, lambda _: b"[1, 2]"), STATE),
        (edit(STATE, lambda _: None), STATE),
        (edit(STATE, lambda text: text.replace(b'"value": 1', b'"value": 7')), STATE),
        (with_state(identity=None), STATE),
        (with_state(content={"tensor": "elsewhere"}), STATE),
        (with_state(format=99), "99"),
        (with_state(identity="theirs"), "theirs"),
    ],
)
def test_a_checkpoint_that_cannot_be_used_is_one_line_and_stays_as_it_is(folder, damage, named):
    damage(folder)
    before = files_in(folder.parent)
    with one_line(CheckpointError, folder, named):
        load(folder, "mine")
    assert files_in(folder.parent) == before
