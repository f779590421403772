"""Measure ``plan``: every contraction plan of one tensorized linear layer, the planner's numbers beside measured times.

The plans of :mod:`comera.contraction` take turns in random order, block by block, in one process, beside ``nn.Linear``.
A time is that of a forward pass and all gradients: of activations, cores, rank-control entries and bias.

The samples of a record (measure ``plan``):

* ``shape``: ``in_modes``, ``out_modes``, ``ranks``.
* ``plans``, a row per candidate: ``name``, ``segments``, ``trees``, ``products`` (of the forward pass, each with
  ``left``, ``right``, ``result``, ``rows``, ``inner``, ``columns``), ``flops`` (forward and backward), ``saved_mib``,
  ``largest_mib``, ``estimated_ms`` (of the machine model that made the choice), ``ms`` (mean per block; a single one
  where the plan was not chosen and its first calls took more than :data:`HOPELESS` times those of the fastest plan),
  ``message`` (why there is none).
* ``dense_ms``: the same of ``nn.Linear``.
"""

import dataclasses
import functools
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from bench.core.cell import Cell
from bench.measures import Measure
from bench.measures.micro import is_linear_layer, plain_calls_only
from bench.measures.shapes import described_shape
from bench.protocol import Workload
from bench.protocol.methods import build_for
from bench.step.allocator import free_memory_mib
from bench.step.timing import calls_per_block, mean_ms, take_turns
from bench.step.train_step import batches_on
from comera import TTLinear
from comera.contraction import Plan, candidates, plan_contraction
from comera.contraction.planned import tt_linear

CPU_LIMIT = 7e10  # on a CPU, the largest product of tokens, in-features and out-features that is measured

#: Plans that at first take so many times as long as the fastest are dropped, except the chosen one.
HOPELESS = 4.0

_DENSE = "nn.Linear"
_WARM_UP, _COLD = 3, 10.0  # calls before times count, and how much longer the very first one may take
_MEMORY_SHARE = 0.7  # part of the free memory that a plan may need
_BYTES = 4  # of float32


def plan_unsupported(cell: Cell) -> str | None:
    """Explain why the plans of a cell cannot be measured; None if they can."""
    if reason := plain_calls_only(cell):
        return reason
    sizes = cell.workload_settings
    product = cell.batch_size * sizes["in_features"] * sizes["out_features"]
    if cell.device == "cpu" and product > CPU_LIMIT:
        return f"batch_size · in_features · out_features is {product:.3g}; on a CPU up to {CPU_LIMIT:.0e} is measured."
    return None


def plan_columns(cell: Cell, workload: Workload) -> dict[str, Any]:
    """Measure the plans of a cell and return its record's columns."""
    torch.manual_seed(cell.seed)
    method = build_for(cell)
    model = method.adapt(workload.build(), workload.targets()).to(cell.device)
    layer = next(module for module in model.modules() if isinstance(module, TTLinear))
    [[rows]] = (batch.values() for batch in batches_on(cell, workload, 1))
    plans = candidates(layer.shape, cell.batch_size)
    chosen = plan_contraction(layer.shape, cell.batch_size, cell.device)
    calls, messages = _calls(plans, layer, rows)
    times = _times(calls, chosen.name, cell.timing_settings, cell.device == "cuda")
    described = [
        {
            **{name: getattr(plan, name) for name in ("name", "segments", "trees", "flops")},
            "products": [dataclasses.asdict(product) for product in plan.products],
            "saved_mib": plan.saved * _BYTES / 2**20,
            "largest_mib": plan.largest * _BYTES / 2**20,
            "estimated_ms": 1e3 * plan.seconds(cell.device),
            "ms": times.get(plan.name, []),
            "message": messages.get(plan.name, ""),
        }
        for plan in plans
    ]
    columns: dict[str, Any] = {
        "contraction": chosen.name,
        "flops_per_step": chosen.flops,
        "saved_for_backward_mib": chosen.saved * _BYTES / 2**20,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "stored_mib": method.stored_size(model) / 2**20,
        "samples": {"shape": described_shape(layer.shape), "plans": described, "dense_ms": times.get(_DENSE, [])},
    }
    if measured := times.get(chosen.name):
        columns |= {"step_time_median_ms": statistics.median(measured), "steps_measured": len(measured)}
    return columns


def _calls(
    plans: Sequence[Plan], layer: TTLinear, rows: torch.Tensor
) -> tuple[dict[str, Callable[[], object]], dict[str, str]]:
    """Return forward and all gradients by every plan and ``nn.Linear``, and the reasons for missing plans."""
    rows.requires_grad_()
    weight, bias = layer.to_dense().detach().contiguous().requires_grad_(), layer.bias
    gradient = torch.randn(rows.shape[0], layer.out_features, device=rows.device)
    chain = (layer.packed_cores, layer.diagonals)
    free_mib = free_memory_mib(rows.device)
    calls: dict[str, Callable[[], object]] = {}
    messages: dict[str, str] = {}

    def call(forward: Callable[[], torch.Tensor], *inputs: torch.Tensor | None) -> Callable[[], object]:
        wanted = [tensor for tensor in inputs if tensor is not None]
        return lambda: torch.autograd.grad(forward(), wanted, gradient)

    for plan in plans:
        need_mib = (plan.saved + 2 * plan.largest) * _BYTES / 2**20
        if need_mib > _MEMORY_SHARE * free_mib:
            messages[plan.name] = f"needs about {need_mib:,.0f} MiB, {free_mib:,.0f} MiB are free"
            continue
        forward = lambda plan=plan: tt_linear(rows, *chain, plan, bias, layer.threshold)  # noqa: E731
        calls[plan.name] = call(forward, rows, *chain, bias)
    calls[_DENSE] = call(lambda: F.linear(rows, weight, bias), rows, weight, bias)
    return calls, messages


def _times(
    calls: dict[str, Callable[[], object]], chosen: str, timing: dict[str, Any], on_cuda: bool
) -> dict[str, list[float]]:
    """Return milliseconds per call of each of ``calls``, one mean per block."""

    def fastest(times: dict[str, float]) -> float:
        return min((ms for name, ms in times.items() if name != _DENSE), default=0.0)

    def turn(call: Callable[[], object], ms: float) -> float:
        call()  # another plan has just filled the caches
        return mean_ms(call, calls_per_block(ms, timing), on_cuda)

    once = {name: mean_ms(call, 1, on_cuda) for name, call in calls.items()}  # cold
    hopeful = [name for name in calls if name == chosen or once[name] <= HOPELESS * _COLD * fastest(once)]
    once |= {name: min(mean_ms(calls[name], 1, on_cuda) for _ in range(_WARM_UP)) for name in hopeful}
    turns = {
        name: functools.partial(turn, calls[name], once[name])
        for name in hopeful
        if name == chosen or once[name] <= HOPELESS * fastest(once)
    }
    return {name: [once[name]] for name in calls} | take_turns(turns, timing["blocks"])


MEASURE = Measure(
    name="plan",
    precisions=("fp32",),
    words="time of each way to contract a tensorized linear layer",
    serve=plan_columns,
    unsupported=plan_unsupported,
    about="tensor trains of one linear layer",
    workloads=is_linear_layer,
    methods=("comera",),
)
