"""What of the kernels can be known without a GPU: results in Triton's interpreter, registers and shared memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from comera import kernels
from comera.kernels.configurations import ARCHITECTURES, Configuration

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


@pytest.mark.slow
@pytest.mark.parametrize("arch", list(ARCHITECTURES)[:1])
@pytest.mark.parametrize("name", ["hidden_forward", "add_norm_backward_columns"])
def test_a_kernel_compiles_for_a_gpu_that_is_not_there(arch, name):
    from comera.kernels.ahead_of_time import resources

    small, large = (resources(name, "bf16", 32, Configuration(*tile, 4, 2), arch) for tile in ((16, 64), (128, 128)))
    assert small.fits(arch)
    assert 0 < small.registers <= 255
    assert large.shared > small.shared > 0
    assert large.spill_stores > 0 or large.registers > small.registers
