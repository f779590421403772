"""Finding methods by name: every module of ``baselines`` is one, and ``comera`` is ``comera.training``.

A new rival is one new file in ``baselines/``; nothing here names it.
"""

import dataclasses
import functools
import importlib
import pkgutil
import types
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

import baselines
from bench.core.cell import CHECKPOINTED, EXCHANGES, MATCHES, Arm, Cell
from bench.core.checked import build_dataclass
from bench.core.identity import identity
from bench.errors import ConfigError
from bench.protocol import Change, Method
from bench.protocol.recipe import Prescribed, Recipe


@functools.cache
def available() -> tuple[str, ...]:
    """Return names of all methods, CoMERA first."""
    rivals = sorted(module.name for module in pkgutil.iter_modules(baselines.__path__) if module.name[0] != "_")
    return ("comera", *rivals)


def _module(name: str) -> types.ModuleType:
    if name not in available():
        raise ConfigError(f"method is {name!r}; allowed: {', '.join(available())}.")
    return importlib.import_module("comera.training" if name == "comera" else f"baselines.{name}")


def purpose(name: str) -> str:
    """Return the first line of the docstring of a method's module.

    >>> purpose("lora")
    'LoRA: linear weights are frozen, low-rank adapters beside them train'
    """
    return (_module(name).__doc__ or "").partition("\n")[0].rstrip(".").replace("``", "")


def variants(name: str) -> tuple[str, ...]:
    """Return the names of a method's variants in arms: the default one, first, is empty."""
    return ("", *_module(name).VARIANTS[1:])


def parse_arm(arm: str) -> Arm:
    """Return the arm of a name, whose default variant is empty; an unknown part raises ConfigError.

    >>> parse_arm("dense+checkpoint+powersgd_4")
    Arm(method='dense', variant='', checkpoint=True, exchange='powersgd_4', match='')
    """
    named = Arm.parse(arm)
    if named.exchange not in ("", *EXCHANGES):
        allowed = ", ".join((CHECKPOINTED[1:], *EXCHANGES))
        raise ConfigError(f"method is {arm!r}; after a + and in this order allowed: {allowed}.")
    variants = _module(named.method).VARIANTS
    if named.match and ("ranks_of_ratio" not in default_settings(named.method) or named.match not in MATCHES):
        matching = [f"{method}@{each}" for method in _matching() for each in MATCHES]
        raise ConfigError(f"method is {arm!r}; allowed with an @: {', '.join(matching)}.")
    if named.variant and named.variant not in variants:
        others = ", ".join(filter(None, variants))
        offers = f"allowed: {others}" if others else "it has none"
        raise ConfigError(f"method is {arm!r}; {named.method} has no variant {named.variant!r}, {offers}.")
    return dataclasses.replace(named, variant="") if named.variant == variants[0] else named


def _matching() -> list[str]:
    """Return the names of the methods that can have CoMERA's size, or its ranks."""
    return [name for name in available() if "ranks_of_ratio" in default_settings(name)]


def default_settings(name: str) -> dict[str, Any]:
    """Return the method's own settings as a plain dictionary."""
    return dataclasses.asdict(_module(name).Settings())


def takes_ratio(name: str, variant: str) -> bool:
    """Return whether a job's ratio is meant for a method in a variant.

    >>> takes_ratio("low_rank", "lean"), takes_ratio("dense", "narrow"), takes_ratio("dense", "")
    (True, True, False)
    """
    variants = getattr(_module(name), "RATIO_VARIANTS", None)
    return "ratio" in default_settings(name) and (variants is None or variant in variants)


def checked_settings(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a method with defaults, checked; raises ConfigError for a wrong one."""
    return identity(build_dataclass(_module(name).Settings, values, f"settings.{name}"))


def build(name: str, variant: str, settings: Mapping[str, Any]) -> Method:
    """Return the method ready to adapt a model."""
    module = _module(name)
    return module.build(module.Settings(**settings), variant or module.VARIANTS[0])


def build_for(cell: Cell) -> Method:
    """Return the method of a cell, trained by its recipe if it has one; without a step where its workload has none."""
    method = build(cell.method, cell.variant, cell.method_settings)
    if recipe := cell.training.get("recipe"):
        return Prescribed(method, Recipe(**recipe))
    return method if cell.workload_settings.get("optimizer_step", True) else ForwardBackward(method)


class NoUpdate(torch.optim.Optimizer):
    """Clears gradients as any optimizer does, changes no parameter and keeps no state."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Do nothing."""


class ForwardBackward:
    """A method that adapts the model as another does, and then neither adds to the task loss nor updates anything.

    It has the form of :class:`bench.protocol.Method`, so that timing, capture and memory treat both alike.
    """

    def __init__(self, method: Method) -> None:
        self._method = method

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return an optimizer without effect or state."""
        return NoUpdate(model)

    def objective(self, task_loss: torch.Tensor, model: nn.Module) -> torch.Tensor:  # noqa: ARG002
        """Return the task loss."""
        return task_loss

    def after_step(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> Change:  # noqa: ARG002
        """Do nothing."""
        return "nothing"

    def rare_events(self) -> list[Any]:
        """Return no events: they serve updates."""
        return []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)
