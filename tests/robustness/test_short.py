"""The long checks of this folder, with few examples."""

from __future__ import annotations

import subprocess

import criteo_reading
import numpy as np
import pytest
import ranks_killed
from interruptions import full_disks, kills
from wrong_inputs import put

from bench.workloads.dlrm.criteo import prepare

pytestmark = pytest.mark.slow


def test_wrong_inputs():
    head, *failures = put(0.06, seed=1, processes=1)
    assert failures == []
    assert head["inputs"] >= 25


def test_kills():
    [row] = kills(10, seed=1, names=["merge"])
    assert row["problems"] == []
    assert row["interruptions"] == 6


def test_kills_of_a_rank():
    [row] = ranks_killed.kills(1, seed=1)
    assert (row["problems"], row["kills"]) == ([], 1)


def test_full_disks(tmp_path):
    mounted = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)]
    if subprocess.run(mounted, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a small disk")
    subprocess.run(["umount", str(tmp_path)], check=True)
    [row] = full_disks(4, seed=1, names=["merge"])
    assert (row["problems"], row["full"]) == ([], row["interruptions"])


def test_what_was_read_of_a_log_is_checked(tmp_path):
    """A wrong byte in any array is found."""
    labels, size = criteo_reading.write_log(tmp_path / "log", 2 * criteo_reading.BLOCK, seed=1)
    state = prepare(tmp_path / "log", arrays := tmp_path / "log" / "arrays")
    assert (state["lines"], state["wrong"], state["source"]["bytes"]) == (len(labels), 2, size)
    assert criteo_reading.wrong_arrays(arrays, labels, seed=1) == []
    for name, dtype in (("labels", np.uint8), ("counts", np.float32), ("value3", np.uint32), ("rank3", np.int32)):
        array = np.memmap(arrays / name, dtype, "r+")
        place = int(np.argmax(array > 0))
        array[place] += 1
        assert criteo_reading.wrong_arrays(arrays, labels, seed=1), name
        array[place] -= 1
    assert criteo_reading.wrong_arrays(arrays, labels, seed=1) == []


def test_a_reading_is_killed(tmp_path):
    row = criteo_reading.read_killed(tmp_path / "log", 10 * criteo_reading.BLOCK, 1, seed=1)
    assert (row["problems"], len(row["kills"])) == ([], 1)
