"""The page on bucket sizes and local steps: what it shows, and what it says against CoMERA."""

import pytest
from made_up_scaling import of_settings

from figures.claims.claims import read_claims
from figures.page.drawn import Drawn
from figures.registry import artifacts


def page_of(records: list) -> Drawn:
    [page] = artifacts()["exchange_settings"].render(records, read_claims())
    return page


@pytest.fixture(scope="module")
def page() -> Drawn:
    return page_of([*of_settings(100.0), *of_settings(1000.0)])


def test_rare_averages_take_gain_away_and_the_page_says_so(page) -> None:
    """Dense takes 0.25 of its step with 16 local steps, CoMERA 0.5 of its own: half of the gain is left."""
    [said] = [note for note in page.notes if note.startswith("Dense / CoMERA at 100 Mbit/s: ")]
    one, sixteen = (float(part.split("x")[0]) for part in said.split(": ")[1].split("; "))
    assert sixteen == pytest.approx(one / 2, rel=0.05)


def test_the_quickest_bucket_is_named(page) -> None:
    assert any(
        "Buckets of comera at 100 Mbit/s: quickest with 25 MiB; with 1 MiB 10% more." in note for note in page.notes
    )


def test_a_row_per_cell_in_order(page) -> None:
    assert len(page.table) == 16
    assert list(page.table["link, setting"].unique()) == [
        *("100 Mbit/s, bucket, MiB", "1 Gbit/s, bucket, MiB"),
        *("100 Mbit/s, local steps", "1 Gbit/s, local steps"),
    ]
    assert page.files[next(name for name in page.files if name.endswith("png"))]


def test_one_setting_alone_is_a_page() -> None:
    page = page_of([record for record in of_settings() if record.local_steps])
    assert len(page.table) == 4
    assert not any("Buckets" in note for note in page.notes)
    assert page.title == "Step time of several ranks by the steps between two averages"


def test_sizes_that_cannot_be_told_apart_are_not() -> None:
    page = page_of([record for record in of_settings(small=1.001) if record.bucket_mib])
    assert any("quickest with" in note and note.endswith("bounds overlap.") for note in page.notes)
    assert not any("round" in note for note in page.notes)
