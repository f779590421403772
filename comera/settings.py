"""What may be set of CoMERA as a training method."""

from __future__ import annotations

from dataclasses import dataclass

from comera.lookup import VARIANTS as LOOKUPS
from comera.rank_control import THRESHOLD
from comera.rank_search import check_ratio


@dataclass(frozen=True)
class Settings:
    """Hyperparameters of CoMERA (METHOD.md, Formats and Objectives).

    Args:
        ranks: cap on the TT ranks of linear layers, clipped per bond.
        table_ranks: cap on the TTM ranks of the embedding.
        order: modes per side of a TT layer.
        table_order: number of TTM cores.
        ratio: how many times smaller the whole model is to be; modes and ranks of every layer are then solved for
            (:func:`comera.solve_model`, which tries the orders given here first), and ``ranks``, ``table_ranks`` and
            the published modes do not apply. None: they do.
        lookup: ``optimized``, ``plain``, ``unique`` or ``order``, see :mod:`comera.lookup`.
        lr_cores, lr_ranks, lr_dense: AdamW rates of cores, rank-control entries and everything else; the published
            ones. Three times that on cores and the rest did as well on SST-2, but learned nothing on a pool of NLI data
            (recorded searches).
        threshold: a rank whose control entry is up to this magnitude counts as closed.
        gamma: weight γ of the size surrogate in the early stage.
        beta: weight β of the squared norm of the cores, in both stages.
        loss_target: wished-for task loss L0 of the late stage; None: the present one at every step, so that size leads
            exactly as long as it exceeds S0.
        loss_weight, size_weight: weights w1 and w2 of the distances from the wished-for loss and size.
        rho: weight ρ of loss plus surrogate beside the larger distance. 1 + w2/ρ prices size in loss while size leads,
            ρ/(w1 + ρ) while the loss does; see :class:`comera.LateStage`.
        recovery: share of the late stage that is kept to train on at the target. Where S still exceeds S0 when it
            begins, ranks are closed in the order of their control entries (an addition of ours, not in the paper).
        truncate_every: cut closed ranks out of the cores every so many steps; 0 cuts at the end of each stage only.
        merge_jointly: merge equally shaped layers in one batch.
    """

    ranks: int = 30
    table_ranks: int = 32
    order: int = 3
    table_order: int = 4
    ratio: float | None = None
    lookup: str = "optimized"
    threshold: float = THRESHOLD
    lr_cores: float = 1e-4
    lr_ranks: float = 1e-3
    lr_dense: float = 5e-5
    gamma: float = 0.01
    beta: float = 1e-6
    loss_target: float | None = None
    loss_weight: float = 10.0
    size_weight: float = 10.0
    rho: float = 1.0
    recovery: float = 0.25
    truncate_every: int = 0
    merge_jointly: bool = True

    def __post_init__(self) -> None:
        lowest_allowed = (("ranks", 1), ("table_ranks", 1), ("order", 1), ("table_order", 2), ("truncate_every", 0))
        for name, lowest in lowest_allowed:
            if getattr(self, name) < lowest:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {lowest}.")
        rates, weights = ("lr_cores", "lr_ranks", "lr_dense"), ("gamma", "beta", "loss_weight", "size_weight", "rho")
        for name in (*rates, *weights):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 0 or more.")
        if self.ratio is not None:
            check_ratio(self.ratio)
        if not 0 <= self.threshold < 1:
            raise ValueError(f"threshold is {self.threshold}; it must be 0 or more, and below 1, where entries begin.")
        if not 0 <= self.recovery < 1:
            raise ValueError(f"recovery is {self.recovery}; it must be 0 or more, and below 1.")
        if self.lookup not in LOOKUPS:
            raise ValueError(f"lookup is {self.lookup!r}; allowed: {', '.join(LOOKUPS)}.")
