"""Checkpoints of a training run: a folder with ``tensors.safetensors`` and ``state.json``, no pickle.

A checkpoint is written beside its final name, flushed to the disk and renamed, so it is there whole or not at all; the
one before it is removed only then. Numbers, names and lists go to the JSON file, every tensor to the other one, under a
path such as ``optimizer/state/3/exp_avg``.
"""

import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from bench.core.files import locked, partial_folder
from bench.core.reading import SOURCE_BYTES, open_regular, read_regular
from bench.errors import Mistake

FORMAT = 2  # raise when the meaning of the content changes
_TENSORS, _STATE = "tensors.safetensors", "state.json"
FORMER = re.compile(r"^\.(.*)\.former$")  # what a checkpoint is called while the next one takes its place


class CheckpointError(Mistake):
    """A checkpoint that cannot be used or written; the message is one sentence."""


def _split(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Return the value with its tensors moved to ``tensors`` and their paths in their place."""
    if isinstance(value, torch.Tensor):
        tensors[path] = value.detach().cpu().contiguous().clone()  # safetensors takes no shared storage
        return {"tensor": path}
    if isinstance(value, dict):
        return {"dict": [[key, _split(item, f"{path}/{key}", tensors)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return {"list": [_split(item, f"{path}/{i}", tensors) for i, item in enumerate(value)]}
    return {"value": value}


def _join(value: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Any:
    """Return the inverse of :func:`_split`; tuples come back as lists."""
    [(kind, content)] = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: _join(item, tensors) for key, item in content}
    if kind == "list":
        return [_join(item, tensors) for item in content]
    return content


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def save(folder: Path, identity: str, content: dict[str, Any]) -> None:
    """Put ``content``, nested dictionaries and lists of tensors and JSON values, in the place of a checkpoint.

    Other processes may save to ``folder`` too: the last one to end is the one that stays. ``identity`` says whose
    checkpoint it is. Raises CheckpointError: it cannot be written, as on a full disk; the one before it stays.
    """
    tensors: dict[str, torch.Tensor] = {}
    state = {"format": FORMAT, "identity": identity, "content": _split(content, "", tensors)}
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with partial_folder(folder.parent, f"{folder.name}-") as partial:
            fresh = partial / folder.name
            fresh.mkdir()
            save_file(tensors, str(fresh / _TENSORS))
            state["tensors_sha256"] = _hash(fresh / _TENSORS)
            state["content_sha256"] = _content_hash(state["content"])
            (fresh / _STATE).write_text(json.dumps(state, allow_nan=False), encoding="utf-8")
            for path in (fresh / _TENSORS, fresh / _STATE, fresh):
                _flush(path)
            with locked(folder.parent):
                former = folder.with_name(f".{folder.name}.former")
                if folder.exists():
                    _remove(former)
                    folder.rename(former)
                fresh.rename(folder)
                _flush(folder.parent)
                _remove(former)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(f"checkpoint {folder} cannot be written ({reason}); the one before it stays.") from None


def settle(folder: Path) -> None:
    """Undo what a kill in the middle of :func:`save` has left among the checkpoints in ``folder``."""
    if not any(FORMER.match(path.name) for path in folder.glob(".*.former")):
        return
    with locked(folder):
        for former in folder.glob(".*.former"):
            final = former.with_name(FORMER.sub(r"\1", former.name))
            if (final / _STATE).is_file():
                _remove(former)
            elif not final.exists():
                former.rename(final)


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _hash(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _content_hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def find(folder: Path) -> Path | None:
    """Return the path of ``folder``'s checkpoint, under its former name after a kill between two renames."""
    former = folder.with_name(f".{folder.name}.former")
    return next((path for path in (folder, former) if (path / _STATE).is_file()), None)


def load(folder: Path, identity: str) -> dict[str, Any] | None:
    """Return the content of the checkpoint in ``folder``, or None if there is none. Nothing is changed on the disk.

    Raises CheckpointError: another run's checkpoint, a newer format, a damaged or truncated file.
    """
    place = find(folder)
    if place is None:
        if folder.exists():
            raise CheckpointError(f"checkpoint {folder} lacks {_STATE}; name another results folder or remove it.")
        return None
    damaged = CheckpointError(f"checkpoint {place}: {_STATE} is damaged; remove the checkpoint to start anew.")
    try:
        state = json.loads(read_regular(place / _STATE, SOURCE_BYTES))
        form, owner, digest = state["format"], state["identity"], state["tensors_sha256"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise damaged from None
    if form != FORMAT:
        raise CheckpointError(f"checkpoint {place} has format {form}; this program reads format {FORMAT}.")
    if owner != identity:
        raise CheckpointError(
            f"checkpoint {place} belongs to another model or run ({str(owner)[:80]}…), not to this one; "
            "give resume=false to start anew, or name another results folder."
        )
    try:
        if _hash(place / _TENSORS) != digest:
            raise ValueError("its content has changed")
        tensors = load_file(str(place / _TENSORS))
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(
            f"checkpoint {place}: {_TENSORS} is damaged or truncated ({error}); remove the checkpoint to start anew."
        ) from None
    try:
        if _content_hash(state["content"]) != state["content_sha256"]:
            raise damaged
        content = _join(state["content"], tensors)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise damaged from None
    if not isinstance(content, dict):
        raise damaged
    return content
