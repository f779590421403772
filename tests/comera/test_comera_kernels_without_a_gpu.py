"""Kernels without a GPU: results in Triton's interpreter, and devices served."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from comera import kernels

ROOT = Path(__file__).parents[2]

pytest.importorskip("triton")


@pytest.mark.slow
def test_the_interpreter_gives_the_right_results():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/comera/test_comera_kernels.py"]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("capability", "hip", "triton_there", "served"),
    [
        ((8, 0), None, True, True),
        ((9, 0), None, True, True),
        ((7, 5), None, True, False),
        ((9, 0), "6.0", True, False),
        ((9, 0), None, False, False),
    ],
)
def test_which_devices_are_served(monkeypatch, capability, hip, triton_there, served):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: sys if triton_there and name == "triton" else None)
    kernels._offered.cache_clear()
    device = torch.device("cuda", 0)
    assert kernels.usable(kernels.HIDDEN, device, torch.bfloat16, 30, 30) is served
    assert not kernels.usable(kernels.HIDDEN, device, torch.float64, 30, 30)
    assert not kernels.usable(kernels.HIDDEN, device, torch.bfloat16, 30, 129)
    kernels._offered.cache_clear()
