"""Notes that several pages share: each is on every page that it concerns, once, and on no other."""

from __future__ import annotations

import dataclasses

import pytest
from made_up_code import WORDS
from made_up_records import record, timed
from made_up_scaling import measured, varied

from bench.core.record import Record
from figures.artifact import artifacts
from figures.claims.claims import read_claims

NOT_FUSED = "GaLore's optimizer is an unfused Python loop"


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
        return sum(note.startswith(NOT_FUSED) for note in page.notes)

    comera, galore = TIMED[name]("comera"), TIMED[name]("galore")
    form = dataclasses.replace(galore, variant="per_layer", cell_id="made up")
    failed = dataclasses.replace(galore, status="oom", message="made up")
    assert [said(comera, galore), said(comera, form), said(comera, failed), said(comera)] == [1, 1, 0, 0]
