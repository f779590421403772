"""Training runs of arms in several precisions, per device and dataset: what each reached, and how far apart they are.

FP8's products are compared with the same arm in FP32, storage in FP8 with the same arm that stores nothing so, in the
same precision: what differs is then the arithmetic alone, and seeds and validation examples are paired. An arm that
keeps ranks is a control in FP32: its losses are the plain arm's but for rounding, so that what lower precisions change
is to be seen above what it differs by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.core.record import Record
from figures.records.metric import Metric, Reached, Score, difference, score
from figures.records.select import PRECISIONS, by_arm, by_device, newest, oldest_first, workload_settings
from figures.records.studies import Runs, newest_probes
from figures.records.training import curve_of, metric_of, reached, stages_of
from figures.text import one_line

STORED = "_fp8"  # what the variants of arms end with that store activations in FP8
REFORMED = ("lean", "lean_block")  # variants whose losses are those of their arm but for rounding
STARTS = ("orthogonal", "spectral")  # how variants begin whose linear layers start otherwise than published
FP32 = "fp32"


@dataclass(frozen=True, eq=False)
class PrecisionLine:
    """An arm in a precision, over its seeds.

    Args:
        runs: by seed; failed ones are among them.
    """

    arm: str
    precision: str
    runs: dict[int, Record]

    @property
    def stores(self) -> bool:
        return self.arm.endswith(STORED)

    @property
    def name(self) -> str:
        return f"{self.arm}, {self.precision}"

    @property
    def finished(self) -> dict[int, Record]:
        return {seed: run for seed, run in self.runs.items() if run.status == "ok"}

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
        return [
            f"seed {seed}: {one_line(f'{run.status}: {run.message}' if run.status != 'ok' else run.message)}"
            for seed, run in sorted(self.runs.items())
            if run.message
        ]

    @property
    def compared_with(self) -> tuple[str, str] | None:
        """Return the arm and the precision to compare with; None for FP32."""
        if self.stores or self.is_control:
            method, start, _ = self._parts
            return ":".join(filter(None, (method, start))), self.precision
        return None if self.precision == FP32 else (self.arm, FP32)

    @property
    def is_control(self) -> bool:
        """Return whether rounding in FP32 is all that differs from the line to compare with."""
        return self._parts[2] in REFORMED and self.precision == FP32

    @property
    def as_published(self) -> bool:
        """Return whether the cores start as published."""
        return not self._parts[1]

    @property
    def _parts(self) -> tuple[str, str, str]:
        """The arm's method, the start of its linear layers where that is not the usual one, and what else its variant
        says."""
        method, _, variant = self.arm.partition(":")
        start = next((start for start in STARTS if variant.startswith(start)), "")
        return method, start, variant.removeprefix(start).removeprefix("_")

    def ends(self, metric: Metric) -> dict[int, Reached]:
        """Return a metric at the end of its runs, by seed."""
        leading = {seed: metric_of(run).name for seed, run in self.finished.items()}
        return {
            seed: curve_of(run)[-1] if leading[seed] == metric.name else reached(run.samples["curve"][-1], metric.name)
            for seed, run in self.finished.items()
        }

    def reached(self, metric: Metric) -> Score | None:
        ends = self.ends(metric)
        return score(metric, ends) if ends else None


@dataclass(frozen=True, kw_only=True)
class Precisions(Runs):
    """One page: a device, a dataset and a model."""

    lines: tuple[PrecisionLine, ...]

    def less(self, line: PrecisionLine, metric: Metric) -> Score | None:
        """Return the paired difference to the line that one is compared with; None without that line."""
        other = next((one for one in self.lines if (one.arm, one.precision) == line.compared_with), None)
        return None if other is None else difference(metric, line.ends(metric), other.ends(metric))


def select(records: Sequence[Record]) -> list[Precisions]:
    """Return a page per device, dataset and model; of runs of several lengths the longest."""
    probes = newest_probes(records)
    pages = []
    for device, of_device in by_device([record for record in records if record.measure == "train"]):
        by_page: dict[tuple[str, ...], list[Record]] = {}
        for record in of_device:
            by_page.setdefault(_page(record), []).append(record)
        for words, here in sorted(by_page.items()):
            workload, dataset, *_ = words
            steps = max(map(_steps, here))
            runs = newest([one for one in here if _steps(one) == steps], lambda r: (r.arm, r.precision, r.seed))
            found = sorted({(arm, precision) for arm, precision, _ in runs}, key=lambda k: (by_arm(k[0]), _place(k[1])))
            lines = tuple(
                PrecisionLine(
                    arm, precision, {seed: run for (a, p, seed), run in runs.items() if (a, p) == (arm, precision)}
                )
                for arm, precision in found
            )
            shorter = sum(_steps(one) < steps for one in here)
            left_out = (f"{shorter} run(s) of fewer than {steps:,} steps are left out.",) if shorter else ()
            pages.append(
                Precisions(
                    **device,
                    shown=oldest_first(runs.values()),
                    place=", ".join(words),
                    suffix=words,
                    left_out=left_out,
                    experiment=here[0].experiment,
                    dataset=dataset,
                    probe=probes.get((dataset, workload)),
                    lines=lines,
                )
            )
    return pages


def _page(record: Record) -> tuple[str, ...]:
    """Return what all runs of a page share, as parts of its file names."""
    model = workload_settings(record)
    size = [f"{model['layers']}x{model['width']}"] if {"layers", "width"} <= set(model) else []
    return record.workload, record.dataset, *size


def _place(precision: str) -> int:
    return PRECISIONS.index(precision) if precision in PRECISIONS else len(PRECISIONS)


def _steps(record: Record) -> int:
    return sum(int(stage["steps"]) for stage in stages_of(record))
