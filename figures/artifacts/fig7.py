"""Fig. 7: time with CUDA Graph off and on, CoMERA against dense, and with other toggles; a page per device."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd
from matplotlib.figure import Figure

from figures import frame
from figures.arms import CAPTURED, COMERA, DENSE, PLAIN, Toggles
from figures.artifact import Artifact
from figures.claims.ratio import RatioPoint, not_full_size, ratio_rule, time_points
from figures.columns import across, readable, table_of, time_column
from figures.frame import Records
from figures.page import bars, facts
from figures.page.captions import beside
from figures.page.drawn import Caption
from figures.records import cells
from figures.records.time_values import time_ratio
from figures.text import NOT_MODELLED, bounds, pairing, significant

EXPERIMENTS = ("fig7",)

#: The batch sizes of each kind of device: the paper's on CUDA. And what each is expected to have timed.
BATCHES = {"cuda": (32, 64, 128), "cpu": (1, 8, 16)}
EXPECTED = {"cuda": (Toggles(), CAPTURED), "cpu": (Toggles(), Toggles(compile=True))}

#: An arm with its toggles, which is what a row of the picture is.
Variant = tuple[str, Toggles]


@dataclass(frozen=True, kw_only=True, eq=False)
class Fig7Page(cells.TimesAndMemory):
    """Times and memory by arm, toggles and batch size."""

    experiments: ClassVar = EXPERIMENTS

    @property
    def variants(self) -> list[Variant]:
        """Return CoMERA, dense, then whatever else there is; of each, plain steps first."""
        wanted = {(arm, toggles) for arm in (COMERA, DENSE) for toggles in EXPECTED[self.kind] if self.is_papers}
        found = {*wanted, *(cell[:2] for cell in self.timed)}
        return sorted(found, key=lambda one: (one[0] != COMERA, one[0] != DENSE, one[0], one[1].rank))

    @property
    def batches(self) -> list[int]:
        return sorted({*(BATCHES[self.kind] if self.is_papers else ()), *self.runs["batch_size"]})

    def toggles_of(self, arm: str) -> list[Toggles]:
        return [toggles for found, toggles in self.variants if found == arm]


def select(records: Records) -> list[Fig7Page]:
    """Return a page per device on which steps were timed."""
    cell = ("arm", "toggles", "batch_size")
    return [cells.choose(df, Fig7Page, cell, **device) for device, df in frame.by_device(records)]


def table(page: Fig7Page) -> pd.DataFrame:
    """Return a line per batch size and variant, compared with CoMERA's with the same toggles."""
    lines = []
    for batch in page.batches:
        for arm, toggles in page.variants:
            cell, reference, plainer = (arm, toggles, batch), (COMERA, toggles, batch), toggles.without_last
            record, measured = page.timed.get(cell), page.measured_columns(cell)
            gain = time_ratio(page.timed.get((arm, plainer, batch)), record) if plainer else None
            ours = page.measured_columns(reference)["allocated_mib"] if arm != COMERA else None
            memory = page.memory_columns(page.kind, cell, reference, COMERA)
            if record and (toggles.cuda_graph or toggles.compile) and memory[f"{page.kind}_peak_mib"] is not None:
                memory = {**dict.fromkeys(memory), f"{page.kind}_status": NOT_MODELLED, f"{page.kind}_message": ""}
            lines.append(
                {
                    "device": page.device,
                    "arm": arm,
                    **vars(toggles),
                    "batch_size": batch,
                    "dataset": getattr(record, "dataset", ""),
                    **page.time_columns(cell, reference, COMERA),
                    **bounds("time_off_over_on", gain),
                    "off_over_on_pairing": pairing(gain),
                    "compile_time_s": getattr(record, "compile_time_s", None),
                    **memory,
                    **measured,
                    "allocated_over_comera": cells.quotient(measured["allocated_mib"], ours),
                    "older_code": page.is_older(cell, [page.kind]),
                }
            )
    return table_of(lines)


def _named(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the toggles in the names of the arms, such as ``comera, CUDA Graph``."""
    toggles = table[["precision", "compile", "cuda_graph"]].itertuples(index=False)
    names = [", ".join((arm, *Toggles(*one).names)) for arm, one in zip(table["arm"], toggles, strict=True)]
    return table.assign(arm=names)


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
    """Draw time per epoch with the toggle off and on, a panel per batch size."""
    sheet, named, measured = bars.Sheet(page.kind, COMERA), _named(table), _is_measured(table)

    def label(line: bars.Line, bar: bars.Bar) -> str:
        """Return the predicted peak; where peaks are measured, the allocated one."""
        peak, marks = line[f"{page.kind}_peak_mib"], bars.marks_of(line)
        if pd.notna(line["allocated_mib"]):
            return bars.value_label(line["allocated_mib"], line["allocated_over_comera"], marks)
        return f"({significant(peak)}) {marks}".rstrip() if measured and pd.notna(peak) else bar.label

    others = "dense" if set(table["arm"]) == {COMERA, DENSE} else "other arms"
    legend = {"steps, CoMERA": "training steps, CoMERA", "steps": f"training steps, {others}"}
    if (table[{"epoch": "epoch_rare_s", "step": "step_rare_ms"}[page.per]] > 0).any():
        legend["rare"] = "rare events, amortised"
    sheet.times(table, page.per, legend)
    sheet.memory(table, page.kind, measured, label=label)
    gains = readable(named, ["arm", "batch_size", "time_off_over_on"])[named["time_off_over_on"].notna()]
    paying = [
        f"off / on, {arm}: {', '.join(f'{gain} at batch {batch}' for batch, gain in some.iloc[:, 1:].to_numpy())}"
        for arm, some in gains.groupby("arm", sort=False)
    ]
    names, references = list(dict.fromkeys(named["arm"])), len(page.toggles_of(COMERA))
    return sheet.draw(caption, names, references, paying)


def _points(page: Fig7Page, which: Iterable[Toggles]) -> list[RatioPoint]:
    """Return ratios of dense over CoMERA with the same toggles."""
    points = []
    for toggles in which:
        pairs = {batch: ([(DENSE, toggles, batch)], [(COMERA, toggles, batch)]) for batch in page.batches}
        points += time_points(page, pairs, ", ".join(toggles.names) or "plain")
    return points


def _published(page: Fig7Page) -> list[RatioPoint]:
    return _points(page, [CAPTURED])


def _beside(page: Fig7Page) -> list[RatioPoint]:
    return _points(page, page.toggles_of(DENSE))


def _at_best(page: Fig7Page) -> list[RatioPoint]:
    """Return ratios of dense over CoMERA, each with the toggles that make it fastest."""
    pairs = {}
    for batch in page.batches:
        dense, ours = ([(arm, toggles, batch) for toggles in page.toggles_of(arm)] for arm in (DENSE, COMERA))
        pairs[batch] = (dense, ours)
    return time_points(page, pairs)


def _only_plain(page: Fig7Page) -> str:
    """Return why a page has no fair baseline; empty where dense has other toggles than the published ones."""
    others = {*page.toggles_of(DENSE)} - {PLAIN, CAPTURED}
    return "" if others else "Dense with torch.compile or in BF16 is not recorded."


def _no_pair(page: Fig7Page) -> str:
    """Return why these records decide nothing where no pair with CUDA Graph was timed."""
    found = any(point.batch_size in BATCHES["cuda"] for point in _published(page))
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
            [_published],
            BATCHES["cuda"],
            conditions=(_no_pair, not_full_size),
            beside=_beside,
            fair=[_at_best],
            fair_conditions=(_only_plain,),
            fair_quantity="epoch time of dense / comera, each with the toggles that make it fastest",
        ),
    ),
)
