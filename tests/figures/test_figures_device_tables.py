"""Tables of one device that touch no claim: correctness, products by precision, where the time of a step goes."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from made_up_records import CPU, CUDA, record
from redrawn import redrawn_here

from bench.core.record import Record, write
from figures.artifacts.tables import correctness as table_correctness
from figures.artifacts.tables import products as table_products
from figures.artifacts.tables import profile as table_profile
from figures.page.drawn import Drawn


def a_check(name: str, error: float | None, tolerance: float | None = 1e-4, **changes: object) -> dict[str, object]:
    passed = None if tolerance is None else error is not None and error <= tolerance
    row = {"name": name, "error": error, "tolerance": tolerance, "passed": passed, "message": ""}
    return row | changes


def checked(
    workload: str, checks: list[dict[str, object]], arm: str = "comera", precision: str = "fp32", **columns: object
) -> Record:
    settings = columns.pop("method_settings", {})
    sizes = {"in_features": 768, "out_features": 3072} if workload == "linear" else {}
    config = {"method_settings": settings, "workload_settings": sizes, "device": "cuda"}
    values = {
        "experiment": "correctness",
        "cell_id": f"{workload}-{arm}-{precision}-{len(str(settings))}".replace(":", "-"),
        "workload": workload,
        "config_json": json.dumps(config),
        "samples": {"checks": checks},
        "device": CUDA,
    }
    return record(arm, 16, measure="check", precision=precision, **(values | columns))


CORRECTNESS = [
    checked("encoder", [a_check("loss", 1e-6), a_check("update", 9e-3, 1e-2)], "dense"),
    checked(
        "encoder",
        [a_check("update", 1e-3), a_check("captured steps", None, None, message="no CUDA.")],
        "lte",
        method_settings={"reset": True},
        status="error",
        message="1 of 1 checks failed.",
    ),
    checked("linear", [a_check("plan a", 2e-2, 5e-2), a_check("plan b", 3e-2, 5e-2)], precision="bf16"),
    checked("linear", [a_check("plan a", 2e-7), a_check("plan b", 1e-7)]),
    checked(
        "lookup",
        [a_check("look-up plain", None, message="RuntimeError: made up.")],
        status="error",
        method_settings={"lookup": "plain"},
    ),
    checked("lookup", [], method_settings={"lookup": "unique", "made_up": 1}, status="oom", message="no room."),
]


def test_correctness_by_hand() -> None:
    [drawn] = table_correctness.ARTIFACT.render(CORRECTNESS, {})
    table = drawn.table.set_index(["what", "precision"])
    assert list(table.index) == [
        ("layer, 768 to 3072", "fp32"),
        ("layer, 768 to 3072", "bf16"),
        ("look-up, plain", "fp32"),
        ("look-up, unique", "fp32"),
        ("steps, lte, reset", "fp32"),
        ("steps, dense", "fp32"),
    ]
    shown = ["passed", "largest error", "allowed", "of"]
    assert list(table.loc[("layer, 768 to 3072", "fp32"), shown]) == ["2 of 2", "2.0e-07", "1e-04", "plan a"]
    assert list(table.loc[("layer, 768 to 3072", "bf16"), shown]) == ["2 of 2", "3.0e-02", "5e-02", "plan b"]
    # an update may be farther off than a loss: what counts is the share of what is allowed
    assert list(table.loc[("steps, dense", "fp32"), shown]) == ["2 of 2", "9.0e-03", "1e-02", "update"]
    assert list(table.loc[("steps, lte, reset", "fp32"), shown]) == ["0 of 1", "1.0e-03", "1e-04", "update"]
    assert list(table.loc[("look-up, plain", "fp32"), shown]) == ["0 of 1", "no result", "1e-04", "look-up plain"]
    assert list(table.loc[("look-up, unique", "fp32"), shown]) == ["0 of 0", "oom", "-", "-"]
    assert drawn.facts[1] == "8 checks in 6 cells: 2 FAILED; 1 cell(s) without result."
    assert "look-up, plain, fp32: look-up plain: RuntimeError: made up." in drawn.below
    assert "look-up, unique, fp32: oom: no room." in drawn.below
    assert "steps, lte, reset, fp32: captured steps: no CUDA." in drawn.below


def test_where_every_check_passes_the_table_says_so() -> None:
    [drawn] = table_correctness.ARTIFACT.render([CORRECTNESS[0], CORRECTNESS[3]], {})
    assert drawn.facts[1] == "4 checks in 2 cells: all passed."


def a_profile(
    arm: str, kinds: dict[str, tuple[float, float, float]], step_ms: float, device: str = CUDA, **columns: object
) -> Record:
    """A profile with (ms, launches, MiB) by kind."""
    rows = [{"kind": name, "ms": ms, "launches": n, "moved_mib": mib} for name, (ms, n, mib) in kinds.items()]
    costliest = [{"name": "nvjet_made_up", "kind": "gemm", "ms": 2.0, "launches": 3.0}]
    busy = sum(ms for ms, *_ in kinds.values())
    precision, batch = columns.get("precision", "fp32"), columns.pop("batch", 128)
    values = {
        "experiment": "profile",
        "cell_id": f"{arm}-{precision}-{batch}-{step_ms}",
        "config_json": json.dumps({"device": "cuda" if device == CUDA else "cpu", "workload_settings": {}}),
        "samples": {"kinds": rows, "costliest": costliest, "busy_ms": busy, "step_ms": [step_ms]},
        "step_time_median_ms": step_ms,
        "device": device,
    }
    return record(arm, batch, measure="profile", **(values | columns))


PROFILES = [
    a_profile("dense", {"gemm": (9.0, 100, 50.0), "optimizer": (1.0, 2, 800.0)}, 10.5),
    a_profile("comera", {"gemm": (1.5, 300, 20.0), "copy": (0.5, 40, 8.0)}, 6.0),
    a_profile("comera", {"gemm": (1.0, 300, 20.0)}, 5.0, precision="bf16"),
]


def test_a_profile_by_hand() -> None:
    [drawn] = table_profile.ARTIFACT.render(PROFILES, {})
    table = drawn.table.set_index(["step", "kind"])
    assert list(table.columns[:2]) == ["comera, ms", "dense, ms"]
    first, second = "batch 128, fp32", "batch 128, bf16"
    assert [kind for step, kind in table.index if step == first] == [
        "gemm",
        "optimizer",
        "copy",
        "all kinds",
        "step without profiler",
    ]
    assert list(table.loc[(first, "gemm")]) == [
        "1.50 (75%)",
        "9.00 (90%)",
        "300",
        "20.0",
        "100",
        "50.0",
    ]
    assert table.loc[(first, "copy"), "dense, ms"] == "-"
    assert list(table.loc[(first, "all kinds"), ["comera, ms", "comera, launches", "comera, MiB"]]) == [
        "2.00",
        "340",
        "28.0",
    ]
    assert table.loc[(first, "step without profiler"), "dense, ms"] == "10.5"
    assert table.loc[(second, "gemm"), "dense, ms"] == "-"
    assert drawn.facts[1:] == (
        "batch 128, fp32, comera: waiting for launches 4.00, gemm 1.50, copy 0.500 ms of 6.00.",
        "batch 128, fp32, dense: gemm 9.00, optimizer 1.00, waiting for launches 0.500 ms of 10.5.",
        "batch 128, bf16, comera: waiting for launches 4.00, gemm 1.00 ms of 5.00.",
    )
    assert "batch 128, fp32, dense, costliest: nvjet_made_up 2.00 ms." in drawn.notes


def test_on_a_cpu_nothing_waits_for_launches() -> None:
    [drawn] = table_profile.ARTIFACT.render([a_profile("comera", {"gemm": (1.5, 300, 20.0)}, 1.2, CPU)], {})
    assert drawn.facts[1] == "batch 128, fp32, comera: gemm 1.50 ms of 1.20."
    assert "comera, calls" in drawn.table.columns
    assert any("the profiler's own time" in note for note in drawn.notes)


def test_the_newest_profiles_of_one_model_are_shown_and_failures_named() -> None:
    later = "2002-02-03T04:05:06+00:00"
    records = [
        *PROFILES,
        a_profile("comera", {"gemm": (3.0, 300, 20.0)}, 8.0, recorded_at=later, code_id="code-b"),
        a_profile("dense", {"gemm": (3.0, 1, 1.0)}, 9.0, sequence_length=32),
        a_profile("galore", {}, 9.0, status="oom", message="no room.", samples={}),
    ]
    [drawn] = table_profile.ARTIFACT.render(records, {})
    table = drawn.table.set_index(["step", "kind"])
    assert table.loc[("batch 128, fp32", "gemm"), "comera, ms"] == "3.00 (100%)"
    assert table.loc[("batch 128, fp32", "step without profiler"), "dense, ms"] == "10.5 †"
    assert "1 profile(s) of another model, length or toggles are left out." in drawn.notes
    assert "No profile of galore, batch 128, fp32: oom, no room." in drawn.notes
    assert "† from a record made by older code than the newest one shown." in drawn.notes
    assert table_profile.ARTIFACT.render([records[-1]], {}) == []


def product(width: tuple[int, int], rows: int, times: dict[str, list[float]], **columns: object) -> Record:
    samples = [
        {"name": name, "ms": ms, "error": 1e-2 if ms else None, "message": "" if ms else "made-up reason."}
        for name, ms in times.items()
    ]
    sizes = {"in_features": width[0], "out_features": width[1]}
    values = {
        "experiment": "products",
        "cell_id": f"{width[0]}-{width[1]}-{rows}",
        "flops_per_step": 2 * rows * width[0] * width[1],
        "config_json": json.dumps({"device": "cuda", "workload_settings": sizes}),
        "samples": {"products": samples},
        "device": CUDA,
    }
    return record("dense", rows, measure="products", **(values | columns))


PRODUCTS = [
    product(
        (768, 32),
        128,
        {
            "fp32": [2.0, 4.0, 6.0],
            "bf16": [1.0, 2.0, 3.0],
            "fp8": [1.0, 2.0, 3.0],
            "fp8, cast": [2.0, 4.0, 6.0],
            "tf32": [],
        },
    ),
    product(
        (768, 768),
        4096,
        {
            "fp32": [8.0, 8.0, 8.0],
            "tf32": [4.0, 4.0, 4.0],
            "bf16": [2.0, 2.0, 2.0],
            "fp8": [1.0, 1.0, 1.0],
            "fp8, cast": [1.25, 1.25, 1.25],
        },
    ),
]


def test_products_by_hand() -> None:
    [drawn] = table_products.ARTIFACT.render(PRODUCTS, {})
    assert list(drawn.table["layer"]) == ["768 to 768", "768 to 32"]
    square, half = drawn.table.to_dict("records")
    assert [square[name] for name in ("fp32, ms", "tf32 gain", "bf16 gain", "fp8 over bf16", "with cast")] == [
        "8.00",
        "2.00x",
        "4.00x",
        "2.00x",
        "1.60x",
    ]
    # gains are taken within blocks, which differ by more than the products do
    assert [half[name] for name in ("rows", "fp32, ms", "tf32, ms", "tf32 gain", "bf16 gain", "with cast")] == [
        "128",
        "4.00",
        "-",
        "-",
        "2.00x",
        "0.500x",
    ]
    assert drawn.facts[1] == (
        "With the cast of its activations, FP8 is faster than BF16 in 1 of 2 cells (both bounds above 1): "
        "768 to 768 at 4,096 rows."
    )
    assert "768 to 32, 128 rows: tf32: made-up reason." in drawn.below
    rows = {
        (row["in_features"], row["out_features"], row["product"]): row
        for row in csv.DictReader(io.StringIO(drawn.files["table_products-made-up-gpu-9000.csv"].decode()))
    }
    flops = 2 * 4096 * 768 * 768
    assert float(rows["768", "768", "fp8"]["tflops_per_s"]) == pytest.approx(flops / 1e-3 / 1e12, rel=1e-5)
    assert rows["768", "32", "tf32"]["ms"] == ""


def test_a_device_without_fp8_says_so() -> None:
    one = product((768, 768), 128, {}, status="unsupported", message="this one is cpu.", samples={}, device=CPU)
    [drawn] = table_products.ARTIFACT.render([one], {})
    assert drawn.facts[1] == "No product in FP8 was timed."
    assert "768 to 768, 128 rows: unsupported: this one is cpu." in drawn.below


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "records"),
    [("table_correctness", CORRECTNESS), ("table_profile", PROFILES), ("table_products", PRODUCTS)],
)
def test_same_records_same_bytes(tmp_path: Path, name: str, records: list[Record]) -> None:
    write(records, tmp_path / "records")
    written, printed = redrawn_here(name, tmp_path / "records", tmp_path / "out")
    assert set(written) == {f"{name}-made-up-gpu-9000.{ending}" for ending in ("md", "csv")}
    assert "Made-up GPU 9000" in printed


def test_every_experiment_they_read_exists() -> None:
    from bench.errors import experiments

    tables = (table_correctness, table_products, table_profile)
    assert {name for table in tables for name in table.ARTIFACT.experiments} <= set(experiments())


def test_every_table_is_of_one_device() -> None:
    both = [*PROFILES, a_profile("comera", {"gemm": (1.5, 300, 20.0)}, 1.2, CPU)]
    drawings: list[Drawn] = table_profile.ARTIFACT.render(both, {})
    assert [one.device for one in drawings] == [CPU, CUDA]
