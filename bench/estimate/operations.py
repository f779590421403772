"""The operations of a training step as a list, each with its bytes, its FLOPs and the part of the step it belongs to.

The step runs on fake tensors (:func:`bench.estimate.memory.fake_training`), with CUDA's operations where they are
those of a CUDA device, so that no GPU is needed. An operation is one call of an ATen operator that computes or moves
numbers: views and allocations are none. On CUDA most are one kernel; a few are more (``sort``, ``cat`` of over 128
tensors, ``_foreach`` and ``_fused`` operators of many). So the number of operations is a lower bound on kernels.

Bytes are those of the tensors that an operation reads and writes, each once, caches aside. FLOPs are those of
``torch.utils.flop_counter``, 0 for operations without products.
"""

import contextlib
import functools
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from bench.estimate.memory import Operations, reachable_tensors, tensors_in
from bench.estimate.work import flops_of
from bench.step.train_step import TrainStep

#: The parts of a step, in the order of tables. ``casts`` change a type. ``merging`` makes the halves of tensor trains
#: and other tensors of weights alone. The rest is ``element-wise`` from :data:`SMALL_BYTES` on, ``small`` below.
PARTS = (
    *("products", "attention", "norms", "dropout", "casts", "merging"),
    *("look-up", "optimizer", "element-wise", "small"),
)

#: Bytes below which an operation of no other part costs its launch, and hardly more.
SMALL_BYTES = 2**20

#: Operators that launch nothing: allocations, aliases, bookkeeping.
_NO_KERNEL = re.compile(
    r"^(empty|new_empty|detach|alias|lift_fresh|_unsafe_view|is_same_size|_local_scalar_dense|_record_function)"
)

#: Operators that write their result without a read of what they are given.
_FILLS = re.compile(r"^(zero_|fill_|full|(new_)?(zeros|ones|full)(_like)?|arange|scalar_tensor)$")

#: Parts by operator; the first that matches counts. A read of rows by their numbers reads what it writes.
_BY_OPERATOR = (
    ("attention", re.compile("attention")),
    ("norms", re.compile("layer_norm|rms_norm|add_norm")),
    ("dropout", re.compile("dropout")),
    ("casts", re.compile("^_to_copy$")),
)
_PRODUCTS = re.compile(r"^((addmm|mm|bmm|baddbmm|addbmm|_grouped_mm)_?|hidden|hidden_rows|hidden_columns)$")
_ROWS = re.compile("^(embedding|index_select)$")

#: Nodes of autograd whose backward is a look-up's, or merging's.
_LOOKUP_NODES, _MERGING_NODES = re.compile("Lookup|Embedding"), re.compile("MergeCores")


@dataclass(frozen=True)
class Operation:
    """One operation: where in the step it runs, its part, ATen's name, bytes read and written, FLOPs."""

    phase: str
    part: str
    name: str
    read: int
    written: int
    flops: int

    @property
    def bytes(self) -> int:
        return self.read + self.written


class OperationLog(Operations):
    """Lists the operations of a step that runs inside the block, in :attr:`operations`.

    Args:
        step: whose model has hooks as long as this is entered.
        tables: names of the modules whose operations are a look-up.
    """

    def __init__(self, step: TrainStep, tables: Iterable[str] = ()) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self._step = step
        self._of_weights = {id(tensor.untyped_storage()) for tensor in reachable_tensors(step.model)}
        # Storages are held, so that none takes the identity of one that is gone.
        self._held: list[torch.UntypedStorage] = []
        self._inside: list[str] = []
        self._places = {step.model: "model"} | {step.model.get_submodule(name): "look-up" for name in tables}
        self._hooks = contextlib.ExitStack()

    def __enter__(self) -> Any:
        for module, place in self._places.items():
            enter, leave = functools.partial(self._enter, place), self._leave
            self._hooks.callback(module.register_forward_pre_hook(enter).remove)
            self._hooks.callback(module.register_forward_hook(leave, always_call=True).remove)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._hooks.close()
        self._held.clear()

    def _enter(self, place: str, *_: Any) -> None:
        self._inside.append(place)

    def _leave(self, *_: Any) -> None:
        self._inside.pop()

    def seen(self, func: Any, given: Mapping[str, Any], result: Any) -> None:
        """List an operation."""
        name = func.overloadpacket.__name__
        inputs, outputs = tensors_in(list(given.values())), tensors_in(result)
        of_weights = bool(inputs) and all(id(tensor.untyped_storage()) in self._of_weights for tensor in inputs)
        if of_weights and self._step.phase == "forward":
            self._held += [tensor.untyped_storage() for tensor in outputs]
            self._of_weights |= {id(tensor.untyped_storage()) for tensor in outputs}
        if func.is_view or _NO_KERNEL.match(name):
            return
        changed = [
            tensor
            for argument in func._schema.arguments
            if argument.alias_info is not None and argument.alias_info.is_write
            for tensor in tensors_in(given.get(argument.name))
        ]
        written = sum(map(_bytes, changed or outputs))
        read = 0 if _FILLS.match(name) else written if _ROWS.match(name) else sum(map(_bytes, inputs))
        part = self._part(name, of_weights, read + written)
        self.operations.append(Operation(self._step.phase, part, name, read, written, flops_of(func, given, result)))

    def _part(self, name: str, of_weights: bool, size: int) -> str:
        if self._step.phase == "update":
            return "optimizer"
        node = torch._C._current_autograd_node()
        running = "" if node is None or self._step.phase == "forward" else node.name()
        if "look-up" in self._inside or _LOOKUP_NODES.search(running):
            return "look-up"
        for part, pattern in _BY_OPERATOR:
            if pattern.search(name):
                return part
        if (of_weights and self._inside) or _MERGING_NODES.search(running):
            return "merging"
        if _PRODUCTS.match(name):
            return "products"
        return "small" if size < SMALL_BYTES else "element-wise"


def _bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor's entries; of an expanded one, those of its storage."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def by_part(operations: Iterable[Operation]) -> list[dict[str, Any]]:
    """Return a row per part of a step: ``part``, ``operations``, ``mib`` moved, ``gflop``; parts without any left out.

    >>> cast = Operation("forward", "casts", "_to_copy", 2**21, 2**20, 0)
    >>> by_part([cast, cast])
    [{'part': 'casts', 'operations': 2, 'mib': 6.0, 'gflop': 0.0}]
    """
    counts, sizes, flops = Counter[str](), Counter[str](), Counter[str]()
    for operation in operations:
        counts[operation.part] += 1
        sizes[operation.part] += operation.bytes
        flops[operation.part] += operation.flops
    return [
        {"part": part, "operations": counts[part], "mib": sizes[part] / 2**20, "gflop": flops[part] / 1e9}
        for part in PARTS
        if counts[part]
    ]
