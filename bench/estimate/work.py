"""Work of a training step: floating-point operations, and the bytes it keeps for backward.

Operations are counted with ``torch.utils.flop_counter``: two per multiplication and addition of every matrix product
of forward, backward and optimizer, attention included, in the steady state (the second step). GaLore's projections
are products and count; its decomposition falls in the first step and is left out, as are element-wise operations,
reductions, look-ups and decompositions wherever they are.

Bytes kept for backward are the storages that autograd saves in forward, custom autograd functions included, each
counted once; what the model holds anyway (parameters, buffers) is left out, while half-precision copies of weights and
the batch, where backward needs them, are in. What a custom function hides from autograd, as a plain attribute of its
context instead of ``save_for_backward``, is not seen.
"""

import contextlib
import functools
import weakref
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from bench.estimate.memory import PredictedMemory, fake_training, reachable_tensors, trace_memory
from bench.protocol import Method, Workload
from bench.step.train_step import TrainStep


@dataclass(frozen=True)
class Work:
    """What one training step computes and keeps."""

    flops_per_step: int
    saved_for_backward: int  # bytes


@dataclass(frozen=True)
class Prediction:
    """What one pass over fake tensors gives of a cell."""

    memory: PredictedMemory
    work: Work

    def columns(self) -> dict[str, float | int]:
        """The prediction under the names of the record's columns."""
        sizes = self.memory.mib()
        peak = sizes.pop("peak")
        return {
            "peak_memory_predicted_mib": peak,
            **{f"predicted_{category}_mib": size for category, size in sizes.items()},
            "saved_for_backward_mib": self.work.saved_for_backward / 2**20,
            "flops_per_step": self.work.flops_per_step,
            "parameters": self.memory.parameter_count,
            "stored_mib": self.memory.stored / 2**20,
        }


def predict(workload: Workload, method: Method, batch_size: int, precision: str, device: str, seed: int) -> Prediction:
    """Memory and work of training ``workload`` with ``method``, in one pass, for ``device`` "cpu" or "cuda".

    Raises ValueError: a batch size below 1, an unknown device, a precision that the device does not offer.
    """
    with fake_training(workload, method, batch_size, precision, device, seed) as (step, batch):
        meter = WorkMeter(step)
        memory = trace_memory(step, batch, meter)
    return Prediction(memory, meter.work())


class WorkMeter(contextlib.ExitStack):
    """Meters one training step run inside the block, on fake or on real tensors.

    It holds weak references only, so memory can be traced in the same pass.
    """

    def __init__(self, step: TrainStep) -> None:
        super().__init__()
        self._step = step
        self._flops = FlopCounterMode(display=False, custom_mapping=_CPU_ATTENTION)
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
        """What the step took."""
        return Work(self._flops.get_total_flops(), sum(size for _, size in self._saved.values()))

    def _on_save(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        key = id(storage)
        if self._step.phase == "forward" and key not in self._held_anyway and key not in self._saved:
            self._saved[key] = (weakref.ref(storage, functools.partial(self._on_free, key)), storage.nbytes())
        return tensor.detach()  # an operation's own output would hold itself alive

    def _on_free(self, key: int, _: weakref.ref[torch.UntypedStorage]) -> None:
        # What is freed before backward begins was not kept for it: it belonged to a part of the graph that was dropped.
        if self._step.phase == "forward":
            del self._saved[key]


class _Untracked(contextlib.nullcontext[None]):
    """In place of the flop counter's tracker of modules, whose hooks keep the input and output of every module alive.

    Until the cyclic garbage collector happens to run, that is, so memory traced beside it would be too high by chance.
    """

    parents = ("Global",)


#: The flop counter has no formula for flash attention on a CPU: two products in forward, five in backward, which
#: computes the scores again.
_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
_CPU_ATTENTION: dict[Any, Any] = {
    _flash: lambda *shapes, **_: sdpa_flop_count(*shapes[:3]),
    _flash_backward: lambda *shapes, **_: sdpa_backward_flop_count(*shapes[:4]),
}
