"""A training run is a function of its cell: killed anywhere and taken up again, it ends as if left alone."""

import copy
import dataclasses
import math
from collections import Counter

import pytest
import torch
from interrupted import Killed, as_bytes, files_in, kill_at
from small_cells import MODEL, a_training_cell

from bench.core import checkpoint
from bench.protocol import Data
from bench.step.timing import Diverged
from bench.training.run import TrainingRun, Upkeep
from bench.workloads import open_workload
from bench.workloads.encoder import EncoderSettings
from comera import ranks_of

#: Six steps make an epoch; the early stage has eight, the late one seven, and a checkpoint comes every three.
ARMS = {
    "dense": {"method": "dense"},
    "comera": {"method": "comera"},
    "comera, cut every 4 steps": {"method": "comera", "settings": {"truncate_every": 4}},
    "dense, padded": {"method": "dense", "static": True},
    "comera, bf16": {"method": "comera", "precision": "bf16"},
}

#: Where a run may be killed: what it calls there, and at which call.
MOMENTS = {
    "before the first checkpoint": ("loss", 2),
    "inside the early stage": ("loss", 5),
    "in the first validation": ("evaluate", 1),
    "at the first step of an epoch": ("loss", 7),
    "before the early stage's truncation": ("end_stage", 1),
    "in the validation at the early stage's end": ("evaluate", 2),
    "writing the checkpoint of the early stage's end": ("save_file", 3),
    "at the first step of the late stage": ("loss", 9),
    "inside the late stage": ("loss", 11),
    "in the validation of an epoch's end in the late stage": ("evaluate", 3),
    "at the last step": ("loss", 15),
    "before the late stage's truncation": ("end_stage", 2),
    "writing the last checkpoint": ("save_file", 7),
}

#: Every moment of an arm whose ranks are cut within stages and at their ends; of the others those that differ by arm.
KILLS = [
    *(("comera, cut every 4 steps", moment) for moment in MOMENTS),
    *(("comera", moment) for moment in MOMENTS if "truncation" in moment),
    ("dense", "at the first step of the late stage"),
]


@pytest.fixture(scope="module")
def workload(pairs):
    settings = EncoderSettings(**MODEL, sequence_length=32)
    opened = copy.copy(open_workload("encoder", settings, Data(data_folder=str(pairs)), check=False))
    opened.metric = dataclasses.replace(
        opened.metric, guess=None
    )  # such short runs learn nothing, which is not at issue
    return opened


def a_run(cell, workload, folder, **upkeep):
    fields = {"folder": folder, "identity": "mine", "code_id": "c", "checkpoint_steps": 3, **upkeep}
    return TrainingRun(cell, workload, Upkeep(**fields), lambda progress: None)  # noqa: ARG005


def outcome(run):
    """All that a finished run leaves, in memory and on the disk, but its times."""
    stored = checkpoint.load(run.upkeep.folder, "mine")
    del stored["position"]["seconds"]
    columns = copy.deepcopy(run.columns())
    for row in (*stored["position"]["curve"], *columns["samples"]["curve"]):
        del row["seconds"]
    model, optimizer = run.model.state_dict(), run.step.optimizer.state_dict()
    return as_bytes({"stored": stored, "columns": columns, "model": model, "optimizer": optimizer})


def whole(cell, workload, folder, **upkeep):
    """What a run that nobody disturbs leaves."""
    run = a_run(cell, workload, folder, **upkeep)
    run.run()
    return outcome(run)


@pytest.fixture(scope="module")
def undisturbed(workload, tmp_path_factory):
    """Per arm, what a run that nobody disturbs leaves."""
    return {
        arm: whole(a_training_cell(**fields), workload, tmp_path_factory.mktemp("undisturbed") / "run")
        for arm, fields in ARMS.items()
    }


def killed(cell, workload, folder, monkeypatch, name, call, **upkeep):
    """Start a run, or take it up, and kill it at a call."""
    run = a_run(cell, workload, folder, **upkeep)
    owners = {"loss": run.step, "evaluate": run.staged, "end_stage": run.method, "save_file": checkpoint}
    with monkeypatch.context() as patch:
        kill_at(patch, owners[name], name, call)
        with pytest.raises(Killed):
            run.run()


def test_the_runs_do_what_the_tests_are_about(undisturbed):
    """Ranks close at the end of each stage, or on the schedule in the middle of one."""
    ranks = {arm: [row["ranks"] for row in left["columns"]["samples"]["curve"]] for arm, left in undisturbed.items()}
    first, end_of_early, second, end_of_late = ranks["comera"]
    assert first != end_of_early == second != end_of_late
    assert ranks["comera, cut every 4 steps"][1] != ranks["comera, cut every 4 steps"][2]
    assert [row["step"] for row in undisturbed["dense"]["columns"]["samples"]["curve"]] == [6, 8, 12, 15]


@pytest.mark.slow
@pytest.mark.parametrize(("arm", "moment"), KILLS)
def test_killed_anywhere_it_ends_as_if_left_alone(workload, undisturbed, tmp_path, monkeypatch, arm, moment):
    cell = a_training_cell(**ARMS[arm])
    killed(cell, workload, tmp_path / "run", monkeypatch, *MOMENTS[moment])
    assert whole(cell, workload, tmp_path / "run") == undisturbed[arm]


@pytest.mark.parametrize("arm", ["comera, cut every 4 steps", "dense, padded", "comera, bf16"])
def test_killed_every_few_steps(workload, undisturbed, tmp_path, monkeypatch, arm):
    cell = a_training_cell(**ARMS[arm])
    for _ in range(4):
        killed(cell, workload, tmp_path / "run", monkeypatch, "loss", 4, checkpoint_steps=1)
    run = a_run(cell, workload, tmp_path / "run")
    assert run.at.step == 12
    run.run()
    assert outcome(run) == undisturbed[arm]


def test_a_finished_run_is_loaded_and_not_trained_again(workload, undisturbed, tmp_path):
    for arm, did in (("dense", "predicted by code 01234567"), ("comera", "predicted and timed by code 01234567")):
        cell, folder = a_training_cell(**ARMS[arm]), tmp_path / arm
        whole(cell, workload, folder, git_commit="first")
        before = files_in(folder)
        run = a_run(cell, workload, folder, code_id="0123456789abcdef", git_commit="second")
        run.step.loss = run.method.end_stage = pytest.fail
        run.run()
        assert did in run.columns()["message"]
        assert run.columns()["samples"]["trained_by"] == [{"code_id": "c", "git_commit": "first"}]
        assert files_in(folder) == before
        assert "message" not in undisturbed[arm]["columns"]


def test_from_the_early_run_it_ends_as_from_scratch(workload, undisturbed, tmp_path):
    """A late run takes its early stage from the run that has trained it."""
    arm = "comera, cut every 4 steps"
    early = {"parent_folder": tmp_path / "early", "parent_identity": "mine"}
    whole(a_training_cell(late=0, **ARMS[arm]), workload, tmp_path / "early")
    before = files_in(tmp_path / "early")
    run = a_run(a_training_cell(**ARMS[arm]), workload, tmp_path / "late", **early)
    assert run.at.step == 8
    run.run()
    assert outcome(run) == undisturbed[arm]
    assert files_in(tmp_path / "early") == before


def test_it_ends_without_the_layers_that_no_longer_reach_the_loss(workload, tmp_path, monkeypatch):
    cell = a_training_cell("comera", target=1.0, settings={"drop_unreachable": True})
    left = {}
    for disturbed in (False, True):
        run = a_run(cell, workload, tmp_path / str(disturbed))
        with torch.no_grad():
            run.model.blocks[0].attention.output.diagonals.zero_()
        run.save()
        if disturbed:
            killed(cell, workload, tmp_path / "True", monkeypatch, "end_stage", 1, checkpoint_steps=1)
        run = a_run(cell, workload, tmp_path / str(disturbed))
        run.run()
        left[disturbed] = outcome(run)
        dead = [name for name, ranks in ranks_of(run.model).items() if not any(ranks)]
        assert [name.rpartition(".")[2] for name in dead] == ["query", "key", "value", "output"]
    assert left[True] == left[False]


def test_the_size_aimed_at_is_a_share_of_that_at_the_stage_s_start(undisturbed):
    _, start, *late = undisturbed["comera"]["columns"]["samples"]["curve"]
    assert {row["size_target"] for row in late} == {0.5 * start["size_fraction"]}
    assert "size_target" not in start


def test_every_row_comes_once_per_epoch_in_a_new_order(workload, tmp_path):
    run = a_run(a_training_cell("dense", early=18, late=0), workload, tmp_path / "run")
    batches, loss = [], run.step.loss

    def noting(model, batch):
        lengths = batch["attention_mask"].sum(1).tolist()
        ids = batch["input_ids"].tolist()
        batches.append([tuple(row[:length]) for row, length in zip(ids, lengths, strict=True)])
        return loss(model, batch)

    run.step.loss = noting
    run.run()
    epochs = [[row for batch in batches[i : i + 6] for row in batch] for i in (0, 6, 12)]
    rows = workload.corpus.train
    encoded = workload.tokenizer.encode([rows[index][:2] for index in range(len(rows))], 32)
    for epoch in epochs:
        assert Counter(epoch) == Counter(tuple(ids) for ids, _ in encoded)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_the_training_loss_is_the_mean_since_the_point_before(workload, tmp_path):
    run = a_run(a_training_cell("comera"), workload, tmp_path / "run")
    losses, loss = [], run.step.loss

    def noting(model, batch):
        value = loss(model, batch)
        losses.append(value.item())
        return value

    run.step.loss = noting
    run.run()
    points = {row["step"]: row["train_loss"] for row in run.at.curve}
    means = zip((6, 8, 12, 15), (losses[:6], losses[6:8], losses[8:12], losses[12:]), strict=True)
    assert points == {step: sum(part) / len(part) for step, part in means}


@pytest.mark.parametrize(("step", "where", "value"), [(6, "1.00", math.nan), (9, "1.50", math.inf)])
def test_the_message_says_where(workload, tmp_path, value, step, where):
    run = a_run(a_training_cell("dense"), workload, tmp_path / "run", checkpoint_steps=1)
    loss = run.step.loss
    run.step.loss = lambda model, batch: loss(model, batch) + (value if run.at.step == step - 1 else 0)
    with pytest.raises(Diverged) as caught:
        run.run()
    assert f"step {step} " in str(caught.value)
    assert where in str(caught.value)
    assert a_run(a_training_cell("dense"), workload, tmp_path / "run").at.step == step - 1


@pytest.mark.parametrize("steps", [1, 5])
def test_a_rate_that_is_far_too_large(workload, tmp_path, steps):
    """Also where the weights overflow in the last step, after its loss was seen."""
    cell = a_training_cell(early=steps, late=0, settings={"lr": 1e30})
    with pytest.raises(Diverged, match=r"not finite at step \d .*, early stage"):
        a_run(cell, workload, tmp_path / "run", checkpoint_steps=1).run()


GIVEN = {"rank": 7, "embedding_rank": 40}  # the table is 32 wide


@pytest.mark.parametrize(("variant", "settings"), [("linear", GIVEN), ("", {"ratio": 4.0})])
def test_a_training_of_plain_factors_says_their_ranks(workload, tmp_path, variant, settings):
    run = a_run(a_training_cell("low_rank", 2, 0, variant=variant, settings=settings), workload, tmp_path / "run")
    run.run()
    factors = {name: factor for name, factor in run.model.state_dict().items() if name.endswith(".second")}
    ranks = {name.removesuffix(".second"): len(factor) for name, factor in factors.items()}
    assert run.columns()["samples"]["factor_ranks"] == ranks
    assert len(ranks) == len(workload.targets()) - (variant == "linear")
    if settings is GIVEN:
        assert set(ranks.values()) == ({7} if variant == "linear" else {7, 32})
