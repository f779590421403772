"""Commands print their own lines alone: no note of another package stands before them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Imports that print notes of torchao, torch and bitsandbytes unless these are silenced.
NOISY = "import torchao.float8, torchao.quantization, galore_torch"

#: What a user's own process runs of the arms that need other packages; see the tests of each arm for what they do.
LOADING = {
    "lora": "from baselines import lora as arm; settings = arm.Settings(rank=2), ''",
    "galore": "from baselines import galore as arm; settings = arm.Settings(rank=2), '8bit'",
    "fp8": "from bench.step.low_precision import _torchao; _torchao()",
}
TRAINED = """
if "arm" in globals():
    import torch
    built = arm.build(*settings)
    built.optimizer(built.adapt(torch.nn.Sequential(torch.nn.Linear(4, 4)), {"0": "classifier"}))
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_a_command_silences_what_other_packages_print_when_they_load() -> None:
    if not run("-c", NOISY).stderr:
        pytest.skip("these versions print nothing")
    done = run("-c", f"from baselines._quiet import silence; silence(); {NOISY}")
    assert (done.returncode, done.stderr) == (0, "")


#: Ends as a process does that an interrupt of the command kills while it holds a semaphore.
KILLED = """
import multiprocessing, os, signal
held = multiprocessing.get_context("spawn").Semaphore()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_no_report_of_its_semaphores() -> None:
    assert "leaked semaphore" in run("-c", KILLED).stderr
    killed = "\n".join(f"    {line}" for line in KILLED.strip().splitlines())
    assert run("-c", f"from bench.interrupts import interruptible\nwith interruptible():\n{killed}").stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", LOADING)
def test_an_arm_outside_of_a_command_loads_its_package_without_notes(name) -> None:
    done = run("-c", LOADING[name] + TRAINED)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
@pytest.mark.parametrize("words", [[], ["predict"]])
def test_help_is_all_that_a_command_prints(words) -> None:
    done = run("-m", "bench", *words, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: python -m bench")
