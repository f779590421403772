"""``python -m figures report``: verdicts first, sections with their numbers, nothing from elsewhere, no markup."""

import base64
import html
import re
import subprocess
import sys
from pathlib import Path

import pytest
from made_up import CPU, CUDA, LTE_REASON, epochs, record, stages_of_accuracy, timed
from pages import ARTIFACTS, CLAIMS, ROOT, pages

from bench.core.record import Record, write
from figures.ledger.judging import judge
from figures.report import page as report_page
from figures.report.facts import facts_of, failures_of

HOSTILE = "<script>alert('x')</script> & \"quoted\""
UNSUPPORTED = record("lte", 1, status="unsupported", message=LTE_REASON)


def page_of(records: list[Record]) -> str:
    return report_page.page(records, ARTIFACTS, CLAIMS).decode()


def section(page: str, name: str) -> str:
    """The HTML of one artifact's section."""
    [found] = re.findall(rf'<section id="{name}">(.*?)</section>', page, flags=re.DOTALL)
    return found


@pytest.fixture(scope="module")
def page() -> str:
    return page_of([*epochs(), *epochs(CUDA), UNSUPPORTED, *stages_of_accuracy()])


def test_verdicts_come_first_with_every_claim_once_per_device(page: str) -> None:
    assert page.index('class="verdicts"') < page.index("<article")
    table = section(page, "verdicts")
    assert sorted(re.findall(r'<tr id="claim-([^"]+)"', table)) == sorted(CLAIMS)
    rows = re.findall(r"<tr[ >].*?</tr>", table[table.index("Every claim") :], flags=re.DOTALL)
    both = [row for row in rows if "<code>galore-memory-b1</code>" in row]
    assert [device for row in both for device in (CPU, CUDA) if f'"device">{device}' in row] == [CPU, CUDA]
    for axis in ("as published", "with the fair baseline"):
        [counts] = re.findall(rf">{len(CLAIMS)} claims {axis}:(.*?)</p>", table, flags=re.DOTALL)
        assert sum(map(int, re.findall(r'<span class="count">(\d+) ', counts))) == len(CLAIMS)
    recalled = [row for row in rows if "unconfirmed transcription" in row]
    said = {re.findall("<code>(.*?)</code>", row)[0] for row in recalled}
    assert said == {claim.id for claim in CLAIMS.values() if claim.unconfirmed}
    assert len(set(report_page.OUTCOMES.values())) == len(report_page.OUTCOMES) == 6


def test_links_lead_somewhere_and_nothing_is_fetched_from_elsewhere(page: str) -> None:
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    targets = set(re.findall(r'href="#([^"]+)"', page))
    assert {"verdicts", *ARTIFACTS} <= targets <= set(ids)
    sources = re.findall(r'\s(?:src|srcset|data|poster)="([^"]*)"', page) + re.findall(r"url\(([^)]*)\)", page)
    assert sources
    assert all(source.startswith("data:") for source in sources)
    assert "<script" not in page
    assert "@import" not in page
    assert [uri for uri in re.findall(r'<link[^>]*href="([^"]*)"', page) if not uri.startswith("data:")] == []


def test_pictures_tables_and_csv_are_those_of_the_figures(page: str) -> None:
    drawn = pages("fig1", [*epochs(), *epochs(CUDA), UNSUPPORTED], picture=True)
    here = section(page, "fig1")
    pictures = re.findall(r'<img src="data:image/svg\+xml;base64,([^"]+)" alt="([^"]+)"', here)
    downloads = re.findall(r'<a href="data:text/csv;base64,([^"]+)" download="([^"]+)"', here)
    tables = re.findall(r'<table class="data">(.*?)</table>', here, re.DOTALL)
    assert len(drawn) == len(pictures) == len(downloads) == len(tables) == 2
    for one, (picture, words), (csv, name), table in zip(drawn, pictures, downloads, tables, strict=True):
        assert base64.b64decode(csv) == one.files[name]
        assert base64.b64decode(picture) == one.files[name.replace(".csv", ".svg")]
        assert one.title in html.unescape(words)
        assert one.device in html.unescape(words)
        cells = [html.unescape(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", table)]
        assert cells == [str(cell) for cell in one.table.to_numpy().flat]


def test_what_is_missing_and_what_failed_is_said(page: str) -> None:
    for name in ("fig7", "plans", "pareto"):
        [absent] = re.findall(r'<p class="absent">(.*?)</p>', section(page, name))
        assert f"<code>{ARTIFACTS[name].command}</code>" in absent
    here = html.unescape(section(page, "fig1"))
    assert "absent" not in here
    assert "graph-speedup" in section(page, "fig7")
    assert f"lte, timed: batch 1: <b>unsupported</b>. {LTE_REASON}" in here
    failed = [record("lte", batch, status="unsupported", message="too few") for batch in (1, 8)]
    found = failures_of([*failed, record(), record("dense", 64, status="oom", ratio=2.5)])
    assert [(one.cells, one.status, one.message) for one in found] == [
        ("lte, timed: batch 1; batch 8", "unsupported", "too few"),
        ("dense 2.5x, timed: batch 64", "oom", "no message was recorded"),
    ]


def test_text_of_records_is_never_markup() -> None:
    hostile = "<b>cpu</b>"
    records = [
        timed("comera", [60.0, 61.0], device=hostile),
        record("dense", status="error", message=HOSTILE, device=hostile),
        record("lora", status="oom", message="]]></svg>", git_commit=HOSTILE, device=hostile),
    ]
    page = page_of(records)
    assert "<script" not in page
    assert "<b>cpu" not in page
    assert html.escape(HOSTILE, quote=False).split(";")[0] in page


def test_how_it_was_measured_is_told_from_the_records() -> None:
    config = '{"timing_settings": {"block_seconds": 0.5, "max_steps": 20, "warmup_steps": 3}}'
    own = {"config_json": config, "git_commit": "a" * 40}
    ours = timed("comera", [60.0, 61.0, 62.0], 1000, disturbed=(1,), **own)
    newer = timed(
        *("dense", [240.0, 241.0, 242.0], 1000),
        code_id="code-b",
        git_commit="b" * 40,
        git_dirty=True,
        driver="made up 1.0",
        recorded_at="2001-02-04T04:05:06+00:00",
        library_versions="one 1.0, two 2.0",
    )
    facts = {fact.term: fact.text for fact in facts_of([ours, newer])}
    assert "2 to 3 undisturbed block(s)" in facts["Timed"]
    assert "about 0.5 s, at most 20 calls, after 3 to warm up" in facts["Timed"]
    assert facts["Machine"] == f"{CPU}; driver made up 1.0; machine not recorded"
    assert facts["Versions"] == "torch 0.0.made-up, one 1.0, two 2.0"
    assert facts["Recorded"] == "2001-02-03 04:05 to 2001-02-04 04:05 UTC, 2 records"
    assert "aaaaaaaaaaaa (1), bbbbbbbbbbbb (1); † 1 of 2 by older" in facts["Code"]
    odd = ('{"timing_settings": []}', '{"timing_settings": {"block_seconds": "x"}}')
    for lacking in ("{}", "not JSON", *odd):
        [timing, *_] = facts_of([timed("comera", [60.0], config_json=lacking)])
        assert timing.text.endswith("1 undisturbed block(s), the arms taking turns within each.")


def test_bench_hands_the_word_over(tmp_path: Path) -> None:
    write([timed("comera", [60.0, 61.0])], tmp_path / "records")
    command = [sys.executable, "-m", "bench", "report", "--out", str(tmp_path), "--records"]
    for records, status in ((tmp_path / "records", 0), (tmp_path / "none", 2)):
        done = subprocess.run(
            [*command, str(records)], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == status
        said = done.stderr if status else done.stdout
        assert re.fullmatch(r"error: --records is .*; a folder with records is expected\.\n|.*report\.html\n", said)


def test_an_artifact_with_borrowed_records_touches_no_claim_about_them() -> None:
    [entry] = [one for one in judge([], CLAIMS) if one.claim.id == "time-epoch-speedup"]
    names = list(ARTIFACTS)
    touching = [name for name in names if report_page._bears_on(name, ARTIFACTS[name], entry, names)]
    assert touching == ["fig1"]
