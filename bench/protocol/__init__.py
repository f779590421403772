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

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import nn

#: What ``after_step`` did to the model. After ``"shapes"`` a captured graph must be taken again.
Change = Literal["nothing", "values", "shapes"]

#: How much of a step may be captured as one device graph.
CaptureScope = Literal["whole_step", "forward_backward", "none"]

#: What a weight does in the model; the workload names it, the method decides what to do with it.
Role = Literal["attention", "feed_forward", "classifier", "embedding"]

#: The roles of linear weights: the ones every rival acts on.
LINEAR_ROLES: tuple[Role, ...] = ("attention", "feed_forward", "classifier")

Batch = dict[str, torch.Tensor]


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


class RareEvent(Protocol):
    """Work that falls due every ``period_steps`` steps, too rare to be seen in a median.

    ``run(model, optimizer)`` performs it once, at its full cost, on the current gradients. The bench times it apart
    and amortises it; steps on which it is due (``step % period_steps == offset_steps``, steps counted from 0) are left
    out of the step samples.
    """

    @property
    def name(self) -> str: ...
    @property
    def period_steps(self) -> int: ...
    @property
    def offset_steps(self) -> int: ...
    @property
    def run(self) -> Callable[[nn.Module, torch.optim.Optimizer], None]: ...


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

    def written(self, value: float) -> str:
        """A value with its unit.

        >>> Metric("accuracy", "validation accuracy", "%").written(79.44), Metric("auc", "AUC").written(0.81234)
        ('79.4 %', '0.8123')
        """
        return f"{value:.1f} %" if self.unit == "%" else f"{value:.4g} {self.unit}".rstrip()


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
        metrics: numbers by name, the leading one among them.
        per_example: one value of the leading metric per validation example, in order: booleans where an answer is right
            or wrong, else real numbers; None where the metric is not a mean over examples.
        examples: how many there are, where ``per_example`` does not say it.
    """

    metrics: Mapping[str, float]
    per_example: Sequence[bool] | Sequence[float] | None = None
    examples: int | None = None


class TrainingPlan(Protocol):
    """The stages of a training run: a frozen dataclass of settings, those of the section ``training``.

    :class:`bench.protocol.plan.EarlyLate` is the one that a workload has unless it names another.
    """

    @property
    def static(self) -> bool:
        """Whether all batches are to have one shape."""
        ...

    @property
    def time_limit_s(self) -> float: ...

    def runs(self, steps_per_epoch: int, shrinks: bool) -> Sequence[tuple[Stage, ...]]:
        """The runs of one arm, each as its stages; ``shrinks`` says whether targets mean something to its method.

        A run whose last stage has a target goes on from the run of the stages before, if that is among them.
        """
        ...


@dataclass(frozen=True)
class Gated:
    """Steps of a workload that the regression gate counts (:mod:`bench.gate.exact`), by arm and batch size.

    Args:
        name: of this model, as in "encoder" or "linear-768x768".
        settings: of the workload.
        batch_sizes: in what its batches are counted.
        written: how a batch size is written.
        arms: method or method:variant and the method's settings, by what the arm is called; None for every method and
            variant there is, with its default settings.
        dataset: the data, which must be the same on every machine.
    """

    name: str
    settings: Any
    batch_sizes: tuple[int, ...]
    written: str = "batch-{}"
    arms: Mapping[str, tuple[str, Mapping[str, Any]]] | None = None
    dataset: str = "auto"


class Workload(Protocol):
    """A model, its data and its loss. ``build`` returns the dense model; methods adapt it."""

    #: By which a configuration asks for it.
    name: ClassVar[str]

    #: A frozen dataclass, every field with a default; it raises ValueError with one sentence over a wrong value.
    Settings: ClassVar[type[Any]]

    #: Where a configuration holds them, as in ``model.layers=2``; the name, unless the class says otherwise.
    section: ClassVar[str]

    #: What the regression gate counts; may be empty.
    gated: ClassVar[tuple[Gated, ...]]

    #: The class of its training plan.
    training_plan: ClassVar[type[Any]]

    #: Examples of the epoch that epoch times are of, whatever data is at hand; None for workloads without an epoch.
    examples_per_epoch: int | None

    #: Settings that follow from the data where a configuration leaves them null; may be empty.
    from_data: ClassVar[tuple[str, ...]]

    @classmethod
    def settings_of(cls, data: Data) -> dict[str, Any]:
        """Their values; raises DataError."""
        ...

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

    def in_stage(self, stage: Stage) -> Workload:
        """The workload as a stage of training has it; another one where, say, sequences are longer there."""
        ...

    def build(self) -> nn.Module: ...

    def targets(self) -> dict[str, Role]: ...

    def batches(self, split: str, batch_size: int, seed: int, static: bool, start: int = 0) -> Iterator[Batch]: ...

    def batches_per_epoch(self, batch_size: int) -> int: ...

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor: ...

    def evaluate(self, model: nn.Module) -> Evaluation: ...
