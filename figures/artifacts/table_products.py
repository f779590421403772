"""The products of the encoder's layers in FP32, TF32, BF16 and FP8: time, what each gains, and its error."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from bench.core.intervals import mean_estimate, paired_ratio
from figures.artifact import Artifact
from figures.columns import readable
from figures.draw.captions import beside
from figures.draw.facts import reasons
from figures.frame import Page, each, pages
from figures.text import bounds

#: Kinds of product from the most exact to the least, as the records name them.
PRODUCTS = ("fp32", "tf32", "bf16", "fp8", "fp8, cast")


def timed(name: str, times: Mapping[str, list[float]]) -> dict[str, Any]:
    """Return the columns of a time in ms, and of how many times faster it is than FP32 and BF16, block by block.

    Args:
        name: what was timed.
        times: milliseconds by block, by the names of all that was timed in turns; an empty list of what was not.

    Example:
        >>> timed("bf16", {"fp32": [2.0, 4.0], "bf16": [1.0, 2.0]})["gain_over_fp32"]
        2.0
    """
    own = times.get(name)
    columns = bounds("ms", mean_estimate(own) if own else None)
    for reference in ("fp32", "bf16"):
        slow = times.get(reference)
        gain = paired_ratio(dict(enumerate(slow)), dict(enumerate(own))) if own and slow else None
        columns |= bounds(f"gain_over_{reference}", gain)
    return columns


def table(page: Page) -> pd.DataFrame:
    """Return a line per layer, number of rows and kind of product; square layers first, then the widest."""
    df = page.df.rename(columns=lambda name: name.removeprefix("workload."))
    df = df.assign(
        smaller=df[["in_features", "out_features"]].astype(int).min(axis=1),
        larger=df[["in_features", "out_features"]].astype(int).max(axis=1),
    ).sort_values(
        ["smaller", "larger", "in_features", "out_features", "batch_size"],
        ascending=[False, False, True, True, True],
        kind="stable",
    )
    lines = []
    for one in each(df):
        products = {product["name"]: product for product in one.record.samples.get("products", ())}
        times = {name: list(product.get("ms", ())) for name, product in products.items()}
        for name in PRODUCTS:
            own = {"error": None, "message": one.message, **products.get(name, {})}
            layer = {"in_features": one.in_features, "out_features": one.out_features, "rows": one.batch_size}
            place = {"device": page.device, **layer, "product": name, "status": one.status, "flops": one.flops_per_step}
            error = {"error": own["error"], "message": own["message"], "cell_id": one.cell_id}
            lines.append({**place, **timed(name, times), **error})
    found = pd.DataFrame(lines)
    found["tflops_per_s"] = found["flops"].astype(float) / found["ms"].astype(float) / 1e9
    columns = ["device", "in_features", "out_features", "rows", "product", "status", *bounds("ms", None)]
    columns += ["tflops_per_s", *bounds("gain_over_fp32", None), *bounds("gain_over_bf16", None)]
    return found[[*columns, "error", "message", "cell_id"]]


def shown(page: Page, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the layer in one column."""
    columns = ["layer", "rows", "product", "ms", "tflops_per_s", "gain_over_fp32", "gain_over_bf16", "error"]
    older = table["cell_id"].isin(page.older_code)
    return readable(table.assign(layer=_layer(table), older_code=older), columns)


def about(_: Page, table: pd.DataFrame) -> dict[str, Any]:
    """Return why products were not timed."""
    return {"untimed": reasons(table.assign(layer=_layer(table)), "layer", "rows", "product")}


def _layer(table: pd.DataFrame) -> pd.Series:
    return table["in_features"].astype(str) + " to " + table["out_features"].astype(str)


ARTIFACT: Artifact[Page] = Artifact(
    name="table_products",
    heading="Products by precision",
    summary="time and error of the layers' products in FP32, TF32, BF16 and FP8; a table per device",
    experiments=("products",),
    measure="products",
    order=110,
    select=pages,
    table=table,
    shown=shown,
    about=about,
    caption=beside(__file__),
    section="layer",
)
