"""Pages of records without their pictures, and what they say: tables, verdicts, files."""

import contextlib
import dataclasses
import functools
import io
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from bench.core.record import Record, read_all
from figures import frame
from figures.__main__ import main
from figures.artifact import Artifact
from figures.claims.claims import Verdict
from figures.ledger.judging import claims_of, rules_of
from figures.registry import artifacts
from figures.text import csv
from figures.write import Drawn

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "results" / "reference"
RENDERED = ROOT / "figures" / "rendered" / "reference"
ARTIFACTS = artifacts()
CLAIMS = claims_of(ARTIFACTS.values())

#: By claim, what decides it and the artifact that it is judged on.
RULES = rules_of(ARTIFACTS.values())


def _of(name: str, records: Sequence[Record]) -> Artifact[Any]:
    """The artifact of records, whatever their experiments."""
    artifact = ARTIFACTS[name]
    found = tuple(dict.fromkeys(one.experiment for one in records if one.experiment not in artifact.lenders))
    return dataclasses.replace(artifact, experiments=found)


def pages(name: str, records: Sequence[Record], picture: bool = False) -> list[Drawn]:
    """The pages that an artifact makes of records, whatever their experiments."""
    artifact = _of(name, records)
    return dataclasses.replace(artifact, draw=artifact.draw if picture else None).render(records, CLAIMS)


def csvs(name: str, records: Sequence[Record]) -> list[str]:
    """The CSVs of these pages, without what is written about them, which takes as long as the tables."""
    artifact = _of(name, records)
    return [csv(artifact.table(page)).decode() for page in artifact.select(artifact.of(records))]


def page(name: str, records: Sequence[Record], picture: bool = False) -> Drawn:
    """The one page that they make."""
    [found] = pages(name, records, picture)
    return found


def text_of(drawn: Drawn, ending: str) -> str:
    """The content of the page's file with this ending."""
    return next(drawn.files[name] for name in drawn.files if name.endswith(ending)).decode()


def parsed(text: str, *index: str) -> pd.DataFrame:
    """A CSV as a table."""
    table = pd.read_csv(io.StringIO(text))
    return table.set_index(list(index)).sort_index() if index else table


def table(name: str, records: Sequence[Record], *index: str) -> pd.DataFrame:
    """The CSV of the one page that records make."""
    [text] = csvs(name, records)
    return parsed(text, *index)


@functools.cache
def _recorded(experiment: str) -> list[Record]:
    return read_all(REFERENCE, experiment)


@functools.cache
def committed(name: str, experiment: str | None = None) -> tuple[Record, ...]:
    """The committed records that an artifact is made of."""
    artifact = ARTIFACTS[name] if experiment is None else ARTIFACTS[name].for_experiment(experiment)
    names = dict.fromkeys((*artifact.experiments, *artifact.lenders))
    records = [one for name in names for one in _recorded(name)]
    return tuple(records[place] for place in artifact.of(records).index)


@functools.cache
def small_page(name: str) -> tuple[Record, ...]:
    """The committed records of the page of an artifact that shows fewest of them, but at least four."""
    records = committed(name)
    found = [tuple(records[place] for place in one.df.index) for one in ARTIFACTS[name].select(frame.of(records))]
    return min(found, key=lambda shown: (len(shown) < 4, len(shown)), default=())


def judged(claim: str, records: Sequence[Record]) -> Verdict:
    """The verdict on a claim of the last page that records make."""
    *_, (_, verdict) = RULES[claim][1].judge(records, CLAIMS, {claim})
    return verdict


def drawn_once(name: str, records: Path, out: Path) -> tuple[dict[str, bytes], str]:
    """The files that the command writes, by name, and what it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main([name, "--records", str(records), "--out", str(out)]) == 0
    return {path.name: path.read_bytes() for path in sorted(out.iterdir())}, printed.getvalue()


def refused(words: Sequence[str], folder: Path, capsys: Any) -> str:
    """The one sentence with which a command on the records in ``folder`` ends, before it has written anything."""
    assert main([*words, "--records", str(folder / "records"), *out_of(words, folder / "out")]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.endswith(".\n")
    assert said.err.count("\n") == 1
    assert not (folder / "out").is_dir()
    return said.err


GUARDED = """
import sys
class Guard:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "comera", "baselines", "hydra", "omegaconf", "galore_torch", "peft"}:
            raise AssertionError("drawing imported " + name)
sys.meta_path.insert(0, Guard())
from figures.__main__ import main
from figures.artifact import Artifact
status = main(sys.argv[1:])
assert "torch" not in sys.modules
sys.exit(status)
"""


def out_of(words: Sequence[str], folder: Path) -> list[str]:
    """The argument that names the folder of drawn files; the verdicts alone write none."""
    return [] if "claims" in words else ["--out", str(folder)]


def redrawn(words: Sequence[str], records: Path, out: Path) -> tuple[dict[str, bytes], str]:
    """The same by two processes of other hash seeds, which agree and import nothing heavy."""
    found = []
    for number in ("1", "2"):
        folder = out / number
        command = [sys.executable, "-c", GUARDED, *words, "--records", str(records)]
        done = subprocess.run(
            [*command, *out_of(words, folder)],
            cwd=ROOT,
            env={"PYTHONHASHSEED": number, "PYTHONPATH": str(ROOT), "HOME": str(out)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())} if folder.is_dir() else {}
        found.append((files, done.stdout.replace(str(folder), "")))
    assert found[0] == found[1]
    return found[0]
