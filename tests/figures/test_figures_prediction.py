"""The error of predicted memory: which records have it, how it is distributed, and that drawing is a pure function."""

from __future__ import annotations

import csv
import io
import statistics
from pathlib import Path

import pytest
from made_up_records import ARMS, CPU, CUDA, campaign, record
from redrawn import redrawn_here

from bench.core.record import Record, write
from figures.artifacts.beyond import prediction
from figures.artifacts.beyond.prediction import PredictionPage, rows_of
from figures.text import text_table

render = prediction.ARTIFACT.render


def page_of(records: list[Record], device: str = CPU) -> PredictionPage:
    [page] = [one for one in prediction.select(records) if one.device == device]
    return page


def sentences(page: PredictionPage) -> list[str]:
    """What is said of the distribution, then the notes."""
    caption = prediction.caption(page, rows_of(page))
    return [caption.facts[1], *caption.notes]


def witnessed(arm: str, batch: int, error: float, device: str = CPU, **columns: object) -> Record:
    """A record whose prediction is off by ``error``, as a share of what was measured."""
    values: dict[str, object] = {
        "experiment": "prediction",
        "cell_id": f"{arm}-{batch}".replace(":", "-"),
        "peak_memory_allocated_mib": 200.0,
        "peak_memory_predicted_mib": 200.0 * (1 + error),
    }
    return record(arm, batch, measure="allocator_peak", device=device, **(values | columns))


ERRORS = {"dense": (0.0, -0.001), "comera": (-0.019, 0.004), "lora": (-0.03, 0.01)}


def checked(device: str = CPU) -> list[Record]:
    return [
        witnessed(arm, batch, error, device) for arm in ERRORS for batch, error in zip((1, 8), ERRORS[arm], strict=True)
    ]


def test_errors_by_hand() -> None:
    checks = page_of(checked())
    assert checks.kind == "cpu"
    rows = rows_of(checks)
    assert [row.arm for row in rows] == ["comera", "lora", "dense"]
    for row in rows:
        assert row.errors == pytest.approx(sorted(ERRORS[row.arm]))
        assert statistics.median(row.errors) == pytest.approx(sum(ERRORS[row.arm]) / 2)
    assert rows[1].worst.record.batch_size == 1
    table = text_table(prediction.columns(checks, rows), rows).set_index("arm")
    assert table.loc["lora", "within"] == "1 of 2"
    assert table.loc["lora", "lowest error"] == "-3.00 %"
    assert table.loc["dense", "highest"] == "0.00 %"
    first = sentences(checks)[0]
    assert "6 cells, 1 of them exact to the byte" in first
    assert "the largest -3.00 % (lora, batch 1)" in first
    assert "within 2%. Missed by 1." in first


def test_what_is_within_the_tolerance_is_met() -> None:
    good = [one for one in checked() if one.method != "lora"]
    checks = page_of(good)
    assert sentences(checks)[0].endswith("Met.")
    on_cuda = page_of(checked(CUDA), CUDA)
    assert on_cuda.kind == "cuda"
    assert sentences(on_cuda)[0].endswith("Asked: within 5%. Met.")


def test_measured_workspaces_belong_to_the_prediction() -> None:
    one = witnessed("comera", 1, 0.0, CUDA, peak_memory_allocated_mib=264.0, workspaces_mib=64.0)
    checks = page_of([one], CUDA)
    assert [check.error for check in checks.checks] == [0.0]
    assert sentences(checks)[-1].endswith("which were measured: 64.0 MiB.")


def test_timed_records_of_a_gpu_count_and_those_of_a_cpu_have_no_peak() -> None:
    records = campaign(CPU) + campaign(CUDA)
    [drawn] = render(records, {})
    assert drawn.device == CUDA
    checks = page_of(records, CUDA)
    assert {check.record.arm for check in checks.checks} == set(ARMS)
    for check in checks.checks:
        assert check.record.measure == "run"
        assert check.error == pytest.approx(1 / 1.04 - 1)


def test_captured_steps_failures_and_other_devices_are_left_out() -> None:
    records = [
        *checked(),
        witnessed("dense", 32, 0.5, compile=True),
        witnessed("dense", 64, 0.5, cuda_graph=True),
        witnessed("lte", 1, 0.0, status="unsupported", message="no heads.", peak_memory_allocated_mib=None),
        witnessed("dense", 1, 0.9, CUDA),
    ]
    checks = page_of(records)
    assert len(checks.checks) == 6
    assert checks.left_out == (
        "No check of lte, batch 1: unsupported, no heads.",
        "2 record(s) of captured or compiled steps are left out: predictions are of plain ones.",
    )


def test_without_measured_peaks_nothing_is_drawn() -> None:
    assert render(campaign(CPU), {}) == []


@pytest.mark.slow
def test_same_records_same_bytes(tmp_path: Path) -> None:
    write(checked() + checked(CUDA), tmp_path / "records")
    written, printed = redrawn_here("prediction", tmp_path / "records", tmp_path / "out")
    stems = ("prediction-made-up-cpu-2-threads", "prediction-made-up-gpu-9000")
    assert set(written) == {f"{stem}.{ending}" for stem in stems for ending in ("png", "svg", "md", "csv")}
    rows = list(csv.DictReader(io.StringIO(written[f"{stems[0]}.csv"].decode())))
    assert len(rows) == 6
    assert {float(row["error"]) for row in rows} == {error for errors in ERRORS.values() for error in errors}
    assert "6 cells, 1 of them exact" in printed
    assert printed.count("6 cells") == 2


def test_every_experiment_it_reads_exists() -> None:
    from bench.errors import experiments

    assert set(prediction.EXPERIMENTS) <= set(experiments())
