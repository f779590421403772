"""Verdicts on sizes, ranks and accuracy as a table of cases."""

from __future__ import annotations

import dataclasses

import pytest
from made_up_training import EARLY_SIZE, FULL_SIZE, FULL_SIZE_MIB, other_run, point, ranks, trained

from bench.core.record import Record
from figures.artifact import Artifact
from figures.claims.claims import LEDGER, LedgerError, Verdict, read_claims
from figures.registry import artifacts

LEDGER_CLAIMS = read_claims()
EVERY: dict[str, Artifact] = {name: artifacts()[name] for name in ("fig6", "table_mnli", "table_ranks", "truncation")}
OWNERS = {rule.claim_id: artifact for artifact in EVERY.values() for rule in artifact.rules}


def judged(records: list[Record], *claims: str) -> list[Verdict]:
    """The verdicts on claims, each as an artifact that has a rule for it gives it."""
    return [verdict for claim in claims for _, verdict in OWNERS[claim].judge(records, LEDGER_CLAIMS, [claim])]


def one_point(arm: str, stage: str, target: float | None, right: list[bool], removed: tuple[str, ...] = ()) -> list:
    """A curve of its last point alone."""
    now = {} if arm == "dense" else ranks(1.0 if target is None else target, removed=removed)
    return [point(right, 600 if stage == "early" else 900, stage, now)]


def run(
    arm: str = "comera",
    stage: str = "late",
    target: float | None = None,
    share: float = 0.8,
    examples: int = 1000,
    seed: int = 0,
    wrong_first: int = 0,
    removed: tuple[str, ...] = (),
    **columns,
) -> Record:
    """A finished run; its wrong answers are the last ones, and the ``wrong_first`` first ones besides."""
    right = [i < share * examples and i >= wrong_first for i in range(examples)]
    curve = one_point(arm, stage, target, right, removed)
    if arm == "dense":
        curve = [point(right, 600, "early", {}), *curve]
    sizes = {"stored_mib": FULL_SIZE_MIB} if arm == "dense" else EARLY_SIZE
    return trained(arm, stage, target, curve, seed=seed, **{**sizes, **columns})


def size(ratio: float, layers: float, target: float = 0.2, **columns) -> list[Record]:
    """A late run so many times smaller than dense."""
    cores = EARLY_SIZE["dense_tensorized_mib"] / layers
    sizes = {"stored_mib": FULL_SIZE_MIB / ratio, "tensorized_mib": cores, "size_fraction": 0.19, "size_target": 0.2}
    return [run(target=target, **{**sizes, **columns})]


def pair(worse: int, seeds: int = 1, dense_share: float = 0.8, **columns) -> list[Record]:
    """Dense, and an early stage that answers ``worse`` of 1000 examples wrong besides."""
    records = []
    for seed in range(seeds):
        records.append(run("dense", seed=seed, share=dense_share, **columns))
        records.append(run("comera", "early", seed=seed, share=dense_share, wrong_first=worse, **columns))
    return records


SMALL = {**FULL_SIZE, "layers": 2, "width": 128}
TWO_CLASSES = {"model": {**FULL_SIZE, "classes": 2}, "dense_mib": (66_957_315 - 769) * 4 / 2**20}
MNLI, POOL = {"dataset": "mnli"}, {"dataset": "nli_pool"}
REMOVED = ("blocks.4.attention.query",)

CASES = [
    # claim, records, outcome, a piece of the why
    ("mnli-dense-size", [run("dense")], "by construction", "Within 1%"),
    ("mnli-dense-size", [run("dense", stored_mib=240.0)], "not reproduced", "Not within"),
    ("mnli-dense-size", [run("comera", "early")], "not tested here", "dense is not recorded"),
    ("mnli-early-size", [run("comera", "early")], "by construction", "alone gives 5.68 MiB; 5.95 MiB is asked"),
    ("mnli-early-size", [run("comera", "early", stored_mib=6.0)], "not reproduced", "More than 5.95 MiB"),
    ("mnli-early-ratio", [run("comera", "early")], "by construction", "alone gives 45.0x"),
    ("mnli-early-ratio", [run("comera", "early", stored_mib=FULL_SIZE_MIB / 42.6)], "by construction", "gives 42.6x"),
    ("mnli-early-ratio", [run("comera", "early", stored_mib=FULL_SIZE_MIB / 42.4)], "partly", "Short of 42.5x."),
    ("mnli-early-ratio", [run("comera", "early", stored_mib=FULL_SIZE_MIB / 21)], "not reproduced", "Short of"),
    ("mnli-late02-ratio", size(99, 340), "by construction", "S0 was 0.200"),
    ("mnli-late02-ratio", size(70, 340), "partly", "Short of 79.5x"),
    ("mnli-late02-layers", size(99, 340), "partly", "Short of 360.5x"),
    ("mnli-late02-layers", size(99, 400), "by construction", "alone gives 380x"),
    ("mnli-late02-layers", size(99, 365), "reproduced", "Reaches 360.5x; more than published"),
    ("mnli-late05-layers", size(68, 181, target=0.5), "reproduced", "Reaches 180.5x."),
    ("mnli-late08-ratio", size(52, 81, target=0.8), "reproduced", "Reaches 51.5x"),
    ("mnli-late08-ratio", size(52, 81, target=0.2), "not tested here", "comera, late 0.8 is not recorded"),
    ("mnli-late02-size", size(99, 340, stored_mib=3.24), "reproduced", "At most 3.25 MiB"),
    ("mnli-late02-ratio", [*size(99, 340), *size(60, 340, seed=1)], "partly", "Short of"),  # the worst seed decides
    ("mnli-late02-ratio", size(99, 340, **TWO_CLASSES), "by construction", "alone gives 97.5x"),
    ("mnli-late02-ratio", size(99, 340, model=SMALL, dense_mib=2.8), "not tested here", "734,003 parameters"),
    ("mnli-late02-ratio", size(99, 340, dense_mib=TWO_CLASSES["dense_mib"]), "not tested here", "66,956,546 param"),
    ("mnli-late02-ratio", size(80, 363, share=0.33), "not tested here", "beat guessing among 3 classes on sst2"),
    ("mnli-late02-layers", size(80, 363, share=0.33), "not tested here", "its size says nothing"),
    ("mnli-early-size", [run("comera", "early", share=0.34)], "by construction", "full size at the initial ranks"),
    ("mnli-late02-ratio", size(80, 363, share=0.38), "reproduced", "Reaches"),
    (
        "mnli-late02-ratio",
        [run(), trained("comera", "late", 0.2, status="diverged", message="made up: NaN")],
        "not tested here",
        "comera, late 0.2 is diverged (seed 0: diverged: made up: NaN)",
    ),
    ("mnli-dense-acc", [run("dense", share=0.6)], "not tested here", "about MNLI; on sst2, dense reached 60.0 ["),
    ("mnli-dense-acc", [run("dense", share=0.6, **POOL)], "not tested here", "on nli_pool"),
    ("mnli-dense-acc", [run("dense", share=0.6, **MNLI)], "not tested here", "Inconclusive: one seed"),
    (
        "mnli-dense-acc",
        [run("dense", share=0.64, seed=s, examples=9000, **MNLI) for s in range(3)],
        "reproduced",
        "lie above 60.2 %",
    ),
    (
        "mnli-dense-acc",
        [run("dense", share=0.6, seed=s, examples=9000, **MNLI) for s in range(3)],
        "partly",
        "Only one bound",
    ),
    (
        "mnli-dense-acc",
        [run("dense", share=0.5, seed=s, examples=9000, **MNLI) for s in range(3)],
        "not reproduced",
        "Neither bound",
    ),
    ("mnli-late02-acc", size(99, 340, share=0.6), "not tested here", "comera, late 0.2 reached 60.0"),
    ("mnli-same-accuracy", pair(0), "not tested here", "of +0.0 [+0.0, +0.0] points, inconclusive with one"),
    ("mnli-same-accuracy", pair(5, **MNLI), "not tested here", "Inconclusive: one seed, 3 are needed"),
    ("mnli-same-accuracy", pair(5, seeds=2, **MNLI), "not tested here", "Inconclusive: 2 seeds"),
    ("mnli-same-accuracy", pair(5, seeds=3, **MNLI), "reproduced", "lie above -2 points"),
    ("mnli-same-accuracy", pair(5, seeds=3, dense_share=0.5, **MNLI), "not tested here", "Void: dense itself, at 50.0"),
    ("mnli-same-accuracy", pair(20, seeds=3, **MNLI), "partly", "Only one bound"),
    ("mnli-same-accuracy", pair(100, seeds=3, **MNLI), "not reproduced", "Neither bound"),
    ("mnli-same-accuracy", pair(5, seeds=3, **POOL), "not tested here", "about MNLI; comera, early reached 79.5"),
    ("mnli-same-accuracy", pair(5, seeds=3, dense_share=0.5, **POOL), "not tested here", "Void: dense itself, at 50.0"),
    ("mnli-same-accuracy", pair(5, dense_share=0.53, dataset="mnli_12k"), "not tested here", "not surely beat the bag"),
    ("mnli-same-accuracy", pair(5, dense_share=0.5), "not tested here", "about MNLI"),  # no probe for sst2
    ("mnli-same-accuracy", pair(5, model=SMALL, dense_mib=2.8), "not tested here", "734,003 parameters"),
    ("mnli-same-accuracy", [run("dense")], "not tested here", "comera, early is not recorded"),
    ("mnli-same-accuracy", [run("comera", "early")], "not tested here", "dense is not recorded"),
    ("mnli-same-accuracy", [run("comera", "early"), run("dense", seed=1)], "not tested here", "of the same seed"),
    ("ranks-removed", [run(target=0.2, removed=REMOVED)], "reproduced", "in 1 of 1 seed(s)"),
    ("ranks-removed", [run(target=0.2, removed=REMOVED, share=0.33)], "not tested here", "guessing among 3 classes"),
    ("ranks-removed", [run(target=0.5, removed=REMOVED), run(target=0.2)], "reproduced", "in 1 of 1 seed(s)"),
    ("ranks-removed", [run(target=0.2, removed=REMOVED), run(target=0.2, seed=1)], "partly", "in 1 of 2 seed(s)"),
    ("ranks-removed", [run(target=t) for t in (0.8, 0.5, 0.2)], "not reproduced", "in 0 of 1 seed(s)"),
    ("ranks-removed", [run(target=0.8)], "not tested here", "Not finished: comera, late 0.5 is not recorded"),
    (
        "ranks-removed",
        [run(target=0.2, removed=("blocks.3.attention.query",)), run(target=0.8), run(target=0.5)],
        "not reproduced",
        "in 0 of 1",
    ),
    ("ranks-removed", [run(target=0.2, removed=REMOVED, model=SMALL, dense_mib=2.8)], "not tested here", "734,003"),
    ("ranks-removed", [run("dense")], "not tested here", "No late stage finished"),
]


@pytest.mark.parametrize(("claim", "records", "outcome", "why"), CASES)
def test_verdict(claim: str, records: list[Record], outcome: str, why: str) -> None:
    [verdict] = judged(records, claim)
    assert verdict.outcome == outcome, verdict.why
    assert why in verdict.why
    assert "\n" not in str(verdict)
    if verdict.outcome not in ("not tested here",):
        assert verdict.ours_text != "none"


@pytest.mark.parametrize(("probe", "outcome"), [(50.0, "reproduced"), (95.0, "not tested here")])
def test_a_size_counts_only_for_a_model_above_the_probe_of_its_data(probe: float, outcome: str) -> None:
    found = {"best": "bag of words", "probes": {"bag of words": {"metrics": {"accuracy": probe}}}}
    record = dataclasses.replace(
        run("dense"), experiment="probe", measure="probe", samples=found, metrics={"accuracy": probe}
    )
    [verdict] = judged([*size(80, 363), record], "mnli-late02-layers")
    assert verdict.outcome == outcome, verdict.why
    assert (f"bag-of-words probe ({probe:.1f} %)" in verdict.why) == (outcome == "not tested here")


def test_only_mnli_is_called_mnli() -> None:
    for dataset in ("sst2", "nli_pool", "mnli_12k"):
        lines = map(str, judged(pair(5, dataset=dataset), "mnli-same-accuracy", "mnli-early-acc"))
        for line in lines:
            assert f"on {dataset}" in line
            assert "MNLI" not in line.replace("The claim is about MNLI", "")


def test_ours_carry_their_interval_and_say_what_they_are() -> None:
    [verdict] = judged(pair(20), "mnli-same-accuracy")
    assert verdict.ours_text == "-2.0 [-2.9, -1.2] points (early less dense, sst2, one seed, paired bootstrap)"
    [verdict] = judged(size(99, 340), "mnli-late02-layers")
    assert verdict.ours_text == "340x (tensorized layers, sst2, one seed)"


def test_nothing_of_the_small_preset_decides_a_claim() -> None:
    small = [dataclasses.replace(r, dense_mib=2.8) for r in pair(5, seeds=3, **MNLI)]
    found = judged(small, *OWNERS)
    assert len(found) == len(OWNERS)
    assert {verdict.outcome for verdict in found} == {"not tested here"}


def test_another_workload_touches_no_claim_about_the_encoder() -> None:
    runs = [other_run(arm, [0.7, 0.8], experiment="accuracy", dataset="mnli") for arm in ("dense", "comera")]
    assert judged(runs, *OWNERS) == []


def test_every_claim_of_these_tables_and_figures_is_judged_in_one() -> None:
    rows = [line.split(",") for line in LEDGER.read_text(encoding="utf-8").splitlines()]
    rules = {name: [rule.claim_id for rule in artifact.rules] for name, artifact in EVERY.items()}
    for name, claims in rules.items():
        assert {row[0] for row in rows if row[1] == name} <= set(claims)
        assert len(claims) == len(set(claims))
    assert "mnli-same-accuracy" in rules["table_mnli"]  # which it shows beside its own
    assert set(rules["truncation"]) < set(rules["table_mnli"])
    assert set(OWNERS) <= set(LEDGER_CLAIMS)


def test_a_claim_that_the_ledger_lacks_is_an_error() -> None:
    with pytest.raises(LedgerError, match="has no claim 'mnli-dense-size'"):
        EVERY["table_mnli"].render(pair(0), {})
