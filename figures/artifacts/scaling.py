"""Training on several ranks: bytes per step, time against the link's rate, and the model beyond what was measured.

Four panels: what each arm sends, by three counts; the measured step over the rate of the link between two ranks,
beside the model (:mod:`bench.estimate.communication`); the model for up to 1,024 ranks; and which arm takes least at
which rate.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator

from bench.core.record import Record
from bench.estimate.communication import LINKS, Training, winners
from figures import frame
from figures.arms import COMERA, DENSE
from figures.artifact import Artifact
from figures.artifacts.scaling_model import RANKS, WORKLOADS, PaperArm, fitted, papers_of, step_ms
from figures.artifacts.scaling_steps import SAME, StepsPage, base_arms, by_arm, rate_words, style
from figures.columns import across, bounds_kinds, readable
from figures.draw import facts
from figures.draw.captions import Caption
from figures.draw.layout import Paper, legend
from figures.draw.style import (
    FAINT,
    INK,
    WHISKER,
    fill_handle,
    note,
    nothing_drawn,
    number_axis,
    stroke_handle,
    whisker_handles,
)
from figures.frame import Records, each
from figures.text import NOT_RECORDED, bounds, significant

#: The number of ranks at which links are compared on paper.
COMPARED = 64

#: The model is held to be right within this share of what was measured.
TOLERANCE = 0.15

#: Rates in Gbit/s over which links are compared: from a home's to NVLink's.
SLOWEST, QUICKEST = 0.01, 3600.0

#: Links of the panels on paper, with dashes and the filling of markers: what most have, and what large machines have.
SHOWN_LINKS: dict[str, tuple[Any, str]] = {
    "ethernet_10": ("-", "full"),
    "infiniband": ((0, (3, 1.5)), "none"),
    "nvlink": ((0, (1, 1.2)), "left"),
}

#: What is sent per step and rank, counted three ways: how, the place beside an arm's row, the look of a mark.
_DOT = {"linestyle": "", "markersize": 4.2}
COUNTS: dict[str, tuple[str, float, dict[str, Any]]] = {
    "sent_buckets_mib": ("by buckets", -0.27, {**_DOT, "marker": "o"}),
    "sent_analytic_mib": ("on paper", 0.0, {**_DOT, "marker": "s", "markerfacecolor": "white"}),
    "sent_interface_mib": ("by the interface", 0.27, {**_DOT, "marker": "x"}),
}

#: The quantity of a measured step and its unit in the table, by the column of the steps.
_QUANTITIES = {
    "step_ms": ("step", "ms"),
    "time_over_comera": ("step over comera's", "x"),
    "compute_time_ms": ("step without exchange", "ms"),
    "model_ms": ("step by the model", "ms"),
    **{column: (f"sent {words}", "MiB") for column, (words, *_) in COUNTS.items()},
    "exchange_memory_mib": ("held by the exchange", "MiB"),
}
_COLUMNS = ["of", "arm", "ranks", "link", "quantity", "unit", *bounds("value", None), "launches"]


class ScalingPage(StepsPage):
    """Measured steps, and what is on paper, of which records lie beside them."""

    @property
    def own(self) -> pd.DataFrame:
        measured = self.df[self.df["measure"] == "run"]
        return self.df if measured.empty else measured

    @cached_property
    def papers(self) -> list[PaperArm]:
        return papers_of(self.df[self.df["measure"] == "exchanged"])

    @cached_property
    def model(self) -> tuple[dict[str, Training], pd.Series]:
        return fitted(self.steps, self.df[self.df["measure"] == "exchanged"])

    @property
    def ranks(self) -> int:
        """Return the number of ranks of the measured steps."""
        return int(self.steps["world_size"].max()) if len(self.steps) else 2


def _label(record: Record) -> str:
    """Return the arm, with the size of its buckets and the steps between averages where they were set."""
    bucket = "" if record.bucket_mib is None else f", buckets of {record.bucket_mib:g} MiB"
    every = "" if record.local_steps is None else f", every {record.local_steps}"
    return f"{record.arm}{bucket}{every}"


def select(records: Records) -> list[ScalingPage]:
    """Return a page per device that measured; without any one page of what is on paper alone."""
    df = frame.of(records)
    df = df.assign(label=[_label(record) for record in df["record"]], base=base_arms(df))
    papers = frame.newest(df[df["measure"] == "exchanged"], ["workload", "arm"])
    steps = df[(df["measure"] == "run") & (df["world_size"] > 1)]
    pages = frame.pages(steps, ("label", "link_mbit"), SAME, "measurements", ScalingPage)
    if not pages and len(papers):
        pages = [ScalingPage(device=frame.oldest_first(papers)["device"].iloc[-1], df=papers[:0])]
    dfs = [frame.oldest_first(pd.concat([page.df, papers])) for page in pages]
    return [replace(page, df=df) for page, df in zip(pages, dfs, strict=True)]


def table(page: ScalingPage) -> pd.DataFrame:
    """Return a line per number: of each measured step, of models on paper, and of which arm takes least."""
    rows: list[tuple[Any, ...]] = []  # as many of the columns as a number has
    steps = page.steps.assign(model_ms=page.model[1], step_ms_launches=page.steps["launches"])
    for step in steps.to_dict("records"):
        place = ("measured", step["arm"], page.ranks, step["link"])
        for column, (quantity, unit) in _QUANTITIES.items():
            ends = [step.get(f"{column}_{end}") for end in ("low", "high", "bounds", "launches")]
            rows.append((*place, quantity, unit, step[column] or None, *ends))
    for one in page.papers:
        for ranks in RANKS:
            strong, which = one.strong(ranks), (one.workload, one.arm, ranks)
            rows.append((*which, "any", "sent on paper", "MiB", one.weak.sent_mib(ranks)))
            for link in (link for link in LINKS.values() if ranks <= link.most_ranks):
                own = (*which, link.words)
                rows.append((*own, "step, weak scaling", "ms", one.weak.step_ms(ranks, link)))
                rows.append((*own, "step, strong scaling", "ms", strong.step_ms(ranks, link)))
    for words, curves in _cases(page).items():
        for arm, low, high in winners(curves, SLOWEST, QUICKEST):
            rows.append((words, arm, 0, rate_words(low), "least time up to", "Gbit/s", high))
    whole = [(*row, *[None] * (len(_COLUMNS) - len(row))) for row in rows]
    found = pd.DataFrame(whole, columns=_COLUMNS)
    found["launches"] = found["launches"].where(found["launches"] != 0)
    found.insert(0, "device", page.device)
    return found.astype({"value": float, "launches": "Int64"})


def _cases(page: ScalingPage) -> dict[str, dict[str, Callable[[float], float]]]:
    """Return the arms' steps by the rate of the link, of this machine if anything was measured, and on paper."""
    cases: dict[str, dict[str, Callable[[float], float]]] = {}
    for arm, training in page.model[0].items():
        words = f"{_named(page.own['workload'].iloc[0])}, {page.ranks} ranks, this machine"
        cases.setdefault(words, {})[arm] = partial(_ms_between_namespaces, training, page.ranks)
    for one in page.papers:
        words = f"{_named(one.workload)}, {COMPARED} H100"
        cases.setdefault(words, {})[one.arm] = partial(_ms_over_infiniband, one.weak)
    return cases


def _ms_between_namespaces(training: Training, ranks: int, gbit: float) -> float:
    return step_ms(training, ranks, 1e3 * gbit)


def _ms_over_infiniband(training: Training, gbit: float) -> float:
    return training.step_ms(COMPARED, LINKS["infiniband"].at(gbit))


def _named(workload: str) -> str:
    return WORKLOADS.get(workload, workload)


def shown(page: ScalingPage, _: pd.DataFrame) -> pd.DataFrame:
    """Return a line per arm: what it sends and holds, and its step over each link with the ratio to CoMERA's."""
    if page.steps.empty:
        return pd.DataFrame(columns=["arm"])
    found = across(page.steps, "arm", "link", {"step_ms": f"time_over_{COMERA}"})
    sizes = page.steps.groupby("arm", sort=False)[["sent_buckets_mib", "exchange_memory_mib"]]
    written = readable(sizes.median().reset_index(drop=True))
    order = page.steps["arm"].drop_duplicates().map(by_arm).argsort()
    joined = pd.concat([found.iloc[:, :1], written, found.iloc[:, 1:]], axis=1)
    return joined.iloc[order].reset_index(drop=True)


def about(page: ScalingPage, table: pd.DataFrame) -> dict[str, Any]:
    """Return how far the model lies from what was measured, what is on paper, and which arm takes least where."""
    steps, papers = page.steps, page.papers
    errors = (page.model[1] / steps["step_ms"].astype(float) - 1).dropna()
    fit = {}
    if len(errors):
        worst = int(errors.abs().to_numpy().argmax())
        fit = {"near": (errors.abs() <= TOLERANCE).sum(), "of": len(errors)}
        fit |= {"error": errors.iloc[worst], "worst": steps.loc[errors.index[worst]]}
    least = table[table["quantity"] == "least time up to"]
    return {
        "table": steps[["arm", "older_code", "time_pairing"]],
        "one": page.own["record"].iloc[0] if len(steps) else None,
        "fit": fit,
        "tolerance": TOLERANCE,
        "batches": {_named(one.workload): (one.batch, one.total) for one in papers},
        "paper_device": papers[0].device if papers else "",
        "links": LINKS.values() if papers else (),
        "cases": [
            (words, list(zip(part["arm"], part["value"].map(rate_words), strict=True)))
            for words, part in least.groupby("of", sort=False)
        ],
        "failed": facts.reasons(steps, "arm", "link"),
    }


def draw(page: ScalingPage, table: pd.DataFrame, caption: Caption) -> Figure:
    """Draw bytes of a step, its time against the link's rate, and the model by ranks."""
    steps = page.steps
    arms = sorted(set(steps["arm"]), key=by_arm)
    place = Paper(caption.title, caption.facts, (*caption.of_picture, *caption.notes), 3)
    [[sent, times]] = place.panels(0, 2.9, 2, widths=[1, 1.7])
    titles = ("a  sent per step and rank, MiB", "b  time per step, ms: measured, and the model's lines")
    for axes, title in zip((sent, times), titles, strict=True):
        axes.set_title(title, loc="left", fontweight="bold", fontsize=8.5)
    if arms:
        handles = [stroke_handle(style(arm)[0], arm) for arm in arms]
        handles += whisker_handles(bounds_kinds(steps, "step_ms"))
        for words, _, mark in COUNTS.values():
            handles.append(Line2D([], [], color=INK, label=f"sent, {words}", **mark))
        legend(place.parts[0], handles, 6, "Measured", handlelength=3.2)
    _draw_sent(sent, arms, steps)
    _draw_times(times, page)
    _draw_paper(place, page, table)
    _draw_winners(place, table)
    return place.finish()


def _draw_sent(axes: Any, arms: list[str], steps: pd.DataFrame) -> None:
    """Draw panel a: a line per arm, three marks on it, medians over the links, a value beside them."""
    sizes = steps.groupby("arm")[list(COUNTS)].median()
    sizes = sizes.where(sizes > 0)
    if sizes.isna().all(axis=None):
        nothing_drawn(axes, "nothing measured")
        return
    for row, arm in enumerate(arms):
        known: dict[Any, float] = sizes.loc[arm].dropna().to_dict()
        for column, size in known.items():
            _, shift, mark = COUNTS[column]
            axes.plot([size], [row + shift], color=style(arm)[0].colour, **mark)
        if known:
            words, at = significant(next(iter(known.values()))), (max(known.values()), row)
            note(axes, words, at, (6, 0), va="center", fontsize=7)
    axes.set(xscale="log", ylim=(len(arms) - 0.5, -0.5))
    axes.set_yticks(range(len(arms)), arms)
    axes.set_xlim(sizes.min().min() / 1.6, sizes.max().max() * 3.2)
    number_axis(axes.xaxis, LogLocator(10))
    axes.grid(visible=True, axis="x")


def _draw_times(axes: Any, page: ScalingPage) -> None:
    """Draw panel b: measured steps and the model's curves over the rate of the link."""
    timed = page.steps.dropna(subset="step_ms")
    if timed.empty:
        nothing_drawn(axes, "nothing measured")
        return
    grid = [10 * (25 / 0.01) ** (step / 120) for step in range(121)]
    for arm, training in page.model[0].items():
        look = {"color": style(arm)[0].colour, "linestyle": style(arm)[0].dashes, "linewidth": 1.0}
        axes.plot(grid, [step_ms(training, page.ranks, mbit) for mbit in grid], zorder=2, **look)
    no_limit = 40_000.0
    points = {"linestyle": "", "markersize": 4.5, "zorder": 4}
    for one in each(timed.replace({"link_mbit": {math.inf: no_limit}})):
        x, ends = one.link_mbit, [one.step_ms_low, one.step_ms_high]
        if not pd.isna(ends).any():
            axes.plot([x, x], ends, **{**WHISKER, "markersize": 4}, zorder=3)
        axes.plot([x], [one.step_ms], **style(one.arm)[0].dots, **points)
    axes.set(xscale="log", yscale="log", xlabel="rate of the link, Mbit/s")
    ticks = {10.0: "10", 100.0: "100", 1000.0: "1,000", 10_000.0: "10,000"}
    unlimited = math.inf in set(page.steps["link_mbit"])
    ticks |= {no_limit: "no limit"} if unlimited else {25_000.0: "25,000"}
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.minorticks_off()
    number_axis(axes.yaxis, LogLocator(10, subs=(1, 2, 5)))
    axes.grid(visible=True, axis="both")


def _draw_paper(place: Paper, page: ScalingPage, table: pd.DataFrame) -> None:
    """Draw panel c: a column per workload, weak scaling above strong."""
    workloads = list(dict.fromkeys(one.workload for one in page.papers))
    panels = place.panels(1, 2.0, max(len(workloads), 1), 2)
    some = table["arm"].isin([COMERA, DENSE, "dense+powersgd_4", "dense:row_wise"])
    shown = table[some & table["of"].isin(workloads)]
    if shown.empty:
        for axes in itertools.chain(*panels):
            nothing_drawn(axes, NOT_RECORDED)
        return
    arms = sorted(set(shown["arm"]), key=by_arm)
    looks = {_short(arm): _paper_look(arm, "ethernet_10") for arm in arms}
    looks |= {LINKS[name].words: _paper_look("", name) for name in SHOWN_LINKS}
    handles = [Line2D([], [], label=words, **look) for words, look in looks.items()]
    heading = f"c  on paper: time per step, ms, by the number of ranks, each an {page.papers[0].device}"
    legend(place.parts[1], handles, 4, heading, handlelength=3.2)
    for column, workload in enumerate(workloads):
        for words, line in zip(("weak", "strong"), panels, strict=True):
            axes, quantity = line[column], f"step, {words} scaling"
            part = shown[(shown["of"] == workload) & (shown["quantity"] == quantity)]
            for arm, own in part.groupby("arm", sort=False):
                for name in SHOWN_LINKS:
                    times = own[own["link"] == LINKS[name].words]
                    axes.plot(times["ranks"], times["value"], **_paper_look(str(arm), name))
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xticks(RANKS[::3], [f"{ranks:,}" for ranks in RANKS[::3]])
            axes.minorticks_off()
            number_axis(axes.yaxis, LogLocator(10))
            axes.set_title(f"{_named(workload)}, {words} scaling", loc="left", fontsize=8)
            axes.grid(visible=True, axis="both")
    for axes in panels[-1][: len(workloads)]:
        axes.set_xlabel("ranks")


def _short(arm: str) -> str:
    return "dense, row-wise, sharded" if arm == "dense:row_wise" else arm


def _paper_look(arm: str, link: str) -> dict[str, Any]:
    """Return the look of a line: the arm decides colour and marker, the link, of which alone it is else, the rest."""
    stroke, (dashes, filling) = style(arm)[0], SHOWN_LINKS[link]
    return {
        "color": stroke.colour if arm else INK,
        "marker": "D" if arm == "dense:row_wise" else stroke.marker if arm else "o",
        "fillstyle": filling,
        "markersize": 3.4,
        "markerfacecoloralt": "white",
        "linewidth": 0.9,
        "markeredgewidth": 0.7,
        "linestyle": dashes,
    }


def _draw_winners(place: Paper, table: pd.DataFrame) -> None:
    """Draw panel d: a strip per case, in the fill of the arm that takes least."""
    winners = table[table["quantity"] == "least time up to"]
    cases = list(dict.fromkeys(winners["of"]))
    [[axes]] = place.panels(2, 0.36 * max(len(cases), 1) + 0.2)
    heading = "d  the arm whose step takes least, by the model, over the rate of the link; numbers: where it changes"
    arms = sorted(set(winners["arm"]), key=by_arm)
    legend(place.parts[2], [fill_handle(style(arm)[1], _short(arm)) for arm in arms], 5, heading)
    if not cases:
        nothing_drawn(axes, NOT_RECORDED)
        return
    for row, words in enumerate(cases):
        part = winners[winners["of"] == words]
        lows = [SLOWEST, *part["value"][:-1]]
        for arm, low, high in zip(part["arm"], lows, part["value"], strict=True):
            axes.barh(row, high - low, left=low, height=0.5, linewidth=0.4, **style(arm)[1].look)
        last = 0.0
        for low in lows[1:]:
            near = low < 3 * last  # no room beside the last one: its words stand below the strip
            at, shift, align = (row + 0.27, -1, "top") if near else (row - 0.27, 1, "bottom")
            note(axes, rate_words(low), (low, at), (0, shift), ha="center", va=align, fontsize=6.5)
            last = 0.0 if near else low
    axes.set(xscale="log", xlim=(SLOWEST, QUICKEST), xlabel="rate of the link, Gbit/s")
    axes.set_ylim(len(cases) - 0.6, -0.75)
    axes.set_yticks(range(len(cases)), cases)
    rates = (0.01, 0.1, 1.0, 10.0, 100.0, 400.0, QUICKEST)
    axes.set_xticks(rates, [f"{rate:,g}" for rate in rates])
    axes.minorticks_off()
    axes.grid(visible=True, axis="x", color=FAINT, linewidth=0.3)


ARTIFACT = Artifact(
    name="scaling",
    summary="bytes per step and rank, time per step against the link's rate, and the model for 2 to 1,024 ranks",
    experiments=("scaling",),
    lenders=("scaling_model",),
    made_by="make reproduce-scaling",
    order=130,
    select=select,
    table=table,
    shown=shown,
    about=about,
    draw=draw,
)
