"""Measure ``exchanged``: what an arm gives to ranks that train together, computed without ranks, links or device.

A step is traced on fake tensors (:func:`bench.estimate.work.predict`) for a CUDA device. The samples of a record:

* ``tensors``: every trained parameter in the order of the model, with ``shape`` and ``kind``
  (:data:`bench.estimate.communication.Kind`);
* ``bounds``, by device of :data:`DEVICES` whose tensor cores multiply in the cell's precision: the device's ``words``,
  its rated ``operations`` and ``bytes`` per second, and ``points``, rows of a batch with the least times of its step's
  operations and of its memory traffic in ms (:func:`bench.estimate.work.bound`): an eighth of the cell's batch, and it.

``gradient_mib`` is the sum of the trained parameters' gradients in FP32; the model of
:mod:`bench.estimate.communication` makes everything else of them.
"""

from typing import Any

from torch import nn

from bench.core.cell import Cell
from bench.estimate.communication import Kind
from bench.estimate.devices import GPUS
from bench.estimate.memory import fake_training
from bench.estimate.work import bound, predict
from bench.measures import Measure
from bench.measures.predict import TRACED, traced
from bench.protocol import Workload
from bench.protocol.methods import build_for
from comera.layers import TensorTrainLayer

#: Devices whose least times are recorded.
DEVICES = ("a100", "h100", "l4")

#: The part of a batch that the other point is at.
_PART = 8

_FP32 = 4


def tensors_of(model: nn.Module) -> list[dict[str, Any]]:
    """The trained parameters of a model, in its order, each once.

    >>> tensors_of(nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2)))[:2]
    [{'shape': [9, 4], 'kind': 'table'}, {'shape': [2, 4], 'kind': 'matrix'}]
    """
    kinds: dict[int, Kind] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if isinstance(module, TensorTrainLayer) and name != "bias":
                kinds[id(parameter)] = "core"  # all cores of a layer, packed into one vector, and their diagonals
            elif isinstance(module, nn.Embedding | nn.EmbeddingBag):
                kinds[id(parameter)] = "table"
            else:
                kinds.setdefault(id(parameter), "matrix" if parameter.ndim > 1 else "vector")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [{"shape": list(parameter.shape), "kind": kinds[id(parameter)]} for parameter in trained]


def exchanged_columns(cell: Cell, workload: Workload) -> dict[str, Any]:
    """What the ranks of a cell would exchange, and what they would compute meanwhile, as columns of its record."""

    def traced(size: int) -> Any:
        return workload, build_for(cell), size, cell.precision, "cuda", cell.seed, cell.checkpoint

    steps = {size: predict(*traced(size)) for size in sorted({max(cell.batch_size // _PART, 1), cell.batch_size})}
    with fake_training(*traced(cell.batch_size)) as (step, _):
        tensors = tensors_of(step.model)
        gradient = sum(_FP32 * one.numel() for one in step.model.parameters() if one.requires_grad)
    bounds = {}
    for name in DEVICES:
        device = GPUS[name]
        if (rate := device.peak(cell.precision)) is not None:
            least = {size: bound(one.work, one.traffic, device, cell.precision) for size, one in steps.items()}
            points = [[size, one.operations_ms, one.traffic_ms] for size, one in least.items()]
            bounds[name] = {"words": device.name, "operations": rate, "bytes": device.bandwidth, "points": points}
    prediction = steps[cell.batch_size]
    return {
        "flops_per_step": prediction.work.flops_per_step,
        "parameters": prediction.memory.parameter_count,
        "stored_mib": prediction.memory.stored / 2**20,
        "gradient_mib": gradient / 2**20,
        "samples": {"tensors": tensors, "bounds": bounds},
    }


MEASURE = Measure(
    name="exchanged",
    words="what ranks that train together would exchange and compute, without running a step",
    outcomes=lambda cells, session: traced(exchanged_columns, cells, session),
    seconds=20.0,
    text=lambda record: f"{record.gradient_mib or 0.0:,.2f} MiB of gradients",
    **TRACED,
)
