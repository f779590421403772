"""Parts of measures of one linear layer: ways to compute the same, by name, each with its times.

A measure makes a :data:`Call` for every way that the device has. Ways take turns block by block (:func:`add_times`). On
CUDA the calls of a block are captured in one CUDA Graph and its replay is timed between device events: small products
take less time than their launches.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from bench.core.cell import Cell
from bench.step.timing import calls_per_block, mean_ms, take_turns
from bench.step.train_step import tf32_products
from bench.step.unsupported import toggle_unsupported

_WARM_UP = 3

#: Rows of a layer's output that are compared with float64.
COMPARED_ROWS = 256

#: A context, and what is called in it.
Call = tuple[Callable[[], AbstractContextManager[object]], Callable[[], Any]]

#: A row of a record's samples.
Row = dict[str, Any]


def is_linear_layer(workload: type[Any]) -> bool:
    """Return whether a class of workloads is of one linear layer: its settings are the sizes of ``nn.Linear``."""
    return {"in_features", "out_features"} <= {field.name for field in dataclasses.fields(workload.Settings)}


def plain_calls_only(cell: Cell) -> str | None:
    """Explain why a cell is none of plain calls; None if it is."""
    return toggle_unsupported(cell, f"has no meaning for measure={cell.measure}, which times plain calls", "checkpoint")


def in_tf32(precision: str) -> Callable[[], AbstractContextManager[object]]:
    """Return the context in which float32 products are those of a precision."""
    return tf32_products if precision == "tf32" else nullcontext


def add_times(rows: Mapping[str, Row], calls: Mapping[str, Call], timing: Mapping[str, Any], on_cuda: bool) -> None:
    """Time every call in interleaved blocks, and put the milliseconds per call, a mean per block, into its row."""

    def turn(name: str) -> float:
        context, call = calls[name]
        with context():
            call()
            return runs[name]()

    runs: dict[str, Callable[[], float]] = {}
    for name, (context, call) in calls.items():
        with context():
            count = calls_per_block(min(mean_ms(call, 1, on_cuda) for _ in range(_WARM_UP)), timing)
            runs[name] = _captured(call, count) if on_cuda else functools.partial(mean_ms, call, count, on_cuda)
    for name, times in take_turns({name: functools.partial(turn, name) for name in calls}, timing["blocks"]).items():
        rows[name]["ms"] = times


def _captured(call: Callable[[], object], count: int) -> Callable[[], float]:
    """Capture ``count`` calls; what times them, in milliseconds per call."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            call()
    graph.replay()
    return lambda: mean_ms(graph.replay, 1, on_cuda=True) / count
