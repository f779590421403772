"""The error of predicted memory: which records have it, how it is distributed, and that drawing is a pure function."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from made_up_records import ARMS, CPU, CUDA, campaign, record
from redrawn import redrawn_here

from bench.core.record import Record, write
from figures.artifacts.beyond import prediction
from figures.artifacts.beyond.prediction import PredictionPage

render = prediction.ARTIFACT.render


def page_of(records: list[Record], device: str = CPU) -> PredictionPage:
    [page] = [one for one in prediction.select(records) if one.device == device]
    return page


def about(page: PredictionPage) -> dict[str, Any]:
    return prediction.about(page, prediction.table(page))


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
    page = page_of(checked())
    assert page.kind == "cpu"
    table = prediction.table(page)
    rows = prediction.by_workload(page, table)
    assert [arm for _, arm, _ in rows] == ["comera", "lora", "dense"]
    for _, arm, part in rows:
        assert sorted(part["error"]) == pytest.approx(sorted(ERRORS[arm]))
    read = prediction.shown(page, table).set_index("arm")
    assert read.loc["lora"].tolist() == ["encoder", "2", "1, 8", "-3.00%", "-1.00%", "+1.00%", "1 of 2"]
    assert read.loc["dense", ["lowest error", "highest"]].tolist() == ["-0.10%", "+0.00%"]
    found = about(page)
    assert (found["cells"], found["exact"], found["missed"]) == (6, 1, 1)
    assert (found["largest"], found["at"].arm, found["at"].batch_size) == (pytest.approx(-0.03), "lora", 1)


def test_a_gpu_is_allowed_more_than_a_cpu() -> None:
    on_cuda = page_of(checked(CUDA), CUDA)
    assert on_cuda.kind == "cuda"
    assert about(on_cuda)["missed"] == 0
    [drawn] = render(checked(CUDA), {})
    assert drawn.facts[-1] == "Asked: within 5 %. Met."
    [drawn] = render(checked(), {})
    assert drawn.facts[-1] == "Asked: within 2 %. Missed by 1."


def test_measured_workspaces_belong_to_the_prediction() -> None:
    one = witnessed("comera", 1, 0.0, CUDA, peak_memory_allocated_mib=264.0, workspaces_mib=64.0)
    page = page_of([one], CUDA)
    assert prediction.table(page)["error"].tolist() == [0.0]
    assert about(page)["workspaces"] == (64.0, 64.0)
    [drawn] = render([one], {})
    assert any("64.0 MiB" in note for note in drawn.notes)


def test_arms_of_another_workload_stand_below_and_are_named_with_it() -> None:
    other = witnessed("comera", 1, 0.01, workload="linear", cell_id="other")
    [drawn] = render([*checked(), other], {})
    assert drawn.table["workload"].tolist() == ["encoder"] * 3 + ["linear"]
    [axes] = drawn.files._draw().axes  # type: ignore[misc]
    assert [name.get_text() for name in axes.get_yticklabels()] == ["comera", "lora", "dense", "comera, linear"]


def test_points_are_errors_in_percent_and_strokes_their_medians() -> None:
    [drawn] = render(checked(), {})
    [axes] = drawn.files._draw().axes  # type: ignore[misc]
    dots = sorted(float(line.get_xdata()[0]) for line in axes.lines if len(line.get_xdata()) == 1)
    assert dots == pytest.approx(sorted(100 * error for errors in ERRORS.values() for error in errors))
    strokes = [line.get_xdata()[0] for line in axes.lines if len(set(line.get_ydata())) == 2][1:]
    assert strokes == pytest.approx([-0.75, -1.0, -0.05])


def test_timed_records_of_a_gpu_count_and_those_of_a_cpu_have_no_peak() -> None:
    records = campaign(CPU) + campaign(CUDA)
    [drawn] = render(records, {})
    assert drawn.device == CUDA
    page = page_of(records, CUDA)
    assert {check.arm for check in page.checks} == set(ARMS)
    assert {check.measure for check in page.checks} == {"run"}
    assert prediction.table(page)["error"].tolist() == pytest.approx([1 / 1.04 - 1] * len(page.checks))


def test_captured_steps_failures_and_other_devices_are_left_out() -> None:
    records = [
        *checked(),
        witnessed("dense", 32, 0.5, compile=True),
        witnessed("dense", 64, 0.5, cuda_graph=True),
        witnessed("lte", 1, 0.0, status="unsupported", message="no heads.", peak_memory_allocated_mib=None),
        witnessed("dense", 1, 0.9, CUDA),
    ]
    page = page_of(records)
    assert len(page.checks) == 6
    assert page.left_out == (
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
    assert printed.count("6 cells, 1 of them exact") == 2


def test_every_experiment_it_reads_exists() -> None:
    from bench.errors import experiments

    assert set(prediction.EXPERIMENTS) <= set(experiments())
