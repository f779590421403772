"""The one answer to the question whether a cell can run: None, or a sentence that says why it cannot.

Sweeps, predictions, advice and the gate's exact part ask :func:`unsupported`, with shapes alone. A train step asks
:func:`toggles_unsupported`, the part of it that concerns how a step runs. What a measure cannot show of a cell is for
the measure to say (:attr:`bench.measures.Measure.unsupported`).
"""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from bench.core.cell import Cell
from bench.protocol import Method, Role
from bench.protocol.methods import default_settings
from bench.protocol.recipe import adapted_targets
from bench.step.low_precision import fp8_unsupported, precision_unsupported
from comera import TTLinear, ranks_of
from comera.recomputing import blocks_of

#: Settings of methods that limit ranks: of linear layers, and of tables.
_RANKS, _TABLE_RANKS = ("rank", "ranks"), ("embedding_rank", "table_ranks")


@dataclass(frozen=True)
class StepCell:
    """The fields of a :class:`bench.core.cell.Cell` that decide whether it can run, for steps that are no cell's.

    Without ``method`` the ranks among its settings are not checked.
    """

    batch_size: int
    precision: str
    device: str
    sequence_length: int = 1
    checkpoint: bool = False
    cuda_graph: bool = False
    compile: bool = False
    world_size: int = 1
    method: str = ""
    method_settings: Mapping[str, Any] = field(default_factory=dict)


def unsupported(cell: Cell | StepCell, method: Method, model: nn.Module, targets: Mapping[str, Role]) -> str | None:
    """Explain why a cell cannot run; None if it can.

    Args:
        cell: what is asked for.
        method: its arm, a fresh one.
        model: the dense model on the device ``meta``; it may be adapted in place.
        targets: of the workload.

    Example:
        >>> from baselines import lte
        >>> model = nn.Sequential(nn.Linear(4, 4))
        >>> unsupported(StepCell(8, "tf32", "cpu"), lte.build(lte.Settings()), model, {"0": "feed_forward"})
        'precision=tf32 needs a CUDA device, this one is cpu; use fp32 or bf16.'
    """
    return (
        toggles_unsupported(cell, method, model)
        or method.unsupported(cell)
        or method.model_unsupported(model, targets)
        or _adapted_unsupported(cell, method, model, targets)
    )


def toggles_unsupported(cell: Cell | StepCell, method: Method, model: nn.Module) -> str | None:
    """Explain why a step cannot run in this precision or with these toggles; None if it can.

    ``model`` is the dense or the adapted one, whose blocks are the same.
    """
    return (
        (toggle_unsupported(cell, "does not work with several ranks") if cell.world_size > 1 else None)
        or (graph_unsupported(method, cell.device) if cell.cuda_graph else None)
        or (compile_unsupported(cell.device) if cell.compile else None)
        or precision_unsupported(cell.precision, cell.device)
        or (_checkpoint_unsupported(model, cell.cuda_graph) if cell.checkpoint else None)
    )


def toggle_unsupported(cell: Cell | StepCell, reason: str, *further: str) -> str | None:
    """Explain why something does not support ``cuda_graph`` or ``compile``; None where they are off.

    ``further`` are other toggles that it has no use for.
    """
    for toggle in ("cuda_graph", "compile", *further):
        if getattr(cell, toggle):
            return f"{toggle}=true {reason}; use {toggle}=false."
    return None


def graph_unsupported(method: Method, device: str) -> str | None:
    """Explain why the steps of ``method`` cannot be captured as a CUDA Graph on ``device``; None if they can."""
    kind = torch.device(device).type
    if kind != "cuda":
        return f"cuda_graph=true needs a CUDA device, this one is {kind}; use cuda_graph=false."
    return f"cuda_graph=true does not work here: {method.capture_reason}" if method.capture == "none" else None


def compile_unsupported(device: str) -> str | None:
    """Explain why torch.compile cannot work for ``device`` on this machine; None if it can."""
    if torch.device(device).type == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "compile=true needs the package triton on a CUDA device; install it or use compile=false."
        return None
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return "compile=true needs a C++ compiler on a CPU and finds none; install g++ or use compile=false."
    return None


def _checkpoint_unsupported(model: nn.Module, cuda_graph: bool) -> str | None:
    if cuda_graph:
        return (
            "cuda_graph=true does not work with checkpoint=true, which reads the generator's state during a capture; "
            "use one of them."
        )
    if not any(True for _ in blocks_of(model)):
        return "checkpoint=true needs a model with blocks, the entries of an nn.ModuleList; use checkpoint=false."
    return None


def _adapted_unsupported(
    cell: Cell | StepCell, method: Method, model: nn.Module, targets: Mapping[str, Role]
) -> str | None:
    """Explain what the shapes of the model rule out: ranks above those of all layers, or products in FP8."""
    ranks = _given_ranks(cell) if targets else {}
    ours = bool(ranks) and cell.method == "comera"  # whose ranks show in the adapted model alone
    if ranks and not ours:
        sides = {layer: min(model.get_parameter(f"{layer}.weight").shape) for layer in targets}
        linear = {layer: side for layer, side in sides.items() if targets[layer] != "embedding"}
        if reason := _ranks_above(cell.method, ranks, sides, linear):
            return reason
    if not ours and cell.precision != "fp8":
        return None
    with torch.device("meta"):
        model = method.adapt(model, targets)
    if ours:
        found = {layer: max(own) for layer, own in ranks_of(model).items()}
        linear = {layer: rank for layer, rank in found.items() if isinstance(model.get_submodule(layer), TTLinear)}
        if reason := _ranks_above(cell.method, ranks, found, linear):
            return reason
    return fp8_unsupported(cell.precision, model, adapted_targets(method, model, targets))


def _given_ranks(cell: Cell | StepCell) -> dict[str, int]:
    """Return the ranks that a cell sets; defaults, and ranks that a ratio sets aside, are not checked."""
    settings = cell.method_settings
    if not cell.method or settings.get("ratio") or settings.get("ranks_of_ratio"):
        return {}
    usual = default_settings(cell.method)
    given = {name: settings[name] for name in (*_RANKS, *_TABLE_RANKS) if name in settings}
    return {name: value for name, value in given.items() if value != usual[name]}


def _ranks_above(
    method: str, given: Mapping[str, int], most: Mapping[str, int], linear: Mapping[str, int]
) -> str | None:
    """Explain which rank is above the largest of its kind of layers; ``most`` has that of each layer by name."""
    tables = [rank for layer, rank in most.items() if layer not in linear]
    for name, value in given.items():
        largest = max(linear.values() if name in _RANKS else tables, default=value)
        if value > largest:
            allowed = f"1 to {largest}, the largest rank of this model's layers"
            return f"settings.{method}.{name} is {value}; allowed: {allowed}."
    return None
