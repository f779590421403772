"""Regressions to plant into comera, each the smallest change that does what its name says."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import comera.contraction.merging
import comera.contraction.planned
import comera.layers
from comera import TTLinear
from comera.contraction import candidates
from comera.contraction.merging import _MergeCores


def copied_activations(patch: pytest.MonkeyPatch) -> None:
    """The layer's input is copied before it is used."""
    forward = TTLinear.forward
    patch.setattr(TTLinear, "forward", lambda self, x: forward(self, x.clone()))


def wrong_order(patch: pytest.MonkeyPatch) -> None:
    """The cores of a half are merged from the middle of the chain to its end, instead of the other way round."""

    def plan(shape: Any, tokens: int, *_: Any) -> Any:
        halves = candidates(shape, tokens)[0]
        return replace(halves, name="from the middle", trees=((0, (1, 2)), ((3, 4), 5)))

    patch.setattr(comera.layers, "plan_contraction", plan)


def saved_tensor(patch: pytest.MonkeyPatch) -> None:
    """The merging of cores keeps one of its results for backward, which has no use for it."""
    forward = _MergeCores.forward

    def hoarding(ctx: Any, *arguments: Any) -> tuple[torch.Tensor, ...]:
        halves = forward(ctx, *arguments)
        ctx.save_for_backward(*ctx.to_save, halves[0].clone())
        return halves

    patch.setattr(_MergeCores, "forward", staticmethod(hoarding))


def dropped_rank_mask(patch: pytest.MonkeyPatch) -> None:
    """Dead entries of the diagonals are no longer set to zero."""
    for module in (comera.contraction.merging, comera.contraction.planned):
        patch.setattr(module, "effective_diagonals", lambda diagonals, _: diagonals)


def one_more_parameter(patch: pytest.MonkeyPatch) -> None:
    """Every tensorized layer has a parameter of one number more."""
    reset = TTLinear.reset_parameters

    def with_scale(self: TTLinear) -> None:
        reset(self)
        self.scale = nn.Parameter(torch.ones(1))

    patch.setattr(TTLinear, "reset_parameters", with_scale)


#: What to plant, and the quantities that must be named.
PLANTED: dict[Callable[[pytest.MonkeyPatch], None], set[str]] = {
    copied_activations: {"operator_calls_per_step", "peak_bytes", "peak_activations_bytes"},
    wrong_order: {"flops_per_step"},
    saved_tensor: {"saved_for_backward_bytes", "peak_bytes", "peak_activations_bytes"},
    dropped_rank_mask: {"operator_calls_per_step"},
    one_more_parameter: {"parameters", "stored_bytes"},
}
