"""Draw every figure and table, in parallel: to write them, or to compare them with those that are there.

A page's Markdown and CSV are compared byte by byte. A picture is compared by what it shows
(:func:`figures.draw.plotted.plotted_digest`), which its SVG holds as a description.
"""

import multiprocessing
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Literal, NamedTuple

import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.core.processors import usable_processors
from bench.interrupts import shielded
from figures.ledger.judging import claims_of
from figures.registry import artifacts
from figures.write import Files

#: Kinds of files that are drawn; others in the folder, such as the explorer's page, are left alone.
SUFFIXES = (".md", ".csv", ".svg", ".png")


#: Files whose contents a drawing returns.
Contents = Literal["none", "differing", "all"]


class Redrawn(NamedTuple):
    """The files of an artifact beside those of the folder.

    Args:
        names: of all its files; none where there is no record that it shows.
        differing: those that are missing from the folder, or others than there.
        contents: of those that were asked for.
    """

    names: list[str]
    differing: list[str]
    contents: dict[str, bytes]


#: The frame that the processes of a pool share with the one that forked them.
_shared: dict[str, pd.DataFrame] = {}


def _draw(name: str, folder: Path, contents_of: Contents) -> Redrawn:
    """Draw one artifact from the shared frame of records and compare its files with those of the folder."""
    found = Redrawn([], [], {})
    for page in artifacts()[name].render(_shared["records"], claims_of(artifacts().values())):
        names = page.files.names_in(folder)
        other = [name for name in names if _differs(name, page.files, folder)]
        found.names.extend(names)
        found.differing.extend(other)
        wanted = {"none": (), "differing": other, "all": names}[contents_of]
        found.contents.update({name: page.files[name] for name in wanted})
    return found


def _differs(name: str, files: Files, folder: Path) -> bool:
    """Return whether a file is missing from the folder or would be another one; a PNG shows what its SVG does."""
    there = folder / name
    if not there.is_file():
        return True
    if there.suffix in (".md", ".csv"):
        return there.read_bytes() != files[name]
    svg = there.with_suffix(".svg")
    return not svg.is_file() or digest_in(svg.read_text(encoding="utf-8")) != files.plotted


def digest_in(svg: str) -> str | None:
    """Return the digest in a picture that :func:`figures.draw.style.to_bytes` made; None without one."""
    found = re.search(r"plotted data ([0-9a-f]+)", svg)
    return found[1] if found else None


def draw_all(records: pd.DataFrame, folder: Path, contents_of: Contents) -> Iterator[tuple[str, Redrawn]]:
    """Draw all artifacts by as many processes as there are processors, with a progress bar on a terminal.

    Yields each as it is done. An error in one of them is raised once those that have begun are done.
    """
    _shared["records"] = records
    console = Console(stderr=True)
    words = TextColumn("{task.description}")
    parts = (words, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    sizes = records["experiment"].value_counts()  # what takes longest comes first
    waiting = sorted(artifacts(), key=lambda name: -sizes.reindex(artifacts()[name].experiments).sum())
    with (
        shielded(),
        ProcessPoolExecutor(usable_processors(), multiprocessing.get_context("fork")) as pool,
        Progress(*parts, console=console, disable=not console.is_terminal, transient=True) as bar,
    ):
        task = bar.add_task("drawing", total=len(waiting))
        futures = {pool.submit(_draw, name, folder, contents_of): name for name in waiting}
        try:
            for future in as_completed(futures):
                bar.update(task, advance=1, description=futures[future])
                yield futures[future], future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def not_drawn(folder: Path, names: Sequence[str]) -> list[str]:
    """Files of the folder, of the kinds that are drawn, that are none of these."""
    known = set(names)
    return sorted(one.name for one in folder.iterdir() if one.suffix in SUFFIXES and one.name not in known)
