"""The long checks of this folder, with few examples."""

import subprocess

import criteo_reading
import pytest
import ranks_killed
from interruptions import full_disks, kills
from wrong_inputs import put

pytestmark = pytest.mark.slow


def test_wrong_inputs():
    head, *failures = put(0.06, seed=1, processes=1)
    assert failures == []
    assert head["inputs"] >= 25


def test_kills():
    [row] = kills(5, seed=1, names=["sweep"])
    assert row["problems"] == []
    assert row["interruptions"] == 3


def test_kills_of_a_rank():
    [row] = ranks_killed.kills(1, seed=1)
    assert (row["problems"], row["kills"]) == ([], 1)


def test_full_disks(tmp_path):
    mounted = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)]
    if subprocess.run(mounted, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a small disk")
    subprocess.run(["umount", str(tmp_path)], check=True)
    [row] = full_disks(2, seed=1, names=["sweep"])
    assert (row["problems"], row["full"]) == ([], row["interruptions"])


def test_a_reading_is_killed(tmp_path):
    row = criteo_reading.read_killed(tmp_path / "log", 10 * criteo_reading.BLOCK, 1, seed=1)
    assert (row["problems"], len(row["kills"])) == ([], 1)
