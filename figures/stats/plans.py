"""Contraction plans from records of measure ``plan`` (:mod:`bench.measures.plan`), as frames.

Shapes of products and FLOPs are the planner's own numbers. What is computed here follows from them: the two gradient
products of each product, the bytes it reads and writes, and what is kept for the backward pass.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from bench.core.record import RecordError
from figures import frame
from figures.frame import Records

#: What a plan is made for: columns by those of the frame of records. ``order`` is the number of modes per side.
SHAPE = {
    "workload.in_features": "in_features",
    "workload.out_features": "out_features",
    "method.order": "order",
    "method.ranks": "ranks_cap",
    "batch_size": "tokens",
}

#: Marks a time of one call; plans that are far behind at first are not timed further.
ONCE = "§"

#: A core, or several merged into one segment: ``G3``, ``G1-3``.
CORES = re.compile(r"G(\d+)(?:-(\d+))?")

#: A number in float32, the one type in which plans are measured.
MIB = 4 / 2**20


#: The columns of candidates, where there are none.
_PLAN = ["shape", "name", "chosen", "segments", "products", "ranks", "flops", "saved_mib"]
_PLAN += ["largest_mib", "estimated_ms", "ms", "measured_ms", "blocks", "once"]
_PLAN += ["message", "dense", "dense_ms"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Grid(frame.Page):
    """The plans of one device, with at most one record per shape."""

    @cached_property
    def plans(self) -> pd.DataFrame:
        """Return a row per candidate of each shape that was measured, by shape."""
        done = self.df[self.df["status"] == "ok"].sort_values([*SHAPE.values()])
        shapes = done[[*SHAPE.values(), "shape", "layer", "cores", "dense_flops"]]
        shapes = shapes.assign(older_code=done["cell_id"].isin(self.older_code))
        rows = []
        for one in frame.dicts(done, "cell_id", "shape", "contraction", "samples.*"):
            rows += [{"shape": one["shape"], **plan} for plan in plans_of(one)]
        return shapes.merge(pd.DataFrame(rows, columns=None if rows else _PLAN), on="shape")

    @cached_property
    def layers(self) -> pd.DataFrame:
        """Return the rows of the chosen plans, with ``best_*`` of the fastest and ``naive_*`` of left to right."""
        best = self.plans.dropna(subset="measured_ms").sort_values(["measured_ms", "name"])
        in_order = self.plans["segments"].map(lambda one: all(first == last for first, last in one))
        naive = self.plans[in_order.astype(bool)]
        found = self.plans[self.plans["chosen"].astype(bool)]
        for prefix, others in (("best_", best), ("naive_", naive)):
            others = others.drop_duplicates("shape").set_index("shape")
            columns = others[["name", "flops", "saved_mib", "ms", "measured_ms"]]
            found = found.join(columns.add_prefix(prefix), on="shape")
        return found


def shape_of(row: Mapping[str, Any]) -> str:
    """Return what a record's plans are made for, such as ``768 → 3,072, 6 cores, ranks up to 30, 128 tokens``.

    Raises RecordError without layer, order or ranks.
    """
    tokens = "1 token" if row["batch_size"] == 1 else f"{row['batch_size']:,} tokens"
    try:
        cores = f"{2 * row['method.order']} cores, ranks up to {row['method.ranks']:,}"
        return f"{row['workload.in_features']:,} → {row['workload.out_features']:,}, {cores}, {tokens}"
    except KeyError:
        needed = "in_features, out_features, order and ranks in config_json"
        raise RecordError(f"record {row['cell_id']}: plans need {needed}.") from None


def plans_of(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the candidates of a finished record, with their median time in ms and that of ``nn.Linear``.

    Raises RecordError where they cannot be read.
    """
    try:
        shape, plans, dense = (row[f"samples.{name}"] for name in ("shape", "plans", "dense_ms"))
        for plan in plans:
            _check(plan, dense)
        if row["contraction"] not in [plan["name"] for plan in plans]:
            raise ValueError(f"the chosen plan {row['contraction']!r} is not among them")
        most = max(len(plan["ms"]) for plan in plans)
        return [
            {
                **plan,
                **shape,
                "chosen": plan["name"] == row["contraction"],
                "measured_ms": statistics.median(plan["ms"]) if plan["ms"] else None,
                "blocks": len(plan["ms"]),
                "once": ONCE if len(plan["ms"]) == 1 < most else "",
                "dense": dense,
                "dense_ms": statistics.median(dense) if dense else None,
            }
            for plan in plans
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(f"record {row['cell_id']}: its plans cannot be read ({error!r}).") from None


def _check(plan: Mapping[str, Any], dense: Sequence[float]) -> None:
    if not all(time > 0 for time in (*plan["ms"], *dense)):
        raise ValueError("times must be above 0")
    formed = {"x"}
    for product in plan["products"]:
        left, right, result = product["left"], product["right"], product["result"]
        if not all(name in formed or (CORES.fullmatch(name) and "-" not in name) for name in (left, right)):
            raise ValueError(f"{result} = {left} · {right} uses what is not there yet")
        formed.add(result)
    if "y" not in formed:
        raise ValueError(f"plan {plan['name']!r} forms no y")


def products_of(products: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return a line per product of a plan, forward and backward, in the order in which they are run.

    Each is ``rows x inner`` by ``inner x columns``; ``kept_mib`` is what stays in memory for the backward pass.

    Example:
        >>> steps = products_of([{"left": "x", "right": "G1", "result": "y", "rows": 5, "inner": 4, "columns": 6}])
        >>> (steps["result"] + " = " + steps["left"] + " · " + steps["right"]).tolist()
        ['y = x · G1', 'dx = dy · G1ᵀ', 'dG1 = xᵀ · dy']
    """
    lines: list[dict[str, Any]] = [{"pass": "forward", **one} for one in products]
    kept: dict[str, float] = {}
    for one in reversed(products):
        left, right, gradient = one["left"], one["right"], f"d{one['result']}"
        rows, inner, columns = one["rows"], one["inner"], one["columns"]
        of_left = {"left": gradient, "right": f"{right}ᵀ", "result": f"d{left}"}
        of_right = {"left": f"{left}ᵀ", "right": gradient, "result": f"d{right}"}
        of_left |= {"rows": rows, "inner": columns, "columns": inner}
        of_right |= {"rows": inner, "inner": rows, "columns": columns}
        lines += [{"pass": "backward", **one} for one in (of_left, of_right)]
        kept |= {left: MIB * rows * inner, right: MIB * inner * columns}
    df = pd.DataFrame(lines)
    df.insert(1, "number", df.index + 1)
    rows, inner, columns = df["rows"], df["inner"], df["columns"]
    return df.assign(
        flops=2 * rows * inner * columns,
        moved_mib=MIB * (rows * inner + inner * columns + rows * columns),
        kept_mib=df["result"].map(kept),
    )


def select(records: Records) -> list[Grid]:
    """Return a grid per device that has plans, of the newest record of each shape, called plainly and in FP32."""
    names = list(SHAPE.values())
    called = {"compile": False, "cuda_graph": False, "precision": "fp32"}
    grids = []
    for device, df in frame.by_device(records):
        df = df.assign(shape=[shape_of(row) for row in frame.dicts(df, "cell_id", "batch_size", *SHAPE)])
        df = df.assign(**{name: df[column].astype(int) for column, name in SHAPE.items()})
        df, notes = frame.narrow(df, list(called), names, "record(s)", like=json.dumps(called))
        notes += frame.repeats(df, names, "record(s)")
        df = frame.oldest_first(frame.newest(df, names)).assign(
            layer=lambda df: df["shape"].str.partition(", ")[0],
            cores=lambda df: 2 * df["order"],
            dense_flops=lambda df: 6 * df["tokens"] * df["in_features"] * df["out_features"],
        )
        grids.append(Grid(**device, df=df, left_out=tuple(notes)))
    return [grid for grid in grids if len(grid.df)]
