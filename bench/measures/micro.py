"""Measures of one linear layer: ways to compute the same, by name, each with its error and its times.

A measure makes a :data:`Call` for every way that the device has, and a row (:func:`row_of`) for every way there is:
``name``, ``ms`` (mean per block), ``error`` (relative, of the output, against float64), ``message`` (why there are no
times). Ways take turns block by block (:func:`add_times`). On CUDA the calls of a block are captured in one CUDA Graph
and its replay is timed between device events: small products take less time than their launches.

Measure ``products``: the plain product of the layer in each precision that a device has. Samples ``products`` are the
rows. ``fp8`` is ``torch._scaled_mm`` on operands that are in FP8 already, with a scale per tensor; ``fp8, cast`` also
scales and casts the activations, as a layer has to in every step.

Measure ``feed_forward``: forward and all gradients of a tensorized feed-forward. The layer of the cell is the first of
the two, N to H; its mirror image leads back. Samples ``forms`` are the rows:

* ``dense``, ``layers``: ``nn.Linear`` and ``TTLinear``, with GELU between them;
* ``tiles``: :func:`comera.functional.tt_feed_forward` in one tile of torch's operations; ``kernels``: by the kernels;
* the same with ``, norm``: dropout, the residual and LayerNorm behind it, and therefore no error.
"""

import dataclasses
import functools
import statistics
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from bench.core.cell import Cell
from bench.measures import Measure
from bench.measures.check import relative_error
from bench.protocol import Workload
from bench.protocol.methods import build_for
from bench.step.low_precision import PLAIN
from bench.step.timing import calls_per_block, mean_ms, take_turns
from bench.step.train_step import batches_on, tf32_products
from bench.step.unsupported import toggle_unsupported
from comera import TTLinear, kernels
from comera.functional import tt_feed_forward, tt_feed_forward_add_norm

_WARM_UP = 3

#: Rows of a layer's output that are compared with float64.
COMPARED_ROWS = 256

#: A context, and what is called in it.
Call = tuple[Callable[[], AbstractContextManager[object]], Callable[[], Any]]

#: A row of a record's samples.
Row = dict[str, Any]

FP8_CAPABILITY = (8, 9)  # the first compute capability whose tensor cores multiply FP8
FP8_MULTIPLE = 16  # FP8 products need widths that are multiples of this
_FP8 = torch.float8_e4m3fn

_DROPOUT = 0.1

_Form = Callable[[torch.Tensor], torch.Tensor]


def is_linear_layer(workload: type[Any]) -> bool:
    """Return whether a class of workloads is of one linear layer: its settings are the sizes of ``nn.Linear``."""
    return {"in_features", "out_features"} <= {field.name for field in dataclasses.fields(workload.Settings)}


def plain_calls_only(cell: Cell) -> str | None:
    """Explain why a cell is none of plain calls; None if it is."""
    return toggle_unsupported(cell, f"has no meaning for measure={cell.measure}, which times plain calls", "checkpoint")


def row_of(name: str, message: str = "") -> Row:
    """Return the row of a way that has no times yet; ``message`` says why it will have none."""
    return {"name": name, "ms": [], "error": None, "message": message}


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


def products_unsupported(cell: Cell) -> str | None:
    """Explain why a device has no FP8 products; None if it has."""
    if cell.device == "cpu":
        return "measure=products is about FP8, which needs a CUDA device of compute capability 8.9; this one is cpu."
    capability = torch.cuda.get_device_capability()
    if capability < FP8_CAPABILITY:
        here = ".".join(map(str, capability))
        return f"FP8 products need a CUDA device of compute capability 8.9; this one has {here}."
    return None


def products_columns(cell: Cell, workload: Workload) -> dict[str, Any]:
    """Time the layer's product in each precision and return the record's columns."""
    torch.manual_seed(cell.seed)
    inputs, outputs = (cell.workload_settings[name] for name in ("in_features", "out_features"))
    [[x]] = (batch.values() for batch in batches_on(cell, workload, 1))
    weight = torch.randn(outputs, inputs, device=cell.device) / inputs**0.5
    calls, messages = _calls(x, weight)
    exact = x[:COMPARED_ROWS].cpu().double() @ weight.cpu().double().t()
    rows = {name: row_of(name, messages.get(name, "")) for name in (*messages, *calls)}
    for name, (context, call) in list(calls.items()):
        try:
            with context():
                rows[name]["error"] = relative_error([call()[:COMPARED_ROWS]], [exact])
        except RuntimeError as error:
            rows[name]["message"] = str(error).splitlines()[0][:300]
            del calls[name]
    add_times(rows, calls, cell.timing_settings, cell.device == "cuda")
    columns: dict[str, Any] = {
        "flops_per_step": 2 * cell.batch_size * inputs * outputs,
        "samples": {"products": list(rows.values())},
    }
    if times := rows["fp32"]["ms"]:
        columns |= {"step_time_median_ms": statistics.median(times), "steps_measured": len(times)}
    return columns


def _calls(x: torch.Tensor, weight: torch.Tensor) -> tuple[dict[str, Call], dict[str, str]]:
    """Return every product by name, with the context it runs in; and the reasons for missing products.

    ``x`` are activations (T, N), ``weight`` is (M, N), as ``nn.Linear`` keeps it.
    """
    plain = nullcontext
    halves = x.bfloat16(), weight.bfloat16()
    calls: dict[str, Call] = {
        "fp32": (plain, lambda: x @ weight.t()),
        "bf16": (plain, lambda: halves[0] @ halves[1].t()),
    }
    messages = {} if x.is_cuda else {"tf32": "needs a CUDA device"}
    if x.is_cuda:
        calls["tf32"] = (tf32_products, lambda: x @ weight.t())
    if any(size % FP8_MULTIPLE for size in weight.shape):
        reason = f"FP8 products need multiples of {FP8_MULTIPLE}, the layer is {weight.shape[1]} to {weight.shape[0]}"
        return calls, messages | {"fp8": reason, "fp8, cast": reason}
    weight8, weight_scale = scaled(weight)
    x8, x_scale = scaled(x)

    def product(left: torch.Tensor, left_scale: torch.Tensor) -> torch.Tensor:
        options: Any = {"out_dtype": torch.bfloat16, "use_fast_accum": x.is_cuda}
        return torch._scaled_mm(left, weight8.t(), left_scale, weight_scale, **options)

    calls["fp8"] = (plain, lambda: product(x8, x_scale))
    calls["fp8, cast"] = (plain, lambda: product(*scaled(halves[0])))
    return calls, messages


def scaled(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the values in FP8 (e4m3), and the factor that brings them back.

    >>> eighths, factor = scaled(torch.tensor([0.5, -2.0]))
    >>> (eighths.float() * factor).tolist()
    [0.5, -2.0]
    """
    factor = values.abs().amax().float().clamp(min=1e-12) / torch.finfo(_FP8).max
    return (values / factor).to(_FP8), factor


PRODUCTS = Measure(
    name="products",
    precisions=PLAIN,
    words="time of a layer's plain product in each precision, FP8 among them",
    serve=products_columns,
    unsupported=products_unsupported,
    about="the plain product of one linear layer",
    workloads=is_linear_layer,
    methods=("dense",),
)


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
        with torch.autocast(x.device.type, kind) if kind != torch.float32 else nullcontext():
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


FEED_FORWARD = Measure(
    name="feed_forward",
    precisions=PLAIN,
    words="time of a tensorized feed-forward: by its layers, in tiles, by the kernels, beside the dense one",
    serve=feed_forward_columns,
    unsupported=plain_calls_only,
    about="the tensor train of one linear layer",
    workloads=is_linear_layer,
    methods=("comera",),
)

MEASURES = (PRODUCTS, FEED_FORWARD)
