"""Contraction plans measured: what is recorded of each, what is left out and why, and the experiments' grids."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import statistics
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf
from small_cells import TIMING, a_cell, a_configuration, changed, run_bench

import bench.measures.plan
import bench.processes.process
import bench.runner.sweep
import bench.step.timing
from bench.core.record import read_all
from bench.errors import CONF
from bench.measures.plan import CPU_LIMIT, HOPELESS, plan_columns, plan_unsupported
from bench.protocol import Data
from bench.protocol.methods import ConfigError
from bench.runner.resolve import resolve
from bench.workloads.linear import LinearSettings, LinearWorkload
from comera.contraction import candidates, plan_contraction
from comera.tensor_train import TTShape

LAYER = {"in_features": 12, "out_features": 8, "optimizer_step": True}
SHAPE = TTShape(12, 8, (4, 3), (2, 4), 3)
TOKENS = 5


def a_plan_cell(**changes):
    """The plans of a layer of four small cores."""
    fields = {"workload": "linear", "dataset": "normal", "method": "comera", "measure": "plan"}
    fields |= {"batch_size": TOKENS, "workload_settings": dict(LAYER), "settings": {"order": 2, "ranks": 3}}
    return a_cell(**(fields | changes))


def measured(**changes):
    cell = a_plan_cell(**changes)
    return plan_columns(cell, LinearWorkload(LinearSettings(**cell.workload_settings)))


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


def test_times_are_there_and_above_zero(columns):
    times = [row["ms"] for row in columns["samples"]["plans"]] + [columns["samples"]["dense_ms"]]
    for ms in times:
        assert len(ms) in (1, TIMING["blocks"])
        assert min(ms) > 0


def test_a_plan_that_finds_no_memory_says_so_and_the_others_are_timed(monkeypatch):
    need = {plan.name: (plan.saved + 2 * plan.largest) * 4 / 2**20 for plan in candidates(SHAPE, TOKENS)}
    most = max(need, key=need.__getitem__)
    second = max(size for name, size in need.items() if name != most)
    free = (need[most] + second) / 2 / bench.measures.plan._MEMORY_SHARE
    monkeypatch.setattr(bench.measures.plan, "free_memory_mib", lambda device: free)  # noqa: ARG005
    for row in measured()["samples"]["plans"]:
        assert bool(row["ms"]) == (row["name"] != most)
        assert row["message"].startswith("needs about 0 MiB, 0 MiB are free") == (row["name"] == most)


def test_without_any_memory_there_is_no_time_of_the_chosen_plan(monkeypatch):
    monkeypatch.setattr(bench.measures.plan, "free_memory_mib", lambda device: 0.0)  # noqa: ARG005
    columns = measured()
    assert "step_time_median_ms" not in columns
    assert all(row["message"] and row["ms"] == [] for row in columns["samples"]["plans"])
    assert columns["samples"]["dense_ms"]


@pytest.fixture
def clock(monkeypatch):
    """A clock that calls put forward by the milliseconds that they are made to take."""
    now = [0.0]

    def taking(ms):
        def call():
            now[0] += ms / 1e3

        return call

    monkeypatch.setattr(bench.step.timing, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    return taking


def test_what_is_far_behind_at_first_is_not_timed_again(clock):
    typical = {"fast": 10.0, "near": 0.9 * HOPELESS * 10.0, "far": 1.1 * HOPELESS * 10.0, "chosen": 80.0}
    calls = {name: clock(ms) for name, ms in typical.items()} | {"nn.Linear": clock(1.0)}
    times = bench.measures.plan._times(calls, "chosen", TIMING | {"blocks": 3}, on_cuda=False)
    assert {name: len(ms) for name, ms in times.items()} == {
        "fast": 3,
        "near": 3,
        "far": 1,
        "chosen": 3,
        "nn.Linear": 3,
    }
    for name, ms in typical.items():
        assert times[name] == pytest.approx([ms] * len(times[name]))


def test_a_slow_dense_layer_is_timed_once(clock):
    times = bench.measures.plan._times({"fast": clock(1.0), "nn.Linear": clock(9.0)}, "fast", TIMING, on_cuda=False)
    assert times["nn.Linear"] == pytest.approx([9.0])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"batch_size": 10**9, "device": "cuda"}, None),
        (
            {"batch_size": 10**9},
            "batch_size · in_features · out_features is 9.6e+10; on a CPU up to 7e+10 is measured.",
        ),
        ({"cuda_graph": True}, "cuda_graph=true has no meaning for measure=plan"),
        ({"compile": True}, "compile=true has no meaning for measure=plan"),
    ],
)
def test_what_cannot_be_measured_has_one_sentence(changes, reason):
    found = plan_unsupported(a_plan_cell(**changes))
    assert (found is None) if reason is None else found.startswith(reason)
    assert found is None or "\n" not in found


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workload": "lookup"}, "workload is 'lookup'; measure=plan is about tensor trains of one linear layer"),
        ({"workload": "encoder"}, "workload is 'encoder'; measure=plan is about tensor trains of one linear layer"),
        ({"methods": ["comera", "dense"]}, "methods has 'dense'; measure=plan is about tensor trains"),
    ],
)
def test_plans_are_of_one_tensorized_layer(tmp_path, changes, message):
    config = a_configuration(tmp_path, workload="linear", measure="plan", methods=["comera"], data_folder=None)
    with pytest.raises(ConfigError) as error:
        resolve(config | changes)
    assert str(error.value).startswith(message)
    assert str(error.value).endswith("allowed: comera." if "methods" in changes else "allowed: linear.")


def test_how_plans_are_timed_is_part_of_their_cell(tmp_path):
    config = a_configuration(tmp_path, workload="linear", measure="plan", methods=["comera"], data_folder=None)
    [cell] = resolve(config).cells
    assert cell.timing_settings == TIMING
    assert cell.ratio is None
    assert resolve(changed(config, "timing.blocks", 9)).cells[0] != cell


def cells_of(experiment, folder):
    """The cells of an experiment's file, its axes multiplied out as Hydra does."""
    file = OmegaConf.to_container(OmegaConf.load(CONF / "experiment" / f"{experiment}.yaml"))
    axes = file.pop("hydra")["sweeper"]["params"]
    cells = []
    for point in itertools.product(*(str(values).split(",") for values in axes.values())):
        config = a_configuration(folder, data_folder=None, **file)
        config["timing"] = TIMING | file["timing"]
        for name, value in zip(axes, point, strict=True):
            if name == "+shapes":
                config["linear"] |= OmegaConf.to_container(OmegaConf.load(CONF / "shapes" / f"{value}.yaml"))
            else:
                config = changed(config, name, int(value))
        cells += resolve(config).cells
    return cells


def test_the_grid_has_as_many_shapes_as_it_must_and_leaves_out_those_beyond_the_limit(tmp_path):
    cells = cells_of("contraction", tmp_path)
    found = {}
    for cell in cells:
        layer, method = cell.workload_settings, cell.method_settings
        widths = (layer["in_features"], layer["out_features"])
        assert (cell.measure, cell.method, cell.precision) == ("plan", "comera", "fp32")
        found[widths, method["order"], method["ranks"], cell.batch_size] = bench.runner.sweep.cell_unsupported(
            cell, Data()
        )
    assert len(found) == len(cells)
    for (widths, _, _, tokens), reason in found.items():
        assert (reason is not None) == (tokens * math.prod(widths) > CPU_LIMIT)
    measured = [shape for shape, reason in found.items() if reason is None]
    assert len(measured) >= 60
    assert len(measured) < len(found)
    orders, ranks, tokens = ({shape[place] for shape in measured} for place in (1, 2, 3))
    assert orders == {2, 3, 4}
    assert (min(ranks), max(ranks)) == (4, 256)
    assert (min(tokens), max(tokens)) == (1, 65536)
    widths = {width for shape in measured for width in shape[0]}
    assert (min(widths), max(widths)) == (256, 4096)


def test_fig_11_is_of_the_encoder_s_layers(tmp_path):
    found = [
        (cell.workload_settings["in_features"], cell.workload_settings["out_features"], cell.batch_size)
        for cell in cells_of("fig11", tmp_path)
    ]
    assert found == [(768, out, tokens) for out in (768, 3072) for tokens in (1, 128, 4096)]


@pytest.mark.usefixtures("cell_processes")
def test_a_sweep_records_a_small_layer_and_what_it_leaves_out(tmp_path, monkeypatch):
    patient = TIMING | {"time_limit_s": 600.0}  # a busy machine takes long to start a process
    timing = [f"timing.{name}={value}" for name, value in patient.items()]
    layer = ["+shapes=256x256", "linear.in_features=12", "linear.out_features=8"]
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
