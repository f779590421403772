"""Everything drawn at once: the project's own pages are as they are committed, and what differs is named."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_up import epochs
from matplotlib.figure import Figure
from pages import RENDERED

from bench.core.record import write
from bench.errors import KILLED
from figures import redraw
from figures.__main__ import main
from figures.draw.plotted import plotted_digest
from figures.redraw import SUFFIXES, digest_in


@pytest.mark.slow
def test_every_committed_page_is_as_it_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["all", "--check", "--records", "results/reference", "--out", str(RENDERED)]
    assert main(words) == 0, capsys.readouterr().out


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made-up records and what is drawn of them, Fig. 1 as a PNG too."""
    folder = tmp_path_factory.mktemp("redraw")
    write(epochs(batches=(1,)), folder / "records")
    where = ["--records", str(folder / "records"), "--out", str(folder / "out")]
    assert main(["all", *where]) == 0
    assert {path.suffix for path in (folder / "out").iterdir()} == {".svg", ".md", ".csv"}
    assert main(["fig1", "--png", *where]) == 0
    return folder


def drawing(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """The status of drawing everything, and what it says."""
    capsys.readouterr()
    status = main(["all", *words, "--records", str(folder / "records"), "--out", str(folder / "out")])
    said = capsys.readouterr()
    return status, said.out + said.err


def test_a_check_writes_nothing_and_finds_nothing(drawn: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (drawn / "out" / "explorer.html").write_text("a page, which is left alone")
    before = {path: path.stat().st_mtime_ns for path in (drawn / "out").iterdir()}
    status, said = drawing(drawn, capsys, "--check")
    assert status == 0
    assert "differs" not in said
    assert {path: path.stat().st_mtime_ns for path in (drawn / "out").iterdir()} == before
    assert {path.suffix for path in before} == {*SUFFIXES, ".html"}
    [line] = [line for line in said.splitlines() if line.startswith("Not drawn, for want of records: ")]
    assert "fig11" in line
    assert "fig1," not in line


def altered(before: str, after: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        assert before in text
        path.write_text(text.replace(before, after, 1), encoding="utf-8")

    return change


def test_what_differs_is_named_and_written(drawn: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = {
        ".csv": altered("\n", " \n"),
        ".md": altered("# ", "# A "),
        ".svg": altered("plotted data ", "plotted data 0"),
    }
    second = {".md": Path.unlink, ".svg": altered("plotted data ", "")}
    pages = {path.suffix: path for path in (drawn / "out").iterdir() if path.name.startswith("fig1-")}
    before = {path: path.read_bytes() for path in pages.values()}
    stale = drawn / "out" / "old.csv"
    for changes in (first, second):
        stale.write_text("a\n")
        for suffix, change in changes.items():
            change(pages[suffix])
        status, said = drawing(drawn, capsys, "--check")
        assert status == 1
        assert all(f"differs: {pages[suffix]}" in said for suffix in changes)
        assert f"no figure draws: {stale}" in said
        stale.unlink()
        assert drawing(drawn, capsys, "--accept")[0] == 0
        assert {path: path.read_bytes() for path in before} == before


def test_a_picture_of_other_looks_is_drawn_anew_but_does_not_differ(
    drawn: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [path] = [one for one in (drawn / "out").iterdir() if one.name.startswith("fig1") and one.suffix == ".png"]
    before = path.read_bytes()
    path.write_bytes(b"other pixels")
    assert drawing(drawn, capsys, "--accept")[0] == 0
    assert path.read_bytes() == b"other pixels"
    assert drawing(drawn, capsys)[0] == 0
    assert path.read_bytes() == before


def killed(*_: Any) -> None:
    os._exit(1)


def test_a_process_that_is_killed_is_one_sentence_and_nothing_is_written(
    drawn: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redraw, "_draw", killed)
    before = {path: path.stat().st_mtime_ns for path in (drawn / "out").iterdir()}
    status, said = drawing(drawn, capsys)
    assert status == 1
    assert said.strip() == f"error: {KILLED}"
    assert {path: path.stat().st_mtime_ns for path in (drawn / "out").iterdir()} == before


def figure(**changes: Any) -> Figure:
    values = {"y": [1.0, 2.0], "bar": 3.0, "dot": 4.0, "limit": 5}
    values |= {"words": "note", "label": "axis", "scale": "linear", **changes}
    shown = Figure()
    axes = shown.subplots()
    axes.plot([1, 2], values["y"], label="one")
    axes.bar([1], [values["bar"]])
    axes.scatter([1], [values["dot"]])
    axes.text(1, 1, values["words"])
    axes.set(xlabel=values["label"], yscale=values["scale"], xlim=(0, values["limit"]))
    if "legend" in changes:
        axes.legend()
    return shown


def test_a_digest_changes_with_what_is_shown_and_not_with_a_rounding_a_look_or_a_drawing() -> None:
    before = plotted_digest(figure())
    others = {"y": [1.0, 2.001], "bar": 3.1, "dot": 4.1, "words": "other", "label": "other"}
    for name, change in {**others, "scale": "log", "limit": 6, "legend": True}.items():
        assert plotted_digest(figure(**{name: change})) != before, name
    shown = figure(y=[1.0, 2.0 + 1e-9])
    shown.axes[0].lines[0].set_color("red")
    assert plotted_digest(shown) == before
    shown.canvas.draw()
    assert plotted_digest(shown) == before
    assert digest_in("<svg></svg>") is None
    assert digest_in("<dc:description>plotted data 12ab</dc:description>") == "12ab"
