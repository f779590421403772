"""The protocols of the bench: what a training method and a workload must offer.

Typing is structural: a class fits when it has these members; it need not import this module. That is how
``comera`` and ``baselines`` stay below the bench.

A workload is a class that :func:`bench.workloads.register` makes known, most easily a subclass of
:class:`bench.workloads.base.BaseWorkload`.

A method lives in one module (``baselines/<name>.py``, or ``comera.training`` for CoMERA) which offers

* ``Settings``: a frozen dataclass of the method's own hyperparameters, every field with a default;
* ``VARIANTS``: a tuple of variant names, the default first;
* ``build(settings, variant) -> Method``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import nn

from comera.protocol import Batch, CaptureScope, CellView, Change, RareEvent, Role, Stage


class Method(Protocol):
    """One arm of a comparison."""

    @property
    def shrinks(self) -> bool:
        """Whether the late stage has a target for this method, toward which its model shrinks."""
        ...

    @property
    def capture(self) -> CaptureScope: ...

    @property
    def capture_reason(self) -> str:
        """Why less than the whole step can be captured; empty when it can."""
        ...

    def unsupported(self, cell: CellView) -> str | None:
        """Return why this method cannot run ``cell``, or None. Asked before anything is built."""
        ...

    def ratio_unsupported(self, model: nn.Module, targets: Mapping[str, Role]) -> str | None:
        """Return why the ratio among the settings cannot be met, with the nearest that can, or None.

        Asked of methods that have such a setting. ``model`` is the dense one, its shapes alone (device ``meta``).
        """
        ...

    def adapt(self, model: nn.Module, targets: Mapping[str, Role]) -> nn.Module:
        """Turn the dense ``model`` into the one this method trains (in place where it can) and return it."""
        ...

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer: ...

    def objective(self, task_loss: torch.Tensor, model: nn.Module) -> torch.Tensor: ...

    def after_step(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> Change:
        """Called after optimizer step number ``step`` (from 0)."""
        ...

    def stage_unsupported(self, stage: Stage) -> str | None:
        """Return why this method cannot train such a stage, or None. Asked before anything is built."""
        ...

    def begin_stage(self, stage: Stage, model: nn.Module, optimizer: torch.optim.Optimizer) -> Change:
        """Called before the first step of a stage."""
        ...

    def end_stage(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Change:
        """Called after the last step of a stage."""
        ...

    def sizes(self, model: nn.Module) -> dict[str, float]:
        """Sizes that the method steers, as columns of its records; empty if there are none."""
        ...

    def rare_events(self) -> Sequence[RareEvent]: ...

    def state_dict(self) -> dict[str, Any]:
        """What the method itself must remember beyond model and optimizer: tensors and JSON values only."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...

    def stored_size(self, model: nn.Module) -> int:
        """Bytes needed to store the trained model for use."""
        ...


@dataclass(frozen=True)
class Data:
    """Where a job's data comes from.

    Args:
        dataset: a name among those that the workload knows; ``auto`` is the first there is.
        data_folder: a folder that holds it.
        fetch: whether to download it into that folder.
    """

    dataset: str = "auto"
    data_folder: str | None = None
    fetch: bool = False


@dataclass(frozen=True)
class Metric:
    """The metric that leads: what curves show, arms are compared by, and a model must beat to have learned anything.

    Args:
        name: its key in :attr:`Evaluation.metrics`.
        text: what figures call it, as in "validation accuracy".
        unit: as in "%"; empty where it has none.
        higher_is_better: whether more of it is better.
        guess: what a model reaches that guesses, or None where that is not known.
        probe: what a simple model reaches on these data, or None where none was tried.
        probe_text: what that model is, as in "bag of words".
    """

    name: str
    text: str
    unit: str = ""
    higher_is_better: bool = True
    guess: float | None = None
    probe: float | None = None
    probe_text: str = ""


@dataclass(frozen=True)
class Words:
    """What figures say of a workload.

    Args:
        model: the dense model, as in "six-encoder transformer".
        epoch: a sentence on what an epoch is; empty for a workload without one.
        example: what a batch is counted in, as in "example" or "token".
    """

    model: str
    epoch: str = ""
    example: str = "example"


@dataclass(frozen=True)
class Evaluation:
    """What a model reaches on the validation data.

    Args:
        metrics: numbers by name, the leading one and ``loss`` among them.
        per_example: one value of the leading metric per validation example, in order: booleans where an answer is right
            or wrong, else real numbers; None where the metric is not a mean over examples.
    """

    metrics: Mapping[str, float]
    per_example: Sequence[bool] | Sequence[float] | None = None


class Workload(Protocol):
    """A model, its data and its loss. ``build`` returns the dense model; methods adapt it."""

    #: By which a configuration asks for it.
    name: ClassVar[str]

    #: A frozen dataclass, every field with a default; it raises ValueError with one sentence over a wrong value.
    Settings: ClassVar[type[Any]]

    #: Where a configuration holds them, as in ``model.layers=2``; the name, unless the class says otherwise.
    section: ClassVar[str]

    #: Examples of the epoch that epoch times are of, whatever data is at hand; None for workloads without an epoch.
    examples_per_epoch: int | None

    @classmethod
    def open(cls, settings: Any, data: Data, check: bool) -> Workload:
        """The workload on its data; ``check`` asks to read every row now.

        Raises:
            DataError: data that is missing or malformed, in one sentence.
            ValueError: settings that do not suit the data.
        """
        ...

    @property
    def dataset(self) -> str:
        """Name of its data, for records and figures."""
        ...

    @property
    def data_hash(self) -> str: ...

    @property
    def training_examples(self) -> int | None:
        """Rows that there are to train on; None where batches are drawn without end."""
        ...

    @property
    def sequence_length(self) -> int:
        """Tokens of an example; 1 where that means nothing."""
        ...

    @property
    def metric(self) -> Metric | None:
        """The metric that leads; None where there is nothing to evaluate."""
        ...

    @property
    def words(self) -> Words: ...

    def build(self) -> nn.Module: ...

    def targets(self) -> dict[str, Role]: ...

    def batches(self, split: str, batch_size: int, seed: int, static: bool, start: int = 0) -> Iterator[Batch]: ...

    def batches_per_epoch(self, batch_size: int) -> int: ...

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor: ...

    def evaluate(self, model: nn.Module) -> Evaluation: ...
