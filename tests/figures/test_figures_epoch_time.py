"""One epoch time: the CSV of every page on the committed records has the column of those records."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from bench.core.record import Record, read_all
from figures.artifact import Artifact
from figures.artifacts import fig1, fig7, fig12
from figures.records.select import Selected
from figures.text import tidy_table

REFERENCE = Path(__file__).parents[2] / "results" / "reference"


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return read_all(REFERENCE)


def tidy(artifact: Artifact, page: Selected) -> pd.DataFrame:
    """The table of the CSV."""
    if artifact.table:
        return artifact.table(page)
    rows = artifact.rows(page)
    return tidy_table(artifact.columns(page, rows), artifact.tidy_rows(page, rows) if artifact.tidy_rows else rows)


@pytest.mark.parametrize("artifact", [fig1.ARTIFACT, fig7.ARTIFACT, fig12.ARTIFACT], ids=lambda one: one.name)
def test_the_epoch_times_of_a_page_are_those_of_its_records(artifact, records) -> None:
    pages = artifact.select([one for one in records if one.experiment in artifact.experiments])
    counted = 0
    for page in pages:
        table = tidy(artifact, page)
        shown = sorted(table["epoch_time_s"].dropna())
        own = sorted(one.epoch_time_s for one in page.timed.values() if one.epoch_time_s is not None)
        assert shown == pytest.approx(own, rel=1e-9)
        counted += len(shown)
    assert counted > 10
