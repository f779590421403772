"""Measure ``check``: results on a device against float64 on a CPU.

The samples of a record are ``checks``, a row each: ``name``, ``error`` (relative, in the Euclidean norm, the worst of
what is compared), ``tolerance``, ``passed`` (null where a check has no meaning), ``message``. A cell of which a check
fails is an ``error`` and is checked again by the next sweep.

What is compared follows from the model that the method makes of the workload's

* a tensorized linear layer alone: its output and all gradients, by every plan of :mod:`comera.contraction`, against the
  dense product;
* a tensorized embedding alone: looked-up rows and all gradients, against rows of the dense table;
* anything else: steps of the arm without dropout, its rare work included. Each begins at the reference's weights, and
  its update is made of the reference's gradients, so that no rounding error is carried on; loss, gradients and update
  are compared apart. On CUDA, captured against eager steps as well, and GaLore's 8-bit optimizer against GaLore in
  float64.
"""

import contextlib
import functools
import itertools
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from bench.core.cell import Cell
from bench.core.provenance import ROOT
from bench.measures import Measure
from bench.processes.process import first_line
from bench.protocol import Batch, Workload
from bench.protocol.methods import build_for
from bench.step.low_precision import PLAIN
from bench.step.train_step import TrainStep, batches_on, build_step, tf32_products
from bench.step.unsupported import toggles_unsupported
from comera import TTLinear, TTMEmbedding
from comera.capture import fixed_shapes
from comera.contraction import Plan, candidates
from comera.contraction.planned import tt_linear
from comera.dropout import Dropout
from comera.layers import DIAGONALS

#: Relative error that an arithmetic may make in outputs, losses and gradients.
TOLERANCES = {"fp32": 1e-4, "tf32": 1e-2, "bf16": 5e-2}

#: The same of updates, which are made in float32 whatever the precision, and of GaLore's, whose projections come from a
#: decomposition in float32 on either side.
UPDATE_TOLERANCE, GALORE_TOLERANCE = 1e-2, 5e-2

#: The same of the 8-bit optimizer, which holds moments in 8 bits per entry, of a scale shared by a block.
EIGHT_BIT_TOLERANCE = 0.15

#: Relative difference of a captured from an eager step's losses; the kernels are the same.
CAPTURE_TOLERANCES = {"fp32": 1e-4, "tf32": 1e-3, "bf16": 1e-2}

#: Steps that are compared, in which LTE merges as the experiment has it, and captured ones.
_STEPS, _CAPTURED_STEPS = 5, 10

_TF32_UPDATE = (
    "GaLore projects by TF32 products, and where a gradient is about zero Adam makes whole steps of their rounding"
)

#: Parts of a tensorized layer that have a gradient, in the order of its chain.
_GRADIENTS = ("gradient of the cores", "gradient of the diagonals", "gradient of the bias")

Row = dict[str, Any]


class WithoutDropout:
    """A workload whose model drops nothing out: two models that are compared would drop different entries."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload

    def build(self) -> nn.Module:
        """Build the model, with every probability of dropout at 0."""
        model = self._workload.build()
        for module in model.modules():
            if isinstance(module, Dropout | nn.Dropout):
                module.p = 0.0
        return model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workload, name)


def check_columns(cell: Cell, workload: Workload) -> dict[str, Any]:
    """Run the checks of a cell; its record's columns, and under ``failure`` a sentence on what failed, if anything."""
    undropped: Any = WithoutDropout(workload)
    rows = list(_checks(cell, undropped))
    failed = [f"first {row['name']}: {row['message']}" for row in rows if row["passed"] is False]
    failure = {"failure": f"{len(failed)} of {len(rows)} checks failed, {failed[0]}"} if failed else {}
    return {"samples": {"checks": rows}, **failure}


def _checks(cell: Cell, workload: Workload) -> Iterator[Row]:
    """Yield the checks of the layer if the method makes the whole model one tensorized layer, else those of steps."""
    torch.manual_seed(cell.seed)
    model = build_for(cell).adapt(workload.build(), workload.targets())
    for layer in model.modules():
        if isinstance(layer, TTLinear | TTMEmbedding) and _count(layer) == _count(model):
            with torch.no_grad():
                layer.diagonals.uniform_(0.5, 1.5)  # rank-control entries apart from one another
            given = _input_of(layer, cell, workload, model)
            checks = _layer_checks if isinstance(layer, TTLinear) else _lookup_checks
            return checks(cell, layer, given)
    return _step_checks(cell, workload)


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _input_of(layer: nn.Module, cell: Cell, workload: Workload, model: nn.Module) -> torch.Tensor:
    """Return the input of the layer for a batch of the workload, on the CPU."""
    given: list[torch.Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, arguments: given.append(arguments[0].detach()))
    with torch.no_grad():
        workload.loss(model, *_batches(cell, workload, "cpu", 1))
    handle.remove()
    return given[0]


def relative_error(found: Iterable[torch.Tensor], wanted: Iterable[torch.Tensor]) -> float:
    """Return ‖found − wanted‖ / ‖wanted‖ over all tensors together, in float64 on a CPU.

    >>> relative_error([torch.tensor([3.0, 3.0])], [torch.tensor([3.0, 4.0])])
    0.2
    """
    difference = norm = 0.0
    for one, other in zip(found, wanted, strict=True):
        exact = other.detach().cpu().double()
        difference += (one.detach().cpu().double() - exact).square().sum().item()
        norm += exact.square().sum().item()
    return (difference / norm) ** 0.5 if norm else difference**0.5


def _row(name: str, tolerance: float | None, passed: bool | None, message: str, error: float | None = None) -> Row:
    return {"name": name, "error": error, "tolerance": tolerance, "passed": passed, "message": message}


def _judged(name: str, errors: dict[str, float], tolerance: float) -> Row:
    """Return the row of a check with these errors, by what they are of."""
    worst = max(errors, key=lambda key: errors[key] if math.isfinite(errors[key]) else math.inf)
    error = errors[worst]
    passed = error <= tolerance
    message = "" if passed else f"relative error {error:.2e} in {worst}, tolerance {tolerance:.0e}"
    return _row(name, tolerance, passed, message, error if math.isfinite(error) else None)  # records hold no NaN


def _checked(name: str, tolerance: float, errors: Callable[[], dict[str, float]]) -> Row:
    """Return the row of a check, also where computing it raises."""
    try:
        return _judged(name, errors(), tolerance)
    except Exception as error:
        return _row(name, tolerance, False, first_line(error))


def _results(
    cell: Cell, forward: Callable[[], torch.Tensor], inputs: Sequence[torch.Tensor], upstream: torch.Tensor
) -> list[torch.Tensor]:
    """Return the output and the gradients of ``inputs``, in the cell's arithmetic, as the train step has it."""
    device = torch.device(cell.device).type
    with tf32_products() if cell.precision == "tf32" else contextlib.nullcontext():
        with torch.autocast(device, torch.bfloat16, enabled=cell.precision == "bf16"):
            output = forward()
        return [output, *torch.autograd.grad(output, inputs, upstream.to(output))]


def _layer_checks(cell: Cell, layer: Any, rows: torch.Tensor) -> Iterator[Row]:
    """Check every plan of a TT layer, on rows (T, N)."""
    x = rows.reshape(-1, rows.shape[-1])
    upstream = torch.randn(x.shape[0], layer.out_features)
    exact = [tensor.detach().double().requires_grad_() for tensor in (x, *_chain(layer))]
    wanted = F.linear(exact[0], _with_chain(layer, exact[1], exact[2]), exact[3] if len(exact) > 3 else None)
    expected = [wanted, *torch.autograd.grad(wanted, exact, upstream.double())]
    inputs = [tensor.detach().to(cell.device).requires_grad_() for tensor in (x, *_chain(layer))]
    names = ("output", "gradient of x", *_GRADIENTS)
    for plan in candidates(layer.shape, x.shape[0]):

        def errors(plan: Plan = plan) -> dict[str, float]:
            x, packed, diagonals, *others = inputs
            bias = others[0] if others else None
            forward = functools.partial(tt_linear, x, packed, diagonals, plan, bias, layer.threshold)
            return _by_name(names, _results(cell, forward, inputs, upstream.to(cell.device)), expected)

        yield _checked(f"plan {plan.name}", TOLERANCES[cell.precision], errors)


def _lookup_checks(cell: Cell, layer: Any, indices: torch.Tensor) -> Iterator[Row]:
    """Yield the checks of one variant of a TTM look-up."""
    exact = [tensor.detach().double().requires_grad_() for tensor in _chain(layer)]
    wanted = F.embedding(indices, _with_chain(layer, *exact))
    upstream = torch.randn(wanted.shape)
    expected = [wanted, *torch.autograd.grad(wanted, exact, upstream.double())]

    def errors() -> dict[str, float]:
        there = layer.to(cell.device)
        found = _results(cell, lambda: there(indices.to(cell.device)), _chain(there), upstream.to(cell.device))
        return _by_name(("rows", *_GRADIENTS), found, expected)

    yield _checked(f"look-up {layer.lookup}", TOLERANCES[cell.precision], errors)


def _by_name(names: Iterable[str], found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> dict[str, float]:
    pairs = zip(found, expected, strict=True)
    return {name: relative_error([one], [other]) for name, (one, other) in zip(names, pairs, strict=False)}


def _chain(layer: Any) -> list[torch.Tensor]:
    """Return a layer's cores and rank-control entries, and its bias if it has one."""
    bias = getattr(layer, "bias", None)
    return [layer.packed_cores, layer.diagonals, *([] if bias is None else [bias])]


def _with_chain(layer: Any, packed: torch.Tensor, diagonals: torch.Tensor) -> torch.Tensor:
    """Return the dense weight that other cores and rank-control entries would give a layer, differentiable in them."""
    dense = nn.Module()
    dense.layer = layer
    dense.forward = layer.to_dense
    chain = {"layer.packed_cores": packed, f"layer.{DIAGONALS}": diagonals}
    return torch.func.functional_call(dense, chain, ())


def _step(cell: Cell, workload: Workload, **changes: Any) -> TrainStep:
    """Return a fresh step of the cell's arm, plain but for the changes."""
    return build_step(replace(cell, **{"cuda_graph": False, "compile": False, **changes}), workload)


def _batches(cell: Cell, workload: Workload, device: str, count: int) -> list[Batch]:
    """Return so many batches, repeated where the data has no more."""
    batches = batches_on(replace(cell, device=device), workload, count)
    return list(itertools.islice(itertools.cycle(batches), count))


def _step_checks(cell: Cell, workload: Workload) -> Iterator[Row]:
    """Check steps of an arm, eager and captured."""
    failure, compared = "", {}
    try:
        compared = _compared(cell, workload)
    except Exception as error:  # what kept the steps from running
        failure = first_line(error)
    for name, tolerance in (
        ("loss", TOLERANCES[cell.precision]),
        ("gradients", TOLERANCES[cell.precision]),
        ("update", GALORE_TOLERANCE if cell.method == "galore" else UPDATE_TOLERANCE),
    ):
        title = f"{name} of {_STEPS} steps"
        if (cell.method, cell.precision, name) == ("galore", "tf32", "update"):
            yield _row(title, None, None, _TF32_UPDATE)
        else:
            yield _row(title, tolerance, False, failure) if failure else _judged(title, compared[name], tolerance)
    captured = replace(cell, cuda_graph=True, compile=False)
    if reason := toggles_unsupported(captured, build_for(cell), workload.build()):
        yield _row("captured steps", None, None, reason)
    else:
        yield _checked("captured steps", CAPTURE_TOLERANCES[cell.precision], lambda: _captured(cell, workload))
    if cell.method == "galore" and cell.precision == "fp32":
        name = "update of the 8-bit optimizer"
        if cell.device == "cpu":
            yield _row(name, None, None, "galore-torch's 8-bit optimizer needs a CUDA device, this one is cpu")
        else:
            yield _checked(name, EIGHT_BIT_TOLERANCE, lambda: _eight_bit(cell.device))


def _compared(cell: Cell, workload: Workload) -> dict[str, dict[str, float]]:
    """Return the errors of loss, gradients and update, by step."""
    errors: dict[str, dict[str, float]] = {"loss": {}, "gradients": {}, "update": {}}
    on_cpu = replace(cell, device="cpu", precision="fp32", cuda_graph=False, compile=False)
    exact, other = build_step(on_cpu, workload, double=True), _step(cell, workload)
    pairs: list[Any] = list(zip(other.model.parameters(), exact.model.parameters(), strict=True))
    batches = (_batches(cell, workload, device, _STEPS) for device in ("cpu", cell.device))
    for number, (exact_batch, batch) in enumerate(zip(*batches, strict=True)):
        at = f"step {number}"
        other.model.load_state_dict(exact.model.state_dict())
        doubled = {name: t.double() if t.is_floating_point() else t for name, t in exact_batch.items()}
        wanted, found = exact.forward_backward(doubled), other.forward_backward(batch)
        errors["loss"][at] = relative_error([found], [wanted])
        trained = [(one, reference) for one, reference in pairs if reference.grad is not None]
        gradients = [(one.grad, reference.grad) for one, reference in trained]
        errors["gradients"][at] = relative_error(*zip(*gradients, strict=True))
        for one, reference in trained:
            one.grad = reference.grad.to(one)
        before = [[tensor.detach().cpu().double().clone() for tensor in pair] for pair in pairs]
        exact.update()
        other.update()
        moved = [
            [tensor.detach().cpu().double() - was for tensor, was in zip(pair, first, strict=True)]
            for pair, first in zip(pairs, before, strict=True)
        ]
        errors["update"][at] = relative_error(*zip(*moved, strict=True))
    return errors


def _captured(cell: Cell, workload: Workload) -> dict[str, float]:
    """Return the relative difference of a captured from an eager step's loss, by step."""
    batches = _batches(cell, workload, cell.device, _CAPTURED_STEPS)
    eager = _step(cell, workload)
    with fixed_shapes():
        wanted = [eager(batch).clone() for batch in batches]
    captured = _step(cell, workload, cuda_graph=True)
    found = [captured(batch).clone() for batch in batches]
    return _by_name((f"step {number}" for number in range(_CAPTURED_STEPS)), found, wanted)


def _eight_bit(device: str) -> dict[str, float]:
    """Return the error of GaLore's 8-bit optimizer, measured by :mod:`bench.measures.eight_bit` in its own interpreter.

    Raises RuntimeError: the interpreter ends otherwise than well.
    """
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "bench.measures.eight_bit", device]
    options: Any = {"capture_output": True, "text": True, "timeout": 180.0, "env": {**os.environ, "PYTHONPATH": path}}
    done = subprocess.run(command, **options, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    return {"the update": float(done.stdout.splitlines()[-1])}


MEASURE = Measure(
    name="check",
    precisions=PLAIN,
    words="results on the device against float64 on a CPU",
    serve=check_columns,
    parallel=True,
    cost=lambda _: 10.0,
)
