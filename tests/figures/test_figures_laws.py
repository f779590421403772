"""Which records a page shows, as laws that hold for every artifact: on the smallest of its committed pages.

The newest record of a cell is shown, settings and devices are never mixed, failed and older cells say so.
"""

import dataclasses
import functools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from made_up import failed
from pages import ARTIFACTS, committed, csvs, pages, small_page, text_of

from bench.core.record import Record

LONG_AGO, LATELY = "1999-01-01T00:00:00+00:00", "2099-01-01T00:00:00+00:00"

NAMES = sorted(ARTIFACTS)

_ANY = frozenset({"precision", "data_hash", "sequence_length", "workload", "model"})

#: What may differ among the records of a page: its lines go by these, or nothing looks at it.
LINES_BY = {
    **dict.fromkeys(("table_correctness", "table_fp8", "prediction"), _ANY),
    "fig14": {"precision"},
    "table_dlrm_fp8": {"precision"},
    **dict.fromkeys(("fig11", "plans"), _ANY - {"precision"}),
    "table_tensorization": {"data_hash", "sequence_length", "model"},
    "fig7": {"precision"},
    "widths": {"precision"},
}

#: Every record of these is a line; a cell that is measured again has one file.
EVERY_RECORD = ("table_correctness", "table_fp8", "prediction")

#: These do not say why a record failed: a training is missing among the rates, a step among the lines, or an excerpt is
#: not drawn.
UNSAID = ("activations", "fig1_brief", "formats", "pointer_stages")

#: Excerpts, which are not drawn for a device that lacks some of their records.
WHOLE = ("fig1_brief",)


@functools.cache
def same_code(name: str) -> tuple[Record, ...]:
    """The records of the small page, as if made at once by the same code, with few points of learning curves."""
    return tuple(
        dataclasses.replace(one, code_id="one", recorded_at=f"2020-01-01T00:00:{i:05}", samples=thinned(one.samples))
        for i, one in enumerate(small_page(name))
    )


def thinned(samples: dict[str, Any]) -> dict[str, Any]:
    """The same samples with the first point of a learning curve and the last one of each stage."""
    curve = samples.get("curve", ())
    kept = {0, *{row["stage"]: place for place, row in enumerate(curve)}.values()}
    return {**samples, "curve": [row for place, row in enumerate(curve) if place in kept]} if curve else samples


def victim(name: str, records: Sequence[Record]) -> Record:
    """A record of the page's own measure that finished and is not the newest."""
    own = [one for one in records if one.status == "ok" and one.experiment not in ARTIFACTS[name].lenders]
    timed = [one for one in own if one.measure in ("run", ARTIFACTS[name].measure)]
    return (timed or own)[0]


def written(name: str, records: Sequence[Record]) -> dict[str, str]:
    """The Markdown of pages by their names."""
    return {next(iter(one.files)).rpartition(".")[0]: text_of(one, ".md") for one in pages(name, records)}


@functools.cache
def before(name: str) -> tuple[str, str, str]:
    """The name of the small page, its CSV and its Markdown."""
    [page] = pages(name, same_code(name))
    return next(iter(page.files)).rpartition(".")[0], text_of(page, ".csv"), text_of(page, ".md")


def test_the_artifacts_without_records_are_these() -> None:
    assert all(small_page(name) for name in ARTIFACTS)


def drawn(name: str, records: Sequence[Record], picture: bool = True) -> None:
    """Make all pages, with their pictures, which take most of the time, or without."""
    for page in pages(name, records, picture):
        assert page.files.plotted or not picture or ARTIFACTS[name].draw is None


@pytest.mark.parametrize("picture", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NAMES)
def test_records_without_a_reference_are_drawn(name: str, picture: bool) -> None:
    records = same_code(name)
    rivals = {one.measure: one for one in records if one.arm not in ("dense", "comera")}
    for left in ([one for one in records if one.arm != "dense"], *([one] for one in rivals.values()), records[-1:]):
        drawn(name, left, picture)


@pytest.mark.parametrize("arm", ["comera+checkpoint", "galore:per_layer"])
def test_an_arm_that_keeps_few_kinds_of_activations_is_drawn_alone(arm: str) -> None:
    drawn("activations", [one for one in committed("activations") if one.arm == arm])


@pytest.mark.parametrize("name", sorted({*NAMES} - {*EVERY_RECORD}))
def test_an_older_record_of_a_cell_changes_nothing_but_a_note(name: str) -> None:
    records = same_code(name)
    older = failed(victim(name, records), recorded_at=LONG_AGO, code_id="ancient")
    assert csvs(name, [older, *records]) == [before(name)[1]]


@pytest.mark.parametrize("name", sorted({*NAMES} - {*UNSAID}))
def test_a_newer_record_of_a_cell_takes_its_place_and_says_why_it_failed(name: str) -> None:
    records = same_code(name)
    newer = failed(victim(name, records), "oom", "made up: no room.", recorded_at=LATELY)
    stem, *_ = before(name)
    assert "made up: no room" in written(name, [*records, newer])[stem]


#: How a record may differ from those of its page.
OTHERS: dict[str, dict[str, Any]] = {
    "device": {"device": "Another device", "driver": "made up"},  # a GPU: trainings of all CPUs share a page
    "precision": {"precision": "made_up"},
    "data_hash": {"data_hash": "another"},
    "sequence_length": {"sequence_length": 7},
    "workload": {"workload": "made_up"},
    "model": {},
}


@pytest.mark.parametrize("name", NAMES)
def test_newer_records_of_other_settings_change_nothing_but_notes(name: str) -> None:
    records = same_code(name)
    one = victim(name, records)
    strays = []
    for field in OTHERS.keys() - LINES_BY.get(name, set()):
        cell = json.loads(one.config_json)
        cell["workload_settings"] |= {"made_up": 1} if field == "model" else {}
        about = {"recorded_at": LATELY, "config_json": json.dumps(cell), "cell_id": f"stray-{field}"}
        stray = dataclasses.replace(one, **about, **OTHERS[field])
        strays.append(stray if field == "device" else failed(stray, "oom", "made up"))
    found = csvs(name, [*records, *strays])
    assert before(name)[1] in found
    assert len(found) > 1 or name in WHOLE  # that of the other device


@pytest.mark.parametrize("name", NAMES)
def test_a_record_of_older_code_is_marked(name: str) -> None:
    records = same_code(name)
    one = victim(name, records)
    older = dataclasses.replace(one, code_id="two", recorded_at=LONG_AGO)
    stem, _, text = before(name)
    found = written(name, [older if other is one else other for other in records])[stem]
    said = ("†", "older code than the newest")
    assert not any(words in text for words in said)
    assert any(words in found for words in said)


#: Artifacts with ratios of times that were timed together.
PAIRED = ("fig1", "fig5", "fig7", "fig8", "fig10", "fig12")
PAIRED += ("table_tensorization", "scaling", "widths")


@pytest.mark.parametrize("name", PAIRED)
def test_a_ratio_of_times_that_were_not_timed_together_is_marked(name: str) -> None:
    records = small_page(name)
    apart = [dataclasses.replace(one, pairing=f"apart-{place}") for place, one in enumerate(records)]
    [text] = written(name, apart).values()
    assert "‡" in text
    assert "not timed together" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if ARTIFACTS[name].draw and name not in WHOLE])
def test_failed_cells_are_drawn(name: str) -> None:
    records = same_code(name)
    one = victim(name, records)
    [page] = pages(name, [failed(one) if other is one else other for other in records], picture=True)
    assert page.files.plotted


@pytest.mark.parametrize("name", WHOLE)
def test_an_excerpt_with_a_failed_reference_is_not_drawn(name: str) -> None:
    records = same_code(name)
    assert list(pages(name, records))
    assert not list(pages(name, [failed(one) if one.arm == "dense" else one for one in records]))
