"""Types at the boundary between a training method and what trains or measures it, and the scale at which tables start.

CoMERA, its rivals and the bench import them from here. This module imports torch alone, so that a rival depends on
nothing else of this package.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

#: Change of the model by ``after_step``. After ``"shapes"`` a captured graph must be taken again.
Change = Literal["nothing", "values", "shapes"]

#: How much of a step may be captured as one device graph.
CaptureScope = Literal["whole_step", "forward_backward", "none"]

#: Role of a weight in the model; the workload names it, the method decides how to treat it.
Role = Literal["attention", "feed_forward", "classifier", "embedding"]

#: The roles of linear weights: the ones every rival acts on.
LINEAR_ROLES: tuple[Role, ...] = ("attention", "feed_forward", "classifier")

#: The role of a table of vectors looked up by number, an ``nn.Embedding`` or ``nn.EmbeddingBag``.
EMBEDDING_ROLE: Role = "embedding"

#: The optimizers that a training plan can give a model whose matrices are found by
#: :func:`comera.loops.muon.matrix_parameters`; ``own`` is the method's.
Optimizer = Literal["own", "adamw", "muon"]
OPTIMIZERS: tuple[Optimizer, ...] = ("own", "adamw", "muon")

#: Metadata of a setting that came after records were made: cells leave out its default, and so keep their ids.
LATER = {"later": True}

Batch = dict[str, torch.Tensor]


class OutOfReach(ValueError):
    """No modes, blocks or ranks meet a ratio; the message names what is within reach.

    Args:
        message: the sentence.
        largest, smallest: the end of the ratios within reach, where the ratio lies beyond it.
    """

    def __init__(self, message: str, largest: float | None = None, smallest: float | None = None) -> None:
        super().__init__(message)
        self.largest, self.smallest = largest, smallest


class Reason(str):
    """A sentence on why a method cannot train a model.

    ``reach`` has the end of the ratios within reach, ``largest`` or ``smallest``, where a ratio lies beyond it.

    >>> Reason.of(OutOfReach("ratio=200 is out of reach.", largest=145.07)).reach
    {'largest': 145.07}
    """

    reach: dict[str, float]

    @classmethod
    def of(cls, error: OutOfReach) -> Reason:
        """Return the sentence of an error, with the end that it names."""
        reason = cls(error)
        ends = {"largest": error.largest, "smallest": error.smallest}
        reason.reach = {name: ratio for name, ratio in ends.items() if ratio is not None}
        return reason


class CellView(Protocol):
    """The part of a cell that a method may look at before anything is built."""

    @property
    def batch_size(self) -> int: ...
    @property
    def sequence_length(self) -> int: ...
    @property
    def precision(self) -> str: ...
    @property
    def device(self) -> str: ...


@dataclass(frozen=True)
class Stage:
    """A part of a training run.

    Args:
        name: what the workload's training plan calls it, such as "early", "late" or "phase 1".
        steps: how many optimizer steps it has.
        target: where ranks are to shrink, the target size as a share of the tensorized size at the stage's start,
            above 0 and at most 1.
        target_mib: or the target size of the whole model in FP32. Neither is given in an early stage, nor to
            methods that do not shrink, which train on.
    """

    name: str
    steps: int
    target: float | None = None
    target_mib: float | None = None


@dataclass(frozen=True)
class RareEvent:
    """Work that falls due every ``period_steps`` steps, too rare to be seen in a median.

    ``run(model, optimizer)`` performs it once, at its full cost, on the current gradients. The bench times it apart
    and amortises it; steps on which it is due (``step % period_steps == offset_steps``, steps counted from 0) are left
    out of the step samples.
    """

    name: str
    period_steps: int
    offset_steps: int
    run: Callable[[nn.Module, torch.optim.Optimizer], None]


def scale_of(weight: torch.Tensor) -> torch.Tensor:
    """Return the root of the mean square of a weight's entries, a scalar; 1 where they are all zero or not all finite.

    The factors that take the place of a table start at its scale, whichever method they are of.

    Example:
        >>> scale_of(torch.tensor([[3.0, -4.0], [0.0, 5.0]])), scale_of(torch.zeros(2, 2))
        (tensor(3.5355), tensor(1.))
    """
    kind = torch.promote_types(weight.dtype, torch.float32)
    scale = torch.linalg.vector_norm(weight.detach(), dtype=kind) / math.sqrt(weight.numel())
    return torch.where((scale > 0) & scale.isfinite(), scale, 1.0)


def has_values(model: nn.Module) -> bool:
    """Return whether the parameters of a model hold numbers, as fake ones and those on the meta device do not.

    Args:
        model: any module.

    Example:
        >>> has_values(nn.Linear(2, 3)), has_values(nn.Linear(2, 3, device="meta"))
        (True, False)
    """
    return not any(parameter.is_meta or isinstance(parameter, FakeTensor) for parameter in model.parameters())


def starts_at_zero(linear: nn.Module) -> bool:
    """Return whether the replacement of a linear layer starts with zero output, by its attribute of this name.

    Models set it where they would have set the weight to zero, as at the end of a residual branch. A format then sets
    its last factor to zero and draws the others, so that it can leave zero.

    Example:
        >>> linear = nn.Linear(2, 3)
        >>> linear.starts_at_zero = True
        >>> starts_at_zero(linear), starts_at_zero(nn.Linear(2, 3))
        (True, False)
    """
    return bool(getattr(linear, "starts_at_zero", False))
