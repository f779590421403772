"""Speed ratios of the tensorized layer and step, interleaved, in several launches: ``python -m bench speed``.

Prints each ratio with its range over launches beside the bound that the project sets itself. A benchmark, not a test:
machines differ and are noisy, so nothing here passes or fails; a wide range means that something else was running. Each
ratio is measured with either allocator: ``steady`` keeps freed memory, as in every cell of the bench; ``system`` is the
C library's own way, as for most users of PyTorch, where a large temporary may cost its page faults in every call.
"""

import functools
import itertools
import math
import multiprocessing
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn import functional as F

from bench.core.intervals import paired_ratio
from bench.distributed.launch import die_with_parent
from bench.errors import ConfigError
from bench.gate.timed_worker import layers
from bench.interrupts import shielded
from bench.processes.interleave import LAUNCHES
from bench.protocol import Data
from bench.protocol.methods import build, default_settings
from bench.step.timing import ALLOCATORS, mean_ms, steady_allocator, take_turns
from bench.step.train_step import TrainStep
from bench.workloads import open_workload
from bench.workloads.encoder import EncoderSettings
from bench.workloads.text.model import CausalLanguageModel, TextSettings
from comera import BTT, BTTLinear, Muon, tensorize

_STEPS = 8  # different batches
_MOST_ROUNDS = 10_000


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


def block_times(outputs: int, rounds: int) -> dict[str, dict[int, float]]:
    """Both ways through a block tensor train of 768 inputs and rank 2, and through its two products written plainly."""
    torch.manual_seed(0)
    layer = BTTLinear(768, outputs, rank=2)
    shape, rows = layer.shape, 4096
    x, upstream = torch.randn(rows, 768, requires_grad=True), torch.randn(rows, outputs)
    first, second, bias = (nn.Parameter(each.detach().clone()) for each in layer.parameters())

    def plain() -> torch.Tensor:
        middle = torch.bmm(x.view(rows, shape.in_blocks, shape.in_size).transpose(0, 1), first)
        middle = middle.view(shape.in_blocks, rows, shape.out_blocks, 2).permute(2, 1, 0, 3)
        product = torch.bmm(middle.reshape(shape.out_blocks, rows, shape.in_blocks * 2), second)
        return product.transpose(0, 1).reshape(rows, outputs) + bias

    def both_ways(output: Callable[[], torch.Tensor], inputs: list[torch.Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(output(), inputs, upstream)

    actions = {
        "btt": both_ways(lambda: layer(x), [x, *layer.parameters()]),
        "plain": both_ways(plain, [x, first, second, bias]),
    }
    return _rounds(actions, rounds, repeats=3)


def format_step_times(width: int, rounds: int) -> dict[str, dict[int, float]]:
    """Steps of a GPT of two blocks, 8 rows of 128 bytes: of dense and of blocks four times smaller; and Muon's part."""
    tokens = torch.randint(256, (8, 129), generator=torch.Generator().manual_seed(0))
    actions: dict[str, Callable[[], object]] = {}
    for name in ("dense", "btt"):
        torch.manual_seed(0)
        model: nn.Module = CausalLanguageModel(TextSettings(width=width, context=128), 256)
        if name == "btt":
            model = tensorize(model, {"blocks.*": BTT(ratio=4)})
        optimizer = Muon(model)

        def step(model: nn.Module = model, optimizer: Muon = optimizer) -> None:
            optimizer.zero_grad()
            F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
            optimizer.step()

        step()
        actions |= {name: step, f"Muon of {name}": optimizer.step}
    return _rounds(actions, rounds, repeats=1 if width > 256 else 4)


def import_times(rounds: int) -> dict[str, dict[int, float]]:
    """Milliseconds to import torch, and torch with comera, in fresh interpreters."""

    def interpreter(code: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, "-c", code], check=True)

    return _rounds({"torch": interpreter("import torch"), "comera": interpreter("import torch, comera")}, rounds, 1)


def in_launches(
    times: Callable[..., dict[str, dict[int, float]]], allocator: str, launches: int, *arguments: int
) -> dict[str, dict[tuple[int, int], float]]:
    """What ``times`` measures in so many fresh processes with an allocator; rounds are named by launch and number."""
    results: dict[str, dict[tuple[int, int], float]] = {}
    for launch in range(launches):
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            with shielded():
                work = pool.submit(_launch, times, allocator, torch.get_num_threads(), *arguments)
            found = work.result()
        for name, rounds in found.items():
            results.setdefault(name, {}).update({(launch, number): ms for number, ms in rounds.items()})
    return results


def _launch(
    times: Callable[..., dict[str, dict[int, float]]], allocator: str, threads: int, *arguments: int
) -> dict[str, dict[int, float]]:
    die_with_parent()
    torch.set_num_threads(threads)
    if allocator == "steady":
        steady_allocator()
    return times(*arguments)


def layer_times(rounds: int) -> dict[str, dict[int, float]]:
    """Both ways through one linear map of 4,096 tokens."""
    return _rounds(layers(4096, 768, 768, (8, 8, 12), _STEPS), rounds, repeats=5)


def run(rounds: int) -> None:
    """Measure and print, with about so many interleaved rounds per ratio. Raises ConfigError: fewer than 2."""
    if not 2 <= rounds <= _MOST_ROUNDS:
        raise ConfigError(f"--rounds is {rounds}; allowed: whole numbers from 2 to {_MOST_ROUNDS:,}.")
    console = Console(stderr=True)
    each = max(2, math.ceil(rounds / LAUNCHES))
    title = f"CPU, {torch.get_num_threads()} threads, fp32, {LAUNCHES} launches; value [range over launches]"
    table = Table("ratio", *(f"{allocator} allocator" for allocator in ALLOCATORS), "aim", title=title)

    def add(times: list[dict[str, dict[tuple[int, int], float]]], name: str, above: str, below: str, aim: str) -> None:
        ratios = [paired_ratio(one[above], one[below]) for one in times]
        table.add_row(name, *(f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]" for ratio in ratios), aim)

    console.print("layer, 4,096 tokens ...")
    layer = [in_launches(layer_times, allocator, LAUNCHES, 2 * each) for allocator in ALLOCATORS]
    add(layer, "TTLinear / two-factor map", "tt", "two_factors", "at most 1.15 (system)")
    add(layer, "nn.Linear / TTLinear", "dense", "tt", "at least 4")
    for batch_size, most, least in ((1, "1.15", "at least 3.5"), (8, "1.05", "at least 3.0"), (16, "1.05", "")):
        console.print(f"whole step, batch {batch_size} ...")
        step = [in_launches(step_times, allocator, LAUNCHES, batch_size, each) for allocator in ALLOCATORS]
        add(step, f"step comera / low_rank, batch {batch_size}", "comera", "low_rank", f"at most {most}")
        add(step, f"step dense / comera, batch {batch_size}", "dense", "comera", least)
    for outputs in (768, 3072):
        console.print(f"block tensor train, 768 x {outputs} ...")
        blocks = [in_launches(block_times, allocator, LAUNCHES, outputs, 2 * each) for allocator in ALLOCATORS]
        add(blocks, f"BTTLinear 768 x {outputs} / its two products", "btt", "plain", "at most 1.15")
    for width, aim in ((128, "at most 1.5"), (768, "below 1")):
        console.print(f"steps of formats, width {width} ...")
        steps = [in_launches(format_step_times, allocator, LAUNCHES, width, each) for allocator in ALLOCATORS]
        add(steps, f"step btt / dense, width {width}", "btt", "dense", aim)
        for name in ("dense", "btt"):
            add(
                steps,
                f"Muon / step of {name}, width {width}",
                f"Muon of {name}",
                name,
                "at most 0.1" if width > 128 else "",
            )
    console.print("import ...")
    imports = import_times(rounds)
    extra = sorted((imports["comera"][i] - imports["torch"][i]) / 1e3 for i in range(rounds))
    spread = f"{extra[len(extra) // 2]:.3f} [{extra[0]:.3f}, {extra[-1]:.3f}] (range)"
    table.add_row("import comera on top of torch, s", spread, "", "under 0.2")
    Console().print(table)
