"""Fig. 14: the leading metric by step in FP32, BF16, FP8's products and FP8's storage, and how far they end apart."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from figures.artifact import Artifact
from figures.claims.claims import Claim, Finding, Judgement
from figures.claims.rule import Rule
from figures.claims.training import other_model
from figures.columns import Format, readable, table_of
from figures.page import training
from figures.page.captions import beside
from figures.page.drawn import Caption
from figures.page.layout import panel_page
from figures.page.style import Stroke, stroke_handle, strokes
from figures.page.training import difference_format, metric_format
from figures.records.metric import Score
from figures.records.precisions import PrecisionLine, Precisions, select
from figures.records.studies import PROBES
from figures.records.training import curve_of
from figures.text import bounds

#: How far, in the metric's unit, a lower precision may end from what it is compared with: nats of FP8's products and of
#: its storage, and points of accuracy.
PRODUCTS_NATS, STORAGE_NATS, POINTS = 0.02, 0.01, 1.0
SEEDS_NEEDED = 3


def margin(page: Precisions, line: PrecisionLine) -> float:
    """Return by how much a line may differ from what it is compared with."""
    if page.metric.unit == "%":
        return POINTS
    return STORAGE_NATS if line.stores else PRODUCTS_NATS


def table(page: Precisions) -> pd.DataFrame:
    """Return a line per arm and precision: its metric, and the difference to what it is compared with."""
    metric = page.metric
    return table_of(
        [
            {
                **precision_columns(page, line),
                "stored_error": line.stored_error,
                **bounds(metric.name, line.score()),
                **bounds("less", page.less(line)),
                "compared_with": ", ".join(line.compared_with) if line.compared_with else None,
                "margin": margin(page, line) if line.compared_with and not line.is_control else None,
                "remarks": "; ".join(line.remarks),
            }
            for line in page.lines
        ]
    )


def precision_columns(page: Precisions, line: PrecisionLine) -> dict[str, Any]:
    """Return what a line is, as the first columns of a table."""
    return {
        "device": page.device,
        "dataset": page.dataset,
        "arm": line.arm,
        "precision": line.precision,
        "arithmetic": line.arithmetic,
        "seeds": " ".join(map(str, line.finished)),
    }


def shown(page: Precisions, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with a line per arm and precision, as people read it."""
    metric = page.metric
    less = difference_format(metric, "less")
    than = Format("than", left=True)
    return read_by_precision(page, table, {metric.name: metric_format(metric), "less": less, "compared_with": than})


def read_by_precision(page: Precisions, table: pd.DataFrame, columns: Mapping[str, Format]) -> pd.DataFrame:
    """Return the table that people read, with these columns behind arm, precision and the number of seeds."""
    older = [max(map(page.older, line.finished.values()), default="") for line in page.lines]
    own = table.assign(
        precision=[f"{line.precision} {mark}".rstrip() for line, mark in zip(page.lines, older, strict=True)],
        seeds=[len(line.finished) for line in page.lines],
    )
    more = {"precision": Format("precision", left=True), "seeds": Format("seeds", digits=0), **columns}
    return readable(own, ["arm", *more], more)


def about(page: Precisions, table: pd.DataFrame) -> dict[str, Any]:
    """Return what ran, the control, which lines the probe voids, and what became of single runs."""
    seeds = sorted({seed for line in page.lines for seed in line.runs})
    fewer = {line.name: sorted(line.finished) for line in page.lines if line.finished}
    control = noise(page)
    return {
        **training.about(page, table, (len(line.finished) for line in page.lines)),
        "seeds": seeds,
        "fewer": {name: mine for name, mine in fewer.items() if mine != seeds},
        "precisions": {line.precision for line in page.lines},
        "stores": any(line.stores for line in page.lines),
        "other_starts": any(not line.as_published for line in page.lines),
        "ran": training.gathered(
            (line.name, line.arithmetic) for line in page.lines if line.arithmetic not in ("", line.precision)
        ),
        "controls": [line.name for line in page.lines if line.is_control and line.as_published],
        "noise": control.text(sign=True, unit=True) if control else "",
        "beside_probe": training.standing({line.name: line.score() for line in page.lines}, page.metric.probe),
        "remarks": training.gathered((line.name, remark) for line in page.lines for remark in line.remarks),
        "missing": (),
    }


def noise(page: Precisions) -> Score | None:
    """Return the difference between runs that differ in rounding alone; the widest of several."""
    controls = [line for line in page.lines if line.is_control and line.as_published]
    found = [less for line in controls if (less := page.less(line))]
    return max(found, key=_farthest, default=None)


def _farthest(less: Score) -> float:
    return max(map(abs, less.span))


def _looks(lines: Sequence[PrecisionLine]) -> dict[str, Stroke]:
    """Return a stroke per line: colour and marker tell its arm, dashes its precision."""
    arms = strokes(list(dict.fromkeys(line.arm for line in lines)))
    precisions = strokes(list(dict.fromkeys(line.precision for line in lines)))
    return {line.name: replace(arms[line.arm], dashes=precisions[line.precision].dashes) for line in lines}


def draw(page: Precisions, _: pd.DataFrame, caption: Caption) -> Figure:
    """Draw the learning curves, whose ends are in the table."""
    lines = [line for line in page.lines if line.finished]
    looks = _looks(lines)
    handles = [stroke_handle(looks[line.name], line.name) for line in lines]
    titles = [page.metric.text, "training loss"]
    paper, [panels] = panel_page(caption, [titles], 3.0, handles, 4)
    for axes, label in zip(panels, (page.metric.axis, "training loss, nats"), strict=True):
        axes.set_xlabel("steps", fontsize=8)
        axes.set_ylabel(label, fontsize=8)
        if not lines:
            training.nothing_finished(axes)
    if page.metric.probe is not None:
        panels[0].axhline(page.metric.probe, color="0.4", linestyle=":", linewidth=0.8)
        panels[0].annotate(
            "probe", (0.01, page.metric.probe), xycoords=("axes fraction", "data"), va="bottom", fontsize=6.5
        )
    for line in lines:
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


def judge(_: Claim, page: Precisions, __: Any) -> Judgement:
    """Judge whether both bounds lie within the margin of FP32, of the arms that start as the paper has it."""
    metric, probe = page.metric, page.metric.probe
    eight_bit = [line for line in page.lines if line.precision.startswith("fp8")]
    apart = {line: less for line in eight_bit if (less := page.less(line))}
    found = [
        Finding(f"{line.name} less fp32, {less.seeds_text}", less.text(sign=True, unit=True))
        for line, less in apart.items()
    ]
    apart = {line: less for line, less in apart.items() if line.as_published}
    if not apart:
        return Judgement("not tested here", "No pair of runs in FP8 and in FP32 with one seed.")
    if page.is_papers and (other := other_model(page)):
        return Judgement("not tested here", other, found)
    scores = {line.name: line.score() for line in apart}
    if below := [name for name, one in scores.items() if probe is not None and one and not one.beats(probe)]:
        return Judgement(
            "not tested here", f"Not surely better than the {metric.probe_text}: {'; '.join(below)}.", found
        )
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
    table=table,
    shown=shown,
    about=about,
    caption=beside(__file__),
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
