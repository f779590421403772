"""Cost of a step of a trained model: memory and work at its ranks, and times beside a model at full ranks."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from bench.core import checkpoint
from bench.core.cell import Cell
from bench.estimate.work import predict
from bench.protocol import Role, Workload
from bench.protocol.methods import build_for
from bench.step.low_precision import adapted_model
from bench.step.timing import mean_ms, take_turns
from bench.step.train_step import TrainStep, batches_on, build_step
from bench.training.run import Upkeep
from comera import set_ranks
from comera.low_precision.scaling import kernel_on

_BLOCKS, _STEPS = 9, 2  # interleaved blocks, after one that warms up, and steps of each model in every one


class AtRanks:
    """The method of a cell, with models that have the ranks of a truncated one."""

    def __init__(self, cell: Cell, ranks: Mapping[str, Sequence[int]]) -> None:
        self._method, self._ranks = build_for(cell), ranks

    def adapt(self, model: nn.Module, targets: Mapping[str, Role]) -> nn.Module:
        """Adapt, then give every tensorized layer its ranks."""
        model = self._method.adapt(model, targets)
        set_ranks(model, self._ranks)
        return model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)


def predicted_columns(cell: Cell, workload: Workload, ranks: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """Predict memory and work of a step at these ranks, padded to the full sequence length."""
    asked = (cell.batch_size, cell.precision, cell.device, cell.seed, cell.checkpoint)
    prediction = predict(workload, AtRanks(cell, ranks), *asked)
    known = ("parameters", "stored_mib", "arithmetic")
    return {name: value for name, value in prediction.columns().items() if name not in known}


def trained_model(cell: Cell, workload: Workload, upkeep: Upkeep) -> nn.Module | None:
    """Return the model of a training's last checkpoint, on the CPU; None where there is none.

    Raises CheckpointError: the checkpoint cannot be used.
    """
    restored = checkpoint.load(upkeep.folder, upkeep.identity)
    if restored is None:
        return None
    model = adapted_model(build_for(cell), workload.build(), workload.targets(), cell.precision, kernel_on("cpu"))
    set_ranks(model, restored["ranks"])
    model.load_state_dict(restored["model"])
    return model


def timed_columns(cell: Cell, workload: Workload, trained: TrainStep) -> dict[str, Any]:
    """Time steps of the trained model and of one at full ranks, in interleaved blocks; both train on for them."""
    steps = {"trained": trained, "full": build_step(cell, workload, bool(cell.training["static"]))}
    [batch] = batches_on(cell, workload, 1)
    for step in steps.values():
        for _ in range(step.steps_before_capture):
            step(batch)

    def turn(step: TrainStep) -> list[float]:
        return [mean_ms(lambda: step(batch), 1, cell.device == "cuda") for _ in range(_STEPS)]

    blocks = take_turns({name: functools.partial(turn, step) for name, step in steps.items()}, _BLOCKS + 1)
    times = {name: several[1:] for name, several in blocks.items()}  # the first one warms up
    middle = sorted(ms for block in times["trained"] for ms in block)
    return {"step_time_median_ms": middle[len(middle) // 2], "step_ms": times}
