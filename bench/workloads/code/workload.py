"""The workload: rows of the corpus, the loss at chosen tokens, the metrics by held-out file, and the training plan."""

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

from bench.core.files import write_whole
from bench.core.vocabulary import NUMBERS
from bench.data.corpus import DataError
from bench.protocol import Batch, Data, EarlyLate, Evaluation, Metric, Role, Share, Stage, Steps, Words
from bench.protocol.budget import RATES, Rate
from bench.protocol.recipe import Recipe
from bench.workloads.base import BaseWorkload, check_batch_size
from bench.workloads.code.corpus import Sources, code_search_net, installed
from bench.workloads.code.masking import masked
from bench.workloads.code.model import CodeSettings, MaskedLanguageModel
from bench.workloads.code.probes import probe_losses
from bench.workloads.code.tokens import Ids, Streams, streams
from comera.protocol import Optimizer

_HELD_OUT_SEED = 1_000_000_007  # of the masks of held-out rows, the same in every evaluation
_EVALUATED_TOKENS = 4096  # of a batch of an evaluation


@dataclass(frozen=True)
class MaskedPlan(EarlyLate):
    """The plan of the paper, with rates that rise and fall in every stage.

    ``optimizer`` is the method's own one, at the rates among its settings, or that of a recipe
    (:class:`bench.protocol.recipe.Recipe`), whose matrices have the rate ``lr``; null: its default.

    >>> MaskedPlan(warmup=0.2, final_rate=0.0).schedule
    {'warmup': 0.2, 'final': 0.0}
    >>> MaskedPlan(optimizer="muon").recipe["lr"]
    0.03
    """

    optimizer: Optimizer = "own"
    lr: Rate = None
    warmup: Share = 0.1  # share of a stage's steps in which rates rise from 0
    final_rate: Share = 0.05  # what is left of them after the linear fall in the rest
    curve_steps: Steps = 100  # between points of the learning curve; null: an epoch

    def __post_init__(self) -> None:
        if self.optimizer == "own" and self.lr is not None:
            raise ValueError(
                f"lr is {self.lr:g}, but optimizer=own takes its rates from the method's settings; leave it out, or "
                "use adamw or muon."
            )

    @property
    def schedule(self) -> dict[str, float]:
        return {"warmup": self.warmup, "final": self.final_rate}

    @property
    def recipe(self) -> dict[str, Any] | None:
        """The recipe as cells hold it; None where the optimizer is the method's own."""
        if self.optimizer == "own":
            return None
        lr, lr_rest = RATES[self.optimizer]
        return Recipe(optimizer=self.optimizer, lr=self.lr or lr, lr_rest=lr_rest).identity()


def thinned(stream: Ids, chunk: int, most: int | None) -> Ids:
    """Return at most so many tokens of a stream, as chunks spread evenly over it.

    >>> thinned(np.arange(100, dtype=np.uint32), 3, 9).tolist()
    [0, 1, 2, 48, 49, 50, 96, 97, 98]
    """
    if most is None or len(stream) <= most:
        return stream
    chunks = stream[: len(stream) // chunk * chunk].reshape(-1, chunk)
    return chunks[np.linspace(0, len(chunks) - 1, max(most // chunk, 1)).astype(int)].ravel()


class CodeWorkload(BaseWorkload):
    """Masked language modelling on Python source, by the CodeBERT-like model.

    Files are packed into rows of one length; masks follow from seed and step alone.
    """

    name, Settings, training_plan = "code", CodeSettings, MaskedPlan
    loss_unit = "nats"

    def __init__(self, settings: CodeSettings, sources: Sources, cached: Streams, length: int | None = None) -> None:
        self.settings, self.sources, self.streams = settings, sources, cached
        self.train = thinned(cached.train, settings.positions, settings.most_tokens)
        self.dataset = sources.name
        self.sequence_length = length or settings.sequence_length
        sizes = (settings.vocabulary, settings.sequence_length, settings.windows, len(self.train))
        self.data_hash = hashlib.sha256("\n".join([sources.content_hash, *map(str, sizes)]).encode()).hexdigest()
        self._rows = self.training_examples = len(self.train) // self.sequence_length
        if not self._rows or not self._windows[1].size:
            raise DataError(f"the files of {self.dataset} are shorter than a row of {self.sequence_length} tokens.")
        self.examples_per_epoch = self.training_examples
        layers = settings.layers
        number = NUMBERS[layers] if layers < len(NUMBERS) else layers
        epoch = f"An epoch is one pass over {self.training_examples:,} rows of {self.sequence_length} tokens."
        self.words = Words(f"{number}-encoder masked language model, CodeBERT-like", epoch, "row", "held-out file")

    @classmethod
    def open(cls, settings: CodeSettings, data: Data, check: bool) -> Self:  # noqa: ARG003 - all is read to be hashed
        """Return the workload on the functions in ``data_folder``, or on the sources of installed packages.

        Raises DataError: there are none, or ``dataset`` names another corpus than there is.
        """
        if data.fetch:
            raise DataError("fetch is true, but workload=code downloads nothing; use fetch=false.")
        folder = data.data_folder
        sources = code_search_net(Path(folder).expanduser()) if folder else installed(settings.packages)
        if data.dataset not in ("auto", sources.name):
            raise DataError(f"dataset is {data.dataset!r}; the corpus on this machine is: {sources.name} (or auto).")
        return cls(settings, sources, streams(sources, settings.vocabulary))

    @property
    def files(self) -> dict[str, bytes]:
        """The manifest, which goes with the records."""
        return {f"{self.dataset}.csv": self.sources.manifest_csv()}

    @functools.cached_property
    def metric(self) -> Metric:  # type: ignore[override]
        """The held-out loss; a unigram model guesses, a bigram model is the probe."""
        found = self._probes()
        text = "bigram model"
        return Metric("loss", "held-out loss", "nats", False, found["unigram"], found["bigram"], text)

    def probes(self) -> Mapping[str, Evaluation]:
        """Return the unigram and the bigram model, on held-out rows of this length."""
        files = int(self._windows[1][-1]) + 1
        return {f"{name} model": Evaluation({"loss": loss}, examples=files) for name, loss in self._probes().items()}

    def _probes(self) -> dict[str, float]:
        path = self.streams.folder / f"probes-{self.sequence_length}-{self.settings.windows}-{len(self.train)}.json"
        if not path.exists():
            files = self._windows[1]
            batches = ((batch, files[rows]) for rows, batch in self._held_out())
            found = probe_losses(self.train, self.streams.tokens, batches, files[-1] + 1)
            write_whole({path: json.dumps(found).encode()})
        probes: dict[str, float] = json.loads(path.read_text())
        return probes

    def build(self) -> MaskedLanguageModel:
        return MaskedLanguageModel(self.settings)

    def targets(self) -> dict[str, Role]:
        """Return the matrices of the blocks: the embedding, which is the head's too, stays dense in every arm."""
        layers: dict[str, Role] = {f"attention.{name}": "attention" for name in ("query", "key", "value", "output")}
        layers |= {f"feed_forward.{name}": "feed_forward" for name in ("expand", "contract")}
        return {f"blocks.{n}.{name}": role for n in range(self.settings.layers) for name, role in layers.items()}

    def in_stage(self, stage: Stage) -> "CodeWorkload":
        """Return the workload with longer rows in a late stage, if the settings have them."""
        return self._late if stage.name == "late" and self.settings.late_length else self

    @functools.cached_property
    def _late(self) -> "CodeWorkload":
        return CodeWorkload(self.settings, self.sources, self.streams, self.settings.late_length)

    @functools.cached_property
    def _windows(self) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Rows (n, T) of held-out files that are long enough, evenly spaced, and the number of each row's file."""
        length, rows, files = self.sequence_length, [], []
        long_enough = [file for file in self.streams.held_out if len(file) >= length]
        for number, file in enumerate(long_enough):
            count = min(self.settings.windows * self.settings.sequence_length // length or 1, len(file) // length)
            starts = np.linspace(0, len(file) - length, count).astype(int)
            rows += [file[start : start + length] for start in starts]
            files += [number] * count
        return np.array(rows), np.array(files, dtype=np.int64)

    def _held_out(self) -> Iterator[tuple[slice, Batch]]:
        windows, _ = self._windows
        step = max(_EVALUATED_TOKENS // self.sequence_length, 1)
        for first in range(0, len(windows), step):
            rows = slice(first, first + step)
            yield rows, masked(windows[rows], (_HELD_OUT_SEED, first), self.streams.tokens)

    def batches_per_epoch(self, batch_size: int) -> int:
        """Return the number of full batches in an epoch."""
        return self._rows // batch_size

    def batches(self, split: str, batch_size: int, seed: int, static: bool, start: int = 0) -> Iterator[Batch]:  # noqa: ARG002
        """Yield ``split`` once in full batches of one shape, see :func:`bench.workloads.code.masking.masked`.

        Training rows are shuffled by ``seed``; the masks of a batch follow from ``seed`` and its number. In a late
        stage with longer rows, ``batch_size`` counts rows of the usual length.
        """
        check_batch_size(batch_size)
        length = self.sequence_length
        rows, rest = divmod(batch_size * self.settings.sequence_length, length)
        if rest:
            least = length // self.settings.sequence_length
            raise ValueError(f"batch_size is {batch_size}; allowed with rows of {length} tokens: multiples of {least}")
        if split == "train":
            count = self._rows
            table = self.train[: count * length].reshape(count, length)
            order = np.random.default_rng(seed).permutation(count)
        elif split == "validation":
            table, order = self._windows[0], np.arange(len(self._windows[0]))
        else:
            raise ValueError(f"split is {split!r}; allowed: train, validation")
        if rows > len(table):
            raise ValueError(f"batch_size is {batch_size}; allowed: 1 to the {len(table)} rows of {length} tokens")
        return (
            masked(table[order[first * rows : (first + 1) * rows]], (seed, first), self.streams.tokens)
            for first in range(start, len(table) // rows)
        )

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Mean cross entropy in nats at the chosen tokens of a batch that lies on the model's device."""
        return F.cross_entropy(model(batch["input_ids"], batch["positions"]).flatten(0, 1), batch["labels"].flatten())

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> Evaluation:
        """Return ``loss``, nats per chosen token (mean over files), ``token_loss`` (over tokens), ``accuracy`` in %."""
        device = next(model.parameters()).device
        files = self._windows[1]
        sums, numbers, right = np.zeros(files[-1] + 1), np.zeros(files[-1] + 1), 0
        was_training = model.training
        model.eval()
        try:
            for rows, batch in self._held_out():
                batch = {name: tensor.to(device) for name, tensor in batch.items()}
                scores = model(batch["input_ids"], batch["positions"]).float()
                losses = F.cross_entropy(scores.flatten(0, 1), batch["labels"].flatten(), reduction="none")
                right += int((scores.argmax(-1) == batch["labels"]).sum())
                by_row = losses.double().cpu().numpy().reshape(batch["labels"].shape)
                np.add.at(sums, files[rows], by_row.sum(1))
                np.add.at(numbers, files[rows], by_row.shape[1])
        finally:
            model.train(was_training)
        per_file, count = sums / numbers, numbers.sum()
        metrics = {"loss": per_file.mean(), "token_loss": sums.sum() / count, "accuracy": 100 * right / count}
        return Evaluation({name: float(value) for name, value in metrics.items()}, per_file.tolist())
