"""The training plan of the paper: an early stage, then a late one that shrinks the model toward a target."""

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from bench.core.checked import Allowed, Seconds
from bench.protocol import Stage

Positive = Annotated[float, Field(gt=0), Allowed("finite numbers above 0")]
Steps = Annotated[Annotated[int, Field(ge=1)] | None, Allowed("whole numbers from 1 up, or null")]
_SHARES = "a list of shares above 0 and at most 1, such as [0.8,0.5]"
Share = Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True)
class EarlyLate:
    """Settings of the two stages. Lengths given in steps go before those given in epochs.

    Example:
        >>> [[stage.name for stage in run] for run in EarlyLate(targets=(0.8, 0.5)).runs(100, shrinks=True)]
        [['early'], ['early', 'late'], ['early', 'late']]
    """

    early_epochs: Positive = 6.0  # passes over the training rows
    late_epochs: Positive = 3.0
    early_steps: Steps = None  # optimizer steps
    late_steps: Steps = None
    #: A late stage each, for methods that shrink: the share of the tensorized size at its start that is left.
    targets: Annotated[tuple[Share, ...], Allowed(_SHARES)] = (0.8, 0.5, 0.2)
    #: Likewise, the size of the whole model.
    targets_mib: Annotated[tuple[float, ...], Allowed("a list of finite numbers, such as [3,1.5]")] = ()
    static: bool = False  # pad every batch to the same shape; otherwise batches are bucketed by length
    time_limit_s: Seconds = 604_800.0  # after which a run is given up as "timeout"; it can be resumed

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
