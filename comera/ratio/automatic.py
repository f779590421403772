"""The choice of layers for a ratio, where the user makes none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from torch import nn

from comera.compatibility.attention import PROJECTIONS, unsplittable
from comera.compatibility.hugging_face import is_linear, linear_weight
from comera.ratio.model import solve_model
from comera.specs import TABLES, TT, TTM, Dense, unsupported_option, unusual

#: A weight whose smaller dimension is below this stays dense, such as that of class scores: its ranks can be no larger.
SMALLEST = 32


class Choice(NamedTuple):
    """Chosen layers with their specifications, and the reason for each layer that stays dense."""

    plan: dict[str, TT | TTM]
    left: dict[str, str]


def choose(model: nn.Module, ratio: float) -> Choice:
    """Return a plan that makes a whole model ``ratio`` times smaller.

    Left dense are layers that are frozen or quantised, that do more than their class does, or that are small; a weight
    that is shared is left if one of its layers is. All others get modes and ranks from :func:`comera.solve_model`.

    Raises:
        ValueError: a model in which no layer is to be tensorized, or a ratio that is out of reach.

    Example:
        >>> model = nn.Sequential(nn.Embedding(1000, 64), nn.Linear(64, 256), nn.Linear(256, 64), nn.Linear(64, 2))
        >>> choice = choose(model, ratio=20)
        >>> [*choice.plan], choice.left
        (['0', '1', '2'], {'3': 'is small: 64 → 2'})
    """
    layers = {name: module for name, module in model.named_modules() if is_linear(module) or isinstance(module, TABLES)}
    left = {name: reason for name, layer in layers.items() if (reason := _reason(layer))}
    tied = {layers[name].weight for name in left}
    shared = {name: "shares its weight with one that is left" for name in layers if layers[name].weight in tied}
    left = shared | left
    chosen = [name for name in layers if name not in left]
    left |= _attention(model.named_modules())
    if not chosen:
        reasons = "; ".join(f"{name or 'the model'} {reason}" for name, reason in left.items()) or "there is none"
        raise ValueError(f"no layer of the model can be tensorized: {reasons}.")
    return Choice(solve_model(model, chosen, ratio).plan, left)


def sentences(left: Mapping[str, str]) -> list[str]:
    """Return one sentence for each reason for which layers stay dense.

    Example:
        >>> sentences({"a": "is frozen", "b": "is frozen"})
        ['a and 1 more stay dense: is frozen']
    """
    by_reason: dict[str, list[str]] = {}
    for name, reason in left.items():
        by_reason.setdefault(reason, []).append(name or "the model")
    return [
        f"{names[0]} stays dense: {reason}"
        if len(names) == 1
        else f"{names[0]} and {len(names) - 1} more stay dense: {reason}"
        for reason, names in by_reason.items()
    ]


def worth_splitting(model: nn.Module) -> Callable[[str], bool]:
    """Return whether :func:`choose` would take the input projections of the attention of a name."""

    def fits(name: str) -> bool:
        attention = model.get_submodule(name)
        assert isinstance(attention, nn.MultiheadAttention)
        trained = all(parameter.requires_grad for parameter in attention.parameters())
        return trained and min(attention.embed_dim, attention.kdim, attention.vdim) >= SMALLEST

    return fits


def _reason(layer: Dense) -> str | None:
    """Explain why a layer stays dense, to complete "the layer …"; None if it need not."""
    if not layer.weight.requires_grad:
        return unusual(layer) or "is frozen"
    if reason := unusual(layer) or unsupported_option(layer):
        return reason
    table = isinstance(layer, TABLES)
    sizes = (layer.num_embeddings, layer.embedding_dim) if table else linear_weight(layer).t().shape
    if min(sizes) < SMALLEST:
        return f"is small: {sizes[0]:,} {'by' if table else '→'} {sizes[1]:,}"
    return None


def _attention(modules: Iterable[tuple[str, nn.Module]]) -> dict[str, str]:
    """Return the attention modules of torch whose input projections are not layers."""
    reasons = {name: unsplittable(each) for name, each in modules if isinstance(each, nn.MultiheadAttention)}
    return {f"{name}.{PROJECTIONS[0]}".lstrip("."): reason for name, reason in reasons.items() if reason}
