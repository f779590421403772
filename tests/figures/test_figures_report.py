"""``python -m figures report``: verdicts first, sections with their numbers, nothing from elsewhere, no markup."""

from __future__ import annotations

import base64
import dataclasses
import html
import re
import subprocess
import sys
from pathlib import Path

import pytest
from made_up_lookups import lookup_campaign
from made_up_records import CPU, CUDA, LTE_REASON, campaign, record, timed
from made_up_training import training_campaign
from redrawn import ROOT, redrawn

from bench.core.record import Record, path_of, write
from figures.__main__ import main
from figures.ledger.judging import claims_of, judge
from figures.registry import artifacts
from figures.report import page as report_page
from figures.report.facts import facts_of, failures_of

ARTIFACTS = artifacts()
CLAIMS = claims_of(ARTIFACTS.values())
render = ARTIFACTS["fig1"].render

HOSTILE = "<script>alert('x')</script> & \"quoted\""


def page_of(records: list[Record]) -> str:
    return report_page.page(records, ARTIFACTS, CLAIMS).decode()


def section(page: str, name: str) -> str:
    """The HTML of one artifact's section."""
    [found] = re.findall(rf'<section id="{name}">(.*?)</section>', page, flags=re.DOTALL)
    return found


@pytest.fixture(scope="module")
def page() -> str:
    return page_of(campaign(CPU) + campaign(CUDA) + training_campaign())


@pytest.mark.slow
def test_same_records_same_bytes_and_no_torch(tmp_path: Path) -> None:
    root = tmp_path / "records"
    write(campaign(CPU) + lookup_campaign(), root)
    written, printed = redrawn("report", root, tmp_path / "out")
    assert list(written) == ["report.html"]
    assert printed == "/report.html\n"


def test_verdicts_come_first_with_every_claim_once_per_device(page: str) -> None:
    assert page.index('class="verdicts"') < page.index("<article")
    table = section(page, "verdicts")
    claims = CLAIMS
    assert sorted(re.findall(r'<tr id="claim-([^"]+)"', table)) == sorted(claims)
    everything = table[table.index("Every claim") :]
    rows = re.findall(r"<tr[ >].*?</tr>", everything, flags=re.DOTALL)
    both = [row for row in rows if "<code>galore-memory-b1</code>" in row]
    assert [device for row in both for device in (CPU, CUDA) if f'"device">{device}' in row] == [CPU, CUDA]
    for axis in ("as published", "with the fair baseline"):
        [counts] = re.findall(rf">{len(claims)} claims {axis}:(.*?)</p>", table, flags=re.DOTALL)
        assert sum(int(count) for count in re.findall(r'<span class="count">(\d+) ', counts)) == len(claims)
    unconfirmed = {claim.id for claim in claims.values() if claim.unconfirmed}
    said = {re.findall("<code>(.*?)</code>", row)[0] for row in rows if "unconfirmed transcription" in row}
    assert said == unconfirmed


def test_verdicts_have_words_and_signs_of_their_own() -> None:
    assert len(set(report_page.OUTCOMES.values())) == len(report_page.OUTCOMES) == 6


def test_every_link_within_the_page_leads_somewhere(page: str) -> None:
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    targets = re.findall(r'href="#([^"]+)"', page)
    assert set(targets) <= set(ids)
    assert {"verdicts", *ARTIFACTS} <= set(targets)


def test_nothing_is_fetched_from_elsewhere(page: str) -> None:
    sources = re.findall(r'\s(?:src|srcset|data|poster)="([^"]*)"', page) + re.findall(r"url\(([^)]*)\)", page)
    assert sources
    assert all(source.startswith("data:") for source in sources)
    assert "<script" not in page
    assert "@import" not in page
    assert [uri for uri in re.findall(r'<link[^>]*href="([^"]*)"', page) if not uri.startswith("data:")] == []


def test_pictures_and_csv_are_those_of_the_figures(page: str) -> None:
    drawn = render(campaign(CPU) + campaign(CUDA), CLAIMS)
    here = section(page, "fig1")
    pictures = re.findall(r'<img src="data:image/svg\+xml;base64,([^"]+)" alt="([^"]+)"', here)
    downloads = re.findall(r'<a href="data:text/csv;base64,([^"]+)" download="([^"]+)"', here)
    assert len(drawn) == len(pictures) == len(downloads) == 2
    for one, (picture, alternative), (csv, name) in zip(drawn, pictures, downloads, strict=True):
        assert base64.b64decode(csv) == one.files[name]
        assert base64.b64decode(picture) == one.files[name.replace(".csv", ".svg")]
        assert one.title in html.unescape(alternative)
        assert one.device in html.unescape(alternative)


def test_full_tables_hold_every_cell() -> None:
    [drawn] = render(campaign(CPU), CLAIMS)
    [table] = re.findall(r'<table class="data">(.*?)</table>', section(page_of(campaign(CPU)), "fig1"), re.DOTALL)
    cells = [html.unescape(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", table)]
    assert cells == [str(cell) for cell in drawn.table.to_numpy().flat]


def test_a_section_without_records_names_the_command_that_makes_them(page: str) -> None:
    for name in ("fig7", "plans", "pareto"):
        [absent] = re.findall(r'<p class="absent">(.*?)</p>', section(page, name))
        assert absent.count(".") == 1
        assert f"<code>{ARTIFACTS[name].command}</code>" in absent
    assert "absent" not in section(page, "fig1")
    assert "graph-speedup" in section(page, "fig7")


def test_failed_cells_stand_with_status_and_message(page: str) -> None:
    here = html.unescape(section(page, "fig1"))
    assert f"lte, timed: batch 1: <b>unsupported</b>. {LTE_REASON}" in here


def test_text_of_records_is_never_markup() -> None:
    hostile = "<b>cpu</b>"
    records = [
        timed("comera", [60.0, 61.0], device=hostile),
        record("dense", status="error", message=HOSTILE, device=hostile),
    ]
    page = page_of([*records, record("lora", status="oom", message="]]></svg>", git_commit=HOSTILE, device=hostile)])
    assert "<script" not in page
    assert "<b>cpu" not in page
    assert html.escape(HOSTILE, quote=False).split(";")[0] in page


def test_how_it_was_measured_is_told_from_the_records() -> None:
    config = '{"timing_settings": {"block_seconds": 0.5, "max_steps": 20, "warmup_steps": 3}}'
    ours = timed("comera", [60.0, 61.0, 62.0], 1000, config_json=config, git_commit="a" * 40, disturbed=(1,))
    newer = timed(
        "dense",
        [240.0, 241.0, 242.0],
        1000,
        code_id="code-b",
        git_commit="b" * 40,
        git_dirty=True,
        recorded_at="2001-02-04T04:05:06+00:00",
        driver="made up 1.0",
        library_versions="one 1.0, two 2.0",
    )
    facts = {fact.term: fact.text for fact in facts_of([ours, newer])}
    assert facts["Timed"] == (
        "batch 1,000, fp32, length 128, CUDA Graph off, compile off, data 'synthetic'; 2 to 3 undisturbed block(s), "
        "the arms taking turns within each. A block: about 0.5 s, at most 20 calls, after 3 to warm up."
    )
    assert facts["Machine"] == f"{CPU}; driver made up 1.0; machine not recorded"
    assert facts["Versions"] == "torch 0.0.made-up, one 1.0, two 2.0"
    assert facts["Recorded"] == "2001-02-03 04:05 to 2001-02-04 04:05 UTC, 2 records"
    assert facts["Code"] == (
        "commits aaaaaaaaaaaa (1), bbbbbbbbbbbb (1); † 1 of 2 by older measuring code than the newest; "
        "1 of 2 from a tree with uncommitted changes"
    )


@pytest.mark.parametrize(
    "config", ["{}", "not JSON", '{"timing_settings": []}', '{"timing_settings": {"block_seconds": "x"}}']
)
def test_settings_that_a_record_lacks_are_not_told(config: str) -> None:
    [timing, *_] = facts_of([timed("comera", [60.0], config_json=config)])
    assert timing.text.endswith("1 undisturbed block(s), the arms taking turns within each.")


def test_cells_that_failed_alike_share_a_line() -> None:
    failed = [record("lte", batch, status="unsupported", message="too few") for batch in (1, 8)]
    other = record("dense", 64, status="oom", ratio=2.5)
    found = [(one.cells, one.status, one.message) for one in failures_of([*failed, record(), other])]
    assert found == [
        ("lte, timed: batch 1; batch 8", "unsupported", "too few"),
        ("dense 2.5x, timed: batch 64", "oom", "no message was recorded"),
    ]


def unreadable(root: Path) -> None:
    write([record()], root)
    path_of(record(), root).write_text("{", encoding="utf-8")


def mixed(root: Path) -> None:
    write([record(), record("dense", schema_version=0)], root)


def blocked(root: Path) -> None:
    write([record()], root)
    (root.parent / "out").write_text("a file, not a folder", encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "prepare", "message"),
    [
        ([], None, "a folder with records is expected."),
        ([], lambda root: root.mkdir(), "no record; make some with python -m bench experiment=NAME"),
        ([], lambda root: write([record(experiment="elsewhere")], root), "no record below fig1/, fig1_memory/, fig5/"),
        ([], unreadable, "not a readable JSON record"),
        ([], mixed, "schema_version is 0; a whole number from 1"),
        ([], lambda root: write([record(samples={"blocks": "none"})], root), "samples.blocks is a str"),
        ([], blocked, "no folder that can be written"),
        (["--recrods", "x"], None, "see python -m figures report --help."),
    ],
)
def test_bad_input_gets_one_sentence_and_writes_nothing(
    arguments: list[str], prepare, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, out = tmp_path / "records", tmp_path / "out"
    if prepare is not None:
        prepare(root)
    assert main(["report", *arguments, "--records", str(root), "--out", str(out)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.endswith(".\n")
    assert len(captured.err.strip().splitlines()) == 1
    assert not out.is_dir()


def test_the_page_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, out = tmp_path / "records", tmp_path / "out"
    write([timed("comera", [60.0, 61.0])], root)
    arguments = ["report", "--records", str(root), "--out", str(out)]
    assert main(arguments) == 0
    first = (out / "report.html").read_bytes()
    write([dataclasses.replace(timed("dense", [240.0, 241.0]), dataset="another")], root)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", full)
        assert main(arguments) == 1
    assert (out / "report.html").read_bytes() == first
    assert main(arguments) == 0
    assert (out / "report.html").read_bytes() != first
    assert [path.name for path in out.iterdir()] == ["report.html"]


def test_bench_hands_the_word_over(tmp_path: Path) -> None:
    write([timed("comera", [60.0, 61.0])], tmp_path / "records")
    command = [sys.executable, "-m", "bench", "report", "--records", str(tmp_path / "records"), "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{tmp_path / 'report.html'}\n", "")
    missing = subprocess.run(
        [*command[:-4], "--records", str(tmp_path / "none")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert missing.returncode == 2
    assert re.fullmatch(r"error: --records is .*; a folder with records is expected\.\n", missing.stderr)


def test_an_artifact_with_borrowed_records_touches_no_claim_about_them() -> None:
    [entry] = [one for one in judge([], CLAIMS) if one.claim.id == "time-epoch-speedup"]
    touching = [
        name for name, artifact in ARTIFACTS.items() if report_page._bears_on(name, artifact, entry, list(ARTIFACTS))
    ]
    assert touching == ["fig1"]


def test_a_clipped_edge_shows_and_long_prose_has_room(page: str) -> None:
    """Each picture has its hint for narrow screens, each box of a table its shadows, and long cells a wide column."""
    assert page.count('<p class="hint">') == page.count('<figure class="scroll"') > 0
    styles = page.partition("</style>")[0]
    assert re.search(r"div\.scroll \{[^}]* local,[^}]* scroll;", styles)
    assert re.search(r"@media screen and \(max-width: 48\.2rem\) \{\s*\.hint \{ display: block; \}", styles)
    for table in re.findall(r'<table class="data">(.*?)</table>', page, flags=re.DOTALL):
        cells = re.findall(r'<td class="(prose|words)( long)?">(.*?)</td>', table, flags=re.DOTALL)
        for name in {kind for kind in cells if len(html.unescape(kind[2])) > 90}:
            assert name[:2] == ("prose", " long")
