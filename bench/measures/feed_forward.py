"""Measure ``feed_forward``: a tensorized feed-forward by its layers, in tiles and by the kernels, beside the dense one.

The layer of the cell is the first of the two, N to H; its mirror image leads back. The samples of a record (measure
``feed_forward``) are ``forms``, a row each: ``name``, ``ms`` (forward and all gradients, mean per block), ``error``
(relative, of the output, against float64; None with dropout), ``message`` (why there are no times):

* ``dense``, ``layers``: ``nn.Linear`` and ``TTLinear``, with GELU between them;
* ``tiles``: :func:`comera.functional.tt_feed_forward` in one tile of torch's operations; ``kernels``: by the kernels;
* the same with ``, norm``: dropout, the residual and LayerNorm behind it.

They are timed as :mod:`bench.measures.micro` has it: on CUDA launches do not count.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from bench.core.cell import Cell
from bench.measures import Measure
from bench.measures.check import relative_error
from bench.measures.micro import Call, add_times, in_tf32, is_linear_layer, plain_calls_only, row_of
from bench.protocol import Workload
from bench.protocol.methods import build_for
from bench.step.low_precision import PLAIN
from bench.step.train_step import batches_on
from comera import TTLinear, kernels
from comera.functional import tt_feed_forward, tt_feed_forward_add_norm

_DROPOUT = 0.1

_Form = Callable[[torch.Tensor], torch.Tensor]


def feed_forward_columns(cell: Cell, workload: Workload) -> dict[str, Any]:
    """Time every form and return the record's columns."""
    torch.manual_seed(cell.seed)
    model = build_for(cell).adapt(workload.build(), workload.targets())
    first = next(module for module in model.modules() if isinstance(module, TTLinear))
    shape = first.shape
    mirrored = (shape.out_modes[::-1], shape.in_modes[::-1], shape.ranks[::-1])
    second = TTLinear(shape.out_features, shape.in_features, *mirrored)
    forms, modules = _forms(first, second)
    [[x]] = (batch.values() for batch in batches_on(cell, workload, 1))
    modules.double()
    with torch.no_grad():
        exact = forms["layers"](x.cpu().double())
    modules.to(cell.device, torch.float32)
    gradient = torch.randn_like(x.requires_grad_())
    tf32 = in_tf32(cell.precision)
    kind = torch.bfloat16 if cell.precision == "bf16" else torch.float32

    def output(form: _Form) -> torch.Tensor:
        with torch.autocast(x.device.type, kind) if kind != torch.float32 else contextlib.nullcontext():
            return form(x)

    def call(form: _Form, inputs: list[torch.Tensor]) -> Callable[[], object]:
        def forward_and_backward() -> object:
            y = output(form)
            return torch.autograd.grad(y, inputs, gradient.to(y.dtype))

        return forward_and_backward

    rows = {name: row_of(name) for name in forms}
    calls: dict[str, Call] = {}
    for name, form in forms.items():
        with tf32():
            used = (*kernels.HIDDEN, *kernels.ADD_NORM)
            if name.startswith("kernels") and not kernels.usable(used, x.device, kind, shape.ranks[shape.half - 1]):
                rows[name]["message"] = f"no kernels for {cell.precision} at these ranks on this device"
                continue
            y = output(form)
            if not name.endswith("norm"):
                rows[name]["error"] = relative_error([y], [exact])
            trained = list(modules.parameters())
            found = torch.autograd.grad(y, trained, gradient.to(y.dtype), allow_unused=True)
        inputs = [x, *(one for one, grad in zip(trained, found, strict=True) if grad is not None)]
        calls[name] = tf32, call(form, inputs)
    add_times(rows, calls, cell.timing_settings, cell.device == "cuda")
    best = rows["kernels"]["ms"] or rows["layers"]["ms"]
    return {
        "step_time_median_ms": statistics.median(best),
        "steps_measured": len(best),
        "samples": {"forms": list(rows.values())},
    }


def _forms(first: TTLinear, second: TTLinear) -> tuple[dict[str, _Form], nn.ModuleList]:
    """Return every form by name, and the modules of each."""
    dense = [nn.Linear(layer.in_features, layer.out_features) for layer in (first, second)]
    norm = nn.LayerNorm(second.out_features)
    with torch.no_grad():
        for linear, layer in zip(dense, (first, second), strict=True):
            linear.weight.copy_(layer.to_dense())
            linear.bias.zero_()  # as those of new layers are
    plain: dict[str, _Form] = {
        "dense": lambda x: dense[1](F.gelu(dense[0](x))),
        "layers": lambda x: second(F.gelu(first(x))),
        "tiles": lambda x: tt_feed_forward(x, first, second, tokens_per_tile=len(x)),
    }
    forms = plain | {"kernels": lambda x: tt_feed_forward(x, first, second)}
    for name, form in plain.items():
        forms[f"{name}, norm"] = lambda x, form=form: norm(x + F.dropout(form(x), _DROPOUT))
    forms["kernels, norm"] = lambda x: tt_feed_forward_add_norm(x, first, second, norm, dropout=_DROPOUT)
    return forms, nn.ModuleList([*dense, first, second, norm])


MEASURE = Measure(
    name="feed_forward",
    precisions=PLAIN,
    words="time of a tensorized feed-forward: by its layers, in tiles, by the kernels, beside the dense one",
    serve=feed_forward_columns,
    unsupported=plain_calls_only,
    about="the tensor train of one linear layer",
    workloads=is_linear_layer,
    methods=("comera",),
)
