"""The figure of docs/extending.md: drawn, judged and reported like the project's own; and what one can lack."""

import dataclasses
import re
import runpy
import sys
import types
from pathlib import Path

import pandas as pd
import pytest
from made_up import CUDA, epochs, record, toggled
from pages import ROOT, drawn_once, refused

from bench.core.record import Record, write
from figures import write as written
from figures.__main__ import main
from figures.claims.rule import Rule
from figures.ledger.judging import judge
from figures.registry import ArtifactError, artifacts

PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
[CODE] = re.findall(r"`weights_table\.py`:\n\n```python\n(.*?)```", PAGE, flags=re.DOTALL)
sys.modules["weights_table"] = types.ModuleType("weights_table")
exec(CODE, vars(sys.modules["weights_table"]))
ARTIFACT = sys.modules["weights_table"].ARTIFACT
[CLAIM] = ARTIFACT.claims


def sizes(comera: int = 6) -> list[Record]:
    """Records of two arms, dense with 255 parameters."""
    counts = {"comera": comera, "dense": 255}
    return [record(arm, experiment="weights", cell_id=arm, parameters=n) for arm, n in counts.items()]


def offered(monkeypatch: pytest.MonkeyPatch, artifact: object) -> None:
    """Let a module that the environment names offer an artifact."""
    module = types.ModuleType("another_module")
    module.ARTIFACT = artifact
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setenv("FIGURES_PLUGINS", module.__name__)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Records of the figure, which is known."""
    offered(monkeypatch, ARTIFACT)
    write(sizes(), tmp_path / "records")
    return tmp_path / "records"


def test_it_is_drawn_by_the_command_with_its_verdict(folder: Path, tmp_path: Path) -> None:
    written, printed = drawn_once("weights_table", folder, tmp_path / "out")
    stem = "weights_table-made-up-cpu-2-threads"
    assert set(written) == {f"{stem}.{ending}" for ending in ("svg", "md", "csv")}
    assert written[f"{stem}.csv"].decode().splitlines()[1:] == [
        '"Made-up CPU, 2 threads",comera,6',
        '"Made-up CPU, 2 threads",dense,255',
    ]
    assert "clicks-size: reproduced" in printed
    [line] = [line for line in written[f"{stem}.md"].decode().splitlines() if line.startswith("| clicks-size")]
    assert line.split(" | ")[2:4] == ["42.5x (dense over comera)", "reproduced"]
    [page] = ARTIFACT.render(sizes(), {})
    assert page.files == written


@pytest.mark.parametrize(("comera", "outcome"), [(6, "reproduced"), (255, "reproduced"), (256, "not reproduced")])
def test_its_claim_is_in_the_ledger(comera: int, outcome: str, monkeypatch: pytest.MonkeyPatch) -> None:
    offered(monkeypatch, ARTIFACT)
    [entry] = [entry for entry in judge(sizes(comera)) if entry.claim is CLAIM]
    assert (entry.outcome, entry.experiments) == (outcome, ("weights",))
    assert entry.rule.expression == "parameters of dense over comera >= published - tolerance"
    [entry] = [entry for entry in judge([record()]) if entry.claim is CLAIM]
    assert entry.outcome == "not tested here"
    assert entry.why.endswith("python -m bench experiment=weights.")


def test_help_and_claims_have_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert f"  {ARTIFACT.name} " in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["bench claims", "--records", str(folder), "--format", "csv"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module("figures.claims", run_name="__main__")
    assert end.value.code == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if CLAIM.id in line]
    assert "reproduced" in line
    assert "42.5x" in line


@pytest.mark.parametrize(
    ("artifact", "words"),
    [
        (("fig1",), "artifact of another_module lacks name"),
        (dataclasses.replace(ARTIFACT, name="fig1"), "artifact 'fig1' of another_module has a name that is taken"),
    ],
)
def test_what_is_no_new_artifact_is_one_sentence(
    artifact: object, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write([record()], tmp_path / "records")
    offered(monkeypatch, artifact)
    with pytest.raises(ArtifactError, match=words):
        artifacts()
    for word in ("fig1", "claims", "explore"):
        assert words in refused([word], tmp_path, capsys)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("ARTIFACT = dataclasses.replace(ARTIFACT, name='of_a_module')", ""),
        (
            "1 / 0",
            "error: FIGURES_PLUGINS has 'my_figures', which cannot be imported (ZeroDivisionError: division by zero).",
        ),
    ],
)
def test_modules_named_in_the_environment_offer_theirs(
    content: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    head = "import dataclasses\nfrom weights_table import ARTIFACT\n"
    (tmp_path / "my_figures.py").write_text(head + content)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("FIGURES_PLUGINS", "my_figures")
    monkeypatch.delitem(sys.modules, "my_figures", raising=False)
    write(sizes(), tmp_path / "records")
    name = "fig1" if words else "of_a_module"
    status = main([name, "--records", str(tmp_path / "records"), "--out", str(tmp_path / "out")])
    sys.modules.pop("my_figures", None)
    assert (status, capsys.readouterr().err) == ((2, f"{words}\n") if words else (0, ""))


#: Artifacts whose rules and claims are not about each other, and what is said.
UNMATCHED = {
    "a rule without its claim": ({"claims": ()}, "lacks the claim 'clicks-size', which has a rule"),
    "a claim without a rule": ({"rules": ()}, "claim 'clicks-size', which no rule decides"),
    "a claim that there is": (
        {"claims": (dataclasses.replace(CLAIM, id="lte-time"),)},
        "brings a claim 'lte-time', of which there is one",
    ),
    "a claim that another decides": (
        {"rules": (*ARTIFACT.rules, Rule("lte-time", "x", judge=ARTIFACT.rules[0].judge))},
        "'lte-time' has rules of fig1 and of weights_table",
    ),
}


@pytest.mark.parametrize(("change", "words"), UNMATCHED.values(), ids=UNMATCHED)
def test_claims_and_rules_that_do_not_match_are_one_sentence(
    change: dict[str, tuple],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offered(monkeypatch, dataclasses.replace(ARTIFACT, **change))
    write(sizes(), tmp_path / "records")
    assert re.search(words, refused(["claims"], tmp_path, capsys))
    if not change.get("claims", True):
        assert "no claim 'clicks-size'" in refused(["weights_table"], tmp_path, capsys)


def test_a_command_reads_the_records_that_others_lend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offered(monkeypatch, dataclasses.replace(ARTIFACT, name="made_up_lent", lenders=("lent",), claims=(), rules=()))
    for experiment, arm in (("weights", "comera"), ("lent", "dense"), ("other", "lora")):
        write([record(arm, experiment=experiment, cell_id=arm)], tmp_path / "records")
    drawn_once("made_up_lent", tmp_path / "records", tmp_path / "out")
    [table] = (tmp_path / "out").glob("*.csv")
    assert list(pd.read_csv(table)["arm"]) == ["comera", "dense"]


def test_the_ledger_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bytes:
        raise AssertionError("drawn")

    monkeypatch.setattr(written, "to_bytes", fail)
    records = [*epochs(CUDA), *(toggled(arm, "graph", [9.0, 9.5]) for arm in ("comera", "dense"))]
    assert sum(bool(entry.verdicts) for entry in judge(records)) >= 5
    page = artifacts()["fig1"].render(records, {entry.claim.id: entry.claim for entry in judge([])})[0]
    assert page.to_text()  # nor is a picture drawn before its file is asked for
    with pytest.raises(AssertionError, match="drawn"):
        page.files[next(iter(page.files))]
