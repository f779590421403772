"""The small preset of ``make reproduce-small``: ranks fall to the target, both arms learn, all four are drawn."""

import subprocess
import sys
from pathlib import Path

import pytest

from bench.core.record import Record, read_all

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.slow


def run(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    run("bench", "experiment=accuracy_small", f"results={folder}")
    return folder


@pytest.fixture(scope="module")
def records(results) -> dict[str, Record]:
    found = read_all(results, "accuracy_small")
    assert [record.status for record in found] == ["ok"] * 3, [record.message for record in found]
    names = {("comera", "early"): "early", ("comera", "late"): "late", ("dense", "late"): "dense"}
    return {names[record.method, record.stage]: record for record in found}


def test_ranks_fall_to_the_target_and_tensors_with_them(records) -> None:
    early, late, dense = records["early"], records["late"], records["dense"]
    assert 0.0 < late.size_fraction <= late.size_target == 0.5 * early.size_fraction
    assert late.tensorized_mib <= 0.5 * early.tensorized_mib
    assert late.stored_mib < early.stored_mib < dense.stored_mib == dense.dense_mib
    assert late.peak_memory_predicted_mib < early.peak_memory_predicted_mib
    assert late.flops_per_step < early.flops_per_step


def test_both_arms_learn(records) -> None:
    for record in records.values():
        assert record.validation_examples == 1500
        assert record.metrics["accuracy"] > 100 / 3 + 15  # chance, and twelve standard errors


def test_all_three_are_drawn(results, tmp_path) -> None:
    for artifact in ("table_mnli", "fig6"):
        said = run("figures", artifact, "--experiment", "accuracy_small", f"--records={results}", f"--out={tmp_path}")
        assert "not tested here" in said  # the claims are about another model
        assert list(tmp_path.glob(f"{artifact}-*synthetic*.md"))
    assert list(tmp_path.glob("table_ranks-*synthetic*.md"))  # a part of table_mnli
    assert {path.suffix for path in tmp_path.glob("fig6-*")} == {".svg", ".md", ".csv"}
