"""Contraction plans measured: what is recorded of each, what is left out and why, and the experiments' grids."""

import dataclasses
import json
import statistics

import pytest
from small_cells import TIMING, a_layer_cell, run_bench

import bench.measures.plan
import bench.processes.process
import bench.runner.sweep
import bench.step.timing
from bench.core.record import read_all
from bench.measures.plan import plan_columns
from bench.workloads.linear import LinearSettings, LinearWorkload
from comera.contraction import candidates, plan_contraction
from comera.tensor_train import TTShape

SHAPE = TTShape(12, 8, (4, 3), (2, 4), 3)
TOKENS = 5


def measured():
    """The plans of a layer of four small cores."""
    fields = {"method": "comera", "measure": "plan", "batch_size": TOKENS, "settings": {"order": 2, "ranks": 3}}
    return plan_columns(a_layer_cell(12, 8, **fields), LinearWorkload(LinearSettings(12, 8, True)))


@pytest.fixture(scope="module")
def columns():
    return measured()


def test_every_candidate_is_recorded_as_the_planner_knows_it(columns):
    assert columns["samples"]["shape"] == {"in_modes": (4, 3), "out_modes": (2, 4), "ranks": (3, 3, 3)}
    rows, plans = columns["samples"]["plans"], candidates(SHAPE, TOKENS)
    assert [row["name"] for row in rows] == [plan.name for plan in plans]
    for row, plan in zip(rows, plans, strict=True):
        assert (row["segments"], row["trees"], row["flops"]) == (plan.segments, plan.trees, plan.flops)
        assert row["products"] == [dataclasses.asdict(product) for product in plan.products]
        assert row["saved_mib"] == plan.saved * 4 / 2**20
        assert row["largest_mib"] == plan.largest * 4 / 2**20
        assert row["estimated_ms"] == 1e3 * plan.seconds("cpu")
        assert row["message"] == ""
    json.dumps(columns, allow_nan=False)


def test_the_chosen_plan_fills_the_record_s_own_columns(columns):
    chosen = plan_contraction(SHAPE, TOKENS)
    assert (columns["contraction"], columns["flops_per_step"]) == (chosen.name, chosen.flops)
    assert columns["saved_for_backward_mib"] == chosen.saved * 4 / 2**20
    assert columns["parameters"] == SHAPE.parameter_count + sum(SHAPE.ranks) + 8
    assert columns["stored_mib"] == columns["parameters"] * 4 / 2**20
    [row] = [row for row in columns["samples"]["plans"] if row["name"] == chosen.name]
    assert columns["steps_measured"] == len(row["ms"]) == TIMING["blocks"]
    assert columns["step_time_median_ms"] == statistics.median(row["ms"])


def test_a_plan_that_finds_no_memory_says_so_and_the_others_are_timed(monkeypatch):
    need = {plan.name: (plan.saved + 2 * plan.largest) * 4 / 2**20 for plan in candidates(SHAPE, TOKENS)}
    most = max(need, key=need.__getitem__)
    second = max(size for name, size in need.items() if name != most)
    free = (need[most] + second) / 2 / bench.measures.plan._MEMORY_SHARE
    monkeypatch.setattr(bench.measures.plan, "free_memory_mib", lambda device: free)  # noqa: ARG005
    for row in measured()["samples"]["plans"]:
        assert bool(row["ms"]) == (row["name"] != most)
        assert row["message"].startswith("needs about 0 MiB, 0 MiB are free") == (row["name"] == most)


@pytest.mark.slow
@pytest.mark.usefixtures("cell_processes")
def test_a_sweep_records_a_small_layer_and_what_it_leaves_out(tmp_path, monkeypatch):
    patient = TIMING | {"time_limit_s": 600.0}  # a busy machine takes long to start a process
    timing = [f"timing.{name}={value}" for name, value in patient.items()]
    layer = ["linear={in_features:12,out_features:8}"]
    arguments = [*layer, "settings.comera.order=2", "settings.comera.ranks=3", f"batch_size={TOKENS},100000"]
    monkeypatch.setattr(bench.measures.plan, "CPU_LIMIT", 1e6)
    ended = run_bench(tmp_path, "experiment=contraction", "results=records", "device=cpu", *arguments, *timing)
    assert (ended.status, ended.output) == (0, "")
    small, large = sorted(read_all(tmp_path / "records", "contraction"), key=lambda record: record.batch_size)
    assert (small.status, small.measure, small.workload, small.message) == ("ok", "plan", "linear", "")
    assert small.contraction == plan_contraction(SHAPE, TOKENS).name
    assert small.step_time_median_ms > 0
    assert [row["name"] for row in small.samples["plans"]] == [plan.name for plan in candidates(SHAPE, TOKENS)]
    assert (large.status, large.contraction, large.samples) == ("unsupported", "", {})
    assert large.message.endswith("on a CPU up to 1e+06 is measured.")
    monkeypatch.setattr(bench.processes.process, "CellProcess", lambda *_: pytest.fail("measured again"))
    again = run_bench(tmp_path, "experiment=contraction", "results=records", "device=cpu", *arguments, *timing)
    assert again.error.count("done before") == 2
