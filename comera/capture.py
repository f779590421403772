"""A training step captured as a CUDA Graph and replayed (paper, section 4).

The step of a tensorized model is made of many small operations, and launching each costs more than computing it. A
graph records the launches of a whole step once; from then on a step is one launch. What a graph repeats is fixed: the
kernels, their shapes and addresses, and every number that Python gave them. Hence

* inputs are copied into buffers that stay where they are;
* the first steps run as they are, on the stream that will be captured, so that nothing is set up during the capture
  (libraries, optimizer state, tables that are made once);
* gradients are dropped before the capture and formed in it, in the memory that belongs to the graph;
* an optimizer inside the step keeps its step count on the device (:func:`make_capturable`), and a learning rate that
  changes as well (:func:`set_rate`); nothing in the step waits for the device or depends on its data. Dropout is fine:
  torch moves its random numbers on at every replay;
* when shapes change, the graph is taken again.

Under autocast the step must not keep cast weights from one call to the next: enter it inside the step, with
``cache_enabled=False``.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import torch
from torch import nn

from comera.compatibility.arguments import check_callable, check_optimizer
from comera.modes import check_size
from comera.protocol import Batch

#: Steps that run uncaptured first, as many as torch's own captures take.
WARM_UP_STEPS = 3

Work = Callable[[], torch.Tensor]

_steps_of_fixed_shapes = 0


class CaptureError(RuntimeError):
    """Error for a step that cannot be captured; the message gives the reason in one sentence."""


class GraphBackend(Protocol):
    """Device-specific calls that capturing needs."""

    def buffer(self, like: torch.Tensor) -> torch.Tensor:
        """Return a tensor on the device, of the shape and type of ``like``, that stays where it is."""
        ...

    def fill(self, buffer: torch.Tensor, source: torch.Tensor) -> None:
        """Copy ``source`` into a buffer without waiting for it."""
        ...

    def warm_up(self, work: Work) -> torch.Tensor:
        """Run ``work`` as it is."""
        ...

    def capture(self, work: Work) -> tuple[Callable[[], None], torch.Tensor]:
        """Record ``work`` without running it; what replays it, and the tensor where its result will be."""
        ...


class CUDAGraphs:
    """Capture on the current CUDA device, on a stream of its own."""

    def __init__(self) -> None:
        self._device = torch.device("cuda", torch.cuda.current_device())
        self._stream = torch.cuda.Stream(self._device)

    def buffer(self, like: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(like, device=self._device)

    def fill(self, buffer: torch.Tensor, source: torch.Tensor) -> None:
        # Only a copy from pinned memory runs on its own; the allocator keeps a pinned tensor until its copy is done.
        if source.device.type == "cpu" and not source.is_pinned():
            source = source.pin_memory()
        buffer.copy_(source, non_blocking=True)

    def warm_up(self, work: Work) -> torch.Tensor:
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            result = work()
        current.wait_stream(self._stream)
        return result

    def capture(self, work: Work) -> tuple[Callable[[], None], torch.Tensor]:
        gc.collect()  # an old autograd graph in a reference cycle would bring its stream into the capture
        graph = torch.cuda.CUDAGraph()
        # The outer context puts the stream back even where the end of the capture raises. A call of another thread that
        # a capture forbids, such as one that pins memory for the next batch, does not end this one.
        capturing = torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local")
        with torch.cuda.stream(torch.cuda.current_stream()), capturing:
            result = work()
        return graph.replay, result


class CapturedStep:
    """A training step that is captured after a few calls and replayed from then on. Each call is one step, either way.

    Args:
        step: one step from a batch to a scalar tensor without gradient, such as the detached loss. It begins by
            dropping the gradients (``zero_grad(set_to_none=True)``) and may end with the optimizer's step, or leave
            that to the caller: after each call ``.grad`` holds the gradients.
        parameters: what the step trains; if one of them has moved or changed its shape, the graph is taken again.
        warm_up_steps: calls that run uncaptured before each capture, at least 1.
        backend: the device; CUDA if None.

    The result lies at a fixed place that the next call overwrites; ``.clone()`` keeps it.

    Batches may lie on the CPU, best in pinned memory; a batch of other names, shapes or types has the graph taken
    again. Whatever else the step reads and finds changed needs :meth:`invalidate`: a loaded optimizer state, another
    objective, or a learning rate that is a number; a rate set by :func:`set_rate` may change between calls.

    Attributes:
        captures: how often the graph has been taken.

    Raises:
        ValueError: fewer warm-up steps than 1.
        CaptureError: by a call, when the step cannot be captured.

    Example:
        >>> model = nn.Linear(4, 1, device="cuda")  # doctest: +SKIP
        >>> optimizer = torch.optim.AdamW(model.parameters(), fused=True, capturable=True)  # doctest: +SKIP
        >>> def step(batch):
        ...     optimizer.zero_grad(set_to_none=True)
        ...     loss = model(batch["x"]).square().mean()
        ...     loss.backward()
        ...     optimizer.step()
        ...     return loss.detach()
        >>> captured = CapturedStep(step, model.parameters())  # doctest: +SKIP
        >>> losses = [captured({"x": torch.ones(8, 4)}).clone() for _ in range(10)]  # doctest: +SKIP
    """

    def __init__(
        self,
        step: Callable[[Batch], torch.Tensor],
        parameters: Iterable[nn.Parameter] = (),
        warm_up_steps: int = WARM_UP_STEPS,
        backend: GraphBackend | None = None,
    ) -> None:
        check_callable("step", step, "one that returns the loss of a batch")
        self.warm_up_steps = check_size("warm_up_steps", warm_up_steps)
        self.captures = 0
        self._step = step
        self._parameters = list(parameters)
        self._backend = backend or CUDAGraphs()
        self._buffers: Batch = {}
        self._warmed_up = 0
        self._replay: Callable[[], None] | None = None
        self._result = torch.empty(0)
        self._places: list[tuple[int, torch.Size]] = []
        self._gradients: list[torch.Tensor | None] = []

    def __call__(self, batch: Batch) -> torch.Tensor:
        """Run one step, captured or on the way there."""
        if _layout(batch) != _layout(self._buffers):
            self.invalidate()
            self._buffers = {name: self._backend.buffer(tensor) for name, tensor in batch.items()}
        elif self._replay is not None and self._places != self._places_now():
            self.invalidate()
        for name, buffer in self._buffers.items():
            self._backend.fill(buffer, batch[name])
        if self._warmed_up < self.warm_up_steps:
            result = self._backend.warm_up(self._work)
            self._warmed_up += 1
            return result
        replay = self._replay or self._capture()
        replay()
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            if parameter.grad is not gradient:  # the caller has dropped it; the graph goes on writing there
                parameter.grad = gradient
        return self._result

    def invalidate(self) -> None:
        """Drop the graph; the next calls warm up and capture it again."""
        self._replay = None
        self._warmed_up = 0
        self._result, self._gradients = torch.empty(0), []

    def _work(self) -> torch.Tensor:
        with fixed_shapes():
            return self._step(self._buffers)

    def _capture(self) -> Callable[[], None]:
        for parameter in self._parameters:
            parameter.grad = None
        try:
            replay, self._result = self._backend.capture(self._work)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            reason = _first_cause(error).rstrip(".")
            raise CaptureError(f"the step cannot be captured as a CUDA graph: {reason}.") from error
        self._replay = replay
        self._places = self._places_now()
        self._gradients = [parameter.grad for parameter in self._parameters]
        self.captures += 1
        return replay

    def _places_now(self) -> list[tuple[int, torch.Size]]:
        return [(parameter.data_ptr(), parameter.shape) for parameter in self._parameters]


def _layout(batch: Batch) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in batch.items()}


def _first_cause(error: BaseException) -> str:
    """Return the first line of what went wrong first; the end of a broken capture raises an error of its own."""
    while error.__context__ is not None:
        error = error.__context__
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextlib.contextmanager
def fixed_shapes() -> Iterator[None]:
    """Ask for operations whose shapes do not depend on data, as a captured step needs them (in warm-up as well).

    Example:
        >>> with fixed_shapes():
        ...     shapes_are_fixed()
        True
    """
    global _steps_of_fixed_shapes
    _steps_of_fixed_shapes += 1
    try:
        yield
    finally:
        _steps_of_fixed_shapes -= 1


def shapes_are_fixed() -> bool:
    """Return whether shapes must not depend on data now; code that would wait uses its upper bound instead."""
    return _steps_of_fixed_shapes > 0


def make_capturable(optimizer: torch.optim.Optimizer) -> None:
    """Let an optimizer count its steps on the device, so that its step can be captured; its numbers stay the same.

    Optimizers without that option, such as SGD, count none and stay as they are.

    Example:
        >>> optimizer = torch.optim.Adam([nn.Parameter(torch.ones(2))], fused=True)
        >>> make_capturable(optimizer)
        >>> optimizer.param_groups[0]["capturable"]
        True
    """
    check_optimizer(optimizer)
    for group in optimizer.param_groups:
        if "capturable" not in group:
            continue
        group["capturable"] = True
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            if isinstance(state.get("step"), torch.Tensor):
                state["step"] = state["step"].to(parameter.device)


def set_rate(group: dict[str, Any], rate: float) -> None:
    """Set the learning rate of an optimizer's group where a replay reads it: in a tensor on the parameters' device.

    The first call makes the tensor, in float32 as fused kernels read it, and later ones fill it. It must come before
    the capture, which would keep a number as it is.

    Example:
        >>> optimizer = torch.optim.AdamW([nn.Parameter(torch.ones(2))], lr=0.5, fused=True)
        >>> set_rate(optimizer.param_groups[0], 0.25)
        >>> optimizer.param_groups[0]["lr"]
        tensor(0.2500)
    """
    device = group["params"][0].device
    if isinstance(group["lr"], torch.Tensor) and group["lr"].device == device:
        group["lr"].fill_(rate)
    else:  # a number, or what a checkpoint on the CPU has brought
        group["lr"] = torch.tensor(rate, dtype=torch.float32, device=device)
