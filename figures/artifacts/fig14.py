"""Fig. 14: the leading metric by step in FP32, BF16, FP8's products and FP8's storage, and how far they end apart."""

from collections.abc import Sequence
from dataclasses import replace

from matplotlib.figure import Figure

from figures.artifact import Artifact
from figures.claims.claims import Claim, Finding, Judgement
from figures.claims.rule import Rule
from figures.claims.training import other_model
from figures.page import training as shared
from figures.page.drawn import Caption
from figures.page.layout import panel_page
from figures.page.notes import closing_notes, device_fact, listed
from figures.page.style import Stroke, stroke_handle, strokes
from figures.records.metric import Score
from figures.records.precisions import PrecisionLine, Precisions, select
from figures.records.studies import PROBES
from figures.records.training import curve_of
from figures.text import REMARKS, Column, bounds

#: How far, in the metric's unit, a lower precision may end from what it is compared with: nats of FP8's products and of
#: its storage, and points of accuracy.
PRODUCTS_NATS, STORAGE_NATS, POINTS = 0.02, 0.01, 1.0
SEEDS_NEEDED = 3


def margin(page: Precisions, line: PrecisionLine) -> float:
    """What may lie between a line and what it is compared with."""
    if page.metric.unit == "%":
        return POINTS
    return STORAGE_NATS if line.stores else PRODUCTS_NATS


def _smaller(page: Precisions) -> str:
    """Words on a model of the encoder's workload that is not the paper's."""
    return ", a smaller encoder" if page.is_papers and page.dense_parameters and not page.is_full_size else ""


def rows_of(page: Precisions) -> tuple[PrecisionLine, ...]:
    return page.lines


def columns(page: Precisions, _: Sequence[PrecisionLine]) -> list[Column[PrecisionLine]]:
    metric = page.metric

    def less(line: PrecisionLine) -> str | None:
        apart = page.less(line, metric)
        return apart.text(sign=True) if apart else None

    def against(line: PrecisionLine) -> str | None:
        return ", ".join(line.compared_with) if line.compared_with else None

    def tidy(line: PrecisionLine) -> dict[str, object]:
        return {
            "stored_error": line.stored_error,
            **bounds(metric.name, line.reached(metric)),
            **bounds("less", page.less(line, metric)),
            "compared_with": against(line),
            "margin": margin(page, line) if line.compared_with and not line.is_control else None,
        }

    return framed(
        page,
        Column(metric.heading, lambda line: line.reached(metric), tidy),
        Column(f"less, {metric.unit_apart}".removesuffix(", "), less),
        Column("than", against, left=True),
    )


def framed(page: Precisions, *columns: Column[PrecisionLine]) -> list[Column[PrecisionLine]]:
    """Columns between those that every table of precisions has."""

    def tidy(line: PrecisionLine) -> dict[str, object]:
        return {
            "device": page.device,
            "dataset": page.dataset,
            "arm": line.arm,
            "precision": line.precision,
            "arithmetic": line.arithmetic,
            "seeds": " ".join(map(str, line.finished)),
        }

    def remarks(line: PrecisionLine) -> str:
        return "; ".join(line.remarks)

    def older(line: PrecisionLine) -> str:
        return max(map(page.older, line.finished.values()), default="")

    return [
        Column("arm", lambda line: line.arm, tidy, left=True),
        Column("precision", lambda line: f"{line.precision} {older(line)}".rstrip(), left=True),
        Column("seeds", lambda line: len(line.finished)),
        *columns,
        Column("what ran", lambda line: line.arithmetic or None, left=True),
        Column(REMARKS, remarks, lambda line: {"remarks": remarks(line)}, left=True),
    ]


def caption(page: Precisions, lines: Sequence[PrecisionLine]) -> Caption:
    steps = sorted({run.train_steps for line in lines for run in line.finished.values() if run.train_steps})
    seeds = sorted({seed for line in lines for seed in line.runs})
    fewer = [
        f"{line.name}: {', '.join(map(str, sorted(line.finished)))}"
        for line in lines
        if line.finished and sorted(line.finished) != seeds
    ]
    in_brackets = shared.brackets_words((len(line.finished) for line in lines), shared.examples_words(page))
    return Caption(
        title=f"Fig. 14: training in lower precisions on {page.dataset!r}{_smaller(page)}",
        facts=(
            device_fact(page, f"batch {listed(page, 'batch_size')}"),
            f"Trained for {', '.join(f'{count:,}' for count in steps)} steps, seeds {', '.join(map(str, seeds))}.",
        ),
        notes=(
            *([f"Seeds of lines that lack some: {'; '.join(fewer)}."] if fewer else []),
            "fp8: products of the linear targets in FP8, all else in FP32; fp8_split: so, operands as thin as the rank "
            "in two terms; bf16: autocast; arms that end in _fp8: what stays wide is kept for backward in FP8; "
            ":orthogonal: the cores start with orthogonal halves, not as in the paper.",
            f"less: paired by seed and by {shared.validation_words(page)}; {in_brackets}. Emulated products have the "
            "numbers of native ones up to the order of sums.",
            *_control_notes(page),
            *probe_notes(page, lines),
            *closing_notes(page),
        ),
        remarks=[f"{line.name}, {remark}." for line in lines for remark in line.remarks],
    )


def noise(page: Precisions) -> Score | None:
    """By how much runs of the same seeds that differ in rounding alone end apart; the widest of several."""
    controls = [line for line in page.lines if line.is_control and line.as_published]
    found = [less for line in controls if (less := page.less(line, page.metric))]
    return max(found, key=_farthest, default=None)


def _farthest(less: Score) -> float:
    return max(map(abs, less.span))


def _control_notes(page: Precisions) -> list[str]:
    """What the control is, and what it tells."""
    names = " and ".join(line.name for line in page.lines if line.is_control and line.as_published)
    if (less := noise(page)) is None:
        return []
    apart = f"{less.text(sign=True, unit=True)} apart ({less.seeds_text})"
    what = f"{names}: a control, the same computation in another order of additions"
    return [f"{what}. Rounding alone sets runs {apart}; what lower precisions change shows beyond that."]


def below_probe(page: Precisions, lines: Sequence[PrecisionLine]) -> list[PrecisionLine]:
    """The lines that do not surely beat the probe of the data; none where there is no probe."""
    metric = page.metric
    scores = {line: line.reached(metric) for line in lines}
    return [line for line, one in scores.items() if metric.probe is not None and one and not one.beats(metric.probe)]


def probe_notes(page: Precisions, lines: Sequence[PrecisionLine]) -> list[str]:
    """What the probe reaches, and who does not surely beat it."""
    metric = page.metric
    if metric.probe is None:
        return []
    below = "; ".join(line.name for line in below_probe(page, lines))
    reached = f"the {metric.probe_text} reaches {metric.written(metric.probe)}"
    return [f"Probe: {reached}. {f'Not surely better, so that it decides nothing: {below}.' if below else ''}".rstrip()]


def _looks(lines: Sequence[PrecisionLine]) -> dict[str, Stroke]:
    """By line: colour and marker tell its arm, dashes its precision."""
    arms = strokes(list(dict.fromkeys(line.arm for line in lines)))
    precisions = strokes(list(dict.fromkeys(line.precision for line in lines)))
    return {line.name: replace(arms[line.arm], dashes=precisions[line.precision].dashes) for line in lines}


def draw(page: Precisions, lines: Sequence[PrecisionLine], caption: Caption) -> Figure:
    shown = [line for line in lines if line.finished]
    looks = _looks(shown)
    handles = [stroke_handle(looks[line.name], line.name) for line in shown]
    titles = [page.metric.text, "training loss"]
    paper, [panels] = panel_page(caption.title, caption.facts, [titles], caption.notes, 3.0, handles, 4)
    for axes, label in zip(panels, (page.metric.axis, "training loss, nats"), strict=True):
        axes.set_xlabel("steps", fontsize=8)
        axes.set_ylabel(label, fontsize=8)
        if not shown:
            shared.nothing_finished(axes)
    if page.metric.probe is not None:
        panels[0].axhline(page.metric.probe, color="0.4", linestyle=":", linewidth=0.8)
        panels[0].annotate(
            "probe", (0.01, page.metric.probe), xycoords=("axes fraction", "data"), va="bottom", fontsize=6.5
        )
    for line in shown:
        curves = [curve_of(run) for run in line.finished.values()]
        losses = [[float(row["train_loss"]) for row in run.samples["curve"]] for run in line.finished.values()]
        points = range(min(map(len, curves)))
        steps = [curves[0][point].step for point in points]
        for axes, values in (
            (panels[0], [sum(curve[point].value for curve in curves) / len(curves) for point in points]),
            (panels[1], [sum(loss[point] for loss in losses) / len(losses) for point in points]),
        ):
            axes.plot(steps, values, linewidth=1.2, markersize=3, **looks[line.name].look)
    return paper.finish()


def judge(_: Claim, page: Precisions, lines: Sequence[PrecisionLine]) -> Judgement:
    """Comparable is within the margin of FP32, with both bounds, of the arms that start as the paper has it."""
    metric = page.metric
    apart = {line: less for line in lines if line.precision.startswith("fp8") and (less := page.less(line, metric))}
    found = [
        Finding(f"{line.name} less fp32, {less.seeds_text}", less.text(sign=True, unit=True))
        for line, less in apart.items()
    ]
    apart = {line: less for line, less in apart.items() if line.as_published}
    if not apart:
        return Judgement("not tested here", "No pair of runs in FP8 and in FP32 with one seed.")
    if page.is_papers and (other := other_model(page)):
        return Judgement("not tested here", other, found)
    if below := below_probe(page, list(apart)):
        names = "; ".join(line.name for line in below)
        return Judgement("not tested here", f"Not surely better than the {metric.probe_text}: {names}.", found)
    if min(less.seeds for less in apart.values()) < SEEDS_NEEDED:
        return Judgement("not tested here", f"Inconclusive: fewer than {SEEDS_NEEDED} seeds.", found)
    wide = max(margin(page, line) for line in apart)
    if (control := noise(page)) is not None and _farthest(control) > wide:
        why = f"Inconclusive: runs that differ in rounding alone end {control.text(sign=True, unit=True)} apart."
        return Judgement("not tested here", why, found)
    worst = {line: -min(metric.gain(end, 0.0) for end in less.span) for line, less in apart.items()}
    best = {line: -max(metric.gain(end, 0.0) for end in less.span) for line, less in apart.items()}
    if all(worst[line] <= margin(page, line) for line in apart):
        return Judgement("reproduced", "All bounds lie within the margin.", found)
    if all(best[line] > margin(page, line) for line in apart):
        return Judgement("not reproduced", "All bounds lie beyond the margin.", found)
    return Judgement("partly", "Not all bounds lie within the margin.", found)


ARTIFACT: Artifact[Precisions] = Artifact(
    name="fig14",
    heading="Fig. 14: lower precisions",
    summary="learning curves in FP32, BF16, FP8's products and FP8's storage; an image per device and dataset",
    experiments=(
        "fig14",
        "fig14_control",
        "fig14_split",
        "fig14_storage",
        "fig14_sst2",
        "fig14_sst2_storage",
        "fig14_sst2_small",
        "fig14_sst2_small_storage",
    ),
    measure="train",
    lenders=PROBES,
    made_by="make reproduce-fig14",
    order=140,
    select=select,
    rows=rows_of,
    columns=columns,
    caption=caption,
    draw=draw,
    rules=(
        Rule(
            "fp8-accuracy",
            "accuracy in FP8-mix less that in FP32, 3 seeds, of each arm",
            ">= -tolerance",
            "any",
            POINTS,
            "points",
            judge=judge,
        ),
    ),
)
