"""The workload: rows of the corpus, the loss at every token, held-out text for choosing and for reporting."""

import functools
import hashlib
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
from bench.workloads.code.workload import thinned
from bench.workloads.text.corpus import Ids, TextCorpus, corpus_of
from bench.workloads.text.model import CausalLanguageModel, TextSettings
from bench.workloads.text.ngrams import NGrams, Reached
from bench.workloads.text.saved import start_of
from comera.protocol import has_values

_EVALUATED_TOKENS = 16_384  # of a batch of an evaluation
EQUAL = "equal-size n-gram"  # the probe that may store as many numbers as the dense model, or as asked for
_PROBES = "2"  # version of what is cached of them


class TextWorkload(BaseWorkload):
    """Causal language model over a folder of text files, decided in minutes.

    Batches are ``tokens``, int64 (B, context + 1); all but the first of a row are predicted.
    """

    name, Settings, training_plan = "text", TextSettings, Budget
    datasets: ClassVar[tuple[str, ...]] = ()
    settings: TextSettings
    loss_unit = "nats"

    def __init__(self, settings: TextSettings, corpus: TextCorpus, start: str | None = None) -> None:
        self.settings, self.corpus = settings, corpus
        self.dataset, self.data_hash = corpus.name, corpus.data_hash
        self.start: Mapping[str, torch.Tensor] | None = None
        if start is not None:
            self.start, weights_hash = start_of(start, settings)
            self.dataset += f"-from-{weights_hash[:8]}"
            self.data_hash = hashlib.sha256(f"{corpus.data_hash} {weights_hash}".encode()).hexdigest()
        for side in ("train", "validation", "test"):
            if len(getattr(corpus, side)) <= settings.context:
                raise DataError(
                    f"the {side} text of {corpus.name} has {len(getattr(corpus, side)):,} tokens, no more than "
                    f"text.context={settings.context}; give more text, or a shorter context."
                )
        # Rows begin up to a context later from epoch to epoch, so that this many are there in any of them.
        least = (len(corpus.train) - 1 - self._latest_start) // settings.context
        self.training_examples = self.examples_per_epoch = least
        blocks = settings.blocks
        number = NUMBERS[blocks] if blocks < len(NUMBERS) else blocks
        epoch = f"An epoch is one pass over {self.training_examples:,} rows of {settings.context} tokens."
        self.words = Words(f"{number}-block GPT of width {settings.width}", epoch, "row", "held-out text")

    @classmethod
    def open(cls, settings: TextSettings, data: Data, check: bool) -> Self:  # noqa: ARG003 - all is read to be hashed
        """Return the workload on the files of ``data_folder``, or on the sources of installed packages.

        Raises DataError: no text, or ``dataset`` names another than there is.
        """
        if data.fetch:
            raise DataError("fetch is true, but workload=text downloads nothing; use fetch=false.")
        if data.data_folder is not None and settings.packages != TextSettings.packages:
            raise DataError(
                f"text.packages is {','.join(settings.packages)}, but data_folder={data.data_folder} is read in their "
                "place; leave out one of both."
            )
        corpus = _read(data.data_folder, settings.files, settings.packages, settings.tokens)
        workload = cls(settings, corpus, data.start)
        if data.dataset not in ("auto", workload.dataset):
            raise DataError(
                f"dataset is {data.dataset!r}; the corpus on this machine is: {workload.dataset} (or auto)."
            )
        return workload

    @property
    def _latest_start(self) -> int:
        """Return the last place where the first training row may begin; 0 in a text of hardly more than a row."""
        context = self.settings.context
        return context - 1 if len(self.corpus.train) > 2 * context else 0

    @property
    def sequence_length(self) -> int:  # type: ignore[override]
        return self.settings.context

    @functools.cached_property
    def metric(self) -> Metric:  # type: ignore[override]
        """The loss on the text for choosing; the probe is an n-gram model of as many numbers as the dense model has."""
        found = self._probes()
        guess, probe = found["unigram"].validation, found[EQUAL].validation
        return Metric("loss", "validation loss", "nats", False, guess, probe, f"{EQUAL} model")

    def probes(self) -> Mapping[str, Evaluation]:
        """Return n-gram models: unigrams, the best, the best of equal size, and that of as many tokens as seen."""
        tokens = self._windows[1][:, 1:].size
        return {
            f"{name} model": Evaluation(
                {"loss": one.validation, "test_loss": one.test, "order": one.order, "numbers": one.numbers},
                examples=tokens,
            )
            for name, one in self._probes().items()
        }

    def _probes(self) -> dict[str, Reached]:
        settings, vocabulary = self.settings, self.corpus.vocabulary
        numbers = settings.probe_numbers
        if numbers is None:
            with torch.device("meta"):
                numbers = sum(parameter.numel() for parameter in self.build().parameters())
        sizes = (settings.context, settings.validation_tokens, settings.test_tokens, numbers, settings.probe_tokens)
        folder = cache_folder() / "text"
        path = folder / f"probes-{_PROBES}-{self.data_hash[:32]}-{'-'.join(map(str, sizes))}.json"
        try:
            if path.exists():
                return {name: Reached(*row) for name, row in json.loads(path.read_text()).items()}
            if sys.stderr.isatty():
                print(f"text: counting the n-grams of {len(self.corpus.train):,} tokens, once", file=sys.stderr)
            models = NGrams(self.corpus.train, vocabulary, *self._windows)
            found = {"unigram": models.best(most=1), "best n-gram": models.best(), EQUAL: models.best(numbers)}
            if (seen := settings.probe_tokens) is not None:
                some = thinned(self.corpus.train, settings.context, seen)
                found[f"n-gram of {seen:,} tokens"] = NGrams(some, vocabulary, *self._windows).best()
            folder.mkdir(parents=True, exist_ok=True)
            write_whole({path: json.dumps(found).encode()})
        except OSError as error:
            raise DataError(f"the cache {folder} cannot be used ({error}); name another in COMERA_CACHE.") from None
        return found

    def build(self) -> CausalLanguageModel:
        model = CausalLanguageModel(self.settings, self.corpus.vocabulary)
        if self.start is not None and has_values(model):
            model.load_state_dict(self.start)
        return model

    def targets(self) -> dict[str, Role]:
        """Return the matrices of the blocks; embeddings and output layer stay dense in every arm."""
        layers: dict[str, Role] = {f"attention.{name}": "attention" for name in ("query", "key", "value", "output")}
        layers |= {f"feed_forward.{name}": "feed_forward" for name in ("expand", "contract")}
        return {f"blocks.{n}.{name}": role for n in range(self.settings.blocks) for name, role in layers.items()}

    @functools.cached_property
    def _windows(self) -> tuple[Ids, Ids]:
        """Rows (R, context + 1) of the text for choosing and of that for reporting, evenly spread."""
        settings, corpus = self.settings, self.corpus
        sides = (corpus.validation, settings.validation_tokens), (corpus.test, settings.test_tokens)
        rows = []
        for stream, tokens in sides:
            count = max(min(tokens, len(stream) - 1) // settings.context, 1)
            starts = np.linspace(0, len(stream) - 1 - settings.context, count).astype(int)
            rows.append(np.stack([stream[start : start + settings.context + 1] for start in starts]))
        return rows[0], rows[1]

    def batches_per_epoch(self, batch_size: int) -> int:
        """Return the number of full batches in an epoch."""
        return (self.training_examples or 0) // batch_size

    def batches(self, split: str, batch_size: int, seed: int, static: bool, start: int = 0) -> Iterator[Batch]:  # noqa: ARG002
        """Yield ``split`` once in full batches; ``seed`` decides the starts of training rows, and their order."""
        check_batch_size(batch_size)
        context = self.settings.context
        if split == "validation":
            stream, starts = self._windows[0].ravel(), np.arange(len(self._windows[0])) * (context + 1)
        elif split == "train":
            stream, source = self.corpus.train, np.random.default_rng(seed)
            offset = int(source.integers(0, self._latest_start + 1))
            starts = offset + context * source.permutation((len(stream) - 1 - offset) // context)
        else:
            raise ValueError(f"split is {split!r}; allowed: train, validation")
        if batch_size > len(starts):
            raise ValueError(f"batch_size is {batch_size}; allowed: 1 to the {len(starts)} rows of {context} tokens")
        within = np.arange(context + 1)
        return (
            _batch(stream[starts[first * batch_size : (first + 1) * batch_size, None] + within])
            for first in range(start, len(starts) // batch_size)
        )

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Mean cross entropy in nats of every token but the first of a row, on the model's device."""
        tokens = batch["tokens"]
        return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> Evaluation:
        """Return ``loss`` on the text for choosing and ``test_loss`` on that for reporting, in nats per token."""
        device = next(model.parameters()).device
        was_training = model.training
        model.eval()
        step = max(_EVALUATED_TOKENS // self.settings.context, 1)
        means = []
        try:
            for rows in self._windows:
                total = 0.0
                for first in range(0, len(rows), step):
                    batch = {name: each.to(device) for name, each in _batch(rows[first : first + step]).items()}
                    total += float(self.loss(model, batch)) * batch["tokens"][:, 1:].numel()
                means.append(total / rows[:, 1:].size)
        finally:
            model.train(was_training)
        return Evaluation({"loss": means[0], "test_loss": means[1]}, examples=self._windows[0][:, 1:].size)


def _batch(rows: Ids) -> Batch:
    return {"tokens": torch.from_numpy(rows.astype(np.int64))}


@functools.lru_cache(maxsize=8)
def _read(folder: str | None, pattern: str, packages: tuple[str, ...], tokens: str) -> TextCorpus:
    """Return the corpus, read once per process."""
    return corpus_of(folder, pattern, packages, tokens)


WORKLOAD = TextWorkload
