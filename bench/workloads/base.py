"""Base classes of most workloads: one with the members that seldom differ, and one for drawn batches."""

import abc
import functools
import hashlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import astuple
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import nn

from bench.data.corpus import DataError
from bench.errors import ConfigError
from bench.protocol import Batch, Data, EarlyLate, Evaluation, Gated, Metric, Role, Stage, Words

_HASHED = 1000  # numbers that stand for all of them in the hash of drawn data


def check_batch_size(batch_size: int) -> None:
    """Raise ValueError unless the batch size is a whole number from 1 up."""
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size is {batch_size!r}; allowed: whole numbers from 1")


class BaseWorkload(abc.ABC):
    """A workload in the protocol's form (:class:`bench.protocol.Workload`), as far as one is like the other.

    A subclass names itself, has ``Settings``, and offers ``build``, ``targets``, ``batches``, ``loss``; to be trained,
    ``evaluate``, ``metric``, ``training_examples`` and ``examples_per_epoch`` as well. Another ``dataset`` than
    ``auto``, the first, and those of :attr:`datasets` raises :class:`DataError`.
    """

    name: ClassVar[str]
    Settings: ClassVar[type[Any]]
    section: ClassVar[str]

    datasets: ClassVar[tuple[str, ...]] = ("drawn",)
    from_data: ClassVar[tuple[str, ...]] = ()
    gated: ClassVar[tuple[Gated, ...]] = ()
    training_plan: ClassVar[type[Any]] = EarlyLate

    words: Words = Words("model")
    metric: Metric | None = None
    examples_per_epoch: int | None = None
    training_examples: int | None = None
    sequence_length: int = 1

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "section" not in vars(cls) and "name" in vars(cls):
            cls.section = cls.name

    def __init__(self, settings: Any, dataset: str = "auto") -> None:
        if dataset not in ("auto", *self.datasets):
            raise DataError(f"dataset is {dataset!r}; workload={self.name} has: {', '.join(self.datasets)}.")
        self.settings = settings
        self.dataset = self.datasets[0] if dataset == "auto" else dataset

    @classmethod
    def open(cls, settings: Any, data: Data, check: bool) -> Self:  # noqa: ARG003 - there is nothing to read
        """Return the workload on data that it draws itself; raises ConfigError over a folder, DataError over a name."""
        for field in ("data_folder", "fetch"):
            if value := getattr(data, field):
                raise ConfigError(f"{field} is {value!r}; workload={cls.name} draws its data and reads none.")
        return cls(settings, data.dataset)

    @classmethod
    def settings_of(cls, data: Data) -> dict[str, Any]:  # noqa: ARG003 - none follow from the data
        """Return the values of the settings ``from_data``."""
        return {}

    @functools.cached_property
    def data_hash(self) -> str:
        """A hash of what decides which data there are: name, dataset and settings."""
        return hashlib.sha256(repr((self.name, self.dataset, self.settings)).encode()).hexdigest()

    @abc.abstractmethod
    def build(self) -> nn.Module:
        """Return a freshly initialised dense model; works under ``torch.device`` and ``FakeTensorMode`` contexts."""

    @abc.abstractmethod
    def targets(self) -> dict[str, Role]:
        """Return the modules that methods act on, by name, with what they do in the model."""

    @abc.abstractmethod
    def batches(self, split: str, batch_size: int, seed: int, static: bool, start: int = 0) -> Iterator[Batch]:
        """Yield batches of "train" or "validation" as CPU tensors, from number ``start`` on."""

    @abc.abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Mean task loss of a batch that lies on the model's device."""

    def batches_per_epoch(self, batch_size: int) -> int:
        """Count the batches of varying shape in one pass over the training rows; raises ValueError without an epoch."""
        if self.training_examples is None:
            raise ValueError(f"workload={self.name} has no epoch, so none of batches of {batch_size}")
        return -(-self.training_examples // batch_size)

    def in_stage(self, stage: Stage) -> Self:  # noqa: ARG002 - all stages are alike
        """Return the workload as a stage of training has it."""
        return self

    def held_on(self, device: str) -> Self:  # noqa: ARG002 - batches lie on the CPU
        """Return the workload as a training on a device draws batches from it."""
        return self

    def evaluate(self, model: nn.Module) -> Evaluation:  # noqa: ARG002 - the protocol passes it
        """Return no metrics, unless a subclass has something to evaluate."""
        return Evaluation({})

    def probes(self) -> Mapping[str, Evaluation]:
        """Return the quality of simple models on the validation data, by name; by default the metric's probe."""
        metric = self.metric
        if metric is None or metric.probe is None:
            return {}
        return {metric.probe_text: Evaluation({metric.name: metric.probe})}


class DrawnWorkload(BaseWorkload):
    """A workload that draws batches of one shape without end, so that there is no epoch.

    The dataset and the first setting, a size, decide what is drawn.
    """

    @abc.abstractmethod
    def draw(self, source: np.random.Generator, batch_size: int) -> Batch:
        """Draw one batch; its first tensor is the drawn input."""

    @functools.cached_property
    def data_hash(self) -> str:
        """sha256 over the distribution, the size and the first numbers drawn."""
        [drawn, *_] = next(self.batches("train", _HASHED, 0, static=True)).values()
        identity = (self.dataset, astuple(self.settings)[0], drawn.flatten()[:_HASHED].tolist())
        return hashlib.sha256(repr(identity).encode()).hexdigest()

    def batches(self, split: str, batch_size: int, seed: int, static: bool, start: int = 0) -> Iterator[Batch]:  # noqa: ARG002
        """Yield batches from number ``start`` on, each with a generator of its own; the split makes no difference."""
        check_batch_size(batch_size)
        return (self.draw(np.random.default_rng([seed, number]), batch_size) for number in itertools.count(start))
