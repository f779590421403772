"""The gate as a command: exit statuses, what it prints, and how a baseline is accepted."""

import concurrent.futures
import functools
import json
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import pytest
from small_cells import assert_one_line

from bench.core.provenance import ROOT
from bench.gate import baseline, exact
from bench.gate.exact import ExactBenchmark
from bench.workloads.encoder import EncoderSettings
from bench.workloads.linear import LinearSettings

pytest_plugins = ["pytester"]

SMALL = ExactBenchmark("small", "linear", LinearSettings(8, 6), "dense", "cpu", batch_size=3)
OTHER = ExactBenchmark("other", "linear", LinearSettings(6, 8), "dense", "cpu", batch_size=3)
REFUSED = ExactBenchmark("refused", "encoder", EncoderSettings(), "lte", "cpu", batch_size=1)

#: Without plugins of pytest that the gate has no use for; one of them takes seconds to load.
PLAIN = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder for baselines, and two benchmarks that take no time."""
    folder = tmp_path / "baselines"
    monkeypatch.setattr(baseline, "FOLDER", folder)
    of(monkeypatch, SMALL, REFUSED)
    return folder


@pytest.fixture
def accepted(folder):  # noqa: ARG001 - it is where the baseline goes
    """The same, with their baseline."""
    baseline.main()
    return baseline.baseline_path()


def of(patch, *benchmarks):
    for module in (exact, baseline):
        patch.setattr(module, "all_benchmarks", lambda: list(benchmarks))


@pytest.fixture
def gate(pytester):
    """Runs the exact part in this process; returns the exit status and the lines it printed."""

    def run():
        result = pytester.runpytest_inprocess(str(ROOT / "tests" / "gate" / "test_exact.py"), *PLAIN)
        return result.ret, result.stdout.str()

    return run


def changed(path, change):
    """Let ``change`` alter a baseline, whose hash is then that of the altered content."""
    content = json.loads(path.read_text())
    change(content)
    content["content_hash"] = baseline._content_hash(content)
    path.write_text(json.dumps(content))


@pytest.mark.usefixtures("accepted")
def test_what_was_accepted_is_green(gate):
    status, output = gate()
    assert status == 0
    assert "3 green, 0 regressions, 0 could not run" in output


@pytest.mark.parametrize(
    ("earlier", "words"), [(53, "worse than the baseline"), (55, "better than the baseline: accept")]
)
def test_a_change_for_the_worse_and_one_for_the_better_end_with_1(accepted, gate, earlier, words):
    changed(accepted, lambda content: content["benchmarks"]["small"].update(parameters=earlier))
    status, output = gate()
    assert status == 1
    assert f"small: parameters was {earlier}, is 54 (" in output
    assert words in output
    assert "Traceback" not in output


@pytest.mark.usefixtures("accepted")
def test_a_new_and_a_vanished_benchmark_are_named(gate, monkeypatch):
    of(monkeypatch, SMALL, OTHER)
    status, output = gate()
    assert status == 1
    assert "regression: other: benchmark was absent, is present (new): accept with make gate-accept" in output
    assert "regression: refused: benchmark was present, is absent (vanished): accept with make gate-accept" in output
    assert "1 green, 2 regressions, 0 could not run" in output


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_it_goes_on_alone_when_its_other_process_dies(gate, monkeypatch):
    of(monkeypatch, *(replace(SMALL, name=f"small-{number}") for number in range(9)))
    baseline.main()
    dying = functools.partial(ProcessPoolExecutor, initializer=os._exit, initargs=(1,))
    monkeypatch.setattr(concurrent.futures, "ProcessPoolExecutor", dying)
    status, printed = gate()
    assert (status, "10 green, 0 regressions, 0 could not run" in printed) == (0, True), printed


@pytest.mark.usefixtures("folder")
def test_without_a_baseline_it_cannot_run(gate):
    status, output = gate()
    assert status == 2
    [line] = [line for line in output.splitlines() if line.startswith("could not run: ")]
    assert_one_line(line, baseline.torch_version(), "make gate-accept")


def edited_by_hand(path):
    path.write_text(path.read_text().replace('"parameters": 54', '"parameters": 55'))


def without_a_number(path):
    changed(path, lambda content: content["benchmarks"]["small"].pop("parameters"))


@pytest.mark.parametrize(
    "spoil",
    [
        edited_by_hand,
        lambda path: path.write_text("<<<<<<< HEAD"),
        lambda path: changed(path, lambda content: content.update(schema=2)),
        lambda path: changed(path, lambda content: content.update(torch="1.0")),
        without_a_number,
    ],
)
def test_a_spoilt_baseline_is_one_line_and_2(accepted, gate, spoil):
    spoil(accepted)
    status, output = gate()
    assert status == 2
    [line] = [line for line in output.splitlines() if line.startswith("could not run: ")]
    assert accepted.name in line
    assert "Traceback" not in output


def test_a_regression_beside_something_broken_is_a_regression(pytester):
    pytester.makeconftest((ROOT / "tests" / "gate" / "conftest.py").read_text())
    pytester.makepyfile(
        """
        import pytest
        from bench.gate import GateError, Regression

        def test_slower(): raise Regression("slower: 1.5 times")
        @pytest.mark.parametrize("number", [1, 2])
        def test_not_runnable(number): raise GateError("There is no disk.")
        def test_inconclusive(benchmark): benchmark.extra_info["verdict"] = "inconclusive: 1.1 times"
        """
    )
    result = pytester.runpytest_inprocess("-k", "not slower", *PLAIN)
    result.stdout.fnmatch_lines(
        ["could not run: There is no disk.", "remark: test_inconclusive: inconclusive: 1.1 times"]
    )
    assert result.ret == 2
    result = pytester.runpytest_inprocess(*PLAIN)
    result.stdout.fnmatch_lines(["regression: slower: 1.5 times", "1 green, 1 regressions, 1 could not run"])
    assert result.ret == 1
    assert pytester.runpytest_inprocess("-k", "inconclusive", *PLAIN).ret == 0
    assert pytester.runpytest_inprocess("-k", "nothing", *PLAIN).ret == 2


def test_accepting_shows_the_difference_and_makes_the_gate_green(accepted, gate, capsys, monkeypatch):
    changed(accepted, lambda content: content["benchmarks"]["small"].update(parameters=108))
    of(monkeypatch, SMALL, OTHER)
    capsys.readouterr()
    baseline.main()
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["small", "parameters", "108", "54", "-50", "%"] in lines
    assert ["other", "benchmark", "absent", "present", "new"] in lines
    assert ["refused", "benchmark", "present", "absent", "vanished"] in lines
    assert gate()[0] == 0


def test_the_committed_baselines_are_whole(monkeypatch):
    pinned = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
    files = sorted(baseline.FOLDER.glob("*.json"))
    assert f"torch-{pinned.removeprefix('torch==')}.json" in [file.name for file in files]
    for file in files:
        monkeypatch.setattr("torch.__version__", file.stem.removeprefix("torch-"))
        names = baseline.read_baseline()
        assert set(names) == {benchmark.name for benchmark in exact.all_benchmarks()}
        assert list(names) == sorted(names)
