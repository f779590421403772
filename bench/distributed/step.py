"""The train step of a cell with several ranks, and its timing."""

import random
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import distributed, nn

from bench.core.cell import Cell
from bench.distributed.exchange import Exchange, check_optimizer, exchange_for
from bench.distributed.traffic import SentBytes, gradient_bytes
from bench.protocol import Batch, Change, Workload
from bench.protocol.methods import build_for
from bench.step.low_precision import adapted_model
from bench.step.timing import StepTimer, around
from bench.step.train_step import TrainStep
from comera import ranks_of
from comera.compatibility.distributed import check_same_ranks, wrapped_anew
from comera.low_precision.scaling import kernel_on

_MIB = 2**20

#: Between the seeds of two ranks' dropout; seeds of a configuration are smaller.
_RANK_SEEDS = 2**32


class ExchangedStep(TrainStep):
    """A train step whose gradients travel by an :class:`~bench.distributed.exchange.Exchange`.

    With ``mean_loss`` the objective has, and a step returns, the mean of the task loss over all ranks, for one small
    all-reduce; gradients are those of the rank's own either way. Changes of shapes are let through and taken up, on all
    ranks alike. Arguments are those of :class:`TrainStep`. Raises NotExchanged: its optimizer steps inside backward.
    """

    def __init__(self, *arguments: Any, exchange: Exchange, mean_loss: bool = False, **more: Any) -> None:
        super().__init__(*arguments, **more)
        check_optimizer(exchange)
        self.exchange, self.mean_loss = exchange, mean_loss

    def _through(self) -> nn.Module:
        return self.exchange.module()

    def _shared(self, task_loss: torch.Tensor) -> torch.Tensor:
        if not self.mean_loss:
            return task_loss
        mean = task_loss.detach().clone()
        distributed.all_reduce(mean)
        return task_loss + (mean / self.exchange.ranks - task_loss.detach())

    def _optimizer_step(self) -> None:
        self.exchange.after_backward()
        super()._optimizer_step()

    def _finish(self) -> None:
        with wrapped_anew():
            super()._finish()

    def invalidate(self, change: Change = "shapes") -> None:
        """Take up a change of shapes, the same on all ranks, beside what :class:`TrainStep` discards."""
        super().invalidate(change)
        if change == "shapes":
            check_same_ranks(ranks_of(self.model))
            self.exchange.rebuild()

    def settle(self, batch: Batch) -> None:
        """Run forward and backward once where the exchange is new, and forget the gradients.

        DDP lays its buckets out in the order in which gradients of the first step arrive. A run that goes on from a
        checkpoint has other first steps, and is to send the same buckets in all of them.
        """
        if self.exchange.settled:
            return
        states = torch.get_rng_state(), torch.cuda.get_rng_state() if self.device.type == "cuda" else None
        self.forward_backward(batch)
        self.optimizer.zero_grad(set_to_none=True)
        self.exchange.settle()
        torch.set_rng_state(states[0])
        if states[1] is not None:
            torch.cuda.set_rng_state(states[1])

    def changing(self) -> AbstractContextManager[object]:
        """Let the model be cut in the block; call :meth:`invalidate` next."""
        return wrapped_anew()


def build_exchanged(cell: Cell, workload: Workload) -> ExchangedStep:
    """Return the step of a cell's arm on this rank, before the first one.

    The cell's seed decides the initial weights, the same on all ranks; dropout's draws differ from rank to rank.
    """
    torch.manual_seed(cell.seed)
    method = build_for(cell)
    model = adapted_model(method, workload.build(), workload.targets(), cell.precision, kernel_on(cell.device))
    model = model.to(cell.device)
    exchange = exchange_for(cell, model)
    step = ExchangedStep(
        model,
        method,
        method.optimizer(model),
        workload.loss,
        cell.precision,
        cell.device,
        checkpoint=cell.checkpoint,
        exchange=exchange,
    )
    torch.manual_seed(rank_seed(cell.seed, distributed.get_rank()))
    return step


def rank_seed(seed: int, rank: int) -> int:
    """Return the seed of a rank's dropout; the first rank has the cell's own."""
    return seed + rank * _RANK_SEEDS


class RankTimer(StepTimer):
    """Times one rank's steps, in blocks of steps with the exchange that take turns with steps without it.

    Those without run the first rank's first batch with the same dropout on all ranks, so that models which were the
    same stay so without an exchange.
    """

    step: ExchangedStep

    def __init__(self, *arguments: Any, common: Batch) -> None:
        super().__init__(*arguments)
        self._common = common
        self._order = random.Random(0)  # the same on all ranks

    def block(self, steps: int) -> dict[str, Any]:
        """Time a block as one rank does, with ``compute_ms``."""
        before = self.calibrate()
        turns = [self._exchanged] + [self._local] * self.step.exchange.has_local_steps
        self._order.shuffle(turns)
        found: dict[str, Any] = {}
        for turn in turns:
            distributed.barrier()
            found |= turn(steps)
        return {**found, **around(before, self.calibrate())}

    def _exchanged(self, steps: int) -> dict[str, Any]:
        return {"ms": self.times(steps)}

    def _local(self, steps: int) -> dict[str, Any]:
        batches, state = self.batches, torch.get_rng_state()
        cuda_state = torch.cuda.get_rng_state() if self.on_cuda else None
        torch.manual_seed(self.step.number)
        self.batches = [self._common]
        try:
            with self.step.exchange.local():
                return {"compute_ms": self.times(steps)}
        finally:
            self.batches = batches
            torch.set_rng_state(state)
            if cuda_state is not None:
                torch.cuda.set_rng_state(cuda_state)

    def warm_up(self, steps: int) -> float:
        """Warm up as one rank does, with at least as many steps as the exchange needs to be like later ones."""
        return super().warm_up(max(steps, self.step.exchange.warm_up_steps) if steps else 0)

    def traffic(self) -> dict[str, Any]:
        """Return the traffic and memory of the exchange, as columns, from one step."""
        exchange = self.step.exchange
        counted = SentBytes(exchange.ranks)
        with counted:
            super().warm_up(1)
        return {
            "gradient_mib": gradient_bytes(self.step.model.parameters()) / _MIB,
            "sent_buckets_mib": counted.sent / _MIB,
            "sent_analytic_mib": exchange.sent_bytes() / _MIB,
            "exchange_memory_mib": exchange.memory_bytes() / _MIB,
        }
