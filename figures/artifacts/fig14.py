"""Fig. 14: the leading metric by step in FP32, BF16, FP8's products and FP8's storage, and how far they end apart."""

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
from figures.draw import training
from figures.draw.captions import Caption
from figures.draw.layout import panel_page
from figures.draw.style import stroke_handle, strokes
from figures.frame import each
from figures.stats.metric import Score
from figures.stats.precisions import Precisions, select
from figures.stats.seeds import with_estimates
from figures.stats.studies import PROBES
from figures.stats.training import curves
from figures.text import OLDER

#: How far, in the metric's unit, a lower precision may end from what it is compared with: nats of FP8's products and of
#: its storage, and points of accuracy.
PRODUCTS_NATS, STORAGE_NATS, POINTS = 0.02, 0.01, 1.0
SEEDS_NEEDED = 3

#: What a line is, as the first columns of a table.
LINE = ("device", "dataset", "arm", "precision", "arithmetic", "seeds")


def margins(page: Precisions) -> pd.Series:
    """Return by how much each line may differ from what it is compared with."""
    if page.metric.unit == "%":
        return pd.Series(POINTS, page.rows.index)
    return page.rows["stores"].map({True: STORAGE_NATS, False: PRODUCTS_NATS})


def table(page: Precisions) -> pd.DataFrame:
    """Return a line per arm and precision: its metric, and the difference to what it is compared with."""
    less = page.less(page.metric)
    rows = with_estimates(page.rows, {"less": [less.get(line) for line in page.rows.index]})
    is_judged = rows["compared_with"].notna() & ~rows["is_control"]
    rows["margin"] = margins(page).where(is_judged)
    columns = [*LINE, "stored_error", *training.ends(page.metric.name, "less"), "compared_with"]
    return rows[[*columns, "margin", "remarks"]].reset_index(drop=True)


def shown(page: Precisions, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with a line per arm and precision, as people read it."""
    more = {page.metric.name: training.metric_format(page.metric)}
    more |= {"less": training.difference_format(page.metric, "less")}
    return read_by_precision(page, table, {**more, "compared_with": Format("than", left=True)})


def read_by_precision(page: Precisions, table: pd.DataFrame, columns: Mapping[str, Format]) -> pd.DataFrame:
    """Return the table that people read, with these columns behind arm, precision and the number of seeds."""
    rows = page.rows.reset_index(drop=True)
    marked = rows["precision"].where(~rows["older_code"], rows["precision"] + f" {OLDER}")
    own = table.assign(precision=marked, seeds=rows["finished"].map(len))
    more = {"seeds": Format("seeds", digits=0), **columns}
    return readable(own, ["arm", "precision", *more], more)


def about(page: Precisions, _: pd.DataFrame) -> dict[str, Any]:
    """Return what ran, the control, which lines the probe voids, and what became of single runs."""
    rows, control = page.rows, noise(page)
    seeds = {line: sorted(runs) for line, runs in rows["finished"].items()}
    remarks = [(row.Index, remark) for row in each(rows) for remark in row.remarks_on_runs]
    ran = rows["arithmetic"]
    ran = ran[(ran != "") & (ran != rows["precision"])]
    return {
        **training.about(page, rows["finished"].map(len), remarks),
        "seeds": page.seeds,
        "fewer": {line: mine for line, mine in seeds.items() if mine and mine != page.seeds},
        "precisions": set(rows["precision"]),
        "stores": rows["stores"].any(),
        "other_starts": not rows["as_published"].all(),
        "ran": training.gathered(zip(ran.index, ran, strict=True)),
        "controls": list(rows.index[rows["is_control"] & rows["as_published"]]),
        "noise": control.text(sign=True, unit=True) if control else "",
        "beside_probe": training.standing(dict(rows["score"]), page.metric.probe),
    }


def noise(page: Precisions) -> Score | None:
    """Return the difference between runs that differ in rounding alone; the widest of several."""
    controls = page.rows.index[page.rows["is_control"] & page.rows["as_published"]]
    found = [less for line, less in page.less(page.metric).items() if line in controls]
    return max(found, key=_farthest, default=None)


def _farthest(less: Score) -> float:
    return max(map(abs, less.span))


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
        training.label(axes, "steps", words, rows.empty)
    if metric.probe is not None:
        panels[0].axhline(metric.probe, color="0.4", linestyle=":", linewidth=0.8)
        place = {"xycoords": ("axes fraction", "data"), "va": "bottom"}
        panels[0].annotate("probe", (0.01, metric.probe), fontsize=6.5, **place)
    for line, runs in rows["finished"].items():
        of_place = points[points["line"] == line].groupby("place")
        means = of_place[["step", "value", "train_loss"]].mean()[of_place.size() == len(runs)]
        for axes, name in zip(panels, ("value", "train_loss"), strict=True):
            axes.plot(means["step"], means[name], linewidth=1.2, markersize=3, **looks[line].look)
    return paper.finish()


def judge(_: Claim, page: Precisions, __: Any) -> Judgement:
    """Judge whether both bounds lie within the margin of FP32, of the arms that start as the paper has it."""
    metric, rows, control, reasons = page.metric, page.rows, noise(page), []
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
    margin = margins(page)[list(apart)]
    if page.is_papers:
        reasons.append(other_model(page))
    if below := training.standing(dict(rows["score"][list(apart)]), metric.probe).below:
        reasons.append(f"Not surely better than the {metric.probe_text}: {'; '.join(below)}.")
    if min(one.seeds for one in apart.values()) < SEEDS_NEEDED:
        reasons.append(f"Inconclusive: fewer than {SEEDS_NEEDED} seeds.")
    if control is not None and _farthest(control) > margin.max():
        noise_words = control.text(sign=True, unit=True)
        reasons.append(f"Inconclusive: runs that differ in rounding alone end {noise_words} apart.")
    spans = []
    for line, less in apart.items():
        low, high = sorted(-metric.gain(end, 0.0) for end in less.span)
        spans.append((low - margin[line], high - margin[line]))
    outcome = by_bounds(spans, most=0.0)
    relation = {"reproduced": "All bounds lie within", "not reproduced": "All bounds lie beyond"}
    why = f"{relation.get(outcome, 'Not all bounds lie within')} the margin."
    return undecided(reasons, found) or Judgement(outcome, why, found)


ARTIFACT: Artifact[Precisions] = Artifact(
    name="fig14",
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
