"""Speed ratios of the tensorized layer and step, from rounds interleaved in one run: ``python -m bench speed``.

Prints each ratio with its interval beside the bound that the project sets itself. A benchmark, not a test: machines
differ and are noisy, so nothing here passes or fails; a wide interval means that something else was running. The C
library's allocator keeps freed memory, as in every cell of the bench.
"""

import functools
import itertools
import subprocess
import sys
from collections.abc import Callable, Mapping

import torch
from rich.console import Console
from rich.table import Table

from bench.core.intervals import paired_ratio
from bench.errors import ConfigError
from bench.gate.timed_worker import layers
from bench.protocol import Data
from bench.protocol.methods import build, default_settings
from bench.step.timing import mean_ms, steady_allocator, take_turns
from bench.step.train_step import TrainStep
from bench.workloads import open_workload
from bench.workloads.encoder import EncoderSettings

_STEPS = 8  # different batches


def _rounds(actions: Mapping[str, Callable[[], object]], rounds: int, repeats: int) -> dict[str, dict[int, float]]:
    """Mean milliseconds of each action per round, after one that warms up."""
    turns = {name: functools.partial(mean_ms, action, repeats, False) for name, action in actions.items()}
    times = take_turns(turns, rounds + 1)
    return {name: dict(enumerate(ms[1:])) for name, ms in times.items()}


def step_times(batch_size: int, rounds: int) -> dict[str, dict[int, float]]:
    """Whole training steps at full model size: comera, whole-model low_rank, dense."""
    workload = open_workload("encoder", EncoderSettings(), Data(), check=False)
    batches = list(itertools.islice(workload.batches("train", batch_size, 0, static=True), _STEPS))
    actions = {}
    for arm in ("comera", "low_rank", "dense"):
        torch.manual_seed(0)
        method = build(arm, "", default_settings(arm))
        model = method.adapt(workload.build(), workload.targets())
        step = TrainStep(model, method, method.optimizer(model), workload.loss, "fp32", "cpu")
        actions[arm] = lambda step=step: step(batches[step.number % _STEPS])
    return _rounds(actions, rounds, repeats=8 if batch_size == 1 else 1)


def import_times(rounds: int) -> dict[str, dict[int, float]]:
    """Milliseconds to import torch, and torch with comera, in fresh interpreters."""

    def interpreter(code: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, "-c", code], check=True)

    return _rounds({"torch": interpreter("import torch"), "comera": interpreter("import torch, comera")}, rounds, 1)


def run(rounds: int) -> None:
    """Measure and print, with so many interleaved rounds per ratio. Raises ConfigError: fewer than 2."""
    if rounds < 2:
        raise ConfigError(f"--rounds is {rounds}; allowed: whole numbers from 2 up.")
    steady_allocator()
    console = Console(stderr=True)
    table = Table("ratio", "value [95 % interval]", "aim", title=f"CPU, {torch.get_num_threads()} threads, fp32")

    def add(name: str, above: dict[int, float], below: dict[int, float], aim: str) -> None:
        ratio = paired_ratio(above, below)
        table.add_row(name, f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]", aim)

    console.print("layer, 4,096 tokens ...")
    layer = _rounds(layers(4096, 768, 768, (8, 8, 12), _STEPS), 2 * rounds, repeats=5)
    add("TTLinear / two-factor map", layer["tt"], layer["two_factors"], "at most 1.2")
    add("nn.Linear / TTLinear", layer["dense"], layer["tt"], "at least 4")
    for batch_size, aim in ((1, "at least 3.5"), (8, "at least 3.0"), (16, "")):
        console.print(f"whole step, batch {batch_size} ...")
        step = step_times(batch_size, rounds)
        add(f"step comera / low_rank, batch {batch_size}", step["comera"], step["low_rank"], "at most 1.10")
        add(f"step dense / comera, batch {batch_size}", step["dense"], step["comera"], aim)
    console.print("import ...")
    imports = import_times(rounds)
    extra = sorted((imports["comera"][i] - imports["torch"][i]) / 1e3 for i in range(rounds))
    spread = f"{extra[len(extra) // 2]:.3f} [{extra[0]:.3f}, {extra[-1]:.3f}] (range)"
    table.add_row("import comera on top of torch, s", spread, "under 0.2")
    Console().print(table)
