"""The products of the encoder's layers in FP32, TF32, BF16 and FP8: time, what each gains, and its error."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from bench.core.intervals import Estimate, mean_estimate, paired_ratio
from bench.core.record import Record
from figures.artifact import Artifact
from figures.columns import readable, table_of
from figures.frame import Page, pages, settings_of
from figures.page.captions import beside
from figures.page.facts import reasons
from figures.text import bounds

#: Kinds of product from the most exact to the least, as the records name them.
PRODUCTS = ("fp32", "tf32", "bf16", "fp8", "fp8, cast")

#: Milliseconds by block, by the name of a product or precision.
Times = Mapping[str, list[float]]


def gain(times: Times, name: str, over: str) -> Estimate | None:
    """Return how many times faster one is than another, block by block; None where either was not timed.

    >>> gain({"fp32": [2.0, 4.0], "bf16": [1.0, 2.0]}, "bf16", "fp32").value
    2.0
    """
    slow, fast = times.get(over), times.get(name)
    return paired_ratio(dict(enumerate(slow)), dict(enumerate(fast))) if slow and fast else None


def _shape(record: Record) -> tuple[int, int]:
    sizes = settings_of(record, "workload_settings")
    return sizes["in_features"], sizes["out_features"]


def _place(record: Record) -> tuple[Any, ...]:
    """Order square layers first, then by width and number of rows."""
    shape = _shape(record)
    return -min(shape), -max(shape), shape, record.batch_size


def table(page: Page) -> pd.DataFrame:
    """Return a line per layer, number of rows and kind of product."""
    lines = []
    for record in sorted(page.shown, key=_place):
        products = {one["name"]: one for one in record.samples.get("products", ())}
        times = {name: list(one.get("ms", ())) for name, one in products.items()}
        for name in PRODUCTS:
            time, flops = mean_estimate(times[name]) if times.get(name) else None, record.flops_per_step
            lines.append(
                {
                    "device": record.device,
                    "in_features": _shape(record)[0],
                    "out_features": _shape(record)[1],
                    "rows": record.batch_size,
                    "product": name,
                    "status": record.status,
                    **bounds("ms", time),
                    "tflops_per_s": flops / time.value / 1e9 if flops and time else None,
                    **bounds("gain_over_fp32", gain(times, name, "fp32")),
                    **bounds("gain_over_bf16", gain(times, name, "bf16")),
                    "error": products.get(name, {}).get("error"),
                    "message": products.get(name, {}).get("message", record.message),
                    "cell_id": record.cell_id,
                }
            )
    return table_of(lines)


def _named(page: Page, table: pd.DataFrame) -> pd.DataFrame:
    layer = table["in_features"].astype(str) + " to " + table["out_features"].astype(str)
    return table.assign(layer=layer, older_code=table["cell_id"].isin(page.older_code))


def shown(page: Page, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the layer in one column."""
    columns = ["layer", "rows", "product", "ms", "tflops_per_s", "gain_over_fp32", "gain_over_bf16", "error"]
    return readable(_named(page, table), columns)


def about(page: Page, table: pd.DataFrame) -> dict[str, Any]:
    """Return why products were not timed."""
    return {"untimed": reasons(_named(page, table), "layer", "rows", "product")}


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
