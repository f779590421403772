"""Training on several ranks: bytes per step, time against the link's rate, and the model beyond what was measured.

Four panels: what each arm sends, by three counts; the measured step over the rate of the link between two ranks,
beside the model (:mod:`bench.estimate.communication`); the model for up to 1,024 ranks; and which arm takes least at
which rate.
"""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator

from bench.estimate.communication import LINKS, winners
from figures.arms import COMERA, DENSE
from figures.artifact import Artifact
from figures.artifacts.scaling_arms import by_arm, style
from figures.artifacts.scaling_measured import COUNTS, ScalingPage, select
from figures.artifacts.scaling_paper import RANKS, WORKLOADS, rate_words
from figures.columns import across, bounds_kinds, readable
from figures.draw import facts
from figures.draw.captions import Caption, beside
from figures.draw.layout import Page, legend
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
from figures.frame import each
from figures.text import NOT_RECORDED, significant

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

#: What a measured step is of: the quantity and its unit in the table, by the column of the steps.
_QUANTITIES = {
    "step_time_ms": ("step", "ms"),
    "time_over_comera": ("step over comera's", "x"),
    "compute_time_ms": ("step without exchange", "ms"),
    "model_ms": ("step by the model", "ms"),
    **{column: (f"sent {words}", "MiB") for column, words in COUNTS.items()},
    "exchange_memory_mib": ("held by the exchange", "MiB"),
}


def table(page: ScalingPage) -> pd.DataFrame:
    """Return a line per number: of each measured step, of models on paper, and of which arm takes least."""
    steps, ranks = with_model(page), ranks_of(page)
    parts = []
    for column, (quantity, unit) in _QUANTITIES.items():
        part = pd.DataFrame({"of": "measured", "arm": steps["arm"], "ranks": ranks, "link": steps["link"]})
        part["quantity"], part["unit"], part["value"] = quantity, unit, steps[column].where(steps[column] != 0)
        if column in ("step_time_ms", "time_over_comera"):
            part["launches"] = steps["launches" if column == "step_time_ms" else "ratio_launches"]
            ends = {f"{column}{end}": f"value{end}" for end in ("_low", "_high", "_bounds")}
            part = part.join(steps[list(ends)].rename(columns=ends))
        parts.append(part)
    measured = pd.concat(parts).sort_index(kind="stable")
    lines = []
    for one in page.papers:
        for ranks in RANKS:
            place = {"of": one.workload, "arm": one.arm, "ranks": ranks}
            sent = one.training(one.batch).sent_mib(ranks)
            lines.append({**place, "link": "any", "quantity": "sent on paper", "unit": "MiB", "value": sent})
            for link in LINKS.values():
                if ranks <= link.most_ranks:
                    place |= {"link": link.words, "unit": "ms"}
                    lines.append({**place, "quantity": "step, weak scaling", "value": one.weak_ms(ranks, link)})
                    lines.append({**place, "quantity": "step, strong scaling", "value": one.strong_ms(ranks, link)})
    for words, curves in _cases(page).items():
        for arm, low, high in winners(curves, SLOWEST, QUICKEST):
            place = {"of": words, "arm": arm, "ranks": 0, "link": rate_words(low)}
            lines.append({**place, "quantity": "least time up to", "unit": "Gbit/s", "value": high})
    columns = ["device", "of", "arm", "ranks", "link", "quantity", "unit"]
    columns += ["value", "value_low", "value_high", "value_bounds", "launches"]
    found = pd.concat([measured, pd.DataFrame(lines, columns=columns)], ignore_index=True).assign(device=page.device)
    found["launches"] = found["launches"].where(found["launches"] != 0)
    return found[columns].astype({"value": float, "launches": "Int64"})


def ranks_of(page: ScalingPage) -> int:
    """Return the number of ranks of the measured steps."""
    return int(page.steps["world_size"].max()) if len(page.steps) else 2


def with_model(page: ScalingPage) -> pd.DataFrame:
    """Return the measured steps with what the model says of each, of which it knows nothing but the compute."""
    known = [
        model.ms(one.link_mbit, None if pd.isna(one.compute_time_ms) else one.compute_time_ms) if model else None
        for one in each(page.steps)
        for model in [page.models.get(one.arm)]
    ]
    return page.steps.assign(model_ms=pd.Series(known, page.steps.index, dtype=float))


def _cases(page: ScalingPage) -> dict[str, dict[str, Any]]:
    """Return the arms' steps by the rate of the link, of this machine if anything was measured, and on paper."""
    cases: dict[str, dict[str, Any]] = {}
    if page.models:
        words = f"{_named(page.own['workload'].iloc[0])}, {ranks_of(page)} ranks, this machine"
        cases[words] = {arm: model.curve() for arm, model in page.models.items()}
    link = LINKS["infiniband"]
    for one in page.papers:
        curves = cases.setdefault(f"{_named(one.workload)}, {COMPARED} H100", {})
        curves[one.arm] = lambda gbit, one=one: one.weak_ms(COMPARED, link.at(gbit))
    return cases


def _named(workload: str) -> str:
    return WORKLOADS.get(workload, workload)


def shown(page: ScalingPage, _: pd.DataFrame) -> pd.DataFrame:
    """Return a line per arm: what it sends and holds, and its step over each link with the ratio to CoMERA's."""
    steps = page.steps.assign(time_status=page.steps["status"])
    if steps.empty:
        return pd.DataFrame(columns=["arm"])
    found = across(steps, "arm", "link", {"step_time_ms": f"time_over_{COMERA}"})
    sizes = steps.groupby("arm", sort=False)[["sent_buckets_mib", "exchange_memory_mib"]].median().reset_index()
    joined = pd.concat([found.iloc[:, :1], readable(sizes.drop(columns="arm")), found.iloc[:, 1:]], axis=1)
    return joined.iloc[sizes["arm"].map(by_arm).argsort()].reset_index(drop=True)


def about(page: ScalingPage, table: pd.DataFrame) -> dict[str, Any]:
    """Return how far the model lies from what was measured, what is on paper, and which arm takes least where."""
    steps, papers = with_model(page), page.papers
    steps["error"] = steps["model_ms"] / steps["step_time_ms"].astype(float) - 1
    errors = steps["error"].dropna().abs().sort_values(ascending=False, kind="stable")
    fit = {}
    if len(errors):
        worst = steps.loc[errors.index[0]]
        fit = {"near": (errors <= TOLERANCE).sum(), "of": len(errors), "worst": worst}
    least = table[table["quantity"] == "least time up to"]
    return {
        "table": steps[["arm", "older_code", "time_pairing"]],
        "ranks": ranks_of(page),
        "one": page.own["record"].iloc[0] if len(page.steps) else None,
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
    place = Page(caption.title, caption.facts, (*caption.of_picture, *caption.notes), 3)
    [[sent, times]] = place.panels(0, 2.9, 2, widths=[1, 1.7])
    if arms:
        handles = [stroke_handle(style(arm)[0], arm) for arm in arms]
        handles += whisker_handles(bounds_kinds(steps, "step_time_ms"))
        handles += [Line2D([], [], color=INK, label=f"sent, {words}", **_COUNT[one]) for one, words in COUNTS.items()]
        legend(place.parts[0], handles, 6, "Measured", handlelength=3.2)
    _draw_sent(sent, arms, steps)
    _draw_times(times, page)
    _draw_paper(place, page, table)
    _draw_winners(place, table)
    return place.finish()


#: The marks of the ways to count.
_COUNT: dict[str, dict[str, Any]] = {
    "sent_buckets_mib": {"linestyle": "", "marker": "o", "markersize": 4.2},
    "sent_analytic_mib": {"linestyle": "", "marker": "s", "markersize": 4.2, "markerfacecolor": "white"},
    "sent_interface_mib": {"linestyle": "", "marker": "x", "markersize": 4.2},
}


def _draw_sent(axes: Any, arms: list[str], steps: pd.DataFrame) -> None:
    """Draw panel a: a line per arm, three marks on it, medians over the links, a value beside them."""
    axes.set_title("a  sent per step and rank, MiB", loc="left", fontweight="bold", fontsize=8.5)
    sizes = steps.groupby("arm")[list(COUNTS)].median()
    sizes = sizes.where(sizes > 0)
    if sizes.isna().all(axis=None):
        nothing_drawn(axes, "nothing measured")
        return
    for row, arm in enumerate(arms):
        known: dict[Any, float] = sizes.loc[arm].dropna().to_dict()
        for shift, column in zip((-0.27, 0.0, 0.27), COUNTS, strict=True):
            if column in known:
                axes.plot([known[column]], [row + shift], color=style(arm)[0].colour, **_COUNT[column])
        if known:
            note(
                axes,
                significant(next(iter(known.values()))),
                (max(known.values()), row),
                (6, 0),
                va="center",
                fontsize=7,
            )
    axes.set_xscale("log")
    axes.set_ylim(len(arms) - 0.5, -0.5)
    axes.set_yticks(range(len(arms)), arms)
    axes.set_xlim(sizes.min().min() / 1.6, sizes.max().max() * 3.2)
    number_axis(axes.xaxis, LogLocator(10))
    axes.grid(visible=True, axis="x")


def _draw_times(axes: Any, page: ScalingPage) -> None:
    """Draw panel b: measured steps and the model's curves over the rate of the link."""
    axes.set_title("b  time per step, ms: measured, and the model's lines", loc="left", fontweight="bold", fontsize=8.5)
    timed = page.steps.dropna(subset="step_time_ms")
    if timed.empty:
        nothing_drawn(axes, "nothing measured")
        return
    grid = [0.01 * (25 / 0.01) ** (step / 120) for step in range(121)]
    for arm, model in page.models.items():
        look = {"color": style(arm)[0].colour, "linestyle": style(arm)[0].dashes, "linewidth": 1.0}
        axes.plot([1e3 * gbit for gbit in grid], list(map(model.curve(), grid)), zorder=2, **look)
    no_limit = 40_000.0
    for one in each(timed.replace({"link_mbit": {float("inf"): no_limit}})):
        x, ends = one.link_mbit, [one.step_time_ms_low, one.step_time_ms_high]
        if not pd.isna(ends).any():
            axes.plot([x, x], ends, **{**WHISKER, "markersize": 4}, zorder=3)
        axes.plot([x], [one.step_time_ms], **style(one.arm)[0].dots, linestyle="", markersize=4.5, zorder=4)
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticks = {10.0: "10", 100.0: "100", 1000.0: "1,000", 10_000.0: "10,000"}
    ticks |= {no_limit: "no limit"} if float("inf") in set(page.steps["link_mbit"]) else {25_000.0: "25,000"}
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.minorticks_off()
    number_axis(axes.yaxis, LogLocator(10, subs=(1, 2, 5)))
    axes.set_xlabel("rate of the link, Mbit/s")
    axes.grid(visible=True, axis="both")


def _draw_paper(place: Page, page: ScalingPage, table: pd.DataFrame) -> None:
    """Draw panel c: a column per workload, weak scaling above strong."""
    workloads = list(dict.fromkeys(one.workload for one in page.papers))
    panels = place.panels(1, 2.0, max(len(workloads), 1), 2)
    arms = [arm for arm in (COMERA, DENSE, "dense+powersgd_4", "dense:row_wise") if arm in set(table["arm"])]
    shown = table[table["of"].isin(workloads) & table["arm"].isin(arms)]
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
            near = (
                low < 3 * last
            )  # no room beside the last one: its words stand below the strip, those of the one before above
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
    experiments=("scaling",),
    lenders=("scaling_model",),
    made_by="make reproduce-scaling",
    order=130,
    select=select,
    table=table,
    shown=shown,
    about=about,
    caption=beside(__file__),
    draw=draw,
)
