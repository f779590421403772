"""Measure ``products``: the plain product of a linear layer in each precision that a device has, FP8 among them.

The samples of a record (measure ``products``) are ``products``, a row each: ``name``, ``ms`` (mean per block),
``error`` (relative, of the result, against float64), ``message`` (why there are none). ``fp8`` is ``torch._scaled_mm``
on operands that are in FP8 already, with a scale per tensor; ``fp8, cast`` also scales and casts the activations, as a
layer has to in every step. They are timed as :mod:`bench.measures.micro` has it.
"""

import contextlib
import statistics
from typing import Any

import torch

from bench.core.cell import Cell
from bench.measures import Measure
from bench.measures.check import relative_error
from bench.measures.micro import COMPARED_ROWS, Call, add_times, is_linear_layer, row_of
from bench.protocol import Workload
from bench.step.low_precision import PLAIN
from bench.step.train_step import batches_on, tf32_products

FP8_CAPABILITY = (8, 9)  # the first compute capability whose tensor cores multiply FP8
FP8_MULTIPLE = 16  # FP8 products need widths that are multiples of this
_FP8 = torch.float8_e4m3fn


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
    plain = contextlib.nullcontext
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


MEASURE = Measure(
    name="products",
    precisions=PLAIN,
    words="time of a layer's plain product in each precision, FP8 among them",
    serve=products_columns,
    unsupported=products_unsupported,
    about="the plain product of one linear layer",
    workloads=is_linear_layer,
    methods=("dense",),
)
