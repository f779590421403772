"""Tables of one device: correctness, products and layers by precision, where the time of a step goes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pandas as pd
import pytest
from made_up_records import CPU, CUDA, record
from redrawn import redrawn_here

from bench.core.record import Record, write
from figures.artifacts.tables import correctness as table_correctness
from figures.artifacts.tables import fp8 as table_fp8
from figures.artifacts.tables import products as table_products
from figures.artifacts.tables import profile as table_profile
from figures.page.drawn import Drawn
from figures.records.select import Selected


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
    assert {what: list(cells) for what, cells in table.iterrows()} == {
        ("layer, 768 to 3072", "fp32"): ["2 of 2", "2.0e-07", "1e-04", "plan a"],
        ("layer, 768 to 3072", "bf16"): ["2 of 2", "3.0e-02", "5e-02", "plan b"],
        ("look-up, plain", "fp32"): ["0 of 1", "no result", "1e-04", "look-up plain"],
        ("look-up, unique", "fp32"): ["0 of 0", "oom", "-", "-"],
        ("steps, lte, reset", "fp32"): ["0 of 1", "1.0e-03", "1e-04", "update"],
        # an update may be farther off than a loss: what counts is the share of what is allowed
        ("steps, dense", "fp32"): ["2 of 2", "9.0e-03", "1e-02", "update"],
    }
    assert [one[0].partition(",")[0] for one in table.index] == ["layer"] * 2 + ["look-up"] * 2 + ["steps"] * 2


def test_failed_checks_are_counted_and_named() -> None:
    [page] = table_correctness.pages_by_device(CORRECTNESS)
    found = table_correctness.about(page, table_correctness.table(page))
    assert (found["judged"], found["cells"], found["without"]) == (8, 6, 1)
    assert [(one["what"], one["check"]) for one in found["failed"]] == [
        ("look-up, plain", "look-up plain"),
        ("steps, lte, reset", "update"),
    ]
    assert found["unchecked"] == {"no CUDA": ["captured steps"], "no room": ["look-up, unique, fp32"]}
    [drawn] = table_correctness.ARTIFACT.render(CORRECTNESS, {})
    assert any("made up" in note for note in drawn.below)
    assert any("error 1.0e-03, allowed 1e-04" in note for note in drawn.below)


def test_a_check_of_older_code_is_marked() -> None:
    old = dataclasses.replace(CORRECTNESS[3], recorded_at="2000-01-01T00:00:00+00:00", code_id="code-0")
    [drawn] = table_correctness.ARTIFACT.render([CORRECTNESS[0], old], {})
    assert drawn.table["what"].tolist() == ["layer, 768 to 3072 †", "steps, dense"]
    assert [note for note in drawn.below if note.startswith("†")]


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
    assert list(table.columns) == ["comera", "dense"]
    assert {kind: list(cells) for kind, cells in table.loc["batch 128, fp32"].iterrows()} == {
        "gemm": ["1.50 (75%)", "9.00 (90%)"],
        "optimizer": ["-", "1.00 (10%)"],
        "copy": ["0.500 (25%)", "-"],
        "all kinds": ["2.00", "10.0"],
        "waiting for launches": ["4.00", "0.500"],
        "step without profiler": ["6.00", "10.5"],
        "launches": ["340", "102"],
        "MiB moved": ["28.0", "850"],
    }
    assert list(table.loc["batch 128, fp32"].index[:3]) == ["gemm", "optimizer", "copy"]
    assert list(table.loc[("batch 128, bf16", "gemm")]) == ["1.00 (100%)", "-"]


def test_the_csv_of_a_profile_has_kinds_and_costly_kernels() -> None:
    [page] = table_profile.select(PROFILES)
    table = table_profile.table(page)
    gemm = table[(table["arm"] == "dense") & (table["kind"] == "gemm")]
    assert gemm[["name", "ms", "launches"]].to_numpy().tolist() == [["", 9.0, 100], ["nvjet_made_up", 2.0, 3.0]]
    assert set(table.loc[table["arm"] == "dense", "busy_ms"]) == {10.0}


def test_on_a_cpu_nothing_waits_for_launches() -> None:
    [drawn] = table_profile.ARTIFACT.render([a_profile("comera", {"gemm": (1.5, 300, 20.0)}, 1.2, CPU)], {})
    assert not {"waiting for launches", "launches"} & set(drawn.table["kind"])
    assert "calls of operators" in set(drawn.table["kind"])


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
    assert table.loc[("batch 128, fp32", "gemm"), "comera"] == "3.00 (100%)"
    assert table.loc[("batch 128, fp32", "step without profiler"), "dense"] == "10.5 †"
    assert "1 profile(s) of another model, length or toggles are left out." in drawn.notes
    assert "No profile of galore, batch 128, fp32: oom, no room." in drawn.notes
    assert any(note.startswith("†") for note in drawn.notes)
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
    assert list(drawn.table["layer"].unique()) == ["768 to 768", "768 to 32"]
    table = drawn.table.set_index(["layer", "product"])
    columns = ["rows", "ms", "TFLOP/s", "gain over fp32", "gain over bf16"]
    assert {name: list(cells) for name, cells in table.loc["768 to 768", columns].iterrows()} == {
        "fp32": ["4,096", "8.00", "0.604", "1.00x", "0.250x"],
        "tf32": ["4,096", "4.00", "1.21", "2.00x", "0.500x"],
        "bf16": ["4,096", "2.00", "2.42", "4.00x", "1.00x"],
        "fp8": ["4,096", "1.00", "4.83", "8.00x", "2.00x"],
        "fp8, cast": ["4,096", "1.25", "3.87", "6.40x", "1.60x"],
    }
    # gains are taken within blocks, which differ by more than the products do
    assert table.loc[("768 to 32", "bf16"), "gain over fp32"] == "2.00x"
    assert table.loc[("768 to 32", "fp8, cast"), "gain over bf16"] == "0.500x"
    assert list(table.loc[("768 to 32", "tf32"), columns]) == ["128", "-", "-", "-", "-"]
    assert table.loc[("768 to 32", "fp32"), "error"] == "1.0e-02"
    assert "768 to 32, 128, tf32: made-up reason." in drawn.below


def test_bounds_of_a_product_s_time_are_a_range_over_blocks() -> None:
    [page] = table_products.pages_by_device(PRODUCTS)
    table = table_products.table(page)
    line = table[(table["out_features"] == 32) & (table["product"] == "fp32")].iloc[0]
    assert (line["ms_low"], line["ms"], line["ms_high"]) == (2.0, 4.0, 6.0)
    [drawn] = table_products.ARTIFACT.render(PRODUCTS, {})
    assert any("range over blocks" in note for note in drawn.below)


def test_a_device_without_fp8_has_its_reason_in_place_of_times() -> None:
    one = product((768, 768), 128, {}, status="unsupported", message="this one is cpu.", samples={}, device=CPU)
    [drawn] = table_products.ARTIFACT.render([one], {})
    assert set(drawn.table["ms"]) == {"unsupported"}
    assert any(note.endswith("768 to 768, 128, fp8, cast: this one is cpu.") for note in drawn.below)


def a_layer(
    arm: str, out_features: int, ms: dict[str, list[float]], device: str = CUDA, rows: int = 10_000, **columns: object
) -> Record:
    """A layer of 1,024 in-features in three forms: BF16 takes half of FP32's least time, FP8 storage a quarter."""
    names = ("fp32", "bf16", "fp8")
    precisions = [
        {"name": name, "ms": ms.get(name, []), "error": error, "gradient_error": error, "largest": error, "bound": 1.0}
        | {"arithmetic": name, "message": "" if name in ms else "made-up reason."}
        for name, error in zip(names, (1e-7, 1e-3, 1e-2), strict=True)
    ]
    least = {"fp32": (4.0, 1.0), "bf16": (1.0, 2.0), "fp8": (0.5, 2.0), "fp8, bf16": (0.5, 2.0), "fp8 stored": (0.5, 1)}
    rooflines = [
        {"form": form, "mib": 10.0, "gpus": {"h100": {"operations_ms": work, "traffic_ms": traffic}}}
        for form, (work, traffic) in least.items()
    ]
    sizes = {"in_features": 1024, "out_features": out_features}
    values = {
        "experiment": "table_fp8",
        "cell_id": f"{arm}-{out_features}-{rows}",
        "config_json": json.dumps({"device": "cuda", "workload_settings": sizes}),
        "samples": {"precisions": precisions, "rooflines": rooflines},
        "device": device,
    }
    return record(arm, rows, measure="fp8", **(values | columns))


def fp8(*records: Record) -> tuple[Selected, pd.DataFrame]:
    [page] = table_fp8.pages_by_device(records)
    return page, table_fp8.table(page)


def test_a_layer_by_precision_by_hand() -> None:
    page, table = fp8(a_layer("comera", 1024, {}), a_layer("dense", 1024, {}))
    assert table[["arm", "form"]].to_numpy().tolist() == [
        [arm, form] for arm in ("dense", "comera") for form in ("fp32", "bf16", "fp8", "fp8, bf16", "fp8 stored")
    ]
    assert table["h100_least_ms"].tolist() == [4.0, 2.0, 2.0, 2.0, 1.0] * 2
    assert table["l4_least_ms"].isna().all()
    found = table_fp8.about(page, table)
    assert found["gains"] == [
        {"arm": arm, "form": form, "gaining": gaining, "pairs": 1, "low": ratio, "high": ratio}
        for arm in ("dense", "comera")
        for form, gaining, ratio in (("fp8, bf16", 0, 1.0), ("fp8 stored", 1, 2.0))
    ]
    assert found["not_run"] == {"made-up reason": [f"{a}, {f}" for a in ("dense", "comera") for f in _MEASURED]}
    read = table_fp8.shown(page, table).set_index("layer")
    assert read.loc["10,000 x 1,024 to 1,024, dense", ["error, fp8", "least ms, fp8 stored"]].tolist() == [
        "1.0e-02",
        "1.00",
    ]


_MEASURED = ("fp32", "bf16", "fp8")


def test_times_take_the_place_of_least_times() -> None:
    page, table = fp8(a_layer("comera", 1024, {"fp32": [4.0, 8.0], "bf16": [2.0, 4.0], "fp8": [1.0, 2.0]}))
    assert table["gain_over_fp32"].tolist()[:3] == [1.0, 2.0, 4.0]
    assert table["gain_over_bf16"].tolist()[:3] == [0.5, 1.0, 2.0]
    read = table_fp8.shown(page, table)
    assert read.loc[0, "ms, fp8"] == "1.50 (2.00x)"
    assert not any(str(name).startswith("least") for name in read)


@pytest.mark.parametrize(
    ("second", "outcome"),
    [([1.0, 1.0, 1.0], "reproduced"), ([4.0, 4.0, 4.0], "not reproduced"), ([1.6, 2.1, 2.6], "partly")],
)
def test_the_gain_of_the_larger_shape_decides_the_claim(second: list[float], outcome: str) -> None:
    fp32 = [8.0, 8.0, 8.0]
    records = [
        a_layer("comera", 1024, {"fp32": fp32, "fp8": [2.0, 2.2, 2.4]}),
        a_layer("comera", 4096, {"fp32": fp32, "fp8": second}),
        a_layer("dense", 4096, {"fp32": fp32, "fp8": [0.1] * 3}),
        a_layer("comera", 4096, {"fp32": fp32, "fp8": [0.1] * 3}, rows=4096),
    ]
    for device, expected in ((CUDA, outcome), (CPU, "not tested here")):
        some = [dataclasses.replace(one, device=device, config_json=one.config_json) for one in records]
        page, table = fp8(*some)
        page = dataclasses.replace(page, kind="cuda" if device == CUDA else "cpu")
        judged = table_fp8.judge(None, page, table)  # type: ignore[arg-type]
        assert judged.outcome == expected
        assert [one.heading for one in judged.ours] == ["FP32 / FP8, 1,024 to 1,024", "FP32 / FP8, 1,024 to 4,096"]
    assert table_fp8.judge(None, *fp8(records[0])).outcome == "not tested here"  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "records"),
    [
        ("table_correctness", CORRECTNESS),
        ("table_profile", PROFILES),
        ("table_products", PRODUCTS),
        ("table_fp8", [a_layer("dense", 1024, {})]),
    ],
)
def test_same_records_same_bytes(tmp_path: Path, name: str, records: list[Record]) -> None:
    write(records, tmp_path / "records")
    written, printed = redrawn_here(name, tmp_path / "records", tmp_path / "out")
    assert set(written) == {f"{name}-made-up-gpu-9000.{ending}" for ending in ("md", "csv")}
    assert "Made-up GPU 9000" in printed


def test_every_experiment_they_read_exists() -> None:
    from bench.errors import experiments

    tables = (table_correctness, table_products, table_profile, table_fp8)
    assert {name for table in tables for name in table.ARTIFACT.experiments} <= set(experiments())


def test_every_table_is_of_one_device() -> None:
    both = [*PROFILES, a_profile("comera", {"gemm": (1.5, 300, 20.0)}, 1.2, CPU)]
    drawings: list[Drawn] = table_profile.ARTIFACT.render(both, {})
    assert [one.device for one in drawings] == [CPU, CUDA]
