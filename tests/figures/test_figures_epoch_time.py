"""One epoch time: the CSV of every page on the committed records has the column of those records."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.core.record import Record, read_all
from figures.artifacts import fig1, fig7, fig12

REFERENCE = Path(__file__).parents[2] / "results" / "reference"


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return read_all(REFERENCE)


@pytest.mark.parametrize("artifact", [fig1.ARTIFACT, fig7.ARTIFACT, fig12.ARTIFACT], ids=lambda one: one.name)
def test_the_epoch_times_of_a_page_are_those_of_its_records(artifact, records) -> None:
    pages = artifact.select([one for one in records if one.experiment in artifact.experiments])
    counted = 0
    for page in pages:
        shown = sorted(artifact.table(page)["epoch_time_s"].dropna())
        own = sorted(one.epoch_time_s for one in page.timed.values() if one.epoch_time_s is not None)
        assert shown == pytest.approx(own, rel=1e-9)
        counted += len(shown)
    assert counted > 10
