"""The long checks of this folder, with few examples."""

import subprocess

import pytest
from interruptions import full_disks, kills

pytestmark = pytest.mark.slow


def test_kills():
    [row] = kills(8, seed=1, names=["sweep"])
    assert row["problems"] == []
    assert row["interruptions"] == 5


def test_full_disks(tmp_path):
    mounted = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)]
    if subprocess.run(mounted, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a small disk")
    subprocess.run(["umount", str(tmp_path)], check=True)
    [row] = full_disks(2, seed=1, names=["sweep"])
    assert (row["problems"], row["full"]) == ([], row["interruptions"])
