"""Everything drawn at once: the project's own pages are as they are committed, and what differs is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_up_records import CPU, campaign
from matplotlib.figure import Figure

from bench.core.record import path_of, write
from figures.__main__ import main
from figures.page.plotted import plotted_digest
from figures.redraw import SUFFIXES, Sheet, digest_in, sheets
from figures.registry import artifacts

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_committed_page_is_as_it_is_drawn(capsys):
    words = ["all", "--check", "--records", "results/reference", "--out", "figures/rendered/reference"]
    assert main(words) == 0, capsys.readouterr().out


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Made-up records and what is drawn of them."""
    folder = tmp_path_factory.mktemp("redraw")
    write(campaign(CPU), folder / "records")
    assert main(["all", "--records", str(folder / "records"), "--out", str(folder / "out")]) == 0
    return folder


def check(folder, capsys, out="out"):
    """The status of a check, and what it says."""
    capsys.readouterr()
    status = main(["all", "--check", "--records", str(folder / "records"), "--out", str(folder / out)])
    said = capsys.readouterr()
    return status, said.out + said.err


def test_a_check_writes_nothing_and_finds_nothing(drawn, capsys):
    before = {path: path.stat().st_mtime_ns for path in (drawn / "out").iterdir()}
    status, said = check(drawn, capsys)
    assert status == 0
    assert "differs" not in said
    assert {path: path.stat().st_mtime_ns for path in (drawn / "out").iterdir()} == before
    assert {path.suffix for path in before} == set(SUFFIXES)


def altered(path: Path, before: str, after: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, after, 1), encoding="utf-8")


@pytest.mark.parametrize(
    ("suffix", "change", "kind"),
    [
        (".csv", lambda path: altered(path, "\n", " \n"), "differs"),
        (".md", lambda path: altered(path, "# ", "# A "), "differs"),
        (".md", Path.unlink, "differs"),
        (".png", Path.unlink, "differs"),
        (".svg", lambda path: altered(path, "plotted data ", "plotted data 0"), "differs"),
        (".svg", lambda path: altered(path, "plotted data ", ""), "differs"),
        (".csv", lambda path: path.with_name("old.csv").write_text("a\n"), "no figure draws"),
    ],
)
def test_what_differs_is_named_and_written(drawn, capsys, suffix, change, kind):
    [path] = [one for one in (drawn / "out").iterdir() if one.name.startswith("fig1") and one.suffix == suffix]
    before = path.read_bytes()
    change(path)
    status, said = check(drawn, capsys)
    assert status == 1
    stale = path.with_name("old.csv")
    assert f"{kind}: {stale if kind != 'differs' else path}" in said
    stale.unlink(missing_ok=True)
    assert main(["all", "--accept", "--records", str(drawn / "records"), "--out", str(drawn / "out")]) == 0
    assert path.read_bytes() == before
    assert check(drawn, capsys)[0] == 0


def test_a_picture_of_other_looks_is_drawn_anew_but_does_not_differ(drawn, capsys):
    [path] = [one for one in (drawn / "out").iterdir() if one.name.startswith("fig1") and one.suffix == ".png"]
    before, folders = path.read_bytes(), ["--records", str(drawn / "records"), "--out", str(drawn / "out")]
    path.write_bytes(b"other pixels")
    assert check(drawn, capsys)[0] == 0
    assert main(["all", "--accept", *folders]) == 0
    assert path.read_bytes() == b"other pixels"
    assert main(["all", *folders]) == 0
    assert path.read_bytes() == before


def test_other_pages_of_the_folder_are_left_alone(drawn, capsys):
    (drawn / "out" / "report.html").write_text("a report")
    assert check(drawn, capsys)[0] == 0


def test_what_has_no_records_is_said(drawn, capsys):
    _, said = check(drawn, capsys)
    [line] = [line for line in said.splitlines() if line.startswith("Not drawn, for want of records: ")]
    assert "fig11" in line
    assert "fig1," not in line


def test_every_artifact_is_a_sheet_and_pareto_two():
    assert {sheet.artifact for sheet in sheets()} == set(artifacts())
    assert Sheet("pareto", "ratios_accuracy_small") in sheets()


def broken(root: Path) -> str:
    [first, *_] = campaign(CPU)
    write([first], root)
    path = path_of(first, root)
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | {"batch_size": "many"}))
    return path.name


@pytest.mark.parametrize("prepare", [broken, lambda root: root.mkdir(), lambda _: "a folder with records is expected"])
def test_wrong_records_are_one_sentence_and_nothing_is_written(tmp_path, capsys, prepare):
    named = prepare(tmp_path / "records") or "no record"
    assert main(["all", "--records", str(tmp_path / "records"), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert named in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_check_of_no_folder_is_one_sentence(drawn, capsys):
    status, said = check(drawn, capsys, "nowhere")
    assert status == 2
    assert "nowhere" in said


def test_check_and_accept_exclude_each_other(drawn, capsys):
    assert main(["all", "--check", "--accept", "--records", str(drawn / "records")]) == 2
    assert "--accept" in capsys.readouterr().err


def figure(**changes):
    values = {"y": [1.0, 2.0], "bar": 3.0, "dot": 4.0, "words": "note", "label": "axis", "scale": "linear"} | changes
    shown = Figure()
    axes = shown.subplots()
    axes.plot([1, 2], values["y"], label="one")
    axes.bar([1], [values["bar"]])
    axes.scatter([1], [values["dot"]])
    axes.text(1, 1, values["words"])
    axes.set_xlabel(values["label"])
    axes.set_yscale(values["scale"])
    axes.set_xlim(0, values.get("limit", 5))
    if "legend" in changes:
        axes.legend()
    return shown


@pytest.mark.parametrize(
    "change",
    [
        {"y": [1.0, 2.001]},
        {"bar": 3.1},
        {"dot": 4.1},
        {"words": "other"},
        {"label": "other"},
        {"scale": "log"},
        {"limit": 6},
        {"legend": True},
    ],
)
def test_a_digest_changes_with_what_is_shown(change):
    assert plotted_digest(figure()) == plotted_digest(figure())
    assert plotted_digest(figure()) != plotted_digest(figure(**change))


def test_a_digest_does_not_change_with_a_rounding_a_look_or_a_drawing():
    shown = figure(y=[1.0, 2.0 + 1e-9])
    shown.axes[0].lines[0].set_color("red")
    assert plotted_digest(shown) == plotted_digest(figure())
    shown.canvas.draw()
    assert plotted_digest(shown) == plotted_digest(figure())


def test_a_picture_without_a_digest_has_none():
    assert digest_in("<svg></svg>") is None
    assert digest_in("<dc:description>plotted data 12ab</dc:description>") == "12ab"
