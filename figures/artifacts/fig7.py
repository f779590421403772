"""Fig. 7: time with CUDA Graph off and on, CoMERA against dense, and with other toggles; a page per device."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd
from matplotlib.figure import Figure

from figures import frame
from figures.arms import CAPTURED, COMERA, DENSE, PLAIN, Toggles
from figures.artifact import Artifact
from figures.claims import ratio
from figures.columns import across, readable, time_column
from figures.draw import bars, facts
from figures.draw.captions import Caption
from figures.frame import Records
from figures.stats import cells
from figures.stats.time_values import ratio_columns
from figures.text import NOT_MODELLED, significant

EXPERIMENTS = ("fig7",)

#: The batch sizes of each kind of device: the paper's on CUDA. And what each is expected to have timed.
BATCHES = {"cuda": (32, 64, 128), "cpu": (1, 8, 16)}
EXPECTED = {"cuda": (PLAIN, CAPTURED), "cpu": (PLAIN, Toggles(compile=True))}

#: The columns of an arm with its toggles, which is what a row of the picture is.
VARIANT = ("arm", "precision", "compile", "cuda_graph")


@dataclass(frozen=True, kw_only=True, eq=False)
class Fig7Page(cells.TimesAndMemory):
    """Times and memory by arm, toggles and batch size."""

    experiments: ClassVar = EXPERIMENTS

    @property
    def variants(self) -> list[tuple[str, Toggles]]:
        """Return CoMERA, dense, then whatever else there is; of each, plain steps first."""
        found = {*zip(self.runs["arm"], self.runs["toggles"], strict=True)}
        if self.is_papers:
            found |= {*itertools.product((COMERA, DENSE), EXPECTED[self.kind])}
        return sorted(found, key=lambda one: (one[0] != COMERA, one[0] != DENSE, one[0], one[1].rank))

    def toggles_of(self, arm: str) -> list[Toggles]:
        return [toggles for found, toggles in self.variants if found == arm]


def select(records: Records) -> list[Fig7Page]:
    """Return a page per device on which steps were timed."""
    cell = (*VARIANT, "batch_size")
    return [cells.choose(df, Fig7Page, cell, **device) for device, df in frame.by_device(records)]


def table(page: Fig7Page) -> pd.DataFrame:
    """Return a line per batch size and variant, compared with dense's with the same toggles."""
    batches = sorted({*(BATCHES[page.kind] if page.is_papers else ()), *page.runs["batch_size"]})
    variants = pd.DataFrame([{"arm": arm, **vars(toggles)} for arm, toggles in page.variants])
    grid = pd.DataFrame({"batch_size": batches}).merge(variants, "cross")
    records, dense = page.timed(grid, "times", "dataset", "compile_time_s"), {"arm": DENSE}
    grid = grid.assign(device=page.device, dataset=records["dataset"])

    toggled = grid["compile"] | grid["cuda_graph"]
    plainer = grid.assign(  # without the toggle that is named last
        cuda_graph=False,
        compile=grid["compile"] & grid["cuda_graph"],
        precision=grid["precision"].where(toggled, PLAIN.precision),
    )
    is_plain = ~toggled & (grid["precision"] == PLAIN.precision)
    off = page.times_of(plainer).mask(is_plain)
    on = ratio_columns("time_on_over_off", records["times"], off)

    memory = page.memory(grid, page.kind, DENSE, dense)
    unmodelled = toggled & memory[f"{page.kind}_peak_mib"].notna()
    memory = memory.mask(unmodelled)
    memory[f"{page.kind}_status"] = memory[f"{page.kind}_status"].mask(unmodelled, NOT_MODELLED)

    measured, of_dense = (page.measured(lines, [page.kind]) for lines in (grid, grid.assign(**dense)))
    over = measured["allocated_mib"] / of_dense["allocated_mib"].mask(grid["arm"] == DENSE)
    parts = [
        grid[["device", *VARIANT, "batch_size", "dataset"]],
        page.times(grid, DENSE, dense),
        page.over_low_rank(grid),
        on.rename(columns={"pairing": "on_over_off_pairing"}),
        records["compile_time_s"],
        memory,
        measured[["allocated_mib", "reserved_mib"]],
        over.rename(f"allocated_over_{DENSE}"),
        measured["older_code"],
    ]
    return pd.concat(parts, axis=1)


def _named(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the toggles in the names of the arms, such as ``comera, CUDA Graph``."""
    variants = table[list(VARIANT)].itertuples(index=False, name=None)
    names = [", ".join((arm, *Toggles(*toggles).names)) for arm, *toggles in variants]
    return table.assign(arm=names)


def shown(page: Fig7Page, table: pd.DataFrame) -> pd.DataFrame:
    """Return a line per variant: at every batch size its time, what the toggle leaves of it, and its peak memory."""
    times = {time_column(page.per): f"time_over_{DENSE}", "time_on_over_off": ""}
    predicted = {f"{page.kind}_peak_mib": f"{page.kind}_over_{DENSE}"}
    peaks = {"allocated_mib": f"allocated_over_{DENSE}"} if _is_measured(table) else predicted
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
    sheet, named, measured = bars.BarPage(page.kind, DENSE), _named(table), _is_measured(table)
    others = "dense" if set(table["arm"]) == {COMERA, DENSE} else "other arms"
    legend = {"steps, CoMERA": "training steps, CoMERA", "steps": f"training steps, {others}"}
    if (table[time_column(page.per).replace("time", "rare")] > 0).any():
        legend["rare"] = "rare events, amortised"
    sheet.times(table, page.per, legend)

    labels = None
    if measured:  # the allocated peak, else the predicted one in parentheses
        marks = bars.marks(table)
        peaks = pd.to_numeric(table[f"{page.kind}_peak_mib"])
        words = peaks.map(significant, na_action="ignore").astype(object)
        predicted = ("(" + words + ") " + marks).str.rstrip()
        allocated = bars.labels(table["allocated_mib"], table[f"allocated_over_{DENSE}"], marks)
        labels = allocated.fillna(predicted)
    sheet.memory(table, page.kind, measured, words_beside=labels)

    left = readable(named, ["arm", "batch_size", "time_on_over_off"])
    left = left[named["time_on_over_off"].notna()]
    toggled = [
        f"on / off, {arm}: {', '.join(f'{ratio} at batch {batch}' for batch, ratio in some.iloc[:, 1:].to_numpy())}"
        for arm, some in left.groupby("arm", sort=False)
    ]
    dense = [*named.loc[table["arm"] == DENSE, "arm"].unique()]
    return sheet.draw(caption, list(named["arm"].unique()), dense, toggled)


def _points(page: Fig7Page, which: Sequence[Toggles]) -> list[ratio.RatioPoint]:
    points = []
    for toggles in which:
        sides = ratio.sides(page.runs[page.runs["toggles"] == toggles], "arm", [DENSE], [COMERA])
        points += ratio.time_points(page, *sides, ", ".join(toggles.names) or "plain")
    return points


def _published(page: Fig7Page, _: Any = None) -> list[ratio.RatioPoint]:
    return _points(page, [CAPTURED])


def _beside(page: Fig7Page, _: pd.DataFrame) -> list[ratio.RatioPoint]:
    return _points(page, page.toggles_of(DENSE))


def _at_best(page: Fig7Page, _: pd.DataFrame) -> list[ratio.RatioPoint]:
    """Return ratios of dense over CoMERA, each with the toggles that make it fastest."""
    dense, ours = ratio.sides(page.runs, "arm", [DENSE], [COMERA])
    dense, ours = (side.assign(form=_named(side)["arm"]) for side in (dense, ours))
    return ratio.time_points(page, dense, ours)


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
    summary="time per epoch with CUDA Graph (on a CPU, compile) off and on, dense against CoMERA; an image per device",
    experiments=EXPERIMENTS,
    measure="run",
    made_by="make reproduce-fig7",
    order=40,
    select=select,
    table=table,
    shown=shown,
    about=about,
    draw=draw,
    rules=(
        ratio.ratio_rule(
            "graph-speedup",
            "epoch time of dense over CoMERA, both with CUDA Graph, FP32",
            [_published],
            BATCHES["cuda"],
            conditions=(_no_pair, ratio.not_full_size),
            beside=_beside,
            fair=[_at_best],
            fair_conditions=(_only_plain,),
            fair_quantity="epoch time of dense over CoMERA, each with the toggles that make it fastest",
        ),
    ),
)
