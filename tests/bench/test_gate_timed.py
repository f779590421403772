"""The timed part of the gate: its rule on made-up samples, and the measurement on copies of the tree."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from small_cells import ROOT

from bench.gate import GateError, repeat
from bench.gate.timed import (
    FEWEST_ROUNDS,
    ROUNDS,
    SIGNIFICANCE,
    Pair,
    Rounds,
    Slowdown,
    Turn,
    Worker,
    decide,
    judge,
    measure,
    signed_rank_p,
    vanished,
)
from bench.gate.timed_worker import BENCHMARKS

PACKAGES = ("comera", "baselines", "bench")
TOLERANCE = 0.25


# The rank test.


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ([], 1),
        ([0.0, 0.0], 1),
        ([3], 1 / 2),
        ([-3], 1),
        ([1, 2, 3, 4, 5, 6, 7], 1 / 128),
        ([-1, -2, -3, -4, 5, 6, 7, 8, 9, 10], 43 / 1024),  # tables: rank sum 10 of n = 10, one-sided 0.042
        ([-5, 1, 2, 3, 4, 6, 7, 8], 10 / 256),  # rank sum 5 of n = 8: 0.039
        ([0, 1, 2], 1 / 4),  # zeros are left out
        ([1, 1, -1, 2], 4 / 16),  # ranks 2, 2, 2, 4
    ],
)
def test_signed_ranks_have_the_probabilities_of_the_tables(differences, p):
    assert signed_rank_p(differences) == p


@pytest.mark.parametrize("seed", range(5))
def test_signed_ranks_agree_with_all_signs_written_out(seed):
    sample = np.random.default_rng(seed).integers(-4, 7, 9)
    sizes = np.abs(sample[sample != 0])
    ranks = np.array([np.mean([np.sum(sizes < size) + 1, np.sum(sizes <= size)]) for size in sizes])
    observed = ranks[sample[sample != 0] > 0].sum()
    sums = [np.dot(signs, ranks) for signs in itertools.product((0, 1), repeat=len(ranks))]
    assert signed_rank_p(sample.tolist()) == np.mean(np.array(sums) >= observed)


def test_the_fewest_rounds_can_be_significant():
    assert signed_rank_p([1.0] * FEWEST_ROUNDS) < SIGNIFICANCE <= signed_rank_p([1.0] * (FEWEST_ROUNDS - 1))


# The decision.


def a_slowdown(factor, noise=0.02, rounds=20, seed=0):
    draw = np.random.default_rng(seed).normal(0, noise, (2, rounds))
    return Slowdown.between(factor * np.exp(draw[0]), np.exp(draw[1]))


def not_needed():
    raise AssertionError("measured again without need")


def test_a_confirmed_slowdown_is_a_regression():
    decision = decide(a_slowdown(1.5), TOLERANCE, lambda: a_slowdown(1.45, seed=1))
    assert decision.kind == "regression"
    assert str(decision).startswith(
        "regression, slower by 25% or more, twice: 1.493x [1.473, 1.508] of the base, p = 9.5e-07"
    )
    assert "; measured again 1.450x [" in str(decision)


def test_an_unconfirmed_slowdown_is_inconclusive():
    for second in (a_slowdown(1.0, seed=1), a_slowdown(1.2, seed=1), a_slowdown(1.3, noise=1.5, seed=1)):
        decision = decide(a_slowdown(1.5), TOLERANCE, lambda second=second: second)
        assert (decision.kind, decision.why) == ("inconclusive", "not confirmed")


def test_a_slowdown_below_the_tolerance_is_inconclusive():
    decision = decide(a_slowdown(1.2), TOLERANCE, not_needed)
    assert (decision.kind, decision.why) == ("inconclusive", "slower by less than 25%")


def test_a_large_but_insignificant_slowdown_is_inconclusive():
    tree = [3.0, 3.0, 3.0, 3.0, 3.0, 0.1, 0.1, 0.1, 0.1]
    decision = decide(Slowdown.between(tree, [1.0] * len(tree)), TOLERANCE, not_needed)
    assert (decision.kind, decision.why) == ("inconclusive", "not significant")
    assert str(decision).startswith("inconclusive, not significant: 3.000x [")


def test_a_faster_tree_is_unchanged():
    assert decide(a_slowdown(0.5), TOLERANCE, not_needed).kind == "unchanged"


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.15])
def test_noise_raises_no_alarm(noise):
    kinds = {
        decide(
            a_slowdown(1.0, noise, seed=2 * draw),
            TOLERANCE,
            lambda draw=draw: a_slowdown(1.0, noise, seed=2 * draw + 1),
        ).kind
        for draw in range(200)
    }
    assert "unchanged" in kinds
    assert "regression" not in kinds


def test_every_tolerance_is_that_of_the_gate():
    assert {benchmark.tolerance for benchmark in BENCHMARKS.values()} == {TOLERANCE}


def test_a_turns_ratio_is_the_median_of_its_pairs():
    turn = Turn([(2.0, 1.0), (9.0, 3.0), (1.0, 4.0)])
    assert turn.ratio == 2.0
    assert turn.medians() == (2.0, 3.0)


def test_the_parts_say_which_side_changed():
    rounds = Rounds([Turn([(1.0, 1.0)])], [Turn([(1.0, 2.0)])])
    assert rounds.parts() == "numerator 1.00x, denominator 0.50x"


# Copies of the tree, and real workers.


def a_copy(folder):
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def put_behind(path, line, more):
    """Write ``more`` behind the only line that ends the text ``line``."""
    text = path.read_text()
    assert text.count(line) == 1
    path.write_text(text.replace(line, line + more))


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """A copy whose contraction takes half as long again: two thirds of the tokens are multiplied twice, both ways."""
    tree = a_copy(tmp_path_factory.mktemp("slow"))
    merging = tree / "comera" / "contraction" / "merging.py"
    put_behind(
        merging,
        "    x_BN = x.reshape(-1, left_RN.shape[1])\n",
        "    x_BN = torch.cat((x_BN, x_BN[: 2 * len(x_BN) // 3]))\n",
    )
    put_behind(
        merging,
        "torch.addmm(bias, z_BR, right_RM)\n",
        "    y_BM = y_BM[: x.numel() // left_RN.shape[1]]\n",
    )
    return tree


@pytest.fixture(scope="module")
def older(tmp_path_factory):
    """A copy from before there was a look-up to measure; its gate timed something that is no longer timed."""
    tree = a_copy(tmp_path_factory.mktemp("older"))
    (tree / "bench" / "workloads" / "lookup.py").unlink()
    put_behind(
        tree / "bench" / "gate" / "timed_worker.py",
        "BENCHMARKS = {\n",
        '    "retired": Benchmark(_step, pairs=1),\n',
    )
    return tree


@pytest.fixture(scope="module")
def pair(slow, older):
    with Pair(slow, older) as pair:
        yield pair


@pytest.mark.slow
def test_a_slower_contraction_is_caught_by_name(pair, slow, older):
    name = "tt_linear/two_factors"
    rounds = measure(pair, name, ROUNDS)
    decision = judge(rounds, name, slow, older)
    assert decision.kind == "regression", f"{decision}; {rounds.parts()}"


def test_what_the_base_cannot_run_is_new(pair):
    rounds = measure(pair, "ttm_lookup/embedding", 2)
    assert rounds.missing
    assert rounds.missing.startswith("ModuleNotFoundError: No module named 'bench.workloads.lookup'")
    assert (len(rounds.tree), len(rounds.base)) == (2, 0)


def test_what_only_the_base_times_has_vanished(slow, older, tmp_path):
    assert vanished(older) == ["retired"]
    assert vanished(slow) == []
    assert vanished(tmp_path) == []  # no gate at all


def test_a_tree_under_test_that_cannot_run_is_no_regression(older):
    with Pair(older, None) as pair, pytest.raises(GateError, match=r"^ttm_lookup/embedding cannot run in the tree"):
        measure(pair, "ttm_lookup/embedding", 1)


def test_a_folder_without_the_packages_is_not_taken_for_the_installed_ones(tmp_path):
    with Worker(tmp_path) as worker:
        assert worker.turn("tt_linear/dense") == "ImportError: No package 'comera'"


def test_a_vanished_worker_is_no_verdict(tmp_path):
    with Worker(tmp_path) as worker:
        worker.process.kill()
        with pytest.raises(
            GateError, match=rf"^The worker of {tmp_path} ended during small_step/dense \(signal 9\)\.$"
        ):
            worker.turn("small_step/dense")
    assert worker.process.poll() is not None


def the_gate(tree, *arguments):
    """The timed part of a copy, as ``make gate`` runs it."""
    command = [sys.executable, "-m", "pytest", "tests/gate/test_timed.py", "--benchmark-enable", *arguments]
    # Without what pytest-xdist leaves in a worker's environment: pytest-benchmark times nothing in such a one.
    kept = (name for name in os.environ if name != "GATE_BASE" and not name.startswith("PYTEST_"))
    environment = {name: os.environ[name] for name in kept}
    shutil.copy(ROOT / "pyproject.toml", tree)
    shutil.copytree(ROOT / "tests" / "gate", tree / "tests" / "gate", ignore=shutil.ignore_patterns("__pycache__"))
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_without_a_base_nothing_is_judged(slow):
    done = the_gate(slow, "-k", "two_factors")
    assert done.returncode == 0, done.stdout
    assert "not judged, there is no base (the tree is no git repository): ratio " in done.stdout


def test_a_crashed_worker_gives_status_2(tmp_path):
    tree = a_copy(tmp_path)
    put_behind(
        tree / "bench" / "gate" / "timed_worker.py",
        '    """Answer requests until there are no more."""\n',
        "    os.abort()\n",
    )
    done = the_gate(tree, "-k", "two_factors")
    assert done.returncode == 2, done.stdout
    assert "ended during tt_linear/two_factors (signal 6)" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout


# Repetitions.


def test_bounds_of_the_alarm_rate():
    assert repeat.upper_bound(0, 60) == pytest.approx(1 - 0.05 ** (1 / 60))
    assert repeat.upper_bound(1, 60) == pytest.approx(0.0766, abs=1e-4)  # tables of Clopper and Pearson, one-sided
    assert repeat.upper_bound(5, 5) == pytest.approx(1)


@pytest.fixture
def no_measurement(monkeypatch):
    """Repetitions that measure nothing; the seeds that they were asked for."""
    numbers = []

    def made_up(tree, base, number, count):  # noqa: ARG001
        assert tree != base
        assert (tree / "comera").is_dir()
        numbers.append(number)
        return {"alarm": False, "benchmarks": {"a": {"kind": "unchanged"}}}

    monkeypatch.setattr(repeat, "_repetition", made_up)
    monkeypatch.setattr(repeat.signal, "signal", lambda *_: None)
    monkeypatch.setattr(repeat.torch, "set_num_threads", lambda _: None)
    return numbers


@pytest.fixture
def a_repository(tmp_path, monkeypatch):
    root = tmp_path / "repository"
    (root / "comera").mkdir(parents=True)
    (root / "comera" / "layers.py").write_text("one")
    git = ["git", "-c", "user.name=n", "-c", "user.email=e@example.org"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *command], cwd=root, check=True)
    monkeypatch.setattr(repeat, "ROOT", root)
    return root


@pytest.mark.usefixtures("a_repository")
def test_repetitions_go_on_where_they_were_stopped(no_measurement, tmp_path, capsys):
    path = tmp_path / "made" / "up.jsonl"
    repeat.main(["--repetitions", "2", "--into", str(path)])
    with path.open("a") as file:
        file.write('{"schema_ver')  # killed while it wrote
    repeat.main(["--repetitions", "4", "--into", str(path)])
    assert no_measurement == [0, 1, 2, 3]
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [record["repetition"] for record in records] == [0, 1, 2, 3]
    assert {record["threads"] for record in records} == {1}
    captured = capsys.readouterr()
    assert "4/4 repetitions, 0 alarms" in captured.err
    assert captured.out.endswith("0 alarms in 4 repetitions: at most 52.7 % false alarms (95 % bound); "
                                 "of 4 verdicts 4 unchanged\n")  # fmt: skip


@pytest.mark.usefixtures("a_repository", "no_measurement")
def test_repetitions_of_different_kinds_are_not_mixed(tmp_path, capsys):
    path = tmp_path / "up.jsonl"
    repeat.main(["--repetitions", "1", "--into", str(path)])
    with pytest.raises(SystemExit, match="2"):
        repeat.main(["--repetitions", "2", "--rounds", "9", "--into", str(path)])
    assert f"with {ROUNDS} rounds" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--repetitions", "0"], "error: --repetitions is 0; allowed: whole numbers from 1."),
        (["--rounds", "6"], "error: --rounds is 6; allowed: whole numbers from 7."),
        (["--summary", "--into", "FILE"], "line 1: no repetition of schema 1."),
        (["--no"], "unrecognized arguments: --no"),
    ],
)
def test_wrong_input_gets_a_sentence(arguments, sentence, tmp_path, capsys):
    file = tmp_path / "file.jsonl"
    file.write_text("[]\n")
    with pytest.raises(SystemExit, match="2"):
        repeat.main([str(file) if word == "FILE" else word for word in arguments])
    assert sentence in capsys.readouterr().err
