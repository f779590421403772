"""A function run by two gloo processes at once, and the training that distributed forms are compared by.

``in_two_processes(work, *arguments)`` calls ``work(rank, *arguments)`` in each; ``work`` is a function at the top of a
module that a process can import, and what it returns comes back by ``torch.save``. A distributed test is then

    def sharded(rank):
        model = build()
        fully_shard(model)
        return train(model, rank, 2)

    one, two = in_two_processes(sharded)

which is compared with ``train(build())`` in the test's own process: twenty steps on the same global batches, of which
each rank takes its half, so that averaged gradients are those of one process.
"""

import datetime
import functools
import gc
import io
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import torch
from torch import distributed, nn

STEPS = 20
FEATURES = 12
_GLOBAL_BATCH = 8
_LIMIT_S = 60


def in_two_processes(work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What ``work(rank, *arguments)`` returned on rank 0 and on rank 1; an error of either is raised here.

    Both processes form one gloo group that meets in a file, so that runs beside each other share no port.
    """
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"{folder}/meeting"
        try:
            ranks = enumerate(_processes())
            calls = [process.submit(_as_rank, rank, meeting, work, arguments) for rank, process in ranks]
            answers = [call.result() for call in calls]
        except BrokenProcessPool:  # the next test gets new processes
            for process in _processes():
                process.shutdown(wait=False, cancel_futures=True)
            _processes.cache_clear()
            raise
    return [torch.load(io.BytesIO(answer), weights_only=False) for answer in answers]


@functools.cache
def _processes() -> list[ProcessPoolExecutor]:
    """A process per rank, which stays, so that it imports torch once. They inherit no thread of pytest.

    A process is of one rank for its life: DTensor remembers how it cut a tensor for a mesh, and meshes over the same
    ranks are equal whichever of them the process is, so that as another rank it would cut out the wrong part.
    """
    return [ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("forkserver")) for _ in range(2)]


def _as_rank(rank: int, meeting: str, work: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    limit = datetime.timedelta(seconds=_LIMIT_S)  # a rank that waits for one that has failed ends with an error
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2, timeout=limit)
    answer = io.BytesIO()
    try:
        torch.save(work(rank, *arguments), answer)
        distributed.barrier()
    except BaseException:  # not every error can be pickled, such as those of pytest
        raise RuntimeError(f"rank {rank} failed:\n{traceback.format_exc()}") from None
    finally:
        # What work has left, as a hook of DDP in a circle of references, holds the group. If a thread of the group were
        # the one to drop the last reference, it would wait for itself to end: "Resource deadlock avoided".
        gc.collect()
        distributed.destroy_process_group()
    return answer.getvalue()


def batches(rank: int = 0, ranks: int = 1, steps: int = STEPS) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs (rows, FEATURES) and targets of as many steps; of each global batch the share of one rank."""
    source = torch.Generator().manual_seed(7)
    rows = _GLOBAL_BATCH // ranks
    drawn = torch.randn(steps, 2, _GLOBAL_BATCH, FEATURES, generator=source, dtype=torch.float64)
    return [(x, y) for x, y in drawn[:, :, rank * rows : (rank + 1) * rows].unbind()]


def train(
    model: nn.Module,
    rank: int = 0,
    ranks: int = 1,
    optimizer: torch.optim.Optimizer | None = None,
    objective: Callable[[torch.Tensor, nn.Module], torch.Tensor] = lambda loss, _: loss,
    steps: slice = slice(STEPS),
) -> list[float]:
    """The loss of each of ``steps`` on this rank's share, by AdamW if no optimizer is given.

    The loss is a mean over rows, so the mean over ranks is the loss of the whole batch in one process.
    """
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    losses = []
    for x, y in batches(rank, ranks)[steps]:
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        objective(loss, model).backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
