"""Wrong inputs, generated: each is answered by one sentence and status 2, and changes nothing on the disk.

``python tests/robustness/wrong_inputs.py`` puts 500 of them to the commands, most in this process, some in processes of
their own, and writes how that ended, one JSON object a line, to ``results/reference/robustness/wrong_inputs.jsonl``.
"""

import contextlib
import io
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import hypothesis
from hypothesis import strategies as st

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "bench")]

from interrupted import files_in  # noqa: E402
from report import arguments_of, write_report  # noqa: E402
from small_cells import Ended, a_record, environment, last_of_each, run_bench, small, write_pairs  # noqa: E402

import bench.runner.sweep  # noqa: E402
import bench.workloads  # noqa: E402
import figures.__main__  # noqa: E402


@dataclass(frozen=True)
class Case:
    """Files to be written, and a command that must refuse them or its own arguments."""

    kind: str
    arguments: list[str]
    files: dict[str, bytes] = field(default_factory=dict)

    def described(self) -> dict[str, object]:
        """As a report has it."""
        return {"kind": self.kind, "arguments": [one[:200] for one in self.arguments], "files": sorted(self.files)}


# Settings of a run ----------------------------------------------------------------------------------------------------

WORDS = st.text("abcdefghijklmnopqrstuvwxyzäßλ-_.:/ ", min_size=1, max_size=12).filter(
    lambda text: (
        text.strip().lower() not in ("", "true", "false", "null", "nan", "inf", "on", "off", "yes", "no", "y", "n")
    )
)
ODD = st.sampled_from(
    [
        "nan",
        "-inf",
        "1e999",
        "[]",
        "[1]",
        "{}",
        "{a:1}",
        "[1",
        "''",
        "null",
        "${nothing}",
        "${",
        "'",
        "1.5",
        "-1.5",
        "true",
    ]
) | st.integers(max_value=-1).map(str)
WHOLE = (
    "batch_size",
    "sequence_length",
    "seed",
    "parallel",
    "timing.blocks",
    "timing.max_steps",
    "timing.warmup_steps",
    "timing.extra_blocks",
    "model.layers",
    "model.width",
    "model.heads",
    "model.feed_forward",
    "model.vocabulary",
    "model.positions",
    "settings.lora.rank",
    "settings.galore.rank",
    "settings.lte.heads",
)
REAL = ("timing.block_seconds", "timing.time_limit_s", "settings.dense.lr", "settings.galore.lr_projected")
FLAGS = ("cuda_graph", "compile", "fetch", "resume")
NAMES = ("workload", "measure", "device", "precision", "reuse", "timing.allocator")
NOT_REAL = ODD.filter(lambda text: text != "1.5")
NOT_A_NAME = ODD.filter(lambda text: text != "null") | WORDS


SETTINGS = st.one_of(
    st.tuples(st.sampled_from(WHOLE), ODD | WORDS),
    st.tuples(st.sampled_from(REAL), NOT_REAL | WORDS),
    st.tuples(st.sampled_from(FLAGS), ODD.filter(lambda text: text != "true") | WORDS),
    st.tuples(st.sampled_from(NAMES), NOT_A_NAME),
    st.tuples(WORDS.filter(lambda text: text.strip("-_.:/ ") not in ("", "name", "results", "seed")), st.just("1")),
    st.tuples(st.sampled_from(("seed", "batch_size")), st.integers(min_value=2**32).map(str)),
    st.tuples(st.just("methods"), st.sampled_from(["[]", "[sgd]", "[[dense]]", "{a:1}", "[dense:x]", "[{dense:1}]"])),
    st.tuples(st.just("results"), st.sampled_from(["/proc/x", "file/below", "file", "x" * 300, "''", "[a]"])),
    st.tuples(st.just("experiment"), WORDS),
).map("=".join)


@st.composite
def settings(draw: st.DrawFn) -> Case:
    """A run with a wrong setting among right ones."""
    wrong = draw(SETTINGS)
    right = [*small(Path("pairs"), Path("results")), "methods=[dense,comera]"]
    first = draw(st.sampled_from(["experiment=fig1", "experiment=steps", "experiment=accuracy_small"]))
    if first.endswith("small"):
        right.append("dataset=auto")
    if wrong.startswith("experiment="):
        first, wrong = wrong, "seed=0"
    return Case("settings", last_of_each([first, *right, wrong]), {"file": b"", **PAIRS})


# Records --------------------------------------------------------------------------------------------------------------

RECORD = json.loads(a_record(ratio=2.5, step_time_median_ms=1.5).to_json())
REQUIRED = (
    "cell_id",
    "code_id",
    "recorded_at",
    "experiment",
    "workload",
    "dataset",
    "method",
    "measure",
    "batch_size",
    "precision",
    "cuda_graph",
    "seed",
    "status",
    "device",
    "threads",
    "git_commit",
    "config_json",
)
ODD_COLUMNS = (
    {"status": "fine"},
    {"measure": "Odd one"},
    {"metrics": {"a": "x"}},
    {"metrics": [1]},
    {"experiment": "../x"},
    {"cell_id": ""},
    {"cell_id": "a/b"},
    {"samples": [1]},
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def wrong_type(name: str, value: object) -> bool:
    """Whether a value has another type than the record's."""
    whole_for_real = isinstance(RECORD[name], float) and isinstance(value, int) and not isinstance(value, bool)
    return type(value) is not type(RECORD[name]) and not whole_for_real


@st.composite
def record_bytes(draw: st.DrawFn) -> bytes:
    """The file of a record with something wrong."""
    raw = dict(RECORD)
    kind = draw(st.integers(0, 8))
    name = draw(st.sampled_from(REQUIRED))
    if kind == 0:
        del raw[name]
    elif kind == 1:
        raw[name] = draw(JSON.filter(lambda value: value is not None and wrong_type(name, value)))
    elif kind == 2:
        least = {"batch_size": 0, "sequence_length": 0, "threads": 0, "seed": -1, "step_time_median_ms": -1e-9}
        raw |= dict([draw(st.sampled_from(list(least.items())))])
    elif kind == 3:
        raw["config_json"] = draw(st.sampled_from(["", "[]", "1", '"x"', "{", '{"a": NaN}', "null", "[" * 100_000]))
    elif kind == 4:
        raw["schema_version"] = draw(st.sampled_from([None, 0, -1, 3, 10**6, "2", 1.5, True, [2]]))
    elif kind == 5:
        raw |= draw(st.sampled_from(ODD_COLUMNS))
    text = json.dumps(raw, indent=draw(st.sampled_from([None, 1])))
    if kind == 6:
        number = draw(
            st.sampled_from(["1e999", "-1e999", "NaN", "Infinity", "1" + "0" * 400, '"\\ud800"', '{"\\udc00": 1}'])
        )
        return text.replace('"samples": {}', f'"samples": {{"x": [{number}]}}').encode()
    if kind == 7:
        return text.encode()[: draw(st.integers(0, len(text) - 3))]
    if kind == 8:
        return draw(
            st.sampled_from([b"", b"\xff" + text.encode(), b"[]", b"3", b"[" * 100_000, b"{" * 9, b'{"a":' * 99_999])
        )
    return text.encode()


@st.composite
def records(draw: st.DrawFn) -> Case:
    """A command that reads a folder with one wrong record among right ones."""
    good = {f"records/fig1/some-device/{number:016x}.json": good_record(number) for number in range(2)}
    files = {**good, "records/fig1/some-device/wrong.json": draw(record_bytes())}
    files |= {name.replace("records/", "other/"): content for name, content in good.items()}
    commands = [
        ["figures", "fig1", "--records", "records", "--out", "out"],
        ["figures", "claims", "--records", "records"],
        ["figures", "explore", "--records", "records", "--out", "out"],
    ]
    return Case("records", draw(st.sampled_from(commands)), files)


def good_record(number: int, **changes: object) -> bytes:
    """The file of a record that can be read."""
    return a_record(cell_id=f"{number:016x}", experiment="fig1", device="some device", **changes).to_json().encode()


# Data, models, other commands -----------------------------------------------------------------------------------------

ROW = {"premise": "a", "hypothesis": "b", "label": "neutral"}


@st.composite
def data(draw: st.DrawFn) -> Case:
    """A run on data with a row that is wrong."""
    name = draw(st.sampled_from(sorted(ROW)))
    row = draw(
        st.one_of(
            st.just({key: value for key, value in ROW.items() if key != name}),
            JSON.filter(lambda value: not isinstance(value, str)).map(lambda value: {**ROW, name: value}),
            WORDS.map(lambda text: {**ROW, "label": f"{text}?"}),
            JSON.filter(lambda value: not isinstance(value, dict)),
        )
    )
    text = draw(
        st.just(json.dumps(row)) | st.sampled_from(["{", "[" * 100_000, "\x00", '{"a":' * 100_000, "premise\tlabel"])
    )
    files = dict(PAIRS)
    split = draw(st.sampled_from(sorted(files)))
    lines = files[split].splitlines()
    at = draw(st.integers(0, len(lines)))
    files[split] = b"\n".join([*lines[:at], text.encode(), *lines[at:]]) + b"\n"
    return Case("data", ["experiment=fig1", *small(Path("pairs"), Path("results")), "methods=[dense]"], files)


BERT = {
    "model_type": "bert",
    "hidden_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
}


@st.composite
def models(draw: st.DrawFn) -> Case:
    """A prediction for a Hugging Face configuration with a size that is none."""
    name = draw(
        st.sampled_from(["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size"])
    )
    odd = st.integers(max_value=-1) | WORDS | st.sampled_from([[], {}, "x"])
    text = draw(
        odd.map(lambda value: json.dumps({**BERT, name: value})) | st.sampled_from(["", "{", "[]", "3", "[" * 100_000])
    )
    command = ["predict", "method=dense", "model=config.json", "sequence_length=16", "device=h100"]
    return Case("models", command, {"config.json": text.encode()})


COMMANDS = (
    "predict method=dense {}",
    "predict method={}",
    "predict {}=1 method=dense",
    "predict method=dense batch_size={}",
    "predict method=dense device={}",
    "predict method=dense precision={}",
    "predict method=dense workload={}",
    "figures fig1 --records {}",
    "figures {}",
    "figures claims --format {}",
    "figures fig1 --records good --experiment {}",
    "{} experiment=fig1",
)


@st.composite
def commands(draw: st.DrawFn) -> Case:
    """A command with an argument that is none."""
    word = draw(WORDS.filter(lambda text: text.strip("-./: ") and text[0] not in "- " and text not in ("run", "h")))
    line = draw(st.sampled_from(COMMANDS))
    arguments = [part.format(f"{word}?") if "only" not in part else part.format(word) for part in line.split()]
    return Case("commands", arguments, {"file": b"", "good/fig1/d/a.json": good_record(3)})


# Putting them ---------------------------------------------------------------------------------------------------------


def pairs() -> dict[str, bytes]:
    """The files of a small corpus."""
    with tempfile.TemporaryDirectory() as folder:
        write_pairs(Path(folder) / "pairs", 60)
        return files_in(Path(folder))


PAIRS = pairs()

#: How many of each, of 500.
SHARES = {settings: 180, records: 165, commands: 80, data: 60, models: 15}
IN_PROCESSES = 25


def answer(folder: Path, case: Case, in_process: bool) -> Ended:
    """How the command ends in a folder with the case's files."""
    is_figure = case.arguments[0] == "figures"
    if in_process:
        command = [sys.executable, "-m", *([] if is_figure else ["bench"]), *case.arguments]
        done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
        return Ended(done.returncode, done.stdout, done.stderr)
    bench.workloads._opened.clear()
    if not is_figure:
        return run_bench(folder, *case.arguments)
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(output := io.StringIO()),
        contextlib.redirect_stderr(error := io.StringIO()),
    ):
        status = figures.__main__.main(case.arguments[1:])
    return Ended(status, output.getvalue(), error.getvalue())


def problem_with(case: Case, in_process: bool = False) -> str:
    """What is wrong with the answer to a wrong input; empty where nothing is."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        for path, content in case.files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        try:
            ended = answer(folder, case, in_process)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            return f"ended by {type(error).__name__}: {str(error)[:300]}"
        lines = ended.error.splitlines()
        if ended.status != 2:
            return f"status {ended.status}: {ended.error[-300:]}"
        if ended.output or not lines or "Traceback" in ended.error or len(lines) > 1:
            return f"no single sentence: {ended.output[-200:]} {ended.error[-400:]}"
        if case.arguments[0] != "figures" and not all(line.startswith("error: ") for line in lines):
            return f"no sentence of the bench: {ended.error[-400:]}"
        if len(ended.error) > 2000:
            return f"a sentence of {len(ended.error)} characters: {ended.error[:300]}"
        there = files_in(folder)
        return "" if there == case.files else f"the files have changed: {sorted(set(there) ^ set(case.files))[:5]}"


def drawn(strategy: st.SearchStrategy[Case], count: int, seed: int) -> list[Case]:
    """So many different cases."""
    found: dict[str, Case] = {}

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=4 * count + 50,
        database=None,
        phases=[hypothesis.Phase.generate],
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(strategy)
    def draw(case: Case) -> None:
        found.setdefault(repr(case), case)

    draw()
    step = max(len(found) // count, 1)  # early examples are the simplest: take some of all
    return list(found.values())[::step][:count]


def put(share: float, seed: int, processes: int, note: Callable[[str], None] = print) -> list[dict[str, object]]:
    """Put a share of all cases to the commands; lines of a report, the first one with the counts."""
    begun, counts, failures = time.monotonic(), Counter[str](), []
    cases = [case for strategy, count in SHARES.items() for case in drawn(strategy(), max(int(count * share), 1), seed)]
    step = max(len(cases) // max(processes, 1), 1)
    alone = cases[::step][:processes]
    unready = mock.Mock(side_effect=AssertionError("the sweep has started"))
    with mock.patch.object(bench.runner.sweep, "run_job", unready):
        for number, case in enumerate([*cases, *alone]):
            in_process = number >= len(cases)
            problem = problem_with(case, in_process)
            counts[f"{case.kind}, in a process of its own" if in_process else case.kind] += 1
            if problem:
                failures.append({**case.described(), "in_process": in_process, "problem": problem})
                note(json.dumps(failures[-1]))
    summary = {"inputs": sum(counts.values()), "failures": len(failures), "by_kind": dict(counts)}
    return [{**summary, "seconds": round(time.monotonic() - begun)}, *failures]


def main() -> None:
    """Put all of them and write the report."""
    given = arguments_of(__doc__, count=500)
    lines = put(given.count / 500, given.seed, round(IN_PROCESSES * given.count / 500))
    write_report("wrong_inputs", given, lines)


if __name__ == "__main__":
    main()
