"""``python -m figures``: the same bytes from the same records, nothing heavy imported, bad input in one sentence."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pandas as pd
import pytest
from made_up_figure import ARTIFACT
from made_up_plans import planned
from made_up_records import CPU, CUDA, campaign, record
from made_up_training import pages_of, trained, training_campaign
from redrawn import redrawn

from bench.core.record import SCHEMA_VERSION, path_of, write
from figures import registry
from figures.__main__ import main
from figures.registry import artifacts

ARTIFACTS = artifacts()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made-up-records")
    write(campaign(CPU) + campaign(CUDA), root)
    return root


@pytest.mark.slow
def test_same_records_same_bytes_and_no_torch(folder: Path, tmp_path: Path) -> None:
    written, printed = redrawn("fig1", folder, tmp_path)
    assert "galore-memory-b1" in printed
    stems = ("fig1-made-up-cpu-2-threads", "fig1-made-up-gpu-9000")
    assert set(written) == {f"{stem}.{ending}" for stem in stems for ending in ("png", "svg", "md", "csv")}


@pytest.mark.slow
def test_same_training_records_same_bytes_and_no_torch(tmp_path: Path) -> None:
    root = tmp_path / "records"
    write(training_campaign() + training_campaign("nli_pool", seeds=(0, 1), device=CUDA), root)
    written, _ = redrawn("table_mnli", root, tmp_path / "out")
    stems = ("table_mnli-made-up-cpu-2-threads-sst2", "table_mnli-made-up-gpu-9000-nli-pool")
    assert set(written) == {f"{stem}.{ending}" for stem in stems for ending in ("md", "csv")}


def test_a_command_reads_the_records_that_others_lend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lent = dataclasses.replace(ARTIFACT, name="made_up_lent", lenders=("lent",), claims=(), rules=())
    monkeypatch.setattr(registry, "_registered", {lent.name: lent})
    for experiment, arm in (("made_up", "comera"), ("lent", "dense"), ("other", "lora")):
        write([record(arm, experiment=experiment, cell_id=arm, stored_mib=6.0)], tmp_path / "records")
    assert main([lent.name, "--records", str(tmp_path / "records"), "--out", str(tmp_path / "out")]) == 0
    [table] = (tmp_path / "out").glob("*.csv")
    assert list(pd.read_csv(table)["arm"]) == ["comera", "dense"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "endings"), [("fig6", 4), ("table_ranks", 2), ("truncation", 4)])
def test_training_records_in_any_order_give_the_same_bytes(name: str, endings: int) -> None:
    records = training_campaign() + training_campaign("nli_pool", seeds=(0, 1), device=CUDA)
    files, again = (
        {one: content for page in pages_of(name, some) for one, content in page.files.items()}
        for some in (records, records[::-1])
    )
    assert files == again
    assert {file.rpartition(".")[0] for file in files} == {
        f"{name}-made-up-cpu-2-threads-sst2",
        f"{name}-made-up-gpu-9000-nli-pool",
    }
    assert len(files) == 2 * endings


def test_another_experiment_is_shown_alone_under_its_own_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(training_campaign() + training_campaign("synthetic", experiment="accuracy_small"), tmp_path / "records")
    arguments = ["table_mnli", "--records", str(tmp_path / "records"), "--out", str(tmp_path / "out")]
    assert main([*arguments, "--experiment", "accuracy_small"]) == 0
    stem = "table_mnli-made-up-cpu-2-threads-synthetic-accuracy-small"
    assert {path.name for path in (tmp_path / "out").iterdir()} == {f"{stem}.md", f"{stem}.csv"}
    assert "sst2" not in capsys.readouterr().out


def test_folders_default_to_local_and_follow_the_records(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, arguments in (("local", []), ("reference", ["--records", "results/reference"])):
        write([record(status="oom", message="made up")], Path("results") / name)
        assert main(["fig1", *arguments]) == 0
        assert len(list((Path("figures") / "rendered" / name).iterdir())) == 4
    assert "comera, batch 1: made up." in capsys.readouterr().out


def test_help_tells_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    words = ("--records", "--out", "--experiment", "results/local", "figures/rendered", "accuracy_small")
    assert all(word in text for word in (*ARTIFACTS, *words))
    for artifact in ARTIFACTS.values():
        assert artifact.summary.split(";")[0] in " ".join(text.split())


def newer(root: Path) -> None:
    one = record()
    write([one], root)
    path = path_of(one, root)
    content = json.loads(path.read_text(encoding="utf-8")) | {"schema_version": SCHEMA_VERSION + 1}
    path.write_text(json.dumps(content), encoding="utf-8")


def misshapen(root: Path) -> None:
    write([record(samples={"blocks": "none"})], root)


def blocked(root: Path) -> None:
    write([record()], root)
    (root.parent / "out").write_text("a file, not a folder", encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "prepare", "message"),
    [
        (["fig99"], lambda root: write([record()], root), "figure is 'fig99'; available: fig1, fig5, fig6, fig7"),
        ([], None, "FIGURE"),
        (["fig1", "--recrods", "x"], None, "--recrods"),
        (["fig1"], None, "a folder with records is expected."),
        (["fig1"], lambda root: root.mkdir(), "no record below fig1/ or fig1_memory/"),
        (["fig1"], lambda root: write([record(experiment="fig7")], root), "no record below"),
        (
            ["fig7"],
            lambda root: write([record(measure="predict", experiment="fig7")], root),
            "no timed record below fig7/; make some with: make reproduce-fig7.",
        ),
        (["fig1"], newer, "this program reads up to"),
        (["fig1"], misshapen, "samples.blocks is a str"),
        (["fig1"], blocked, "no folder that can be written"),
        (
            ["fig6"],
            lambda root: write(campaign(CPU), root),
            "no training record below accuracy/ or code_stages/; make some with",
        ),
        (["fig6"], lambda root: write([record(experiment="accuracy")], root), "no training record below accuracy/"),
        (
            ["fig6", "--experiment", "accuracy_small"],
            lambda root: write(training_campaign(), root),
            "below accuracy_small/; make some with: python -m bench experiment=accuracy_small",
        ),
        (["fig6", "--experiment", "../x"], lambda root: write(training_campaign(), root), "--experiment is '../x'"),
        (["fig1", "--experiment", "clicks"], lambda root: write(campaign(CPU), root), "no record below clicks/; make"),
        (
            ["fig1", "--experiment", "accuracy"],
            lambda root: write(training_campaign(), root),
            "no record below accuracy/ is one that fig1 shows; make some with: python -m bench experiment=accuracy.",
        ),
        (["plans", "--experiment", "accuracy"], lambda root: write([planned()], root), "no record below accuracy/;"),
        (["plans"], lambda root: write([record(experiment="contraction")], root), "no record below contraction/"),
        (["plans"], lambda root: write([planned(samples={})], root), "its plans cannot be read"),
        (["table_ranks"], lambda root: write([trained(samples={}, stored_mib=1.0)], root), "needs its learning curve"),
        (["table_mnli"], lambda root: write([trained(config_json="{}")], root), "needs training.stages"),
    ],
)
def test_bad_input_gets_one_sentence_and_writes_nothing(
    arguments: list[str], prepare, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, out = tmp_path / "records", tmp_path / "out"
    if prepare is not None:
        prepare(root)
    assert main([*arguments, "--records", str(root), "--out", str(out)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.endswith(".\n")
    assert len(captured.err.strip().splitlines()) == 1
    assert not out.is_dir()
