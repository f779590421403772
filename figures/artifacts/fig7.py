"""Fig. 7: time with CUDA Graph off and on, CoMERA against dense, and with other toggles; a page per device."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pandas as pd
from matplotlib.figure import Figure

from bench.core.record import Record
from figures.artifact import Artifact
from figures.claims.ratio import RatioPoint, not_full_size, ratio_rule, time_points
from figures.columns import across, frame, readable, time_column, unit_of
from figures.page import bars, facts
from figures.page.captions import beside
from figures.page.drawn import Caption
from figures.page.footnotes import Footnotes
from figures.records import cells
from figures.records.missing import NOT_MODELLED
from figures.records.select import CAPTURED, COMERA, DENSE, PLAIN, Toggles, by_device
from figures.records.time_values import time_ratio
from figures.text import bounds, pairing, significant

EXPERIMENTS = ("fig7",)

#: The batch sizes of each kind of device: the paper's on CUDA. And what each is expected to have timed.
BATCHES = {"cuda": (32, 64, 128), "cpu": (1, 8, 16)}
EXPECTED = {"cuda": (Toggles(), CAPTURED), "cpu": (Toggles(), Toggles(compile=True))}

#: An arm with its toggles, which is what a row of the picture is; and at a batch size.
Variant = tuple[str, Toggles]
Cell = tuple[str, Toggles, int]


def _rank(variant: Variant) -> tuple[Any, ...]:
    """CoMERA, dense, then whatever else there is; of each, plain steps first."""
    arm, toggles = variant
    return arm != COMERA, arm != DENSE, arm, toggles.rank


@dataclass(frozen=True, kw_only=True)
class Fig7Page(cells.TimesAndMemory):
    experiments: ClassVar = EXPERIMENTS

    @property
    def variants(self) -> list[Variant]:
        wanted = {(arm, toggles) for arm in (COMERA, DENSE) for toggles in EXPECTED[self.kind] if self.is_papers}
        return sorted({*wanted, *(cell[:2] for cell in self.timed)}, key=_rank)

    @property
    def batches(self) -> list[int]:
        return sorted({*(BATCHES[self.kind] if self.is_papers else ()), *(batch for _, _, batch in self.timed)})


def name_of(arm: str, toggles: Toggles) -> str:
    """How a row is called: ``comera, CUDA Graph``."""
    return ", ".join((arm, *toggles.names))


def _cell(record: Record) -> Cell:
    return record.arm, Toggles.of(record), record.batch_size


def select(records: Sequence[Record]) -> list[Fig7Page]:
    """A selection per device on which steps were timed."""
    return [cells.Select(_cell)(mine, Fig7Page, **device) for device, mine in by_device(records)]


def table(page: Fig7Page) -> pd.DataFrame:
    """Return a line per batch size and variant, compared with CoMERA's with the same toggles."""
    lines = []
    for batch in page.batches:
        for arm, toggles in page.variants:
            cell, reference, plainer = (arm, toggles, batch), (COMERA, toggles, batch), toggles.without_last
            record, measured = page.timed.get(cell), page.measured_fields(cell)
            gain = time_ratio(page.timed.get((arm, plainer, batch)), record) if plainer else None
            ours = page.measured_fields(reference)["allocated_mib"] if arm != COMERA else None
            lines.append(
                {
                    "device": page.device,
                    "arm": arm,
                    **vars(toggles),
                    "batch_size": batch,
                    "dataset": getattr(record, "dataset", ""),
                    **page.time_fields(cell, reference, COMERA),
                    **bounds("time_off_over_on", gain),
                    "off_over_on_pairing": pairing(gain),
                    "compile_time_s": getattr(record, "compile_time_s", None),
                    **_memory(page, cell, reference),
                    **measured,
                    "allocated_over_comera": cells.quotient(measured["allocated_mib"], ours),
                    "older_code": page.is_older(cell, [page.kind]),
                }
            )
    return frame(lines)


def _memory(page: Fig7Page, cell: Cell, reference: Cell) -> dict[str, Any]:
    """Return the columns of the predicted peak, which is known of plain steps alone."""
    memory, toggles = page.memory_cell(page.kind, cell, reference), cell[1]
    if cell in page.timed and (toggles.cuda_graph or toggles.compile) and memory.peak is not None:
        memory = cells.MemoryCell(NOT_MODELLED)
    return cells.memory_fields(page.kind, memory, COMERA)


def _named(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the toggles in the names of the arms."""
    toggles = table[["precision", "compile", "cuda_graph"]].itertuples(index=False)
    return table.assign(arm=[name_of(arm, Toggles(*one)) for arm, one in zip(table["arm"], toggles, strict=True)])


def shown(page: Fig7Page, table: pd.DataFrame) -> pd.DataFrame:
    """Return a line per variant: at every batch size its time, what the toggle brings, and its peak memory."""
    times = {time_column(page.per): f"time_over_{COMERA}", "time_off_over_on": ""}
    predicted = {f"{page.kind}_peak_mib": f"{page.kind}_over_{COMERA}"}
    peaks = {"allocated_mib": f"allocated_over_{COMERA}"} if _is_measured(table) else predicted
    return across(_named(table), "arm", "batch_size", times | peaks)


def _is_measured(table: pd.DataFrame) -> bool:
    return bool(table["allocated_mib"].notna().any())


def about(page: Fig7Page, table: pd.DataFrame) -> dict[str, Any]:
    """Return the table with the names of variants, how long compiling took, and what memory is known of."""
    return {
        "named": _named(table),
        "compiling": facts.span(round(seconds) for seconds in table["compile_time_s"].dropna()),
        "is_measured": _is_measured(table),
        "is_modelled": not (table[f"{page.kind}_status"] == NOT_MODELLED).any(),
    }


def draw(page: Fig7Page, table: pd.DataFrame, caption: Caption) -> Figure:
    named, measured = _named(table), _is_measured(table)
    footnotes, (unit, scale) = Footnotes(), unit_of(table, page.per)

    def memory_bar(line: bars.Line) -> bars.Bar:
        """The predicted peak; where peaks are measured, labels are of the allocated ones."""
        bar, marks = bars.memory(line, page.kind, COMERA, footnotes, measured), bars.marks_of(line)
        peak, over = line[f"{page.kind}_peak_mib"], line["allocated_over_comera"]
        if pd.notna(line["allocated_mib"]):
            label = bars.value_label(line["allocated_mib"], None if pd.isna(over) else over, marks)
            return replace(bar, label=label)
        return replace(bar, label=f"({significant(peak)}) {marks}".rstrip()) if measured and pd.notna(peak) else bar

    others = "dense" if set(table["arm"]) == {COMERA, DENSE} else "other arms"
    legend = {"steps, CoMERA": "training steps, CoMERA", "steps": f"training steps, {others}"}
    if (table[{"epoch": "epoch_rare_s", "step": "step_rare_ms"}[page.per]] > 0).any():
        legend["rare"] = "rare events, amortised"
    times = bars.by_batch(table, lambda line: bars.time(line, page.per, COMERA, scale, footnotes))
    found = [
        bars.time_band(f"Time per {page.per} {{}}, in {unit}", page.kind, times, legend),
        bars.band_of_memory(page.kind, bars.by_batch(table, memory_bar), measured),
    ]
    gains = readable(named, ["arm", "batch_size", "time_off_over_on"])[named["time_off_over_on"].notna()]
    paying = [
        f"off / on, {arm}: {', '.join(f'{gain} at batch {batch}' for batch, gain in some.iloc[:, 1:].to_numpy())}"
        for arm, some in gains.groupby("arm", sort=False)
    ]
    foot = (*footnotes.lines(), *caption.of_picture, *paying, *caption.notes)
    names, references = list(dict.fromkeys(named["arm"])), sum(arm == COMERA for arm, _ in page.variants)
    return bars.draw_bars(caption.title, caption.facts, names, found, foot, references)


def _points(page: Fig7Page, *which: Toggles) -> list[RatioPoint]:
    """Dense over CoMERA with the same toggles."""
    points = []
    for toggles in which:
        pairs = {batch: ([(DENSE, toggles, batch)], [(COMERA, toggles, batch)]) for batch in page.batches}
        points += time_points(page, pairs, ", ".join(toggles.names) or "plain")
    return points


def _at_best(page: Fig7Page) -> list[RatioPoint]:
    """Dense over CoMERA, each with the toggles that make it fastest."""

    def cells(arm: str, batch: int) -> list[Any]:
        return [(arm, toggles, batch) for found, toggles in page.variants if found == arm]

    return time_points(page, {batch: (cells(DENSE, batch), cells(COMERA, batch)) for batch in page.batches})


def _only_plain(page: Fig7Page) -> str:
    """Why a page has no fair baseline; empty where dense has other toggles than the published ones."""
    others = {toggles for arm, toggles in page.variants if arm == DENSE} - {PLAIN, CAPTURED}
    return "" if others else "Dense with torch.compile or in BF16 is not recorded."


def _no_pair(page: Fig7Page) -> str:
    """Why these records decide nothing where no pair with CUDA Graph was timed."""
    found = any(point.batch_size in BATCHES["cuda"] for point in _points(page, CAPTURED))
    return "" if found else "The claim is about FP32 with CUDA Graph; no such pair was timed."


ARTIFACT = Artifact(
    name="fig7",
    heading="Fig. 7: CUDA Graph and compile",
    summary="time per epoch with CUDA Graph (on a CPU, compile) off and on, dense against CoMERA; an image per device",
    experiments=EXPERIMENTS,
    measure="run",
    made_by="make reproduce-fig7",
    order=40,
    select=select,
    table=table,
    shown=shown,
    about=about,
    caption=beside(__file__),
    draw=draw,
    rules=(
        ratio_rule(
            "graph-speedup",
            "epoch time of dense / comera, both with CUDA Graph, FP32",
            [lambda page: _points(page, CAPTURED)],
            BATCHES["cuda"],
            conditions=(_no_pair, not_full_size),
            beside=lambda page: _points(page, *(toggles for arm, toggles in page.variants if arm == DENSE)),
            fair=[_at_best],
            fair_conditions=(_only_plain,),
            fair_quantity="epoch time of dense / comera, each with the toggles that make it fastest",
        ),
    ),
)
