"""The protocols of the bench: what a training method and a workload must offer.

Typing is structural: a class fits when it has these members; it need not import this module. That is how
``comera`` and ``baselines`` stay below the bench.

A workload is a class that its module names in ``WORKLOAD``, most easily a subclass of
:class:`bench.workloads.base.BaseWorkload`.

A method lives in one module (``baselines/<name>.py``, or ``comera.training`` for CoMERA) which offers

* ``Settings``: a frozen dataclass of the method's own hyperparameters, every field with a default;
* ``VARIANTS``: a tuple of variant names, the default first;
* ``build(settings, variant) -> Method``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Protocol

import torch
from pydantic import Field
from torch import nn

from bench.core.cell import Cell
from bench.core.checked import Allowed, Seconds
from bench.core.identity import LATER
from comera.protocol import Batch, CaptureScope, CellView, Change, Optimizer, RareEvent, Role, Stage


class Method(Protocol):
    """One arm of a comparison. The three ``unsupported`` give a reason or None, before anything is built."""

    @property
    def shrinks(self) -> bool: ...  # whether the late stage has a target for it, toward which its model shrinks
    @property
    def capture(self) -> CaptureScope: ...
    @property
    def capture_reason(self) -> str: ...  # why less than the whole step can be captured; empty when it can
    @property
    def optimizers(self) -> tuple[Optimizer, ...]: ...  # that it can be trained by; "own" is that of `optimizer`
    def leave_optimizer_to_plan(self) -> None:
        """Prepare for an optimizer that a training plan brings, before anything else is called."""

    def unsupported(self, cell: CellView) -> str | None: ...
    def stage_unsupported(self, stage: Stage) -> str | None: ...
    def model_unsupported(self, model: nn.Module, targets: Mapping[str, Role]) -> str | None:
        """Explain why a model cannot be trained; None if it can.

        It may lack the modules that the method acts on, or the ratio among the settings may be impossible; the sentence
        then names the nearest possible one.

        ``model`` is the dense one, its shapes alone (device ``meta``).
        """

    def adapt(self, model: nn.Module, targets: Mapping[str, Role]) -> nn.Module:
        """Turn the dense ``model`` into the one this method trains (in place where it can) and return it."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer: ...
    def objective(self, task_loss: torch.Tensor, model: nn.Module) -> torch.Tensor: ...
    def after_step(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> Change:
        """Act after optimizer step number ``step`` (from 0)."""

    def begin_stage(self, stage: Stage, model: nn.Module, optimizer: torch.optim.Optimizer) -> Change:
        """Act before the first step of a stage."""

    def end_stage(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Change:
        """Act after the last step of a stage."""

    def use_task_loss(self, task_loss: Callable[[nn.Module], torch.Tensor]) -> None:
        """Receive, once before training, a function that forms the task loss of one and the same training batch."""

    def sizes(self, model: nn.Module) -> dict[str, float]:
        """Return the sizes that the method controls, as columns of its records; empty if there are none."""

    def factor_ranks(self, model: nn.Module) -> dict[str, int]:
        """Return the ranks of factors that no training changes, by the layer's name; empty if there are none."""

    def rare_events(self) -> Sequence[RareEvent]: ...
    def state_dict(self) -> dict[str, Any]:
        """Return the method's state beyond model and optimizer: tensors and JSON values only."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...
    def stored_size(self, model: nn.Module) -> int: ...  # bytes needed to store the trained model for use


@dataclass(frozen=True)
class Data:
    """Source of a job's data."""

    dataset: str = "auto"  # a name that the workload offers; "auto" is the first there is
    data_folder: str | None = None  # that holds it
    fetch: bool = False  # whether to download it into that folder
    start: str | None = None  # folder of a trained model, from whose weights a training starts


@dataclass(frozen=True)
class Metric:
    """The metric that leads: what curves show, arms are compared by, and a model must beat to have learned anything."""

    name: str  # its key in Evaluation.metrics
    text: str  # in figures, as in "validation accuracy"
    unit: str = ""  # as in "%"
    higher_is_better: bool = True
    guess: float | None = None  # what a model reaches that guesses, where that is known
    probe: float | None = None  # what a simple model reaches on these data, where one was tried
    probe_text: str = ""  # what that model is, as in "bag of words"

    def written(self, value: float) -> str:
        """Return a value with its unit.

        >>> Metric("accuracy", "validation accuracy", "%").written(79.44), Metric("auc", "AUC").written(0.81234)
        ('79.4 %', '0.8123')
        """
        return f"{value:.1f} %" if self.unit == "%" else f"{value:.4g} {self.unit}".rstrip()


@dataclass(frozen=True)
class Words:
    """Words that figures use for a workload."""

    model: str  # the dense model, as in "six-encoder transformer"
    epoch: str = ""  # a sentence on what an epoch is; empty for a workload without one
    example: str = "example"  # what a batch is counted in, as in "example" or "token"
    #: What a value of the validation metric is of, where that is no example, as in "held-out file".
    validated: str = field(default="", metadata=LATER)


@dataclass(frozen=True)
class Evaluation:
    """Quality of a model on the validation data.

    ``per_example`` is the leading metric of each validation example, in order: booleans where an answer is right or
    wrong, else real numbers; None where the metric is not a mean over examples.
    """

    metrics: Mapping[str, float]  # by name, the leading one among them
    per_example: Sequence[bool] | Sequence[float] | None = None
    examples: int | None = None  # how many there are, where ``per_example`` is None
    #: Metrics of groups of examples of one size, in order, by metric: for intervals where examples are too many to be
    #: kept one by one, or a metric is no mean over them.
    groups: Mapping[str, Sequence[float]] = field(default_factory=dict)


class TrainingPlan(Protocol):
    """The stages of a training run: a frozen dataclass of settings, those of the section ``training``.

    :class:`EarlyLate` is the one that a workload has unless it names another. A plan may also have ``curve_steps``, the
    steps between points of the learning curve (an epoch without it), and ``schedule``, with which the learning rates of
    all arms rise and fall in every stage (:func:`bench.training.run.scheduled_share`); both are parts of a cell.
    """

    @property
    def static(self) -> bool: ...  # whether all batches are to have one shape
    @property
    def time_limit_s(self) -> float: ...
    def runs(self, steps_per_epoch: int, shrinks: bool) -> Sequence[tuple[Stage, ...]]:
        """Return the runs of one arm, each as its stages; ``shrinks``: whether targets apply to its method.

        A run whose last stage has a target goes on from the run of the stages before, if that is among them.
        """


Positive = Annotated[float, Field(gt=0, le=1e6), Allowed("numbers above 0, up to 1,000,000")]
Steps = Annotated[
    Annotated[int, Field(ge=1, le=10**9)] | None, Allowed("whole numbers from 1 to 1,000,000,000, or null")
]
_SHARES = "a list of shares above 0 and at most 1, such as [0.8,0.5]"
Share = Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True)
class EarlyLate:
    """The plan of the paper: an early stage, then a late one that shrinks the model toward a target.

    Lengths given in steps go before those given in epochs.

    >>> [[stage.name for stage in run] for run in EarlyLate(targets=(0.8, 0.5)).runs(100, shrinks=True)]
    [['early'], ['early', 'late'], ['early', 'late']]
    """

    early_epochs: Positive = 6.0  # passes over the training rows
    late_epochs: Positive = 3.0
    early_steps: Steps = None  # optimizer steps
    late_steps: Steps = None
    #: A late stage each, for methods that shrink: the share of the tensorized size at its start that is left.
    targets: Annotated[tuple[Share, ...], Allowed(_SHARES)] = (0.8, 0.5, 0.2)
    #: Likewise, the size of the whole model.
    targets_mib: Annotated[tuple[float, ...], Allowed("a list of finite numbers, such as [3,1.5]")] = ()
    static: bool = False  # pad every batch to the same shape; otherwise batches are bucketed by length
    curve_steps: Steps = None  # between points of the learning curve; null for one per epoch
    time_limit_s: Seconds = 604_800.0  # after which a run is given up as "timeout"; it can be resumed

    def runs(self, steps_per_epoch: int, shrinks: bool) -> list[tuple[Stage, ...]]:
        """Return early alone and early with late, one per target, if the method shrinks; else both in one run.

        Without a target there is no late stage.
        """
        early = Stage("early", self.early_steps or max(round(self.early_epochs * steps_per_epoch), 1))
        late = Stage("late", self.late_steps or max(round(self.late_epochs * steps_per_epoch), 1))
        by_share = [replace(late, target=target) for target in self.targets]
        by_size = [replace(late, target_mib=target) for target in self.targets_mib]
        if shrinks:
            return [(early,), *((early, one) for one in (*by_share, *by_size))]
        return [(early, late) if by_share or by_size else (early,)]


@dataclass(frozen=True)
class Gated:
    """Steps of a workload that the regression gate counts (:mod:`bench.gate.exact`), by arm and batch size."""

    name: str  # of this model, as in "encoder" or "linear-768x768"
    settings: Any  # of the workload
    batch_sizes: tuple[int, ...]
    written: str = "batch-{}"  # how a batch size is written
    #: Method or method:variant, and the method's settings, by name; None is every arm with its default settings.
    arms: Mapping[str, tuple[str, Mapping[str, Any]]] | None = None
    dataset: str = "auto"  # which must be the same on every machine


class Workload(Protocol):
    """A model, its data and its loss. ``build`` returns the dense model; methods adapt it.

    A workload may also have ``loss_unit``, in which the training loss is printed, as in "nats"; ``files``: contents by
    name, such as a list of what its data is made of, which are written beside its records; ``held_on(device)``, which
    returns the workload with its data on that device, for a training whose batches are to lie there already; and
    ``start``, the trained weights by name that ``build`` gives its model, or None.
    """

    name: ClassVar[str]  #: By which a configuration asks for it.
    #: A frozen dataclass, every field with a default; it raises ValueError with one sentence over a wrong value.
    Settings: ClassVar[type[Any]]
    #: Where a configuration holds them, as in ``model.layers=2``; the name, unless the class has another.
    section: ClassVar[str]
    gated: ClassVar[tuple[Gated, ...]]  #: What the regression gate counts; may be empty.
    training_plan: ClassVar[type[Any]]  #: In the form of :class:`TrainingPlan`.
    #: Examples of the epoch that epoch times are of, whatever data is at hand; None for workloads without an epoch.
    examples_per_epoch: int | None
    #: Settings that follow from the data where a configuration leaves them null; may be empty.
    from_data: ClassVar[tuple[str, ...]]

    @classmethod
    def settings_of(cls, data: Data) -> dict[str, Any]:
        """Return the workload's settings; raises DataError."""

    @classmethod
    def open(cls, settings: Any, data: Data, check: bool) -> "Workload":
        """Return the workload on its data; ``check`` asks to read every row now.

        Raises DataError: data that is missing or malformed. ValueError: settings that do not suit the data.
        """

    @property
    def dataset(self) -> str: ...  # name of its data, for records and figures
    @property
    def data_hash(self) -> str: ...
    @property
    def training_examples(self) -> int | None: ...  # rows to train on; None where batches are drawn without end
    @property
    def sequence_length(self) -> int: ...  # tokens of an example; 1 where that means nothing
    @property
    def metric(self) -> Metric | None: ...  # the one that leads; None where there is nothing to evaluate
    @property
    def words(self) -> Words: ...
    def in_stage(self, stage: Stage) -> "Workload":
        """Return the workload in a stage of training, which may differ, for example by longer sequences."""

    def build(self) -> nn.Module: ...
    def targets(self) -> dict[str, Role]: ...
    def batches(self, split: str, batch_size: int, seed: int, static: bool, start: int = 0) -> Iterator[Batch]: ...
    def batches_per_epoch(self, batch_size: int) -> int: ...
    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor: ...
    def evaluate(self, model: nn.Module) -> Evaluation: ...
    def probes(self) -> Mapping[str, Evaluation]: ...  # what simple models reach, by name; may be empty


class CellFailure(Exception):
    """A cell that ended otherwise than well."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass
class Outcome:
    """Outcome of a cell: a status and the record columns that are known."""

    cell: Cell
    status: str = "ok"
    message: str = ""
    columns: dict[str, Any] = field(default_factory=dict)

    def fail(self, failure: CellFailure) -> None:
        """Take over the status and message of a failure."""
        self.status, self.message = failure.status, failure.message


class Advance(Protocol):
    """Takes note of work on a cell: the share of it just done, of 1 in all, and in words what it is at."""

    def __call__(self, cell: Cell, share: float, at: str = "", /) -> None: ...


@dataclass(frozen=True)
class Session:
    """Resources with which a measure runs the cells of a job."""

    data: Data
    parallel: int  # processes at a time, where cells run side by side
    advance: Advance
    note: Callable[[Cell, str], None]  # to be called with a cell and a line on how far it has come
    upkeep: Callable[[Cell], Any]  # where a cell keeps its checkpoint (:class:`bench.training.run.Upkeep`)
    needs_rare: Callable[[Cell], bool]  # whether a cell's rare events are to be timed, because no record has them yet
