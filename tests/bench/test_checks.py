"""Checks of results on a device: they pass on a CPU, and each of them fails over what it is there to find."""

import pytest
import torch
from small_cells import MODEL, a_cell, run_bench, small

import bench.measures.check
import bench.processes.process
import bench.step.train_step
from bench.core.record import read_all
from bench.measures.check import check_columns
from bench.protocol import Data
from bench.runner.results import Results
from bench.step.train_step import TrainStep, build_step
from bench.workloads import open_cell_workload
from comera.lookup import VARIANTS

DATA = Data("synthetic")
LINEAR = {"in_features": 24, "out_features": 16, "optimizer_step": True}
TABLE = {"rows": 60, "columns": 16, "optimizer_step": True}
SMALL = {"lte": {"rank": 4, "heads": 4, "merge_every": 2}, "galore": {"rank": 8}, "lora": {"rank": 4}}
SMALL |= {"comera": {"ranks": 8, "table_ranks": 8}, "low_rank": {"rank": 8}, "dense": {}}


def a_check(workload="encoder", method="dense", **changes):
    settings = {"encoder": {**MODEL, "sequence_length": 32}, "linear": LINEAR, "lookup": TABLE}[workload]
    fields = {"batch_size": 8, "settings": {**SMALL[method], **changes.pop("settings", {})}}
    dataset = {"encoder": "synthetic", "linear": "normal", "lookup": "zipf"}[workload]
    return a_cell(
        measure="check",
        workload=workload,
        dataset=dataset,
        method=method,
        workload_settings=settings,
        **(fields | changes),
    )


def checked(cell):
    """The columns of a cell's checks."""
    return check_columns(cell, open_cell_workload(cell, Data(cell.dataset)))


def rows_of(columns):
    return {row["name"]: row for row in columns["samples"]["checks"]}


@pytest.mark.parametrize("method", ["dense", "comera", "galore"])
def test_steps_of_an_arm_pass_on_a_cpu(method):
    columns = checked(a_check(method=method))
    assert "failure" not in columns
    rows = rows_of(columns)
    for name in ("loss of 5 steps", "gradients of 5 steps", "update of 5 steps"):
        assert rows[name]["passed"]
        assert 0 < rows[name]["error"] < rows[name]["tolerance"]
    assert rows["captured steps"]["passed"] is None
    assert "needs a CUDA device" in rows["captured steps"]["message"]
    assert ("update of the 8-bit optimizer" in rows) == (method == "galore")


def test_the_captured_step_is_captured_and_the_one_beside_it_is_not(monkeypatch):
    asked = []
    monkeypatch.setattr(bench.measures.check, "toggles_unsupported", lambda *_: None)
    monkeypatch.setattr(
        bench.measures.check,
        "build_step",
        lambda cell, *_, **double: asked.append(cell) or build_step(cell, *_, **double),
    )
    row = rows_of(checked(a_check(compile=True)))["captured steps"]
    assert "CUDA" in row["message"]  # as far as a CPU comes
    assert [(cell.cuda_graph, cell.compile) for cell in asked[-2:]] == [(False, False), (True, False)]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_plan_of_a_layer_passes(precision):
    columns = checked(a_check("linear", "comera", precision=precision))
    assert "failure" not in columns
    assert {"plan halves", "plan cores", "plan dense"} <= rows_of(columns).keys()
    assert all(0 < row["error"] < row["tolerance"] for row in rows_of(columns).values())


@pytest.mark.parametrize("lookup", VARIANTS)
def test_every_lookup_passes(lookup):
    columns = checked(a_check("lookup", "comera", settings={"lookup": lookup}))
    assert "failure" not in columns
    assert rows_of(columns)[f"look-up {lookup}"]["passed"]


def test_a_wrong_plan_is_found(monkeypatch):
    right = bench.measures.check.tt_linear

    def wrong(x, packed, diagonals, plan, *others):
        return right(x, packed, diagonals * (1.001 if plan.name == "cores" else 1.0), plan, *others)

    monkeypatch.setattr(bench.measures.check, "tt_linear", wrong)
    columns = checked(a_check("linear", "comera"))
    assert [name for name, row in rows_of(columns).items() if not row["passed"]] == ["plan cores"]
    assert columns["failure"].startswith("1 of 5 checks failed, first plan cores: relative error ")


@pytest.mark.parametrize(
    ("half", "name"), [("forward_backward", "gradients of 5 steps"), ("update", "update of 5 steps")]
)
def test_a_wrong_step_is_found(monkeypatch, half, name):
    right = getattr(TrainStep, half)

    def wrong(self, *arguments):
        result = right(self, *arguments)
        if next(self.model.parameters()).dtype == torch.float32:
            for parameter in self.model.parameters():
                if half == "update":
                    parameter.data.mul_(1.0 + 1e-3)
                elif parameter.grad is not None:
                    parameter.grad.mul_(1.001)
        return result

    monkeypatch.setattr(TrainStep, half, wrong)
    rows = rows_of(checked(a_check(method="dense")))
    assert [one for one, row in rows.items() if row["passed"] is False] == [name]


def test_what_raises_is_a_failed_check(monkeypatch):
    def broken(*_):
        raise RuntimeError("made up: no kernel\nand more")

    monkeypatch.setattr(bench.measures.check, "tt_linear", broken)
    columns = checked(a_check("linear", "comera"))
    assert columns["failure"] == "5 of 5 checks failed, first plan halves: RuntimeError: made up: no kernel"
    monkeypatch.setattr(TrainStep, "forward_backward", broken)
    assert "3 of 4 checks failed" in checked(a_check())["failure"]


def test_a_cell_of_which_a_check_fails_is_an_error_and_is_tried_again(monkeypatch, tmp_path):
    class Answering:
        def answer(self):
            return {"samples": {"checks": []}, "failure": "1 of 2 checks failed"}

        def stop(self):
            pass

    def answering(_, cells, parallel):  # noqa: ARG001 - as bench.processes.process._side_by_side
        return ((cell, Answering()) for cell in cells)

    monkeypatch.setattr(bench.processes.process, "_side_by_side", answering)
    [outcome] = bench.processes.process.answers(check_columns, [cell := a_check()], DATA, 2)
    assert (outcome.status, outcome.message) == ("error", "1 of 2 checks failed")
    results = Results(tmp_path, "config")
    [record] = results.record([outcome], "d", DATA)
    assert (record.status, record.message, record.samples) == ("error", "1 of 2 checks failed", {"checks": []})
    assert results.answer(cell, "d") is None


@pytest.mark.slow
@pytest.mark.usefixtures("cell_processes")
def test_a_sweep_records_checks(tmp_path, pairs):
    """LTE's heads do not divide the batch of two."""
    words = ["experiment=correctness", "+checked=steps", "methods=[dense,lte]", *small(pairs, tmp_path / "results")]
    ended = run_bench(tmp_path, *words, "dataset=auto")
    assert (ended.status, ended.output) == (0, "")
    by_arm = {record.arm: record for record in read_all(tmp_path / "results")}
    assert by_arm["lte"].status == "unsupported"
    assert (by_arm["dense"].status, by_arm["dense"].measure, by_arm["dense"].message) == ("ok", "check", "")
    assert {row["passed"] for row in by_arm["dense"].samples["checks"]} == {True, None}
