"""Measure ``train``: a training run to its end, which goes on from its last checkpoint."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from multiprocessing.connection import Connection
from typing import Any

import torch

from bench.core.cell import Cell
from bench.core.checked import build_dataclass
from bench.errors import ConfigError
from bench.measures import Measure
from bench.measures.training import Upkeep, train
from bench.processes.process import CellFailure, CellProcess
from bench.processes.schedule import Outcome, Session
from bench.protocol import Data, Stage, Workload
from bench.protocol.methods import build
from bench.step.timing import steady_allocator
from bench.workloads import open_cell_workload


@dataclass(frozen=True)
class TrainingSettings:
    """Stages of a training run. Lengths given in steps go before those given in epochs.

    Args:
        early_epochs, late_epochs: passes over the training rows in each stage.
        early_steps, late_steps: optimizer steps in each stage, or null.
        static: pad every batch to the sequence length; otherwise batches are bucketed by length.
        time_limit_s: seconds after which a run is given up as ``timeout``; it can be resumed.
    """

    early_epochs: float = 6.0
    late_epochs: float = 3.0
    early_steps: int | None = None
    late_steps: int | None = None
    static: bool = False
    time_limit_s: float = 604_800.0

    def __post_init__(self) -> None:
        for field in ("early_epochs", "late_epochs", "time_limit_s"):
            if not getattr(self, field) > 0:
                raise ValueError(f"{field} is {getattr(self, field)}; allowed: numbers above 0.")
        for field in ("early_steps", "late_steps"):
            steps = getattr(self, field)
            if steps is not None and steps < 1:
                raise ValueError(f"{field} is {steps}; allowed: whole numbers from 1 up, or null.")

    def stages(self, steps_per_epoch: int) -> tuple[Stage, Stage]:
        """The early stage and the late one, without target."""
        early = self.early_steps or max(round(self.early_epochs * steps_per_epoch), 1)
        late = self.late_steps or max(round(self.late_epochs * steps_per_epoch), 1)
        return Stage("early", early), Stage("late", late)


def training_cells(cell: Cell, values: Mapping[str, Any], workload: Workload) -> list[Cell]:
    """The runs of one arm: early and one late run per target where the method shrinks, else both stages in one run.

    Without a target there is no late stage.
    """
    if workload.training_examples is None:
        raise ConfigError(f"measure is 'train', but {cell.workload} has no epoch; allowed: run, predict.")
    names = ("targets", "targets_mib")
    allowed = (*(field.name for field in fields(TrainingSettings)), *names)
    for name in values:
        if name not in allowed:
            raise ConfigError(f"training.{name} is unknown; allowed: {', '.join(allowed)}.")
    targets = {name: _numbers(f"training.{name}", values.get(name)) for name in names}
    settings = build_dataclass(
        TrainingSettings, {name: value for name, value in values.items() if name not in targets}, "training"
    )
    for target in targets["targets"]:
        if not 0 < target <= 1:
            raise ConfigError(f"training.targets has {target:g}; allowed: shares above 0 and at most 1.")
    for target in targets["targets_mib"]:
        if not math.isfinite(target):
            raise ConfigError(f"training.targets_mib has {target:g}; allowed: finite numbers.")
    rows = workload.training_examples
    if settings.static and cell.batch_size > rows:
        raise ConfigError(f"batch_size is {cell.batch_size}; allowed: 1 to the {rows} training rows.")
    steps_per_epoch = rows // cell.batch_size if settings.static else workload.batches_per_epoch(cell.batch_size)
    early, late = settings.stages(steps_per_epoch)
    method = build(cell.method, cell.variant, cell.method_settings)
    any_target = targets["targets"] or targets["targets_mib"]
    stages: list[tuple[Stage, ...]] = [(early, late) if any_target else (early,)]
    if method.shrinks:
        by_share = [replace(late, target=target) for target in targets["targets"]]
        by_size = [replace(late, target_mib=target) for target in targets["targets_mib"]]
        stages = [(early,), *((early, one) for one in (*by_share, *by_size))]
        if by_size:
            with torch.device("meta"):
                model = method.adapt(workload.build(), workload.targets())
        for one in (*by_share, *by_size):
            if reason := method.stage_unsupported(one):
                raise ConfigError(reason)
            if one.target_mib is not None:
                try:
                    method.begin_stage(one, model, torch.optim.SGD(model.parameters()))
                except ValueError as error:
                    raise ConfigError(f"training.{error}".replace("target_mib", "targets_mib", 1)) from None
    common = {"steps_per_epoch": steps_per_epoch, "static": settings.static, "time_limit_s": settings.time_limit_s}
    return [replace(cell, training={"stages": [asdict(stage) for stage in run], **common}) for run in stages]


def _numbers(name: str, values: Any) -> list[float]:
    """A list of numbers from the configuration."""
    fits = isinstance(values, list) and all(type(value) in (int, float) for value in values)
    if not fits:
        raise ConfigError(f"{name} is {values!r}; allowed: a list of numbers, such as [0.8,0.5].")
    return [float(value) for value in values]


def train_cell(connection: Connection, cell: Cell, data: Data, upkeep: Upkeep) -> None:
    """Train a cell; answers ``("progress", {step, steps, text})`` now and then, at last ``("done", columns)``."""
    steady_allocator()
    workload = open_cell_workload(cell, data)
    columns = train(cell, workload, upkeep, lambda progress: connection.send(("progress", progress)))
    connection.send(("done", {"columns": columns}))


def _outcomes(cells: Sequence[Cell], session: Session) -> Iterator[list[Outcome]]:
    """One run after another."""
    return ([_trained(cell, session)] for cell in cells)


def _trained(cell: Cell, session: Session) -> Outcome:
    """Train one cell in a process of its own."""
    outcome = Outcome(cell)
    process = CellProcess(train_cell, cell, session.data, cell.training["time_limit_s"], session.upkeep(cell))
    done = 0.0
    try:
        while "columns" not in (answer := process.answer()):
            share = answer["step"] / answer["steps"]
            session.advance(cell, share - done)
            done = share
            if answer["text"]:
                session.note(cell, answer["text"])
        outcome.columns.update(answer["columns"])
        outcome.message = outcome.columns.pop("message", "")
    except CellFailure as failure:
        outcome.fail(failure)
    finally:
        process.stop()
    return outcome


def _unsupported(cell: Cell) -> str | None:
    """Why the batches of a cell cannot be captured, or None."""
    if cell.cuda_graph and cell.device == "cuda" and not cell.training["static"]:
        return "cuda_graph=true needs batches of one shape; use training.static=true or cuda_graph=false."
    return None


def _cost(cell: Cell) -> float:
    return float(sum(stage["steps"] for stage in cell.training["stages"]) * (1.0 + 0.05 * cell.batch_size))


def _expand(cell: Cell, config: Mapping[str, Any], workload: Workload) -> list[Cell]:
    return training_cells(cell, config["training"], workload)


MEASURE = Measure(
    name="train",
    words="a training run to its end, with its learning curve, sizes and the steps of the trained model",
    outcomes=_outcomes,
    unsupported=_unsupported,
    expand=_expand,
    timed=False,
    resumes=True,
    cost=_cost,
    seconds=90.0,
)
