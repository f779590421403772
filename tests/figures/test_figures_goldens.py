"""Whole pages of made-up records: what the committed records lack, such as failed cells and pages of a GPU.

A golden holds a page's Markdown and CSV, and a digest of what its picture shows.
"""

import dataclasses
import itertools
from typing import Any

import pytest
from goldens import FOLDER, golden
from made_up import (
    CPU,
    CUDA,
    EARLY_SIZE,
    LOSS,
    LTE_REASON,
    OLDER_CODE,
    PARAMETERS,
    answered,
    clicks,
    code_runs,
    code_steps,
    dlrm_steps,
    failed,
    layer_in,
    looked_up,
    other_run,
    out_of_reach,
    peaks,
    record,
    settings,
    stages_of_accuracy,
    swept,
    timed,
    toggled,
    trained,
)
from pages import pages

from bench.core.record import Record
from bench.errors import TERMINAL
from figures.arms import COMERA, DENSE
from figures.artifacts import fig5, fig10
from figures.text import REMARKS
from figures.write import Drawn

# times and memory


def small_fig1() -> list[Record]:
    """Every way a cell can look: timed, unpaired, older, disturbed, failed with each status, missing."""
    found = [
        timed("comera", [70.0, 80.0], 8, **peaks(100.0)),
        timed("dense", [280.0, 320.0], 8, **peaks(250.0), **OLDER_CODE),
        timed("lora", [130.0, 150.0], 8, pairing="elsewhere"),
        timed("low_rank@size", [70.0, 90.0], 8, disturbed=(0, 1), git_dirty=True),
        timed("comera", [60.0, 65.0, 90.0], 16, disturbed=(2,), **peaks(180.0)),
    ]
    reasons = {"oom": "made up: no room.", "timeout": "made up: 600 s passed."}
    reasons |= {"diverged": "made up: NaN."}
    arms = ("low_rank@rank", "low_rank@rank:linear", "galore")
    for arm, (status, message) in zip(arms, reasons.items(), strict=True):
        found.append(record(arm, 8, status=status, message=message))
    found.append(record("dense", 16, status="error", message="made up: a | pipe <b>and\nanother line"))
    found += [record("lte", batch, status="unsupported", message=LTE_REASON) for batch in (1, 8)]
    plan = {"measure": "predict", "predicted_for": "cuda"}
    found.append(record("comera", 32, **plan, **peaks(500.0)))
    found.append(record("galore", 32, **plan, status="error", message="made up: no plan."))
    return found


def captured() -> list[Record]:
    """A GPU: eight launches, rare events in each, measured peaks, plain steps and captured ones, one refused."""
    found = []
    for graph in (False, True):
        costs = {"comera": 1.0, "galore": 2.5, "galore:per_layer": 2.2, "dense": 2.0}
        for arm, cost in costs.items():
            means = [cost * (5 if graph else 8) * (1 + 0.01 * (i % 5)) for i in range(16)]
            common = {"device": CUDA, "cuda_graph": graph, "driver": "made up", "machine": "one"}
            one = timed(arm, means, 1, launches=8, **common, **peaks(100 * cost, "cuda"))
            if arm == "galore":
                one.samples["rare"] = {"svd": [3000.0 + 100 * launch for launch in range(8)]}
                one = dataclasses.replace(one, rare_time_ms=3300.0, rare_period_steps=200)
            found.append(one)
        refused = {"status": "unsupported", "message": "made up"}
        found.append(record("lora", 1, device=CUDA, cuda_graph=graph, **refused))
    plan = {"measure": "predict", "precision": "bf16", **peaks(50.0)}
    return [*found, record("comera", 1, device=CUDA, **plan)]


def small_fig5() -> list[Record]:
    means = {"optimized": [10.0, 20.0, 30.0], "plain": [45.0, 90.0, 135.0]}
    means |= {"uncompressed": [5.0, 10.0, 15.0], fig5.ROW_WISE: [20.0, 40.0, 60.0]}
    more = {"plain": OLDER_CODE, "uncompressed": {"pairing": "elsewhere"}}
    found = [
        looked_up(name, values, device=CUDA, **peaks(5 * values[0], "cuda"), **more.get(name, {}))
        for name, values in means.items()
    ]
    found.append(looked_up("optimized", [1.0, 1.0], step=True, device=CUDA))
    found.append(looked_up("unique", [2.0], device=CUDA))
    return [*found, failed(looked_up("uncompressed, sparse", [], step=True, device=CUDA))]


def small_fig7() -> list[Record]:
    """CoMERA over dense is 0.25 of plain steps and 0.2 of captured ones; CUDA Graph halves CoMERA's."""
    means = {("comera", ""): [10.0, 20.0, 30.0], ("dense", ""): [40.0, 80.0, 120.0]}
    means |= {("comera", "graph"): [5.0, 10.0, 15.0], ("dense", "graph"): [25.0, 50.0, 75.0]}
    means |= {("comera", "compile graph"): [4.0, 8.0, 12.0], ("comera", "bf16"): [6.0, 12.0, 18.0]}
    found = []
    for place, ((arm, on), values) in enumerate(means.items()):
        more = {"compile_time_s": 40.0} if "compile" in on else {}
        more |= OLDER_CODE if (arm, on) == ("dense", "graph") else {}
        found.append(toggled(arm, on, values, **peaks(100.0 * (place + 1), "cuda"), **more))
    found.append(failed(toggled("dense", "graph", [], 64)))
    found.append(failed(toggled("dense", "", [], 64), peak_memory_predicted_mib=70.0, predicted_for="cuda"))
    found.append(toggled("comera", "graph", [9.0, 9.5], 64))
    together = [toggled("lora", on, [ms, ms], pairing="one") for on, ms in (("", 10.0), ("graph", 5.0))]
    return found + together


def small_fig12() -> list[Record]:
    """A sweep whose curve crosses dense, with a ratio out of reach, a failed cell and a missing one."""
    found = []
    for number, (ratio, share) in enumerate(((2.0, 2.0), (8.0, 0.5), (32.0, 0.3), (200.0, 0.2))):
        drift = 3.0**number  # later jobs are slower, in all arms alike
        for arm, cost in (("comera", 100 * share), ("low_rank", 90 * share), ("dense", 100.0)):
            means = [drift * cost * noise for noise in (1.0, 1.3, 0.9, 1.1, 1.2)]
            size = 100.0 if arm == "dense" else 100.0 / ratio + 20.0
            own = {"flops_per_step": round(1e9 * size), **peaks(size, "cuda")}
            one = swept(arm, ratio, means, device=CUDA, **own)
            if ratio > 100 and arm != "dense":
                one = dataclasses.replace(one, **out_of_reach(ratio, 145.073 if arm == "comera" else 116.44))
            if (arm, ratio) == ("low_rank", 8.0):
                one = failed(one)
            if (arm, ratio) != ("low_rank", 32.0):
                found.append(one)
    return [dataclasses.replace(found[0], pairing=""), *found[1:]]


def widths() -> list[Record]:
    """Tensor trains lose at the smaller width and win at the larger one; one form failed."""
    found = []
    for width, cost in ((768, 1.0), (8192, 12.0)):
        for arm, share in (("comera", 2.0), ("dense", cost)):
            for graph in (False, True):
                ms = share * (0.8 if graph else 1.0)
                about = {
                    "device": CUDA,
                    "workload": "text",
                    "experiment": "widths_decoder",
                    "cuda_graph": graph,
                    "cell_id": f"{width}-{arm}-{graph}",
                    "pairing": f"{width}-{graph}",
                    "parameters": 12 * width**2 if arm == "dense" else 200 * width,
                    "config_json": settings(device="cuda", workload_settings={"width": width}),
                }
                one = timed(arm, [ms, ms * 1.02, ms * 0.98], 32, **about)
                found.append(failed(one) if (arm, width, graph) == ("dense", 768, True) else one)
    return found


def failing_dlrm() -> list[Record]:
    """Dense ran alone, its sparse form found no memory."""
    found = []
    for one in dlrm_steps(CUDA):
        if (one.arm, one.measure) == ("dense", "run"):
            one = dataclasses.replace(one, pairing="")
        found.append(failed(one) if (one.arm, one.measure) == ("dense:sparse", "run") else one)
    return found


SMALLER = {"comera": 4.23, "low_rank@size": 4.3, "dense": 1.0}
SMALL_CODE = {arm: fig10.FULL_SIZE / times for arm, times in SMALLER.items()}


def checks_of_memory() -> list[Record]:
    """Predicted against measured peaks of a GPU: within 5 %, beyond it, with workspaces, failed, captured."""
    errors = {("dense", 1): 0.0, ("dense", 8): -0.001, ("comera", 1): -0.019}
    errors |= {("lora", 1): -0.08, ("lora", 8): 0.01}
    common = {"measure": "allocator_peak", "device": CUDA, "experiment": "prediction"}
    found = []
    for (arm, batch), error in errors.items():
        both = {"peak_memory_allocated_mib": 200.0, "peak_memory_predicted_mib": 200.0 * (1 + error)}
        found.append(record(arm, batch, **common, **both))
    held = {"peak_memory_allocated_mib": 264.0, "peak_memory_predicted_mib": 200.0}
    held |= {"workspaces_mib": 64.0}
    found.append(record("comera", 8, **common, **held))
    found.append(record("comera", 1, **common, **held, workload="linear", cell_id="other"))
    found.append(record("dense", 32, **common, **held, compile=True))
    return [*found, record("lte", 1, **common, status="unsupported", message="no heads.")]


# trainings


def failing_stages() -> list[Record]:
    """Late 0.8 diverged, late 0.5 ran out of time, late 0.2 was never made; the second seed lacks its early stage."""
    found = []
    for one in stages_of_accuracy(seeds=(0, 1)):
        status = {0.8: "diverged", 0.5: "timeout"}.get(one.target_ratio or 0.0)
        if status:
            why = {"status": status, "message": f"made up: {status}."}
            one = trained("comera", "late", one.target_ratio, seed=one.seed, **why)
        if one.target_ratio != 0.2 and (one.arm, one.stage, one.seed) != ("comera", "early", 1):
            found.append(one)
    return found


def ends_of_stages() -> list[Record]:
    """A size that was missed and ranks that were closed at the end; a target in MiB; older code."""
    missed = {**EARLY_SIZE, "size_fraction": 0.21, "size_target": 0.2, "size_at_deadline": 0.3}
    return [
        answered("dense", examples=50, **OLDER_CODE),
        answered("comera", "early", examples=50),
        answered("comera", target=0.2, examples=50, **missed),
        answered("comera", target_mib=3.0, examples=50, **EARLY_SIZE),
        dataclasses.replace(answered("comera", "early", examples=50), recorded_at=OLDER_CODE["recorded_at"]),
    ]


def other_workload() -> list[Record]:
    """A metric without values per example, stages of other names, and an arm that stops early."""
    return [
        other_run("dense", [0.71, 0.74, 0.76], size=20.0),
        other_run("comera", [0.7]),
        other_run("comera", [0.7, 0.72], target=0.5, size=5.0),
        other_run("lora", [0.68, 0.69, 0.7], size=20.0),
    ]


BELOW = {**LOSS, "probe": 0.9, "probe_text": "unigrams", "guess": 1.0}


def losing() -> list[Record]:
    """Losses of which none beats the probe, and CoMERA's alone guessing."""
    return [
        other_run("dense", [2.0], BELOW, size=20.0),
        other_run("comera", [0.95], BELOW, size=10.0, ratio=2.0),
        other_run("galore", [1.8], BELOW, size=5.0),
    ]


def searches() -> list[Record]:
    """Rates searched with one seed and repeated with others: the best in the midst, at the least and at the greatest.

    The loss for choosing is the least at another rate than the one that is reported, and seeds are skewed.
    """
    rates, seeds = (0.01, 0.02, 0.04), (0.0, 0.01, 0.05)
    of_arms = {
        ("dense", None): ((1.5, 1.4, 1.45), seeds),
        ("dense:narrow", 4.0): ((1.6, 1.65, 1.7), seeds),
        ("btt", 4.0): ((1.9, 1.8, 1.7), seeds),
        ("comera:orthogonal", 4.0): ((1.7, 1.64, 1.9), seeds[:2]),
    }
    found = []
    for (arm, ratio), (losses, repeats) in of_arms.items():
        best = min(losses)
        for (rate, loss), (seed, later) in itertools.product(zip(rates, losses, strict=True), enumerate(repeats)):
            if seed and loss != best:
                continue
            steps = [{"name": "train", "steps": 100, "target": None, "target_mib": None}]
            plan = {"stages": steps, "recipe": {"optimizer": "muon", "lr": rate}}
            about = {"experiment": "formats_tiny", "workload": "text", "seed": seed, "training": plan, "ratio": ratio}
            about |= {"parameters": 400_000 if ratio is None else 100_000, "peak_memory_predicted_mib": 50.0}
            one = other_run(
                arm, [loss], {**LOSS, "probe": 2.6}, cell_id=f"{arm}-{rate}-{seed}".replace(":", "-"), **about
            )
            found.append(dataclasses.replace(one, metrics={"loss": loss, "test_loss": 2.0 * loss + later}))
    return found


def precisions() -> list[Record]:
    """Products in FP8, an orthogonal start; dense lacks a seed."""
    ends = {("comera", "fp32"): 2.0, ("comera", "bf16"): 2.001, ("comera", "fp8"): 2.005}
    ends |= {("comera:orthogonal", "fp32"): 1.8, ("comera:orthogonal", "fp8"): 2.4}
    ends |= {("dense", "fp32"): 2.0, ("dense", "fp8"): 2.03}
    found = []
    for (arm, precision), end in ends.items():
        for seed in range(2 if arm == "dense" and precision == "fp8" else 3):
            about = {"cell_id": f"{arm}-{precision}-{seed}".replace(":", "-"), "seed": seed}
            about |= {"precision": precision, "experiment": "fig14", "workload": "code"}
            one = other_run(arm, (3.0, end), {**LOSS, "probe": 2.6}, **about)
            if precision == "fp8":
                one = dataclasses.replace(one, arithmetic="12 layers: FP8 products, emulated")
            found.append(one)
    return found


# tables of one device


def a_check(name: str, error: float | None, tolerance: float | None = 1e-4, message: str = "") -> dict[str, Any]:
    passed = None if tolerance is None else error is not None and error <= tolerance
    found = {"name": name, "error": error, "tolerance": tolerance}
    return {**found, "passed": passed, "message": message}


def checked(workload: str, checks: list[dict[str, Any]], arm: str = "comera", **columns: Any) -> Record:
    sizes = {"in_features": 768, "out_features": 3072} if workload == "linear" else {}
    own = columns.pop("own", {})
    cell = settings(device="cuda", method_settings=own, workload_settings=sizes)
    name = f"{workload}-{arm}-{columns.get('precision')}-{len(str(own))}"
    values = {"experiment": "correctness", "cell_id": name, "workload": workload}
    values |= {"config_json": cell, "device": CUDA, "samples": {"checks": checks}}
    return record(arm, 16, measure="check", **(values | columns))


def checks() -> list[Record]:
    """What counts is the share of what is allowed; failed checks, checks that did not run, older code."""
    out = {"status": "error", "message": "1 of 1 checks failed."}
    late = a_check("captured steps", None, None, "no CUDA.")
    in_bf16 = [a_check("plan a", 2e-2, 5e-2), a_check("plan b", 3e-2, 5e-2)]
    broken = a_check("look-up plain", None, message="RuntimeError: made up.")
    return [
        checked("encoder", [a_check("loss", 1e-6), a_check("update", 9e-3, 1e-2)], "dense"),
        checked("encoder", [a_check("update", 1e-3), late], "lte", own={"reset": True}, **out),
        checked("linear", in_bf16, precision="bf16"),
        checked("linear", [a_check("plan a", 2e-7), a_check("plan b", 1e-7)], **OLDER_CODE),
        checked("lookup", [broken], own={"lookup": "plain"}, status="error"),
        checked("lookup", [], own={"lookup": "unique", "made_up": 1}, status="oom", message="no room."),
    ]


CASES: dict[str, tuple[str, list[Record]]] = {
    "fig1-every-cell": ("fig1", small_fig1()),
    "fig1-own-experiment": ("fig1", [dataclasses.replace(one, experiment="own") for one in small_fig1()[:4]]),
    "fig1-captured": ("fig1", captured()),
    "fig5": ("fig5", small_fig5()),
    "fig7": ("fig7", small_fig7()),
    "fig8": ("fig8", failing_dlrm()),
    "fig9": ("fig9", clicks()),
    "fig10": ("fig10", code_steps(SMALL_CODE)),
    "fig10_loss": ("fig10_loss", code_runs(1.52, PARAMETERS["dense"])),
    "fig12": ("fig12", small_fig12()),
    "formats": ("formats", searches()),
    "widths": ("widths", widths()),
    "prediction": ("prediction", checks_of_memory()),
    **{
        f"{name}-{case}": (name, records)
        for case, records in {
            "failing": failing_stages(),
            "ends": ends_of_stages(),
            "other-workload": other_workload(),
            "losing": losing(),
        }.items()
        for name in ("fig6", "table_mnli", "table_ranks")
        if (name, case) != ("table_ranks", "losing")
    },
    "table_dlrm": ("table_dlrm", clicks()),
    "table_dlrm-losing": ("table_dlrm", clicks(worse=0.2)[:3]),
    "fig14": ("fig14", precisions()),
    "table_correctness": ("table_correctness", checks()),
    "table_fp8": (
        "table_fp8",
        [
            layer_in("comera", 1024, {"fp32": [4.0, 8.0], "bf16": [2.0, 4.0], "fp8": [1.0, 2.0]}),
            layer_in("dense", 1024, {}),
        ],
    ),
}


def written(page: Drawn) -> str:
    """A page's Markdown and CSV, and a digest of what is plotted."""
    texts = [file for file in page.files if file.endswith((".md", ".csv"))]
    plotted = f"=== plotted: {page.files.plotted}\n" if page.files.plotted else ""
    return "".join(f"=== {file}\n{page.files[file].decode()}" for file in texts) + plotted


def moved(one: Record, device: str) -> Record:
    """The record as another device's; trainings as a GPU's, since those of all CPUs share a page."""
    is_trained = one.measure in ("train", "probe")
    return dataclasses.replace(one, device=device, driver="made up" if is_trained else one.driver)


@pytest.mark.parametrize("case", CASES)
def test_a_page_is_as_it_was(case: str) -> None:
    """Neither the order of records nor those of other devices change it; these make pages of their own."""
    name, records = CASES[case]
    devices = {CPU: "A made-up CPU", CUDA: "A made-up GPU"}  # whose pages come first
    elsewhere = [moved(one, devices[one.device]) for one in records]
    found = pages(name, [*records[::-1], *elsewhere], picture=True)
    own = [page for page in found if page.device in devices]
    assert len(found) == 2 * len(own)
    golden(f"{case}.txt", "".join(map(written, own)))


@pytest.mark.parametrize("case", CASES)
def test_a_terminal_of_100_columns_shows_every_cell(case: str) -> None:
    """Each whole on one line, unless it is wider than what its table's first columns leave."""
    name, records = CASES[case]
    for page in pages(name, records):
        lines = page.to_text().splitlines()
        assert max(map(len, lines)) <= TERMINAL
        table = page.table.drop(columns=REMARKS, errors="ignore")
        for cell in (str(cell) for row in table.to_numpy() for cell in row if len(str(cell)) <= TERMINAL // 3):
            assert any(cell in line for line in lines)


def test_no_golden_is_left_over() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == {*CASES, "verdicts"}


@pytest.mark.parametrize("case", CASES)
def test_any_single_record_makes_a_page_or_none(case: str) -> None:
    """Each stands on a device of its own; arms that nothing is compared with are alike."""
    name, records = CASES[case]
    unlike = {}
    for one in records:
        unlike[one.measure, one.status, one.arm in (COMERA, DENSE) and one.arm] = one
    devices = (f"Made-up device {place}" for place in itertools.count())
    alone = [moved(one, next(devices)) for one in unlike.values()]
    for page in pages(name, alone):
        assert [alone[place].device for place in page.records] in ([], [page.device])
