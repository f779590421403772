"""Which format trains best: loss against stored size, training time and peak memory, each arm at its own best rate.

A figure the paper lacks. Each arm under each optimizer had its own search of rates, by data that is not reported on.
The best dense model of equal size, of fewer columns or of other depth, is the rival of every format: what does not beat
it compresses nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator

from bench.core.record import COLUMNS
from figures import frame
from figures.arms import DENSE
from figures.artifact import Artifact
from figures.columns import readable
from figures.draw import style
from figures.draw.captions import Caption
from figures.draw.layout import panel_page
from figures.draw.lines import lines
from figures.frame import Records
from figures.stats.searches import OWN, REPORTED, against, comparable, searched, with_sure, worded

TIMED = ("formats_teacher", "formats_tiny", "formats_small", "formats_base", "pointer")
EXPERIMENTS = (*TIMED, "formats_docs", "fine_tune")
TIMES = tuple(f"{name}_time" for name in TIMED)

#: How the names of dense models begin that were made smaller by their shape.
SMALLER = ("dense:narrow", "dense:small")

#: What a probe and the models of a page share; a probe has a limit of numbers of its own.
PROBED = (*frame.MODEL, "!workload.probe_*")

#: How the name of a probe begins that may store as many numbers as its record's settings say.
LIMITED = "equal-size "

#: Optimizers in the order of the page, with their names.
OPTIMIZERS = {"adamw": "AdamW", "muon": "Muon", OWN: "its own"}

#: Costs that a loss is drawn against, by their column.
COSTS = {
    "stored_mib": "size of the stored model, MiB",
    "training_s": "training, s: steps times a measured step",
    "peak_memory_predicted_mib": "predicted peak memory of a step, MiB",
}

#: So many times the least loss lets the axis of losses be logarithmic; so much of its height is a label's.
_WIDE, _LABEL = 10.0, 0.05

#: Costs within this factor are drawn as good as equal.
_ALIKE = 1.1

#: Bytes of a parameter.
FLOAT_BYTES = 4

#: The loss with its range over seeds.
LOSS = ("test_loss", "test_loss_low", "test_loss_high")

#: The line of a probe, and that of dense training.
_DOTTED: dict[str, Any] = {"color": style.FAINT, "linestyle": (0, (1, 1.5)), "linewidth": 1}
DENSE_LINE: dict[str, Any] = {"color": style.DENSE_STROKE.colour, "linewidth": 0.8, "zorder": 1}


@dataclass(frozen=True, kw_only=True, eq=False)
class Formats(frame.Page):
    """The searches of one experiment on one device; ``probed`` has what simple models reach on the same data.

    There is a record of probes for each limit of numbers that they may store. ``timed_on`` has the other device that
    steps were timed on, by optimizer.
    """

    experiment: str
    lines: pd.DataFrame
    timed_on: dict[str, str] = field(default_factory=dict)
    probed: pd.DataFrame = field(default_factory=pd.DataFrame)

    @property
    def unit(self) -> str:
        """Return the unit of the loss for choosing, which the reported one shares."""
        words = self.df.loc[self.df["measure"] == "train", "workload_words"].iloc[-1]
        return str((words.get("metric") or {}).get("unit", ""))

    @property
    def launches_decide(self) -> bool:
        """Return whether steps were timed on CUDA without CUDA Graph."""
        timed = self.df[self.df["measure"] == "run"]
        return bool((timed["predicted_for"].eq("cuda") & ~timed["cuda_graph"].astype(bool)).any())

    @property
    def probes(self) -> pd.DataFrame:
        """Return simple models by name, the worst first: the reported loss and, of limited ones, the most numbers."""
        found = []
        for probed in frame.dicts(self.probed, "workload.probe_numbers", "samples.probes"):
            limit = probed.get("workload.probe_numbers")
            for name, one in probed["samples.probes"].items():
                if limit is not None and name.startswith(LIMITED):
                    name, numbers = f"n-gram of {limit:,} numbers", limit
                else:
                    name, numbers = name.removesuffix(" model"), None
                found.append({"name": name, "test_loss": one["metrics"].get(REPORTED), "parameters": numbers})
        lines = pd.DataFrame(found, columns=["name", "test_loss", "parameters"]).dropna(subset="test_loss")
        lines = lines.drop_duplicates("name", keep="last").sort_values("test_loss", ascending=False)
        return lines.set_index("name").rename_axis(None)


def ordered(lines: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Return searches by optimizer, then by these columns."""
    place = lines["optimizer"].map({name: place for place, name in enumerate(OPTIMIZERS)})
    return lines.assign(place=place).sort_values(["place", *columns], ignore_index=True)


def select(records: Records) -> list[Formats]:
    """Return a page for each experiment of each device that has trainings."""
    pages = []
    for device, df in frame.by_device(records):
        has_recipe = frame.column(df, "training.recipe.optimizer").notna()
        is_own = (df["measure"] == "train") & df["experiment"].isin(EXPERIMENTS)
        for experiment, runs in frame.groups(df[is_own & has_recipe], "experiment"):
            kept, left_out = comparable(runs, f"training(s) of {experiment}")
            own = frame.settings(kept.tail(1), PROBED)
            timed = _timed(records, f"{experiment}_time", own, **device)
            lines = searched(kept, timed)
            probes = df[df["measure"] == "probe"]
            probes = probes[probes["data_hash"] == kept["data_hash"].iloc[-1]]
            of_model = frame.settings(probes, PROBED).isin(own)
            probed = frame.oldest_first(frame.newest(probes[of_model], ["cell_id"]))
            steps = timed[timed["cell_id"].isin(lines["cell_id"])]
            elsewhere = steps[steps["device"] != device["device"]]
            optimizers = frame.column(elsewhere, "training.recipe.optimizer", "").map(OPTIMIZERS)
            timed_on = dict(zip(optimizers, elsewhere["device"], strict=True))
            place = experiment.removeprefix("formats_")
            page = Formats(
                **device,
                df=frame.oldest_first(pd.concat([kept, steps, probed])),
                left_out=tuple(left_out),
                place=place,
                suffix=(place,),
                experiment=experiment,
                timed_on=timed_on,
                lines=ordered(lines.assign(size=lines["ratio"].fillna(0.0)), "size", "test_loss"),
                probed=probed,
            )
            pages.append(page)
    return sorted(pages, key=lambda page: (page.device, EXPERIMENTS.index(page.experiment)))


def _timed(records: Records, experiment: str, own: pd.Series, device: str, kind: str) -> pd.DataFrame:
    """Return the timed steps of an experiment, of the page's model; those under one optimizer are of one device.

    It is the page's own, or, for a page of a CPU, the CPU that timed most arms. Dense is timed beside every ratio.
    """
    df = frame.of(records)
    df = df[(df["experiment"] == experiment) & (df["status"] == "ok")]
    df = df[frame.settings(df, PROBED).isin(own)].sort_values("ratio", ascending=False, kind="stable")
    cpus = {name for name, some in df.groupby("device") if kind == frame.device_kind(some) == "cpu"}
    df = df[df["device"].isin({device, *cpus})]
    optimizer = frame.column(df, "training.recipe.optimizer", "")
    counts = df.groupby([optimizer, "device"])["cell_id"].nunique()
    most = counts.groupby(level=0).transform("max")
    order = sorted(counts[counts == most].index, key=lambda each: each[1] != device)
    chosen = dict(reversed(order))  # the page's own last, so that it is taken among equals
    return df[optimizer.map(chosen) == df["device"]]


def table(page: Formats) -> pd.DataFrame:
    """Return a line per arm, optimizer and ratio, at the best of the rates that were tried.

    ``p_smaller_dense`` is the chance of so great a difference to the smaller dense model of its size.
    """
    rates = page.lines["rates"].map(lambda tried: ", ".join(f"{rate:g}" for rate in tried))
    lines = page.lines.assign(device=page.device, experiment=page.experiment, rates=rates, probe_loss=bars(page))
    lines = lines.assign(matrices_ratio=matrices_ratio(page), p_smaller_dense=beside_smaller(page.lines)["p"])
    columns = ["device", "experiment", "optimizer", "ratio", "matrices_ratio", "arm", "parameters"]
    columns += [*_start_loss(lines), *LOSS, "probe_loss", "seeds"]
    steps = [f"step_over_dense{end}" for end in ("", "_low", "_high", "_bounds")]
    columns += ["p_smaller_dense", *(name for name in steps if name in lines)]
    return lines[[*columns, "training_s", "peak_memory_predicted_mib", "lr", "at_edge", "rates", "remarks"]]


def _start_loss(lines: pd.DataFrame) -> list[str]:
    """Return the column of losses before the first step, where trainings start from trained weights."""
    return ["start_loss"] if lines["start_loss"].notna().any() else []


def matrices_ratio(page: Formats) -> pd.Series:
    """Return how many times smaller an arm's matrices are than dense's, whose other parameters it keeps.

    A model in another shape has other columns everywhere: its matrices change with its depth and the square of its
    width, its other parameters with the width.
    """
    lines = page.lines
    mib = page.df[["dense_tensorized_mib", "tensorized_mib"]].astype(float)
    known = (mib["dense_tensorized_mib"] / mib["tensorized_mib"]).groupby(page.df["cell_id"]).first()
    matrices = mib["dense_tensorized_mib"].min() * 2**20 / FLOAT_BYTES
    dense = lines.loc[lines["arm"] == DENSE, "parameters"].max()
    counts, others = lines["parameters"].astype(float), dense - matrices
    left = (counts - others).where(lines["ratio"].notna() & (counts > others))
    depth = lines["depth"].astype(float)
    # the share that is left of each matrix in the arm's own shape: of blocks that the ratio decides, as without a depth
    groups = lines["groups"].astype(float)
    share = (1 / groups).where(groups.notna(), (dense / lines["ratio"].astype(float) - others) / matrices)
    share = share.mask(_is_smaller(lines), 1.0)
    width = ((others**2 + 4 * depth * share * matrices * counts) ** 0.5 - others) / (2 * depth * share * matrices)
    reshaped = (1 / (depth * share * width**2)).where(_is_smaller(lines) | lines["arm"].str.contains(" depth "))
    return reshaped.fillna(lines["cell_id"].map(known)).fillna(matrices / left)


def _is_smaller(lines: pd.DataFrame) -> pd.Series:
    return lines["arm"].str.startswith(SMALLER)


def beside_smaller(lines: pd.DataFrame) -> pd.DataFrame:
    """Return how far formats are apart from the best smaller dense model of equal size, chosen as rates are."""
    rivals = lines[_is_smaller(lines)].sort_values("chosen_by", kind="stable")
    return against(lines[(lines["arm"] != DENSE) & ~_is_smaller(lines)], rivals, ["optimizer"])


def beside_probes(page: Formats) -> pd.DataFrame:
    """Return how far arms are apart from the n-gram model that may store as many numbers as they have parameters."""
    limited = page.probes.dropna(subset="parameters")
    known = limited.assign(losses=limited["test_loss"].map(lambda loss: (loss,)), seeds=None)
    return against(page.lines, pd.concat([known.assign(optimizer=name) for name in OPTIMIZERS]), ["optimizer"])


def bars(page: Formats) -> pd.Series:
    """Return the loss that each arm must end below: of the n-gram model of its size, else of the best simple model."""
    own = page.lines["test_loss"] - beside_probes(page)["apart"]
    return own.astype(float).fillna(page.probes["test_loss"].astype(float).min()).reindex(page.lines.index)


def proves(page: Formats, comparison: pd.DataFrame) -> pd.Series:
    """Return which differences of a comparison (:func:`against`) prove something.

    The side whose worst seed is lower ends below its simple model with every seed; without one, all differences count.
    """
    lines = page.lines.assign(bar=bars(page).fillna(math.inf))
    side, rival = (
        lines.loc[of, ["test_loss_high", "bar"]].to_numpy() for of in (comparison.index, comparison["rival"])
    )
    better = np.where(side[:, :1] <= rival[:, :1], side, rival)
    return pd.Series(better[:, 0] < better[:, 1], comparison.index)


def comparisons(page: Formats) -> list[pd.DataFrame]:
    """Return how arms are apart from the smaller dense model, from dense training and from the probe of their size."""
    lines = page.lines
    dense = against(lines, lines[lines["arm"] == DENSE], ["optimizer"], same_size=False)
    return with_sure(beside_smaller(lines), dense, beside_probes(page))


def shown(page: Formats, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with differences to both dense models and to the probe, and the measured step."""
    smaller, dense, probes = comparisons(page)
    own = table.assign(
        optimizer=table["optimizer"].map(OPTIMIZERS),
        less_dense=worded(dense),
        **{"less_smaller dense": worded(smaller), "less_n-gram": worded(probes)},
        step_time_ms=page.lines["step_time_ms"],
    )
    columns = [
        "optimizer",
        "arm",
        "ratio",
        "matrices_ratio",
        "parameters",
        *_start_loss(page.lines),
        "test_loss",
        "less_smaller dense",
        "less_dense",
    ]
    columns += ["less_n-gram"] * (len(probes) > 0)
    return readable(own, [*columns, "step_time_ms", "peak_memory_predicted_mib", "lr"])


def about(page: Formats, table: pd.DataFrame) -> dict[str, Any]:
    """Return by optimizer which formats have all seeds above their smaller dense rival's, all below, or neither.

    And by optimizer and side those that are surely there. Differences that prove nothing are counted as ``void``;
    ``unproven`` are the arms that do not end below their simple model with every seed.
    """
    smaller, *_ = comparisons(page)
    counted = proves(page, smaller)
    found = page.lines.join(smaller[["apart", "sure"]], how="inner")
    found = found.assign(
        name=[_sized(one) for one in frame.each(found)],
        beside=smaller["beside"].where(counted, "void"),
        side=found["apart"].gt(0).map({True: "above", False: "below"}).where(found["sure"] & counted),
    )
    above = page.lines[page.lines["test_loss_high"].astype(float) >= bars(page)]
    by_optimizer = {OPTIMIZERS[str(name)]: some for name, some in found.groupby("optimizer", sort=False)}
    return {
        "against": {name: by_standing(some["name"], some["beside"]) for name, some in by_optimizer.items()},
        "surely": {name: by_standing(some["name"], some["side"]) for name, some in by_optimizer.items()},
        "unproven": [f"{_sized(one)} ({OPTIMIZERS[one.optimizer]})" for one in frame.each(above)],
        **facts_of(page, table),
    }


def _sized(line: Any) -> str:
    return line.arm if math.isnan(line.ratio) else f"{line.arm} 1/{line.ratio:g}"


def by_standing(names: pd.Series, beside: pd.Series) -> dict[str, list[str]]:
    """Return the names of searches by how their losses stand beside their rivals'."""
    return {where: list(names[beside == where]) for where in ("above", "mixed", "below", "void")}


def facts_of(page: frame.Page, table: pd.DataFrame) -> dict[str, Any]:
    """Return the first training, what its workload calls model and example, and the remarks.

    ``doubtful`` has by remark on a search the arms, with their optimizers, that it is about.
    """
    [first] = frame.dicts(page.df[page.df["measure"] == "train"].head(1), *COLUMNS)
    remarks = table.assign(name=names_of(table), remark=table["remarks"].str.split("; "))
    remarks = remarks.explode("remark")
    by_remark = remarks[remarks["remark"] != ""].groupby("remark", sort=False)["name"]
    return {
        **first["workload_words"],
        "first": {"train_steps": 0, **first},
        "doubtful": {str(remark): list(names.unique()) for remark, names in by_remark},
    }


def names_of(lines: pd.DataFrame) -> pd.Series:
    """Return arms with their optimizers."""
    return lines["arm"] + " (" + lines["optimizer"].map(OPTIMIZERS) + ")"


def best_shapes(table: pd.DataFrame) -> pd.DataFrame:
    """Return lines; of an arm in other shapes the best for each optimizer and size, chosen as rates are."""
    arms = table["arm"].str.extract(r"^(\S+).* depth ")[0] + ", best shape"
    best = table.assign(arm=arms).sort_values("chosen_by", kind="stable").dropna(subset="arm")
    return pd.concat([table[arms.isna()], best.drop_duplicates(["arm", "optimizer", "ratio"])]).sort_index()


def draw(page: Formats, table: pd.DataFrame, caption: Caption) -> Figure:
    """Draw the loss against each cost, a row of panels per optimizer; arms with one of their own are in each."""
    table = best_shapes(table.assign(stored_mib=page.lines["stored_mib"], chosen_by=page.lines["chosen_by"]))
    others = table.loc[table["arm"] != DENSE, "arm"]
    arms = sorted(others.unique(), key=lambda arm: not arm.startswith(SMALLER))
    looks = {**style.strokes(arms), DENSE: style.DENSE_STROKE}
    handles = [style.stroke_handle(looks[arm], arm) for arm in arms]
    if len(others) < len(table):
        handles.append(style.stroke_handle(style.DENSE_STROKE, f"{DENSE} (line: its loss)"))
    probes = {str(name): float(loss) for name, loss in page.probes["test_loss"].items()}
    if probes:
        handles.append(Line2D([], [], **_DOTTED, label="a probe, by its name"))
    handles += style.whisker_handles(["range over seeds"])
    costs = {column: words for column, words in COSTS.items() if table[column].gt(0).any()}
    costs = costs or dict([*COSTS.items()][:1])  # no training ended well: a panel says so
    prescribed = [name for name in table["optimizer"].unique() if name != OWN] or [OWN]
    paper, panels = panel_page(caption, [[OPTIMIZERS[name]] * len(costs) for name in prescribed], 2.7, handles, 5)
    for name, line in zip(prescribed, panels, strict=True):
        part = table[table["optimizer"].isin([name, OWN])]
        for (cost, words), axes in zip(costs.items(), line, strict=True):
            known = part[part[cost].gt(0) & part["test_loss"].notna()]
            _panel(axes, known, cost, looks, probes)
            axes.set_xlabel(words, fontsize=8)
            axes.set_ylabel(f"loss, {page.unit}".rstrip(", "), fontsize=8)
    return paper.finish()


def _panel(axes: Any, table: pd.DataFrame, cost: str, looks: Mapping[str, Any], probes: Mapping[str, float]) -> None:
    if table.empty:
        style.nothing_drawn(axes, "nothing recorded")
        return
    axes.set_xscale("log")
    points = table.sort_values(cost)
    lines(axes, points, cost, "test_loss", "arm", looks, markersize=4.5)
    least, most = points[cost].min(), points[cost].max()
    if most < _ALIKE * least:  # whose differences would look like much
        axes.set_xlim(least / _ALIKE, most * _ALIKE)
    for loss in points.loc[points["arm"] == DENSE, "test_loss"].head(1):
        axes.axhline(loss, **DENSE_LINE)
    lows, highs = table["test_loss_low"], table["test_loss_high"]
    is_wide = lows.min() > 0 and highs.max() > _WIDE * lows.min()
    if is_wide:
        low, high = lows.min() / 1.3, highs.max() * 1.4
        axes.set_yscale("log")
        style.number_axis(axes.yaxis, LogLocator(10, subs=(1, 2, 5)))
    else:
        low, high = style.with_room(lows, highs, 0.08, 0.1)
        axes.yaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10]))
    axes.set_ylim(low, high)
    above = math.inf
    for name, loss in sorted(probes.items(), key=lambda probe: -probe[1]):
        if low <= loss <= high:
            axes.axhline(loss, zorder=1, **_DOTTED)
            apart = math.log(above / loss) / math.log(high / low) if is_wide else (above - loss) / (high - low)
            if apart > _LABEL:  # the caption has the names of all
                look = {"ha": "right", "fontsize": 6, "color": style.INK}
                style.note(axes, name, (0.99, loss), (0, 2), xycoords=axes.get_yaxis_transform(), **look)
                above = loss
    style.number_axis(axes.xaxis, LogLocator(10, subs=(1, 1.5, 2, 3, 5, 7)))


ARTIFACT = Artifact(
    name="formats",
    summary="loss of formats under AdamW and Muon against size, time and memory; an image per device and test bed",
    experiments=EXPERIMENTS,
    measure="train",
    lenders=(*TIMES, "probe_text", "probe_teacher", "probe_pointer"),
    made_by="make compare-formats",
    order=44,
    select=select,
    table=table,
    shown=shown,
    about=about,
    draw=draw,
)
