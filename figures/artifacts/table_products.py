"""The products of the encoder's layers in FP32, TF32, BF16 and FP8: time, what each gains, and its error."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from bench.core.intervals import mean_estimate, paired_ratio
from figures.artifact import Artifact
from figures.columns import readable
from figures.draw.facts import reasons
from figures.frame import Page, each, pages
from figures.text import bounds

#: Kinds of product from the most exact to the least, as the records name them.
PRODUCTS = ("fp32", "tf32", "bf16", "fp8", "fp8, cast")

_LAYER = ["in_features", "out_features", "rows"]


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
    sides = df[["in_features", "out_features"]].astype(int)
    df = df.assign(smaller=-sides.min(axis=1), larger=-sides.max(axis=1), rows=df["batch_size"])
    lines = []
    for one in each(df.sort_values(["smaller", "larger", *_LAYER], kind="stable")):
        products = {product["name"]: product for product in one.record.samples.get("products", ())}
        times = {name: list(product.get("ms", ())) for name, product in products.items()}
        layer = {"device": page.device, **{name: getattr(one, name) for name in _LAYER}}
        for name in PRODUCTS:
            own = {"error": None, "message": one.message, **products.get(name, {})}
            line = {**layer, "product": name, "status": one.status, **timed(name, times)}
            line |= {"error": own["error"], "message": own["message"], "cell_id": one.cell_id}
            lines.append(line | {"flops": one.flops_per_step})
    table = pd.DataFrame(lines)
    rate = table.pop("flops").astype(float) / table["ms"].astype(float) / 1e9
    table.insert(list(table).index("gain_over_fp32"), "tflops_per_s", rate)
    return table


def shown(page: Page, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the layer in one column."""
    table = table.assign(layer=_layer(table), older_code=table["cell_id"].isin(page.older_code))
    gains = ["gain_over_fp32", "gain_over_bf16"]
    return readable(table, ["layer", "rows", "product", "ms", "tflops_per_s", *gains, "error"])


def about(_: Page, table: pd.DataFrame) -> dict[str, Any]:
    """Return why products were not timed."""
    return {"untimed": reasons(table.assign(layer=_layer(table)), "layer", "rows", "product")}


def _layer(table: pd.DataFrame) -> pd.Series:
    return table["in_features"].astype(str) + " to " + table["out_features"].astype(str)


ARTIFACT: Artifact[Page] = Artifact(
    name="table_products",
    summary="time and error of the layers' products in FP32, TF32, BF16 and FP8; a table per device",
    experiments=("products",),
    measure="products",
    order=110,
    select=pages,
    table=table,
    shown=shown,
    about=about,
    section="layer",
)
