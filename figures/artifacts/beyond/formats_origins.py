"""Is a format at fault, or its optimization: trained from scratch, decomposed from a dense model, or pruned.

A figure the paper lacks. A dense model that is trained and then decomposed starts the format at weights that training
found without it. If the format then ends lower than from scratch in as many steps, it can hold more than training finds
in it; if it ends higher, training from scratch is not what limits it. Pruned models are CoMERA's own: more ranks than
needed, closed by rank control, beside formats that had this size all along.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from bench.core.record import Record
from figures import frame
from figures.arms import DENSE
from figures.artifact import Artifact
from figures.artifacts.beyond.formats import OPTIMIZERS, dense_line, doubtful, loss_limits, seeds_handle, training
from figures.columns import readable, table_of
from figures.frame import Records
from figures.page.captions import beside
from figures.page.drawn import Caption
from figures.page.layout import panel_page
from figures.page.style import DENSE_STROKE, INK, WHISKER
from figures.records.searches import SURE_SEEDS, Search, comparable, searches
from figures.records.sizes import equal_size

EXPERIMENTS = ("formats_decomposed", "formats_pruned")

#: The trainings from scratch that they are beside.
SCRATCH = "formats_tiny"


@dataclass(frozen=True, order=True)
class Origin:
    """Where the weights of a format come from: ``kind`` and how many steps were dense, or which share was left."""

    kind: str  # "scratch", "decomposed" or "pruned"
    amount: float = 0.0

    @classmethod
    def of(cls, record: Record) -> Origin:
        """Return the origin by the stages of a training."""
        stages = frame.settings_of(record, "training").get("stages", [])
        if stages and stages[0]["name"] == DENSE:
            return cls("decomposed", stages[0]["steps"])
        if record.size_target is not None:
            return cls("pruned", record.size_target)
        return cls("scratch")

    @property
    def words(self) -> str:
        if self.kind == "decomposed":
            return f"decomposed after {self.amount:,.0f} dense steps"
        return "from scratch" if self.kind == "scratch" else f"pruned to {self.amount:g} of its cores"


@dataclass(frozen=True, kw_only=True, eq=False)
class Origins(frame.Page):
    """The trainings of one device, by origin."""

    found: tuple[tuple[Origin, Search], ...]

    @cached_property
    def ordered(self) -> list[tuple[Origin, Search]]:
        """Return searches by optimizer and loss, of optimizers under which not all was trained from scratch."""
        order = list(OPTIMIZERS)
        mine = {search.slot.optimizer for origin, search in self.found if origin.kind != "scratch"}

        def place(one: tuple[Origin, Search]) -> tuple[int, float]:
            loss = one[1].loss
            return order.index(one[1].slot.optimizer), math.inf if loss is None else loss

        return sorted(((origin, one) for origin, one in self.found if one.slot.optimizer in mine), key=place)

    def scratch(self, origin: Origin, search: Search) -> Search | None:
        """Return the same arm from scratch, with as many parameters and steps; None for what is itself from scratch."""
        if origin.kind == "scratch" or search.run is None:
            return None
        for other, rival in self.found:
            same = (rival.slot.arm, rival.slot.optimizer) == (search.slot.arm, search.slot.optimizer)
            if other.kind != "scratch" or not same or rival.run is None:
                continue
            alike = rival.run.train_steps == search.run.train_steps
            if alike and equal_size(rival.run.parameters, search.run.parameters):
                return rival
        return None


#: The columns of model, data and batch, which all trainings of a page share.
_BED = (*frame.MODEL, "data_hash", "batch_size", "precision")


def select(records: Records) -> list[Origins]:
    """Return a page for each device that has trainings of these experiments.

    They are compared by length and optimizer, with which the dense rate of a decomposed model goes.
    """
    pages = []
    for device, df in frame.by_device(records):
        optimizer = frame.column(df, "training.recipe.optimizer")
        runs = df.assign(optimizer=optimizer, bed=frame.settings(df, _BED), train_steps=df["train_steps"].fillna(0))
        runs = runs[(df["measure"] == "train") & optimizer.notna()]
        own = runs[runs["experiment"].isin(EXPERIMENTS)]
        if own.empty:
            continue
        own, left_out = frame.narrow(own, _BED, ["cell_id"], "training(s)")
        scratch = runs[(runs["experiment"] == SCRATCH) & (runs["bed"] == own["bed"].iloc[0])]
        some = pd.concat([own, scratch])
        some = some.assign(origin=[Origin.of(one) for one in some["record"]])
        found, shown = list[tuple[Origin, Search]](), list[pd.DataFrame]()
        for (origin, *_), group in frame.groups(some, ["origin", "train_steps", "optimizer"]):
            if origin in {Origin("scratch"), *some.loc[own.index, "origin"]}:
                kept, notes = comparable(group, f"training(s) {origin.words}")
                found += [(origin, search) for search in searches(list(kept["record"]))]
                shown.append(kept)
                left_out += notes
        df = frame.oldest_first(pd.concat(shown))
        pages.append(Origins(**device, df=df, left_out=tuple(left_out), found=tuple(found)))
    return pages


def table(page: Origins) -> pd.DataFrame:
    """Return a line per arm, optimizer and origin, at the best of the rates that were tried."""
    lines = []
    for origin, search in page.ordered:
        columns = search.columns("parameters", "train_steps")
        named = {name: columns.pop(name) for name in ("optimizer", "ratio", "arm")}
        lines.append(
            {
                "device": page.device,
                **named,
                "origin": origin.kind,
                "origin_amount": origin.amount or None,
                **columns,
                "lr": search.best,
                "at_edge": search.at_edge,
                "rates": len(search.tried),
                "remarks": search.remarks,
            }
        )
    return table_of(lines, whole=("parameters", "train_steps"))


def shown(page: Origins, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the differences to the same arm from scratch."""
    more: dict[str, Any] = {
        "optimizer": table["optimizer"].map(OPTIMIZERS),
        "origin": [origin.words for origin, _ in page.ordered],
        "less_scratch": [search.less(page.scratch(origin, search)) for origin, search in page.ordered],
    }
    columns = ["optimizer", "arm", "origin", "parameters", "train_steps", "test_loss", "less_scratch", "lr"]
    return readable(table.assign(**more), columns)


def about(page: Origins, table: pd.DataFrame) -> dict[str, Any]:
    """Return which decomposed arms end surely above, surely below and not surely apart from themselves from scratch."""
    against: dict[str, list[str]] = {"above": [], "apart": [], "below": []}
    for origin, search in page.ordered:
        rival = page.scratch(origin, search)
        if origin.kind == "decomposed" and rival is not None:
            against[search.beside(rival)].append(f"{search.slot.arm} ({OPTIMIZERS[search.slot.optimizer]})")
    return {"against": against, **training(page), "sure_seeds": SURE_SEEDS, "doubtful": doubtful(table)}


#: By origin its marker, the marker's face, and what a legend calls it.
_ORIGINS = {
    "scratch": ("o", INK, "from scratch"),
    "decomposed": ("D", "white", "decomposed from dense"),
    "pruned": ("v", "#8fc1d4", "pruned"),
}


def draw(page: Origins, table: pd.DataFrame, caption: Caption) -> Figure:  # noqa: ARG001 - as every artifact
    """Draw the loss of each format by where its weights come from."""
    handles = [_dot(kind, label=words) for kind, (*_, words) in _ORIGINS.items() if (table["origin"] == kind).any()]
    handles.append(Line2D([], [], color=DENSE_STROKE.colour, linewidth=0.8, label=f"{DENSE}: its loss"))
    handles.append(seeds_handle())
    parts = [part for _, part in table.groupby("optimizer", sort=False)]
    grid = [[OPTIMIZERS[name] for name in table["optimizer"].unique()]]
    paper, [panels] = panel_page(caption, grid, 3.6, handles, 5)
    for part, axes in zip(parts, panels, strict=True):
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
            dense_line(axes, line["test_loss"], upright=True)
            continue
        name = f"{line['arm']}, {line['parameters'] / 1e3:.0f} k"
        if name not in names:
            names.append(name)
        at = names.index(name) + 0.14 * (list(_ORIGINS).index(line["origin"]) - 1)
        axes.plot([line["test_loss_low"], line["test_loss_high"]], [at, at], **WHISKER | {"marker": "|"})
        axes.add_line(_dot(line["origin"], [line["test_loss"]], [at], zorder=3))
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(*loss_limits(table, 0.04, 0.04))
    axes.set_xlabel("loss, nats", fontsize=8)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))


ARTIFACT = Artifact(
    name="formats_origins",
    heading="From scratch, decomposed or pruned",
    summary="loss of formats from scratch, decomposed from a dense model, or pruned; an image per device",
    experiments=EXPERIMENTS,
    measure="train",
    lenders=(SCRATCH,),
    made_by="make reproduce-formats",
    order=44,
    select=select,
    table=table,
    shown=shown,
    about=about,
    caption=beside(__file__),
    draw=draw,
)
