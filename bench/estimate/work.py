"""Work of a training step, in operations and in bytes that it keeps and moves, and a lower bound on its time.

Operations are counted with ``torch.utils.flop_counter``: two per multiplication and addition of every matrix product
of forward, backward and optimizer, attention included, in the steady state (the second step). GaLore's projections
are products and count; its decomposition falls in the first step and is left out, as are element-wise operations,
reductions, look-ups and decompositions wherever they are.

Bytes kept for backward are the storages that autograd saves in forward, custom autograd functions included, each
counted once; what the model holds anyway (parameters, buffers) is left out, while half-precision copies of weights and
the batch, where backward needs them, are in. What a custom function hides from autograd, as a plain attribute of its
context instead of ``save_for_backward``, is not seen.

The bound is one over the whole step: the larger of two times,

* operations: FLOPs of all matrix products / peak rate (element-wise work is left out, which can only lower the bound);
* traffic: the bytes that must cross between memory and caches / bandwidth.

A sum over operators of the larger of the two would be higher, but no bound: it takes for granted that no two operators
are fused, and that none computes while another one loads.

Traffic, each less what the caches could keep across the point in question:

* what lies in memory when the step begins and is read in it, once: weights, optimizer state, the batch;
* of that, what the step changes and has to write back, once;
* what forward keeps for backward, once out and once in, as long as nothing is recomputed.

Everything else, gradients included, might never leave the chip. A table that is only looked into is not read, and one
of which some rows are changed, as by a sparse gradient, is not written.
"""

import contextlib
import functools
import weakref
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch.utils.flop_counter import (
    FlopCounterMode,
    flop_registry,
    sdpa_backward_flop_count,
    sdpa_flop_count,
    shape_wrapper,
)

import comera.kernels.operators  # noqa: F401 - it registers the operators that are counted
from bench.estimate.devices import Device
from bench.estimate.memory import (
    Operations,
    PredictedMemory,
    fake_training,
    reachable_tensors,
    tensors_in,
    trace_memory,
)
from bench.protocol import Method, Workload
from bench.step.train_step import TrainStep

aten = torch.ops.aten

#: Operations that read only some rows of their first argument, or overwrite it.
_UNREAD_FIRST = {
    *(
        aten.embedding,
        aten._embedding_bag,
        aten._embedding_bag_forward_only,
        aten.index_select,
        aten.gather,
        aten.index,
        aten.take,
    ),
    *(aten.copy_, aten.zero_, aten.fill_, aten.normal_, aten.uniform_),
}


@dataclass(frozen=True)
class Work:
    """Work and memory of one training step."""

    flops_per_step: int
    saved_for_backward: int  # bytes


@dataclass(frozen=True)
class Traffic:
    """Bytes of what a step finds in memory and reads, of what it writes back, and of what it keeps for backward."""

    read: int
    written: int
    kept: int

    def compulsory(self, cache: int) -> int:
        """Return the bytes that must move whatever the implementation, beside caches of so many bytes.

        >>> Traffic(read=100, written=60, kept=30).compulsory(cache=20)
        140
        """
        return max(self.read - cache, 0) + max(self.written - cache, 0) + 2 * max(self.kept - cache, 0)


@dataclass(frozen=True)
class Prediction:
    """Prediction for a cell, from one pass over fake tensors."""

    memory: PredictedMemory
    work: Work
    traffic: Traffic
    arithmetic: str  # of the step

    def columns(self) -> dict[str, Any]:
        """Return the prediction under the names of the record's columns."""
        sizes = self.memory.mib()
        peak = sizes.pop("peak")
        return {
            "peak_memory_predicted_mib": peak,
            **{f"predicted_{category}_mib": size for category, size in sizes.items()},
            "saved_for_backward_mib": self.work.saved_for_backward / 2**20,
            "flops_per_step": self.work.flops_per_step,
            "arithmetic": self.arithmetic,
            "parameters": self.memory.parameter_count,
            "stored_mib": self.memory.stored / 2**20,
        }


def predict(
    workload: Workload,
    method: Method,
    batch_size: int,
    precision: str,
    device: str,
    seed: int,
    checkpoint: bool = False,
) -> Prediction:
    """Predict memory, work and traffic of training ``workload`` with ``method``, in one pass, for "cpu" or "cuda".

    Raises ValueError: a batch size below 1, an unknown device, a precision that the device does not offer.
    """
    with fake_training(workload, method, batch_size, precision, device, seed, checkpoint) as (step, batch):
        meter, traffic = WorkMeter(step), TrafficMeter(step, batch.values())
        memory = trace_memory(step, batch, meter, traffic)
        work = meter.work()
    given = sum(tensor.untyped_storage().nbytes() for tensor in batch.values())
    kept = max(work.saved_for_backward - given, 0)  # a batch that backward needs is not written
    return Prediction(memory, work, traffic.traffic(kept), step.arithmetic)


class WorkMeter(contextlib.ExitStack):
    """Meters one training step run inside the block, on fake or on real tensors.

    It holds weak references only, so memory can be traced in the same pass.
    """

    def __init__(self, step: TrainStep) -> None:
        super().__init__()
        self._step = step
        self._flops = FlopCounterMode(display=False, custom_mapping=_COUNTED)
        self._flops.mod_tracker = _Untracked()  # type: ignore[assignment]
        self._held_anyway: set[int] = set()
        self._saved: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}

    def __enter__(self) -> Self:
        super().__enter__()
        self._held_anyway = {id(tensor.untyped_storage()) for tensor in reachable_tensors(self._step.model)}
        self.enter_context(self._flops)
        self.enter_context(torch.autograd.graph.saved_tensors_hooks(self._on_save, lambda tensor: tensor))
        return self

    def work(self) -> Work:
        """Return the work of the step."""
        return Work(self._flops.get_total_flops(), sum(size for _, size in self._saved.values()))

    def _on_save(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        key = id(storage)
        if self._step.phase == "forward" and key not in self._held_anyway and key not in self._saved:
            self._saved[key] = (weakref.ref(storage, functools.partial(self._on_free, key)), storage.nbytes())
        return tensor.detach()  # an operation's own output would hold itself alive

    def _on_free(self, key: int, _: weakref.ref[torch.UntypedStorage]) -> None:
        # A tensor freed before backward begins was not kept for it: its part of the graph was dropped.
        if self._step.phase == "forward":
            del self._saved[key]


class _Untracked(contextlib.nullcontext[None]):
    """In place of the flop counter's tracker of modules, whose hooks keep the input and output of every module alive.

    Until the cyclic garbage collector happens to run, that is, so memory traced beside it would be too high by chance.
    """

    parents = ("Global",)


#: The flop counter has no formula for flash attention on a CPU: two products in forward, five in backward, which
#: computes the scores again.
_flash = aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
_COUNTED: dict[Any, Any] = {
    _flash: lambda *shapes, **_: sdpa_flop_count(*shapes[:3]),
    _flash_backward: lambda *shapes, **_: sdpa_backward_flop_count(*shapes[:4]),
}

#: The flop counter takes apart what it has no formula for, where it can. These have kernels of their own, which hold
#: less than their parts do; a formula that gives nothing leaves them whole, so that memory can be traced beside it.
_COUNTED |= {operation: lambda *_, **__: 0 for operation in (aten.silu_backward.default, aten.mish_backward.default)}


def _hidden_flops(of_p: int, of_q: int) -> Any:
    """Return a formula: so many products with the ranks P and Q of a kernel, T tokens by H hidden features each.

    Shapes are those of z1 (P, T), right1 (P, H), bias1 and left2 (Q, H), behind the activation's name.
    """

    def count(_: str, z1: Any, right1: Any, bias1: Any, left2: Any, *__: Any, **___: Any) -> int:  # noqa: ARG001
        return int(2 * z1[1] * right1[1] * (of_p * right1[0] + of_q * left2[0]))

    return count


#: The kernels of a feed-forward form the hidden features anew in either pass of backward.
_COUNTED |= {
    torch.ops.comera.hidden: _hidden_flops(1, 1),
    torch.ops.comera.hidden_rows: _hidden_flops(2, 1),
    torch.ops.comera.hidden_columns: _hidden_flops(2, 2),
}


def flops_of(func: Any, given: Mapping[str, Any], result: Any) -> int:
    """Return the FLOPs of one operation by the flop counter's formulas; 0 where it has none."""
    own = _COUNTED.get(func.overloadpacket, _COUNTED.get(func))
    formula = flop_registry.get(func.overloadpacket) if own is None else shape_wrapper(own)
    return 0 if formula is None else int(formula(*given.values(), out_val=result))


class TrafficMeter(Operations):
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
        """Return the traffic noted so far, with ``kept`` bytes for backward."""
        read, written = (
            sum(min(sum(sizes.values()), self._sizes[key]) for key, sizes in parts.items())
            for parts in (self._read, self._written)
        )
        return Traffic(read, written, kept)

    def seen(self, func: Any, given: Mapping[str, Any], result: Any) -> None:  # noqa: ARG002
        """Note the tensors that an operation is given."""
        if not func.is_view:
            others = list(given.values())[1:]
            some_rows = func.overloadpacket is aten.index_copy_ or any(
                getattr(one, "is_sparse", False) for one in others
            )
            for place, argument in enumerate(func._schema.arguments):
                writes = argument.alias_info is not None and argument.alias_info.is_write
                writes = writes and not (place == 0 and some_rows)
                reads = not (place == 0 and (some_rows or func.overloadpacket in _UNREAD_FIRST))
                for tensor in tensors_in(given.get(argument.name)):
                    self._note(tensor, reads, writes)

    def _note(self, tensor: torch.Tensor, reads: bool, writes: bool) -> None:
        key = tensor.untyped_storage()._cdata
        if key in self._sizes:
            part, size = (int(tensor.storage_offset()), tensor.numel()), tensor.numel() * tensor.element_size()
            for noted, touched in ((self._read, reads), (self._written, writes)):
                if touched:
                    noted[key][part] = size


@dataclass(frozen=True)
class Bound:
    """Lower bounds on a step's time in milliseconds; ``traffic_ms`` is None where the caches are not known."""

    operations_ms: float
    traffic_ms: float | None

    @property
    def step_ms(self) -> float:
        return max(self.operations_ms, self.traffic_ms or 0.0)


def bound(work: Work, traffic: Traffic, device: Device, precision: str) -> Bound:
    """Return the least time of a step with that work and traffic on ``device``.

    Raises ValueError: the device's tensor cores do not multiply in that precision.
    """
    peak = device.peak(precision)
    if peak is None:
        raise ValueError(f"precision is {precision!r}, in which {device.name} does not multiply; use bf16.")
    operations = 1e3 * work.flops_per_step / peak
    if device.cache is None:
        return Bound(operations, None)
    return Bound(operations, 1e3 * traffic.compulsory(device.cache) / device.bandwidth)
