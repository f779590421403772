"""Training runs of the workload dlrm: points of the curve between epochs, groups for intervals, and a void run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_cells import a_training_cell

from bench.core.samples import unpacked
from bench.protocol import Data, EarlyLate
from bench.training.plan import training_cells
from bench.training.run import TrainingRun, Upkeep
from bench.workloads.dlrm import DLRMSettings, DLRMWorkload


@pytest.fixture(scope="module")
def workload() -> DLRMWorkload:
    settings = DLRMSettings("small", max_rows=2000, training_lines=16_384, validation_lines=8192)
    return DLRMWorkload.open(settings, Data("synthetic_low_rank"), False)


def trained(workload: DLRMWorkload, folder: Path, arm: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The columns of a finished run of one epoch."""
    method, _, variant = arm.partition(":")
    cell = a_training_cell(method, settings=settings)
    cell = cell.__class__(**{**vars(cell), "workload": "dlrm", "variant": variant, "batch_size": 1024, "training": {}})
    values = {**vars(EarlyLate(early_epochs=1.0, targets=(), curve_steps=5))}
    [cell] = training_cells(cell, values, workload)
    run = TrainingRun(cell, workload, Upkeep(folder / "run", "mine", "c"), lambda _: None)
    run.run()
    return run.columns()


def test_the_curve_has_a_point_every_so_many_steps(workload: DLRMWorkload, tmp_path: Path) -> None:
    columns = trained(workload, tmp_path, "dense:row_wise", {"lr": 2e-3, "lr_tables": 2e-2})
    curve = columns["samples"]["curve"]
    assert [point["step"] for point in curve] == [5, 10, 15, 16]
    assert curve[-1]["metrics"]["nce"] < curve[0]["metrics"]["nce"]
    for point in curve:
        groups = {name: unpacked(values) for name, values in point["groups"].items()}
        assert {len(values) for values in groups.values()} == {16}
        assert np.mean(groups["nce"]) == pytest.approx(point["metrics"]["nce"], rel=1e-4)
        assert np.mean(groups["auc"]) == pytest.approx(point["metrics"]["auc"], abs=0.02)
    assert "void" not in columns.get("message", "")


def test_plain_descent_at_too_high_a_rate_is_void(workload: DLRMWorkload, tmp_path: Path) -> None:
    """What two users of DLRM met on the real log at rate 1, whose AUC stayed at 0.4999: facebookresearch/dlrm, issues
    393 and 395. A model as small as this one learns at rate 1 and needs 3 to be lost."""
    columns = trained(workload, tmp_path, "dense:sgd", {"lr": 3.0})
    assert columns["metrics"]["auc"] == pytest.approx(0.5, abs=0.03)
    assert columns["message"].startswith("void: normalised cross entropy of 1")
    assert columns["message"].endswith("is no better than guessing, 1")
