"""The train step: the one loop body that every method of the bench runs."""

import contextlib
import functools
import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as checkpoint_call

from bench.core.cell import Cell
from bench.protocol import Batch, Change, Method, Workload
from bench.protocol.methods import build_for
from bench.step.bf16_products import WidenedProducts
from bench.step.low_precision import adapted_model, arithmetic_of
from bench.step.unsupported import StepCell, toggles_unsupported
from comera.capture import CapturedStep, CUDAGraphs, make_capturable, set_rate
from comera.low_precision.scaling import kernel_on
from comera.recomputing import StandIn, blocks_of

#: Where a step is; between two steps it is idle.
Phase = Literal["idle", "forward", "backward", "update"]


class TrainStep:
    """One training step: forward, loss, backward, optimizer, the method's hooks. Calling it runs all of them.

    :meth:`forward_backward` and :meth:`update` are its two halves, for whoever times them apart; one call of each, in
    this order, is one step. Nothing here waits for the device: the loss stays a tensor.

    With ``cuda_graph`` a step is captured and replayed (:class:`comera.capture.CapturedStep`) as far as the method
    allows: all of it but ``after_step``, or forward and backward with an optimizer that runs as it is. Rare events stay
    outside: ``after_step`` and such an optimizer hold them. Batches may then lie on the CPU, and the loss lies at one
    place that the next step overwrites.

    Args:
        model: what ``method.adapt`` returned; it is put into training mode, and lies on ``device``.
        method: the arm; its ``objective`` and ``after_step`` are called every step. One with a recipe
            (:class:`bench.protocol.recipe.Prescribed`) may have gradients clipped before the optimizer's step.
        loss: ``workload.loss``, from model and batch to the mean task loss.
        precision: one of :data:`PRECISIONS`. ``bf16`` is autocast over forward and task loss (parameters, gradients
            and optimizer stay float32), as is ``bf16_weights``, whose model has parameters in bfloat16; ``tf32`` lets
            float32 products run in TF32 for the whole step. Those that begin with ``fp8`` are the model's own: it has
            come from :func:`bench.step.low_precision.adapted_model`.
        compile: whether the model runs through torch.compile; the first call then compiles it.
        static_shapes: whether all batches have one shape; if not, code is compiled for any.
        checkpoint: whether each block of the model, an entry of its outermost ``nn.ModuleList``, goes through
            ``torch.utils.checkpoint``, which keeps the block's input and runs it again in backward.
        widen_bf16: whether products of BF16 operands go through :class:`bench.step.bf16_products.WidenedProducts`;
            not with ``compile``.

    Attributes:
        number: steps done so far, which is the number of the next step.
        steps_before_capture: calls that run as they are before the one that is captured; 0 without ``cuda_graph``.
        phase: where the step is now; memory and work are attributed by it.
        last_change: what the last ``after_step`` did to the model.
        arithmetic: what of the model multiplies in which way.

    Raises ValueError: an unknown precision, or something that ``device``, the machine or the method does not offer.
    """

    def __init__(
        self,
        model: nn.Module,
        method: Method,
        optimizer: torch.optim.Optimizer,
        loss: Callable[[nn.Module, Batch], torch.Tensor],
        precision: str,
        device: str | torch.device,
        cuda_graph: bool = False,
        compile: bool = False,
        static_shapes: bool = True,
        checkpoint: bool = False,
        widen_bf16: bool = False,
    ) -> None:
        asked = StepCell(1, precision, str(device), 1, checkpoint, cuda_graph, compile)
        if reason := toggles_unsupported(asked, method, model):
            raise ValueError(reason)
        for block in blocks_of(model) if checkpoint else ():
            block.forward = CheckpointedForward(block)
        if torch.device(device).type == "cuda":
            torch.backends.cuda.enable_cudnn_sdp(False)  # plans anew for every shape, with workspaces of its own
        self.model = model.train()
        self.method = method
        self.optimizer = optimizer
        self.loss = loss
        self.precision, self.arithmetic = precision, arithmetic_of(model, precision)
        self._clip: float | None = getattr(method, "clip", None)
        self._widens = widen_bf16 and precision.startswith("bf16") and not compile
        if self._widens:
            self.arithmetic = f"{precision}, products computed in FP32 and rounded"
        self.device = torch.device(device)
        self.number = 0
        self.phase: Phase = "idle"
        self.last_change: Change = "nothing"
        self._compiled = _compiled(self.model, static_shapes) if compile else None
        self._captured = self._to_capture() if cuda_graph else None
        self.steps_before_capture = self._captured.warm_up_steps if self._captured else 0

    def _to_capture(self) -> CapturedStep:
        work = self._gradients_and_step if self.method.capture == "whole_step" else self._gradients
        return CapturedStep(work, self.model.parameters(), backend=CUDAGraphs())

    def __call__(self, batch: Batch) -> torch.Tensor:
        """Run one step and return its task loss, detached."""
        if self._captured and self.method.capture == "whole_step":
            loss = self._captured(batch)
            self._finish()
            return loss
        loss = self.forward_backward(batch)
        self.update()
        return loss

    def forward_backward(self, batch: Batch) -> torch.Tensor:
        """Return the first half: fresh gradients of the method's objective. Returns the task loss, detached."""
        if self._captured and self.method.capture == "forward_backward":
            return self._captured(batch)
        return self._gradients(batch)

    def update(self) -> None:
        """Run the second half: the optimizer's step, then the method's ``after_step``."""
        self._optimizer_step()
        self._finish()

    def set_rate(self, group: dict[str, Any], rate: float) -> None:
        """Set the learning rate of one of the optimizer's groups for the steps to come, replayed ones included."""
        if self._captured and self.method.capture == "whole_step":
            set_rate(group, rate)
        else:
            group["lr"] = rate

    def changing(self) -> AbstractContextManager[object]:
        """Allow changes of the model from outside a step within the block; :meth:`invalidate` must follow."""
        return contextlib.nullcontext()

    def settle(self, batch: Batch) -> None:
        """Prepare a step once, such as for DDP's bucket layout; does nothing by default."""

    def invalidate(self, change: Change = "shapes") -> None:
        """Forget the captured graph and, after a change of shapes, compiled code: for changes made outside a step."""
        if self._captured:
            self._captured.invalidate()
        if self._compiled is not None and change == "shapes":
            torch.compiler.reset()  # after several shapes, recompilation would give up without a word

    @contextlib.contextmanager
    def autocast(self) -> Iterator[None]:
        """Use the arithmetic of forward and task loss in the block, to run the model outside a step."""
        with WidenedProducts() if self._widens else contextlib.nullcontext(), self._casting():
            yield

    def _casting(self) -> AbstractContextManager[object]:
        if self.precision.startswith("bf16"):
            # Weights cast outside a capture must not serve inside it.
            return torch.autocast(self.device.type, torch.bfloat16, cache_enabled=self._captured is None)
        return contextlib.nullcontext()

    def _gradients(self, batch: Batch) -> torch.Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        self.phase = "forward"
        with self._products():
            with self._casting():
                task_loss = self._shared(self.loss(self._through(), batch))
            objective = self.method.objective(task_loss, self.model)
            self.phase = "backward"
            objective.backward()
        self.phase = "idle"
        return task_loss.detach()

    def _through(self) -> nn.Module:
        """Return the module whose forward is called: the model, compiled or wrapped."""
        return self.model if self._compiled is None else self._compiled

    def _shared(self, task_loss: torch.Tensor) -> torch.Tensor:
        """Return the task loss as the objective is to have it."""
        return task_loss

    def _optimizer_step(self) -> None:
        self.phase = "update"
        if self._clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self._clip)
        with self._products():
            self.optimizer.step()
        self.phase = "idle"

    def _gradients_and_step(self, batch: Batch) -> torch.Tensor:
        """Run the part that is captured as a whole; a replay does not call it again."""
        make_capturable(self.optimizer)
        loss = self._gradients(batch)
        self._optimizer_step()
        return loss

    def _finish(self) -> None:
        """Call the method's ``after_step``."""
        self.phase = "update"
        with self._products():
            self.last_change = self.method.after_step(self.model, self.optimizer, self.number)
        if self.last_change == "shapes":
            self.invalidate()
        self.number += 1
        self.phase = "idle"

    def _products(self) -> AbstractContextManager[object]:
        if self._widens:
            return WidenedProducts()
        return tf32_products() if self.precision == "tf32" else contextlib.nullcontext()


class CheckpointedForward(StandIn):
    """The forward of a block that keeps its input alone and runs again in backward, with the same random numbers."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._run(*args, **kwargs)
        return checkpoint_call(self._run, *args, use_reentrant=False, **kwargs)


def build_step(cell: Cell, workload: Workload, static_shapes: bool = True, double: bool = False) -> TrainStep:
    """Return the step of a cell's arm on its device, before the first one; the cell's seed decides the initial weights.

    ``double`` is for a reference: the model is in float64.
    """
    torch.manual_seed(cell.seed)
    method = build_for(cell)
    model = adapted_model(method, workload.build(), workload.targets(), cell.precision, kernel_on(cell.device))
    model = model.to(cell.device)
    model = model.double() if double else model
    toggles = (cell.precision, cell.device, cell.cuda_graph, cell.compile, static_shapes)
    return TrainStep(model, method, method.optimizer(model), workload.loss, *toggles, cell.checkpoint)


def batches_on(cell: Cell, workload: Workload, count: int, rank: int = 0) -> list[Batch]:
    """Return the first training batches of a cell, of one shape each, on its device; fewer where the data has no more.

    Of several ranks each takes every so many-th.
    """
    drawn = workload.batches("train", cell.batch_size, cell.seed, static=True)
    batches = itertools.islice(drawn, rank, count * cell.world_size, cell.world_size)
    return [{name: tensor.to(cell.device) for name, tensor in batch.items()} for batch in batches]


def rare_work(step: TrainStep, steps: int) -> list[Callable[[], None]]:
    """Return the rare events of a step's method that fall due in none of its first steps, to be called."""
    return [
        functools.partial(event.run, step.model, step.optimizer)
        for event in step.method.rare_events()
        if not any(number % event.period_steps == event.offset_steps for number in range(steps))
    ]


def _compiled(model: nn.Module, static_shapes: bool) -> nn.Module:
    """Return the model through torch.compile in its default mode."""
    # The plans that comera caches depend on shapes alone, which is all that the compiler warns about.
    warnings.filterwarnings("ignore", message="Dynamo detected a call to a `functools.lru_cache`")
    compiled: Any = torch.compile(model, dynamic=not static_shapes)
    return compiled


@contextlib.contextmanager
def tf32_products() -> Iterator[None]:
    """Run float32 matrix products on TF32 tensor cores; the process's own setting is restored afterwards."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
