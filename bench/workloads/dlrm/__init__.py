"""The workload ``dlrm``: will a user click? Meta's recommendation model on Criteo's click logs, or on synthetic ones.

``dataset`` is ``criteo`` (a folder with ``train.txt``, see :mod:`bench.workloads.dlrm.criteo`), ``criteo_8k`` (under
COMERA_DATA; for the reader's sake, too few lines to learn from), or one of the two synthetic logs
(:mod:`bench.workloads.dlrm.synthetic`), of which records never decide a claim of the paper.

A batch is consecutive lines; batches of an epoch come in random order.
"""

import functools
import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from bench.data.corpus import DataError
from bench.data.nli import DATA_VARIABLE
from bench.protocol import Batch, Data, Evaluation, Metric, Role, Words
from bench.workloads.base import BaseWorkload, check_batch_size
from bench.workloads.dlrm import scores
from bench.workloads.dlrm.click_log import ClickLog, Lines
from bench.workloads.dlrm.criteo import SOURCE, CriteoLog, prepare, target_of
from bench.workloads.dlrm.model import DLRM, TABLES, TRAINING_LINES, DLRMSettings
from bench.workloads.dlrm.synthetic import TEACHERS, SyntheticLog

_EVALUATED = 16_384  # lines at a time
_PROBE_LINES = 100_000  # on which the probe is fitted, and others on which it is tried


class DLRMWorkload(BaseWorkload):
    """Recommendation model (DLRM) on Criteo's click logs or synthetic ones.

    >>> workload = DLRMWorkload.open(DLRMSettings("small", training_lines=100), Data("synthetic_low_rank"), False)
    >>> batch = next(workload.batches("train", 10, 0, static=True))
    >>> batch["counts"].shape, batch["c1"].shape, len(batch)
    (torch.Size([10, 13]), torch.Size([10, 1]), 28)
    """

    name, Settings = "dlrm", DLRMSettings
    loss_unit = "nats"
    datasets = ("criteo", "criteo_8k", *TEACHERS)
    settings: DLRMSettings

    def __init__(self, settings: DLRMSettings, log: ClickLog) -> None:
        self.settings, self.log, self.dataset = settings, log, log.name
        self.training_examples = log.size("train")
        self.examples_per_epoch = TRAINING_LINES[settings.tables]
        identity = (log.content_hash, settings.numbering, settings.rows, settings.validation_lines)
        self.data_hash = hashlib.sha256(repr(identity).encode()).hexdigest()
        source = {"kaggle": "six of the seven days of Criteo's Kaggle log"}.get(
            settings.tables, "23 of the 24 days of Criteo's terabyte log"
        )
        self.words = Words(
            f"DLRM with {TABLES} tables of {settings.dim} columns",
            f"An epoch is {self.examples_per_epoch:,} lines, {source}, whatever data is at hand.",
            "line",
        )

    @classmethod
    def open(cls, settings: DLRMSettings, data: Data, check: bool) -> Self:
        """Return the workload on a log; ``auto`` is a real log if a folder is given, else the synthetic low-rank one.

        Raises DataError: an unknown dataset, a folder without a log, or a log without enough lines.
        """
        name = data.dataset
        if name == "auto":
            name = "criteo" if data.data_folder else TEACHERS[0]
        if name not in cls.datasets:
            raise DataError(f"dataset is {name!r}; workload={cls.name} has: {', '.join(cls.datasets)}.")
        if name in TEACHERS:
            if data.data_folder:
                raise DataError(f"data_folder is {data.data_folder!r}, but {name} is drawn; use dataset=criteo.")
            held_out = settings.validation_lines
            sizes = {"train": settings.training_lines, "validation": held_out, "test": held_out}
            return cls(settings, SyntheticLog(name, settings.rows, sizes, settings.numbering == "hash"))
        folder = cls._folder(name, data.data_folder)
        target = target_of(folder)
        prepare(folder, target, lambda text: print(text, file=sys.stderr) if check else None)
        return cls(settings, CriteoLog(name, target, settings.rows, settings.numbering == "hash"))

    @staticmethod
    def _folder(name: str, given: str | None) -> Path:
        """Return the folder of a dataset's log; raises DataError where no folder is named."""
        if given:
            return Path(given).expanduser()
        if name == "criteo":
            raise DataError(f"dataset is 'criteo', which needs data_folder=FOLDER with its {SOURCE}.")
        if not os.environ.get(DATA_VARIABLE):
            raise DataError(f"dataset is {name!r}, which needs the folder that {DATA_VARIABLE} names.")
        return Path(os.environ[DATA_VARIABLE]) / name

    def build(self) -> DLRM:
        return DLRM(self.settings)

    def targets(self) -> dict[str, Role]:
        """Return the largest tables and the wide linear layers, in the order of the forward pass."""
        with torch.device("meta"):
            modules = dict(self.build().named_modules())
        wide = self.settings.compressed_width
        linear = [name for name, one in modules.items() if isinstance(one, nn.Linear) and min(one.weight.shape) > wide]
        rows = {name: one.num_embeddings for name, one in modules.items() if isinstance(one, nn.EmbeddingBag)}
        largest = set(sorted(rows, key=lambda name: -rows[name])[: self.settings.compressed_tables])
        roles: dict[str, Role] = dict.fromkeys(linear, "feed_forward")
        return roles | dict.fromkeys([name for name in rows if name in largest], "embedding")

    def batches(self, split: str, batch_size: int, seed: int, static: bool, start: int = 0) -> Iterator[Batch]:
        """Yield a split once: ``counts`` (B, 13), row numbers ``c1`` to ``c26`` (B, 1), and ``clicks`` (B,).

        Training batches come in an order of ``seed``; with ``static`` a last one that is not full is left out.
        """
        check_batch_size(batch_size)
        lines = self.log.size(split)
        if split == "train" and static and batch_size > lines:
            raise ValueError(f"batch_size is {batch_size}; allowed: 1 to the {lines} training rows")
        number = lines // batch_size if split == "train" and static else -(-lines // batch_size)
        order = np.random.default_rng(seed).permutation(number) if split == "train" else np.arange(number)
        for place in order[start:].tolist():
            yield as_batch(self.log.lines(split, place * batch_size, min((place + 1) * batch_size, lines)))

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Mean binary cross entropy of a batch that lies on the model's device."""
        return F.binary_cross_entropy_with_logits(_scores(model, batch), batch["clicks"])

    @functools.cached_property
    def metric(self) -> Metric:  # type: ignore[override]
        """Normalised cross entropy, with what the probe and the base rate reach."""
        size = self.log.size
        held_out = min(size("validation"), self.settings.validation_lines, _PROBE_LINES)
        lines = [
            self.log.lines("train", 0, min(size("train"), _PROBE_LINES)),
            self.log.lines("validation", 0, held_out),
        ]
        probe = scores.probe(*((part.counts, part.clicks) for part in lines))["nce"]
        words = "logistic regression on the counts"
        return Metric("nce", "normalised cross entropy", "", False, guess=1.0, probe=probe, probe_text=words)

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> Evaluation:
        """Return the metrics of :mod:`bench.workloads.dlrm.scores` on the validation lines; the mode stays."""
        device = next(model.parameters()).device
        lines = min(self.log.size("validation"), self.settings.validation_lines)
        was_training, found, clicks = model.training, [], []
        model.eval()
        try:
            for first in range(0, lines, _EVALUATED):
                part = self.log.lines("validation", first, min(first + _EVALUATED, lines))
                batch = {name: tensor.to(device) for name, tensor in as_batch(part).items()}
                found.append(_scores(model, batch).double().cpu().numpy())
                clicks.append(part.clicks)
        finally:
            model.train(was_training)
        reached, answers = np.concatenate(found), np.concatenate(clicks)
        ceiling = {f"teacher_{name}": value for name, value in self.log.ceiling.items()}
        found_metrics = {**scores.metrics(reached, answers), **ceiling}
        return Evaluation(found_metrics, None, lines, scores.groups(reached, answers))


def as_batch(lines: Lines) -> Batch:
    """Return lines as CPU tensors; each table has its own indices, so that their distinct rows can be counted."""
    categories = {
        f"c{place + 1}": torch.from_numpy(rows)[:, None] for place, rows in enumerate(lines.categories.copy())
    }
    clicks = torch.from_numpy(lines.clicks.astype(np.float32))
    return {"counts": torch.from_numpy(lines.counts), **categories, "clicks": clicks}


def _scores(model: nn.Module, batch: Batch) -> torch.Tensor:
    return model(batch["counts"], [batch[f"c{place + 1}"] for place in range(TABLES)])


WORKLOAD = DLRMWorkload
