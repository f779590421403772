"""Measure ``kept``: what forward leaves alive for backward, by tensor, and the largest batch that fits.

A step is traced on fake tensors. Every storage that forward allocates is booked at birth, with its operator and the
block it was born in, and those alive when backward begins are listed: so much is kept, whatever keeps it (autograd,
``torch.utils.checkpoint``, the recipes of :mod:`comera.recomputing`). Blocks are the entries of the outermost
``nn.ModuleList``. Tensors made of weights alone, such as merged halves, count as outside: one block may make those of
all. Not counted are the batch and what the model holds, and what only the garbage collector would free.

The samples of a record (measure ``kept``), sizes in MiB:

* ``kept``: ``blocks``, how many there are; ``alike``, how many of them keep tensors of the kinds and sizes of the one
  described, the first whose total is the median; ``tensors`` of that block, a row per storage in the order of birth,
  with ``kind`` (:func:`kind_of`), ``operator``, ``shape`` at birth, ``mib``; ``in_blocks_mib``, the total of all
  blocks; ``outside_mib``, everything else, by kind;
* ``largest``, for CUDA alone, a row per memory of :data:`MEMORIES_GIB`: ``memory_gib``, ``room_mib`` (the largest
  predicted peak that is taken to fit), ``batch_size`` (0 where none fits), ``peak_mib`` of it, and ``next_mib`` of the
  next batch, which does not fit (null where none was met). Both peaks are predicted, not interpolated.

``saved_for_backward_mib`` is the total. Measure ``predict`` has what passes autograd's hooks: the batch as well, and
no attribute of a custom function's context.
"""

import contextlib
import functools
import gc
import re
import weakref
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from bench.core.cell import Cell
from bench.estimate.any_batch import AnyBatch, smallest_batch
from bench.estimate.devices import GPUS, largest_batch
from bench.estimate.memory import Operations, fake_training, predict_memory, reachable_tensors, tensors_in
from bench.measures import Measure
from bench.measures.predict import TRACED, traced
from bench.protocol import Batch, Workload
from bench.protocol.methods import build_for
from bench.step.train_step import TrainStep
from comera.recomputing import blocks_of

#: Memories of devices for which the largest batch is looked for, in GiB.
MEMORIES_GIB = (8, 24, 80, 141)

RANK_WIDE, MASKS, OF_WEIGHTS, OTHER = "rank-wide products", "masks", "of weights alone", "other"
_PRODUCTS, _ATTENTION = "outputs of linear layers", "attention"

#: The other kinds with the operators that make them; the first that matches counts.
_OPERATORS = {
    _ATTENTION: re.compile("attention|softmax"),
    "norms": re.compile("norm"),
    "activation functions": re.compile("gelu|relu|silu|tanh|sigmoid"),
    "sums": re.compile(r"^_?(add|sub)_?$"),
    "outputs of dropout": re.compile("dropout"),
    # new_empty…: what a fused function writes its products into
    _PRODUCTS: re.compile(r"^(addmm|mm|bmm|baddbmm|matmul|linear|addmv|mv|new_empty|new_empty_strided)$"),
}

_MIB = 2**20

#: Sources of a tensor: "batch", "model" or both.
Sources = frozenset[str]


def kind_of(operator: str, entries: int, floating: bool, sources: Sources, input_entries: int) -> str:
    """Return the kind of a kept tensor.

    Args:
        operator: that made it, without namespace and overload.
        entries: how many numbers it has; a product of fewer than the block's input, ``input_entries``, is rank-wide.
        floating: whether they are floating-point numbers; masks, bits and indices are not.
        sources: what went into it.

    >>> [kind_of("mm", 64 * columns, True, frozenset({"batch", "model"}), 64 * 768) for columns in (30, 768)]
    ['rank-wide products', 'outputs of linear layers']
    """
    if sources == {"model"}:
        return OF_WEIGHTS
    kind = next((kind for kind, pattern in _OPERATORS.items() if pattern.search(operator)), OTHER)
    if not floating and kind != _ATTENTION:
        return MASKS
    return RANK_WIDE if kind == _PRODUCTS and entries < input_entries else kind


@dataclass(frozen=True)
class Born:
    """A storage of forward: how it was made, of what, and in which block; None where it counts as outside."""

    operator: str
    shape: tuple[int, ...]
    kind: str
    block: int | None
    sources: Sources


class Births(Operations):
    """Books the storages that a step's forward allocates; ``kept`` are those alive when backward begins, with bytes.

    No tensor of theirs is held. The blocks of the step's model have hooks as long as this is entered.
    """

    def __init__(self, step: TrainStep, batch: Batch) -> None:
        super().__init__()
        self.kept: list[tuple[Born, int]] | None = None
        self.blocks = list(blocks_of(step.model))
        self._step = step
        there = {"model": reachable_tensors([step.model, step.optimizer, step.method]), "batch": batch.values()}
        # Storages are held, so that none of forward takes the identity of one that was there.
        held = [(name, tensor.untyped_storage()) for name, tensors in there.items() for tensor in tensors]
        self._there = {id(storage): (storage, frozenset({name})) for name, storage in held}
        self._alive: dict[int, tuple[weakref.ref[torch.UntypedStorage], Born]] = {}
        self._block: int | None = None
        self._input_entries = 0
        self._hooks = contextlib.ExitStack()

    def __enter__(self) -> Any:
        for number, block in enumerate(self.blocks):
            enter, leave = functools.partial(self._at, number), functools.partial(self._at, None)
            self._hooks.callback(block.register_forward_pre_hook(enter, with_kwargs=True).remove)
            self._hooks.callback(block.register_forward_hook(leave, with_kwargs=True, always_call=True).remove)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._hooks.close()

    def _at(self, number: int | None, _: nn.Module, args: Any, kwargs: Any, *__: Any) -> None:
        """Note that a block begins, or with None that it ends."""
        given = (tensor.numel() for tensor in tensors_in((args, kwargs)) if tensor.is_floating_point())
        self._block, self._input_entries = number, 0 if number is None else next(given, 0)

    def seen(self, func: Any, given: Mapping[str, Any], result: Any) -> None:
        """Book what an operation of forward returns; at the first one of backward, list what is alive."""
        if self._step.phase == "backward" and self.kept is None:
            gc.collect()
            found = [(reference(), born) for reference, born in self._alive.values()]
            self.kept = [(born, storage.nbytes()) for storage, born in found if storage is not None]
        if self._step.phase != "forward":
            return
        sources: Sources = frozenset().union(*(self._sources(tensor) for tensor in tensors_in(given)))
        operator = func.__name__.partition(".")[0]
        for tensor in tensors_in(result):
            storage = tensor.untyped_storage()
            key = id(storage)
            if key not in self._there and key not in self._alive:
                kind = kind_of(operator, tensor.numel(), tensor.is_floating_point(), sources, self._input_entries)
                block = None if kind == OF_WEIGHTS else self._block
                born = Born(operator, tuple(tensor.shape), kind, block, sources)
                self._alive[key] = weakref.ref(storage, functools.partial(self._freed, key)), born

    def _freed(self, key: int, _: object) -> None:
        del self._alive[key]

    def _sources(self, tensor: torch.Tensor) -> Sources:
        key = id(tensor.untyped_storage())
        if key in self._alive:
            return self._alive[key][1].sources
        return self._there[key][1] if key in self._there else frozenset()


def kept_of(step: TrainStep, batch: Batch) -> dict[str, Any]:
    """Return the tensors that forward of a fresh fake step keeps of this batch, as ``kept`` in a record's samples."""
    with contextlib.ExitStack() as stack:
        if gc.isenabled():  # when it runs depends on all that the process did before
            gc.disable()
            stack.callback(gc.enable)
        births = stack.enter_context(Births(step, batch))
        step.forward_backward(batch)
    assert births.kept is not None
    each: list[list[tuple[Born, int]]] = [[] for _ in births.blocks]
    outside: Counter[str] = Counter()
    for born, size in births.kept:
        if born.block is None:
            outside[born.kind] += size
        else:
            each[born.block].append((born, size))
    totals = [sum(size for _, size in block) for block in each]
    shown = each[totals.index(sorted(totals)[(len(totals) - 1) // 2])] if each else []
    alike = [sorted((born.kind, size) for born, size in block) for block in (shown, *each)]
    return {
        "blocks": len(each),
        "alike": alike[1:].count(alike[0]),
        "tensors": [
            {"kind": born.kind, "operator": born.operator, "shape": list(born.shape), "mib": size / _MIB}
            for born, size in shown
        ],
        "in_blocks_mib": sum(totals) / _MIB,
        "outside_mib": {kind: size / _MIB for kind, size in outside.most_common()},
    }


def kept_columns(cell: Cell, workload: Workload) -> dict[str, Any]:
    """Return the memory that a cell's forward keeps, and for CUDA the largest batches, as columns of its record."""
    any_batch: Any = AnyBatch(workload)
    traced = (build_for(cell), cell.batch_size, cell.precision, cell.device, cell.seed, cell.checkpoint)
    with fake_training(any_batch, *traced) as (step, batch):
        kept, arithmetic = kept_of(step, batch), step.arithmetic
    samples = {"kept": kept, **({"largest": largest_rows(cell, any_batch)} if cell.device == "cuda" else {})}
    total = kept["in_blocks_mib"] + sum(kept["outside_mib"].values())
    return {"saved_for_backward_mib": total, "arithmetic": arithmetic, "samples": samples}


def largest_rows(cell: Cell, workload: Any) -> list[dict[str, Any]]:
    """Return, for each device memory, the largest batch whose predicted peak fits, of those the method accepts."""

    def peak_mib(size: int) -> float:
        asked = (size, cell.precision, cell.device, cell.seed, cell.checkpoint)
        return predict_memory(workload, build_for(cell), *asked).mib()["peak"]

    multiple = smallest_batch(build_for(cell), cell)
    peaks: dict[int, float] = {}  # a batch is predicted once for all memories
    rows = []
    for memory in MEMORIES_GIB:
        room = replace(GPUS["h100"], memory_mib=1024.0 * memory).room_mib
        found = largest_batch(peak_mib, room, multiple, workload.limit, peaks)
        sizes = {"batch_size": found.batch_size, "peak_mib": found.peak_mib, "next_mib": found.next_mib}
        rows.append({"memory_gib": memory, "room_mib": room, **sizes})
    return rows


MEASURE = Measure(
    name="kept",
    words="bytes that forward keeps for backward, and the largest batch that fits",
    outcomes=lambda cells, session: traced(kept_columns, cells, session),
    text=lambda record: f"{record.saved_for_backward_mib or 0.0:,.0f} MiB kept for backward",
    **TRACED,
)
