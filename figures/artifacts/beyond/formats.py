"""Which format trains best: loss against stored size, training time and peak memory, each arm at its own best rate.

A figure the paper lacks. Each arm under each optimizer had its own search of rates, by data that is not reported on.
A narrower dense model of equal size is the rival of every format: what does not beat it compresses nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator

from bench.core.record import Record
from figures import frame
from figures.arms import DENSE
from figures.artifact import Artifact
from figures.columns import readable, table_of
from figures.frame import Records
from figures.page.captions import beside
from figures.page.drawn import Caption
from figures.page.layout import panel_page
from figures.page.style import (
    DENSE_STROKE,
    FAINT,
    INK,
    WHISKER,
    note,
    nothing_drawn,
    number_axis,
    stroke_handle,
    strokes,
    whiskers,
)
from figures.records.searches import REPORTED, SURE_SEEDS, Search, comparable, searches
from figures.records.sizes import equal_size
from figures.records.time_values import step_of, workload_words

EXPERIMENTS = ("formats_teacher", "formats_tiny", "formats_small", "formats_base")
TIMES = tuple(f"{name}_time" for name in EXPERIMENTS)
NARROW = "dense:narrow"

#: Optimizers in the order of the page, with their names.
OPTIMIZERS = {"adamw": "AdamW", "muon": "Muon"}

#: Costs that a loss is drawn against, by their column.
COSTS = {
    "stored_mib": "size of the stored model, MiB",
    "training_s": "training, s: steps times a measured step",
    "peak_memory_predicted_mib": "predicted peak memory of a step, MiB",
}

#: The line of a probe.
_DOTTED: dict[str, Any] = {"color": FAINT, "linestyle": (0, (1, 1.5)), "linewidth": 1}


@dataclass(frozen=True, kw_only=True, eq=False)
class Formats(frame.Page):
    """The searches of one experiment on one device; ``probed`` has what simple models reach on the same data."""

    experiment: str
    found: tuple[Search, ...]
    probed: Record | None = None

    @property
    def unit(self) -> str:
        """Return the unit of the loss for choosing, which the reported one shares."""
        return str([one for one in self.shown if one.measure == "train"][-1].metric.get("unit", ""))

    @property
    def probes(self) -> dict[str, float]:
        """Return the reported loss of simple models by name."""
        found = self.probed.samples["probes"] if self.probed else {}
        return {name: one["metrics"][REPORTED] for name, one in found.items() if REPORTED in one["metrics"]}

    @cached_property
    def ordered(self) -> list[Search]:
        """Return the searches by optimizer, ratio and loss."""

        def place(search: Search) -> tuple[int, float, float]:
            loss = math.inf if search.loss is None else search.loss
            return list(OPTIMIZERS).index(search.slot.optimizer), search.slot.ratio or 0.0, loss

        return sorted(self.found, key=place)

    def dense(self, search: Search) -> Search | None:
        """Return dense training under the same optimizer."""
        slot = (DENSE, search.slot.optimizer)
        return next((one for one in self.found if (one.slot.arm, one.slot.optimizer) == slot), None)

    def narrow(self, search: Search) -> Search | None:
        """Return the narrower dense model of equal size, by the parameters in the records; None for dense itself."""
        slot, own = (NARROW, search.slot.optimizer), search.run.parameters if search.run else None
        rivals = (one for one in self.found if (one.slot.arm, one.slot.optimizer) == slot)
        found = next((one for one in rivals if one.run and equal_size(one.run.parameters, own)), None)
        return None if search.slot.arm == DENSE else found


def select(records: Records) -> list[Formats]:
    """Return a page for each experiment of each device that has trainings."""
    pages = []
    for device, df in frame.by_device(records):
        trained = df[(df["measure"] == "train") & frame.column(df, "training.recipe.optimizer").notna()]
        for experiment, runs in frame.groups(trained[trained["experiment"].isin(EXPERIMENTS)], "experiment"):
            kept, left_out = comparable(runs, f"training(s) of {experiment}")
            timed = df[(df["experiment"] == f"{experiment}_time") & (df["status"] == "ok")]
            timed = timed.sort_values("ratio", ascending=False, kind="stable")  # dense is timed beside every ratio
            found = searches(list(kept["record"]), list(timed["record"]))
            steps = timed[timed["cell_id"].isin([one.timed.cell_id for one in found if one.timed])]
            of_data = df[(df["measure"] == "probe") & (df["data_hash"] == kept["data_hash"].iloc[-1])]
            probed = frame.oldest_first(of_data).tail(1)
            place = experiment.removeprefix("formats_")
            page = Formats(
                **device,
                df=frame.oldest_first(pd.concat([kept, steps, probed])),
                left_out=tuple(left_out),
                place=place,
                suffix=(place,),
                experiment=experiment,
                found=tuple(found),
                probed=probed["record"].iloc[0] if len(probed) else None,
            )
            pages.append(page)
    return sorted(pages, key=lambda page: (page.device, EXPERIMENTS.index(page.experiment)))


def table(page: Formats) -> pd.DataFrame:
    """Return a line per arm, optimizer and ratio, at the best of the rates that were tried."""
    lines = []
    for search in page.ordered:
        lines.append(
            {
                "device": page.device,
                "experiment": page.experiment,
                **search.columns("parameters"),
                "training_s": search.training_s,
                "peak_memory_predicted_mib": getattr(search.run, "peak_memory_predicted_mib", None),
                "lr": search.best,
                "at_edge": search.at_edge,
                "rates": ", ".join(f"{rate:g}" for rate in search.tried),
                "remarks": search.remarks,
            }
        )
    return table_of(lines, whole=("parameters",))


def shown(page: Formats, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with differences to both dense models, and the measured step."""
    steps = [step_of(one.timed) for one in page.ordered]
    more: dict[str, Any] = {
        "optimizer": table["optimizer"].map(OPTIMIZERS),
        "less_narrow": [one.less(page.narrow(one)) for one in page.ordered],
        "less_dense": [one.less(page.dense(one)) for one in page.ordered],
        "step_time_ms": [step and step.value for step in steps],
    }
    columns = ["optimizer", "arm", "ratio", "parameters", "test_loss", "less_narrow", "less_dense"]
    columns += ["step_time_ms", "peak_memory_predicted_mib", "lr"]
    return readable(table.assign(**more), columns)


def about(page: Formats, table: pd.DataFrame) -> dict[str, Any]:
    """Return by optimizer which formats are surely above, surely below and not surely apart from their narrow rival."""
    against: dict[str, dict[str, list[str]]] = {}
    for search in page.ordered:
        rival = page.narrow(search)
        if rival is None or rival is search or search.loss is None or rival.loss is None:
            continue
        found = against.setdefault(OPTIMIZERS[search.slot.optimizer], {"above": [], "apart": [], "below": []})
        found[search.beside(rival)].append(search.slot.arm)
    return {"against": against, **training(page), "sure_seeds": SURE_SEEDS, "doubtful": doubtful(table)}


def training(page: frame.Page) -> dict[str, Any]:
    """Return the first training of a page, and what its workload calls model and example."""
    first = next(one for one in page.shown if one.measure == "train")
    words = workload_words(first)
    return {"first": first, "model": words["model"], "example": words["example"]}


def doubtful(table: pd.DataFrame) -> dict[str, list[str]]:
    """Return by remark on a search the arms with their optimizers that it is about."""
    found: dict[str, list[str]] = {}
    for line in table[table["remarks"] != ""].to_dict("records"):
        for remark in line["remarks"].split("; "):
            name = f"{line['arm']} ({OPTIMIZERS[line['optimizer']]})"
            found.setdefault(remark, []).append(name)
    return {remark: list(dict.fromkeys(names)) for remark, names in found.items()}


def draw(page: Formats, table: pd.DataFrame, caption: Caption) -> Figure:
    """Draw the loss against each cost, a row of panels per optimizer."""
    stored: Any = [one.run.stored_mib if one.run else None for one in page.ordered]
    table = table.assign(stored_mib=stored)
    arms = sorted(dict.fromkeys(table.loc[table["arm"] != DENSE, "arm"]), key=lambda arm: arm != NARROW)
    looks = {**strokes(arms), DENSE: DENSE_STROKE}
    handles = [stroke_handle(looks[arm], arm) for arm in arms]
    handles.append(stroke_handle(DENSE_STROKE, f"{DENSE} (line: its loss)"))
    if page.probes:
        handles.append(Line2D([], [], **_DOTTED, label="a probe, by its name"))
    handles.append(seeds_handle())
    costs = {column: words for column, words in COSTS.items() if table[column].gt(0).any()}
    grid = [[OPTIMIZERS[name]] * len(costs) for name in table["optimizer"].unique()]
    paper, panels = panel_page(caption, grid, 2.7, handles, 5)
    for (_, part), line in zip(table.groupby("optimizer", sort=False), panels, strict=True):
        for (cost, words), axes in zip(costs.items(), line, strict=True):
            _panel(axes, part[part[cost].gt(0) & part["test_loss"].notna()], cost, looks, page.probes)
            axes.set_xlabel(words, fontsize=8)
            axes.set_ylabel(f"loss, {page.unit}".rstrip(", "), fontsize=8)
    return paper.finish()


def seeds_handle() -> Line2D:
    """Return the entry of a legend for the whiskers of a loss."""
    return Line2D([], [], **WHISKER, label="range over seeds")


def loss_limits(table: pd.DataFrame, below: float, above: float) -> tuple[float, float]:
    """Return the ends of an axis of losses, whose room is a share of their range."""
    low, high = table["test_loss_low"].min(), table["test_loss_high"].max()
    room = high - low or abs(high) or 1.0
    return low - below * room, high + above * room


def dense_line(axes: Any, loss: float, upright: bool = False) -> None:
    """Draw the loss of dense training across a panel."""
    across = axes.axvline if upright else axes.axhline
    across(loss, color=DENSE_STROKE.colour, linewidth=0.8, zorder=1)


def _panel(axes: Any, table: pd.DataFrame, cost: str, looks: Mapping[str, Any], probes: Mapping[str, float]) -> None:
    """Draw one optimizer's arms against one cost."""
    if table.empty:
        nothing_drawn(axes, "nothing recorded")
        return
    axes.set_xscale("log")
    for arm, stroke in looks.items():
        line = table[table["arm"] == arm].sort_values(cost)
        if line.empty:
            continue
        axes.plot(line[cost], line["test_loss"], markersize=4.5, **stroke.look)
        whiskers(axes, line[cost], line["test_loss_low"], line["test_loss_high"])
        if arm == DENSE:
            dense_line(axes, line["test_loss"].iloc[0])
    low, high = loss_limits(table, 0.08, 0.1)
    axes.set_ylim(low, high)
    for name, loss in probes.items():
        if low <= loss <= high:
            axes.axhline(loss, zorder=1, **_DOTTED)
            look = {"xycoords": axes.get_yaxis_transform(), "ha": "right", "fontsize": 6, "color": INK}
            note(axes, name, (0.99, loss), (0, 2), **look)
    number_axis(axes.xaxis, LogLocator(10, subs=(1, 1.5, 2, 3, 5, 7)))
    axes.yaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10]))


ARTIFACT = Artifact(
    name="formats",
    heading="Which format trains best",
    summary="loss of formats under AdamW and Muon against size, time and memory; an image per device and test bed",
    experiments=EXPERIMENTS,
    measure="train",
    lenders=(*TIMES, "probe_text", "probe_teacher"),
    made_by="make reproduce-formats",
    order=44,
    select=select,
    table=table,
    shown=shown,
    about=about,
    caption=beside(__file__),
    draw=draw,
)
