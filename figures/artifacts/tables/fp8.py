"""A linear layer in every precision: error, bytes, the least time on GPUs, and where one was at hand its time.

What FP8 can gain is read from the rooflines: its arithmetic where operations bound a product, its storage where bytes
do. A tensorized layer is bound by bytes.
"""

from typing import Any

import pandas as pd

from bench.core.intervals import mean_estimate
from bench.core.record import Record
from figures.arms import COMERA, DENSE, PRECISIONS
from figures.artifact import Artifact
from figures.artifacts.tables.products import gain
from figures.claims.claims import Claim, Finding, Judgement
from figures.claims.ratio import ON_CPU
from figures.claims.rule import Rule
from figures.columns import across, readable, table_of
from figures.frame import Page, pages, settings_of
from figures.page.captions import beside
from figures.page.facts import reasons
from figures.text import bounds

#: Forms of the rooflines that nothing was computed in: they say what storage would give.
_BYTES_ALONE = ("fp8, bf16", "fp8 stored")
FORMS = (*PRECISIONS, *_BYTES_ALONE)
GPUS = ("h100", "h200", "l4", "rtx3090", "rtx4090")

#: The GPU and forms whose least times people read; the CSV has all.
_SHOWN_GPU, _SHOWN_FORMS = "h100", ("fp32", "bf16", "fp8", *_BYTES_ALONE)

#: From which ratio of least times on a form counts as a gain.
_GAIN = 1.05

#: Rows of both shapes that the paper timed.
_PAPER_ROWS = 10_000


def _shape(record: Record) -> tuple[int, int, int]:
    sizes = settings_of(record, "workload_settings")
    return record.batch_size, sizes["in_features"], sizes["out_features"]


def _least_ms(roofline: dict[str, Any], gpu: str) -> float | None:
    """Return the larger of a form's two bounds on a GPU; None where its tensor cores do not multiply so."""
    found = (roofline.get("gpus") or {}).get(gpu)
    return None if found is None else max(found["operations_ms"], found["traffic_ms"])


def table(page: Page) -> pd.DataFrame:
    """Return a line per layer, arm and form, dense before tensorized, from the most exact form to the least."""
    lines = []
    for record in sorted(page.shown, key=lambda one: (_shape(one), one.arm != DENSE, one.arm)):
        measured = {one["name"]: one for one in record.samples.get("precisions", ())}
        rooflines = {one["form"]: one for one in record.samples.get("rooflines", ())}
        times = {name: list(one["ms"]) for name, one in measured.items() if one["ms"]}
        rows, inputs, outputs = _shape(record)
        for form in (form for form in FORMS if form in measured or form in rooflines):
            one, roofline = measured.get(form, {}), rooflines.get(form) or rooflines.get(form.partition("_")[0], {})
            lines.append(
                {
                    "device": record.device,
                    "rows": rows,
                    "in_features": inputs,
                    "out_features": outputs,
                    "arm": record.arm,
                    "form": form,
                    "arithmetic": one.get("arithmetic"),
                    "mib": roofline.get("mib"),
                    **bounds("ms", mean_estimate(times[form]) if form in times else None),
                    **bounds("gain_over_fp32", gain(times, form, "fp32")),
                    **bounds("gain_over_bf16", gain(times, form, "bf16")),
                    "message": one.get("message", ""),
                    "cell_id": record.cell_id,
                    **{name: one.get(name) for name in ("error", "gradient_error", "largest", "bound")},
                    **{f"{gpu}_least_ms": _least_ms(roofline, gpu) for gpu in GPUS},
                }
            )
    return table_of(lines)


def shown(page: Page, table: pd.DataFrame) -> pd.DataFrame:
    """Return a line per layer and arm: the error in each form, and its time, or the least that an H100 would take."""
    sizes = table[["rows", "in_features", "out_features"]].map("{:,}".format)
    layer = sizes["rows"] + " x " + sizes["in_features"] + " to " + sizes["out_features"] + ", " + table["arm"]
    table = table.assign(layer=layer, older_code=table["cell_id"].isin(page.older_code))
    least = f"{_SHOWN_GPU}_least_ms"
    table[least] = table[least].where(table["form"].isin(_SHOWN_FORMS))
    timed = {"ms": "gain_over_bf16"} if table["ms"].notna().any() else {least: ""}
    return across(table, "layer", "form", {"error": "", **timed})


def about(_: Page, table: pd.DataFrame) -> dict[str, Any]:
    """Return what FP8 can gain over BF16 by the rooflines, whether anything was timed, and what did not run."""
    gains = []
    for arm in (DENSE, COMERA):
        own = table[table["arm"] == arm].set_index(["rows", "in_features", "out_features"])
        least = {form: part[[f"{gpu}_least_ms" for gpu in GPUS]].astype(float) for form, part in own.groupby("form")}
        for form in _BYTES_ALONE:
            if form in least and "bf16" in least:
                ratios = [ratio for ratio in (least["bf16"] / least[form]).to_numpy().ravel() if ratio == ratio]
                some = {"gaining": sum(ratio >= _GAIN for ratio in ratios), "pairs": len(ratios)}
                if ratios:
                    gains.append({"arm": arm, "form": form, **some, "low": min(ratios), "high": max(ratios)})
    return {
        "gains": gains,
        "timed": bool(table["ms"].notna().any()),
        "not_run": reasons(table, "arm", "form"),
        "gpu": _SHOWN_GPU.upper(),
    }


def judge(_: Claim, page: Page, table: pd.DataFrame) -> Judgement:
    """Judge whether FP8's gain over FP32 in time grows from the first of the paper's shapes to the second."""
    own = table[(table["arm"] == COMERA) & (table["form"] == "fp8") & (table["rows"] == _PAPER_ROWS)]
    timed = own.dropna(subset="gain_over_fp32").sort_values(["in_features", "out_features"])
    if len(timed) < 2:
        return Judgement("not tested here", "No times of FP8 and FP32 at both of the paper's shapes; a GPU has them.")
    texts = readable(timed, ["gain_over_fp32"]).iloc[:, 0]
    shapes = zip(timed["in_features"], timed["out_features"], texts, strict=True)
    found = [Finding(f"FP32 / FP8, {inputs:,} to {outputs:,}", text) for inputs, outputs, text in shapes]
    if page.kind == "cpu":
        return Judgement("not tested here", ON_CPU, found)
    first, last = timed.iloc[0], timed.iloc[-1]
    if last["gain_over_fp32_low"] > first["gain_over_fp32_high"]:
        return Judgement("reproduced", "The gain of the larger shape is surely larger.", found)
    if last["gain_over_fp32_high"] < first["gain_over_fp32_low"]:
        return Judgement("not reproduced", "The gain of the larger shape is surely smaller.", found)
    return Judgement("partly", "The gains of the two shapes are not surely apart.", found)


ARTIFACT: Artifact[Page] = Artifact(
    name="table_fp8",
    heading="FP8 and BF16 by shape",
    summary="error, bytes and least times of a linear layer in every precision; a table per device",
    experiments=("table_fp8",),
    measure="fp8",
    made_by="make reproduce-table-fp8",
    order=145,
    select=pages,
    table=table,
    shown=shown,
    about=about,
    caption=beside(__file__),
    rules=(
        Rule(
            "fp8-larger-is-better",
            "time of FP32 / FP8-mix at (10,000; 1,024; 4,096) over that at 1,024",
            "> 1",
            "cuda",
            judge=judge,
        ),
    ),
)
