"""Two-stage training on pointer labels: how ranks are closed, beside formats of the same size from scratch.

A table and a figure that the paper has on MNLI. All arms have the same number of steps; each had its own search of
rates, by data that is not reported on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator

from figures import frame
from figures.arms import DENSE
from figures.artifact import Artifact
from figures.artifacts import formats
from figures.artifacts.formats import DENSE_LINE, LOSS
from figures.columns import Format, readable
from figures.draw import style
from figures.draw.captions import Caption
from figures.draw.layout import panel_page
from figures.frame import Records
from figures.stats.pointer import BEDS, FROM_SCRATCH, TENSORIZED, searched_by_way
from figures.stats.searches import against, with_sure, worded
from figures.stats.sizes import equal_size
from figures.trainings import RecordedTraining

#: The accuracy in % that counts as learned.
ENOUGH = 95.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Stages(frame.Page):
    """The searches of one bed on one device.

    ``way`` is how an arm comes to its size, ``target`` the share of the cores, or of the dense weights, that is left.
    """

    lines: pd.DataFrame


def select(records: Records) -> list[Stages]:
    """Return a page for each device and bed with two-stage trainings; arms from scratch are those of their sizes.

    Those with a tensorized table are shown too, though they are smaller: the recipe taken apart.
    """
    pages = []
    for device, df in frame.by_device(records):
        for experiment in BEDS:
            lines, kept, left_out = searched_by_way(df, experiment)
            if lines.empty:
                continue
            has_table = lines["way"].str.contains(TENSORIZED)
            sizes = lines.loc[(lines["target"] > 0) | has_table, "parameters"].dropna()
            is_shown = [
                line.target > 0
                or line.arm == DENSE
                or any(equal_size(line.parameters, one) for one in sizes if pd.notna(line.parameters))
                for line in frame.each(lines)
            ]
            runs = pd.Series([list(kept.loc[list(one), "training"]) for one in lines["chosen"]], lines.index)
            lines = lines.assign(runs=runs)[is_shown]
            lines = lines.sort_values("parameters", ascending=False, ignore_index=True)
            lines = lines.assign(size=_sizes(lines["parameters"]))
            place = experiment.removesuffix("_stages")
            page = Stages(
                **device,
                df=frame.oldest_first(kept),
                left_out=tuple(left_out),
                place=place,
                suffix=() if experiment == next(iter(BEDS)) else (place,),
                lines=lines.sort_values(["size", "test_loss"], ignore_index=True),
            )
            pages.append(page)
    return pages


def _sizes(parameters: Iterable[int]) -> list[int]:
    """Return a number for the size of each of some falling counts, the same one within 2 %.

    >>> _sizes([943, 589, 588, 563])
    [0, 1, 1, 2]
    """
    found, first = list[int](), None
    for one in parameters:
        is_same = pd.notna(one) and first is not None and equal_size(one, first)
        found.append((found[-1] if found else 0) + (not is_same and bool(found)))
        first = first if is_same else (one if pd.notna(one) else None)
    return found


def table(page: Stages) -> pd.DataFrame:
    """Return a line per arm and way, with what the run of the searched seed has left."""
    runs, sizes = page.lines["run"], page.lines[["size_fraction", "size_target"]].astype(float)
    sizes = sizes.where(sizes > 0)
    lines = page.lines.assign(
        device=page.device,
        left=(page.lines["tensorized_mib"].astype(float) * 2**20 / 4).round(),
        test_accuracy=[_mean(run.metrics.get("test_accuracy") for run in each) for each in page.lines["runs"]],
        steps_to=[_mean(map(_steps_to, each)) for each in page.lines["runs"]],
        size_met=sizes["size_fraction"] / sizes["size_target"],
        closed=[", ".join(_closed(run)) for run in runs],
        target=page.lines["target"].where(page.lines["target"] > 0),
        total_ratio=_ratios(page.lines),
        rates=page.lines["rates"].map(lambda tried: ", ".join(f"{rate:g}" for rate in tried)),
    )
    columns = ["device", "arm", "way", "target", "size_met", "total_ratio", "parameters", "left", "train_steps", *LOSS]
    return lines[[*columns, "seeds", "test_accuracy", "steps_to", "lr", "at_edge", "rates", "closed", "remarks"]]


def _ratios(lines: pd.DataFrame) -> pd.Series:
    """Return how many times fewer parameters than dense each line has, to one decimal; NaN without dense."""
    dense = lines.loc[(lines["arm"] == DENSE) & lines["parameters"].notna(), "parameters"]
    return (dense.max() / lines["parameters"]).astype(float).round(1)


def _numbers(values: Iterable[float | None]) -> list[float]:
    """Return values as numbers, NaN where there is none."""
    return [math.nan if value is None else value for value in values]


def _mean(values: Iterable[float | None]) -> float:
    """Return the mean, NaN of none or where one is not known."""
    known = _numbers(values)
    return sum(known) / len(known) if known else math.nan


def _steps_to(run: RecordedTraining) -> float | None:
    """Return after how many steps the accuracy for choosing is :data:`ENOUGH`, linear between points of the curve."""
    before = (0.0, 0.0)
    for point in run.curve:
        after = point["step"], point["metrics"].get("accuracy", math.nan)
        if after[1] >= ENOUGH:
            share = (ENOUGH - before[1]) / (after[1] - before[1])
            return float(before[0] + share * (after[0] - before[0]))
        before = after
    return None


def _closed(run: RecordedTraining | None) -> list[str]:
    """Return the layers of a run that have closed as a whole."""
    ranks = run.curve[-1]["ranks"] if run and run.curve else {}
    return [name for name, one in ranks.items() if not all(one)]


def beside_scratch(lines: pd.DataFrame) -> pd.DataFrame:
    """Return how far staged arms are apart from the same arm of their size from scratch."""
    scratch = lines["way"] == FROM_SCRATCH
    return against(lines[~scratch], lines[scratch], ["arm", "optimizer", "train_steps"])


_MORE = {
    "way": Format("ranks", left=True),
    "target": Format("target"),
    "size_met": Format("reached / target"),
    "left": Format("entries of cores", digits=0),
    "test_accuracy": Format("accuracy, %", digits=4),
    "steps_to": Format(f"steps to {ENOUGH:g} %", digits=0),
}


def shown(page: Stages, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the differences to the same arm from scratch."""
    less = worded(*with_sure(beside_scratch(page.lines)))
    own = table.assign(less_scratch=less)
    columns = ["arm", "way", "target", "size_met", "parameters", "left", "test_loss", "less_scratch"]
    columns += [name for name in ("test_accuracy", "steps_to") if own[name].notna().any()]
    return readable(own, [*columns, "lr"], _MORE)


def about(page: Stages, table: pd.DataFrame) -> dict[str, Any]:
    """Return the layers that closed as a whole, by arm, way and target, beside what formats say of searches."""
    closed = [
        f"{line.arm}, {line.way}, to {line.target:.3g}: {line.closed}" for line in frame.each(table) if line.closed
    ]
    has_accuracy = bool(table["test_accuracy"].notna().any())
    return {
        "closed": closed,
        "has_accuracy": has_accuracy,
        **formats.facts_of(page, table.assign(optimizer=page.lines["optimizer"])),
    }


def draw(page: Stages, table: pd.DataFrame, caption: Caption) -> Figure:  # noqa: ARG001 - as every artifact
    """Draw the loss of each arm, a panel for each size."""
    handles = [
        Line2D([], [], linestyle="", marker="o", color=style.INK, label="mean over seeds"),
        Line2D([], [], **DENSE_LINE, label=f"{DENSE}, {FROM_SCRATCH}: its loss"),
        *style.whisker_handles(["range over seeds"]),
    ]
    is_whole = (table["arm"] == DENSE) & (table["way"] == FROM_SCRATCH)
    others = table[~is_whole & table["test_loss"].notna()].reset_index(drop=True)
    rows = [f"{line.arm}, {line.way}, {line.parameters / 1e3:.0f} k" for line in frame.each(others)]
    paper, [[axes]] = panel_page(
        caption, [["Loss by arm and size of the whole model"]], 0.26 * len(rows) + 1, handles, 3
    )
    for at, line in enumerate(frame.each(others)):
        axes.plot([line.test_loss_low, line.test_loss_high], [at, at], **style.WHISKER | {"marker": "|"})
        axes.plot([line.test_loss], [at], linestyle="", marker="o", color=style.INK, markersize=5)
    for loss in table.loc[is_whole, "test_loss"].dropna():
        axes.axvline(loss, **DENSE_LINE)
    axes.set_xscale("log")
    axes.set_yticks(range(len(rows)), rows, fontsize=7)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    style.number_axis(axes.xaxis, LogLocator(10, subs=(1, 2, 5)))
    axes.set_xlabel("loss on reported data, nats", fontsize=8)
    return paper.finish()


ARTIFACT = Artifact(
    name="pointer_stages",
    summary="loss of two-stage training on pointer labels beside formats of its size from scratch",
    experiments=tuple(BEDS),
    measure="train",
    lenders=tuple(BEDS.values()),
    made_by="make compare-pointer",
    order=45,
    select=select,
    table=table,
    shown=shown,
    about=about,
    draw=draw,
)
