"""Is a format at fault, or its optimization: trained from scratch, decomposed from a dense model, or pruned.

A figure the paper lacks. A dense model that is trained and then decomposed starts the format at weights that training
found without it. If the format then ends lower than from scratch in as many steps, it can hold more than training finds
in it; if it ends higher, training from scratch is not what limits it. Pruned models are CoMERA's own: more ranks than
needed, closed by rank control, beside formats that had this size all along.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from figures import frame
from figures.arms import DENSE
from figures.artifact import Artifact
from figures.artifacts import formats
from figures.artifacts.formats import DENSE_LINE, LOSS, OPTIMIZERS
from figures.columns import readable
from figures.draw.captions import Caption
from figures.draw.layout import panel_page
from figures.draw.style import INK, WHISKER, whisker_handles, with_room
from figures.frame import Records
from figures.stats.searches import against, comparable, searched

EXPERIMENTS = ("formats_decomposed", "formats_pruned")

#: The trainings from scratch that they are beside.
SCRATCH = "formats_tiny"


#: The columns of model, data and batch, which all trainings of a page share.
_BED = (*frame.MODEL, "data_hash", "batch_size", "precision")


@dataclass(frozen=True, kw_only=True, eq=False)
class Origins(frame.Page):
    """The searches of one device, by where the weights come from.

    ``origin`` is ``scratch``, ``decomposed`` or ``pruned``, its ``origin_amount`` how many steps were dense, or which
    share of its size was left.
    """

    lines: pd.DataFrame


def select(records: Records) -> list[Origins]:
    """Return a page for each device that has trainings of these experiments.

    They are compared by length and optimizer, with which the dense rate of a decomposed model goes.
    """
    pages = []
    for device, df in frame.by_device(records):
        optimizer = frame.column(df, "training.recipe.optimizer")
        dense = frame.column(df, "stages.dense")
        pruned = df["target_ratio"].notna()
        runs = df.assign(
            optimizer=optimizer,
            bed=frame.settings(df, _BED),
            train_steps=df["train_steps"].fillna(0),
            origin=np.select([dense.notna(), pruned], ["decomposed", "pruned"], "scratch"),
            origin_amount=dense.where(dense.notna(), df["target_ratio"]).astype(float).fillna(0.0),
        )
        runs = runs[(df["measure"] == "train") & optimizer.notna()]
        own = runs[runs["experiment"].isin(EXPERIMENTS)]
        if own.empty:
            continue
        own, left_out = frame.narrow(own, _BED, ["cell_id"], "training(s)")
        from_scratch = (runs["experiment"] == SCRATCH) & (runs["origin"] == "scratch")
        some = pd.concat([own, runs[from_scratch & (runs["bed"] == own["bed"].iloc[0])]])
        found, kept = [], []
        by = ["origin", "origin_amount", "train_steps", "optimizer"]
        for (origin, amount, *_), alike in frame.groups(some, by):
            newest, notes = comparable(alike, f"training(s) {words_of(origin, amount)}")
            found.append(searched(newest).assign(origin=origin, origin_amount=amount))
            kept.append(newest)
            left_out += notes
        lines, others = pd.concat(found), own[own["origin"] != "scratch"]
        same = lines["optimizer"].isin(others["optimizer"])
        same &= lines["ratio"].isna() | lines["ratio"].isin(others["ratio"])
        methods = lines["run"].map(lambda run: run and run.method)
        lines = formats.ordered(lines[same & methods.isin([DENSE, *others["method"]])], "test_loss")
        shown = frame.oldest_first(pd.concat(kept))
        pages.append(Origins(**device, df=shown, left_out=tuple(left_out), lines=lines))
    return pages


def words_of(origin: str, amount: float) -> str:
    """Return an origin in words.

    >>> words_of("decomposed", 1000.0)
    'decomposed after 1,000 dense steps'
    """
    if origin == "decomposed":
        return f"decomposed after {amount:,.0f} dense steps"
    return "from scratch" if origin == "scratch" else f"pruned to {amount:.3g} of its size"


def table(page: Origins) -> pd.DataFrame:
    """Return a line per arm, optimizer and origin, at the best of the rates that were tried."""
    amount = page.lines["origin_amount"].where(page.lines["origin_amount"] > 0)
    rates = page.lines["rates"].map(len)
    lines = page.lines.assign(device=page.device, origin_amount=amount, rates=rates)
    columns = ["device", "optimizer", "ratio", "arm", "origin", "origin_amount", "parameters"]
    return lines[[*columns, "train_steps", *LOSS, "seeds", "lr", "at_edge", "rates", "remarks"]]


def beside_scratch(lines: pd.DataFrame) -> pd.DataFrame:
    """Return how far arms are apart from themselves from scratch, of the same size and number of steps."""
    scratch = lines["origin"] == "scratch"
    return against(lines[~scratch], lines[scratch], ["arm", "optimizer", "train_steps"])


def shown(page: Origins, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the differences to the same arm from scratch."""
    own = table.assign(
        optimizer=table["optimizer"].map(OPTIMIZERS),
        origin=[words_of(line.origin, line.origin_amount) for line in frame.each(page.lines)],
        less_scratch=beside_scratch(page.lines)["less"],
    )
    columns = ["optimizer", "arm", "origin", "parameters", "train_steps", "test_loss"]
    return readable(own, [*columns, "less_scratch", "lr"])


def about(page: Origins, table: pd.DataFrame) -> dict[str, Any]:
    """Return which decomposed arms end surely above, surely below and not surely apart from themselves from scratch."""
    found = page.lines.join(beside_scratch(page.lines), how="inner")
    found = found[found["origin"] == "decomposed"]
    standing = formats.by_standing(formats.names_of(found), found["beside"])
    return {"against": standing, **formats.facts_of(page, table)}


#: By origin its marker, the marker's face, and what a legend calls it.
_ORIGINS = {
    "scratch": ("o", INK, "from scratch"),
    "decomposed": ("D", "white", "decomposed from dense"),
    "pruned": ("v", "#8fc1d4", "pruned"),
}


def draw(page: Origins, table: pd.DataFrame, caption: Caption) -> Figure:  # noqa: ARG001 - as every artifact
    """Draw the loss of each format by where its weights come from."""
    found = set(table["origin"])
    handles = [_dot(kind, label=words) for kind, (*_, words) in _ORIGINS.items() if kind in found]
    handles.append(Line2D([], [], **DENSE_LINE, label=f"{DENSE}: its loss"))
    handles += whisker_handles(["range over seeds"])
    grid = [[OPTIMIZERS[name] for name in table["optimizer"].unique()]]
    paper, [panels] = panel_page(caption, grid, 3.6, handles, 5)
    for (_, part), axes in zip(table.groupby("optimizer", sort=False), panels, strict=True):
        _panel(axes, part.dropna(subset=["test_loss", "parameters"]))
    return paper.finish()


def _dot(kind: str, x: Sequence[float] = (), y: Sequence[float] = (), **more: Any) -> Line2D:
    """Return the marker of an origin, at places or, without any, for a legend."""
    marker, face, _ = _ORIGINS[kind]
    return Line2D(x, y, linestyle="", marker=marker, color=INK, markerfacecolor=face, markersize=5, **more)


def _panel(axes: Any, table: pd.DataFrame) -> None:
    """Draw one optimizer's arms, a line for each arm and size, the lowest loss at the top."""
    names: list[str] = []
    for line in table.to_dict("records"):
        if line["arm"] == DENSE:
            axes.axvline(line["test_loss"], **DENSE_LINE)
            continue
        name = f"{line['arm']}, {line['parameters'] / 1e3:.0f} k"
        if name not in names:
            names.append(name)
        at = names.index(name) + 0.14 * (list(_ORIGINS).index(line["origin"]) - 1)
        bounds = [line["test_loss_low"], line["test_loss_high"]]
        axes.plot(bounds, [at, at], **WHISKER | {"marker": "|"})
        axes.add_line(_dot(line["origin"], [line["test_loss"]], [at], zorder=3))
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(with_room(table["test_loss_low"], table["test_loss_high"], 0.04, 0.04))
    axes.set_xlabel("loss, nats", fontsize=8)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))


ARTIFACT = Artifact(
    name="formats_origins",
    summary="loss of formats from scratch, decomposed from a dense model, or pruned; an image per device",
    experiments=EXPERIMENTS,
    measure="train",
    lenders=(SCRATCH,),
    made_by="make compare-formats",
    order=44,
    select=select,
    table=table,
    shown=shown,
    about=about,
    draw=draw,
)
