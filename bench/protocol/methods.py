"""Finding methods by name: every module of ``baselines`` is one, and ``comera`` is ``comera.training``.

A new rival is one new file in ``baselines/``; nothing here needs to know it.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
import pkgutil
import types
import typing
from collections.abc import Mapping
from typing import Any

import baselines
from bench.core.cell import Cell
from bench.errors import ConfigError
from bench.protocol import Method
from bench.step.forward_backward import ForwardBackward


@functools.cache
def available() -> tuple[str, ...]:
    """Names of all methods, CoMERA first."""
    rivals = sorted(module.name for module in pkgutil.iter_modules(baselines.__path__) if module.name[0] != "_")
    return ("comera", *rivals)


def _module(name: str) -> types.ModuleType:
    if name not in available():
        raise ConfigError(f"method is {name!r}; allowed: {', '.join(available())}.")
    return importlib.import_module("comera.training" if name == "comera" else f"baselines.{name}")


def variants(name: str) -> tuple[str, ...]:
    """Names of a method's variants as arms have them: the default one, first, is empty."""
    return ("", *(variant for variant in _module(name).VARIANTS[1:]))


def parse_arm(arm: str) -> tuple[str, str]:
    """Split ``method`` or ``method:variant``. The default variant's name is dropped, so that one arm has one name.

    Raises:
        ConfigError: an unknown method or variant.
    """
    name, colon, variant = arm.partition(":")
    variants = _module(name).VARIANTS
    if colon and variant not in variants:
        named = [known for known in variants if known]
        offers = f"allowed: {', '.join(named)}" if named else "it has none"
        raise ConfigError(f"method is {arm!r}; {name} has no variant {variant!r}, {offers}.")
    return name, "" if variant == variants[0] else variant


def default_settings(name: str) -> dict[str, Any]:
    """The method's own settings as a plain dictionary."""
    return dataclasses.asdict(_module(name).Settings())


def checked_settings(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Fill up, check and normalise the settings of a method.

    Raises:
        ConfigError: an unknown setting, a value of the wrong type, or one that the method refuses.
    """
    settings = dataclasses.asdict(build_dataclass(_module(name).Settings, values, f"settings.{name}"))
    if settings.get("ratio", 0) is None:  # so that cells without one are the same as before there were any
        del settings["ratio"]
    return settings


def build_dataclass(kind: type, values: Mapping[str, Any], where: str) -> Any:
    """Make a dataclass from configuration values, with type checks and one sentence for a wrong one.

    A whole number where a real one is expected becomes real, so that equal settings are equal cells.

    Raises:
        ConfigError: an unknown field, a value of the wrong type, or a ValueError of the dataclass itself.
    """
    annotations = typing.get_type_hints(kind)
    if not isinstance(values, Mapping):
        raise ConfigError(
            f"{where} is {values!r}; allowed: single settings, as in {where}.{next(iter(annotations))}=…."
        )
    checked = {}
    for field, value in values.items():
        if field not in annotations:
            raise ConfigError(f"{where}.{field} is unknown; allowed: {', '.join(annotations)}.")
        checked[field] = _checked(f"{where}.{field}", value, annotations[field])
    try:
        return kind(**checked)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def _checked(name: str, value: Any, annotation: Any) -> Any:
    """A value of one of the annotated types, or of numbers as a tuple; raises ConfigError over any other."""
    if annotation == tuple[float, ...]:
        if not isinstance(value, list | tuple) or not all(type(number) in (int, float) for number in value):
            raise ConfigError(f"{name} is {value!r}; allowed: a list of numbers, such as [0.8,0.5].")
        if wrong := [number for number in value if not math.isfinite(number)]:
            raise ConfigError(f"{name} has {wrong[0]!r}; allowed: finite numbers.")
        return tuple(map(float, value))
    allowed = typing.get_args(annotation) or (annotation,)
    if type(value) is int and float in allowed and int not in allowed:
        value = float(value)
    if type(value) not in allowed:
        names = " or ".join("null" if option is type(None) else option.__name__ for option in allowed)
        raise ConfigError(f"{name} is {value!r}; allowed: a value of type {names}.")
    if type(value) is float and not math.isfinite(value):
        raise ConfigError(f"{name} is {value!r}; allowed: finite numbers.")
    return value


def build(name: str, variant: str, settings: Mapping[str, Any]) -> Method:
    """The method ready to adapt a model."""
    module = _module(name)
    return module.build(module.Settings(**settings), variant or module.VARIANTS[0])


def build_for(cell: Cell) -> Method:
    """The method of a cell; without the optimizer's step where its workload has none."""
    method = build(cell.method, cell.variant, cell.method_settings)
    return method if cell.workload_settings.get("optimizer_step", True) else ForwardBackward(method)
