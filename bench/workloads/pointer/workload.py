"""The workload: random windows of words, the loss at every label, held-out text for choosing and for reporting."""

import copy
import functools
import hashlib
import itertools
import json
import sys
from collections.abc import Iterator, Mapping
from typing import ClassVar, Self

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from bench.core.files import write_whole
from bench.core.vocabulary import NUMBERS
from bench.data.corpus import DataError
from bench.protocol import Batch, Data, Evaluation, Metric, Role, Words
from bench.protocol.budget import Budget
from bench.workloads.base import BaseWorkload, check_batch_size
from bench.workloads.code.tokens import cache_folder
from bench.workloads.encoder import block_targets
from bench.workloads.pointer.corpus import NO_LABEL, PointerText, Side, pointer_text
from bench.workloads.pointer.model import PointerModel, PointerSettings
from bench.workloads.pointer.probes import Featured, Frequencies, LinearProbe, bag, ngrams, skip_pairs

_EVALUATED_WORDS = 4096  # of a batch of an evaluation
_FITTED_WINDOWS = 256  # of a batch that a probe is fitted on
_PROBE_SEED = 2_000_000_011  # of those windows
_MORE = 4  # times the windows, of the probes with more data
_EVALUATED: Mapping[Side, str] = {"validation": "", "test": "test_"}  # sides, and how names of their metrics begin
_PROBES = "1"  # version of what is cached of them
FREQUENCY, EQUAL = "class frequencies", "equal-size skip pairs"

#: Linear probes by name: their features, and how many times the usual windows they are fitted on.
_LINEAR: Mapping[str, tuple[Featured, int]] = {
    "bag of words": (bag, 1),
    "equal-size n-grams": (ngrams, 1),
    EQUAL: (skip_pairs, 1),
    "n-grams of four times the data": (ngrams, _MORE),
    "skip pairs of four times the data": (skip_pairs, _MORE),
}


class PointerWorkload(BaseWorkload):
    """Labels on real text that need attention and a memory of words.

    Batches are windows ``tokens``, int64 (B, T), and ``labels``, int64 (B, T, H).

    Tokens of the whole text and their labels are made once. A batch is gathered from them, on the device that holds
    them.
    """

    name, Settings, training_plan = "pointer", PointerSettings, Budget
    datasets: ClassVar[tuple[str, ...]] = ()
    settings: PointerSettings
    loss_unit = "nats"

    def __init__(self, settings: PointerSettings, text: PointerText) -> None:
        self.settings, self.text, self.dataset = settings, text, text.name
        context, hops = settings.context, settings.hops
        self.sequence_length = context
        self.data_hash = hashlib.sha256(f"{text.data_hash} {settings.vocabulary} {context} {hops}".encode()).hexdigest()
        sides: tuple[Side, ...] = ("train", "validation", "test")
        ahead, labels = text.ways(hops)
        held = {"tokens": text.ids, "ahead": ahead, "labels": labels}
        self._held = {name: torch.from_numpy(values) for name, values in held.items()}
        grids = {side: torch.from_numpy(text.grid(side, context, settings.evaluated)) for side in sides}
        self._evaluated = {side: self._gathered(grid) for side, grid in grids.items()}
        self._windows = {side: batch["tokens"].numpy() for side, batch in self._evaluated.items()}
        self._labels = {side: batch["labels"].numpy() for side, batch in self._evaluated.items()}
        for side, labels in self._labels.items():
            if not (labels[..., -1] != NO_LABEL).any():
                raise DataError(
                    f"the {side} windows of {text.name} have no label with pointer.hops={hops} and "
                    f"pointer.context={context}; give more text, a longer context or fewer hops."
                )
        self.training_examples = self.examples_per_epoch = len(text.blocks("train")) * text.block // context
        layers = settings.layers
        number = NUMBERS[layers] if layers < len(NUMBERS) else layers
        kind = "words" if settings.tokens == "words" else "pieces of words"
        epoch = f"An epoch is {self.training_examples:,} random windows of {context} {kind}."
        self.words = Words(f"{number}-block encoder of width {settings.width}", epoch, "window", "held-out text")

    @classmethod
    def open(cls, settings: PointerSettings, data: Data, check: bool) -> Self:  # noqa: ARG003 - all is read to be hashed
        """Return the workload on the files of ``data_folder``, or on the sources of installed packages.

        Raises DataError: no words, too few, or ``dataset`` names another text than there is.
        """
        if data.fetch:
            raise DataError("fetch is true, but workload=pointer downloads nothing; use fetch=false.")
        sizes = (settings.vocabulary, settings.context, settings.tokens)
        text = pointer_text(data.data_folder, settings.files, settings.packages, *sizes)
        if data.dataset not in ("auto", text.name):
            raise DataError(f"dataset is {data.dataset!r}; the text on this machine is: {text.name} (or auto).")
        return cls(settings, text)

    @functools.cached_property
    def metric(self) -> Metric:  # type: ignore[override]
        """The loss on the text for choosing; the probe has skip pairs and as many numbers as the dense model."""
        guess, probe = (self._probe(name).metrics["loss"] for name in (FREQUENCY, EQUAL))
        return Metric("loss", "validation loss", "nats", False, guess, probe, EQUAL)

    def probes(self) -> Mapping[str, Evaluation]:
        """Return simple models, each of at most as many numbers as the dense model."""
        return {name: self._probe(name) for name in (FREQUENCY, *_LINEAR)}

    def _probe(self, name: str) -> Evaluation:
        """Return the quality of a probe, which is fitted once and then kept in the cache."""
        if name == FREQUENCY:
            return self.evaluate(Frequencies(self._labels["train"]))
        settings, examples = self.settings, int((self._labels["validation"] != NO_LABEL).sum())
        with torch.device("meta"):
            numbers = sum(parameter.numel() for parameter in self.build().parameters())
        key = repr((name, settings.evaluated, settings.probe_windows, numbers))
        folder = cache_folder() / "pointer"
        path = folder / f"probes-{_PROBES}-{hashlib.sha256((self.data_hash + key).encode()).hexdigest()[:32]}.json"
        try:
            if not path.exists():
                if sys.stderr.isatty():
                    print(f"pointer: fitting {name}, once", file=sys.stderr)
                found = self.evaluate(self._fitted(name, numbers))
                folder.mkdir(parents=True, exist_ok=True)
                write_whole({path: json.dumps(dict(found.metrics)).encode()})
            return Evaluation(json.loads(path.read_text()), examples=examples)
        except OSError as error:
            raise DataError(f"the cache {folder} cannot be used ({error}); name another in COMERA_CACHE.") from None

    def _fitted(self, name: str, numbers: int) -> LinearProbe:
        settings, (featured, times) = self.settings, _LINEAR[name]
        probe = LinearProbe(featured, settings.vocabulary, settings.hops, numbers)
        size = min(settings.probe_windows, _FITTED_WINDOWS)
        steps = times * settings.probe_windows // size
        source = np.random.default_rng(_PROBE_SEED)
        starts = self.text.draw("train", settings.context, steps * size, source).reshape(steps, size)
        gathered = map(self._gathered, torch.from_numpy(starts).to(self._held["tokens"].device))
        probe.fit(({name: tensor.cpu() for name, tensor in batch.items()} for batch in gathered), steps, self.loss)
        return probe

    def build(self) -> PointerModel:
        return PointerModel(self.settings)

    def targets(self) -> dict[str, Role]:
        """Return the matrices of the blocks and, with ``compress_table``, the word embedding."""
        blocks = block_targets(self.settings.layers)
        return {"embeddings.word": "embedding", **blocks} if self.settings.compress_table else blocks

    def batches_per_epoch(self, batch_size: int) -> int:
        """Return the number of full batches in an epoch."""
        return (self.training_examples or 0) // batch_size

    def batches(self, split: str, batch_size: int, seed: int, static: bool, start: int = 0) -> Iterator[Batch]:  # noqa: ARG002
        """Yield full batches: an epoch of random training windows, drawn by ``seed``, or the windows for choosing."""
        check_batch_size(batch_size)
        if split not in ("train", "validation"):
            raise ValueError(f"split is {split!r}; allowed: train, validation")
        held_out = self._evaluated["validation"]
        count = (self.training_examples or 0) if split == "train" else len(held_out["tokens"])
        if batch_size > count:
            raise ValueError(f"batch_size is {batch_size}; allowed: 1 to the {count} windows")
        full = count // batch_size
        if split == "validation":
            parts = zip(*(tensor.split(batch_size) for tensor in held_out.values()), strict=True)
            return (dict(zip(held_out, part, strict=True)) for part in itertools.islice(parts, start, full))
        source = np.random.default_rng(seed)
        starts = self.text.draw("train", self.settings.context, full * batch_size, source).reshape(full, batch_size)
        return map(self._gathered, torch.from_numpy(starts[start:]).to(self._held["tokens"].device))

    def held_on(self, device: str) -> Self:
        """Return the workload with its tokens and labels on a device, where batches then lie."""
        held = copy.copy(self)
        held._held = {name: tensor.to(device) for name, tensor in self._held.items()}
        return held

    def _gathered(self, starts: torch.Tensor) -> Batch:
        """Return the windows that begin at these places (B,), with their labels."""
        held = self._held
        within = torch.arange(self.settings.context, device=held["tokens"].device)  # (T,)
        places = starts[:, None] + within  # (B, T)
        leaves = within[:, None] + held["ahead"][places] >= len(within)  # (B, T, H)
        return {"tokens": held["tokens"][places], "labels": held["labels"][places].masked_fill(leaves, NO_LABEL)}

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Mean cross entropy in nats of the labels of a hop, averaged over hops, on the model's device."""
        labels = batch["labels"]
        counts = (labels != NO_LABEL).sum((0, 1)).clamp(min=1)  # (H,); a batch may lack labels of a hop
        return (_losses(model(batch["tokens"]), labels) / counts).mean()

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> Evaluation:
        """Return ``loss`` in nats and ``accuracy`` in percent on the text for choosing, ``test_…`` for reporting.

        Each is the mean over hops. With several hops the accuracy of each has a name of its own, ``accuracy_hop_1``.
        """
        device = next(model.parameters()).device
        was_training = model.training
        model.eval()
        step = max(_EVALUATED_WORDS // self.settings.context, 1)
        metrics: dict[str, float] = {}
        try:
            for side, prefix in _EVALUATED.items():
                losses, right = torch.zeros(2, self.settings.hops, dtype=torch.float64)
                for first in range(0, len(self._windows[side]), step):
                    tokens, labels = (
                        torch.from_numpy(every[side][first : first + step]).to(device)
                        for every in (self._windows, self._labels)
                    )
                    scores = model(tokens).float()
                    losses += _losses(scores, labels).cpu()
                    right += (scores.argmax(-1) == labels).sum((0, 1)).cpu()
                counts = torch.from_numpy((self._labels[side] != NO_LABEL).sum((0, 1)))
                accuracies = 100 * right / counts
                metrics[f"{prefix}loss"] = float((losses / counts).mean())
                metrics[f"{prefix}accuracy"] = float(accuracies.mean())
                if self.settings.hops > 1:
                    hops = enumerate(accuracies.tolist(), 1)
                    metrics |= {f"{prefix}accuracy_hop_{hop}": accuracy for hop, accuracy in hops}
        finally:
            model.train(was_training)
        return Evaluation(metrics, examples=int((self._labels["validation"] != NO_LABEL).sum()))


def _losses(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the summed cross entropy (H,) of the labels (B, T, H) of each hop."""
    losses = F.cross_entropy(scores.flatten(0, 2), labels.flatten(), ignore_index=NO_LABEL, reduction="none")
    return losses.view_as(labels).sum((0, 1))


WORKLOAD = PointerWorkload
