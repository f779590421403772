"""Sweeps of small training runs in real processes: what is recorded, what counts as done, what is refused."""

import json
import re
import shutil
from pathlib import Path

import pytest
from interrupted import TIMES, Sweep, arguments, files_in, records_by_file
from interrupted import sweep as run_sweep
from small_cells import TRAINED, run_bench

from bench.core.cell import Cell
from bench.core.checkpoint import load
from bench.core.record import read_all
from bench.core.samples import per_example
from bench.runner.results import Results

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cell_processes")]

#: What every point of a learning curve says, and what it says of tensorized models besides.
CURVE = {"epoch", "step", "stage", "train_loss", "metrics", "validation_examples", "per_example"}
CURVE |= {"parameters", "stored_mib", "ranks", "active_ranks", "seconds"}
SIZES = {"size_fraction", "tensorized_mib"}


def sweep(folder, pairs, *arguments):
    return run_sweep(folder, pairs, (*TRAINED, *arguments))


def records_in(folder):
    return {f"{record.arm}, {record.stage}": record for record in read_all(folder / "results")}


def checkpoint_of(folder, record):
    return folder / "results" / ".checkpoints" / record.experiment / record.cell_id


@pytest.fixture(scope="module")
def first(tmp_path_factory, pairs, cell_processes):  # noqa: ARG001
    """A folder in which the runs have been trained, and how that ended."""
    folder = tmp_path_factory.mktemp("training")
    return folder, sweep(folder, pairs)


@pytest.fixture
def trained(first, tmp_path):
    """A copy of that folder, to do as one likes with."""
    return Path(shutil.copytree(first[0], tmp_path / "copy"))


def test_every_run_is_recorded(first):
    folder, ended = first
    assert (ended.status, ended.output) == (0, "")
    assert "Traceback" not in ended.error
    records = records_in(folder)
    assert {name: (r.status, r.target_ratio, r.train_steps, r.epochs) for name, r in records.items()} == {
        "comera, early": ("ok", None, 20, 20 / 6),
        "comera, late": ("ok", 0.5, 220, 220 / 6),
        "dense, late": ("ok", None, 220, 220 / 6),
    }
    for record in records.values():
        assert (record.measure, record.target_mib) == ("train", None)
        assert record.message == "" or record.message.startswith("void: ")  # so few steps need not beat guessing
        assert record.cell_id == Cell.from_json(record.config_json).cell_id(record.data_hash)
        assert record.peak_memory_predicted_mib > 0
        assert (record.predicted_for, record.validation_examples) == ("cpu", 30)
    assert "1/3 cells  accuracy_small batch 40 on cpu  comera, early stage, seed 0  ok: " in ended.error
    number, pace = r"[\d.,e-]+", r"[\d.,]+ (pair|example)s/s, 0 min \d\d s left in this training"
    where = r"late stage, step 220 of 220, epoch 36\.67: "
    losses = rf"training loss {number} nats, validation accuracy [\d.]+ %, "
    line = rf"{where}{losses}{pace}, model [\d.]+ MiB, [\d.]+% of the tensorized size left"
    assert re.search(line, ended.error), ended.error


def test_sizes_follow_from_the_ranks(first):
    early, late, dense = (records_in(first[0])[name] for name in ("comera, early", "comera, late", "dense, late"))
    assert early.dense_mib == late.dense_mib == dense.dense_mib == dense.stored_mib
    assert early.tensorized_mib < early.dense_tensorized_mib == late.dense_tensorized_mib < dense.dense_mib
    assert late.tensorized_mib < early.tensorized_mib
    assert late.size_fraction < early.size_fraction
    assert late.peak_memory_predicted_mib < early.peak_memory_predicted_mib
    assert late.size_target == 0.5 * early.size_fraction
    assert (dense.size_fraction, dense.tensorized_mib, dense.dense_tensorized_mib) == (None, None, None)
    blocks = late.samples["step_ms"]
    assert {name: len(blocks[name]) for name in blocks} == {"trained": 9, "full": 9}
    assert late.step_time_median_ms > 0


def test_a_learning_curve_has_a_point_per_epoch_and_stage(first):
    for name, record in records_in(first[0]).items():
        curve = record.samples["curve"]
        steps = [*range(6, record.train_steps, 6), 20, record.train_steps]
        assert [point["step"] for point in curve] == sorted(set(steps))
        assert [point["stage"] for point in curve] == ["early" if step <= 20 else "late" for step in sorted(set(steps))]
        for point in curve:
            assert set(point) - SIZES - {"size_target"} == CURVE
            assert set(point) >= SIZES or name.startswith("dense")
        last = curve[-1]
        for column in CURVE & set(vars(record)):
            assert getattr(record, column) == last[column]
        right = bin(int(last["per_example"]["bits"], 16)).count("1")
        assert last["metrics"]["accuracy"] == record.leading == pytest.approx(100 * right / 30)
        assert per_example(record, record.samples["curve"][-1]).sum() == pytest.approx(100 * right)
        assert set(last["ranks"]) == set(record.samples["ranks_before"])


def test_the_late_run_starts_from_the_early_one(first):
    """Its first points are those of the early run, times and all: nothing was trained again."""
    early, late = (records_in(first[0])[name].samples["curve"] for name in ("comera, early", "comera, late"))
    assert late[: len(early)] == early
    results = Results(first[0] / "results", "exact")
    records = records_in(first[0])
    upkeeps = {
        name: results.upkeep(Cell.from_json(record.config_json), record.data_hash, resume=True)
        for name, record in records.items()
    }
    assert upkeeps["comera, late"].parent_folder == upkeeps["comera, early"].folder
    assert upkeeps["comera, early"].parent_folder is upkeeps["dense, late"].parent_folder is None


def test_what_is_done_is_not_trained_again(first, pairs):
    folder, _ = first

    def written():
        files = (path for path in folder.rglob("*") if ".hydra" not in path.parts)
        return {path: path.stat().st_mtime_ns for path in files}

    before = written()
    again = sweep(folder, pairs)
    assert again.status == 0
    assert again.error.count("done before") == 3
    assert written() == before


def forget(folder, name):
    """Take a record away, so that its run is wanted again; its checkpoint stays."""
    [path] = (path for path in (folder / "results").rglob("*.json") if path.stem == records_in(folder)[name].cell_id)
    path.unlink()


def but_times(record):
    """What a record says of the training itself."""
    curve = [{name: value for name, value in point.items() if name != "seconds"} for point in record.samples["curve"]]
    return curve, record.parameters, record.train_steps, record.peak_memory_predicted_mib


def test_a_finished_run_without_a_record_is_recorded_from_its_checkpoint(trained, pairs):
    before = records_in(trained)["comera, late"]
    forget(trained, "comera, late")
    assert sweep(trained, pairs).error.count("done before") == 2
    assert records_in(trained)["comera, late"].samples["curve"] == before.samples["curve"]


def truncate(folder):
    """Damage a checkpoint."""
    tensors = folder / "tensors.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-100])


def assert_refused(folder, pairs, checkpoint, sentence):
    """A sweep in ``folder`` ends with one sentence about a checkpoint, and nothing there has changed."""
    before = files_in(folder)
    ended = run_bench(folder, *arguments(folder, pairs, TRAINED))
    assert (ended.status, ended.output) == (2, "")
    assert ended.error.startswith(f"error: checkpoint {checkpoint}")
    assert sentence in ended.error
    assert ended.error.count("\n") == 1
    assert files_in(folder) == before


def test_a_damaged_checkpoint_stops_the_sweep_until_told_to_start_anew(trained, pairs):
    dense = records_in(trained)["dense, late"]
    folder = checkpoint_of(trained, dense)
    forget(trained, "dense, late")
    truncate(folder)
    assert_refused(trained, pairs, folder, "tensors.safetensors is damaged or truncated")
    assert sweep(trained, pairs, "resume=false").error.count("done before") == 2
    assert but_times(records_in(trained)["dense, late"]) == but_times(dense)
    assert load(folder, f"accuracy_small, dense, cell {dense.cell_id}") is not None


def test_a_run_that_diverges_is_recorded_with_the_place(tmp_path, pairs):
    diverging = ("methods=[dense]", "settings.dense.lr=1e30", "training.targets=[]")
    assert sweep(tmp_path, pairs, *diverging).status == 0
    [record] = read_all(tmp_path / "results")
    assert (record.status, record.train_steps, record.samples) == ("diverged", None, {})
    assert record.message.startswith("Diverged: the loss is not finite at step 2 (epoch 0.33, early stage)")
    assert "1/1 cells" in (again := sweep(tmp_path, pairs, *diverging)).error
    assert "done before" in again.error
    assert json.loads(record.config_json)["training"]["stages"] == [
        {"name": "early", "steps": 20, "target": None, "target_mib": None}
    ]


@pytest.mark.slow
def test_a_sweep_killed_in_the_middle_of_a_stage_goes_on(first, tmp_path, pairs):
    """The coordinator dies while dense training is in its late stage; the process that trains notices."""
    running = Sweep(tmp_path, pairs, TRAINED)
    running.wait_for(records=2, checkpoints=3)
    running.kill(whole_group=False)
    kept = read_all(tmp_path / "results")
    assert 2 <= len(kept) <= 3
    assert sweep(tmp_path, pairs).error.count("done before") == len(kept)
    records, whole = records_in(tmp_path), records_in(first[0])
    assert {name: but_times(record) for name, record in records.items()} == {
        name: but_times(record) for name, record in whole.items()
    }
    assert records_by_file(tmp_path, but=TIMES) == records_by_file(first[0], but=TIMES)
