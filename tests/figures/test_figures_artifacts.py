"""Artifacts as plug-ins: found by name, with claims of their own, for records of any workload, judged undrawn."""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import io
import pkgutil
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pandas as pd
import pytest
from made_up_lookups import lookup_campaign
from made_up_records import ARMS, CPU, CUDA, blocks, campaign, record
from made_up_sweeps import sweep_campaign
from made_up_toggles import toggled_campaign

import figures
from bench.core.record import Record, write
from figures import registry as module
from figures.__main__ import main
from figures.artifact import Artifact
from figures.claims.claims import Claim, Finding, Judgement, LedgerError, read_claims
from figures.claims.rule import REACHES, Rule
from figures.columns import frame
from figures.ledger.judging import claims_of, judge
from figures.page import drawn
from figures.page.captions import caption
from figures.records.select import Selected, pages_by_device
from figures.registry import ArtifactError, artifacts, register
from figures.report.page import page as report_page

CLAIM = Claim("clicks-per-watt", "clicks_table", "clicks", "made up", "value", 2.0, 2.0, "x", "public", "clicks")
OWN_CLAIM_LESS = len(claims_of(artifacts().values()))


def clicked(arm: str = "comera", batch: int = 8, means: tuple[float, ...] = (2.0, 4.0), **columns: object) -> Record:
    """A timed record of a workload without epoch and without sequences."""
    values = {"workload": "clicks", "experiment": "clicks", "sequence_length": 1, "pairing": "together"}
    return record(arm, batch, samples=blocks(list(means)), **(values | {"cell_id": f"{arm}-{batch}"} | columns))


def judged(claim: Claim, _: Selected, table: pd.DataFrame) -> Judgement:
    enough = len(table) >= (claim.low or 0)
    return Judgement("reproduced" if enough else "not reproduced", "made up.", [Finding("records", str(len(table)))])


CAPTION = """
{% import "notes.md.j2" as notes with context %}
# Clicks
{{ notes.device(page) }}

{{ notes.older(page) }}
{{ notes.last(page) }}
"""


def plug_in(**changes: object) -> Artifact:
    """An artifact as another package would bring it, with a claim of its own."""
    values = {
        "name": "clicks_table",
        "heading": "Clicks",
        "summary": "made-up clicks; a table per device",
        "experiments": ("clicks",),
        "select": pages_by_device,
        "table": lambda page: frame({"arm": one.arm, "batch": one.batch_size, "seed": one.seed} for one in page.shown),
        "caption": CAPTION,
        "rules": (Rule("clicks-per-watt", "clicks of comera", REACHES, judge=judged),),
        "claims": (CLAIM,),
    }
    return Artifact(**(values | changes))


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a test registers is forgotten after it."""
    monkeypatch.setattr(module, "_registered", {})


@pytest.mark.parametrize(
    ("machines", "words"),
    [
        (["one", "one"], " on 1 machine."),
        (["one", "other", "one"], " on 2 machines."),
        ([None, None], "."),
        ([None, "one", "one"], " on 1 machine (unknown for 1 of 3 records)."),
    ],
)
def test_a_page_says_on_how_many_machines_it_was_seen(machines: list[str | None], words: str) -> None:
    """Predictions and cells that did not run count for none."""
    records = [clicked(batch=1 + number, machine=machine) for number, machine in enumerate(machines)]
    idle = [record(measure="predict", machine="third"), record("lora", status="unsupported", machine="fourth")]
    [page] = pages_by_device([*records, *idle])
    [device] = caption(CAPTION, {"page": page, "table": page}).facts
    assert device.endswith(f"Recorded 2001-02-03{words}")


def test_a_page_of_predictions_names_no_machine() -> None:
    [page] = pages_by_device([record(measure="predict", machine="one")])
    [device] = caption(CAPTION, {"page": page, "table": page}).facts
    assert device.endswith("Recorded 2001-02-03.")


@pytest.mark.usefixtures("registry")
def test_a_plug_in_stands_in_commands_ledger_and_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    register(plug_in())
    records = [clicked(), clicked("dense")]
    write(records, tmp_path / "records")
    folders = ["--records", str(tmp_path / "records"), "--out", str(tmp_path / "out")]
    assert main(["clicks_table", *folders]) == 0
    assert "clicks-per-watt: reproduced" in capsys.readouterr().out
    stem = "clicks_table-made-up-cpu-2-threads"
    assert {path.name for path in (tmp_path / "out").iterdir()} == {f"{stem}.md", f"{stem}.csv"}
    tidy = pd.read_csv(tmp_path / "out" / f"{stem}.csv")
    assert (list(tidy.columns), list(tidy["arm"])) == (["arm", "batch", "seed"], ["comera", "dense"])
    entries = {entry.claim.id: entry for entry in judge(records)}
    assert len(entries) == OWN_CLAIM_LESS + 1
    entry = entries["clicks-per-watt"]
    assert (entry.outcome, entry.experiments) == ("reproduced", ("clicks",))
    assert entry.rule.expression == "clicks of comera >= published - tolerance"
    assert {one.outcome for name, one in entries.items() if name != "clicks-per-watt"} == {"not tested here"}
    html = report_page(records, artifacts(), claims_of(artifacts().values())).decode()
    assert '<section id="clicks_table">' in html
    assert '<tr id="claim-clicks-per-watt">' in html
    assert main(["claims", *folders[:2]]) == 0
    assert "clicks-per-watt" in capsys.readouterr().out


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "fig1"}, "artifact 'fig1' has a name that is taken; choose another."),
        ({"claims": (dataclasses.replace(CLAIM, id="lte-time"),)}, "brings a claim 'lte-time', of which there is one."),
        ({"rules": (Rule("lte-time", "x", judge=judged),)}, "the claim 'lte-time' has rules of fig1 and of clicks_ta"),
        ({"claims": ()}, "the ledger lacks the claim 'clicks-per-watt', which has a rule."),
        ({"rules": ()}, "has a claim 'clicks-per-watt', which no rule decides"),
    ],
)
def test_a_plug_in_that_cannot_be_is_one_sentence(
    changes: dict, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write([clicked()], tmp_path)
    point = EntryPoint("clicks", "made_up:ARTIFACT", "comera_bench.figures")
    monkeypatch.setattr(EntryPoint, "load", lambda _: plug_in(**changes))
    monkeypatch.setattr(module.importlib.metadata, "entry_points", lambda group: [point] * (group == point.group))
    module._found.cache_clear()
    try:
        assert main(["claims", "--records", str(tmp_path)]) == 2
    finally:
        monkeypatch.undo()
        module._found.cache_clear()
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert words in said.err


@pytest.mark.usefixtures("registry")
def test_a_name_is_taken_once_and_an_entry_point_is_an_artifact(monkeypatch: pytest.MonkeyPatch) -> None:
    one = register(plug_in())
    assert register(one) is one
    assert list(artifacts())[-1] == "clicks_table"
    with pytest.raises(ArtifactError, match="'clicks_table' has a name that is taken"):
        register(plug_in())
    with pytest.raises(ArtifactError, match="'fig1' has a name that is taken"):
        register(plug_in(name="fig1"))
    points = {"a number": 3, "an error": None}
    for name, content in points.items():
        point = EntryPoint(name, "made_up:ARTIFACT", "comera_bench.figures")
        monkeypatch.setattr(EntryPoint, "load", lambda _, content=content: content + 0)
        monkeypatch.setattr(module.importlib.metadata, "entry_points", lambda point=point, **_: [point])
        with pytest.raises(ArtifactError, match=f"artifact '{name}' of made_up:ARTIFACT (is a int|cannot be imported)"):
            module._found.__wrapped__()


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("register(plug_in(name='of_a_module'))", ""),
        ("register(plug_in(name='fig1'))", "artifact 'fig1' has a name that is taken; choose another."),
        ("1 / 0", "FIGURES_PLUGINS has 'my_figures', which cannot be imported (ZeroDivisionError: division by zero)."),
    ],
)
def test_modules_named_in_the_environment_register_theirs(
    content: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    head = "from figures.registry import register\nfrom test_figures_artifacts import plug_in\n"
    (tmp_path / "my_figures.py").write_text(head + content)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("FIGURES_PLUGINS", "my_figures")
    monkeypatch.delitem(sys.modules, "my_figures", raising=False)
    write([clicked()], tmp_path / "records")
    name = "fig1" if words else "of_a_module"
    status = main([name, "--records", str(tmp_path / "records"), "--out", str(tmp_path / "out")])
    sys.modules.pop("my_figures", None)
    said = capsys.readouterr().err
    assert (status, said) == ((2, f"{words}\n") if words else (0, ""))


@pytest.mark.slow
def test_the_ledger_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bytes:
        raise AssertionError("drawn")

    monkeypatch.setattr(drawn, "to_bytes", fail)
    records = [*campaign(CUDA), *lookup_campaign(CUDA), *toggled_campaign(CUDA), *sweep_campaign(CUDA)]
    assert sum(bool(entry.verdicts) for entry in judge(records)) >= 10
    page = artifacts()["fig1"].render(records, read_claims())[0]
    assert page.to_text()  # nor is a picture drawn before its file is asked for
    with pytest.raises(AssertionError, match="drawn"):
        page.files[next(iter(page.files))]


def csv_of(page: drawn.Drawn) -> pd.DataFrame:
    """The CSV of a page."""
    [name] = [name for name in page.files if name.endswith(".csv")]
    return pd.read_csv(io.BytesIO(page.files[name]))


CLICKS = [
    clicked(
        arm,
        batch,
        tuple(cost * one for one in (10.0, 12.0, 11.0)),
        predicted_for="cpu",
        peak_memory_predicted_mib=50.0 * cost,
    )
    for arm, cost in (("comera", 1.0), ("dense", 2.0))
    for batch in (8, 512)
]


@pytest.mark.parametrize("name", ["fig1", "fig7"])
def test_any_workload_has_a_page_of_time_and_memory(name: str) -> None:
    [drawn] = artifacts()[name].for_experiment("clicks").render(CLICKS, read_claims())
    stem = f"{name}-made-up-cpu-2-threads-clicks"
    assert set(drawn.files) == {f"{stem}.{ending}" for ending in ("png", "svg", "md", "csv")}
    table = csv_of(drawn).set_index(["batch_size", "arm"])
    assert list(table.index) == [(batch, arm) for batch in (8, 512) for arm in ("comera", "dense")]
    assert table.loc[(8, "dense"), "step_time_ms"] == pytest.approx(22.0)
    assert table.loc[(512, "dense"), "time_over_comera"] == pytest.approx(2.0)
    assert table.loc[(8, "dense"), "cpu_peak_mib"] == pytest.approx(100.0)
    assert "clicks" in drawn.title
    text = drawn.files[f"{stem}.md"].decode()
    for foreign in ("Fig.", "epoch", "encoder", "length", "the paper", "CUDA device", *ARMS[1:-1]):
        assert foreign not in text, foreign
    assert drawn.verdicts == ()  # the claims are about another workload
    assert "step_time_ms" in drawn.files[f"{stem}.csv"].decode()


def test_an_epoch_is_what_the_record_says() -> None:
    words = {"model": "click model", "epoch": "An epoch is a day of clicks.", "examples_per_epoch": 1000}
    records = [dataclasses.replace(one, workload_words=words) for one in CLICKS]
    [drawn] = artifacts()["fig1"].for_experiment("clicks").render(records, read_claims())
    assert drawn.title == "Time per epoch and peak memory, click model"
    assert "An epoch is a day of clicks." in drawn.facts[1]
    table = csv_of(drawn).set_index(["batch_size", "arm"])
    assert table.loc[(8, "comera"), "epoch_time_s"] == pytest.approx(1.375)  # 11 ms at 125 steps
    assert drawn.table.loc[0, "epoch, seconds, batch 8"] == "1.38"


@pytest.mark.slow
def test_every_page_of_another_experiment_is_of_that_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write([*campaign(CPU), *CLICKS], tmp_path / "records")
    folders = ["--records", str(tmp_path / "records"), "--out", str(tmp_path / "out")]
    assert main(["fig1", "--experiment", "clicks", *folders]) == 0
    assert main(["fig1", *folders]) == 0
    names = {path.stem for path in (tmp_path / "out").iterdir()}
    assert names == {"fig1-made-up-cpu-2-threads-clicks", "fig1-made-up-cpu-2-threads"}
    assert "galore" not in capsys.readouterr().out.split("Written")[0]


MODULES = [name for _, name, _ in pkgutil.walk_packages(figures.__path__, "figures.") if "__main__" not in name]


def test_examples_in_docstrings() -> None:
    results = [doctest.testmod(importlib.import_module(name)) for name in MODULES]
    assert sum(result.failed for result in results) == 0
    assert sum(result.attempted for result in results) >= 20


def test_a_second_claim_of_one_name_is_an_error() -> None:
    with pytest.raises(LedgerError, match="artifact 'clicks_table' brings a claim 'clicks-per-watt', of which"):
        claims_of([plug_in(), plug_in()])
