"""The linear rule: two short models give the whole one, and two batches give any.

A step's memory, work and traffic grow by the same amount with every further block of a stack, and with every further
row of the batch. Memory does so at every operation of a moment (:mod:`bench.advise.moments`); the peak is the highest
of all of them, so it is a bent line. Rows that are padded to an alignment, and ranks that differ between layers of one
shape, keep the rule from being exact to the byte.
"""

from collections.abc import Callable
from dataclasses import dataclass

from bench.advise.model import AdvisedModel
from bench.advise.moments import Trace, highest, trace
from bench.estimate.devices import largest_batch
from bench.protocol import Method

#: Batches beyond this one are not looked at.
MOST = 65_536


def on_line(near: Trace, far: Trace, steps: float) -> Trace:
    """Return the trace ``steps`` times as far beyond ``near`` as ``far`` is; 1 gives ``far`` itself.

    Moments that only one of both has are left out: they belong to blocks between the ends.
    """
    shared = [moment for moment in near.moments if moment in far.moments]
    moments = {}
    for moment in shared:
        held, further = near.moments[moment], far.moments[moment]
        if held.shape != further.shape:  # unlike moments: through their highest points
            held, further = highest(held), highest(further)
        moments[moment] = held + (further - held) * steps
    numbers = {name: value + (far.numbers[name] - value) * steps for name, value in near.numbers.items()}
    return Trace(moments, numbers)


@dataclass(frozen=True)
class Steps:
    """The steps of one arm on the user's model."""

    model: AdvisedModel  # the whole one
    method: Callable[[AdvisedModel], Method]  # makes the arm afresh for a model of any depth
    precision: str
    device: str  # "cpu" or "cuda"
    checkpoint: bool  # whether blocks are checkpointed

    def at(self, batch_size: int, memory_alone: bool = False) -> Trace:
        """Predict a step of the whole model, from two short ones or, without a pattern of blocks, by itself.

        Raises ValueError: the arm cannot train the model, or not at such a precision.
        """
        short, longer = self.model.depths
        near = self._traced(short, batch_size, memory_alone)
        if short == longer:
            return near
        far = self._traced(longer, batch_size, memory_alone)
        return on_line(near, far, (self.model.blocks - short) / (longer - short))

    def _traced(self, depth: int, batch_size: int, memory_alone: bool) -> Trace:
        model = self.model.shortened(depth)
        ends = -(-self.model.depths[0] // 2)
        words = self.precision, self.device, self.checkpoint, ends, memory_alone
        return trace(model, self.method(model), batch_size, *words)

    def largest_batch(self, known: Trace, batch_size: int, room: float) -> int:
        """Find the largest batch up to :data:`MOST` whose peak is at most ``room`` bytes; 0 where none fits.

        ``known`` is the step of ``batch_size``; a second batch, twice as large, is traced for the line.
        """
        double = self.at(2 * batch_size, memory_alone=True)

        def peak(batch: int) -> float:
            return on_line(known, double, (batch - batch_size) / batch_size).peak_bytes

        return largest_batch(peak, room, most=MOST).batch_size
