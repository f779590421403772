"""A sweep that is killed and started again ends with the records of one that was left alone."""

import random
import time

import pytest
from interrupted import TIMES, Sweep, records_by_file, sweep

from bench.core.record import read_all

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cell_processes")]

PREDICTED = ("experiment=fig1", "measure=predict", "methods=[dense,low_rank]", "batch_size=1,2,4,8", "parallel=1")
#: Three steps a block, however slow the machine.
TIMED = ("experiment=fig1", "methods=[comera,dense]", "batch_size=2,4", "timing.block_seconds=1000.0")


def shapes_of_samples(folder):
    return {
        record.cell_id: [(block["block"], len(block["ms"])) for block in record.samples["blocks"]]
        for record in read_all(folder / "results")
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, pairs, cell_processes):  # noqa: ARG001
    folder = tmp_path_factory.mktemp("undisturbed")
    sweep(folder / "predicted", pairs, PREDICTED)
    sweep(folder / "timed", pairs, TIMED)
    return folder


def test_predictions_killed_at_random_moments(tmp_path, pairs, undisturbed):
    moments = random.Random(2)
    for new_records in (0, moments.randint(1, 4)):
        running = Sweep(tmp_path, pairs, PREDICTED)
        running.wait_for(new_records)
        time.sleep(moments.uniform(0.0, 0.4) if new_records else moments.uniform(0.5, 4.0))
        running.kill(whole_group=True)
        assert all(record.status == "ok" for record in read_all(tmp_path / "results"))
    kept = len(read_all(tmp_path / "results"))
    assert 1 <= kept <= 8
    assert sweep(tmp_path, pairs, PREDICTED).error.count("done before") == kept
    whole = records_by_file(undisturbed / "predicted", but=["recorded_at"])
    assert len(whole) == 8
    assert records_by_file(tmp_path, but=["recorded_at"]) == whole


def test_timing_killed_at_a_random_moment(tmp_path, pairs, undisturbed):
    """The first job is kept, the second is measured anew, all arms of it together.

    Here the coordinator dies alone; its workers notice.
    """
    running = Sweep(tmp_path, pairs, TIMED)
    running.wait_for(2)
    time.sleep(random.Random(3).uniform(0.0, 0.8))
    running.kill(whole_group=False)
    first = {record.cell_id: record for record in read_all(tmp_path / "results")}
    assert len(first) >= 2
    sweep(tmp_path, pairs, TIMED)
    whole = records_by_file(undisturbed / "timed", but=TIMES)
    assert len(whole) == 4
    assert records_by_file(tmp_path, but=TIMES) == whole
    assert shapes_of_samples(tmp_path) == shapes_of_samples(undisturbed / "timed")
    records = read_all(tmp_path / "results")
    assert {cell: record for cell, record in first.items() if record not in records} == {}
    assert len({(record.batch_size, record.pairing) for record in records}) == 2
