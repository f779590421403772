"""A sweep that is killed and started again ends with the records of one that was left alone."""

import random
import time

import pytest
from interrupted import TIMES, Sweep, records_by_file, sweep

from bench.core.record import read_all

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cell_processes")]

#: Three steps a block, however slow the machine.
TIMED = ("experiment=fig1", "methods=[comera,dense]", "batch_size=2,4", "timing.block_seconds=1000.0")


def shapes_of_samples(folder):
    return {
        record.cell_id: [(block["block"], len(block["ms"])) for block in record.samples["blocks"]]
        for record in read_all(folder / "results")
    }


def test_timing_killed_at_a_random_moment(tmp_path, tmp_path_factory, pairs):
    """The first job is kept, the second is measured anew, all arms of it together.

    The coordinator dies alone; its workers notice. Killed predictions are in tests/robustness.
    """
    undisturbed = tmp_path_factory.mktemp("undisturbed")
    sweep(undisturbed, pairs, TIMED)
    running = Sweep(tmp_path, pairs, TIMED)
    running.wait_for(2)
    time.sleep(random.Random(3).uniform(0.0, 0.8))
    running.kill(whole_group=False)
    first = {record.cell_id: record for record in read_all(tmp_path / "results")}
    assert len(first) >= 2
    sweep(tmp_path, pairs, TIMED)
    whole = records_by_file(undisturbed, but=TIMES)
    assert len(whole) == 4
    assert records_by_file(tmp_path, but=TIMES) == whole
    assert shapes_of_samples(tmp_path) == shapes_of_samples(undisturbed)
    records = read_all(tmp_path / "results")
    assert {cell: record for cell, record in first.items() if record not in records} == {}
    assert len({(record.batch_size, record.pairing) for record in records}) == 2
