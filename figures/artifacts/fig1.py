"""Fig. 1: time and peak memory of every arm, by batch size; a page per device, precision and toggles.

A device has a page per precision and toggles that anything was timed with, and one of plain FP32 steps where there are
predictions in FP32. A prediction, which is of plain steps, belongs to every page of its precision. The records of
another experiment make the same page for whatever arms and batch sizes they have.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pandas as pd
from matplotlib.figure import Figure

from bench.core.record import Record
from figures.artifact import Artifact
from figures.claims import ratio
from figures.columns import across, frame, time_column, unit_of
from figures.page import bars
from figures.page.captions import beside
from figures.page.drawn import Caption
from figures.page.footnotes import Footnotes
from figures.records import cells
from figures.records.cells import TARGETS
from figures.records.select import (
    ARMS,
    CAPTURED,
    COMERA,
    LOW_RANK,
    PLAIN,
    Toggles,
    by_arm,
    by_device,
    method_settings,
    newest,
    timing_setting,
)

EXPERIMENTS = ("fig1", "fig1_memory")

#: The paper's batch sizes, and those timed where there is no GPU.
PAPER_BATCHES = (1, 32, 64, 128)
CPU_BATCHES = (1, 8, 16)

#: An arm at a batch size.
Cell = tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class Fig1Page(cells.TimesAndMemory):
    experiments: ClassVar = EXPERIMENTS
    toggles: Toggles
    uncaptured: Mapping[Cell, Record] = field(default_factory=dict)  # times without CUDA Graph of what is refused it

    @property
    def arms(self) -> list[str]:
        found = {arm for arm, _ in self.timed} | {arm for _, (arm, _) in self.predicted}
        return sorted(found | set(ARMS if self.is_papers else ()), key=by_arm)

    @property
    def time_batches(self) -> list[int]:
        grid = {"cuda": PAPER_BATCHES, "cpu": CPU_BATCHES}[self.kind] if self.is_papers else ()
        return sorted({*grid, *(batch for _, batch in self.timed)})

    @property
    def memory_batches(self) -> list[int]:
        """Those predicted; on the paper's page not those of times alone, which hold a prediction too."""
        found = {cell[1] for (_, cell), one in self.predicted.items() if not self.is_papers or one.measure == "predict"}
        return sorted(found | set(PAPER_BATCHES if self.is_papers else ()))

    @property
    def targets(self) -> list[str]:
        return [goal for goal in TARGETS if self.is_papers or any(target == goal for target, _ in self.predicted)]


def _cell(record: Record) -> Cell:
    return record.arm, record.batch_size


def _page(records: Sequence[Record], device: Mapping[str, Any], toggles: Toggles) -> Fig1Page:
    runs = [record for record in records if record.measure == "run"]
    plans = [record for record in records if record.measure == "predict"]
    page = cells.Select(_cell)(toggles.among(records), Fig1Page, **device, **toggles.page)
    left_out = page.left_out
    if toggles == PLAIN:  # predictions that are on no page are counted here
        timed = {PLAIN.precision, *(run.precision for run in runs)}
        if others := sum(plan.precision not in timed for plan in plans):
            left_out += (f"{others} prediction(s) in a precision that nothing was timed in are left out.",)
    return replace(page, uncaptured=_uncaptured(page, runs), left_out=left_out)


def _uncaptured(page: Fig1Page, runs: Sequence[Record]) -> dict[Cell, Record]:
    """By cell that CUDA Graph is refused, the newest record of the same settings that was timed without it."""

    def setting(record: Record) -> tuple[Any, ...]:
        return _cell(record), timing_setting(record), method_settings(record)

    refused = [setting(one) for one in page.timed.values() if one.status == "unsupported" and one.cuda_graph]
    eager = replace(page.toggles, cuda_graph=False)
    return newest(
        [one for one in runs if one.status == "ok" and Toggles.of(one) == eager and setting(one) in refused], _cell
    )


def select(records: Sequence[Record]) -> list[Fig1Page]:
    """A selection per device, precision and toggles, plain FP32 steps first."""
    pages = []
    for device, mine in by_device(records):
        toggles = {Toggles.of(record) for record in mine if record.measure == "run"}
        if any(record.measure == "predict" and record.precision == PLAIN.precision for record in mine):
            toggles.add(PLAIN)
        pages += [_page(mine, device, one) for one in sorted(toggles, key=lambda one: one.rank)]
    return [page for page in pages if page.shown]


def table(page: Fig1Page) -> pd.DataFrame:
    """Every arm at every batch size that is timed or predicted, by batch size, then arm."""
    lines = []
    for batch in sorted({*page.time_batches, *page.memory_batches}):
        for arm in page.arms:
            cell, reference = (arm, batch), (COMERA, batch)
            time = page.time_fields(cell, reference, COMERA) if batch in page.time_batches else page.no_time(COMERA)
            line = {
                "device": page.device,
                "arm": arm,
                "batch_size": batch,
                "dataset": getattr(page.timed.get(cell), "dataset", ""),
                **time,
            }
            for target in page.targets:
                line |= page.memory_fields(target, cell, reference, COMERA, batch in page.memory_batches)
            lines.append(line | page.last_fields(cell, page.targets))
    return frame(lines)


def shown(page: Fig1Page, table: pd.DataFrame) -> pd.DataFrame:
    """A line per arm: its time and peak memory at every batch size, with their ratios to CoMERA's."""
    values = {time_column(page.per): f"time_over_{COMERA}"}
    values |= {f"{target}_peak_mib": f"{target}_over_{COMERA}" for target in page.targets if target == page.target}
    return across(table, "arm", "batch_size", values)


def draw(page: Fig1Page, table: pd.DataFrame, caption: Caption) -> Figure:
    footnotes, (unit, scale) = Footnotes(), unit_of(table, page.per)
    timed = table[table["batch_size"].isin(page.time_batches)]
    predicted = table[table["batch_size"].isin(page.memory_batches)]
    times = bars.by_batch(timed, lambda line: bars.time(line, page.per, COMERA, scale, footnotes))
    legend = {
        "steps, CoMERA": "training steps, CoMERA",
        "steps": "training steps, other arms",
        "rare": "rare events, amortised (GaLore's SVD, LTE's merge)",
    }
    found = [bars.time_band(f"Time per {page.per} {{}}, in {unit}", page.kind, times, legend)]
    for target in page.targets:
        measured = target == page.kind == "cuda"

        def bar(line: bars.Line, target: str = target, measured: bool = measured) -> bars.Bar:
            return bars.memory(line, target, COMERA, footnotes, measured)

        found.append(bars.band_of_memory(target, bars.by_batch(predicted, bar), measured))
    foot = (*footnotes.lines(), *caption.of_picture, *caption.notes)
    return bars.draw_bars(caption.title, caption.facts, page.arms, found, foot)


def forms(page: Fig1Page, *methods: str) -> list[str]:
    """The arms of the page that are forms of one of these methods: variants of it, checkpointed or not."""
    return [arm for arm in page.arms if re.split("[@:+]", arm)[0] in methods]


def sized_rivals(page: Fig1Page, batch: int) -> list[str]:
    """The forms of low rank that hold as many parameters as CoMERA within 2 %, by their records at a batch size."""
    return [arm for arm in forms(page, LOW_RANK) if page.same_size((arm, batch), (COMERA, batch))]


def _batches(page: Fig1Page) -> set[int]:
    return {*page.time_batches, *page.memory_batches}


def _sides(page: Fig1Page, rivals: Sequence[str], ours: Sequence[str]) -> ratio.Pairs:
    return {batch: ([(arm, batch) for arm in rivals], [(arm, batch) for arm in ours]) for batch in _batches(page)}


#: From a page and its rivals, the cells above and below in a ratio.
Sides = Callable[["Fig1Page", Sequence[str]], ratio.Pairs]


def _published(page: Fig1Page, rivals: Sequence[str]) -> ratio.Pairs:
    """A rival, by its method, and CoMERA as they were published."""
    return _sides(page, rivals, (COMERA,))


def _strongest(page: Fig1Page, rivals: Sequence[str]) -> ratio.Pairs:
    """Every form of the rivals and of low rank of equal size, and every form of CoMERA."""
    theirs, ours = forms(page, *rivals), forms(page, COMERA)
    return {
        batch: ([(arm, batch) for arm in (*theirs, *sized_rivals(page, batch))], [(arm, batch) for arm in ours])
        for batch in _batches(page)
    }


def _time(sides: Sides, *rivals: str) -> ratio.Evidence:
    """Epoch time of a rival over CoMERA's; one that is refused CUDA Graph takes part with its times without."""

    def points(page: Fig1Page) -> list[ratio.RatioPoint]:
        timed, found = {**page.timed, **page.uncaptured}, []
        for batch, pair in sorted(sides(page, rivals).items()):
            timings = [timed[cell] for side in pair for cell in side if cell in timed]
            graph = dict.fromkeys("on" if one.cuda_graph else "off" for one in timings)
            how = " / ".join(f"CUDA Graph {one}" for one in graph) if page.kind == "cuda" else ""
            found += ratio.time_points(replace(page, timed=timed), {batch: pair}, how)
        return found

    return points


def _memory(sides: Sides, *rivals: str) -> ratio.Evidence:
    return lambda page: ratio.memory_points(page, sides(page, rivals))


def _weak(*rivals: str) -> Callable[[Fig1Page], str]:
    """Why a page has no fair baseline: no stronger form of the rivals than the published one is on it."""

    def reason(page: Fig1Page) -> str:
        recorded = {arm for arm, _ in page.timed} | {arm for _, (arm, _) in page.predicted}
        sized = {arm for batch in _batches(page) for arm in sized_rivals(page, batch)}
        if recorded.intersection(forms(page, *rivals)) - {*rivals} or sized:
            return ""
        return (
            f"Neither {LOW_RANK} of CoMERA's size nor a stronger form of {rivals[0]} is recorded; make some: "
            "make reproduce-fig1-all."
        )

    return reason


def _not_captured(page: Fig1Page) -> str:
    """Why times of this page decide nothing on a GPU; empty where they are of captured steps."""
    if page.toggles == CAPTURED:
        return ""
    if not page.timed:
        return "The claim is about captured steps; none were timed."
    other = "with torch.compile" if page.toggles.cuda_graph else "without CUDA Graph"
    return f"The claim is about captured steps; these ran {other}."


_LARGE = (32, 64, 128)
_ON_TIME: dict[str, Any] = {"conditions": (ratio.not_fp32, _not_captured, ratio.not_full_size)}
_ON_MEMORY = "peak memory of {} / comera, allocated or predicted for CUDA"
_LEAST = "{} of the form of {} or of low_rank of equal size that takes least / that of comera"


def _fair(quantity: str, evidence: Sequence[Callable[..., ratio.Evidence]], *rivals: str) -> dict[str, Any]:
    parts = [part(_strongest, *rivals) for part in evidence]
    words = _LEAST.format(quantity, ", ".join(rivals))
    return {"fair": parts, "fair_quantity": words, "fair_conditions": (_weak(*rivals),)}


#: A claim on time needs a CUDA device; predictions may decide one on memory alone.
RULES = (
    ratio.ratio_rule(
        "time-epoch-speedup",
        "epoch time of dense / comera, both with CUDA Graph",
        [_time(_published, "dense")],
        PAPER_BATCHES,
        **_ON_TIME,
        **_fair("epoch time", [_time], "dense"),
    ),
    ratio.ratio_rule(
        "galore-time-b1",
        "epoch time of galore / comera with CUDA Graph",
        [_time(_published, "galore")],
        (1,),
        **_ON_TIME,
        **_fair("epoch time", [_time], "galore"),
    ),
    ratio.ratio_rule(
        "galore-memory-b1",
        _ON_MEMORY.format("galore"),
        [_memory(_published, "galore")],
        (1,),
        device="any",
        **_fair("peak memory", [_memory], "galore"),
    ),
    ratio.ratio_rule(
        "lte-time",
        "epoch time of lte / comera, both with CUDA Graph",
        [_time(_published, "lte")],
        _LARGE,
        **_ON_TIME,
        **_fair("epoch time", [_time], "lte"),
    ),
    ratio.ratio_rule(
        "galore-all-batches",
        "epoch time and peak memory of galore / comera with CUDA Graph",
        [_time(_published, "galore"), _memory(_published, "galore")],
        _LARGE,
        slack=0.0,
        **_ON_TIME,
        **_fair("epoch time and peak memory", [_time, _memory], "galore"),
    ),
    ratio.ratio_rule(
        "lte-memory",
        _ON_MEMORY.format("lte"),
        [_memory(_published, "lte")],
        _LARGE,
        slack=0.0,
        device="any",
        **_fair("peak memory", [_memory], "lte"),
    ),
)

ARTIFACT = Artifact(
    name="fig1",
    heading="Fig. 1: time and memory of every method",
    summary="time per epoch and peak memory of every arm, by batch size; an image per device, precision and toggles",
    experiments=EXPERIMENTS,
    made_by="make reproduce-fig1",
    order=10,
    select=select,
    table=table,
    shown=shown,
    caption=beside(__file__),
    draw=draw,
    rules=RULES,
)
