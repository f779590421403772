"""Training runs of arms in several precisions, per device and dataset: what each reached, and how far apart they are.

FP8's products are compared with the same arm in FP32, storage in FP8 with the same arm that stores nothing so, in the
same precision: what differs is then the arithmetic alone, and seeds and validation examples are paired. An arm that
keeps ranks is a control in FP32: its losses are the plain arm's but for rounding, so that what lower precisions change
is to be seen above what it differs by.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.core.record import Record
from figures import frame
from figures.arms import by_arm, by_precision
from figures.frame import Records
from figures.records.metric import Metric, Score
from figures.records.seeds import Seeds
from figures.records.studies import Runs, newest_probes
from figures.records.training import stages_of
from figures.text import one_line

STORED = "_fp8"  # what the variants of arms end with that store activations in FP8
REFORMED = ("lean", "lean_block")  # variants whose losses are those of their arm but for rounding
STARTS = ("orthogonal", "spectral")  # how variants begin whose linear layers start otherwise than published
FP32 = "fp32"


@dataclass(frozen=True, eq=False)
class PrecisionLine(Seeds):
    """An arm in a precision, over its seeds."""

    arm: str
    precision: str

    @property
    def stores(self) -> bool:
        return self.arm.endswith(STORED)

    @property
    def name(self) -> str:
        return f"{self.arm}, {self.precision}"

    @property
    def arithmetic(self) -> str:
        """Return the arithmetic that ran, as the records name it."""
        words = sorted({run.arithmetic for run in self.finished.values()} - {""})
        if (stored := self.stored_error) is not None:
            words.append(f"kept in FP8 with an error of {stored:.1%}")
        return "; ".join(words)

    @property
    def stored_error(self) -> float | None:
        """Return the largest relative error of a tensor kept in FP8; None where none is."""
        rows = [row["error"] for run in self.finished.values() for row in run.samples.get("stored", ())]
        return max(rows, default=None)

    @property
    def remarks(self) -> list[str]:
        """Return a remark per seed that failed or has a message."""
        runs = [(seed, run) for seed, run in sorted(self.runs.items()) if run and run.message]
        words = [f"{run.status}: {run.message}" if run.status != "ok" else run.message for _, run in runs]
        return [f"seed {seed}: {one_line(text)}" for (seed, _), text in zip(runs, words, strict=True)]

    @property
    def parts(self) -> tuple[str, str, str]:
        """Return the method, an unusual start of the linear layers, and the rest of the variant.

        >>> PrecisionLine(Metric("loss", "loss"), {}, "comera:spectral_lean", "fp32").parts
        ('comera', 'spectral', 'lean')
        """
        method, _, variant = self.arm.partition(":")
        start = next((start for start in STARTS if variant.startswith(start)), "")
        return method, start, variant.removeprefix(start).removeprefix("_")

    @property
    def compared_with(self) -> tuple[str, str] | None:
        """Return the arm and the precision to compare with; None for FP32."""
        if self.stores or self.is_control:
            return ":".join(filter(None, self.parts[:2])), self.precision
        return None if self.precision == FP32 else (self.arm, FP32)

    @property
    def is_control(self) -> bool:
        """Return whether rounding in FP32 is all that differs from the line to compare with."""
        return self.parts[2] in REFORMED and self.precision == FP32

    @property
    def as_published(self) -> bool:
        """Return whether the cores start as published."""
        return not self.parts[1]


@dataclass(frozen=True, kw_only=True, eq=False)
class Precisions(Runs):
    """One page: a device, a dataset and a model."""

    lines: tuple[PrecisionLine, ...]

    def less(self, line: PrecisionLine, metric: Metric | None = None) -> Score | None:
        """Return the paired difference to the line that one is compared with; None without that line."""
        found = (one for one in self.lines if (one.arm, one.precision) == line.compared_with)
        return line.less(next(found, None), metric)


#: The columns of a run.
_RUN = ("arm", "precision", "seed")


def select(records: Records) -> list[Precisions]:
    """Return a page per device, dataset and model; of runs of several lengths the longest."""
    df = frame.of(records)
    probes, trained = newest_probes(df), df[df["measure"] == "train"]
    models: list[Any] = [_model(record) for record in trained["record"]]
    trained = trained.assign(model=models, steps=[_steps(record) for record in trained["record"]])
    pages = []
    for device, mine in frame.by_device(trained):
        for words, here in frame.groups(mine, "model"):
            workload, dataset, *_ = words
            steps = here["steps"].max()
            runs = frame.newest(here[here["steps"] == steps], _RUN)
            shorter = int((here["steps"] < steps).sum())
            about: dict[str, Any] = {
                **device,
                "df": frame.oldest_first(runs),
                "place": ", ".join(words),
                "suffix": words,
                "left_out": (f"{shorter} run(s) of fewer than {steps:,} steps are left out.",) if shorter else (),
                "experiment": here["experiment"].iloc[0],
                "dataset": dataset,
                "probe": probes.get((dataset, workload)),
            }
            metric = Runs(**about).metric
            lines = [
                PrecisionLine(metric, dict(zip(some["seed"], some["record"], strict=True)), arm, precision)
                for (arm, precision), some in frame.groups(runs, ["arm", "precision"])
            ]
            lines.sort(key=lambda line: (by_arm(line.arm), by_precision(line.precision)))
            pages.append(Precisions(**about, lines=tuple(lines)))
    return pages


def _model(record: Record) -> tuple[str, ...]:
    """Return what all runs of a page share, as parts of its file names."""
    model = frame.settings_of(record, "workload_settings")
    size = [f"{model['layers']}x{model['width']}"] if {"layers", "width"} <= set(model) else []
    return record.workload, record.dataset, *size


def _steps(record: Record) -> int:
    return sum(int(stage["steps"]) for stage in stages_of(record))
