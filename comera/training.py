"""CoMERA as a training method, in the form the bench compares.

The class here has the shape of ``bench.protocol.Method`` without importing it: ``adapt`` tensorizes the named weights,
``optimizer`` gives cores, rank-control entries and dense parameters their own rates, ``objective`` is the early
stage's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import nn

from comera.lookup import VARIANTS as LOOKUPS
from comera.lookup import Variant
from comera.objective import OBJECTIVE_VARIANTS, EarlyStage, ObjectiveVariant, tensorized_layers
from comera.tensorize import TT, TTM, tensorize

VARIANTS = OBJECTIVE_VARIANTS

#: Modes of the paper's word embedding, which no rule of balance gives (METHOD.md, Settings).
PUBLISHED_TABLE_MODES: dict[tuple[int, int], tuple[tuple[int, ...], tuple[int, ...]]] = {
    (30522, 768): ((16, 20, 10, 10), (4, 4, 8, 6)),
}


@dataclass(frozen=True)
class Settings:
    """Hyperparameters of CoMERA (METHOD.md, Formats and Objectives).

    Args:
        ranks: cap on the TT ranks of linear layers, clipped per bond.
        table_ranks: cap on the TTM ranks of the embedding.
        order: modes per side of a TT layer.
        table_order: number of TTM cores.
        lookup: ``optimized`` or ``plain``.
        lr_cores, lr_ranks, lr_dense: AdamW rates of cores, rank-control entries and everything else.
        gamma, beta: weights of the size surrogate and of the squared norm of the cores.
        merge_jointly: merge equally shaped layers in one batch.
    """

    ranks: int = 30
    table_ranks: int = 32
    order: int = 3
    table_order: int = 4
    lookup: str = "optimized"
    lr_cores: float = 1e-4
    lr_ranks: float = 1e-3
    lr_dense: float = 5e-5
    gamma: float = 0.01
    beta: float = 1e-6
    merge_jointly: bool = True

    def __post_init__(self) -> None:
        for name, lowest in (("ranks", 1), ("table_ranks", 1), ("order", 1), ("table_order", 2)):
            if getattr(self, name) < lowest:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {lowest}.")
        for name in ("lr_cores", "lr_ranks", "lr_dense", "gamma", "beta"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 0 or more.")
        if self.lookup not in LOOKUPS:
            raise ValueError(f"lookup is {self.lookup!r}; allowed: {', '.join(LOOKUPS)}.")


class CoMERA:
    """The arm ``comera``: every linear weight and the embedding in tensor-train form, with rank control."""

    capture = "whole_step"
    capture_reason = ""

    def __init__(self, settings: Settings, variant: ObjectiveVariant) -> None:
        self.settings = settings
        # The optimizer adds the gradient of β‖G‖², see there.
        self._early_stage = EarlyStage(variant, settings.gamma, beta=0.0)
        self._beta = settings.beta if variant == "paper" else 0.0

    def unsupported(self, cell: Any) -> str | None:  # noqa: ARG002 - every cell suits this method
        return None

    def adapt(self, model: nn.Module, targets: Mapping[str, str]) -> nn.Module:
        """Tensorize every target from scratch; the role ``embedding`` becomes a TTM, the others TT."""
        settings = self.settings
        plan: dict[str, TT | TTM] = {}
        for name, role in targets.items():
            if role == "embedding":
                embedding = model.get_submodule(name)
                size = (getattr(embedding, "num_embeddings", 0), getattr(embedding, "embedding_dim", 0))
                rows, columns = PUBLISHED_TABLE_MODES.get(size, (None, None))
                lookup = next(known for known in get_args(Variant) if known == settings.lookup)
                plan[name] = TTM(settings.table_ranks, settings.table_order, rows, columns, lookup)
            else:
                plan[name] = TT(settings.ranks, settings.order)
        return tensorize(model, plan, merge_jointly=settings.merge_jointly)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Fused AdamW without weight decay, at three rates, for the objective with its term β‖G‖².

        The gradient of that term is 2β·G, which is what Adam's L2 penalty adds to the gradient inside its fused kernel:
        the same mathematics as the term itself, without a pass over the cores. (AdamW without weight decay is Adam.)
        """
        layers = tensorized_layers(model)
        cores = [layer.packed_cores for layer in layers]
        ranks = [layer.diagonals for layer in layers]
        special = {id(parameter) for parameter in (*cores, *ranks)}
        dense = [parameter for parameter in model.parameters() if id(parameter) not in special]
        groups = [
            {"params": cores, "lr": self.settings.lr_cores, "weight_decay": 2 * self._beta},
            {"params": ranks, "lr": self.settings.lr_ranks},
            {"params": dense, "lr": self.settings.lr_dense},
        ]
        return torch.optim.Adam([group for group in groups if group["params"]], weight_decay=0.0, fused=True)

    def objective(self, task_loss: torch.Tensor, model: nn.Module) -> torch.Tensor:
        return self._early_stage(task_loss, model)

    def after_step(
        self,
        model: nn.Module,  # noqa: ARG002
        optimizer: torch.optim.Optimizer,  # noqa: ARG002
        step: int,  # noqa: ARG002
    ) -> Literal["nothing", "values", "shapes"]:
        return "nothing"

    def rare_events(self) -> list[Any]:
        return []

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state:
            raise ValueError(f"CoMERA keeps no state of its own, got {', '.join(state)}.")

    def stored_size(self, model: nn.Module) -> int:
        """Bytes of all parameters and buffers, rank-control entries included, shared ones once."""
        tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def build(settings: Settings, variant: str) -> CoMERA:
    """CoMERA with these settings; ``variant`` names the objective, empty for the paper's.

    Raises:
        ValueError: an unknown variant.
    """
    known: ObjectiveVariant | None = next((name for name in VARIANTS if name == (variant or VARIANTS[0])), None)
    if known is None:
        raise ValueError(f"variant is {variant!r}; allowed: {', '.join(VARIANTS)}.")
    return CoMERA(settings, known)
