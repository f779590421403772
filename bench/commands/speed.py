"""Speed ratios of block tensor trains and of Muon, interleaved, in several launches: ``python -m bench speed``.

Prints each ratio, as soon as it is measured, with its range over launches beside the bound that the project sets
itself. A benchmark, not a test: machines differ and are noisy, so nothing here passes or fails. The ratios of tensor
trains are those of ``make gate`` (layers, small and full steps) and of Fig. 1 (steps of all arms). The layers are timed
with either allocator: ``steady`` keeps freed memory, as in every cell of the bench; ``system`` is the C library's own
way, as for most users of PyTorch, where a large temporary may cost its page faults in every call.
"""

import functools
import math
import multiprocessing
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor

import torch
from torch import nn
from torch.nn import functional as F

from bench.core.intervals import paired_ratio
from bench.distributed.launch import die_with_parent
from bench.errors import ConfigError
from bench.interrupts import shielded
from bench.processes.interleave import LAUNCHES
from bench.step.timing import ALLOCATORS, mean_ms, steady_allocator, take_turns
from bench.workloads.text.model import CausalLanguageModel, TextSettings
from comera import BTT, BTTLinear, Muon, tensorize

_MOST_ROUNDS = 10_000


def _rounds(actions: Mapping[str, Callable[[], object]], rounds: int, repeats: int) -> dict[str, dict[int, float]]:
    """Return mean milliseconds of each action per round, after one that warms up."""
    turns = {name: functools.partial(mean_ms, action, repeats, False) for name, action in actions.items()}
    times = take_turns(turns, rounds + 1)
    return {name: dict(enumerate(ms[1:])) for name, ms in times.items()}


def block_times(outputs: int, rounds: int) -> dict[str, dict[int, float]]:
    """Time both ways through a block tensor train of 768 inputs and rank 2, and through its two plain products."""
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
    """Time steps of a small GPT on 8 rows of 128 bytes, dense and with blocks four times smaller, and Muon's part."""
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
    """Time the import of torch, and of torch with comera, in fresh interpreters."""

    def interpreter(code: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, "-c", code], check=True)

    return _rounds({"torch": interpreter("import torch"), "comera": interpreter("import torch, comera")}, rounds, 1)


def in_launches(
    times: Callable[..., dict[str, dict[int, float]]], allocator: str, launches: int, *arguments: int
) -> dict[str, dict[tuple[int, int], float]]:
    """Measure ``times`` in so many fresh processes with an allocator; rounds are named by launch and number."""
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


def run(rounds: int) -> None:
    """Measure and print, with about so many interleaved rounds per ratio. Raises ConfigError: fewer than 2."""
    if not 2 <= rounds <= _MOST_ROUNDS:
        raise ConfigError(f"--rounds is {rounds}; allowed: whole numbers from 2 to {_MOST_ROUNDS:,}.")
    each = max(2, math.ceil(rounds / LAUNCHES))

    def add(times: dict[str, dict[tuple[int, int], float]], name: str, above: str, below: str, aim: str) -> None:
        ratio = paired_ratio(times[above], times[below])
        print(f"{name:58} {ratio.value:6.3f} [{ratio.low:.3f}, {ratio.high:.3f}]  {aim}".rstrip(), flush=True)

    print(
        f"CPU, {torch.get_num_threads()} threads, fp32, {LAUNCHES} launches: ratio [range over launches]  aim",
        flush=True,
    )
    for outputs in (768, 3072):
        for allocator in ALLOCATORS:
            times = in_launches(block_times, allocator, LAUNCHES, outputs, each)
            name = f"BTTLinear 768 x {outputs} / its two products, {allocator} allocator"
            add(times, name, "btt", "plain", "at most 1.15")
    for width, aim, of_muon in ((128, "at most 1.5", ""), (768, "below 1", "at most 0.1")):
        count = each if width < 256 else max(1, each // 2)  # a round of the widest takes ten times as long
        steps = in_launches(format_step_times, "steady", LAUNCHES, width, count)
        add(steps, f"step btt / dense, width {width}", "btt", "dense", aim)
        for name in ("dense", "btt"):
            add(steps, f"Muon / step of {name}, width {width}", f"Muon of {name}", name, of_muon)
    imports = import_times(each)
    extra = sorted((imports["comera"][i] - imports["torch"][i]) / 1e3 for i in range(each))
    spread = f"{extra[len(extra) // 2]:6.3f} [{extra[0]:.3f}, {extra[-1]:.3f}]"
    print(f"{'import comera on top of torch, s':58} {spread}  under 0.2", flush=True)
