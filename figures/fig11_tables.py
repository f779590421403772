"""Fig. 11 as tables and sentences: every product of the chosen plans, and their totals."""

from __future__ import annotations

from typing import Any

import pandas as pd

from figures.contractions import Candidate, Planned, Product
from figures.page.table import NOT_ASKED, significant
from figures.plan_grid import Grid

_COLUMNS = ("pass", "#", "product", "shapes", "MFLOP", "share", "MiB moved", "result kept, MiB")


def share(product: Product, plan: Candidate) -> float:
    """Of a product of the forward pass with its two gradients in the FLOPs of the whole plan."""
    return 3 * product.flops / plan.flops if plan.flops else 0.0


def _steps(plan: Candidate) -> list[tuple[str, int, Product]]:
    """Pass, number and product, in the order in which they are run."""
    forward = [("forward", number, product) for number, product in enumerate(plan.products, start=1)]
    behind = enumerate(plan.backward, start=len(plan.products) + 1)
    return [*forward, *(("backward", number, product) for number, product in behind)]


def text_table(grid: Grid) -> pd.DataFrame:
    """The table a person reads: a row per product, and a total per plan."""
    lines = []
    for slot, record in grid.records.items():
        planned = grid.planned.get(slot)
        head = {"layer": slot.layer, "tokens": f"{slot.tokens:,}", "plan": record.status}
        if planned is None:
            lines.append(head | dict.fromkeys(_COLUMNS, NOT_ASKED))
            continue
        plan = planned.chosen
        head["plan"] = plan.name
        for side, number, product in _steps(plan):
            kept = plan.kept_mib.get(product.result) if side == "forward" else None
            lines.append(
                head
                | {
                    "pass": side,
                    "#": str(number),
                    "product": product.text,
                    "shapes": product.shapes,
                    "MFLOP": significant(product.flops / 1e6),
                    "share": f"{product.flops / plan.flops:.1%}" if plan.flops else NOT_ASKED,
                    "MiB moved": significant(product.moved_mib),
                    "result kept, MiB": NOT_ASKED if kept is None else significant(kept),
                }
            )
        moved = sum(product.moved_mib for _, _, product in _steps(plan))
        sums = {"pass": "both", "#": NOT_ASKED, "product": "total (x is kept too)", "shapes": "", "share": "100%"}
        sums |= {"MFLOP": significant(plan.flops / 1e6), "MiB moved": significant(moved)}
        lines.append(head | sums | {"result kept, MiB": significant(plan.saved_mib)})
    return pd.DataFrame(lines)


def tidy_table(grid: Grid) -> pd.DataFrame:
    """The table a program reads: a row per product of the chosen plans."""
    lines: list[dict[str, Any]] = []
    for slot, planned in grid.planned.items():
        plan, best = planned.chosen, planned.best
        for side, number, product in _steps(plan):
            lines.append(
                {
                    "device": grid.device,
                    "in_features": slot.in_features,
                    "out_features": slot.out_features,
                    "cores": slot.cores,
                    "ranks": " ".join(map(str, planned.ranks)),
                    "tokens": slot.tokens,
                    "plan": plan.name,
                    "pass": side,
                    "number": number,
                    "left": product.left,
                    "right": product.right,
                    "result": product.result,
                    "rows": product.rows,
                    "inner": product.inner,
                    "columns": product.columns,
                    "flops": product.flops,
                    "moved_mib": product.moved_mib,
                    "kept_mib": plan.kept_mib.get(product.result) if side == "forward" else None,
                    "plan_flops": plan.flops,
                    "plan_saved_mib": plan.saved_mib,
                    "plan_estimated_ms": plan.estimated_ms,
                    "plan_measured_ms": plan.time,
                    "best_plan": best.name if best else "",
                    "best_measured_ms": best.time if best else None,
                    "dense_flops": planned.dense_flops,
                    "dense_ms": planned.dense_time,
                    "older_code": grid.is_older(slot),
                }
            )
    return pd.DataFrame(lines)


def total(planned: Planned) -> str:
    """Work and memory of the chosen plan beside those of the dense layer and of the left-to-right order."""
    plan, naive = planned.chosen, planned.left_to_right
    flops = f"{significant(plan.flops / 1e6)} MFLOP, {significant(plan.flops / planned.dense_flops)} of nn.Linear's"
    kept = f"{significant(plan.saved_mib)} MiB kept for backward"
    if naive is not None and naive is not plan:
        flops += f" and {significant(plan.flops / naive.flops)} of the left-to-right order's"
        kept += f", left-to-right {significant(naive.saved_mib)}"
    return f"{flops}; {kept}; largest intermediate {significant(plan.largest_mib)} MiB."


def totals(grid: Grid) -> list[str]:
    """The total of every plan, as a sentence."""
    return [f"{slot.text}, {planned.chosen.name!r}: {total(planned)}" for slot, planned in grid.planned.items()]
