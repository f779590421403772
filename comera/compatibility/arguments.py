"""Checks of arguments that public functions share: what is a module, an optimizer, a number, a loss, a folder.

A wrong value raises ValueError before anything is changed, in a sentence with the argument, the value and what is
allowed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from torch import nn


def shown(value: object) -> str:
    """Return a value as an error shows it: tensors by shape, anything else by at most 60 characters.

    Example:
        >>> shown(torch.zeros(2, 3)), shown("x"), shown(nn.Linear(1, 1))
        ('a tensor of shape (2, 3)', "'x'", 'of class Linear')
    """
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, nn.Module | torch.optim.Optimizer):
        return f"of class {type(value).__name__}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def check_module(model: object, name: str = "model") -> None:
    """Raise ValueError unless the value is a module.

    Example:
        >>> check_module(None)
        Traceback (most recent call last):
        ...
        ValueError: model is None; it must be a torch.nn.Module.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"{name} is {shown(model)}; it must be a torch.nn.Module.")


def check_optimizer(optimizer: object, name: str = "optimizer") -> None:
    """Raise ValueError unless the value is an optimizer of torch, or a wrapper of accelerate around one."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(f"{name} is {shown(optimizer)}; it must be a torch.optim.Optimizer.")


def check_number(
    name: str,
    value: object,
    allowed: str = "a finite number",
    fits: Callable[[float], bool] = lambda _: True,
) -> float:
    """Return a finite number that fits; raise ValueError for anything else, booleans included.

    Args:
        name: of the argument, for the sentence.
        value: the argument.
        allowed: what it must be, for the sentence.
        fits: whether a finite number is allowed.

    Example:
        >>> check_number("lr", 0.1), check_number("gamma", True)
        Traceback (most recent call last):
        ...
        ValueError: gamma is True; it must be a finite number.
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value) or not fits(float(value)):
        raise ValueError(f"{name} is {shown(value)}; it must be {allowed}.")
    return float(value)


def check_switch(name: str, value: object) -> None:
    """Raise ValueError unless the value is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {shown(value)}; it must be True or False.")


def check_scalar(name: str, value: object) -> None:
    """Raise ValueError unless the value is a tensor of one entry, as a loss is."""
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        raise ValueError(f"{name} is {shown(value)}; it must be a tensor of one entry, such as a mean loss.")


def check_callable(name: str, value: object, example: str) -> None:
    """Raise ValueError unless the value can be called."""
    if not callable(value):
        raise ValueError(f"{name} is {shown(value)}; it must be a function, such as {example}.")


def check_mapping(name: str, value: object, of: str) -> Mapping[Any, Any]:
    """Return a mapping whose keys are strings; raise ValueError for anything else."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"{name} is {shown(value)}; it must be a dictionary of {of}.")
    return value


def check_names(name: str, value: object) -> None:
    """Raise ValueError unless the value is an iterable of strings, and no string itself."""
    if isinstance(value, str) or not isinstance(value, Iterable) or not all(isinstance(each, str) for each in value):
        raise ValueError(f"{name} is {shown(value)}; it must be a list of names of layers.")


def check_folder(folder: object) -> Path:
    """Return the path of a folder that is there or can be made; raise ValueError for a file or for no path."""
    if not isinstance(folder, str | os.PathLike) or not os.fspath(folder):
        raise ValueError(f"folder is {shown(folder)}; it must be the path of a folder.")
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise ValueError(f"folder is {str(path)!r}, which is a file; give the path of a folder.")
    return path
