"""Measure ``train``: runs to the end of the workload's training plan; one that was stopped goes on where it was."""

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from multiprocessing.connection import Connection
from typing import Any

import torch

from bench.core.cell import Cell
from bench.core.checked import build_dataclass
from bench.errors import ConfigError
from bench.measures import Measure
from bench.measures.training import Upkeep, train
from bench.processes.process import CellProcess
from bench.protocol import CellFailure, Data, EarlyLate, Outcome, Session, Stage, Workload
from bench.protocol.methods import build
from bench.step.timing import steady_allocator
from bench.workloads import open_cell_workload


def training_cells(cell: Cell, values: Mapping[str, Any], workload: Workload) -> list[Cell]:
    """The training runs of one arm.

    ``cell`` is without stages, ``values`` the section ``training`` of a configuration. Raises ConfigError: a workload
    without an epoch or a metric, a wrong value, or a stage that the method cannot train.
    """
    rows = workload.training_examples
    if rows is None:
        raise ConfigError(f"measure is 'train', but {workload.name} has no epoch; allowed: run, predict.")
    if workload.metric is None:
        raise ConfigError(f"measure is 'train', but {workload.name} has no metric to evaluate; allowed: run, predict.")
    plan = build_dataclass(workload.training_plan, _of_plan(values, workload.training_plan), "training")
    if plan.static and cell.batch_size > rows:
        raise ConfigError(f"batch_size is {cell.batch_size}; allowed: 1 to the {rows} training rows.")
    steps_per_epoch = rows // cell.batch_size if plan.static else workload.batches_per_epoch(cell.batch_size)
    method = build(cell.method, cell.variant, cell.method_settings)
    runs = plan.runs(steps_per_epoch, method.shrinks)
    _check_stages([stage for run in runs for stage in run], cell, workload)
    common = {"steps_per_epoch": steps_per_epoch, "static": plan.static, "time_limit_s": plan.time_limit_s}
    return [replace(cell, training={"stages": [asdict(stage) for stage in run], **common}) for run in runs]


def _of_plan(values: Mapping[str, Any], plan: type[Any]) -> dict[str, Any]:
    """The values that are meant for a plan: a configuration holds the settings of all plans.

    Settings of the usual plan, which this one lacks, are left out at their default; any other plan's where they are
    null, which also stands for the default of the plan's own.
    """
    usual, own = asdict(EarlyLate()), {field.name for field in fields(plan)}

    def is_meant(name: str, value: Any) -> bool:
        if name not in usual:
            return value is not None
        return name in own or (tuple(value) if isinstance(value, list) else value) != usual[name]

    return {name: value for name, value in values.items() if is_meant(name, value)}


def _check_stages(stages: list[Stage], cell: Cell, workload: Workload) -> None:
    """Raises ConfigError over a stage that the method cannot train, or a size that the model cannot have."""
    method = build(cell.method, cell.variant, cell.method_settings)
    model = None
    for stage in stages if method.shrinks else ():
        if reason := method.stage_unsupported(stage):
            raise ConfigError(reason)
        if stage.target_mib is None:
            continue
        if model is None:
            with torch.device("meta"):
                model = method.adapt(workload.build(), workload.targets())
        try:
            method.begin_stage(stage, model, torch.optim.SGD(model.parameters()))
        except ValueError as error:
            raise ConfigError(f"training.{error}".replace("target_mib", "targets_mib", 1)) from None


def train_cell(connection: Connection, cell: Cell, data: Data, upkeep: Upkeep) -> None:
    """Train a cell; answers ``("progress", {step, steps, text})`` now and then, at last ``("done", columns)``."""
    steady_allocator()
    workload = open_cell_workload(cell, data)
    columns = train(cell, workload, upkeep, lambda progress: connection.send(("progress", progress)))
    connection.send(("done", {"columns": columns}))


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


MEASURE = Measure(
    name="train",
    words="a training run to its end, with its learning curve, sizes and the steps of the trained model",
    outcomes=lambda cells, session: ([_trained(cell, session)] for cell in cells),  # one run after another
    unsupported=_unsupported,
    expand=lambda cell, config, workload: training_cells(cell, config["training"], workload),
    timed=False,
    resumes=True,
    cost=_cost,
    seconds=90.0,
)
