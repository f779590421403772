"""The regression gate: what ``make gate`` runs before a change lands.

It is pytest over ``tests/gate`` with the plugin pytest-benchmark, apart from the project's own tests. Every benchmark
states its numbers and its tolerance in ``benchmark.extra_info``, left by ``make gate`` in ``.benchmarks/gate.json``.

* The exact part (:mod:`bench.gate.exact`) counts what training steps need on fake tensors and compares with the
  committed baseline of this version of PyTorch (:mod:`bench.gate.baseline`), without tolerance: parameters, stored
  bytes, FLOPs, operator calls, bytes saved for backward, and the predicted peak of memory by category. Improvements are
  differences too, and so are benchmarks that are new or have vanished.
* The timed part (:mod:`bench.gate.timed`) compares this tree with the one it came from and with a pinned one, in one
  run on one machine. ``docs/measuring.md`` has what it caught in trials.

To accept numbers that are meant to change, run ``make gate-accept``, look at the table it prints, and commit the
baseline together with the change that it belongs to. That is also how another version of PyTorch gets its baseline.

Exit status of ``python -m pytest tests/gate`` (``make`` prints it, and itself ends with 2 whenever a recipe fails):

* 0: green.
* 1: a regression, that is, any difference of the exact part or a confirmed slowdown.
* 2: the gate could not run: no baseline for this version of PyTorch, one that was edited by hand or cannot be read, or
  a benchmark that broke.
"""


class Regression(AssertionError):
    """A benchmark is not what it was; the gate ends with status 1."""


class GateError(Exception):
    """The gate could not run, in one sentence; it ends with status 2."""
