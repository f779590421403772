"""Notes that several pages share: each is on every page that it concerns, once, and on no other."""

from __future__ import annotations

import dataclasses
import re

import pytest
from made_up_code import WORDS
from made_up_records import record, timed
from made_up_scaling import measured, varied
from made_up_training import pages_of, ratio_campaign, text_of

from bench.core.record import Record
from figures.claims.claims import read_claims
from figures.registry import artifacts

NOT_FUSED = re.compile(r"GaLore's .*fused")


def _profile(arm: str) -> Record:
    kinds = [{"kind": "gemm", "name": "made up", "ms": 1.0, "launches": 1, "moved_mib": 1.0}]
    samples = {"kinds": kinds, "costliest": kinds, "busy_ms": 1.0, "step_ms": [1.0]}
    return record(arm, measure="profile", experiment="profile", samples=samples, step_time_median_ms=1.0)


#: By page, a timed step of an arm that it shows.
TIMED = {
    "fig1": lambda arm: timed(arm, [1.0, 2.0]),
    "fig7": lambda arm: timed(arm, [1.0, 2.0], experiment="fig7"),
    "fig10": lambda arm: timed(arm, [1.0, 2.0], experiment="fig10_time", workload="code", workload_words=WORDS),
    "activations": lambda arm: timed(arm, [1.0, 2.0], experiment="activations_time"),
    "scaling": lambda arm: measured(arm, 100.0),
    "exchange_settings": lambda arm: varied(measured(arm, 100.0), "scaling_buckets", 1.0, bucket_mib=1.0),
    "table_profile": _profile,
}


@pytest.mark.parametrize("name", TIMED)
def test_where_galore_is_timed_its_optimizer_is_said_not_to_be_fused(name: str) -> None:
    def said(*records: Record) -> int:
        [page] = artifacts()[name].render(records, read_claims())
        return sum(NOT_FUSED.match(note) is not None for note in page.notes)

    comera, galore = TIMED[name]("comera"), TIMED[name]("galore")
    form = dataclasses.replace(galore, variant="per_layer", cell_id="made up")
    failed = dataclasses.replace(galore, status="oom", message="made up")
    assert [said(comera, galore), said(comera, form), said(comera, failed), said(comera)] == [1, 1, 0, 0]


def _with_products(record: Record, products: list[float], **more: float) -> Record:
    """The record with these calibrations, one per block."""
    blocks = [{"ms": [1.0], "disturbed": False, "block": place, **more} for place in range(len(products))]
    blocks = [{**block, "calibration_ms": ms} for block, ms in zip(blocks, products, strict=True)]
    return dataclasses.replace(record, samples={**record.samples, "blocks": blocks})


#: Pages whose times come in blocks with calibration products; a profile has none.
BLOCKS = [name for name in TIMED if name != "table_profile"]


@pytest.mark.parametrize("name", BLOCKS)
def test_every_page_of_times_says_for_which_of_them_the_machine_was_busy(name: str) -> None:
    def said(*records: Record) -> list[str]:
        [page] = artifacts()[name].render(records, read_claims())
        assert all(text_of(page, ".md").count(note) == 1 for note in page.notes if "busy" in note)
        return [note for note in page.notes if "busy" in note]

    comera, galore = (dataclasses.replace(TIMED[name](arm), machine="abc") for arm in ("comera", "galore"))
    quick, slow = _with_products(comera, [1.0, 1.1, 1.0]), _with_products(galore, [2.1, 2.0, 2.0])
    assert said(quick, _with_products(galore, [1.1, 1.2, 1.1])) == []
    [note] = said(quick, slow)
    assert "galore" in note
    assert "comera" not in note
    assert "1 of 2" in note
    assert "2.0 times" in note
    assert said(quick, dataclasses.replace(slow, status="oom", message="made up")) == []
    assert said(quick, dataclasses.replace(slow, machine="other")) == []
    [alone] = said(_with_products(comera, [2.0, 2.0, 2.0], calibration_cpu_ms=1.0))  # no other record to compare with
    assert "comera" in alone


def test_a_pareto_page_says_so_of_the_times_that_it_is_lent() -> None:
    runs = [one for one in ratio_campaign() if one.arm in ("dense", "comera")]
    lent = record("dense", 32, experiment="code_ratios_time", dataset="synthetic", precision="bf16", machine="abc")
    lent = dataclasses.replace(lent, config_json=runs[0].config_json)
    quick, slow = _with_products(lent, [1.0] * 3), _with_products(lent, [2.0] * 3, calibration_cpu_ms=1.0)
    said = [
        any("busy" in note for page in pages_of("pareto", [*runs, one]) for note in page.notes) for one in (quick, slow)
    ]
    assert said == [False, True]
