"""The time of a campaign: what is left of its budget, and how long a unit will take."""

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.campaign.stages import Unit
from bench.core.processors import usable_processors
from bench.errors import ConfigError
from bench.measures import available, named

_SAFETY = 1.2  # an estimate is so many times what was seen before
_CLOSING_SHARE, _CLOSING_S = 0.05, 15.0  # of the budget, what is kept for writing archives, and at most so many seconds
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def seconds_of(text: str) -> float:
    """A budget such as ``9m``, ``540s``, ``1.5h`` in seconds; raises ConfigError over anything else.

    >>> seconds_of("9m")
    540.0
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if not match or not float(match[1]):
        raise ConfigError(f"budget is {text!r}; allowed: a number above 0 with s, m or h, such as 9m.")
    return float(match[1]) * _UNITS[match[2]]


@dataclass(frozen=True)
class Run:
    """A unit that has run to its end: what it was, where, how many cells were measured and how long that took."""

    stage: str
    label: str
    measure: str
    workload: str
    device: str
    cells: int
    seconds: float


class Clock:
    """What is left of a budget in seconds, and estimates from the runs of this ``device`` in earlier calls.

    Attribute ``runs``: those, and what has run since.

    >>> clock = Clock(100.0, "made up", now=iter([0.0, 60.0]).__next__)
    >>> clock.left()
    35.0
    """

    def __init__(
        self, budget_s: float, device: str, runs: Sequence[Run] = (), now: Callable[[], float] = time.monotonic
    ) -> None:
        self._now = now
        self._end = now() + budget_s - min(_CLOSING_SHARE * budget_s, _CLOSING_S)
        self._device = device
        self.runs = list(runs)

    def left(self) -> float:
        """Seconds left for measuring; what it takes to write archives is kept back."""
        return self._end - self._now()

    def time(self, unit: Unit, cells: int) -> Callable[[], None]:
        """Begin to time so many cells of a unit; what is returned is to be called at their end."""
        begun = self._now()

        def end() -> None:
            workload, seconds = unit.cells[0].workload, round(self._now() - begun, 1)
            self.runs.append(Run(unit.stage, unit.label, unit.measure.name, workload, self._device, cells, seconds))

        return end

    def estimate(self, unit: Unit, cells: int) -> float:
        """Seconds that so many cells of a unit will take.

        From the slowest of the runs most like it: of the same unit, else stage, else measure and workload.
        """
        measure = unit.measure
        if measure.resumes:  # may stop anywhere and go on in the next call
            return measure.seconds
        own = {"stage": unit.stage, "label": unit.label, "measure": measure.name, "workload": unit.cells[0].workload}
        here = [run for run in self.runs if run.device == self._device]
        turns = _turns(measure.name, cells)
        for alike in (("stage", "label"), ("stage",), ("measure", "workload")):
            if runs := [run for run in here if all(getattr(run, name) == own[name] for name in alike)]:
                return _SAFETY * turns * max(run.seconds / _turns(run.measure, run.cells) for run in runs)
        return turns * measure.seconds


def _turns(measure: str, cells: int) -> int:
    """How many times as long as one cell these take, some of which run side by side."""
    parallel = measure in available() and named(measure).parallel  # a diary may name one that is not here
    return math.ceil(cells / usable_processors()) if parallel else cells
