"""Verdicts as a table of cases, and the ledger's file."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from made_up_records import ARMS, CPU, CUDA, campaign, record, timed

from bench.core.record import Record
from figures.artifacts import fig1
from figures.artifacts.fig1 import PAPER_BATCHES
from figures.claims.claims import LEDGER, LedgerError, Verdict, read_claims
from figures.records.sizes import FULL_SIZE_PARAMETERS

CLAIMS = read_claims()
RULES = {rule.claim_id: rule for rule in fig1.RULES}


def judged(records: list[Record], claim: str) -> Verdict:
    """The verdict of the last page that the records make."""
    *_, (_, verdict) = fig1.ARTIFACT.judge(records, CLAIMS, {claim})
    return verdict


def times(ratios: dict[int, float], rival: str, device: str = CUDA, spread: float = 0.01, **columns) -> list[Record]:
    """CoMERA and one rival, whose time is ``ratios[batch]`` times CoMERA's; with CUDA Graph on a GPU."""
    rounds = [10.0, 12.0, 11.0, 13.0, 14.0]
    columns = {"cuda_graph": device == CUDA} | columns
    records = []
    for batch, ratio in ratios.items():
        records.append(timed("comera", rounds, batch, device=device, **columns))
        noisy = [ms * (ratio + spread * (i - 2)) for i, ms in enumerate(rounds)]
        records.append(timed(rival, noisy, batch, device=device, **columns))
    return records


def peaks(ratios: dict[int, float], rival: str, device: str = CPU, base: float = 1e6, **more) -> list[Record]:
    """Predictions for cuda, where the rival's peak is ``ratios[batch]`` times CoMERA's, which is ``base`` MiB."""
    records = []
    for batch, ratio in ratios.items():
        for arm, size in (("comera", base), (rival, base * ratio)):
            columns = {"predicted_for": "cuda", "peak_memory_predicted_mib": size, **more}
            records.append(record(arm, batch, measure="predict", device=device, **columns))
    return records


EAGER = "The claim is about captured steps; these ran without CUDA Graph."
ALL = PAPER_BATCHES
LARGE = (32, 64, 128)

CASES = [
    # claim, records, outcome, a piece of the why
    ("time-epoch-speedup", times(dict.fromkeys(ALL, 2.5), "dense"), "reproduced", "4 of 4"),
    ("time-epoch-speedup", times(dict.fromkeys(ALL, 1.6), "dense"), "reproduced", "reach 1.5x"),
    ("time-epoch-speedup", times(dict.fromkeys(ALL, 8.0), "dense"), "partly", "too good to be comparable; judged"),
    ("time-epoch-speedup", times({1: 5.9, 32: 5.9, 64: 5.9, 128: 5.0}, "dense"), "reproduced", "; larger than publ"),
    ("time-epoch-speedup", times({1: 2.5, 32: 2.5, 64: 8.0, 128: 2.5}, "dense"), "partly", "too good to be comparable"),
    ("time-epoch-speedup", times(dict.fromkeys(ALL, 1.2), "dense"), "partly", "4 short of it but above 1"),
    ("time-epoch-speedup", times({1: 2.5, 32: 2.5, 64: 2.5, 128: 0.9}, "dense"), "partly", "1 surely below 1.5x"),
    ("time-epoch-speedup", times(dict.fromkeys(ALL, 0.8), "dense"), "not reproduced", "4 surely below 1.5x"),
    ("time-epoch-speedup", times({1: 0.8, 32: 1.2}, "dense"), "partly", "1 short of it but above 1, 1 surely below"),
    ("time-epoch-speedup", times(dict.fromkeys(ALL, 1.4), "dense", spread=0.4), "not tested here", "leave it open"),
    (
        "time-epoch-speedup",
        times({1: 0.8}, "dense") + times({32: 1.4}, "dense", spread=0.4),
        "not tested here",
        "2 could not be formed, 1 surely below 1.5x, 1 undecided",
    ),
    ("time-epoch-speedup", times({1: 2.5, 32: 2.5}, "dense"), "partly", "2 could not be formed"),
    ("time-epoch-speedup", times(dict.fromkeys(ALL, 2.5), "dense", CPU), "not tested here", "about a GPU"),
    ("time-epoch-speedup", times({1: 2.5}, "dense", precision="bf16"), "not tested here", "these records are bf16"),
    ("time-epoch-speedup", times({1: 2.5}, "dense", cuda_graph=False), "not tested here", EAGER),
    ("time-epoch-speedup", times({1: 2.5}, "dense", compile=True), "not tested here", "ran with torch.compile"),
    ("galore-all-batches", times({32: 2.5}, "galore", cuda_graph=False), "not tested here", EAGER),
    ("galore-all-batches", peaks({32: 2.5}, "galore", CUDA, driver="1"), "not tested here", "none were timed"),
    ("time-epoch-speedup", times({1: 2.5}, "dense", parameters=1234), "not tested here", "full-size"),
    ("time-epoch-speedup", times({1: 2.5}, "dense", parameters=FULL_SIZE_PARAMETERS), "partly", "3 could not"),
    ("galore-time-b1", times({1: 2.0}, "galore"), "reproduced", "1 of 1"),
    ("galore-time-b1", times({32: 2.0}, "galore"), "not tested here", "No pair"),
    ("galore-memory-b1", peaks({1: 9.2}, "galore"), "predicted", "for cuda, predicted"),
    ("galore-memory-b1", peaks({1: 9.2}, "galore", base=100.0), "partly", "2 of 3 ratios reach 8.5x"),
    ("galore-memory-b1", peaks({1: 8.4}, "galore"), "partly", "3 short of it but at least 4.25x"),
    ("galore-memory-b1", peaks({1: 4.2}, "galore"), "not reproduced", "3 surely below 8.5x"),
    ("galore-memory-b1", peaks({1: 18.5}, "galore"), "partly", "too good to be comparable"),
    ("galore-memory-b1", peaks({1: 0.9}, "galore"), "not reproduced", "for cuda, predicted"),
    ("lte-time", times(dict.fromkeys(LARGE, 3.0), "lte"), "reproduced", "3 of 3"),
    ("lte-memory", peaks(dict.fromkeys(LARGE, 1.1), "lte"), "predicted", "lie above 1"),
    ("lte-memory", peaks({32: 1.1, 64: 1.0, 128: 0.9}, "lte"), "partly", "6 surely not above 1"),
    ("lte-memory", peaks(dict.fromkeys(LARGE, 1.0), "lte"), "not reproduced", "9 surely not above 1"),
    ("lte-memory", peaks({32: 1.1, 64: 1.1}, "lte"), "partly", "1 could not be formed"),
    (
        "galore-all-batches",
        times(dict.fromkeys(LARGE, 2.0), "galore") + peaks(dict.fromkeys(LARGE, 1.2), "galore", CUDA),
        "reproduced",
        "12 of 12",
    ),
    (
        "galore-all-batches",
        times(dict.fromkeys(LARGE, 2.0), "galore") + peaks(dict.fromkeys(LARGE, 0.9), "galore", CUDA),
        "partly",
        "3 of 12",
    ),
    ("galore-all-batches", peaks(dict.fromkeys(LARGE, 1.2), "galore", CPU), "not tested here", "about a GPU"),
]


@pytest.mark.parametrize(("claim", "records", "outcome", "why"), CASES)
def test_verdict(claim: str, records: list[Record], outcome: str, why: str) -> None:
    verdict = judged(records, claim)
    assert verdict.outcome == outcome, verdict.why
    assert why in verdict.why
    assert "\n" not in str(verdict)


@pytest.mark.parametrize(
    ("forms", "outcome", "words"),
    [
        ({}, "not tested here", "nor a stronger form of galore is recorded"),
        ({"galore:per_layer": 8.6}, "predicted", "galore:per_layer / comera"),
        ({"galore:per_layer": 8.6, "galore+checkpoint": 5.0}, "partly", "galore+checkpoint / comera"),
        ({"galore:per_layer": 8.6, "comera:lean": 0.5}, "predicted", "galore:per_layer / comera:lean"),
        ({"galore:per_layer": 30.0}, "predicted", "galore / comera"),
        ({"galore+checkpoint": 0.9}, "not reproduced", "galore+checkpoint / comera"),
        ({"low_rank@size": 0.9}, "not reproduced", "low_rank@size / comera"),
        ({"galore:per_layer": 8.6, "low_rank@rank": 0.9}, "predicted", "galore:per_layer / comera"),
    ],
)
def test_the_fair_baseline_is_of_each_side_the_form_that_takes_least(
    forms: dict[str, float], outcome: str, words: str
) -> None:
    published = peaks({1: 9.2}, "galore")
    others = [one for arm, share in forms.items() for one in peaks({1: share}, arm)[1:]]
    verdict = judged(published + others, "galore-memory-b1")
    assert verdict.outcome == "predicted"
    assert verdict.fair is not None
    assert verdict.fair_outcome == outcome, verdict.fair
    assert words in f"{verdict.fair.ours_text} {verdict.fair.why}"
    assert f"With the fair baseline: {outcome}" in str(verdict)


def test_allocated_and_reserved_memory_both_decide() -> None:
    def on_gpu(reserved: float) -> list[Record]:
        sizes = {"comera": (100.0, 200.0), "galore": (900.0, reserved)}
        return [
            timed(
                arm,
                [ms] * 5,
                device=CUDA,
                cuda_graph=True,
                peak_memory_allocated_mib=one,
                peak_memory_reserved_mib=other,
            )
            for ms, (arm, (one, other)) in zip((10.0, 20.0), sizes.items(), strict=True)
        ]

    assert judged(on_gpu(1800.0), "galore-memory-b1").outcome == "reproduced"
    verdict = judged(on_gpu(900.0), "galore-memory-b1")
    assert verdict.outcome == "partly"
    assert "reserved on CUDA" in verdict.ours_text


def test_one_block_decides_nothing() -> None:
    alone = [timed(arm, [ms], device=CUDA, cuda_graph=True) for arm, ms in (("comera", 1.0), ("galore", 2.0))]
    verdict = judged(alone, "galore-time-b1")
    assert verdict.outcome == "not tested here"
    assert "blocks" in verdict.why


def test_eager_times_are_printed_though_they_decide_nothing() -> None:
    verdict = judged(campaign(CUDA), "time-epoch-speedup")
    assert (verdict.outcome, verdict.why) == ("not tested here", EAGER)
    assert {point.batch_size for point in verdict.ours} == set(PAPER_BATCHES)
    assert "on CUDA, CUDA Graph off" in verdict.ours_text
    assert judged(campaign(CUDA), "lte-memory").outcome in ("reproduced", "predicted")


@pytest.mark.parametrize(
    ("eager", "outcome", "words"),
    [
        ({}, "reproduced", "on CUDA, CUDA Graph off / CUDA Graph on"),
        ({"precision": "bf16"}, "not tested here", "No pair"),
        ({"compile": True}, "not tested here", "No pair"),
        ({"data_hash": "another"}, "not tested here", "No pair"),
        ({"config_json": '{"method_settings": {"rank": 2}}'}, "not tested here", "No pair"),
        ({"status": "oom"}, "not tested here", "No pair"),
        ({"batch": 32}, "not tested here", "No pair"),
    ],
)
def test_a_rival_that_cannot_be_captured_takes_part_without(eager: dict, outcome: str, words: str) -> None:
    captured = timed("comera", [10.0, 11.0], device=CUDA, cuda_graph=True)
    refused = record("galore", device=CUDA, cuda_graph=True, status="unsupported", message="made up")
    other = timed("galore", [20.0, 22.0], device=CUDA, pairing="elsewhere", **eager)
    judged = fig1.ARTIFACT.judge([captured, refused, other], CLAIMS, {"galore-time-b1"})
    [verdict] = [verdict for place, verdict in judged if place == "CUDA Graph"]
    assert verdict.outcome == outcome, verdict.why
    assert words in verdict.why
    assert all("unpaired" in str(point) for point in verdict.ours)


def test_cpu_times_are_printed_though_they_decide_nothing() -> None:
    verdict = judged(campaign(CPU), "time-epoch-speedup")
    assert verdict.outcome == "not tested here"
    assert {point.batch_size for point in verdict.ours} == {1, 8, 16}
    assert "on a CPU" in verdict.ours_text
    assert "[" in verdict.ours_text


def test_measured_peaks_go_before_predicted_ones() -> None:
    records = campaign(CUDA)
    records = [
        dataclasses.replace(r, peak_memory_allocated_mib=9999.0) if r.arm == "galore" and r.measure == "run" else r
        for r in records
    ]
    verdict = judged(records, "galore-memory-b1")
    assert verdict.ours[0].ratio.value > 50
    assert "allocated on CUDA" in verdict.why


def test_transcriptions_from_memory_say_so() -> None:
    lines = {v.claim.id: str(v) for _, v in fig1.ARTIFACT.judge(campaign(CPU), CLAIMS, CLAIMS)}
    assert "unconfirmed transcription" in lines["lte-time"]
    assert "unconfirmed" not in lines["galore-memory-b1"]
    assert "Published 2-3x (stated)" in lines["time-epoch-speedup"]
    assert "Published 9x (stated)" in lines["galore-memory-b1"]
    assert "Published yes (stated)" in lines["lte-memory"]


def test_every_rule_has_its_claim_and_every_claim_of_fig1_its_rule() -> None:
    known = set(RULES)
    assert known <= set(CLAIMS)
    text = LEDGER.read_text(encoding="utf-8").splitlines()
    assert {line.split(",")[0] for line in text if line.split(",")[1] in ("fig1", "abstract")} <= known


def test_every_kind_of_arm_the_rules_compare_is_an_arm() -> None:
    words = " ".join(rule.quantity for rule in fig1.RULES)
    assert set(re.findall(r"of (\w+) / comera", words)) == {"dense", "galore", "lte"} <= set(ARMS)


HEAD = "id,artifact,workload,quantity,method,setting,kind,value_low,value_high,unit,status,note\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (HEAD + "a,fig1,encoder,q,comera,s,value,two,2,x,stated,\n", "line 2: not a claim"),
        (HEAD + "a,fig1,encoder,q,comera,s,value,2,2,x,guessed,\n", "status is 'guessed'; allowed"),
        (HEAD + "a,fig1,encoder,q,comera,s,number,2,2,x,stated,\n", "kind is 'number'; allowed: value, range"),
        (HEAD + "a,fig1,encoder,q,comera,s,value,,,x,stated,\n", "line 2: kind is 'value'; a value or range has"),
        (HEAD + "a,fig1,encoder,q,comera,s,statement yes,1,1,x,stated,\n", "a statement neither"),
        (HEAD + 2 * "a,fig1,encoder,q,comera,s,value,2,2,x,stated,\n", "line 3: a second claim 'a'"),
        ("id,quantity\na,b\n", "not a claim"),
    ],
)
def test_a_malformed_ledger_is_named_with_its_line(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "claims.csv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(LedgerError, match=message):
        read_claims(path)


def test_a_missing_claim_or_ledger_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="has no claim 'time-epoch-speedup'"):
        fig1.ARTIFACT.render(campaign(CPU), {})
    with pytest.raises(LedgerError, match="not a readable ledger"):
        read_claims(tmp_path / "none.csv")
