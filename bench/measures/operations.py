"""Measure ``operations``: the operations of one training step by part, with bytes and FLOPs, on fake tensors.

The step is the second one, in which the optimizer's state is there. With ``cuda_graph`` the operations are those of a
captured step, whose shapes do not depend on the batch's data.

The samples of a record (measure ``operations``):

* ``operations``, a row per part of :data:`bench.estimate.operations.PARTS` that has any: ``part``, ``operations``,
  ``mib`` moved, ``gflop``;
* ``names``, a row per kind of operation, most frequent first: ``phase``, ``part``, ``name``, ``operations``, ``mib``.
"""

import contextlib
from collections import Counter
from typing import Any

from bench.core.cell import Cell
from bench.core.record import Record
from bench.estimate.memory import fake_training
from bench.estimate.operations import Operation, OperationLog, by_part
from bench.measures import Measure
from bench.measures.predict import TRACED, traced
from bench.protocol import Workload
from bench.protocol.methods import build_for
from bench.step.unsupported import graph_unsupported
from comera.capture import fixed_shapes


def logged(cell: Cell, workload: Workload) -> tuple[list[Operation], str]:
    """Return the operations of a cell's second step in their order, and its arithmetic in words."""
    method = build_for(cell)
    asked = (cell.batch_size, cell.precision, cell.device, cell.seed, cell.checkpoint)
    tables = [name for name, role in workload.targets().items() if role == "embedding"]
    with fake_training(workload, method, *asked) as (step, batch), contextlib.ExitStack() as stack:
        if cell.cuda_graph:
            stack.enter_context(fixed_shapes())
        step(batch)
        log = stack.enter_context(OperationLog(step, tables))
        step(batch)
    return log.operations, step.arithmetic


def operations_columns(cell: Cell, workload: Workload) -> dict[str, Any]:
    """Return the operations of a cell's step as columns of its record."""
    operations, arithmetic = logged(cell, workload)
    kinds = Counter((one.phase, one.part, one.name) for one in operations)
    sizes = Counter[tuple[str, str, str]]()
    for one in operations:
        sizes[one.phase, one.part, one.name] += one.bytes
    names = [
        {"phase": kind[0], "part": kind[1], "name": kind[2], "operations": count, "mib": sizes[kind] / 2**20}
        for kind, count in kinds.most_common()
    ]
    return {
        "flops_per_step": sum(one.flops for one in operations),
        "operations": len(operations),
        "moved_mib": sum(sizes.values()) / 2**20,
        "arithmetic": arithmetic,
        "samples": {"operations": by_part(operations), "names": names},
    }


def operations_unsupported(cell: Cell) -> str | None:
    """Explain why the operations of a cell's step cannot be listed; None if they can."""
    if cell.compile:
        return "compile=true is not modelled in a list of operations; use compile=false."
    return graph_unsupported(build_for(cell), cell.device) if cell.cuda_graph else None


def in_words(record: Record) -> str:
    """Return the number of operations and its parts."""
    rows = record.samples["operations"]
    total, moved = sum(row["operations"] for row in rows), sum(row["mib"] for row in rows)
    parts = ", ".join(f"{row['part']} {row['operations']}" for row in rows)
    return f"{total} operations, {moved / 1024:.1f} GiB: {parts}"


MEASURE = Measure(
    name="operations",
    words="the operations of a step by part, with bytes and FLOPs, without running it",
    outcomes=lambda cells, session: traced(operations_columns, cells, session),
    text=in_words,
    **{**TRACED, "unsupported": operations_unsupported},
)
