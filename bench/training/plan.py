"""The training runs of an arm: the stages of its workload's plan, as cells."""

import functools
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import torch

from bench.core.cell import Arm, Cell
from bench.core.checked import build_dataclass
from bench.core.identity import LATER, identity
from bench.errors import ConfigError
from bench.protocol import EarlyLate, Stage, Workload
from bench.protocol.methods import build, default_settings
from bench.protocol.recipe import Recipe, recipe_unsupported


@dataclass(frozen=True)
class Run:
    """A training run as its cell holds it; the last three only where its plan has them.

    Args:
        stages: one after another.
        steps_per_epoch: of all ranks together.
        static: whether all batches have one shape.
        time_limit_s: after which it is given up; it can be resumed.
        schedule: how rates rise and fall, see :func:`bench.training.run.scheduled_share`.
        curve_steps: steps between points of the learning curve; None for an epoch.
        recipe: fields of :class:`bench.protocol.recipe.Recipe`.
    """

    stages: list[Stage]
    steps_per_epoch: int
    static: bool
    time_limit_s: float
    schedule: dict[str, Any] | None = field(default=None, metadata=LATER)
    curve_steps: int | None = field(default=None, metadata=LATER)
    recipe: dict[str, Any] | None = field(default=None, metadata=LATER)


def training_cells(cell: Cell, values: Mapping[str, Any], workload: Workload) -> list[Cell]:
    """Return the training runs of one arm.

    ``cell`` is without stages, ``values`` the section ``training`` of a configuration. Raises ConfigError: a workload
    without an epoch or a metric, a wrong value, or a stage that the method cannot train.
    """
    rows = workload.training_examples
    if rows is None:
        raise ConfigError(f"measure is 'train', but {workload.name} has no epoch; allowed: run, predict.")
    # What is cached takes long to compute, as probes do, and is never None.
    costly = isinstance(inspect.getattr_static(workload, "metric", None), functools.cached_property)
    if not costly and workload.metric is None:
        raise ConfigError(f"measure is 'train', but {workload.name} has no metric to evaluate; allowed: run, predict.")
    plan = plan_of(values, workload)
    batches = rows // cell.batch_size if plan.static else workload.batches_per_epoch(cell.batch_size)
    steps_per_epoch = max(batches // cell.world_size, 1)  # what ranks cannot share is left out
    method = build(cell.method, cell.variant, cell.method_settings)
    runs = plan.runs(steps_per_epoch, method.shrinks)
    _check_stages([stage for run in runs for stage in run], cell, workload)
    common: Any = (steps_per_epoch, plan.static, plan.time_limit_s)
    own: Any = [getattr(plan, name, None) for name in ("schedule", "curve_steps", "recipe")]
    return [replace(cell, training=identity(Run(list(run), *common, *own))) for run in runs]


def plan_of(values: Mapping[str, Any], workload: Workload | type[Any]) -> Any:
    """Return the training plan of a workload, or of its class, from the section ``training``.

    Raises ConfigError: a wrong value.
    """
    return build_dataclass(workload.training_plan, _of_plan(values, workload.training_plan), "training")


def check_recipe(recipe: Recipe, arms: Sequence[tuple[Arm, Mapping[str, Any]]]) -> None:
    """Raise ConfigError if a recipe cannot train an arm, or replaces rates that are set for its method."""
    for arm, settings in arms:
        called = f"{arm.method}:{arm.variant}" if arm.variant else arm.method
        if reason := recipe_unsupported(recipe, build(arm.method, arm.variant, settings), called):
            raise ConfigError(reason)
        usual = default_settings(arm.method)
        for name, value in settings.items():
            is_rate = name.startswith("lr") and name != "lr_ranks"
            if recipe.optimizer != "own" and is_rate and value != usual[name]:
                raise ConfigError(
                    f"settings.{arm.method}.{name} is {value:g}, which training.optimizer={recipe.optimizer} sets "
                    "aside; give training.lr for the matrices and training.lr_rest for the rest."
                )


def _of_plan(values: Mapping[str, Any], plan: type[Any]) -> dict[str, Any]:
    """Return the values meant for a plan: a configuration holds the settings of all plans.

    Settings of the usual plan, which this one lacks, are left out at their default; any other plan's where they are
    null, which also stands for the default of the plan's own.
    """
    usual, own = asdict(EarlyLate()), {one.name for one in fields(plan)}

    def is_meant(name: str, value: Any) -> bool:
        if name not in usual:
            return value is not None
        return name in own or (tuple(value) if isinstance(value, list) else value) != usual[name]

    return {name: value for name, value in values.items() if is_meant(name, value)}


def _check_stages(stages: list[Stage], cell: Cell, workload: Workload) -> None:
    """Raise ConfigError if the method cannot train a stage, or the model cannot have a stage's size."""
    method = build(cell.method, cell.variant, cell.method_settings)
    model = None
    for stage in stages if method.shrinks else ():
        if reason := method.stage_unsupported(stage):
            raise ConfigError(reason)
        if stage.target_mib is None and stage.target is None:
            continue
        if model is None:
            with torch.device("meta"):
                model = method.adapt(workload.build(), workload.targets())
        try:
            method.begin_stage(stage, model, torch.optim.SGD(model.parameters()))
        except ValueError as error:
            if stage.target_mib is None:
                raise ConfigError(f"a late stage's {error}") from None
            raise ConfigError(f"training.{error}".replace("target_mib", "targets_mib", 1)) from None
