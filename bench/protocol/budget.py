"""The training plan of a fixed number of steps, by the recipe that users of today take."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from bench.core.checked import Allowed, FromOne, Seconds
from bench.protocol import Share, Stage, Steps
from bench.protocol.recipe import Recipe
from comera.protocol import Optimizer

Rate = Annotated[Annotated[float, Field(gt=0, le=1e3)] | None, Allowed("numbers above 0, up to 1,000, or null")]
_Norm = Annotated[float, Field(ge=0, le=1e9), Allowed("finite numbers from 0 (nothing is clipped) up")]
_Part = Annotated[float, Field(ge=0, lt=1), Allowed("numbers from 0 to below 1")]
_Left = Annotated[float, Field(ge=0, le=1), Allowed("numbers from 0 to 1 (rates stay as they are)")]
_Steps = Annotated[int, Field(ge=1, le=10**9), Allowed("whole numbers from 1 to 1,000,000,000")]

#: Rates of matrices and of everything else where a configuration gives none.
RATES: Mapping[str, tuple[float, float]] = {"adamw": (3e-3, 3e-3), "muon": (0.03, 3e-3)}


@dataclass(frozen=True)
class Budget:
    """So many steps, whose rates rise and then fall along a cosine; then, if asked for, a stage that prunes.

    Args:
        steps: how many there are before any pruning.
        optimizer: ``adamw``, ``muon`` (Muon for the matrices of the targets, AdamW for the rest) or ``own``, the
            method's.
        lr: rate of the matrices; null: :data:`RATES`.
        lr_rest: of everything else; null: :data:`RATES`.
        beta2, momentum, weight_decay: see :class:`bench.protocol.recipe.Recipe`.
        clip: the norm to which gradients are cut together; 0: they are not.
        warmup: share of a stage's steps in which rates rise from 0.
        decay: how they fall afterwards.
        final_rate: what is left of them at the last step.
        prune_steps, prune_targets: steps of a late stage, one run for each share of the tensorized size to be left, for
            methods that shrink.
        prune_from: share of the steps after which the late stage takes up the rest of them, instead of coming after
            them; rates then fall over both stages together. null: ``prune_steps`` come after ``steps``.
        curve_steps: between points of the learning curve; null: a quarter of the steps.
        time_limit_s: after which a run is given up as "timeout"; it can be resumed.

    Raises:
        ValueError: rates for ``optimizer=own``, whose rates are settings of the methods; ``prune_from`` without
            targets.

    >>> plan = Budget(steps=100, optimizer="muon", prune_targets=(0.5,))
    >>> [[(stage.name, stage.steps, stage.target) for stage in run] for run in plan.runs(1, shrinks=True)]
    [[('train', 100, None)], [('train', 100, None), ('prune', 500, 0.5)]]
    >>> plan.recipe["lr"], plan.schedule
    (0.03, {'warmup': 0.05, 'final': 0.0, 'decay': 'cosine'})
    """

    steps: _Steps = 1000
    optimizer: Optimizer = "adamw"
    lr: Rate = None
    lr_rest: Rate = None
    beta2: _Part = 0.95
    momentum: _Part = 0.95
    weight_decay: _Part = 0.0
    clip: _Norm = 1.0
    warmup: _Part = 0.05
    decay: Literal["cosine", "linear"] = "cosine"
    final_rate: _Left = 0.0
    prune_steps: FromOne = 500
    prune_from: Annotated[_Part | None, Allowed("numbers from 0 to below 1, or null")] = None
    prune_targets: Annotated[tuple[Share, ...], Allowed("a list of shares, such as [0.5,0.25]")] = ()
    curve_steps: Steps = None
    time_limit_s: Seconds = 604_800.0

    static = True  # all batches have one shape

    def __post_init__(self) -> None:
        if self.optimizer == "own":
            for name in ("lr", "lr_rest"):
                if (given := getattr(self, name)) is not None:
                    raise ValueError(
                        f"{name} is {given:g}, but optimizer=own takes its rates from the method's settings; leave it "
                        "out, or use adamw or muon."
                    )
        if self.prune_from is not None and not self.prune_targets:
            raise ValueError(f"prune_from is {self.prune_from:g}; it needs prune_targets.")
        if self.curve_steps is None:
            object.__setattr__(self, "curve_steps", math.ceil(self.steps / 4))

    @property
    def recipe(self) -> dict[str, Any]:
        """The recipe as cells hold it."""
        lr, lr_rest = RATES.get(self.optimizer, (None, None))
        return Recipe(
            optimizer=self.optimizer,
            lr=lr if self.lr is None else self.lr,
            lr_rest=lr_rest if self.lr_rest is None else self.lr_rest,
            beta2=self.beta2,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            clip=self.clip or None,
        ).identity()

    @property
    def schedule(self) -> dict[str, Any]:
        """The rise and fall of rates, see :func:`bench.training.run.scheduled_share`."""
        over = {} if self.prune_from is None else {"over": "run"}
        return {"warmup": self.warmup, "final": self.final_rate, "decay": self.decay, **over}

    def runs(self, steps_per_epoch: int, shrinks: bool) -> Sequence[tuple[Stage, ...]]:  # noqa: ARG002
        """Return the steps alone and, for methods that shrink, with a pruning stage for each target.

        With ``prune_from`` a method that shrinks has the runs with targets alone.

        >>> plan = Budget(steps=100, prune_targets=(0.5,), prune_from=0.2)
        >>> [[(stage.name, stage.steps, stage.target) for stage in run] for run in plan.runs(1, shrinks=True)]
        [[('train', 20, None), ('prune', 80, 0.5)]]
        """
        if self.prune_from is not None and shrinks:
            begun = min(max(round(self.prune_from * self.steps), 1), self.steps - 1)
            late = [Stage("prune", self.steps - begun, target) for target in self.prune_targets]
            return [(Stage("train", begun), each) for each in late]
        train = Stage("train", self.steps)
        pruned = [(train, Stage("prune", self.prune_steps, target)) for target in self.prune_targets]
        return [(train,), *(pruned if shrinks else ())]
