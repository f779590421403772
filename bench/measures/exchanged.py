"""Measure ``exchanged``: what an arm gives to ranks that train together, computed without ranks, links or device.

A step is traced on fake tensors (:func:`bench.estimate.work.predict`) for a CUDA device. The samples of a record:

* ``tensors``: every parameter in the order of the model, with the fields of
  :class:`bench.estimate.communication.Tensor`; records of older code hold ``shape`` and ``kind`` of trained ones;
* ``bounds``, by device of :data:`DEVICES` whose tensor cores multiply in the cell's precision: the device's ``words``,
  its rated ``operations`` and ``bytes`` per second, and ``points``, rows of a batch with the least times of its step's
  operations and of its memory traffic in ms (:func:`bench.estimate.work.bound`): an eighth of the cell's batch, and it.

``gradient_mib`` is the sum of the trained parameters' gradients; the model of
:mod:`bench.estimate.communication` makes everything else of them.
"""

from typing import Any

from bench.core.cell import Cell
from bench.estimate.communication import rows_of
from bench.estimate.devices import GPUS
from bench.estimate.memory import fake_training
from bench.estimate.parameters import parameters_of
from bench.estimate.work import bound, predict
from bench.measures import Measure
from bench.measures.predict import TRACED, traced
from bench.protocol import Workload
from bench.protocol.methods import build_for

#: Devices whose least times are recorded.
DEVICES = ("a100", "h100", "l4")

#: The part of a batch that the other point is at.
_PART = 8


def exchanged_columns(cell: Cell, workload: Workload) -> dict[str, Any]:
    """Predict the traffic between the ranks of a cell and their computation meanwhile, as columns of its record."""

    def traced(size: int) -> Any:
        return workload, build_for(cell), size, cell.precision, "cuda", cell.seed, cell.checkpoint

    steps = {size: predict(*traced(size)) for size in sorted({max(cell.batch_size // _PART, 1), cell.batch_size})}
    with fake_training(*traced(cell.batch_size)) as (step, _):
        tensors = parameters_of(step.model)
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
        "gradient_mib": sum(one.bytes for one in tensors if one.trained) / 2**20,
        "samples": {"tensors": rows_of(tensors), "bounds": bounds},
    }


MEASURE = Measure(
    name="exchanged",
    words="what ranks that train together would exchange and compute, without running a step",
    outcomes=lambda cells, session: traced(exchanged_columns, cells, session),
    text=lambda record: f"{record.gradient_mib or 0.0:,.2f} MiB of gradients",
    **TRACED,
)
