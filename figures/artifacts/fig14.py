"""Fig. 14: the leading metric by step in FP32, BF16, FP8's products and FP8's storage, and how far they end apart."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from figures.artifact import Artifact
from figures.claims.claims import Claim, Finding, Judgement
from figures.claims.rule import Rule
from figures.claims.training import other_model
from figures.columns import Format, readable
from figures.draw import training
from figures.draw.captions import Caption, beside
from figures.draw.layout import panel_page
from figures.draw.style import stroke_handle, strokes
from figures.draw.training import difference_format, metric_format
from figures.frame import each
from figures.stats.metric import Score
from figures.stats.precisions import Precisions, select
from figures.stats.seeds import with_estimates
from figures.stats.studies import PROBES
from figures.stats.training import curve_of
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
    columns = [*LINE, "stored_error", *training.ends(page.metric.name, "less"), "compared_with", "margin", "remarks"]
    return rows[columns].reset_index(drop=True)


def shown(page: Precisions, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with a line per arm and precision, as people read it."""
    metric = page.metric
    less = difference_format(metric, "less")
    than = Format("than", left=True)
    return read_by_precision(page, table, {metric.name: metric_format(metric), "less": less, "compared_with": than})


def read_by_precision(page: Precisions, table: pd.DataFrame, columns: Mapping[str, Format]) -> pd.DataFrame:
    """Return the table that people read, with these columns behind arm, precision and the number of seeds."""
    rows = page.rows.reset_index(drop=True)
    marked = rows["precision"].where(~rows["older_code"], rows["precision"] + f" {OLDER}")
    own = table.assign(precision=marked, seeds=rows["finished"].map(len))
    more = {"precision": Format("precision", left=True), "seeds": Format("seeds", digits=0), **columns}
    return readable(own, ["arm", *more], more)


def about(page: Precisions, _: pd.DataFrame) -> dict[str, Any]:
    """Return what ran, the control, which lines the probe voids, and what became of single runs."""
    rows, control = page.rows, noise(page)
    seeds = {line: sorted(runs) for line, runs in rows["finished"].items()}
    remarks = [(row.Index, remark) for row in each(rows) for remark in row.remarks_on_runs]
    is_said = ~rows["arithmetic"].isin([""]) & (rows["arithmetic"] != rows["precision"])
    return {
        **training.about(page, rows["finished"].map(len)),
        "seeds": page.seeds,
        "fewer": {line: mine for line, mine in seeds.items() if mine and mine != page.seeds},
        "precisions": set(rows["precision"]),
        "stores": rows["stores"].any(),
        "other_starts": not rows["as_published"].all(),
        "ran": training.gathered(zip(rows.index[is_said], rows.loc[is_said, "arithmetic"], strict=True)),
        "controls": list(rows.index[rows["is_control"] & rows["as_published"]]),
        "noise": control.text(sign=True, unit=True) if control else "",
        "beside_probe": training.standing(dict(rows["score"]), page.metric.probe),
        "remarks": training.gathered(remarks),
        "missing": (),
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
    rows, metric = page.rows[page.rows["status"] == "ok"], page.metric
    arms, precisions = (strokes(list(dict.fromkeys(rows[name]))) for name in ("arm", "precision"))
    looks = {row.Index: replace(arms[row.arm], dashes=precisions[row.precision].dashes) for row in each(rows)}
    handles = [stroke_handle(look, line) for line, look in looks.items()]
    paper, [panels] = panel_page(caption, [[metric.text, "training loss"]], 3.0, handles, 4)
    for axes, label in zip(panels, (metric.axis, "training loss, nats"), strict=True):
        axes.set_xlabel("steps", fontsize=8)
        axes.set_ylabel(label, fontsize=8)
        if rows.empty:
            training.nothing_finished(axes)
    if metric.probe is not None:
        panels[0].axhline(metric.probe, color="0.4", linestyle=":", linewidth=0.8)
        place = {"xycoords": ("axes fraction", "data"), "va": "bottom"}
        panels[0].annotate("probe", (0.01, metric.probe), fontsize=6.5, **place)
    for line, runs in rows["finished"].items():
        points = [
            {"step": point.step, "value": point.value, "loss": float(row["train_loss"]), "place": place}
            for run in runs.values()
            for place, (point, row) in enumerate(zip(curve_of(run), run.samples["curve"], strict=True))
        ]
        of_place = pd.DataFrame(points).groupby("place")
        means = of_place.agg({"step": "first", "value": "mean", "loss": "mean"})[of_place.size() == len(runs)]
        for axes, name in zip(panels, ("value", "loss"), strict=True):
            axes.plot(means["step"], means[name], linewidth=1.2, markersize=3, **looks[line].look)
    return paper.finish()


def judge(_: Claim, page: Precisions, __: Any) -> Judgement:
    """Judge whether both bounds lie within the margin of FP32, of the arms that start as the paper has it."""
    metric, probe, rows, control = page.metric, page.metric.probe, page.rows, noise(page)
    in_fp8 = rows.index[rows["precision"].str.startswith("fp8")]
    less = {line: one for line, one in page.less(metric).items() if line in in_fp8}
    found = [
        Finding(f"{line} less fp32, {one.seeds_text}", one.text(sign=True, unit=True)) for line, one in less.items()
    ]
    apart = pd.Series({line: one for line, one in less.items() if rows.loc[line, "as_published"]}, dtype=object)
    if apart.empty:
        return Judgement("not tested here", "No pair of runs in FP8 and in FP32 with one seed.")
    if page.is_papers and (other := other_model(page)):
        return Judgement("not tested here", other, found)
    if below := training.standing(dict(rows["score"][apart.index]), probe).below:
        why = f"Not surely better than the {metric.probe_text}: {'; '.join(below)}."
        return Judgement("not tested here", why, found)
    if min(one.seeds for one in apart) < SEEDS_NEEDED:
        return Judgement("not tested here", f"Inconclusive: fewer than {SEEDS_NEEDED} seeds.", found)
    margin = margins(page)[apart.index]
    if control is not None and _farthest(control) > margin.max():
        why = f"Inconclusive: runs that differ in rounding alone end {control.text(sign=True, unit=True)} apart."
        return Judgement("not tested here", why, found)
    losses = apart.map(lambda one: [-metric.gain(end, 0.0) for end in one.span])
    if (losses.map(max) <= margin).all():
        return Judgement("reproduced", "All bounds lie within the margin.", found)
    if (losses.map(min) > margin).all():
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
