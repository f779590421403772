"""The products of the encoder's layers in FP32, TF32, BF16 and FP8: time, what each gains, and its error."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.core.intervals import Estimate, mean_estimate, paired_ratio
from bench.core.record import Record
from figures.artifact import Artifact
from figures.page.drawn import Caption
from figures.page.notes import closing_notes, device_fact
from figures.records.select import Selected, pages_by_device, workload_settings
from figures.text import REMARKS, Column, bounds, ratio_text, significant

#: Kinds of product from the most exact to the least, as the records name them.
PRODUCTS = ("fp32", "tf32", "bf16", "fp8", "fp8, cast")

#: What FP8 is set against: the fastest that keeps activations as they are.
_RIVAL, _CAST = "bf16", "fp8, cast"


@dataclass(frozen=True)
class ProductsRow:
    """One layer at one number of rows."""

    record: Record
    mark: str  # † where older code made the record
    products: Mapping[str, dict[str, Any]]

    @property
    def shape(self) -> tuple[int, int]:
        sizes = workload_settings(self.record)
        return sizes["in_features"], sizes["out_features"]

    @property
    def layer(self) -> str:
        return "{} to {}".format(*self.shape)

    def ms(self, name: str) -> list[float]:
        """Milliseconds by block; empty where the product was not timed."""
        return list(self.products.get(name, {}).get("ms", ()))

    def time(self, name: str) -> Estimate | None:
        return mean_estimate(self.ms(name)) if self.ms(name) else None

    def gain(self, name: str, over: str) -> Estimate | None:
        """How many times faster a product is than another, block by block."""
        slow, fast = self.ms(over), self.ms(name)
        return paired_ratio(dict(enumerate(slow)), dict(enumerate(fast))) if slow and fast else None

    def error(self, name: str) -> str | None:
        error = self.products.get(name, {}).get("error")
        return None if error is None else f"{error:.1e}"

    @property
    def remarks(self) -> list[str]:
        lines = [f"{name}: {one['message']}" for name, one in self.products.items() if one["message"]]
        if self.record.status != "ok":
            lines.append(f"{self.record.status}: {' '.join(self.record.message.split())}")
        return [line.rstrip(".") for line in lines]


def rows_of(page: Selected) -> list[ProductsRow]:
    """A row per cell, square layers first, then by width and number of rows."""
    rows = [
        ProductsRow(record, page.older(record), {one["name"]: one for one in record.samples.get("products", ())})
        for record in page.shown
    ]
    return sorted(rows, key=lambda row: (-min(row.shape), -max(row.shape), row.shape, row.record.batch_size))


def columns(*_: object) -> list[Column[Any]]:
    """A row of the CSV per layer, number of rows and kind of product."""

    def time(name: str) -> Column[Any]:
        def text(row: ProductsRow) -> str | None:
            estimate = row.time(name)
            return significant(estimate.value) if estimate else None

        return Column(f"{name}, ms", text)

    def tidy(line: tuple[ProductsRow, str]) -> dict[str, object]:
        row, name = line
        product, estimate, flops = row.products.get(name, {}), row.time(name), row.record.flops_per_step
        return {
            "device": row.record.device,
            "in_features": row.shape[0],
            "out_features": row.shape[1],
            "rows": row.record.batch_size,
            "product": name,
            "status": row.record.status,
            **bounds("ms", estimate),
            "tflops_per_s": flops / estimate.value / 1e9 if flops and estimate else None,
            **bounds("gain_over_fp32", row.gain(name, "fp32")),
            **bounds("gain_over_bf16", row.gain(name, _RIVAL)),
            "error": product.get("error"),
            "message": product.get("message", row.record.message),
            "cell_id": row.record.cell_id,
        }

    return [
        Column("layer", lambda row: row.layer, left=True),
        Column("rows", lambda row: f"{row.record.batch_size:,} {row.mark}".rstrip()),
        *map(time, PRODUCTS),
        Column("tf32 gain", lambda row: ratio_text(row.gain("tf32", "fp32"))),
        Column("bf16 gain", lambda row: ratio_text(row.gain("bf16", "fp32"))),
        Column("fp8 over bf16", lambda row: ratio_text(row.gain("fp8", _RIVAL))),
        Column("with cast", lambda row: ratio_text(row.gain(_CAST, _RIVAL))),
        Column("fp8 error", lambda row: row.error("fp8")),
        Column("bf16 error", lambda row: row.error("bf16")),
        Column(REMARKS, lambda row: "; ".join(row.remarks), left=True),
        Column(tidy=tidy),
    ]


def _finding(rows: Sequence[ProductsRow]) -> str:
    """In how many cells FP8 pays, once its operands have to be made first."""
    gains = [(gain, row) for row in rows if (gain := row.gain(_CAST, _RIVAL))]
    if not gains:
        return "No product in FP8 was timed."
    faster = [row for gain, row in gains if gain.low is not None and gain.low > 1]
    where = ": " + "; ".join(f"{row.layer} at {row.record.batch_size:,} rows" for row in faster) if faster else ""
    return (
        f"With the cast of its activations, FP8 is faster than BF16 in {len(faster)} of {len(gains)} cells (both "
        f"bounds above 1){where}."
    )


def caption(page: Selected, rows: Sequence[ProductsRow]) -> Caption:
    return Caption(
        title="Products of the encoder's layers by precision",
        facts=(device_fact(page), _finding(rows)),
        notes=(
            "gain: FP32's time over this one's, median over blocks with their range; fp8 over bf16: BF16's time "
            "over FP8's, its operands in FP8 already; with cast: activations scaled and cast in every call, as a layer "
            "has to.",
            "error: relative, in the Euclidean norm, against float64. Times and rates of every product are in the CSV "
            "file.",
            *closing_notes(page),
        ),
        remarks=[f"{row.layer}, {row.record.batch_size:,} rows: {remark}." for row in rows for remark in row.remarks],
    )


ARTIFACT = Artifact(
    name="table_products",
    heading="Products by precision",
    summary="time and error of the layers' products in FP32, TF32, BF16 and FP8; a table per device",
    experiments=("products",),
    measure="products",
    order=110,
    select=pages_by_device,
    rows=rows_of,
    columns=columns,
    tidy_rows=lambda _, rows: [(row, name) for row in rows for name in PRODUCTS],
    caption=caption,
    section="layer",
)
