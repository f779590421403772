"""The training plan of the paper: an early stage, then a late one that shrinks the model toward a target."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bench.protocol import Stage


@dataclass(frozen=True)
class EarlyLate:
    """Settings of the two stages. Lengths given in steps go before those given in epochs.

    Example:
        >>> [[stage.name for stage in run] for run in EarlyLate(targets=(0.8, 0.5)).runs(100, shrinks=True)]
        [['early'], ['early', 'late'], ['early', 'late']]
    """

    early_epochs: float = 6.0  # passes over the training rows
    late_epochs: float = 3.0
    early_steps: int | None = None  # optimizer steps
    late_steps: int | None = None
    #: A late stage each, for methods that shrink: the share of the tensorized size at its start that is left.
    targets: tuple[float, ...] = (0.8, 0.5, 0.2)
    targets_mib: tuple[float, ...] = ()  # likewise, the size of the whole model
    static: bool = False  # pad every batch to the same shape; otherwise batches are bucketed by length
    time_limit_s: float = 604_800.0  # after which a run is given up as "timeout"; it can be resumed

    def __post_init__(self) -> None:
        for field in ("early_epochs", "late_epochs", "time_limit_s"):
            if not getattr(self, field) > 0:
                raise ValueError(f"{field} is {getattr(self, field)}; allowed: numbers above 0.")
        for field in ("early_steps", "late_steps"):
            steps = getattr(self, field)
            if steps is not None and steps < 1:
                raise ValueError(f"{field} is {steps}; allowed: whole numbers from 1 up, or null.")
        for target in self.targets:
            if not 0 < target <= 1:
                raise ValueError(f"targets has {target:g}; allowed: shares above 0 and at most 1.")

    def runs(self, steps_per_epoch: int, shrinks: bool) -> list[tuple[Stage, ...]]:
        """Early alone and early with late, one per target, where the method shrinks; else both stages in one run.

        Without a target there is no late stage.
        """
        early = Stage("early", self.early_steps or max(round(self.early_epochs * steps_per_epoch), 1))
        late = Stage("late", self.late_steps or max(round(self.late_epochs * steps_per_epoch), 1))
        by_share = [replace(late, target=target) for target in self.targets]
        by_size = [replace(late, target_mib=target) for target in self.targets_mib]
        if shrinks:
            return [(early,), *((early, one) for one in (*by_share, *by_size))]
        return [(early, late) if by_share or by_size else (early,)]
