"""Training on several ranks: bytes per step, time against the link's rate, and the model beyond what was measured.

Four panels: what each arm sends, by three counts; the measured step over the rate of the link between two ranks,
beside the model (:mod:`bench.estimate.communication`); the model for up to 1,024 ranks; and which arm takes least at
which rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator

from bench.core.intervals import Estimate
from bench.estimate.communication import LINKS
from figures.arms import COMERA, DENSE
from figures.artifact import Artifact
from figures.artifacts.beyond.distributed.arms import by_arm, style
from figures.artifacts.beyond.distributed.measured import COUNTS, ScalingPage, link_words, select
from figures.artifacts.beyond.distributed.paper import QUICKEST, RANKS, SLOWEST, WORKLOADS, rate_words
from figures.columns import across, bounds_kinds, readable, table_of
from figures.page import facts
from figures.page.captions import beside
from figures.page.drawn import Caption
from figures.page.layout import Page, legend
from figures.page.style import (
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
from figures.records.time_values import step_of
from figures.text import NOT_RECORDED, bounds, pairing, significant

EXPERIMENT, ON_PAPER = "scaling", "scaling_model"

#: The rival that sends less than CoMERA.
FEWEST = "dense+powersgd_4"

#: The model is held to be right within this share of what was measured.
TOLERANCE = 0.15

#: Links of the panels on paper, with dashes and the filling of markers: what most have, and what large machines have.
SHOWN_LINKS: dict[str, tuple[Any, str]] = {
    "ethernet_10": ("-", "full"),
    "infiniband": ((0, (3, 1.5)), "none"),
    "nvlink": ((0, (1, 1.2)), "left"),
}

#: Arms of the panels on paper.
SHOWN_ARMS = (COMERA, DENSE, "dense:row_wise", FEWEST)

_MARKERS = {"sent_buckets_mib": "o", "sent_analytic_mib": "s", "sent_interface_mib": "x"}

#: Where the step over a link without a limit stands, in Mbit/s.
_NO_LIMIT = 40_000.0

#: Rates of less than this ratio have no room for their words beside each other.
_NEAR = 3.0


#: What a measured step is of, by the quantity in the table: the column of a table with a line per step.
_QUANTITIES = {
    "step": "step_time_ms",
    "step over comera's": "time_over_comera",
    "step without exchange": "compute_ms",
    "step by the model": "model_ms",
    **{f"sent {words}": column for column, words in COUNTS.items()},
    "held by the exchange": "exchange_memory_mib",
}


def table(page: ScalingPage) -> pd.DataFrame:
    """Return a line per number: of each measured step, of models on paper, and of which arm takes least."""
    lines: list[dict[str, object]] = []

    def add(of: str, arm: str, ranks: int, link: str, quantity: str, unit: str, value: Estimate | float | None) -> None:
        found = value if isinstance(value, Estimate) else Estimate(value, None, None, 0) if value else None
        lines.append(
            {
                "device": page.device,
                "of": of,
                "arm": arm,
                "ranks": ranks,
                "link": link,
                "quantity": quantity,
                "unit": unit,
                **bounds("value", found),
                "launches": found.launches if found and found.blocks else None,
            }
        )

    for arm, mbit in page.steps:
        record, place = page.measured[arm, mbit], ("measured", arm, page.ranks, link_words(mbit))
        add(*place, "step", "ms", step_of(record))
        add(*place, "step over comera's", "x", page.ratio(arm, mbit))
        add(*place, "step without exchange", "ms", record.compute_time_ms)
        add(*place, "step by the model", "ms", page.model_ms(arm, mbit))
        for column, words in COUNTS.items():
            add(*place, f"sent {words}", "MiB", getattr(record, column))
        add(*place, "held by the exchange", "MiB", record.exchange_memory_mib)
    for one in page.papers:
        for ranks in RANKS:
            sent = one.training(one.batch).sent_mib(ranks)
            add(one.workload, one.arm, ranks, "any", "sent on paper", "MiB", sent)
            for link in LINKS.values():
                if ranks <= link.most_ranks:
                    place = (one.workload, one.arm, ranks, link.words)
                    add(*place, "step, weak scaling", "ms", one.weak_ms(ranks, link))
                    add(*place, "step, strong scaling", "ms", one.strong_ms(ranks, link))
    for case in page.cases:
        for arm, low, high in case.winners:
            add(case.words, arm, 0, rate_words(low), "least time up to", "Gbit/s", high)
    return table_of(lines, whole=("launches",))


def measured(page: ScalingPage, table: pd.DataFrame) -> pd.DataFrame:
    """Return a line per measured step, with its rate and marks, and why it has no time."""
    lines: dict[tuple[str, str], dict[str, Any]] = {}
    for one in table[table["of"] == "measured"].to_dict("records"):
        line, name = lines.setdefault((one["arm"], one["link"]), {}), _QUANTITIES[one["quantity"]]
        line |= {f"{name}{end}": one[f"value{end}"] for end in ("", "_low", "_high", "_bounds")}
        if name == "step_time_ms":
            line["launches"] = one["launches"]
    found = []
    for arm, mbit in page.steps:
        record, line = page.measured[arm, mbit], lines[arm, link_words(mbit)]
        failed = "" if record.status == "ok" else record.message
        place = {"arm": arm, "mbit": mbit, "link": link_words(mbit), "time_status": record.status, "message": failed}
        marks = {"older_code": bool(page.older(record)), "time_pairing": pairing(page.ratio(arm, mbit))}
        found.append({**place, **line, **marks})
    return table_of(found)


def shown(page: ScalingPage, table: pd.DataFrame) -> pd.DataFrame:
    """Return a line per arm: what it sends and holds, and its step over each link with the ratio to CoMERA's."""
    steps = measured(page, table)
    if steps.empty:
        return pd.DataFrame(columns=["arm"])
    found = across(steps, "arm", "link", {"step_time_ms": f"time_over_{COMERA}"})
    names = list(dict.fromkeys(steps["arm"]))
    sizes = steps.groupby("arm")[["sent_buckets_mib", "exchange_memory_mib"]].median().loc[names].reset_index()
    more = readable(sizes, ["sent_buckets_mib", "exchange_memory_mib"])
    joined = pd.concat([found.iloc[:, :1], more, found.iloc[:, 1:]], axis=1)
    return joined.iloc[[names.index(arm) for arm in page.arms]].reset_index(drop=True)


def about(page: ScalingPage, table: pd.DataFrame) -> dict[str, Any]:
    """Return how far the model lies from what was measured, what is on paper, and which arm takes least where."""
    steps, papers = measured(page, table), page.papers
    fit: dict[str, Any] = {}
    if len(steps) and (steps["model_ms"].notna() & steps["step_time_ms"].notna()).any():
        tested = steps.dropna(subset=["model_ms", "step_time_ms"])
        errors = [one["model_ms"] / one["step_time_ms"] - 1 for one in tested.to_dict("records")]
        worst = max(range(len(errors)), key=lambda place: abs(errors[place]))
        near = sum(abs(error) <= TOLERANCE for error in errors)
        where = {name: tested[name].iloc[worst] for name in ("arm", "link")}
        fit = {"near": near, "of": len(errors), "worst": errors[worst], **where}
    marked = steps.drop(columns=[name for name in steps if str(name).endswith("_bounds")])
    return {
        "table": marked,
        "one": next(iter(page.measured.values()), None),
        "fit": fit,
        "tolerance": TOLERANCE,
        "batches": {_named(one.workload): (one.batch, one.total) for one in papers},
        "paper_device": papers[0].device if papers else "",
        "links": LINKS.values() if papers else (),
        "cases": [(case.words, [(arm, rate_words(high)) for arm, _, high in case.winners]) for case in page.cases],
        "failed": facts.reasons(steps, "arm", "link") if len(steps) else {},
    }


def _named(workload: str) -> str:
    return WORKLOADS.get(workload, workload)


def draw(page: ScalingPage, table: pd.DataFrame, caption: Caption) -> Figure:
    """Draw bytes of a step, its time against the link's rate, and the model by ranks."""
    steps = measured(page, table)
    place = Page(caption.title, caption.facts, (*caption.of_picture, *caption.notes), 3)
    [[sent, times]] = place.panels(0, 2.9, 2, widths=[1, 1.7])
    entries = [stroke_handle(style(arm)[0], arm) for arm in page.arms]
    entries += whisker_handles(bounds_kinds(steps, "step_time_ms")) if len(steps) else []
    entries += [
        Line2D([], [], color=INK, label=f"sent, {words}", **_count_look(column)) for column, words in COUNTS.items()
    ]
    if len(steps):
        legend(place.parts[0], entries, 6, "Measured", handlelength=3.2)
    _draw_sent(sent, page.arms, steps)
    _draw_times(times, page, steps)
    _draw_paper(place, page, table)
    _draw_winners(place, table)
    return place.finish()


def _heading(axes: Any, words: str) -> None:
    axes.set_title(words, loc="left", fontweight="bold", fontsize=8.5)


def _count_look(column: str) -> dict[str, Any]:
    """Return the mark of a way to count."""
    fill = {"markerfacecolor": "white"} if column == "sent_analytic_mib" else {}
    return {"linestyle": "", "marker": _MARKERS[column], "markersize": 4.2, **fill}


def _draw_sent(axes: Any, arms: Sequence[str], steps: pd.DataFrame) -> None:
    """Draw panel a: a line per arm, three marks on it, medians over the links, a value beside them."""
    _heading(axes, "a  sent per step and rank, MiB")
    if steps.empty or steps[list(COUNTS)].isna().all(axis=None):
        nothing_drawn(axes, "nothing measured")
        return
    sizes = steps.groupby("arm")[list(COUNTS)].median()
    drawn: list[float] = []
    for row, arm in enumerate(arms):
        values = [float(sizes[column][arm]) for column in COUNTS]
        for shift, column, value in zip((-0.27, 0.0, 0.27), COUNTS, values, strict=True):
            if value > 0:
                axes.plot([value], [row + shift], color=style(arm)[0].colour, **_count_look(column))
        if known := [value for value in values if value > 0]:
            note(axes, significant(known[0]), (max(known), row), (6, 0), va="center", fontsize=7)
            drawn += known
    axes.set_xscale("log")
    axes.set_ylim(len(arms) - 0.5, -0.5)
    axes.set_yticks(range(len(arms)), arms)
    axes.set_xlim(min(drawn) / 1.6, max(drawn) * 3.2)
    number_axis(axes.xaxis, LogLocator(10))
    axes.grid(visible=True, axis="x")


def _draw_times(axes: Any, page: ScalingPage, steps: pd.DataFrame) -> None:
    """Draw panel b: measured steps and the model's curves over the rate of the link."""
    _heading(axes, "b  time per step, ms: measured, and the model's lines")
    if steps.empty or steps["step_time_ms"].isna().all():
        nothing_drawn(axes, "nothing measured")
        return
    grid = [0.01 * (25 / 0.01) ** (step / 120) for step in range(121)]
    for arm, model in page.models.items():
        look = {"color": style(arm)[0].colour, "linestyle": style(arm)[0].dashes, "linewidth": 1.0}
        axes.plot([1e3 * gbit for gbit in grid], [model.curve(gbit) for gbit in grid], zorder=2, **look)
    for one in steps.dropna(subset="step_time_ms").to_dict("records"):
        x = _NO_LIMIT if one["link"] == link_words(None) else one["mbit"]
        ends = [one["step_time_ms_low"], one["step_time_ms_high"]]
        if not pd.isna(ends).any():
            axes.plot([x, x], ends, **{**WHISKER, "markersize": 4}, zorder=3)
        axes.plot([x], [one["step_time_ms"]], **style(one["arm"])[0].dots, linestyle="", markersize=4.5, zorder=4)
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticks = [10.0, 100.0, 1000.0, 10_000.0, 25_000.0]
    words = ["10", "100", "1,000", "10,000", "25,000"]
    if None in page.rates:
        ticks, words = [*ticks[:-1], _NO_LIMIT], [*words[:-1], "no limit"]
    axes.set_xticks(ticks, words)
    axes.minorticks_off()
    number_axis(axes.yaxis, LogLocator(10, subs=(1, 2, 5)))
    axes.set_xlabel("rate of the link, Mbit/s")
    axes.grid(visible=True, axis="both")


def _draw_paper(place: Page, page: ScalingPage, table: pd.DataFrame) -> None:
    """Draw panel c: a column per workload, weak scaling above strong."""
    workloads = list(dict.fromkeys(one.workload for one in page.papers))
    panels = place.panels(1, 2.0, max(len(workloads), 1), 2)
    shown = table[table["of"].isin(workloads) & table["arm"].isin(SHOWN_ARMS)]
    if shown.empty:
        for axes in (one for line in panels for one in line):
            nothing_drawn(axes, NOT_RECORDED)
        return
    arms = sorted(set(shown["arm"]), key=by_arm)
    handles = [Line2D([], [], label=_short(arm), **_paper_look(arm, "ethernet_10")) for arm in arms]
    handles += [Line2D([], [], label=LINKS[name].words, **_paper_look("", name)) for name in SHOWN_LINKS]
    heading = f"c  on paper: time per step, ms, by the number of ranks, each an {page.papers[0].device}"
    legend(place.parts[1], handles, 4, heading, handlelength=3.2)
    for column, workload in enumerate(workloads):
        for line, words in enumerate(("weak", "strong")):
            axes = panels[line][column]
            part = shown[(shown["of"] == workload) & (shown["quantity"] == f"step, {words} scaling")]
            for arm in dict.fromkeys(part["arm"]):
                for name in SHOWN_LINKS:
                    times = part[(part["arm"] == arm) & (part["link"] == LINKS[name].words)]
                    axes.plot(times["ranks"], times["value"], **_paper_look(arm, name))
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xticks(RANKS[::3], [f"{ranks:,}" for ranks in RANKS[::3]])
            axes.minorticks_off()
            number_axis(axes.yaxis, LogLocator(10))
            axes.set_title(f"{_named(workload)}, {words} scaling", loc="left", fontsize=8)
            axes.grid(visible=True, axis="both")
            if line:
                axes.set_xlabel("ranks")


def _short(arm: str) -> str:
    return "dense, row-wise, sharded" if arm == "dense:row_wise" else arm


def _paper_look(arm: str, link: str) -> dict[str, Any]:
    """Return the look of a line: the arm decides colour and marker, the link, of which alone it is else, the rest."""
    stroke, (dashes, filling) = style(arm)[0], SHOWN_LINKS[link]
    colour, marker = (stroke.colour, stroke.marker) if arm else (INK, "o")
    return {
        "color": colour,
        "marker": "D" if arm == "dense:row_wise" else marker,
        "fillstyle": filling,
        "markersize": 3.4,
        "markerfacecoloralt": "white",
        "linewidth": 0.9,
        "markeredgewidth": 0.7,
        "linestyle": dashes,
    }


def _draw_winners(place: Page, table: pd.DataFrame) -> None:
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
            near = low < _NEAR * last  # its words stand below the strip, those of the one before above
            at, shift, align = (row + 0.27, -1, "top") if near else (row - 0.27, 1, "bottom")
            note(axes, rate_words(low), (low, at), (0, shift), ha="center", va=align, fontsize=6.5)
            last = 0.0 if near else low
    axes.set_xscale("log")
    axes.set_xlim(SLOWEST, QUICKEST)
    axes.set_ylim(len(cases) - 0.6, -0.75)
    axes.set_yticks(range(len(cases)), cases)
    rates = (0.01, 0.1, 1.0, 10.0, 100.0, 400.0, QUICKEST)
    axes.set_xticks(rates, [f"{rate:,g}" for rate in rates])
    axes.minorticks_off()
    axes.set_xlabel("rate of the link, Gbit/s")
    axes.grid(visible=True, axis="x", color=FAINT, linewidth=0.3)


ARTIFACT: Artifact[ScalingPage] = Artifact(
    name="scaling",
    heading="On several ranks: bytes, time against the link, and the model",
    summary="bytes per step and rank, time per step against the link's rate, and the model for 2 to 1,024 ranks",
    experiments=(EXPERIMENT,),
    lenders=(ON_PAPER,),
    made_by="make reproduce-scaling",
    order=130,
    select=select,
    table=table,
    shown=shown,
    about=about,
    caption=beside(__file__),
    draw=draw,
)
