"""A lower bound on the time of a training step, from its work and the rates of a device.

The bound is one over the whole step: the larger of two times,

* operations: FLOPs of all matrix products / peak rate (:mod:`bench.estimate.work`; element-wise work is left out, which
  can only lower the bound);
* traffic: the bytes that must cross between memory and caches / bandwidth.

A sum over operators of the larger of the two would be higher, but no bound: it takes for granted that no two operators
are fused, and that none computes while another one loads.

Traffic, each less what the caches could keep across the point in question:

* what lies in memory when the step begins and is read in it, once: weights, optimizer state, the batch;
* of that, what the step changes and has to write back, once;
* what forward keeps for backward, once out and once in, as long as nothing is recomputed.

Everything else, gradients included, might never leave the chip. A table that is only looked into is not read.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bench.estimate.devices import Device
from bench.estimate.memory import fake_training, reachable_tensors, tensors_in, trace_memory
from bench.estimate.work import Prediction, Work, WorkMeter
from bench.protocol import Method, Workload
from bench.step.train_step import TrainStep

aten = torch.ops.aten

#: Operations that read only some rows of their first argument, or overwrite it.
_UNREAD_FIRST = {
    *(aten.embedding, aten.index_select, aten.gather, aten.index, aten.take),
    *(aten.copy_, aten.zero_, aten.fill_, aten.normal_, aten.uniform_),
}


@dataclass(frozen=True)
class Traffic:
    """Bytes of what a step finds in memory and reads, of what it writes back, and of what it keeps for backward."""

    read: int
    written: int
    kept: int

    def compulsory(self, cache: int) -> int:
        """Bytes that must move whatever the implementation, beside caches of so many bytes.

        >>> Traffic(read=100, written=60, kept=30).compulsory(cache=20)
        140
        """
        return max(self.read - cache, 0) + max(self.written - cache, 0) + 2 * max(self.kept - cache, 0)


@dataclass(frozen=True)
class Bound:
    """Lower bounds on a step's time in milliseconds; ``traffic_ms`` is None where the caches are not known."""

    operations_ms: float
    traffic_ms: float | None

    @property
    def step_ms(self) -> float:
        return max(self.operations_ms, self.traffic_ms or 0.0)


def bound(work: Work, traffic: Traffic, device: Device, precision: str) -> Bound:
    """The least time of a step with that work and traffic on ``device``."""
    operations = 1e3 * work.flops_per_step / device.peak_flops[precision]
    if device.cache is None:
        return Bound(operations, None)
    return Bound(operations, 1e3 * traffic.compulsory(device.cache) / device.bandwidth)


def predict_step(
    workload: Workload, method: Method, batch_size: int, precision: str, device: str, seed: int
) -> tuple[Prediction, Traffic]:
    """Memory, work and traffic of training ``workload`` with ``method``, in one pass; as
    :func:`bench.estimate.work.predict`."""
    with fake_training(workload, method, batch_size, precision, device, seed) as (step, batch):
        meter, traffic = WorkMeter(step), TrafficMeter(step, batch.values())
        memory = trace_memory(step, batch, meter, traffic)
        work = meter.work()
    given = sum(tensor.untyped_storage().nbytes() for tensor in batch.values())
    kept = max(work.saved_for_backward - given, 0)  # a batch that backward needs is not written
    return Prediction(memory, work), traffic.traffic(kept)


class TrafficMeter(TorchDispatchMode):
    """Notes which parts of model, optimizer state and batch the operations inside the block read and write.

    A part counts once however often it is touched, and it must have been there when the block was entered.
    """

    def __init__(self, step: TrainStep, batch: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self._step, self._batch = step, list(batch)
        self._sizes: dict[int, int] = {}  # bytes by storage
        self._read: dict[int, dict[tuple[int, int], int]] = defaultdict(dict)  # bytes by storage and part of it
        self._written: dict[int, dict[tuple[int, int], int]] = defaultdict(dict)

    def __enter__(self) -> Self:
        there = reachable_tensors([self._step.model, self._step.optimizer, self._step.method])
        storages = [tensor.untyped_storage() for tensor in (*there, *self._batch)]
        self._sizes = {storage._cdata: storage.nbytes() for storage in storages}
        super().__enter__()
        return self

    def traffic(self, kept: int) -> Traffic:
        """What has been noted, beside so many bytes ``kept`` for backward."""
        read, written = (
            sum(min(sum(sizes.values()), self._sizes[key]) for key, sizes in parts.items())
            for parts in (self._read, self._written)
        )
        return Traffic(read, written, kept)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if not func.is_view:
            arguments = func._schema.arguments
            given = dict(zip((argument.name for argument in arguments), args, strict=False)) | dict(kwargs or {})
            for place, argument in enumerate(arguments):
                writes = argument.alias_info is not None and argument.alias_info.is_write
                reads = not (place == 0 and func.overloadpacket in _UNREAD_FIRST)
                for tensor in tensors_in(given.get(argument.name)):
                    self._note(tensor, reads, writes)
        return func(*args, **(kwargs or {}))

    def _note(self, tensor: torch.Tensor, reads: bool, writes: bool) -> None:
        key = tensor.untyped_storage()._cdata
        if key in self._sizes:
            part, size = (int(tensor.storage_offset()), tensor.numel()), tensor.numel() * tensor.element_size()
            for noted, touched in ((self._read, reads), (self._written, writes)):
                if touched:
                    noted[key][part] = size
