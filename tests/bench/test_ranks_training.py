"""Several ranks train as one does: the same losses, the same bytes after an interruption, the same ranks everywhere."""

import contextlib
import dataclasses
import math
from pathlib import Path

import pytest
import torch
from interrupted import Killed, as_bytes
from small_cells import MODEL, a_training_cell
from torch import distributed
from two_processes import in_two_processes

from bench.distributed.state import unsharded
from bench.protocol import Data
from bench.training.run import TrainingRun, Upkeep
from bench.workloads import open_workload, workload_class
from comera import ranks_of, tensorized_layers
from comera.compatibility.distributed import RanksDiffer, check_same_ranks

pytestmark = pytest.mark.slow  # processes start and import torch

STEPS = 20
AGREEMENT = 1e-5
STEADY = {**MODEL, "dropout": 0.0, "sequence_length": 32}

#: The published rates: at those of other tests a rounding error decides whether a rank closes at a step or the next.
RATES = {"comera": {"lr_cores": 1e-4, "lr_ranks": 1e-3, "lr_dense": 5e-5}, "dense": {"lr": 1e-4}}


def a_run(cell, folder, pairs, **upkeep) -> TrainingRun:
    settings = workload_class(cell.workload).Settings(**cell.workload_settings)
    workload = open_workload(cell.workload, settings, Data(data_folder=str(pairs)), check=False)
    fields = {"folder": Path(folder), "identity": "mine", "code_id": "c", **upkeep}
    return TrainingRun(cell, workload, Upkeep(**fields), lambda progress: None)  # noqa: ARG005


def losses_of(run: TrainingRun) -> list[float]:
    """The loss of each step."""
    losses, gradients = [], run.step._gradients

    def noted(batch):
        losses.append(gradients(batch))
        return losses[-1]

    run.step._gradients = noted  # type: ignore[method-assign]
    run.run()
    return [loss.item() for loss in losses[-run.at.step :]]  # what settles an exchange is no step


def of_ranks(cell, ranks: int, exchange: str = "ddp"):
    """The cell with its batch divided among ranks."""
    fields = {"batch_size": cell.batch_size // ranks, "world_size": ranks, "exchange": exchange}
    return dataclasses.replace(cell, **fields)


def trained(rank: int, cell, folder: str, pairs: str) -> list[float]:
    return losses_of(a_run(cell, f"{folder}/{rank}", pairs))


@pytest.mark.parametrize(("method", "exchange"), [("comera", "fsdp2"), ("comera", "ddp")])
def test_ranks_with_parts_of_a_batch_have_the_losses_of_one_with_all_of_it(method, exchange, pairs, tmp_path):
    cell = a_training_cell(method, early=STEPS, late=0, static=True, workload_settings=STEADY, settings=RATES[method])
    one = losses_of(a_run(cell, tmp_path / "one", pairs))
    two = in_two_processes(trained, of_ranks(cell, 2, exchange), str(tmp_path), str(pairs))
    assert len(one) == STEPS
    for losses in two:
        assert losses == pytest.approx(one, abs=AGREEMENT)


def left_by(run: TrainingRun) -> object:
    """All that a finished run leaves on this rank."""
    found = {"model": run.model.state_dict(), "optimizer": run.step.optimizer.state_dict()}
    own = {"exchange": run.step.exchange.state_dict(), "random": torch.get_rng_state(), "ranks": ranks_of(run.model)}
    return as_bytes(unsharded(found) | own)


def interrupted(
    rank: int,  # noqa: ARG001 - as all that run on ranks
    cell,
    folder: str,
    pairs: str,
    moments: list[int],
) -> list[bool]:
    """Whether a run that was stopped before each of those steps, and taken up again, is as one that was not."""

    def run(name: str) -> TrainingRun:
        return a_run(cell, f"{folder}/{name}", pairs, checkpoint_steps=3)

    undisturbed = run("undisturbed")
    undisturbed.run()
    same = []
    for moment in moments:
        stopped = run(f"stopped {moment}")
        step = stopped._train_step

        def dying(stage, run=stopped, step=step, moment=moment):
            if run.at.step == moment:
                raise Killed
            step(stage)

        stopped._train_step = dying  # type: ignore[method-assign]
        with contextlib.suppress(Killed):
            stopped.run()
        resumed = run(f"stopped {moment}")
        assert resumed.at.step == moment // 3 * 3
        resumed.run()
        same.append(left_by(resumed) == left_by(undisturbed))
    return same


#: Steps before which a run is stopped: in the early stage, and in the late one behind a checkpoint.
EARLY, LATE = 5, 13


@pytest.mark.parametrize(
    ("method", "exchange", "moments"),
    [
        ("comera", "ddp", [1, 10, LATE]),  # before the first checkpoint, and between two of the late stage
        ("dense", "powersgd_4", [EARLY]),
        ("comera", "fsdp2", [LATE]),
    ],
)
def test_what_is_taken_up_from_a_checkpoint_ends_with_the_undisturbed_bytes(method, exchange, moments, pairs, tmp_path):
    changes = {"truncate_every": 4} if method == "comera" else {}
    cell = a_training_cell(method, early=8, late=7, static=True, settings=changes)
    cell = of_ranks(cell, 2, exchange)
    for answers in in_two_processes(interrupted, cell, str(tmp_path), str(pairs), moments):
        assert answers == [True] * len(moments)


def cut(rank: int, cell, folder: str, pairs: str) -> tuple[list[object], list[float], bool]:
    run = a_run(cell, f"{folder}/{rank}", pairs)
    run.run()
    active = [layer.active_ranks() for layer in tensorized_layers(run.model)]
    sizes = [run.sizes()["size_fraction"], run.cell.training["stages"][-1]["target"]]
    return [ranks_of(run.model), active], sizes, run.is_cut


@pytest.mark.parametrize("exchange", ["ddp", "fsdp2"])
def test_all_ranks_truncate_alike_and_meet_the_target(exchange, pairs, tmp_path):
    cell = of_ranks(a_training_cell("comera", static=True), 2, exchange)
    (first, sizes, is_cut), (second, *_) = in_two_processes(cut, cell, str(tmp_path), str(pairs))
    assert is_cut
    assert first == second
    assert sizes[0] <= sizes[1]


def different(rank: int) -> str:
    check_same_ranks({"layer": (1, 4, 1)})
    try:
        check_same_ranks({"layer": (1, 4 - rank, 1)})
    except RanksDiffer as error:
        return str(error)
    return ""


def test_other_ranks_on_one_of_them_are_seen_by_all():
    sentence = "the tensor trains of process 1 have other ranks than those of process 0"
    assert all(answer.startswith(sentence) for answer in in_two_processes(different))


def spread(rank: int, cell, folder: str, pairs: str) -> tuple[float, list[float]]:
    """Mean and own losses where the second rank's loss is no number at one step."""
    run = a_run(cell, f"{folder}/{rank}", pairs)
    loss = run.step.loss

    def broken(model, batch):
        value = loss(model, batch)
        return value * math.nan if rank == 1 and run.at.step == 3 else value

    run.step.loss = broken
    with pytest.raises(RuntimeError, match="the loss is not finite at step 4"):
        run.run()
    distributed.barrier()
    return run.at.step


def test_a_loss_that_is_no_number_on_one_rank_ends_all(pairs, tmp_path):
    cell = of_ranks(a_training_cell("dense", static=True), 2)
    assert in_two_processes(spread, cell, str(tmp_path), str(pairs)) == [4, 4]
