"""Places in Markdown files: filled from drawn files, idempotent, and refused in one sentence where they cannot be."""

import re
from pathlib import Path

import pytest

import figures.documents
from figures.__main__ import main
from figures.documents import PLACES, DocumentError, filled

ROOT = Path(__file__).resolve().parents[2]

CSV = """arm,batch_size,kind,time,time_low,time_high
dense,1,a,4,3,5
dense,8,a,2.5,,
galore,1,a,8,,
galore,1,b,9,,
"a, b",8,a,0.2,0.1,0.25
lora,1,a,,,
"""
LEDGER = "\n\n".join(
    [
        "# Claims",
        "43 claims as published: 0.",
        "A rival takes part in 14.",
        "| claim, published |\n|--|",
        "| artifact |\n",
    ]
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "times.csv").write_text(CSV)
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "times.csv").write_text("arm,time\ndense,7\n")  # drawn numbers come first
    (tmp_path / "records" / "probe.csv").write_text("dataset,metric_accuracy\nsst2,81.078\n")
    return tmp_path


def content(words, folder):
    kind = words.split()[0]
    text = filled(f"before <!-- {words} -->old<!-- /{kind} --> after", [folder, folder / "records"], lambda: LEDGER)
    assert text.startswith(f"before <!-- {words} -->")
    assert text.endswith(f"<!-- /{kind} --> after")
    assert filled(text, [folder, folder / "records"], lambda: LEDGER) == text
    return text[len(f"before <!-- {words} -->") : -len(f"<!-- /{kind} --> after")]


@pytest.mark.parametrize(
    ("words", "number"),
    [
        ("times time arm=dense batch_size=1", "4.00"),
        ("times time arm=dense batch_size=1 digits=1", "4"),
        ("times time arm=dense batch_size=1|8", "2.50 to 4.00"),
        ('times time arm="a, b"', "0.200"),
        ("times time arm=galore kind=b", "9.00"),
        ("probe metric_accuracy dataset=sst2", "81.1"),
    ],
)
def test_a_value(words, number, folder):
    assert content(f"value {words}", folder) == number


def test_a_pivot_has_bounds_and_dashes(folder):
    table = content('pivot times time arm="dense|a, b" batch_size=1|8', folder)
    assert table.splitlines()[1:] == [
        "| arm | batch size 1 | batch size 8 |",
        "|:--|--:|--:|",
        "| `dense` | 4.00 [3.00, 5.00] | 2.50 |",
        "| `a, b` | - | 0.200 [0.100, 0.250] |",
    ]
    assert "| 9.00 |" in content("pivot times time arm=galore batch_size=1 kind=b", folder)


def test_parts_of_the_ledger(folder):
    assert content("claims summary", folder).strip() == "43 claims as published: 0."
    assert content("claims changed", folder).strip() == "A rival takes part in 14.\n\n| claim, published |\n|--|"
    assert content("claims artifacts", folder).strip() == "| artifact |"


@pytest.mark.parametrize(
    "words",
    [
        "value nothing time arm=dense",
        "value times speed arm=dense",
        "value times time arm=nobody",
        "value times time method=dense",
        "value times time arm=lora",
        "value times",
        "pivot times time arm=galore batch_size=1",
        "pivot times time arm=lora batch_size=1",
        "pivot times time arm=dense",
        "claims everything",
    ],
)
def test_a_place_that_cannot_be_filled_is_one_sentence(words, folder):
    with pytest.raises(DocumentError) as error:
        content(words, folder)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_the_command_writes_names_and_checks(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("<!-- value times time arm=dense batch_size=1 -->3<!-- /value -->")
    words = ["docs", "--records", str(tmp_path), "--out", str(folder)]
    assert main([*words, "--check"]) == 2  # there is no README.md
    (tmp_path / "README.md").write_text("nothing to fill")
    assert main([*words, "--check"]) == 1
    assert "out of date: docs/a.md" in capsys.readouterr().out
    assert main(words) == 0
    assert ">4.00<" in (tmp_path / "docs" / "a.md").read_text()
    assert main([*words, "--check"]) == 0
    (tmp_path / "README.md").write_text("<!-- value times time arm=nobody -->3<!-- /value -->")
    capsys.readouterr()
    assert main(words) == 2
    assert "arm has no nobody" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("template", "line"),
    [
        ("{{ number('times', 'time', arm='dense', batch_size=8) | span(2) }}x", "2.5x"),
        ("{{ numbers('times', 'time', arm='dense') | span }}", "2.50 to 4.00"),
        ("{{ numbers('times', 'time', arm='dense|galore', kind='a') | span(1) }}", "3 to 8"),
        ("{{ texts('times', 'kind', arm='galore') | join(', ') }}", "a, b"),
        ("{{ known('times', 'time', arm='dense') }}, {{ known('times', 'time', arm='lora|none') }}", "True, False"),
        ("Always{{ holds(numbers('times', 'time', arm='dense'), above=2, below=5) }}", "Always"),
    ],
)
def test_a_template_takes_numbers_from_drawn_files(template, line, folder, monkeypatch):
    (folder / "words.md.j2").write_text(template)
    monkeypatch.setattr("figures.documents.PLACES", folder)
    assert content("template words", folder).strip() == line


@pytest.mark.parametrize(
    "template",
    [
        "{{ number('times', 'time', arm='galore') }}",
        "{{ lost }}",
        "{% if %}",
        "{{ number('no', 'time') }}",
        "Dense is always below 3.{{ holds(numbers('times', 'time', arm='dense'), below=3) }}",
        "{{ 1 | lost }}",
    ],
)
def test_a_template_that_cannot_be_filled_is_one_error(template, folder, monkeypatch):
    (folder / "words.md.j2").write_text(template)
    monkeypatch.setattr("figures.documents.PLACES", folder)
    with pytest.raises(DocumentError, match="template words"):
        content("template words", folder)


LOSSES = """arm,test_loss,test_loss_low,test_loss_high,probe_loss
low,1.0,0.9,1.1,1.2
middle,1.5,1.4,1.6,1.2
high,1.9,1.8,2.0,1.2
"""


def stands(template, folder, monkeypatch):
    (folder / "losses.csv").write_text(LOSSES)
    (folder / "standing.md.j2").write_text((PLACES / "standing.md.j2").read_text())
    (folder / "words.md.j2").write_text('{%- import "standing.md.j2" as standing with context -%}' + template)
    monkeypatch.setattr("figures.documents.PLACES", folder)
    return content("template words", folder).strip()


def test_a_pair_counts_where_its_better_side_ends_below_its_simple_model(folder, monkeypatch):
    pairs = [("low", "middle"), ("middle", "low"), ("middle", "high")]
    written = ", ".join(f'("losses", dict(arm="{one}"), dict(arm="{other}"))' for one, other in pairs)
    assert stands("{{ standing.lower([" + written + "]) }}", folder, monkeypatch) == "1 of 2"
    line = '{{ standing.of("losses", dict(arm="ARM"), dict(arm="high")) }}'
    assert stands(line.replace("ARM", "low"), folder, monkeypatch) == "lower with every seed"
    with pytest.raises(DocumentError, match="proves nothing"):
        stands(line.replace("ARM", "middle"), folder, monkeypatch)


def bed_of(csv):
    """The experiment whose numbers a drawn file has; two pages have those of pointer labels."""
    name, *_, place = csv.split("-")
    return {"formats": f"formats_{place}", "pointer_stages": "formats_pointer"}.get(name, name)


def test_a_row_of_the_first_page_has_numbers_of_one_bed(tmp_path, monkeypatch):
    """So that time, memory and quality in a row are of one model."""
    folder, read, seen = ROOT / "figures" / "rendered" / "reference", figures.documents._read, set()
    monkeypatch.setattr("figures.documents.PLACES", tmp_path)
    monkeypatch.setattr("figures.documents._read", lambda name, folders: seen.add(bed_of(name)) or read(name, folders))

    def beds(template):
        (tmp_path / "row.md.j2").write_text(template)
        seen.clear()
        filled("<!-- template row -->old<!-- /template -->", [folder], lambda: LEDGER)
        return set(seen)

    lines = (PLACES / "first_page.md.j2").read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("|"))
    head, rows = "\n".join(lines[:first]), lines[first + 2 :]
    assert [len(beds(f"{head}\n{row}")) for row in rows] == [1] * 5
    mixed = rows[0] + re.sub(r"^\| [^|]*", "", rows[2])  # time of one model, loss of another
    assert len(beds(f"{head}\n{mixed}")) == 2
