"""The products of the encoder's layers in FP32, TF32, BF16 and FP8: time, what each gains, and its error.

``render`` is a pure function: the same records give the same bytes under the same file names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bench.core.intervals import Estimate, mean_interval, paired_ratio
from bench.core.record import Record
from figures.claims import Claim
from figures.device_table import drawn, older_code
from figures.report import REMARKS, Drawn
from figures.selection import config_of, devices
from figures.tables import NOT_ASKED, OLDER, bounds, significant, with_interval

#: The experiment whose records the table is made of.
EXPERIMENT = "products"
TITLE = "Products of the encoder's layers by precision"

#: Kinds of product from the most exact to the least, as the records name them.
PRODUCTS = ("fp32", "tf32", "bf16", "fp8", "fp8, cast")

#: What FP8 is set against: the fastest that keeps activations as they are.
_RIVAL, _CAST = "bf16", "fp8, cast"

_LAYER = "layer"
LEFT_ALIGNED = frozenset({_LAYER, REMARKS})


@dataclass(frozen=True)
class Row:
    """One layer at one number of rows."""

    record: Record
    products: Mapping[str, dict[str, Any]]

    @property
    def shape(self) -> tuple[int, int]:
        """Input and output width."""
        sizes = config_of(self.record)["workload_settings"]
        return sizes["in_features"], sizes["out_features"]

    @property
    def layer(self) -> str:
        return "{} to {}".format(*self.shape)

    def ms(self, name: str) -> list[float]:
        """Milliseconds by block; empty where the product was not timed."""
        product = self.products.get(name)
        return product["ms"] if product else []

    def time(self, name: str) -> Estimate | None:
        return mean_interval(self.ms(name)) if self.ms(name) else None

    def gain(self, name: str, over: str) -> Estimate | None:
        """How many times faster a product is than another, block by block."""
        slow, fast = self.ms(over), self.ms(name)
        return paired_ratio(dict(enumerate(slow)), dict(enumerate(fast))) if slow and fast else None

    @property
    def remarks(self) -> list[str]:
        """Why a product was not timed."""
        lines = [f"{name}: {one['message']}" for name, one in self.products.items() if one["message"]]
        if self.record.status != "ok":
            lines.append(f"{self.record.status}: {' '.join(self.record.message.split())}")
        return [line.rstrip(".") for line in lines]


def rows_of(records: Iterable[Record]) -> list[Row]:
    """A row per cell, square layers first, then by width and number of rows."""
    rows = [Row(record, {one["name"]: one for one in record.samples.get("products", ())}) for record in records]
    return sorted(rows, key=lambda row: (-min(row.shape), -max(row.shape), row.shape, row.record.batch_size))


def _gain(estimate: Estimate | None) -> str:
    return with_interval(estimate, unit="x") if estimate else NOT_ASKED


def text_table(rows: Sequence[Row], older: frozenset[str]) -> pd.DataFrame:
    """The table a person reads."""
    lines = []
    for row in rows:
        line = {
            _LAYER: row.layer,
            "rows": f"{row.record.batch_size:,}{f' {OLDER}' if row.record.cell_id in older else ''}",
        }
        for name in PRODUCTS:
            time = row.time(name)
            line[f"{name}, ms"] = significant(time.value) if time else NOT_ASKED
        line |= {
            "tf32 gain": _gain(row.gain("tf32", "fp32")),
            "bf16 gain": _gain(row.gain("bf16", "fp32")),
            "fp8 over bf16": _gain(row.gain("fp8", _RIVAL)),
            "with cast": _gain(row.gain(_CAST, _RIVAL)),
            "fp8 error": _error(row, "fp8"),
            "bf16 error": _error(row, "bf16"),
            REMARKS: "; ".join(row.remarks),
        }
        lines.append(line)
    return pd.DataFrame(lines)


def _error(row: Row, name: str) -> str:
    product = row.products.get(name)
    return NOT_ASKED if product is None or product["error"] is None else f"{product['error']:.1e}"


def tidy_table(rows: Sequence[Row]) -> pd.DataFrame:
    """The table a program reads: a row per layer, number of rows and kind of product."""
    lines = []
    for row in rows:
        for name in PRODUCTS:
            product, time = row.products.get(name, {}), row.time(name)
            flops = row.record.flops_per_step
            lines.append(
                {
                    "device": row.record.device,
                    "in_features": row.shape[0],
                    "out_features": row.shape[1],
                    "rows": row.record.batch_size,
                    "product": name,
                    "status": row.record.status,
                    **bounds("ms", time),
                    "tflops_per_s": flops / time.value / 1e9 if flops and time else None,
                    **bounds("gain_over_fp32", row.gain(name, "fp32")),
                    **bounds("gain_over_bf16", row.gain(name, _RIVAL)),
                    "error": product.get("error"),
                    "message": product.get("message", row.record.message),
                    "cell_id": row.record.cell_id,
                }
            )
    return pd.DataFrame(lines)


def _finding(rows: Sequence[Row]) -> str:
    """In how many cells FP8 pays, once its operands have to be made first."""
    gains = [(gain, row) for row in rows if (gain := row.gain(_CAST, _RIVAL))]
    if not gains:
        return "No product in FP8 was timed."
    faster = [row for gain, row in gains if gain.low is not None and gain.low > 1]
    where = ": " + "; ".join(f"{row.layer} at {row.record.batch_size:,} rows" for row in faster) if faster else ""
    return (
        f"With the cast of its activations, FP8 is faster than BF16 in {len(faster)} of {len(gains)} cells (the whole "
        f"interval above 1){where}."
    )


_NOTES = (
    "gain: FP32's time over this one's, median over blocks with its 95 % interval; fp8 over bf16: BF16's time over "
    "FP8's, its operands in FP8 already; with cast: activations scaled and cast in every call, as a layer has to.",
    "error: relative, in the Euclidean norm, against float64. Times and rates of every product are in the CSV file.",
)


def _of_device(records: Sequence[Record], device: str) -> Drawn:
    rows = rows_of(record for record in records if record.device == device)
    shown = [row.record for row in rows]
    remarks = [f"{row.layer}, {row.record.batch_size:,} rows: {remark}." for row in rows for remark in row.remarks]
    tables = text_table(rows, older_code(shown)), tidy_table(rows)
    return drawn(
        "table_products", TITLE, shown, [_finding(rows)], tables, _NOTES, LEFT_ALIGNED, _LAYER, remarks
    )  # fmt: skip


def render(records: Sequence[Record], claims: dict[str, Claim]) -> list[Drawn]:  # noqa: ARG001 - as every artifact
    """One table per device; it touches no claim."""
    return [_of_device(records, device) for device in devices(records)]
