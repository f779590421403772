"""Products in each precision, and where the time of a step goes, as far as a CPU can tell."""

import pytest
from small_cells import TIMING, a_cell, a_layer_cell, run_bench, small

from bench.core.record import read_all
from bench.measures.micro import products_columns
from bench.measures.profile import OTHER, kind_of, profile_columns
from bench.protocol import Data
from bench.workloads import open_cell_workload


def test_products_are_right_in_their_precision_and_timed():
    cell = a_layer_cell(32, 48, measure="products", batch_size=64)
    columns = products_columns(cell, open_cell_workload(cell, Data()))
    rows = {row["name"]: row for row in columns["samples"]["products"]}
    assert columns["flops_per_step"] == 2 * 64 * 32 * 48
    assert columns["step_time_median_ms"] > 0
    assert rows["tf32"] == {"name": "tf32", "ms": [], "error": None, "message": "needs a CUDA device"}
    for name, low, high in (("fp32", 1e-9, 1e-5), ("bf16", 1e-4, 1e-2), ("fp8", 5e-3, 1e-1), ("fp8, cast", 5e-3, 1e-1)):
        assert low < rows[name]["error"] < high, name
        assert len(rows[name]["ms"]) == TIMING["blocks"]
        assert min(rows[name]["ms"]) > 0


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNN", "gemm"),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm80(...)", "attention"),
        ("void pytorch_flash::flash_bwd_kernel<...>", "attention"),
        (
            "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<..., FusedAdamMathFunctor<...>>",
            "optimizer",
        ),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl>", "elementwise"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>", "reduction"),
        ("Memcpy DtoD (Device -> Device)", "copy"),
        ("void at::native::(anonymous namespace)::indexSelectLargeIndex<float, long>", "look-up"),
        ("void at::native::(anonymous namespace)::fused_dropout_kernel_vec<float>", "elementwise"),
        ("aten::addmm", "gemm"),
        ("aten::_fused_adamw_", "optimizer"),
        ("aten::native_layer_norm", "reduction"),
        ("aten::_unique2", "look-up"),
        ("aten::add_", "elementwise"),
        ("aten::transpose", OTHER),
    ],
)
def test_kinds_of_kernels_and_operators(name, kind):
    assert kind_of(name) == kind


def test_a_profile_says_where_the_time_goes():
    cell = a_cell(measure="profile", method="comera", batch_size=4)
    columns = profile_columns(cell, open_cell_workload(cell, Data("synthetic")))
    samples = columns["samples"]
    kinds = {row["kind"]: row for row in samples["kinds"]}
    assert {"gemm", "optimizer", "elementwise", "reduction", "look-up", "attention"} <= kinds.keys()
    assert sum(row["ms"] for row in kinds.values()) == pytest.approx(samples["busy_ms"])
    assert all(row["launches"] > 0 and row["ms"] > 0 for row in samples["costliest"])
    parameters = kinds["optimizer"]["moved_mib"]
    assert parameters > 0
    assert columns["step_time_median_ms"] > 0
    ordered = [row["ms"] for row in samples["kinds"]]
    assert ordered == sorted(ordered, reverse=True)


@pytest.mark.slow
@pytest.mark.usefixtures("cell_processes")
def test_sweeps_record_a_profile_and_that_a_cpu_has_no_fp8(tmp_path, pairs):
    ended = run_bench(
        tmp_path,
        "experiment=steps",
        "measure=profile",
        "name=profile",
        "methods=[dense]",
        *small(pairs, tmp_path / "results"),
    )
    assert (ended.status, ended.output) == (0, "")
    timing = [f"timing.{name}={value}" for name, value in TIMING.items()]
    words = ["experiment=steps", "workload=linear", "measure=products", "name=products", "methods=[dense]"]
    words += ["batch_size=4", "device=cpu", f"results={tmp_path / 'results'}"]
    assert run_bench(tmp_path, *words, *timing).status == 0
    product, profile = sorted(read_all(tmp_path / "results"), key=lambda record: record.workload == "encoder")
    assert (profile.status, profile.measure, profile.batch_size) == ("ok", "profile", 2)
    assert profile.samples["kinds"]
    assert (product.status, product.measure) == ("unsupported", "products")
    assert "this one is cpu" in product.message
