"""Fig. 14: the leading metric by step in FP32, BF16 and with FP8's products, and how far they end apart."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from figures.artifact import Artifact
from figures.claims.claims import Claim, Finding, Judgement, by_bounds, undecided, untested
from figures.claims.rule import Rule
from figures.claims.training import other_model
from figures.columns import Format, readable
from figures.draw import metrics
from figures.draw.captions import Caption
from figures.draw.layout import panel_page
from figures.draw.lines import lines
from figures.draw.style import stroke_handle, strokes
from figures.frame import each
from figures.stats.curves import curves
from figures.stats.metric import Score
from figures.stats.precisions import Precisions, select
from figures.stats.seeds import with_estimates
from figures.stats.studies import PROBES
from figures.text import OLDER

#: How far a lower precision may end from FP32, in nats of loss and in points of accuracy.
NATS, POINTS = 0.02, 1.0
SEEDS_NEEDED = 3

#: What a line is, as the first columns of a table.
LINE = ("device", "dataset", "arm", "precision", "arithmetic", "seeds")


def margin(page: Precisions) -> float:
    """Return by how much a lower precision may differ from FP32."""
    return POINTS if page.metric.unit == "%" else NATS


def table(page: Precisions) -> pd.DataFrame:
    """Return a line per arm and precision: its metric, and the difference to what it is compared with."""
    less = page.less(page.metric)
    rows = with_estimates(page.rows, {"less": [less.get(line) for line in page.rows.index]})
    rows["margin"] = rows["compared_with"].notna().map({True: margin(page), False: None})
    columns = [*LINE, *metrics.ends(page.metric.name, "less"), "compared_with"]
    return rows[[*columns, "margin", "remarks"]].reset_index(drop=True)


def shown(page: Precisions, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with a line per arm and precision, as people read it."""
    more = {page.metric.name: metrics.metric_format(page.metric)}
    more |= {"less": metrics.difference_format(page.metric, "less")}
    return read_by_precision(page, table, {**more, "compared_with": Format("than", left=True)})


def read_by_precision(page: Precisions, table: pd.DataFrame, columns: Mapping[str, Format]) -> pd.DataFrame:
    """Return the table that people read, with these columns behind arm, precision and the number of seeds."""
    rows = page.rows.reset_index(drop=True)
    marked = rows["precision"].where(~rows["older_code"], rows["precision"] + f" {OLDER}")
    own = table.assign(precision=marked, seeds=rows["finished"].map(len))
    more = {"seeds": Format("seeds", digits=0), **columns}
    return readable(own, ["arm", "precision", *more], more)


def about(page: Precisions, _: pd.DataFrame) -> dict[str, Any]:
    """Return what ran, which lines the probe voids, and what became of single runs."""
    rows = page.rows
    seeds = {line: sorted(runs) for line, runs in rows["finished"].items()}
    remarks = [(row.Index, remark) for row in each(rows) for remark in row.remarks_on_runs]
    ran = rows["arithmetic"]
    ran = ran[(ran != "") & (ran != rows["precision"])]
    return {
        **metrics.about(page, rows["finished"].map(len), remarks),
        "seeds": page.seeds,
        "fewer": {line: mine for line, mine in seeds.items() if mine and mine != page.seeds},
        "other_starts": not rows["as_published"].all(),
        "ran": metrics.gathered(zip(ran.index, ran, strict=True)),
        "beside_probe": metrics.standing(dict(rows["score"]), page.metric.probe),
    }


def draw(page: Precisions, _: pd.DataFrame, caption: Caption) -> Figure:
    """Draw the learning curves, whose ends are in the table; colour and marker tell arms, dashes precisions."""
    metric, points = page.metric, curves(page.finished, "line")
    rows = page.rows[page.rows["status"] == "ok"]
    arms, precisions = (strokes(list(dict.fromkeys(rows[name]))) for name in ("arm", "precision"))
    dashes = {name: stroke.dashes for name, stroke in precisions.items()}
    looks = {row.Index: replace(arms[row.arm], dashes=dashes[row.precision]) for row in each(rows)}
    handles = [stroke_handle(look, line) for line, look in looks.items()]
    paper, [panels] = panel_page(caption, [[metric.text, "training loss"]], 3.0, handles, 4)
    for axes, words in zip(panels, (metric.axis, "training loss, nats"), strict=True):
        metrics.label(axes, "steps", words, rows.empty)
    if metric.probe is not None:
        panels[0].axhline(metric.probe, color="0.4", linestyle=":", linewidth=0.8)
        place = {"xycoords": ("axes fraction", "data"), "va": "bottom"}
        panels[0].annotate("probe", (0.01, metric.probe), fontsize=6.5, **place)
    of_place = points.groupby(["line", "place"])
    means = of_place[["step", "value", "train_loss"]].mean().assign(runs=of_place.size()).reset_index()
    means = means[means["runs"] == means["line"].map(rows["finished"].map(len))]  # of all seeds
    for axes, name in zip(panels, ("value", "train_loss"), strict=True):
        lines(axes, means, "step", name, "line", looks, linewidth=1.2, markersize=3)
    return paper.finish()


def judge(_: Claim, page: Precisions, __: Any) -> Judgement:
    """Judge whether both bounds lie within the margin of FP32, of the arms that start as the paper has it."""
    metric, rows, most, reasons = page.metric, page.rows, margin(page), []
    found = list[Finding]()
    apart = dict[str, Score]()
    for line, less in page.less(metric).items():
        if rows["precision"][line].startswith("fp8"):
            words = less.text(sign=True, unit=True)
            found.append(Finding(f"{line} less fp32, {less.seeds_text}", words))
            if rows["as_published"][line]:
                apart[line] = less
    if not apart:
        return untested("No pair of runs in FP8 and in FP32 with one seed.")
    if page.is_papers:
        reasons.append(other_model(page))
    if below := metrics.standing(dict(rows["score"][list(apart)]), metric.probe).below:
        reasons.append(f"Not surely better than the {metric.probe_text}: {'; '.join(below)}.")
    if min(one.seeds for one in apart.values()) < SEEDS_NEEDED:
        reasons.append(f"Inconclusive: fewer than {SEEDS_NEEDED} seeds.")
    losses = [sorted(-metric.gain(end, 0.0) for end in less.span) for less in apart.values()]
    outcome = by_bounds([(low, high) for low, high in losses], most=most)
    relation = {"reproduced": "All bounds lie within", "not reproduced": "All bounds lie beyond"}
    why = f"{relation.get(outcome, 'Not all bounds lie within')} the margin."
    return undecided(reasons, found) or Judgement(outcome, why, found)


ARTIFACT: Artifact[Precisions] = Artifact(
    name="fig14",
    summary="learning curves in FP32, BF16 and with FP8's products; an image per device and dataset",
    experiments=("fig14",),
    measure="train",
    lenders=PROBES,
    made_by="make reproduce-fig14",
    order=140,
    select=select,
    table=table,
    shown=shown,
    about=about,
    draw=draw,
    rules=(
        Rule(
            "fp8-accuracy",
            "accuracy in FP8-mix less that in FP32, 3 seeds, of each arm",
            ">= -tolerance",
            tolerance=POINTS,
            unit="points",
            judge=judge,
        ),
    ),
)
