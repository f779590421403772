"""A worker of the timed gate: times pairs of actions with the code of one tree.

A program of its own, ``python -P timed_worker.py TREE``. The file always comes from the tree under test, while comera,
baselines and bench are imported from TREE; so it imports nothing of the gate, which an older tree lacks.

A request is a line with a benchmark's name; the answer is a line of JSON, one of

* ``{"seconds": [[numerator, denominator], ...]}``: one turn, the two actions timed alternately;
* ``{"missing": reason}``: this tree cannot run the benchmark, most likely because it lacks something that it calls.

One thread: on few, shared cores a second one waits for whatever else runs there, which is most of the noise, and the
operations and their order, which the gate watches over, are the same.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

THREADS = 1

Action = Callable[[], object]

_PACKAGES = ("comera", "baselines", "bench")
_RANK = 30
_LOOKED_UP = 1024


@dataclass(frozen=True)
class Benchmark:
    """A ratio of times, formed within one process."""

    make: Callable[[], tuple[Action, Action]]  # numerator and denominator
    pairs: int  # how often both are timed in a turn; chosen for turns of similar length, some tenths of a second
    tolerance: float = 0.25  # slowdown of the ratio against the base that is still accepted


def _first_of(*modules: str) -> Any:
    """The first of these modules that the tree has: an older tree has it elsewhere."""
    for module in modules[:-1]:
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(module)
    return importlib.import_module(modules[-1])


def _both_ways(
    forward: Callable[[], torch.Tensor], leaves: Sequence[torch.Tensor], upstream: Sequence[torch.Tensor]
) -> Callable[[], None]:
    """Forward and backward into fresh gradients, from each upstream gradient in turn."""
    upstreams = itertools.cycle(upstream)

    def act() -> None:
        for leaf in leaves:
            leaf.grad = None
        forward().backward(next(upstreams))

    return act


def layers(tokens: int, n_in: int, n_out: int, output_modes: tuple[int, ...], upstreams: int = 1) -> dict[str, Action]:
    """Both ways through one linear map at the paper's rank: TT, plain two-factor and dense."""
    import torch
    from torch import nn

    from comera import TTLinear

    x, upstream = torch.randn(tokens, n_in, requires_grad=True), [torch.randn(tokens, n_out) for _ in range(upstreams)]
    tt, dense = TTLinear(n_in, n_out, (12, 8, 8), output_modes, _RANK), nn.Linear(n_in, n_out)
    first = nn.Parameter(torch.randn(n_in, _RANK) / n_in**0.5)
    second = nn.Parameter(torch.randn(_RANK, n_out) / _RANK**0.5)
    bias = nn.Parameter(torch.zeros(n_out))
    factors = [x, first, second, bias]
    return {
        "tt": _both_ways(lambda: tt(x), [x, *tt.parameters()], upstream),
        "two_factors": _both_ways(lambda: torch.addmm(bias, x @ first, second), factors, upstream),
        "dense": _both_ways(lambda: dense(x), [x, *dense.parameters()], upstream),
    }


def _feed_forward(denominator: str) -> tuple[Action, Action]:
    """The encoder's first feed-forward layer, TT over another."""
    actions = layers(256, 768, 3072, (16, 16, 12))
    return actions["tt"], actions[denominator]


def _step() -> tuple[Action, Action]:
    """Train steps of a small encoder, by CoMERA and dense."""
    import torch

    from bench.data.synthetic import synthetic_corpus
    from bench.data.wordpiece import PairTokenizer, find_vocabulary
    from bench.workloads.encoder import EncoderSettings, EncoderWorkload

    methods = _first_of("bench.protocol.methods", "bench.methods")
    train_step = _first_of("bench.step.train_step", "bench.step")
    settings = EncoderSettings(
        layers=2, width=128, heads=4, feed_forward=512, vocabulary=2000, positions=64, sequence_length=64
    )
    corpus = synthetic_corpus(train=300, validation=30)
    tokenizer = PairTokenizer(find_vocabulary(corpus, settings.vocabulary, {}))
    workload = EncoderWorkload(settings, corpus, tokenizer)
    batch = next(workload.batches("train", 8, 0, static=True))

    def step(arm: str) -> Action:
        torch.manual_seed(0)
        method = methods.build(arm, "", methods.default_settings(arm))
        model = method.adapt(workload.build(), workload.targets())
        run = train_step.TrainStep(model, method, method.optimizer(model), workload.loss, "fp32", "cpu")
        return lambda: run(batch)

    return step("comera"), step("dense")


def _lookup() -> tuple[Action, Action]:
    """Rows of BERT's word embedding, of Zipf-distributed numbers."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    from bench.workloads.lookup import LookupSettings, LookupWorkload
    from comera import TTMEmbedding

    settings = LookupSettings()
    batches = LookupWorkload(settings, "zipf").batches("train", _LOOKED_UP, 0, static=True)
    indices, upstream = next(batches)["indices"], torch.randn(_LOOKED_UP, settings.columns)
    cores = TTMEmbedding(settings.rows, settings.columns, (16, 20, 10, 10), (4, 4, 8, 6), 32, lookup="optimized")
    table = nn.Parameter(torch.randn(settings.rows, settings.columns))
    return (
        _both_ways(lambda: cores(indices), list(cores.parameters()), [upstream]),
        _both_ways(lambda: F.embedding(indices, table), [table], [upstream]),
    )


#: By name; the order is that of the measurement.
BENCHMARKS = {
    "tt_linear/two_factors": Benchmark(functools.partial(_feed_forward, "two_factors"), pairs=10),
    "tt_linear/dense": Benchmark(functools.partial(_feed_forward, "dense"), pairs=3),
    "small_step/dense": Benchmark(_step, pairs=4),
    "ttm_lookup/embedding": Benchmark(_lookup, pairs=8),
}


def _made(name: str, tree: Path) -> tuple[Action, Action]:
    """A benchmark's two actions, each run once; raises whatever the tree's code does."""
    for package in _PACKAGES:
        origin = importlib.import_module(package).__file__
        if origin is None or not Path(origin).resolve().is_relative_to(tree):
            raise ImportError(f"No package {package!r}")  # what was found is an installed one
    import torch

    torch.set_num_threads(THREADS)
    _first_of("bench.step.timing", "bench.timing").steady_allocator()
    torch.manual_seed(0)
    actions = BENCHMARKS[name].make()
    for action in actions:
        action()
    return actions


def _turn(actions: tuple[Action, Action], pairs: int) -> list[tuple[float, float]]:
    """Seconds of numerator and denominator, pair by pair; a first pair, after another process had its turn, is lost."""
    seconds = []
    for _ in range(1 + pairs):
        start = time.perf_counter()
        actions[0]()
        between = time.perf_counter()
        actions[1]()
        seconds.append((between - start, time.perf_counter() - between))
    return seconds[1:]


def main() -> None:
    """Answer requests until there are no more."""
    tree = Path(sys.argv[1]).resolve()
    sys.path.insert(0, str(tree))
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the tree's code prints is no answer
    made: dict[str, tuple[Action, Action]] = {}
    for line in sys.stdin:
        name = line.strip()
        answer: dict[str, object]
        try:
            if name not in made:
                made[name] = _made(name, tree)
        except Exception as error:
            answer = {"missing": f"{type(error).__name__}: {error}"}
        else:
            answer = {"seconds": _turn(made[name], BENCHMARKS[name].pairs)}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
