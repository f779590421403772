"""Measure ``fp8``: one linear layer in every precision: error, bytes, the roofline of GPUs, and on CUDA the time.

The samples of a record (measure ``fp8``) are ``precisions``, a row each: ``name``, ``arithmetic`` (what ran),
``error`` and ``gradient_error`` (relative, of output and of all gradients, against float64), ``largest`` (the largest
error of an output, in parts of Σ|a||b|), ``bound`` (what the format allows of that), ``ms`` (mean per block, forward;
on CUDA alone), ``message`` (why there are none); and ``rooflines``, see :func:`bench.estimate.roofline.rooflines`.

The oracle is the same layer in float64, cores and all. The bound (:func:`error_bound`) is the worst case, reached where
all roundings fall the same way; subnormal numbers, far below the largest of a tensor, may exceed their share of it.
"""

from typing import Any

import torch
from torch import nn

from baselines.low_rank import TwoFactorLinear
from bench.core.cell import Cell
from bench.estimate.roofline import RatedLayer, rooflines
from bench.measures import Measure
from bench.measures.check import relative_error
from bench.measures.micro import COMPARED_ROWS, Call, add_times, in_tf32, is_linear_layer, plain_calls_only
from bench.protocol import Workload
from bench.protocol.methods import build_for
from bench.step.low_precision import adapted_model, arithmetic_of, fp8_unsupported
from bench.step.train_step import batches_on
from comera import TTLinear
from comera.low_precision.scaling import kernel_on

#: In the order of a table.
MEASURED = ("fp32", "tf32", "bf16", "fp8")

#: Half a unit in the last place of a number between 1 and 2, by precision.
ROUNDING = {"fp32": 2.0**-24, "tf32": 2.0**-11, "bf16": 2.0**-9, "fp8": 2.0**-4}


def fp8_columns(cell: Cell, workload: Workload) -> dict[str, Any]:
    """Measure the layer in every precision and return the record's columns."""
    [[x]] = (batch.values() for batch in batches_on(cell, workload, 1))
    reason_of = {name: fp8_unsupported(name, _model(cell, workload, "fp32"), workload.targets()) for name in MEASURED}
    if cell.device != "cuda":
        reason_of["tf32"] = "needs a CUDA device"
    reference = _model(cell, workload, "fp32").double().cpu()
    exact, gradients, sums = _exact(reference, x[:COMPARED_ROWS].double().cpu())
    halves = _halves(reference)
    rank = len(halves[0]) if halves else None
    rows: dict[str, dict[str, Any]] = {}
    calls: dict[str, Call] = {}
    for name, reason in reason_of.items():
        row: dict[str, Any] = {"name": name, "arithmetic": "", "ms": [], "message": ""}
        row |= dict.fromkeys(("error", "gradient_error", "largest", "bound"))
        rows[name] = row
        if reason:
            row["message"] = reason
            continue
        model = _model(cell, workload, name)
        row["arithmetic"] = arithmetic_of(model, name)
        row["bound"] = error_bound(name, x.shape[1], rank)
        with _context(name, cell.device):
            output = model(x)[:COMPARED_ROWS].detach().double().cpu()
            found = _gradients(model, x[:COMPARED_ROWS])
        row["error"], row["gradient_error"] = relative_error([output], [exact]), relative_error(found, gradients)
        row["largest"] = float(((output - exact).abs() / sums).max())
        if cell.device == "cuda":
            calls[name] = (lambda name=name: _context(name, cell.device), lambda model=model: model(x))  # type: ignore[misc]
    with torch.no_grad():
        add_times(rows, calls, cell.timing_settings, on_cuda=True)
    layer = RatedLayer(cell.batch_size, x.shape[1], exact.shape[1], rank)
    return {
        "flops_per_step": layer.flops,
        "parameters": sum(parameter.numel() for parameter in reference.parameters()),
        "arithmetic": rows["fp8"]["arithmetic"],
        "samples": {"precisions": list(rows.values()), "rooflines": rooflines(layer), "rank": rank},
    }


def _model(cell: Cell, workload: Workload, precision: str) -> nn.Module:
    """Return the layer with the cell's weights, its products in FP8 where the precision is one of those."""
    torch.manual_seed(cell.seed)
    kernel = kernel_on(cell.device)
    return adapted_model(build_for(cell), workload.build(), workload.targets(), precision, kernel).to(cell.device)


def error_bound(precision: str, inner: int, rank: int | None) -> float:
    """Return the largest error of an output, in parts of Σ|a||b|, to which roundings can add up.

    With u half a unit in the last place, a product of two rounded numbers is off by (1 + u)² − 1 of itself, what has
    gone through two products of a layer by (1 + u)⁴ − 1; results in bfloat16 and sums in float32 add theirs.

    Args:
        inner: N, the numbers that a sum is over.
        rank: of two thin products; None for a single one.

    >>> round(error_bound("fp8", 768, None), 3), round(error_bound("fp8", 768, 30), 3)
    (0.129, 0.274)
    """
    operands = 2 if rank is None else 4
    u = ROUNDING[precision]
    put_out = 1 if precision == "bf16" else 0
    sums = inner + (rank or 0)
    return (1 + u) ** operands * (1 + ROUNDING["bf16"]) ** put_out * (1 + ROUNDING["fp32"]) ** sums - 1


def _halves(model: nn.Module) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the two factors of the layer, rank first; None for a dense one."""
    [layer] = model.children()
    if isinstance(layer, TTLinear):
        return layer.halves()
    return (layer.first, layer.second) if isinstance(layer, TwoFactorLinear) else None


def _context(precision: str, device: str) -> Any:
    return torch.autocast(device, torch.bfloat16) if precision == "bf16" else in_tf32(precision)()


def _gradients(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Return gradients of the mean square of the output, in x and in the parameters, in their order."""
    leaf = x.detach().requires_grad_()
    (model(leaf).double().square().mean() * 1e3).backward()
    found = [leaf.grad, *(parameter.grad for parameter in model.parameters())]
    for parameter in model.parameters():
        parameter.grad = None
    return [gradient.double().cpu() for gradient in found if gradient is not None]


def _exact(model: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
    """Return the output and the gradients in float64, and Σ|a||b| of every output."""
    gradients = _gradients(model, x)
    with torch.no_grad():
        output = model(x)
        halves = _halves(model)
        factors = [model.get_parameter("linear.weight").t()] if halves is None else [halves[0].t(), halves[1]]
        sums = x.abs()
        for factor in factors:
            sums = sums @ factor.abs()
    return output, gradients, sums


MEASURE = Measure(
    name="fp8",
    words="error, bytes and roofline of a linear layer by precision; on CUDA time",
    serve=fp8_columns,
    unsupported=plain_calls_only,
    precisions=("fp32",),
    about="a single linear layer",
    workloads=is_linear_layer,
    text=lambda record: "; ".join(
        f"{row['name']} {row['error']:.1e}" for row in record.samples["precisions"] if row["error"] is not None
    ),
)
