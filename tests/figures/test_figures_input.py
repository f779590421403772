"""Wrong input to every word of ``python -m figures``: one sentence that names it, exit status 2, nothing written."""

import json
from collections.abc import Callable
from pathlib import Path

import made_up
import pytest
from made_up import epochs, failed, record, stages_of_accuracy, timed
from pages import redrawn, refused

from bench.core.record import SCHEMA_VERSION, Record, path_of, write
from bench.errors import TERMINAL
from figures import frame
from figures.__main__ import COMMANDS, main
from figures.registry import by_name

Prepare = Callable[[Path], object]


def edited(change: Callable[[str], str]) -> Prepare:
    """Records one of whose files was changed."""

    def prepare(root: Path) -> None:
        write(epochs(), root)
        path = path_of(epochs()[0], root)
        path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")

    return prepare


def columns(**values: object) -> Callable[[str], str]:
    return lambda text: json.dumps(json.loads(text) | values)


def of(*records: object) -> Prepare:
    return lambda root: write(list(records), root)  # type: ignore[arg-type]


def checked(error: float = 1e-6, **columns: object) -> Record:
    """A record of a table, which takes less than a picture."""
    check = {"name": "loss", "error": error, "tolerance": 1e-4, "passed": True, "message": ""}
    return record(measure="check", experiment="correctness", samples={"checks": [check]}, **columns)


def blocked(root: Path) -> None:
    write([checked()], root)
    (root.parent / "out").write_text("a file, not a folder", encoding="utf-8")


#: What is wrong with a folder of records whichever word reads it, and what is said.
FOLDERS: dict[str, tuple[Prepare, str]] = {
    "missing": (lambda _: None, "a folder with records is expected."),
    "empty": (lambda root: root.mkdir(), "no record"),
    "a file": (lambda root: root.write_text("x"), "a folder with records is expected."),
    "newer": (edited(columns(schema_version=SCHEMA_VERSION + 1)), f"this program reads up to {SCHEMA_VERSION}"),
    "schema 0": (edited(columns(schema_version=0)), "schema_version is 0; a whole number from 1"),
    "torn": (edited(lambda text: text[: len(text) // 2]), "; remove the file to measure its cell again."),
    "a list": (edited(lambda _: "[]"), ".json: "),
    "wrong type": (edited(columns(batch_size="many")), "batch_size"),
    "foreign": (edited(lambda _: '{"results": [1, 2]}'), ".json: "),
    "odd samples": (edited(columns(samples={"blocks": "none"})), "samples.blocks is a str"),
}


@pytest.mark.parametrize("word", ["fig1", "all", "claims", "explore"])
@pytest.mark.parametrize("folder", FOLDERS)
def test_records_that_cannot_be_read_are_one_sentence(
    word: str, folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare, message = FOLDERS[folder]
    prepare(tmp_path / "records")
    assert message in refused([word], tmp_path, capsys)


@pytest.mark.parametrize(
    ("words", "prepare", "message"),
    [
        (["fig99"], of(record()), "figure is 'fig99'; available: fig1, fig5, fig6, fig7"),
        ([], of(), "FIGURE"),
        (["fig1", "--recrods", "x"], of(), "--recrods"),
        (["claims", "--record", "x"], of(), "--record"),
        (["claims", "--format", "html"], of(record()), "'html'"),
        (["claims", "fig1"], of(record()), "claim is 'fig1'; allowed: time-epoch-speedup, "),
        (["explore", "--recrods", "x"], of(), "see python -m figures explore --help."),
        (["all", "--check", "--accept"], of(record()), "--accept"),
        (["all", "--check"], of(record()), "out"),  # there is no such folder to compare with
        (["fig1"], of(record(experiment="fig7")), "no record below fig1/ or fig1_memory/"),
        (["fig7"], of(record(measure="predict", experiment="fig7")), "no timed record below fig7/; make some with"),
        (
            ["fig12"],
            of(timed("galore", [1.0], experiment="ratios")),
            "ratios/ or ratios_memory/ is one that fig12 shows",
        ),
        (["table_correctness"], blocked, "no folder that can be written"),
        (["explore"], blocked, "no folder that can be written"),
        (["fig6"], of(record(experiment="accuracy")), "no training record below accuracy/ or pointer_stages/"),
        (
            ["fig6", "--experiment", "accuracy_small"],
            of(*stages_of_accuracy()),
            "below accuracy_small/; make some with",
        ),
        (["fig6", "--experiment", "../x"], of(record()), "--experiment is '../x'"),
        (["fig1", "--experiment", "clicks"], of(record()), "no record below clicks/; make"),
        (["fig1", "--experiment", "accuracy"], of(*stages_of_accuracy()), "no record below accuracy/ is one that fig1"),
        (["plans"], of(record(experiment="contraction")), "no record below contraction/"),
        (["table_mnli"], of(made_up.trained(samples={}, stored_mib=1.0)), "needs its learning curve"),
        (["table_mnli"], of(made_up.trained(config_json="{}")), "needs training.stages"),
    ],
)
def test_what_cannot_be_shown_is_one_sentence(
    words: list[str], prepare: Prepare, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(tmp_path / "records")
    assert message in refused(words, tmp_path, capsys)


@pytest.mark.parametrize("words", [["fig1"], ["all"], ["all", "--accept"], ["all", "--check"], ["explore"]])
def test_the_folder_to_write_to_is_checked_before_records_are_read(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    of(record())(tmp_path / "records")
    (tmp_path / "out").write_text("a file")

    def load(*_: object) -> None:
        pytest.fail("records are read")

    monkeypatch.setattr(frame, "load", load)
    assert "out" in refused(words, tmp_path, capsys)


@pytest.mark.parametrize("content", [None, "{", "[]", '{"points": [1], "model": "", "largest": [], "notes": []}'])
def test_what_is_no_prediction_is_one_sentence(
    content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "predictions.json"
    if content is not None:
        file.write_text(content)
    said = refused(["explore", "--model", str(file)], tmp_path, capsys)
    assert said.startswith("error: --model is '")


def test_on_a_full_disk_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root, out = tmp_path / "records", tmp_path / "out"
    name = "table_correctness-made-up-cpu-2-threads.csv"
    write([checked()], root)
    arguments = ["table_correctness", "--records", str(root), "--out", str(out)]
    assert main(arguments) == 0
    first = (out / name).read_bytes()
    write([checked(2e-6, recorded_at="2009-01-01T00:00:00+00:00")], root)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", full)
        assert main(arguments) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert "No space left on device" in said
    assert "goes on" not in said  # nothing is measured that could
    assert said.count("\n") == 1
    assert (out / name).read_bytes() == first
    assert main(arguments) == 0
    assert (out / name).read_bytes() != first
    assert not [path for path in out.iterdir() if path.suffix not in (".csv", ".md", ".html")]


# what is right


def test_help_tells_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert all(word in text for word in (*by_name(), "--records", "--out", "--experiment", "results/local"))


@pytest.mark.parametrize("command", ["", "fig1", *(one for one in COMMANDS if one != "draw")])
def test_the_help_of_a_command_fits_a_terminal(capsys: pytest.CaptureFixture[str], command: str) -> None:
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= TERMINAL


def test_folders_default_to_local_and_follow_the_records(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, arguments in (("local", []), ("reference", ["--records", "results/reference"])):
        write([checked(status="oom", message="made up")], Path("results") / name)
        assert main(["table_correctness", *arguments]) == 0
        assert len(list((Path("figures") / "rendered" / name).iterdir())) == 2
    assert "1.0e-06" in capsys.readouterr().out


def test_another_experiment_is_shown_alone_under_its_own_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = stages_of_accuracy(experiment="accuracy_small", dataset="synthetic")
    write([*stages_of_accuracy(), *small], tmp_path / "records")
    arguments = ["table_mnli", "--records", str(tmp_path / "records"), "--experiment"]
    assert main([*arguments, "accuracy_small", "--out", str(tmp_path / "out")]) == 0
    names = [f"{table}-made-up-cpu-2-threads-synthetic-accuracy-small" for table in ("table_mnli", "table_ranks")]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        f"{name}.{end}" for name in names for end in ("md", "csv")
    }
    assert "sst2" not in capsys.readouterr().out


LACKING = failed(timed("lte", [], 8), "unsupported", made_up.LTE_REASON)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "records", "stem"),
    [
        ("fig1", [*epochs(), LACKING], "fig1-made-up-cpu-2-threads"),
        ("fig7", made_up.graphs({32: 2.0}), "fig7-made-up-gpu-9000"),
        ("fig6", stages_of_accuracy(), "fig6-made-up-cpu-2-threads-sst2"),
        ("explore", epochs(), "explorer"),
    ],
)
def test_the_same_records_give_the_same_bytes_without_torch(
    words: str, records: list, stem: str, tmp_path: Path
) -> None:
    write(records, tmp_path / "records")
    files, printed = redrawn([words], tmp_path / "records", tmp_path / "out")
    assert {name.partition(".")[0] for name in files} == {stem}
    assert made_up.CPU in printed or "GPU" in printed or words == "explore"
