"""Workloads whose second rank ends in a bad way after some steps."""

import os
import signal

import torch
from torch import distributed

from bench.workloads.encoder import EncoderWorkload


class EndingEncoder(EncoderWorkload):
    """The second rank alone calls :meth:`end` after some steps."""

    steps = 0

    def end(self) -> None:
        """End this rank."""

    def loss(self, model, batch) -> torch.Tensor:
        self.steps += 1
        if self.steps > 4 and distributed.is_initialized() and distributed.get_rank() == 1:
            self.end()
        return super().loss(model, batch)


class WantingEncoder(EndingEncoder):
    """Its loss wants more memory than there is."""

    name = section = "wanting"

    def end(self) -> None:
        torch.empty(2**50)


class KilledEncoder(EndingEncoder):
    """It is killed."""

    name = section = "killed"

    def end(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


WORKLOADS = WantingEncoder, KilledEncoder
