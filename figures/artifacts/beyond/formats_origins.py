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
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from bench.core.record import Record
from figures.artifact import Artifact
from figures.artifacts.beyond.formats import OPTIMIZERS
from figures.page.drawn import Caption
from figures.page.layout import panel_page
from figures.page.notes import closing_notes, device_fact, first_upper, listed
from figures.page.style import DENSE_STROKE, INK, WHISKER
from figures.records.searches import SURE_SEEDS, Search, recipe_of, searches, training_setting
from figures.records.select import (
    DENSE,
    Selected,
    Setting,
    by_device,
    model_setting,
    narrow,
    newest,
    oldest_first,
    settings_of,
)
from figures.records.sizes import equal_size
from figures.records.time_values import workload_words
from figures.text import REMARKS, Column

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
        """The origin that the stages of a training tell."""
        stages = settings_of(record, "training").get("stages", [])
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


@dataclass(frozen=True, kw_only=True)
class Origins(Selected):
    """The trainings of one device, by origin."""

    found: tuple[tuple[Origin, Search], ...]

    def scratch(self, origin: Origin, search: Search) -> Search | None:
        """The same arm from scratch, with as many parameters and steps; None for what is itself from scratch."""
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


def _cell(record: Record) -> str:
    return record.cell_id


def _bed(record: Record) -> Setting:
    """Model, data and batch, which all trainings of a page share."""
    return {
        **model_setting(record),
        "data": record.data_hash,
        "batch": record.batch_size,
        "precision": record.precision,
    }


def select(records: Sequence[Record]) -> list[Origins]:
    """A page for each device that has trainings of these experiments."""
    pages = []
    for device, mine in by_device(records):
        runs = [one for one in mine if one.measure == "train" and recipe_of(one)]
        own = [one for one in runs if one.experiment in EXPERIMENTS]
        if not own:
            continue
        own, left_out = narrow(own, _bed, _cell, "training(s)")
        bed = _bed(own[0])
        from_scratch = [one for one in runs if one.experiment == SCRATCH and _bed(one) == bed]
        found, shown = [], []
        for origin in sorted({Origin.of(one) for one in own} | {Origin("scratch")}):
            some = [one for one in (*own, *from_scratch) if Origin.of(one) == origin]
            for group in _alike(some):
                kept, notes = narrow(group, training_setting, _cell, f"training(s) {origin.words}")
                kept = oldest_first(newest(kept, _cell).values())
                found += [(origin, search) for search in searches(kept, ())]
                shown += kept
                left_out += notes
        pages.append(Origins(**device, shown=oldest_first(shown), left_out=tuple(left_out), found=tuple(found)))
    return pages


def _alike(records: Sequence[Record]) -> list[list[Record]]:
    """Group trainings by length and by optimizer, with which the dense rate of a decomposed model goes."""
    groups: dict[tuple[int, str], list[Record]] = {}
    for one in records:
        groups.setdefault((one.train_steps or 0, str(recipe_of(one)["optimizer"])), []).append(one)
    return [groups[key] for key in sorted(groups)]


@dataclass(frozen=True)
class OriginsRow:
    """A search with where its weights come from."""

    page: Origins
    origin: Origin
    search: Search

    @property
    def optimizer(self) -> str:
        return OPTIMIZERS.get(self.search.slot.optimizer, self.search.slot.optimizer)

    @property
    def less_scratch(self) -> str | None:
        """Its loss less that of the same arm from scratch, and whether that is sure."""
        return self.search.less(self.page.scratch(self.origin, self.search))


def rows_of(page: Origins) -> list[OriginsRow]:
    """By optimizer and loss; of dense models that of the same optimizers only."""
    rows = [OriginsRow(page, origin, search) for origin, search in page.found]
    mine = {row.search.slot.optimizer for row in rows if row.origin.kind != "scratch"}
    rows = [row for row in rows if row.search.slot.optimizer in mine]
    order = list(OPTIMIZERS)

    def place(row: OriginsRow) -> tuple[Any, ...]:
        loss = row.search.loss
        return order.index(row.search.slot.optimizer), math.inf if loss is None else loss

    return sorted(rows, key=place)


def columns(page: Origins, _: Sequence[OriginsRow]) -> list[Column[OriginsRow]]:
    def head(row: OriginsRow) -> dict[str, object]:
        slot = row.search.slot
        return {"device": page.device, "optimizer": slot.optimizer, "ratio": slot.ratio}

    return [
        Column("optimizer", lambda row: row.optimizer, head, left=True),
        Column("arm", lambda row: row.search.slot.arm, lambda row: {"arm": row.search.slot.arm}, left=True),
        Column(
            "weights",
            lambda row: row.origin.words,
            lambda row: {"origin": row.origin.kind, "origin_amount": row.origin.amount or None},
            left=True,
        ),
        Column(
            "parameters",
            lambda row: f"{row.search.run.parameters:,}" if row.search.run and row.search.run.parameters else None,
            lambda row: {"parameters": row.search.run.parameters if row.search.run else None},
            whole=True,
        ),
        Column(
            "steps",
            lambda row: f"{row.search.run.train_steps:,}" if row.search.run else None,
            lambda row: {"train_steps": row.search.run.train_steps if row.search.run else None},
            whole=True,
        ),
        Column("loss", lambda row: row.search.loss_text, lambda row: row.search.loss_columns),
        Column("less scratch", lambda row: row.less_scratch),
        Column(
            "best rate",
            lambda row: None if row.search.best is None else f"{row.search.best:g}",
            lambda row: {"lr": row.search.best, "at_edge": row.search.at_edge, "rates": len(row.search.tried)},
        ),
        Column(REMARKS, lambda row: row.search.remarks, lambda row: {"remarks": row.search.remarks}, left=True),
    ]


def verdicts(page: Origins) -> dict[str, list[str]]:
    """The arms by where they end when decomposed: surely above or below their own scratch, or not surely apart."""
    found: dict[str, list[str]] = {"above": [], "apart": [], "below": []}
    for row in rows_of(page):
        rival = page.scratch(row.origin, row.search)
        if row.origin.kind == "decomposed" and rival is not None:
            place = "above" if rival.surely_below(row.search) else "apart"
            found["below" if row.search.surely_below(rival) else place].append(
                f"{row.search.slot.arm} ({row.optimizer})"
            )
    return found


def _sentences(page: Origins) -> list[str]:
    words = {
        "above": "Decomposed it ends surely higher than from scratch: training from scratch is not what limits it",
        "apart": "Decomposed it ends not surely apart from scratch",
        "below": "Decomposed it ends surely lower than from scratch, so that it holds more than training finds",
    }
    return [f"{words[place]}: {', '.join(arms)}." for place, arms in verdicts(page).items() if arms]


def _title(page: Origins) -> str:
    found = verdicts(page)
    if not any(found.values()):
        return "Formats from scratch, decomposed and pruned"
    counts = f"{len(found['above'])} higher, {len(found['apart'])} not surely apart, {len(found['below'])} lower"
    return f"Formats decomposed from dense, beside themselves from scratch: {counts}"


def caption(page: Origins, rows: Sequence[OriginsRow]) -> Caption:
    first = next(one for one in page.shown if one.measure == "train")
    words = workload_words(first)
    return Caption(
        title=_title(page),
        facts=(
            device_fact(page, listed(page, "precision")),
            f"{first_upper(words['model'])} on {first.dataset!r} data, batches of {first.batch_size:,} "
            f"{words['example']}s; {len(rows)} arms, {len(page.shown):,} records.",
        ),
        notes=[
            *_sentences(page),
            "Loss is on data that nothing was chosen by, the mean over seeds at the chosen rate; brackets are the "
            f"range over seeds. Sure: all of at least {SURE_SEEDS} seeds of one lie below all of the other.",
            "Less scratch: the same arm, optimizer, size (within 2 %) and number of steps, dense steps counted.",
            *closing_notes(page),
        ],
        remarks=[
            f"{row.search.slot.arm} ({row.optimizer}), {row.origin.words}: {row.search.remarks}"
            for row in rows
            if row.search.remarks
        ],
    )


_MARKERS = {"scratch": ("o", INK), "decomposed": ("D", "white"), "pruned": ("v", "#8fc1d4")}
_KINDS = {"scratch": "from scratch", "decomposed": "decomposed from dense", "pruned": "pruned"}


def draw(_: Origins, rows: Sequence[OriginsRow], caption: Caption) -> Figure:
    kinds = [kind for kind in _MARKERS if any(row.origin.kind == kind for row in rows)]
    handles = [_dot(kind, [], [], label=_KINDS[kind]) for kind in kinds]
    handles.append(Line2D([], [], color=DENSE_STROKE.colour, linewidth=0.8, label=f"{DENSE}: its loss"))
    handles.append(Line2D([], [], **WHISKER, label="range over seeds"))
    optimizers = list(dict.fromkeys(row.search.slot.optimizer for row in rows))
    grid = [[OPTIMIZERS[name] for name in optimizers]]
    foot = (*caption.of_picture, *caption.notes)
    paper, [lines] = panel_page(caption.title, caption.facts, grid, foot, 3.6, handles, 5)
    for optimizer, axes in zip(optimizers, lines, strict=True):
        _panel(axes, [row for row in rows if row.search.slot.optimizer == optimizer])
    return paper.finish()


def _dot(kind: str, x: Sequence[float], y: Sequence[float], **more: Any) -> Line2D:
    marker, face = _MARKERS[kind]
    return Line2D(x, y, linestyle="", marker=marker, color=INK, markerfacecolor=face, markersize=5, **more)


def _panel(axes: Any, rows: Sequence[OriginsRow]) -> None:
    """One optimizer's arms, a line for each arm and size, the lowest loss at the top."""
    names: list[str] = []
    values: list[float] = []
    for row in rows:
        run, loss, bounds = row.search.run, row.search.loss, row.search.range
        if run is None or run.parameters is None or loss is None or bounds is None:
            continue
        values += bounds
        if row.search.slot.arm == DENSE:
            axes.axvline(loss, color=DENSE_STROKE.colour, linewidth=0.8, zorder=1)
            continue
        name = f"{row.search.slot.arm}, {run.parameters / 1e3:.0f} k"
        if name not in names:
            names.append(name)
        at = names.index(name) + 0.14 * (list(_MARKERS).index(row.origin.kind) - 1)
        axes.plot(bounds, [at, at], **WHISKER | {"marker": "|"})
        axes.add_line(_dot(row.origin.kind, [loss], [at], zorder=3))
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set_ylim(len(names) - 0.4, -0.6)
    room = 0.04 * (max(values) - min(values) or 1.0)
    axes.set_xlim(min(values) - room, max(values) + room)
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
    rows=rows_of,
    columns=columns,
    caption=caption,
    draw=draw,
)
