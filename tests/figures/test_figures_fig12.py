"""Fig. 12: paired times, crossovers, ratios out of reach, and a figure for each device, precision and toggles."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pandas as pd
import pytest
from made_up_records import CPU, CUDA
from made_up_sweeps import RATIOS, out_of_reach, sizes, sweep_campaign, swept, timed_beside
from redrawn import redrawn_here

from bench.core.intervals import Estimate
from bench.core.record import Record, write
from figures.__main__ import main
from figures.artifacts import fig12
from figures.claims.claims import read_claims
from figures.page.drawn import Drawn
from figures.page.footnotes import Footnotes
from figures.records.crossover import crossings
from figures.records.missing import limit_of
from figures.text import significant

render, sweeps = fig12.ARTIFACT.render, fig12.select
CLAIMS = read_claims()


def text_of(figure: Drawn, ending: str) -> str:
    return next(figure.files[name] for name in figure.files if name.endswith(ending)).decode()


def tidy_of(figure: Drawn) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(text_of(figure, ".csv")))


def table_of(records: list[Record]) -> pd.DataFrame:
    """The table of the one page, by batch size, arm and the ratio of the job; of dense there is one line per job."""
    [page] = sweeps(records)
    return fig12.table(page).set_index(["batch_size", "arm", "beside"]).sort_index()


@pytest.fixture(scope="module")
def drawn() -> dict[str, Drawn]:
    records = sweep_campaign(CPU, ratios=(*RATIOS, 140.0, 200.0)) + sweep_campaign(CUDA, seed=9)
    return {figure.device: figure for figure in render(records, CLAIMS)}


@pytest.mark.slow
def test_the_same_records_give_the_same_bytes(tmp_path: Path) -> None:
    write(sweep_campaign(CPU, ratios=(1.5, 4.0, 200.0)), tmp_path / "records")
    written, printed = redrawn_here("fig12", tmp_path / "records", tmp_path / "out")
    assert set(written) == {f"fig12-made-up-cpu-2-threads.{ending}" for ending in ("png", "svg", "md", "csv")}
    assert "ratio-monotone" in printed


def test_every_arm_has_a_line_at_every_ratio_below_one_of_dense(drawn: dict[str, Drawn]) -> None:
    for device, batches, ratios in ((CPU, (8, 32, 128), (*RATIOS, 140.0, 200.0)), (CUDA, (1, 32, 64, 128), RATIOS)):
        tidy = tidy_of(drawn[device])
        arms = [(ratio, arm) for ratio in ratios for arm in ("comera", "low_rank@size")]
        models = tidy[tidy["arm"] != "dense"]
        assert [*zip(models["batch_size"], models["ratio"], models["arm"], strict=True)] == [
            (batch, *one) for batch in batches for one in arms
        ]
        assert [*drawn[device].table["arm"]] == ["dense", *(f"{arm}, ratio {ratio:g}" for ratio, arm in arms)]


def test_ratios_out_of_reach_are_shown_with_the_largest_within(drawn: dict[str, Drawn]) -> None:
    table = drawn[CPU].table.set_index("arm")
    for column in ("epoch, hours, batch 8", "peak MiB, CPU, batch 8", "peak MiB, CUDA, batch 32"):
        assert table.loc["comera, ratio 200", column] == "at most 145x"
        assert table.loc["low_rank@size, ratio 140", column] == "at most 116x"
        assert "at most" not in table.loc["comera, ratio 140", column]
    assert "low_rank@size: ratio 140, 200 is out of reach, at most 116x." in drawn[CPU].notes
    tidy = tidy_of(drawn[CPU]).set_index(["batch_size", "ratio", "arm"]).sort_index()
    assert (tidy.loc[(8, 200.0, "comera"), ["time_status", "reach"]] == ["unsupported", "at most 145x"]).all().all()
    assert "at most 145x" in text_of(drawn[CPU], ".svg")
    assert "out of reach" not in text_of(drawn[CUDA], ".md")


@pytest.mark.parametrize("side", ["largest", "smallest"])
def test_the_end_of_the_reach_is_read_from_the_sentence(side: str) -> None:
    found = limit_of(f"ratio=3 is out of reach for what there is, where so; the {side} within reach is 12.5, with it.")
    assert found is not None
    assert str(found) == {"largest": "at most 12.5x", "smallest": "at least 12.5x"}[side]
    assert limit_of("ratio=3 is out of reach within 2%; the nearest found is 2.9.") is None
    assert limit_of("made up: the largest within reach is 5, no") is None


def dense_and_comera(shares: dict[float, float], drift: float = 1.0, **columns: object) -> list[Record]:
    """Jobs whose blocks vary, and each of which is slower than the last by ``drift``, in all arms alike."""
    records = []
    for number, (ratio, share) in enumerate(shares.items()):
        rounds = [drift**number * noise for noise in (1.0, 1.3, 0.9, 1.1, 1.2)]
        for arm, cost in (("comera", 100 * share), ("dense", 100.0)):
            plan = sizes(arm, ratio, 8, "cpu")
            records.append(timed_beside(arm, [cost * one for one in rounds], ratio, **plan, **columns))
    return records


def test_times_are_compared_with_dense_of_the_same_job() -> None:
    records = dense_and_comera({2.0: 2.0, 8.0: 0.5}, drift=3.0)
    table = table_of(records)
    for ratio, share in ((2.0, 2.0), (8.0, 0.5)):
        line = table.loc[(8, "comera", ratio)]
        assert line[["time_over_dense", "time_over_dense_low", "time_over_dense_high"]].tolist() == [share] * 3
        assert line["time_pairing"] == "paired"
    dense = table.loc[(8, "dense")]
    assert [*dense.index] == [2.0, 8.0]
    assert [*dense["ratio"]] == [1.0, 1.0]
    first, second = dense["epoch_time_s"]
    assert second / first == pytest.approx(3)
    [page] = sweeps(records)
    shown = fig12.shown(page, fig12.table(page)).set_index("arm")["epoch, hours, batch 8"]
    assert shown["dense"] == significant((first + second) / 2 / 3600)
    assert shown["comera, ratio 2"].endswith(" (2.00x)")


def test_a_time_without_its_dense_is_shown_unpaired_or_without_a_ratio() -> None:
    records = dense_and_comera({2.0: 2.0, 8.0: 0.5})
    lonely = table_of([one for one in records if (one.arm, one.ratio) != ("dense", 8.0)]).loc[(8, "comera", 8.0)]
    assert pd.isna(lonely["time_over_dense"])
    assert lonely["epoch_time_s"] > 0
    apart = [dataclasses.replace(one, pairing="") if one.arm == "comera" else one for one in records]
    assert set(table_of(apart).loc[(8, "comera"), "time_pairing"]) == {"unpaired"}
    [figure] = render(apart, CLAIMS)
    assert figure.table.set_index("arm").loc["comera, ratio 2", "epoch, hours, batch 8"].endswith("x ‡)")


@pytest.mark.parametrize(
    ("curve", "found"),
    [
        ({1.0: 4.0, 4.0: 0.25}, [2.0]),
        ({1.0: 0.5, 4.0: 2.0}, [2.0]),
        ({2.0: 1.0, 4.0: 0.5}, [2.0]),
        ({2.0: 0.9, 4.0: 0.5}, []),
        ({2.0: 0.9}, []),
        ({1.0: 2.0, 4.0: 0.5, 16.0: 2.0}, [2.0, 8.0]),
    ],
)
def test_crossovers(curve: dict[float, float], found: list[float]) -> None:
    assert crossings({ratio: Estimate.exact(value) for ratio, value in curve.items()}) == pytest.approx(found)


def test_a_curve_crosses_dense_where_its_ratio_passes_one() -> None:
    [page] = sweeps(dense_and_comera({2.0: 2.0, 8.0: 0.5}, drift=3.0))
    table = fig12.table(page)
    time = fig12._panel(page, table, fig12._quantities(page, table)[0], 8, Footnotes())
    [curve] = time.curves
    assert {ratio: one.value for ratio, one in curve.values.items()} == {2.0: 2.0, 8.0: 0.5}
    assert crossings(curve.over_dense) == pytest.approx([4.0])
    assert time.dense is not None
    assert (time.dense.low, time.dense.value, time.dense.high) == pytest.approx((0.5, 1.0, 1.5))


def test_comera_s_time_is_held_against_low_rank_of_the_same_ratio(drawn: dict[str, Drawn]) -> None:
    tidy = tidy_of(drawn[CPU]).set_index(["batch_size", "arm", "ratio"]).sort_index()
    assert tidy.loc[(8, "comera", 1.5), "time_over_low_rank"] == pytest.approx(1.56 / 0.9133, rel=0.05)
    assert tidy["time_over_low_rank_of_equal_rank"].isna().all()  # which nothing was timed of
    assert tidy.loc[(8, "low_rank@size"), "time_over_low_rank"].isna().all()


def test_memory_and_work_are_quotients_to_the_one_dense_model(drawn: dict[str, Drawn]) -> None:
    tidy = tidy_of(drawn[CPU]).set_index(["batch_size", "arm", "ratio"]).sort_index()
    for batch, target in ((8, "cpu"), (32, "cuda"), (128, "cuda")):
        ours, dense = sizes("comera", 4.0, batch, target), sizes("dense", 1.0, batch, target)
        cell = tidy.loc[(batch, "comera", 4.0)]
        peaks = [one["peak_memory_predicted_mib"] for one in (ours, dense)]
        assert cell[f"{target}_peak_mib"] == pytest.approx(peaks[0], rel=1e-4)
        assert cell[f"{target}_over_dense"] == pytest.approx(peaks[0] / peaks[1], rel=1e-4)
        assert cell["flops_over_dense"] == pytest.approx(ours["flops_per_step"] / dense["flops_per_step"], rel=1e-4)
        assert cell["size_ratio"] == pytest.approx(4 * 1.003, rel=1e-4)


def test_measured_peaks_appear_for_a_gpu_only(drawn: dict[str, Drawn]) -> None:
    assert tidy_of(drawn[CUDA])["allocated_mib"].notna().all()
    assert "allocated, measured" in text_of(drawn[CUDA], ".svg")
    assert tidy_of(drawn[CPU])["allocated_mib"].isna().all()
    assert not any("CPU" in name for name in drawn[CUDA].table)


@pytest.mark.slow
def test_precisions_toggles_and_devices_have_figures_of_their_own() -> None:
    plain, few = sweep_campaign(CPU), {"ratios": (2.0, 20.0), "precision": "bf16"}
    records = plain + sweep_campaign(CPU, **few) + sweep_campaign(CPU, **few, compile=True)
    figures = {next(iter(figure.files)).removesuffix(".png"): figure for figure in render(records, CLAIMS)}
    stem = "fig12-made-up-cpu-2-threads"
    assert set(figures) == {stem, f"{stem}-bf16", f"{stem}-bf16-compile"}
    assert figures[stem].files == render(plain, CLAIMS)[0].files
    assert set(tidy_of(figures[f"{stem}-bf16"])["ratio"]) == {1, 2, 20}
    for name, figure in figures.items():
        assert ("bf16" in figure.facts[0]) == ("bf16" in name)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"data_hash": "another"}, "2 timed record(s) are left out, of another setting: contents of the data another"),
        ({"sequence_length": 64}, "2 timed record(s) are left out, of another setting: length 64, not 128."),
        ({"settings": {"order": 2}}, "2 timed record(s) of comera are left out, of another setting: order 2, not"),
        ({"recorded_at": "2000-01-01T00:00:00+00:00", "cell_id": "older"}, "2 further timed record(s)"),
        ({"arm": "galore"}, "2 record(s) that belong to no cell of this page are left out."),
    ],
)
def test_settings_are_never_mixed(other: dict, words: str) -> None:
    records = sweep_campaign(CPU)
    arm = other.pop("arm", "comera")
    strays = [timed_beside(arm, [1.0, 1.0], ratio, **other) for ratio in (2.0, 4.0)]
    [sweep] = sweeps([*records, *strays])
    assert not {id(one) for one in strays} & {id(one) for one in sweep.shown}
    assert any(words in note for note in sweep.left_out)


def test_failed_and_missing_cells_are_shown_with_their_reasons() -> None:
    records = []
    for one in sweep_campaign(CPU):
        failures = {("comera", 1.5): "oom", ("dense", 4.0): "error"}
        status = failures.get((one.arm, one.ratio or 0)) if one.measure == "run" else None
        if status is not None:
            nothing = {"samples": {}, "peak_memory_predicted_mib": None, "predicted_for": ""}
            one = dataclasses.replace(one, status=status, message=f"made up: {status}.", **nothing)
        if (one.arm, one.ratio, one.measure) != ("low_rank@size", 8.0, "run"):
            records.append(one)
    [figure] = render(records, CLAIMS)
    shown = figure.table.set_index("arm")["epoch, hours, batch 8"]
    assert shown["comera, ratio 1.5"] == "oom"
    assert shown["low_rank@size, ratio 8"] == "not recorded"
    assert "(" not in shown["comera, ratio 4"]
    assert {"comera, ratio 1.5, batch 8: made up: oom.", "dense beside ratio 4, batch 8: made up: error."} <= {
        *figure.notes
    }


@pytest.mark.parametrize(
    "records",
    [
        [swept("comera", 200.0, status="unsupported", message=out_of_reach("comera", 200.0))],
        [swept("low_rank", 2.0, measure="predict", predicted_for="cuda", **sizes("low_rank", 2.0, 8, "cuda"))],
        [swept("dense", None, measure="predict", predicted_for="cpu", **sizes("dense", 1.0, 8, "cpu"))],
        [timed_beside("comera", [1.0], 4.0, device=CUDA, peak_memory_allocated_mib=5.0)],
        [timed_beside("dense", [1.0, 2.0], 4.0)],
        [timed_beside("dense", [], 4.0, epoch_time_s=5.0)],
    ],
)
def test_any_single_record_can_be_drawn(records: list[Record]) -> None:
    [figure] = render(records, CLAIMS)
    assert len(figure.files) == 4
    assert {verdict.outcome for verdict in figure.verdicts} == {"not tested here"}


def test_records_of_no_sweep_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strangers = [timed_beside("galore", [1.0], 2.0), swept("comera", None, status="oom", message="made up")]
    assert render(strangers, CLAIMS) == []
    write(strangers, tmp_path / "records")
    assert main(["fig12", "--records", str(tmp_path / "records"), "--out", str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.endswith(
        "ratios/ or ratios_memory/ is one that fig12 shows; make some with: make sweep-ratios.\n"
    )


def verdict_of(records: list[Record]) -> tuple[str, str]:
    [figure] = render(records, CLAIMS)
    [verdict] = figure.verdicts
    return verdict.outcome, str(verdict)


def on_a_gpu(shares: dict[float, float], noise: float = 1.0, **columns: object) -> list[Record]:
    """One batch size of a GPU, block times of CoMERA spread by ``noise``."""
    records = []
    for ratio, share in shares.items():
        for arm, cost in (("comera", share), ("dense", 1.0)):
            means = [cost * (noise**power if arm == "comera" else 1.0) for power in (-2, -1, 0, 1, 2)]
            plan = sizes(arm, ratio, 8, "cuda")
            records.append(timed_beside(arm, means, ratio, device=CUDA, **plan | columns))
    return records


GROWING = {1.5: 1.2, 4.0: 0.8, 16.0: 0.5, 64.0: 0.3}


@pytest.mark.parametrize(
    ("shares", "noise", "outcome", "words"),
    [
        (GROWING, 1.01, "reproduced", "grows at 1 of 1 batch sizes and vanishes at 1; batch 8: slower than dense"),
        (GROWING | {1.5: 0.93}, 1.01, "reproduced", "within the margin of 10% at ratio 1.5, 1.08x"),
        (GROWING | {1.5: 0.85}, 1.01, "partly", "still 1.18x at ratio 1.5"),
        (GROWING | {64.0: 0.7}, 1.01, "not reproduced", "surely lower at ratio 64 than at 16"),
        (GROWING, 2.0, "not reproduced", "not surely higher at ratio 64 than at 1.5"),
        ({4.0: 0.8, 8.0: 0.6, 16.0: 0.5, 64.0: 0.3}, 1.01, "not tested here", "the smallest at most 2"),
        ({1.5: 1.2, 64.0: 0.3}, 1.01, "not tested here", "It takes 4 ratios"),
    ],
)
def test_the_claim_is_judged_on_a_gpu(shares: dict[float, float], noise: float, outcome: str, words: str) -> None:
    found, text = verdict_of(on_a_gpu(shares, noise))
    assert (found, words in text) == (outcome, True), text


def test_the_claim_is_not_judged_by_what_it_is_not_about() -> None:
    for records, words in (
        (sweep_campaign(CPU), "times of a CPU cannot decide it"),
        ([one for one in sweep_campaign(CPU) if one.measure == "predict"], "No pair of finished cells"),
        (on_a_gpu(GROWING, 1.01, precision="bf16"), "about FP32; these records are bf16"),
        (on_a_gpu(GROWING, 1.01, parameters=5), "not the paper's full-size one"),
        (on_a_gpu(GROWING), "reproduced"),
    ):
        outcome, text = verdict_of(records)
        assert words in text
        assert (outcome == "not tested here") == (words != "reproduced")
    assert "] at ratio 1.5, " in verdict_of(sweep_campaign(CPU))[1]


def test_a_batch_size_that_disagrees_makes_it_partly() -> None:
    steady = on_a_gpu(GROWING | {64.0: 0.7}, 1.01)
    other = [dataclasses.replace(one, batch_size=32, cell_id=f"{one.cell_id}-32") for one in steady]
    outcome, text = verdict_of(on_a_gpu(GROWING, 1.01) + other)
    assert outcome == "partly"
    assert "It grows at 1 of 2 batch sizes" in text
