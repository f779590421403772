"""A worker of the timed gate: times pairs of actions with the code of one tree.

A program of its own, ``python -P timed_worker.py TREE``. The file always comes from the tree under test, while comera,
baselines and bench are imported from TREE; so it imports nothing of the gate, which an older tree lacks.

Called with a share behind TREE, it waits so much longer, busily, after each action that is judged: a planted slowdown,
by which the gate itself is tested.

Requests are lines, answers lines of JSON. The first answer, to no request, says that torch is imported. Then

* ``make NAME`` makes a benchmark's actions and runs each once; those of the one before are freed. The answer is ``{}``,
  or ``{"missing": reason}`` where this tree cannot run it, most likely because it lacks something that it calls;
* ``turn`` times it: ``{"seconds": [[numerator, denominator], ...]}``, the two alternately, or ``[[seconds], ...]`` of a
  benchmark with one action.

One thread: on few, shared cores a second one waits for whatever else runs there, which is most of the noise, and the
operations and their order, which the gate watches over, are the same. For the same reason time in which the thread was
ready and another process had its core does not count, where Linux says how much that was.
"""

from __future__ import annotations

import functools
import gc
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn

THREADS = 1

Action = Callable[[], object]

_RANK = 30
_LOOKED_UP = 1024


@dataclass(frozen=True)
class Benchmark:
    """A ratio of times, formed within one process, or the time of one action."""

    make: Callable[[], tuple[Action, ...]]  # numerator and denominator, or the only action
    repeats: int  # how often each is timed in a turn; but for full-size steps, a turn takes some tenths of a second
    rounds: int = 10  # turns of a launch
    lost: int = 1  # repeats at the start of a turn, after another process had its own, that do not count
    tolerance: float = 0.07  # slowdown against the base that is still accepted


def _both_ways(
    forward: Callable[[], torch.Tensor], leaves: Sequence[torch.Tensor], upstream: Sequence[torch.Tensor]
) -> Callable[[], None]:
    """Run forward and backward into fresh gradients, from each upstream gradient in turn."""
    upstreams = itertools.cycle(upstream)

    def act() -> None:
        for leaf in leaves:
            leaf.grad = None
        forward().backward(next(upstreams))

    return act


def layers(tokens: int, n_in: int, n_out: int, output_modes: tuple[int, ...], upstreams: int = 1) -> dict[str, Action]:
    """Return both passes of one linear map at the paper's rank: TT, plain two-factor and dense."""
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
    actions = layers(256, 768, 3072, (16, 16, 12))
    return actions["tt"], actions[denominator]


def _backward_only(layer: nn.Module, tokens: int, n_in: int, n_out: int) -> Action:
    """Run backward alone, again and again through one forward: in both passes a third of the time hides a slowdown."""
    import torch

    x = torch.randn(tokens, n_in, requires_grad=True)
    result, upstream, leaves = layer(x), torch.randn(tokens, n_out), [x, *layer.parameters()]
    return lambda: torch.autograd.grad(result, leaves, upstream, retain_graph=True)


def _tt_backward() -> tuple[Action, Action]:
    from torch import nn

    from comera import TTLinear

    sizes = 256, 768, 3072
    tt, dense = TTLinear(*sizes[1:], (12, 8, 8), (16, 16, 12), _RANK), nn.Linear(*sizes[1:])
    return _backward_only(tt, *sizes), _backward_only(dense, *sizes)


def _btt() -> tuple[Action, Action]:
    """Return both passes of a block tensor train and of the dense layer that it stands for."""
    import torch
    from torch import nn

    from comera.formats.block_tensor_train import BTTLinear

    x, upstream = torch.randn(256, 768, requires_grad=True), [torch.randn(256, 768)]
    blocks, dense = BTTLinear(768, 768, rank=2), nn.Linear(768, 768)
    return (
        _both_ways(lambda: blocks(x), [x, *blocks.parameters()], upstream),
        _both_ways(lambda: dense(x), [x, *dense.parameters()], upstream),
    )


def _muon() -> tuple[Action, Action]:
    """Return a step of Muon on tensor trains and dense layers, and products of a matrix as large as the latter's."""
    import torch
    from torch import nn

    from comera import Muon, TTLinear

    model = nn.Sequential(*(TTLinear(768, 768, (12, 8, 8), (8, 8, 12), _RANK) for _ in range(4)), nn.Linear(256, 256))
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    left, right = torch.randn(768, 768), torch.randn(768, 768)
    return Muon(model).step, lambda: left @ right


def _steps(settings: Mapping[str, Any], *arms: str) -> tuple[Action, ...]:
    """Train steps of the encoder by each arm, at batch 8."""
    import torch

    from bench.data.synthetic import synthetic_corpus
    from bench.data.wordpiece import PairTokenizer, find_vocabulary
    from bench.protocol import methods
    from bench.step.train_step import TrainStep
    from bench.workloads.encoder import EncoderSettings, EncoderWorkload

    sizes = EncoderSettings(**settings)
    corpus = synthetic_corpus(train=300, validation=30)
    tokenizer = PairTokenizer(find_vocabulary(corpus, sizes.vocabulary, {}))
    workload = EncoderWorkload(sizes, corpus, tokenizer)
    batch = next(workload.batches("train", 8, 0, static=True))

    def step(arm: str) -> Action:
        torch.manual_seed(0)
        method = methods.build(arm, "", methods.default_settings(arm))
        model = method.adapt(workload.build(), workload.targets())
        run = TrainStep(model, method, method.optimizer(model), workload.loss, "fp32", "cpu")
        return lambda: run(batch)

    return tuple(map(step, arms))


def _lookup() -> tuple[Action, Action]:
    """Return a look-up of rows of BERT's word embedding, at Zipf-distributed numbers."""
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


_SMALL = {"layers": 2, "width": 128, "heads": 4, "feed_forward": 512, "vocabulary": 2000, "positions": 64}
_SMALL["sequence_length"] = 64


def _full(arm: str, rounds: int) -> Benchmark:
    """Return a step at full size, on its own: a ratio of arms would not show what became slower in both."""
    return Benchmark(functools.partial(_steps, {}, arm), repeats=1, rounds=rounds, lost=0)


#: By name; the order is that of the measurement.
BENCHMARKS = {
    "tt_linear/two_factors": Benchmark(functools.partial(_feed_forward, "two_factors"), repeats=10),
    "tt_linear/dense": Benchmark(functools.partial(_feed_forward, "dense"), repeats=3),
    "tt_linear_backward/dense": Benchmark(_tt_backward, repeats=5),
    "btt_linear/dense": Benchmark(_btt, repeats=10),
    "muon/product": Benchmark(_muon, repeats=5),
    "small_step/dense": Benchmark(functools.partial(_steps, _SMALL, "comera", "dense"), repeats=4),
    "ttm_lookup/embedding": Benchmark(_lookup, repeats=8),
    "full_step/comera": _full("comera", rounds=4),
    "full_step/dense": _full("dense", rounds=2),
}


def _clock() -> float:
    """Return seconds, less those in which this thread was ready to run and its core ran another."""
    return time.perf_counter() - (int(os.pread(_SCHEDULED, 80, 0).split()[1]) * 1e-9 if _SCHEDULED else 0.0)


def _scheduled() -> int:
    """Return the open file with the time this thread waited for a core; 0 where there is none."""
    try:
        file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        # three fields: nanoseconds on a core, nanoseconds waiting for one, times it got one
        return file if len(os.pread(file, 80, 0).split()) == 3 else 0
    except OSError:
        return 0


_SCHEDULED = _scheduled()


def _slowed(action: Action, share: float) -> Action:
    """Return the action, and a busy wait of this share of the time it took."""

    def act() -> None:
        start = _clock()
        action()
        end = _clock()
        while _clock() < end + share * (end - start):
            pass

    return act


def _made(name: str, tree: Path, planted: float) -> tuple[Action, ...]:
    """Return a benchmark's actions, each run once; raises any error of the tree's code."""
    import baselines
    import bench
    import comera

    for package in (comera, baselines, bench):
        if not Path(str(package.__file__)).resolve().is_relative_to(tree):
            raise ImportError(f"No package {package.__name__!r}")  # what was found is an installed one
    import torch

    from bench.step.timing import steady_allocator

    torch.set_num_threads(THREADS)
    steady_allocator()
    torch.manual_seed(0)
    first, *others = BENCHMARKS[name].make()
    for action in (first, *others):
        action()
    return (_slowed(first, planted) if planted else first, *others)


def _turn(actions: Sequence[Action], benchmark: Benchmark) -> list[list[float]]:
    """Return the seconds of each action, repeat by repeat."""
    seconds = []
    for _ in range(benchmark.lost + benchmark.repeats):
        marks = [_clock()]
        for action in actions:
            action()
            marks.append(_clock())
        seconds.append([end - start for start, end in itertools.pairwise(marks)])
    return seconds[benchmark.lost :]


def main() -> None:
    """Answer requests until there are no more."""
    tree, planted = Path(sys.argv[1]).resolve(), float(sys.argv[2]) if sys.argv[2:] else 0.0
    sys.path.insert(0, str(tree))
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the tree's code prints is no answer
    import torch  # noqa: F401 - a worker answers once it is there

    print("{}", file=answers, flush=True)
    actions: tuple[Action, ...] = ()
    benchmark = next(iter(BENCHMARKS.values()))
    for line in sys.stdin:
        request, _, name = line.strip().partition(" ")
        answer: dict[str, object] = {}
        if request == "turn":
            answer = {"seconds": _turn(actions, benchmark)}
        else:
            actions, benchmark = (), BENCHMARKS[name]
            gc.collect()
            try:
                actions = _made(name, tree, planted)
            except Exception as error:
                answer = {"missing": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
