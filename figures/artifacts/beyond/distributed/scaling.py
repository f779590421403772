"""Training on several ranks: bytes per step, time against the link's rate, and the model beyond what was measured.

Four panels: what each arm sends, by three counts; the measured step over the rate of the link between two ranks,
beside the model (:mod:`bench.estimate.communication`); the model for up to 1,024 ranks; and which arm takes least at
which rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator

from bench.core.intervals import Estimate
from bench.estimate.communication import LINKS, Link
from figures.artifact import Artifact
from figures.artifacts.beyond.distributed.arms import by_arm, style
from figures.artifacts.beyond.distributed.measured import COUNTS, ScalingPage, ScalingRow, link_words, rows_of, select
from figures.artifacts.beyond.distributed.paper import QUICKEST, RANKS, SLOWEST, WORKLOADS, Paper, rate_words
from figures.page import notes
from figures.page.drawn import Caption
from figures.page.layout import Page, legend
from figures.page.style import (
    FAINT,
    INK,
    WHISKER,
    bounds_handles,
    fill_handle,
    note,
    nothing_drawn,
    number_axis,
    stroke_handle,
)
from figures.records.select import COMERA, DENSE, RANK_RIVAL, SIZE_RIVAL
from figures.records.time_values import mark_words
from figures.text import (
    NOT_RECORDED,
    REMARKS,
    Column,
    bounds,
    brackets_note,
    ratio_text,
    significant,
    with_bounds,
)

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

#: Rates of less than this ratio have no room for their words beside each other.
_NEAR = 3.0


def columns(page: ScalingPage, rows: Sequence[ScalingRow]) -> list[Column]:  # noqa: ARG001
    """Of each measured step; the CSV has what is on paper as well, a row per number."""

    def time(row: ScalingRow) -> str:
        return with_bounds(row.time) if row.time else row.record.status

    def sent(column: str) -> Column:
        return Column(f"sent {COUNTS[column]}, MiB", lambda row: significant(getattr(row.record, column), 4))

    def error(row: ScalingRow) -> str | None:
        value = row.error()
        return None if value is None else f"{value:+.0%}"

    return [
        Column("link", lambda row: link_words(row.mbit)),
        Column("arm", lambda row: f"{row.arm} {row.marks}".rstrip(), left=True),
        Column("step, ms", time),
        Column("/ comera", lambda row: ratio_text(row.ratio, row.arm == COMERA)),
        Column("without exchange, ms", lambda row: significant(row.record.compute_time_ms)),
        Column("model, ms", lambda row: significant(row.model_ms)),
        Column("model less step", error),
        *map(sent, COUNTS),
        Column("held, MiB", lambda row: significant(row.record.exchange_memory_mib)),
        Column(REMARKS, lambda row: row.record.message if row.time is None else "", left=True),
        Column(tidy=lambda line: {"device": page.device, **line}, whole=True),
    ]


def tidy_rows(page: ScalingPage, rows: Sequence[ScalingRow]) -> list[dict[str, object]]:
    """Every number of the page with what it is of."""
    lines: list[dict[str, object]] = []

    def add(of: str, arm: str, ranks: int, link: str, quantity: str, unit: str, value: Estimate | float | None) -> None:
        found = value if isinstance(value, Estimate) else Estimate(value, None, None, 0) if value else None
        where = {"of": of, "arm": arm, "ranks": ranks, "link": link}
        lines.append(
            {
                **where,
                "quantity": quantity,
                "unit": unit,
                **bounds("value", found),
                "launches": found.launches if found and found.blocks else None,
            }
        )

    for row in rows:
        place = ("measured", row.arm, page.ranks, link_words(row.mbit))
        add(*place, "step", "ms", row.time)
        add(*place, "step over comera's", "x", row.ratio)
        add(*place, "step without exchange", "ms", row.record.compute_time_ms)
        add(*place, "step by the model", "ms", row.model_ms)
        for column, words in COUNTS.items():
            add(*place, f"sent {words}", "MiB", getattr(row.record, column))
        add(*place, "held by the exchange", "MiB", row.record.exchange_memory_mib)
    for one in page.papers:
        for ranks in RANKS:
            sent = one.training(one.batch).sent_mib(ranks)
            add(one.workload, one.arm, ranks, "any", "sent on paper", "MiB", sent)
            for link in LINKS.values():
                if ranks <= link.most_ranks:
                    add(one.workload, one.arm, ranks, link.words, "step, weak scaling", "ms", one.weak_ms(ranks, link))
                    strong = one.strong_ms(ranks, link)
                    add(one.workload, one.arm, ranks, link.words, "step, strong scaling", "ms", strong)
    for case in page.cases:
        for arm, low, high in case.winners:
            add(case.words, arm, 0, rate_words(low), "least time up to", "Gbit/s", high)
    return lines


def _fit(rows: Sequence[ScalingRow]) -> str:
    """How far the model lies from what was measured, in a sentence."""
    tested = [row for row in rows if row.error() is not None]
    if not tested:
        return f"Whether the model is within {TOLERANCE:.0%} of the measured steps cannot be said." if rows else ""
    far = [row for row in tested if abs(row.error() or 0.0) > TOLERANCE]
    worst = max(tested, key=lambda row: abs(row.error() or 0.0))
    plain = [row for row in tested if abs(row.error(plain=True) or 0.0) <= TOLERANCE]
    verdict = "is within" if not far else "is not within"
    return (
        f"The model {verdict} {TOLERANCE:.0%} of the measured steps: {len(tested) - len(far)} of {len(tested)} are; "
        f"the farthest is {worst.arm} at {link_words(worst.mbit)}, {worst.error():+.0%}. What the exchange takes "
        "of the processors (copies, sums, compression) is from the arm's other rates at which compute outweighs "
        f"communication; from bytes, rates and the step without exchange alone, {len(plain)} of {len(tested)} are."
    )


def _against(page: ScalingPage) -> list[str]:
    """What speaks against CoMERA, first its rival with fewer bytes."""
    lines = []
    ours, fewest = page.count(COMERA, "sent_analytic_mib"), page.count(FEWEST, "sent_analytic_mib")
    if ours and fewest:
        less, words = ours / fewest, "fewer" if fewest < ours else "more"
        times = significant(less if less > 1 else 1 / less)
        lines.append(
            f"PowerSGD of rank 4 sends {times} times {words} bytes than CoMERA: {significant(fewest)} MiB per step and "
            f"rank, not {significant(ours)}. Its price is arithmetic and an error buffer as large as the gradient."
        )
    for rival in (FEWEST, SIZE_RIVAL, RANK_RIVAL, DENSE, "dense:row_wise"):
        found = [text for case in page.cases if (text := case.sentence(rival))]
        if found:
            lines.append(f"CoMERA's step takes less than that of {rival}, by the model: {'; '.join(found)}.")
    return lines


def _scepticism(page: ScalingPage) -> list[str]:
    named = [one for one in page.papers if one.workload == "dlrm"]
    dlrm = "Tables that are compressed are replicated, so that nothing is exchanged all-to-all; dense ones are sharded."
    device = next((one.device for one in page.papers), "")
    least = (
        f"On paper a rank is an {device} with a link of its own, and its compute is the least time of its step (BF16 "
        "products, roofline, nothing for starting kernels), so that links weigh more here than beside real steps."
    )
    return [*([least] if page.papers else []), *([dlrm] if named else [])]


def caption(page: ScalingPage, rows: Sequence[ScalingRow]) -> Caption:
    links = "; ".join(f"{link.words} ({link.latency_us:g} us a hop; {link.source})" for link in LINKS.values())
    one = next(iter(page.measured.values()), None)
    facts = [notes.step_fact(page)]
    if one:
        share = max(1, one.threads // page.ranks)  # of the processors, which the ranks have between them
        threads = f"{share} thread{'s' * (share != 1)} each"
        blocks = notes.blocks_timed(page.measured.values())
        facts.append(
            f"{page.ranks} ranks, {threads}, batch {one.batch_size} per rank, {one.backend}, each in a network "
            "namespace; the kernel's token bucket holds the rate, no delay is added. "
            f"{notes.listed(page, 'dataset')!r} data, {blocks}."
        )
    else:
        facts.append("Nothing measured: all of it is the model, on paper.")
    fit = _fit(rows)
    model = (
        "Model: forward is a third of a step; a bucket of gradients travels when backward has filled it and the one "
        "before has arrived; the step ends with the last. It lies between max(compute, communication) and their sum, "
        "for PowerSGD on CPUs at the sum: there backward waits for its messages."
    )
    weak = (
        f"Weak scaling: every rank has its batch ({_batches(page)}). Strong: {_totals(page)} are divided "
        f"among all ranks. Gradients: {_gradients(page)}."
    )
    return Caption(
        title=_title(page),
        facts=facts,
        notes=[
            *_against(page),
            *([fit] if fit else []),
            model,
            *([weak] if page.papers else []),
            *_scepticism(page),
            "Of more than 200 set-ups of data-parallel training, gradient compression sped up 6 (Agarwal et al., MLSys "
            "2022). That layers which are factorised from the start are compressed communication is Pufferfish's "
            "finding (Wang et al., MLSys 2021).",
            f"Links: {links}." if page.papers else "",
            *notes.galore_note(page.measured.values()),
            *brackets_note(estimate for row in rows for estimate in (row.time, row.ratio)),
            *notes.mark_notes((row.marks for row in rows), mark_words("step")),
            *notes.last_notes(page),
        ],
        remarks=[f"{row.arm}, {link_words(row.mbit)}: {row.record.message}" for row in rows if row.time is None],
    )


def _gradients(page: ScalingPage) -> str:
    """Of each model on paper, CoMERA's beside dense's, with the ratio of the whole model where it was asked for."""
    words = []
    for workload in dict.fromkeys(one.workload for one in page.papers):
        found = {arm: record for (name, arm), record in page.on_paper.items() if name == workload}
        dense = next((record for record in found.values() if record.method == DENSE), None)
        if dense and (ours := found.get(COMERA)):
            asked = f" (the whole model {ours.ratio:g} times smaller)" if ours.ratio else ""
            sizes = f"{significant(ours.gradient_mib)} instead of {significant(dense.gradient_mib)} MiB"
            words.append(f"{WORKLOADS.get(workload, workload)} {sizes}{asked}")
    return ", ".join(words)


def _batches(page: ScalingPage) -> str:
    return _of_each({one.workload: one.batch for one in page.papers})


def _totals(page: ScalingPage) -> str:
    return _of_each({one.workload: one.total for one in page.papers})


def _of_each(rows: Mapping[str, int]) -> str:
    return ", ".join(f"{WORKLOADS.get(name, name)} {count:,}" for name, count in rows.items())


def _title(page: ScalingPage) -> str:
    ours = page.count(COMERA, "sent_analytic_mib")
    dense = page.count(DENSE, "sent_analytic_mib")
    if not ours or not dense:
        return "Bytes and time of a step on several ranks, on paper"
    sizes = f"{significant(ours)} MiB per step instead of {significant(dense)}"
    return f"Training on {page.ranks} ranks: {sizes}, and time against the link's rate"


def draw(page: ScalingPage, rows: Sequence[ScalingRow], caption: Caption) -> Figure:
    place = Page(caption.title, caption.facts, [line for line in caption.notes if line], 3)
    [[sent, times]] = place.panels(0, 2.9, 2, widths=[1, 1.7])
    handles = [stroke_handle(style(arm)[0], arm) for arm in page.arms]
    counts = [
        Line2D([], [], color=INK, label=f"sent, {words}", **_count_look(column)) for column, words in COUNTS.items()
    ]
    entries = [*handles, *bounds_handles(row.time for row in rows), *counts]
    if rows:
        legend(place.parts[0], entries, 6, "Measured", handlelength=3.2)
    _draw_sent(sent, page)
    _draw_times(times, page, rows)
    _draw_paper(place, page)
    _draw_winners(place, page)
    return place.finish()


def _heading(axes: Any, words: str) -> None:
    axes.set_title(words, loc="left", fontweight="bold", fontsize=8.5)


def _count_look(column: str) -> dict[str, Any]:
    """The mark of a way to count."""
    fill = {"markerfacecolor": "white"} if column == "sent_analytic_mib" else {}
    return {"linestyle": "", "marker": _MARKERS[column], "markersize": 4.2, **fill}


def _draw_sent(axes: Any, page: ScalingPage) -> None:
    """Panel a: a line per arm, three marks on it, the values beside them."""
    _heading(axes, "a  sent per step and rank, MiB")
    found = {(arm, column): page.count(arm, column) for arm in page.arms for column in COUNTS}
    if not any(found.values()):
        nothing_drawn(axes, "nothing measured")
        return
    for row, arm in enumerate(page.arms):
        for shift, column in zip((-0.27, 0.0, 0.27), COUNTS, strict=True):
            if value := found[arm, column]:
                axes.plot([value], [row + shift], color=style(arm)[0].colour, **_count_look(column))
        if values := [value for column in COUNTS if (value := found[arm, column])]:
            note(axes, significant(values[0]), (max(values), row), (6, 0), va="center", fontsize=7)
    axes.set_xscale("log")
    axes.set_ylim(len(page.arms) - 0.5, -0.5)
    axes.set_yticks(range(len(page.arms)), page.arms)
    values = [value for value in found.values() if value]
    axes.set_xlim(min(values) / 1.6, max(values) * 3.2)
    number_axis(axes.xaxis, LogLocator(10))
    axes.grid(visible=True, axis="x")


def _draw_times(axes: Any, page: ScalingPage, rows: Sequence[ScalingRow]) -> None:
    """Panel b: measured steps and the model's curves over the rate of the link."""
    _heading(axes, "b  time per step, ms: measured, and the model's lines")
    if not any(row.time for row in rows):
        nothing_drawn(axes, "nothing measured")
        return
    grid = [0.01 * (25 / 0.01) ** (step / 120) for step in range(121)]
    for arm, model in page.models.items():
        look = {"color": style(arm)[0].colour, "linestyle": style(arm)[0].dashes, "linewidth": 1.0}
        axes.plot([1e3 * gbit for gbit in grid], [model.curve(gbit) for gbit in grid], zorder=2, **look)
    place = {mbit: 40_000.0 if mbit is None else mbit for mbit in page.rates}
    for row in rows:
        if row.time:
            x, span = place[row.mbit], row.time
            if span.low is not None and span.high is not None:
                axes.plot([x, x], [span.low, span.high], **{**WHISKER, "markersize": 4}, zorder=3)
            axes.plot([x], [span.value], **style(row.arm)[0].dots, linestyle="", markersize=4.5, zorder=4)
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticks = [10, 100, 1000, 10_000, 25_000]
    words = ["10", "100", "1,000", "10,000", "25,000"]
    if None in page.rates:
        ticks, words = [*ticks[:-1], 40_000], [*words[:-1], "no limit"]
    axes.set_xticks(ticks, words)
    axes.minorticks_off()
    number_axis(axes.yaxis, LogLocator(10, subs=(1, 2, 5)))
    axes.set_xlabel("rate of the link, Mbit/s")
    axes.grid(visible=True, axis="both")


def _draw_paper(place: Page, page: ScalingPage) -> None:
    """Panel c: a column per workload, weak scaling above strong."""
    workloads = list(dict.fromkeys(one.workload for one in page.papers))
    panels = place.panels(1, 2.0, max(len(workloads), 1), 2)
    shown = [one for one in page.papers if one.arm in SHOWN_ARMS]
    arms = sorted({one.arm for one in shown}, key=by_arm)
    handles = [Line2D([], [], label=_short(arm), **_paper_look(arm, "ethernet_10")) for arm in arms]
    handles += [Line2D([], [], label=LINKS[name].words, **_paper_look("", name)) for name in SHOWN_LINKS]
    if not shown:
        for axes in (one for line in panels for one in line):
            nothing_drawn(axes, NOT_RECORDED)
        return
    device = shown[0].device
    heading = f"c  on paper: time per step, ms, by the number of ranks, each an {device}"
    legend(place.parts[1], handles, 4, heading, handlelength=3.2)
    for column, workload in enumerate(workloads):
        for line, words in enumerate(("weak", "strong")):
            axes = panels[line][column]
            for one in shown:
                if one.workload == workload:
                    for name in SHOWN_LINKS:
                        joined = [ranks for ranks in RANKS if ranks <= LINKS[name].most_ranks]
                        times = [_scaled(one, words, ranks, LINKS[name]) for ranks in joined]
                        axes.plot(joined, times, **_paper_look(one.arm, name))
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xticks(RANKS[::3], [f"{ranks:,}" for ranks in RANKS[::3]])
            axes.minorticks_off()
            number_axis(axes.yaxis, LogLocator(10))
            axes.set_title(f"{WORKLOADS.get(workload, workload)}, {words} scaling", loc="left", fontsize=8)
            axes.grid(visible=True, axis="both")
            if line:
                axes.set_xlabel("ranks")


def _short(arm: str) -> str:
    return "dense, row-wise, sharded" if arm == "dense:row_wise" else arm


def _scaled(one: Paper, words: str, ranks: int, link: Link) -> float:
    return one.weak_ms(ranks, link) if words == "weak" else one.strong_ms(ranks, link)


def _paper_look(arm: str, link: str) -> dict[str, Any]:
    """The arm decides colour and marker, the link dashes and filling; without an arm, of the link alone."""
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


def _draw_winners(place: Page, page: ScalingPage) -> None:
    """Panel d: a strip per case, in the fill of the arm that takes least."""
    [[axes]] = place.panels(2, 0.36 * max(len(page.cases), 1) + 0.2)
    heading = "d  the arm whose step takes least, by the model, over the rate of the link; numbers: where it changes"
    arms = sorted({arm for case in page.cases for arm, _, _ in case.winners}, key=by_arm)
    legend(place.parts[2], [fill_handle(style(arm)[1], _short(arm)) for arm in arms], 5, heading)
    if not page.cases:
        nothing_drawn(axes, NOT_RECORDED)
        return
    for row, case in enumerate(page.cases):
        for arm, low, high in case.winners:
            axes.barh(row, high - low, left=low, height=0.5, linewidth=0.4, **style(arm)[1].look)
        last = 0.0
        for _, low, _ in case.winners[1:]:
            near = low < _NEAR * last  # its words stand below the strip, those of the one before above
            at, shift, align = (row + 0.27, -1, "top") if near else (row - 0.27, 1, "bottom")
            note(axes, rate_words(low), (low, at), (0, shift), ha="center", va=align, fontsize=6.5)
            last = 0.0 if near else low
    axes.set_xscale("log")
    axes.set_xlim(SLOWEST, QUICKEST)
    axes.set_ylim(len(page.cases) - 0.6, -0.75)
    axes.set_yticks(range(len(page.cases)), [case.words for case in page.cases])
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
    rows=rows_of,
    columns=columns,
    tidy_rows=tidy_rows,
    caption=caption,
    draw=draw,
    section="link",
)
