"""The operators of a step by PyTorch's profiler, against a count by hand."""

from small_cells import a_cell

from bench.measures.profile import profile_columns
from bench.protocol import Data
from bench.workloads import open_cell_workload


def test_the_products_of_a_step_are_counted() -> None:
    cell = a_cell(measure="profile")
    columns = profile_columns(cell, open_cell_workload(cell, Data("synthetic")))
    launches = {row["name"]: row["launches"] for row in columns["samples"]["kernels"]}
    linear = 6 + 2  # matrices of the block and of the classifier
    assert launches["aten::addmm"] == linear
    assert launches["aten::mm"] == 2 * linear  # gradients of input and weight
    assert columns["samples"]["busy_ms"] > 0
    assert columns["step_time_median_ms"] > 0
