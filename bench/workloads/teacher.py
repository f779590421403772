"""The workload ``teacher``: regression on a random ReLU network of few inputs, with fresh samples in every batch.

Nothing can be memorised and there is no noise, so the loss says how well a model of some format approximates a function
that is rich, and how quickly its optimizer gets there. The teacher's outputs are scaled to mean 0 and variance 1, so
that a loss is the share of the variance that is left. The best linear and the best quadratic function are the probes.

Shapes: B rows, D width of the student.
"""

import dataclasses
import functools
import hashlib
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import nn
from torch.nn import functional as F

from bench.core.checked import Allowed, FromOne, Layers, Width
from bench.core.identity import LATER
from bench.protocol import Batch, Evaluation, Metric, Role, Words
from bench.protocol.budget import Budget
from bench.workloads.base import BaseWorkload, check_batch_size
from bench.workloads.shapes import blocks_at_depth, check_near, nearest_width

_DEFAULT_INPUTS = 8

#: The quadratic function among the probes has about half the square of them as features.
Inputs = Annotated[int, Field(ge=1, le=32), Allowed("whole numbers from 1 to 32")]
_HELD_OUT_SEED = 2_000_000_011  # of the samples that are evaluated
_FITTED = 100_000  # samples from which mean, variance and probes are


@dataclass(frozen=True)
class TeacherSettings:
    """Sizes of student and teacher.

    Args:
        width, layers: of the student: so many square matrices between an input and an output layer.
        teacher_width, teacher_layers: of the teacher, likewise.
        teacher_seed: of its weights.
        inputs: d of both; the more there are, the less of the teacher can be learned.
        validation_samples, test_samples: how many are evaluated for choosing and for reporting.
    """

    width: Width = 256
    layers: Layers = 3
    teacher_width: Width = 256
    teacher_layers: Layers = 4
    teacher_seed: FromOne = 123
    validation_samples: FromOne = 20_000
    test_samples: FromOne = 20_000
    inputs: Inputs = field(default=_DEFAULT_INPUTS, metadata=LATER)


class Student(nn.Module):
    """The dense model: inputs (B, d) to outputs (B,).

    >>> student = Student(TeacherSettings(width=16, layers=1))
    >>> student(torch.zeros(5, 8)).shape
    torch.Size([5])
    >>> [sum(p.numel() for p in each.parameters()) for each in (student, student.narrowed(212))]
    [433, 211]
    """

    def __init__(self, settings: TeacherSettings) -> None:
        super().__init__()
        self.settings = settings
        width = settings.width
        self.first, self.last = nn.Linear(settings.inputs, width), nn.Linear(width, 1)
        self.hidden = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(settings.layers))
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(width)) for _ in range(settings.layers))
        for layer in (self.first, *self.hidden):
            nn.init.normal_(layer.weight, std=1 / math.sqrt(layer.in_features))
        for parameter in (self.first.bias, self.last.weight, self.last.bias):
            nn.init.zeros_(parameter)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.first(x)) * math.sqrt(2)
        for layer, bias in zip(self.hidden, self.biases, strict=True):
            x = F.relu(layer(x) + bias) * math.sqrt(2)
        return self.last(x).squeeze(-1)

    def narrowed(self, parameters: int, depth: float = 1, compression: float = 1, multiple: int = 1) -> "Student":
        """Return a student of about ``parameters`` and ``depth`` times the matrices.

        It has so many once its square matrices, whose width is a multiple of ``multiple``, are made ``compression``
        times smaller. Raises ValueError: none comes within 2 %, or the depth gives no whole number of matrices.
        """
        layers = blocks_at_depth(self.settings.layers, depth)

        def size(width: int) -> float:
            return width * (self.settings.inputs + 1) + layers * width * (width / compression + 1) + width + 1

        width = nearest_width(parameters, size, 2 * self.settings.width, multiple)
        check_near(parameters, size(width), f"student of {layers} matrices", width)
        return Student(dataclasses.replace(self.settings, width=width, layers=layers))


class TeacherWorkload(BaseWorkload):
    """Regression on a random ReLU network, with fresh samples in every batch.

    Batches are ``inputs``, float32 (B, d), and ``outputs`` (B,).

    >>> workload = TeacherWorkload(TeacherSettings(width=16, teacher_width=16, teacher_layers=1))
    >>> batch = next(workload.batches("train", batch_size=3, seed=0, static=True))
    >>> batch["inputs"].shape, batch["outputs"].shape
    (torch.Size([3, 8]), torch.Size([3]))
    """

    name, Settings, training_plan = "teacher", TeacherSettings, Budget
    datasets: ClassVar[tuple[str, ...]] = ("relu_network",)
    loss_unit = "of the variance"
    settings: TeacherSettings
    training_examples = 2**20  # of what is called an epoch: samples are drawn without end

    def __init__(self, settings: TeacherSettings, dataset: str = "auto") -> None:
        super().__init__(settings, dataset)
        width, layers = settings.width, settings.layers
        self.words = Words(f"ReLU network with {layers} matrices of {width} x {width}", example="sample")

    @functools.cached_property
    def data_hash(self) -> str:
        """A hash of what decides which samples there are: the teacher."""
        settings = self.settings
        sizes: tuple[int, ...] = (settings.teacher_width, settings.teacher_layers, settings.teacher_seed)
        if settings.inputs != _DEFAULT_INPUTS:
            sizes = (*sizes, settings.inputs)
        return hashlib.sha256(repr((self.name, self.dataset, sizes)).encode()).hexdigest()

    @functools.cached_property
    def _weights(self) -> list[NDArray[np.float32]]:
        settings = self.settings
        source = np.random.default_rng(settings.teacher_seed)
        widths = [settings.inputs, *[settings.teacher_width] * settings.teacher_layers, settings.teacher_width, 1]
        return [
            (source.standard_normal((n, m)) / math.sqrt(n)).astype(np.float32) for n, m in itertools.pairwise(widths)
        ]

    def _raw(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return outputs (B,) of the teacher, not normalised."""
        x = inputs
        for weight in self._weights[:-1]:
            x = F.relu(x @ torch.from_numpy(weight)) * math.sqrt(2)
        return (x @ torch.from_numpy(self._weights[-1])).squeeze(-1)

    @functools.cached_property
    def _scale(self) -> tuple[float, float]:
        """Mean and standard deviation of the teacher's outputs."""
        outputs = self._raw(self._inputs(_FITTED, (self.settings.teacher_seed, 1)))
        return float(outputs.mean()), float(outputs.std())

    def _inputs(self, count: int, seed: tuple[int, ...]) -> torch.Tensor:
        """Draw standard normal inputs (count, d)."""
        drawn = np.random.default_rng(seed).standard_normal((count, self.settings.inputs), dtype=np.float32)
        return torch.from_numpy(drawn)

    def _samples(self, count: int, seed: tuple[int, ...]) -> Batch:
        inputs = self._inputs(count, seed)
        mean, deviation = self._scale
        return {"inputs": inputs, "outputs": (self._raw(inputs) - mean) / deviation}

    @functools.cached_property
    def _held_out(self) -> tuple[Batch, Batch]:
        """Samples for choosing and for reporting."""
        settings = self.settings
        validation = self._samples(settings.validation_samples, (_HELD_OUT_SEED, 0))
        return validation, self._samples(settings.test_samples, (_HELD_OUT_SEED, 1))

    @functools.cached_property
    def metric(self) -> Metric:  # type: ignore[override]
        """The loss on the samples for choosing, of the variance 1; a constant guesses, a quadratic function probes."""
        probe = self.probes()["quadratic function"].metrics["loss"]
        return Metric("loss", "validation loss", "of the variance", False, 1.0, probe, "quadratic function")

    def probes(self) -> Mapping[str, Evaluation]:
        """Return the best linear and the best quadratic function of the inputs, fitted by least squares."""
        return self._fitted

    @functools.cached_property
    def _fitted(self) -> dict[str, Evaluation]:
        fitted = self._samples(_FITTED, (_HELD_OUT_SEED, 2))
        found = {}
        for name, features in (("linear function", _linear), ("quadratic function", _quadratic)):
            weights = torch.linalg.lstsq(features(fitted["inputs"]), fitted["outputs"][:, None]).solution
            losses = [
                float((features(batch["inputs"]) @ weights).squeeze(1).sub(batch["outputs"]).square().mean())
                for batch in self._held_out
            ]
            metrics = {"loss": losses[0], "test_loss": losses[1]}
            found[name] = Evaluation(metrics, examples=self.settings.validation_samples)
        return found

    def build(self) -> Student:
        return Student(self.settings)

    def targets(self) -> dict[str, Role]:
        """Return the square matrices."""
        return {f"hidden.{number}": "feed_forward" for number in range(self.settings.layers)}

    def batches(self, split: str, batch_size: int, seed: int, static: bool, start: int = 0) -> Iterator[Batch]:  # noqa: ARG002
        """Yield batches of fresh samples from number ``start`` on; "validation" has the samples for choosing."""
        check_batch_size(batch_size)
        if split == "validation":
            whole, count = self._held_out[0], self.settings.validation_samples // batch_size
            return (
                {name: each[number * batch_size : (number + 1) * batch_size] for name, each in whole.items()}
                for number in range(start, count)
            )
        if split != "train":
            raise ValueError(f"split is {split!r}; allowed: train, validation")
        return (self._samples(batch_size, (seed, number)) for number in itertools.count(start))

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Mean square of the error, on the model's device."""
        error: torch.Tensor = model(batch["inputs"]) - batch["outputs"]
        return error.square().mean()

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> Evaluation:
        """Return ``loss`` on the samples for choosing and ``test_loss`` on others, as parts of the variance."""
        device = next(model.parameters()).device
        was_training = model.training
        model.eval()
        try:
            losses = [
                float(self.loss(model, {name: each.to(device) for name, each in batch.items()}))
                for batch in self._held_out
            ]
        finally:
            model.train(was_training)
        metrics = {"loss": losses[0], "test_loss": losses[1]}
        return Evaluation(metrics, examples=self.settings.validation_samples)


def _linear(inputs: torch.Tensor) -> torch.Tensor:
    """Return the inputs and a one."""
    return torch.cat([inputs, torch.ones(len(inputs), 1)], 1)


def _quadratic(inputs: torch.Tensor) -> torch.Tensor:
    """Return the inputs, their products of two, and a one."""
    pairs = itertools.combinations_with_replacement(range(inputs.shape[1]), 2)
    products = torch.stack([inputs[:, one] * inputs[:, other] for one, other in pairs], 1)
    return torch.cat([products, _linear(inputs)], 1)


WORKLOAD = TeacherWorkload
