"""Training in lower precisions: what is compared with what, when a loss counts as the same, and what ran."""

from __future__ import annotations

import dataclasses
import functools

import pytest
from made_up_dlrm import trained_clicks
from made_up_training import SMALL, SMALL_MIB, curve, other_run, trained

from figures.artifacts import fig14
from figures.artifacts.tables import dlrm_fp8
from figures.claims.claims import read_claims
from figures.page.drawn import Caption


def in_precision(arm, precision, last, seed=0, probe=2.6, **columns):
    """A run whose loss ends at ``last``."""
    one = other_run(arm, (3.0, last), metric="loss", seed=seed)
    words = {**one.workload_words, "metric": {**one.metric, "unit": "nats", "probe": probe}}
    changes = {"experiment": "fig14", "workload": "code", "dataset": "python", "workload_words": words}
    cell = f"{arm}-{precision}-{seed}"
    return dataclasses.replace(one, precision=precision, cell_id=cell, **{**changes, **columns})


def runs(fp8=2.005, seeds=(0, 1, 2), **columns):
    stored = {"samples": "stored", "error": 0.026}
    in_one = functools.partial(in_precision, **columns)
    found = []
    for seed in seeds:
        for arm in ("comera", "dense"):
            found += [in_one(arm, "fp32", 2.0, seed), in_one(arm, "bf16", 2.001, seed)]
            found.append(in_one(arm, "fp8", fp8, seed, arithmetic="12 layers: FP8 products, emulated"))
        keeping = in_one("comera:lean_fp8", "bf16", 2.002, seed)
        found.append(dataclasses.replace(keeping, samples={**keeping.samples, "stored": [stored]}))
    return found


def page_of(records, artifact=fig14.ARTIFACT):
    [page] = artifact.render(records, read_claims())
    return page


def test_products_are_compared_with_fp32_and_storage_with_the_arm_that_stores_nothing_so():
    [page] = fig14.select(runs())
    against = {line.name: line.compared_with for line in page.lines}
    assert against["comera, fp32"] is None
    assert against["comera, fp8"] == ("comera", "fp32")
    assert against["comera:lean_fp8, bf16"] == ("comera", "bf16")
    apart = {line.name: page.less(line, page.metric) for line in page.lines if line.compared_with}
    assert apart["comera, fp8"].value == pytest.approx(0.005, rel=1e-3)
    assert apart["comera:lean_fp8, bf16"].value == pytest.approx(0.001, rel=1e-3)


def test_an_orthogonal_start_is_compared_with_itself_and_decides_nothing_about_the_paper_s():
    """It is far off here, and the verdict on the paper's start stands."""
    ends = {("", "fp32"): 1.8, ("", "bf16"): 1.8, ("", "fp8"): 2.4, ("_lean", "fp32"): 1.8, ("_lean_fp8", "bf16"): 1.8}
    further = [
        in_precision(f"comera:orthogonal{form}", precision, end, seed)
        for (form, precision), end in ends.items()
        for seed in (0, 1, 2)
    ]
    [page] = fig14.select([*runs(), *further])
    against = {line.name: line.compared_with for line in page.lines}
    assert against["comera:orthogonal, fp8"] == ("comera:orthogonal", "fp32")
    assert against["comera:orthogonal_lean, fp32"] == ("comera:orthogonal", "fp32")
    assert against["comera:orthogonal_lean_fp8, bf16"] == ("comera:orthogonal", "bf16")
    judgement = fig14.judge(None, page, page.lines)
    assert judgement.outcome == "reproduced"
    assert any(one.heading.startswith("comera:orthogonal, fp8 less fp32") for one in judgement.ours)


def test_the_page_says_what_ran():
    [page] = fig14.select(runs())
    ran = fig14.about(page, fig14.table(page))["ran"]
    assert (["comera, fp8", "dense, fp8"], "12 layers: FP8 products, emulated") in ran
    assert any(names == ["comera:lean_fp8, bf16"] and "an error of 2.6%" in words for names, words in ran)


def test_the_table_has_what_is_compared_and_its_margin():
    [page] = fig14.select(runs())
    table = fig14.table(page).set_index(["arm", "precision"])
    products, storage = table.loc[("comera", "fp8")], table.loc[("comera:lean_fp8", "bf16")]
    assert (products["compared_with"], products["margin"]) == ("comera, fp32", 0.02)
    assert (storage["compared_with"], storage["margin"]) == ("comera, bf16", 0.01)
    assert (products["less"], storage["less"]) == pytest.approx((0.005, 0.001), rel=1e-3)
    assert products["less_low"] <= products["less"] <= products["less_high"]
    assert (products["loss"], products["seeds"], storage["stored_error"]) == (pytest.approx(2.005), "0 1 2", 0.026)
    shown = page_of(runs()).table.set_index(["arm", "precision"])
    assert shown.loc[("comera", "fp8"), "less, nats"].startswith("+0.00500")
    assert shown.loc[("comera", "fp32"), "less, nats"] == "-"


@pytest.mark.parametrize(
    ("records", "outcome"),
    [
        (runs(), "reproduced"),
        (runs(fp8=2.2), "not reproduced"),
        (runs(seeds=(0, 1)), "not tested here"),
        (runs(probe=2.0), "not tested here"),  # whose interval holds the loss
        ([one for one in runs() if one.precision != "fp8"], "not tested here"),
    ],
)
def test_equal_is_within_the_margin_over_three_seeds(records, outcome):
    [page] = fig14.select(records)
    assert fig14.judge(None, page, page.lines).outcome == outcome


def with_control(apart):
    return [*runs(), *(in_precision("comera:lean", "fp32", 2.0 + apart, seed) for seed in (0, 1, 2))]


@pytest.mark.parametrize(
    ("apart", "outcome"), [(0.001, "reproduced"), (0.1, "not tested here"), (-0.1, "not tested here")]
)
def test_what_rounding_alone_does_bounds_what_can_be_told(apart, outcome):
    [page] = fig14.select(with_control(apart))
    [control] = [line for line in page.lines if line.is_control]
    assert (control.name, control.compared_with) == ("comera:lean, fp32", ("comera", "fp32"))
    judged = fig14.judge(None, page, page.lines)
    assert judged.outcome == outcome
    assert ("rounding alone" in judged.why) == (outcome == "not tested here")
    said = fig14.about(page, fig14.table(page))
    assert said["controls"] == ["comera:lean, fp32"]
    assert said["noise"].startswith(f"{apart:+.3f}")
    assert not any("a control" in note for note in page_of(runs()).notes)
    assert any("a control" in note for note in page_of(with_control(apart)).notes)
    [other] = fig14.select([*runs(), in_precision("dense:sparse", "fp32", 2.5)])  # another optimizer, no control
    assert not any(line.is_control for line in other.lines)


@pytest.mark.parametrize(("probe", "below"), [(2.6, 0), (2.0, 7)])
def test_what_does_not_surely_beat_the_probe_is_named(probe, below):
    [page] = fig14.select(runs(probe=probe))
    standing = fig14.about(page, fig14.table(page))["beside_probe"]
    assert (len(standing.below), len(standing.above)) == (below, 7 - below)
    said = [note for note in page_of(runs(probe=probe)).notes if "unigrams" in note]
    assert said == [f"No run surely beats the unigrams ({probe:.3f} nats), so differences prove nothing."] * bool(below)


def test_a_smaller_encoder_has_a_page_of_its_own_and_decides_nothing():
    def in_fp8(experiment, **columns):
        return [
            trained(
                "comera",
                curve=curve(seed, "comera", 0.9),
                seed=seed,
                precision=precision,
                experiment=experiment,
                cell_id=f"{experiment}-{precision}-{seed}",
                **columns,
            )
            for seed in range(3)
            for precision in ("fp32", "fp8")
        ]

    full, small = fig14.select([*in_fp8("fig14_sst2"), *in_fp8("fig14_sst2_small", model=SMALL, dense_mib=SMALL_MIB)])
    if full.suffix != ("encoder", "sst2", "6x768"):
        full, small = small, full
    assert small.suffix == ("encoder", "sst2", "2x128")
    assert fig14.judge(None, full, full.lines).outcome == "reproduced"
    judged = fig14.judge(None, small, small.lines)
    assert judged.outcome == "not tested here"
    assert judged.why.startswith("The dense model of these runs has 735,491 parameters")
    of_small = in_fp8("fig14_sst2_small", model=SMALL, dense_mib=SMALL_MIB)
    titles = [page_of(records).title for records in (in_fp8("fig14_sst2"), of_small)]
    assert [title.endswith(", a smaller encoder") for title in titles] == [False, True]


@pytest.mark.slow
def test_the_picture_has_a_curve_per_line_and_the_same_bytes_twice():
    page, again = page_of(runs()), page_of(runs())
    [picture] = [name for name in page.files if name.endswith(".png")]
    assert page.files[picture] == again.files[picture]
    [selection] = fig14.select(runs())
    figure = fig14.draw(selection, fig14.table(selection), Caption("made up", ()))
    assert [len(axes.lines) for axes in figure.axes] == [8, 7]  # and the probe
    looks = {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in figure.axes[0].lines[1:]}
    assert len({(colour, marker) for colour, _, marker in looks}) == 3  # arms
    by_arm = [
        [line.get_dash_capstyle(), str(line._dash_pattern)] for line in figure.axes[0].lines if line.get_marker() == "o"
    ]
    assert len(by_arm) == len({tuple(dashes) for dashes in by_arm}) == 3  # precisions


def test_runs_of_fewer_steps_are_left_out_with_words():
    short = other_run("dense", (3.0, 2.5), metric="loss")
    config = short.config_json.replace('"steps": 100', '"steps": 60')
    words = {**short.workload_words, "metric": {**short.metric, "unit": "nats"}}
    short = dataclasses.replace(
        short,
        experiment="fig14",
        workload="code",
        dataset="python",
        precision="fp32",
        cell_id="short",
        config_json=config,
        workload_words=words,
    )
    [page] = fig14.select([*runs(), short])
    assert all(run.cell_id != "short" for line in page.lines for run in line.runs.values())
    assert page.left_out[0].startswith("1 run(s) of fewer than ")


def clicks(dataset, worse=0.0):
    precisions = {"fp32": 0.0, "fp8": worse}
    return [
        trained_clicks(
            "comera",
            seed,
            shift,
            dataset,
            precision=precision,
            experiment="table_dlrm_fp8",
            cell_id=f"{precision}-{seed}",
        )
        for precision, shift in precisions.items()
        for seed in (0, 1, 2)
    ]


@pytest.mark.parametrize(
    ("dataset", "worse", "outcome"),
    [
        ("criteo", 0.0, "reproduced"),
        ("criteo", 1.0, "not reproduced"),
        ("synthetic_low_rank", 0.0, "not tested here"),
    ],
)
def test_dlrm_in_fp8_is_judged_on_criteo_alone(dataset, worse, outcome):
    page = page_of(clicks(dataset, worse), dlrm_fp8.ARTIFACT)
    [verdict] = page.verdicts
    assert verdict.outcome == outcome
    assert list(page.table["precision"]) == ["fp32", "fp8"]
    [selection] = dlrm_fp8.ARTIFACT.select(clicks(dataset, worse))
    table = dlrm_fp8.table(selection).set_index("precision")
    assert table.loc["fp8", "nce_less_fp32"] == pytest.approx(worse, abs=1e-5)
    assert table.loc["fp8", "accuracy_less_fp32"] == pytest.approx(-worse, abs=1e-5)
    assert table.loc["fp8", "auc"] == pytest.approx(0.76 - worse, abs=0.01)
