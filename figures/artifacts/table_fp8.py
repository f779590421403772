"""A linear layer in every precision: error, bytes, the least time on GPUs, and where one was at hand its time.

What FP8 can gain is read from the rooflines: its arithmetic where operations bound a product, its storage where bytes
do. A tensorized layer is bound by bytes.
"""

import itertools
from collections.abc import Mapping
from typing import Any

import pandas as pd

from bench.core.intervals import mean_estimate, paired_ratio
from figures.arms import COMERA, DENSE, PRECISIONS
from figures.artifact import Artifact
from figures.claims.claims import Claim, Finding, Judgement, untested
from figures.claims.ratio import ON_CPU
from figures.claims.rule import BELOW_ONE, Rule
from figures.columns import across, readable
from figures.draw.facts import reasons
from figures.frame import Page, dicts, each, pages
from figures.text import bounds

#: Forms of the rooflines that nothing was computed in: they say what storage would give.
_BYTES_ALONE = ("fp8, bf16", "fp8 stored")
FORMS = (*PRECISIONS, *_BYTES_ALONE)
GPUS = ("h100", "h200", "l4", "rtx3090", "rtx4090")

_LAYER = ["rows", "in_features", "out_features"]
_ERRORS = ("error", "gradient_error", "largest", "bound")


def timed(name: str, times: Mapping[str, list[float]]) -> dict[str, Any]:
    """Return the columns of a time in ms, with its ratios to those of FP32 and BF16, block by block.

    Args:
        name: what was timed.
        times: milliseconds by block, by the names of all that was timed in turns; an empty list of what was not.

    Example:
        >>> timed("bf16", {"fp32": [2.0, 4.0], "bf16": [1.0, 2.0]})["time_over_fp32"]
        0.5
    """
    own = times.get(name)
    columns = bounds("ms", mean_estimate(own) if own else None)
    for reference in ("fp32", "bf16"):
        old = times.get(reference)
        over = paired_ratio(dict(enumerate(own)), dict(enumerate(old))) if own and old else None
        columns |= bounds(f"time_over_{reference}", over)
    return columns


def table(page: Page) -> pd.DataFrame:
    """Return a line per layer, arm and form, dense before tensorized, from the most exact form to the least.

    A record that failed has one line, without a form.
    """
    df = page.df.rename(columns=lambda name: name.removeprefix("workload."))
    df = df.assign(rows=df["batch_size"], tensorized=df["arm"] != DENSE)
    lines = []
    df = df.sort_values([*_LAYER, "tensorized", "arm"], kind="stable")
    for one, samples in zip(each(df), dicts(df, "samples.precisions", "samples.rooflines"), strict=True):
        measured = {form["name"]: form for form in samples.get("samples.precisions", ())}
        rooflines = {form["form"]: form for form in samples.get("samples.rooflines", ())}
        times = {name: list(form["ms"]) for name, form in measured.items()}
        layer = {"device": page.device, **{name: getattr(one, name) for name in (*_LAYER, "arm")}}
        forms = [form for form in FORMS if form in measured or form in rooflines]
        for form in forms or [""]:
            own = measured.get(form, {"message": "" if forms else one.message})
            roofline = rooflines.get(form) or rooflines.get(form.partition("_")[0], {})
            line = {**layer, "form": form, "arithmetic": own.get("arithmetic")}
            line |= {"mib": roofline.get("mib"), **timed(form, times)}
            line |= {"message": own.get("message", ""), "cell_id": one.cell_id}
            line |= {name: own.get(name) for name in _ERRORS}
            for gpu in GPUS:
                # the larger of two bounds; none where its tensor cores do not multiply so
                least = (roofline.get("gpus") or {}).get(gpu)
                line[f"{gpu}_least_ms"] = least and max(least["operations_ms"], least["traffic_ms"])
            lines.append(line)
    return pd.DataFrame(lines)


def _named(table: pd.DataFrame) -> pd.DataFrame:
    sizes = table[_LAYER].map("{:,}".format)
    layer = sizes["rows"] + " x " + sizes["in_features"] + " to " + sizes["out_features"]
    return table.assign(layer=layer + ", " + table["arm"])


def shown(page: Page, table: pd.DataFrame) -> pd.DataFrame:
    """Return a line per layer and arm: the error in each form, and its time, or the least that an H100 would take."""
    table = _named(table).assign(older_code=table["cell_id"].isin(page.older_code))
    read = table["form"].isin(("fp32", "bf16", "fp8", *_BYTES_ALONE))  # the CSV has all
    table["h100_least_ms"] = table["h100_least_ms"].where(read)
    timed = {"ms": "time_over_bf16"} if table["ms"].notna().any() else {"h100_least_ms": ""}
    return across(table, "layer", "form", {"error": "", **timed})


def about(_: Page, table: pd.DataFrame) -> dict[str, Any]:
    """Return FP8's least times over BF16's by the rooflines, whether anything was timed, and what did not run."""
    least, rooflines = [f"{gpu}_least_ms" for gpu in GPUS], []
    for arm, form in itertools.product((DENSE, COMERA), _BYTES_ALONE):
        own = table[table["arm"] == arm].drop_duplicates([*_LAYER, "form"]).set_index(_LAYER)
        bf16, other = (own.loc[own["form"] == name, least].astype(float) for name in ("bf16", form))
        ratios = (other / bf16).stack().dropna()
        less = (ratios <= 0.95).sum()  # rounding is no gain
        numbers = {"pairs": len(ratios), "low": ratios.min(), "high": ratios.max()}
        rooflines.append({"arm": arm, "form": form, "less": less, **numbers})
    table, ran = _named(table), table["form"] != ""
    return {
        "rooflines": [one for one in rooflines if one["pairs"]],
        "timed": bool(table["ms"].notna().any()),
        "not_run": reasons(table[ran], "arm", "form") | reasons(table[~ran], "layer"),
        "gpu": "H100",
    }


def judge(_: Claim, page: Page, table: pd.DataFrame) -> Judgement:
    """Judge whether FP8's time over FP32's falls from the first of the paper's shapes to the second."""
    own = table[(table["arm"] == COMERA) & (table["form"] == "fp8") & (table["rows"] == 10_000)]
    timed = own.dropna(subset="time_over_fp32").sort_values(["in_features", "out_features"])
    if len(timed) < 2:
        return untested("No times of FP8 and FP32 at both of the paper's shapes; a GPU has them.")
    texts = readable(timed, ["time_over_fp32"]).iloc[:, 0]
    shapes = zip(timed["in_features"], timed["out_features"], texts, strict=True)
    found = [Finding(f"FP8 over FP32, {inputs:,} to {outputs:,}", text) for inputs, outputs, text in shapes]
    if page.kind == "cpu":
        return untested(ON_CPU, found)
    first, last = timed.iloc[0], timed.iloc[-1]
    if last["time_over_fp32_high"] < first["time_over_fp32_low"]:
        return Judgement("reproduced", "The ratio of the larger shape is surely lower.", found)
    if last["time_over_fp32_low"] > first["time_over_fp32_high"]:
        return Judgement("not reproduced", "The ratio of the larger shape is surely higher.", found)
    return Judgement("partly", "The ratios of the two shapes are not surely apart.", found)


ARTIFACT: Artifact[Page] = Artifact(
    name="table_fp8",
    summary="error, bytes and least times of a linear layer in every precision; a table per device",
    experiments=("table_fp8",),
    measure="fp8",
    made_by="make reproduce-table-fp8",
    order=145,
    select=pages,
    table=table,
    shown=shown,
    about=about,
    rules=(
        Rule(
            "fp8-larger-is-better",
            "time of FP8-mix over FP32 at (10,000; 1,024; 4,096), over that ratio at 1,024",
            BELOW_ONE,
            "cuda",
            judge=judge,
        ),
    ),
)
