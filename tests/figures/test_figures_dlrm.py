"""Figs. 8 and 9 and the table of DLRM: what their pages and verdicts say of made-up records."""

from __future__ import annotations

import dataclasses
import io

import pandas as pd
import pytest
from made_up_dlrm import click_runs, grid, trained_clicks
from made_up_records import CUDA

from bench.core.record import Record
from figures.artifacts import fig8
from figures.claims.claims import Verdict, read_claims
from figures.page.drawn import Drawn
from figures.registry import artifacts


def page_of(name: str, records: list[Record]) -> Drawn:
    [page] = artifacts()[name].render(records, read_claims())
    return page


def verdict(page: Drawn, claim: str) -> Verdict:
    return next(one for one in page.verdicts if one.claim.id == claim)


def test_predictions_decide_on_size_and_memory_with_both_rivals_named() -> None:
    page = page_of("fig8", grid())
    assert verdict(page, "dlrm-size").outcome == "by construction"
    memory = verdict(page, "dlrm-memory")
    assert memory.outcome == "partly"  # 17 times is far more than the published 7
    assert memory.fair is not None
    assert "5.00x at batch 10000 (memory, row-wise / optimized" in memory.fair.ours_text
    assert verdict(page, "dlrm-opt-dense").outcome == "predicted"
    assert verdict(page, "recsys-time").outcome == "not tested here"
    shown = page.table.set_index("variant")
    assert shown.loc["row-wise", "peak MiB, CUDA, batch 10,000"] == "5,000 (5.00x)"
    assert shown.loc["dense", "total, MiB"] == "4,187"
    assert {name.rpartition(".")[2] for name in page.files} >= {"png", "svg", "md", "csv"}


def test_times_are_those_of_a_step_whatever_an_epoch_is() -> None:
    table = fig8.table(fig8.select(grid())[0]).set_index(["batch_size", "variant"])
    time = ["step_time_ms", "step_time_ms_low", "step_time_ms_high"]
    assert table.loc[(10_000, "dense"), time].tolist() == [510.0, 500.0, 520.0]  # blocks of 500 to 520 ms
    assert table.loc[(10_000, "dense"), "time_over_optimized"] == pytest.approx(5.0)


def test_the_largest_batch_that_fits_is_found_for_each_room() -> None:
    [page] = fig8.select(grid())
    fits = fig8.about(page, fig8.table(page))["fits"]
    assert fits[24] == {"optimized": 40_000, "plain": 20_000, "dense": 10_000, "sparse": 10_000, "row-wise": 40_000}
    assert set(fits[80].values()) == {40_000}
    without = [one for one in grid() if one.measure == "run"]
    assert {*fig8.about(page, fig8.table(page).assign(cuda_peak_mib=1e6))["fits"][80].values()} == {0}
    assert fig8.table(fig8.select(without)[0])["cuda_status"].tolist().count("ok") in (0, 15)


def test_arms_that_ran_alone_are_unpaired_and_failures_are_named() -> None:
    records = [
        dataclasses.replace(one, pairing="") if (one.arm, one.measure) == ("dense", "run") else one for one in grid()
    ]
    lost = [
        dataclasses.replace(one, status="oom", message="made up: no room.", samples={})
        if one.arm == "dense:sparse"
        else one
        for one in records
    ]
    page = page_of("fig8", lost)
    assert "sparse, batch 10000, 20000, 40000: made up: no room." in page.notes
    table = fig8.table(fig8.select(lost)[0]).set_index(["batch_size", "variant"])
    assert table.loc[(10_000, "dense"), "time_pairing"] == "unpaired"
    assert table.loc[(10_000, "row-wise"), "time_pairing"] == "paired"
    assert any("one after another" in note for note in page.notes)


def test_times_on_a_synthetic_log_decide_nothing_and_on_the_real_one_they_do() -> None:
    synthetic, real = page_of("fig8", grid(CUDA)), page_of("fig8", grid(CUDA, "criteo"))
    for claim in ("recsys-time", "dlrm-opt-plain"):
        assert verdict(synthetic, claim).outcome == "not tested here"
        assert "these steps ran on synthetic_low_rank" in verdict(synthetic, claim).why
    assert verdict(real, "recsys-time").outcome == "reproduced"  # 5 times, and 2 to 3 are published
    assert verdict(real, "dlrm-opt-plain").outcome == "reproduced"


def test_another_model_decides_nothing() -> None:
    records = [Record(**{**vars(one), "parameters": 540_677_217 if one.parameters else None}) for one in grid()]
    page = page_of("fig8", records)
    assert verdict(page, "dlrm-size").outcome == "not tested here"
    assert verdict(page, "dlrm-memory").outcome == "not tested here"


def test_the_table_pairs_differences_by_group() -> None:
    page = page_of("table_dlrm", click_runs())
    row = page.table[page.table["run"].str.startswith("comera")].iloc[0]
    assert row["AUC less dense:sparse"].startswith("-0.000500")
    low, high = (float(part.strip(" []")) for part in str(row["AUC"]).partition("[")[2].split(","))
    assert low < 0.759 < high
    assert (row["total, MiB"], row["total ratio"]) == ("20.0", "105x")
    rival = page.table[page.table["run"] == "dense:sparse"].iloc[0]
    assert rival["AUC less dense:sparse"] == rival["normalised cross entropy less dense:sparse"] == "-"
    assert any("0.7900 and an AUC of 0.8000" in note for note in page.notes)  # the teacher's
    tidy = pd.read_csv(io.BytesIO(next(page.files[name] for name in page.files if name.endswith(".csv"))))
    ours = tidy.set_index("arm").loc["comera"]
    assert ours["nce_less_sparse"] == pytest.approx(0.0005, rel=1e-3)
    assert ours["log_loss"] == pytest.approx(0.48, abs=0.01)
    assert ours["seeds"] == "0 1 2"


@pytest.mark.parametrize(
    ("worse", "outcomes"),
    [
        (0.001, {"dlrm-accuracy": "reproduced", "dlrm-nce": "reproduced", "dlrm-curve": "reproduced"}),
        (0.05, {"dlrm-accuracy": "reproduced", "dlrm-nce": "not reproduced", "dlrm-curve": "not reproduced"}),
    ],
)
def test_only_the_real_log_decides(worse: float, outcomes: dict[str, str]) -> None:
    for name, claims in (("table_dlrm", ("dlrm-accuracy", "dlrm-nce")), ("fig9", ("dlrm-curve",))):
        real, synthetic = page_of(name, click_runs("criteo", worse)), page_of(name, click_runs(worse=worse))
        for claim in claims:
            assert verdict(real, claim).outcome == outcomes[claim]
            assert verdict(synthetic, claim).outcome == "not tested here"
            assert "these runs are on synthetic_low_rank" in verdict(synthetic, claim).why


@pytest.mark.parametrize("name", ["table_dlrm", "fig9"])
@pytest.mark.parametrize(("dense", "sparse", "said"), [(0.3, 0.3, 1), (0.3, 0.0, 0), (0.0, 0.3, 0)])
def test_where_no_form_of_dense_beats_the_probe_the_page_says_so(
    name: str, dense: float, sparse: float, said: int
) -> None:
    shifts = {"comera": 0.4, "dense": dense, "dense:sparse": sparse}
    page = page_of(name, [trained_clicks(arm, 0, shift, "criteo") for arm, shift in shifts.items()])
    assert sum(note.startswith("No dense run surely beats the logistic regression") for note in page.notes) == said


def test_the_curve_is_by_step() -> None:
    page = page_of("fig9", click_runs())
    assert list(page.table["step"]) == ["500", "1,000"]
    assert page.title == "Normalised cross entropy of DLRM per step on the synthetic log synthetic_low_rank"
    assert page_of("fig9", click_runs("criteo")).title.startswith("Fig. 9: normalised cross entropy of DLRM")
    assert any("reaches 0.7900" in note for note in page.notes)
    assert "[" in str(page.table["comera"].iloc[0]) or any("[" in str(value) for value in page.table.iloc[0])
