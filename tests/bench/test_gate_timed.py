"""The timed part of the gate: its rule on made-up samples, and the measurement on copies of the tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time

import gate_power
import numpy as np
import pytest
from small_cells import ROOT

from bench.gate import GateError, timed_worker
from bench.gate.timed import LAUNCHES, Measured, Turn, Worker, decide, estimate, judge, measure, vanished
from bench.gate.timed_worker import BENCHMARKS, Benchmark

PACKAGES = ("comera", "baselines", "bench")
TOLERANCE = 0.07


# The decision.


def launches(factor, within=0.03, between=0.015, seed=0, count=LAUNCHES, rounds=6):
    """Made-up slowdowns: launches differ, rounds within them too."""
    source = np.random.default_rng(seed)
    shift = source.normal(0, between, (count, 1))
    return (factor * np.exp(shift + source.normal(0, within, (count, rounds)))).tolist()


def not_needed():
    raise AssertionError("measured again without need")


def judged(factor, seed, **noise):
    return decide(
        launches(factor, seed=2 * seed, **noise), TOLERANCE, lambda: launches(factor, seed=2 * seed + 1, **noise)
    )


def test_a_confirmed_slowdown_is_a_regression():
    decision = decide(launches(1.5), TOLERANCE, lambda: launches(1.45, seed=1))
    assert decision.kind == "regression"
    assert str(decision).startswith("regression, slower by 7% or more, twice: 1.5")
    assert "x [1." in str(decision)
    assert " of the base; in further launches 1.4" in str(decision)


@pytest.mark.parametrize("second", [1.0, 1.04, 1.06])
def test_an_unconfirmed_slowdown_is_inconclusive(second):
    decision = decide(launches(1.5), TOLERANCE, lambda: launches(second, 0, 0))
    assert (decision.kind, decision.why) == ("inconclusive", "not confirmed")


def test_a_slowdown_below_the_tolerance_is_inconclusive():
    decision = decide(launches(1.05, 0.01, 0.001), TOLERANCE, not_needed)
    assert (decision.kind, decision.why) == ("inconclusive", "slower by less than 7%")


def test_a_slowdown_that_one_launch_of_all_does_without_is_no_regression():
    first, further = [[1.2] * 6, [1.2] * 6, [0.7] * 6], [[1.2] * 6, [1.2] * 6, [0.7] * 6]
    assert estimate(first).value == 1.2
    assert decide(first, TOLERANCE, lambda: further).kind == "inconclusive"


def test_a_faster_tree_is_unchanged():
    assert decide(launches(0.5), TOLERANCE, not_needed).kind == "unchanged"


def test_rounds_of_few_launches_are_no_evidence():
    """Launch by launch a benchmark may be fast or slow; however many rounds each has, the interval says so."""
    wide = estimate([[1.0] * 50, [1.2] * 50, [1.1] * 50])
    assert (wide.low, wide.high) == (1.0, 1.2)


@pytest.mark.parametrize(("within", "between"), [(0.01, 0.0), (0.03, 0.015), (0.06, 0.02)])
def test_noise_raises_no_alarm(within, between):
    kinds = [judged(1.0, seed, within=within, between=between).kind for seed in range(60)]
    assert "unchanged" in kinds
    assert "regression" not in kinds


@pytest.mark.slow
def test_slowdowns_are_caught_despite_differences_between_launches():
    """The project's aims: of 60 at 10 % 48 are caught, at 15 % 59."""
    for factor, aim in ((1.10, 48), (1.15, 59)):
        assert sum(judged(factor, seed).kind == "regression" for seed in range(60)) >= aim


def test_every_tolerance_is_that_of_the_gate():
    assert {benchmark.tolerance for benchmark in BENCHMARKS.values()} == {TOLERANCE}


def test_full_size_steps_are_timed_on_their_own():
    assert {"full_step/comera", "full_step/dense"} <= set(BENCHMARKS)


def test_a_turns_value_is_the_median_ratio_or_the_median_time():
    turn = Turn([(2.0, 1.0), (9.0, 3.0), (1.0, 4.0)])
    assert turn.value == 2.0
    assert turn.medians() == (2.0, 3.0)
    assert Turn([[3.0], [1.0], [2.0]]).value == 2.0


def test_the_parts_say_which_side_changed():
    measured = Measured([[[Turn([(1.0, 1.0)])]], [[Turn([(1.0, 2.0)])]]])
    assert measured.parts(1) == "numerator 1.00x, denominator 0.50x"
    assert measured.slowdowns(1) == [[2.0]]


# The clock.


def test_time_without_a_core_does_not_count():
    """Two loops on one core: each is ready to run for twice as long as it runs."""
    if not timed_worker._SCHEDULED:
        pytest.skip("no file says how long a thread waited for a core")
    core = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, {{{core}}})\nprint(flush=True)\nwhile True: pass"
    before = os.sched_getaffinity(0)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as other:
        try:
            other.stdout.readline()
            os.sched_setaffinity(0, {core})
            wall, start, work = time.perf_counter(), timed_worker._clock(), time.thread_time()
            while time.thread_time() < work + 0.2:
                pass
            wall, own = time.perf_counter() - wall, timed_worker._clock() - start
        finally:
            os.sched_setaffinity(0, before)
            other.kill()
    assert wall > 0.3
    assert 0.19 < own < 0.26


def test_waiting_counts():
    start = timed_worker._clock()
    time.sleep(0.05)
    assert timed_worker._clock() - start > 0.045


def test_a_planted_slowdown_is_the_share_it_says():
    def half_a_tenth():
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            pass

    (above, below), *_ = timed_worker._turn(
        (timed_worker._slowed(half_a_tenth, 0.5), half_a_tenth), Benchmark(tuple, repeats=1, lost=0)
    )
    assert above / below == pytest.approx(1.5, abs=0.1)


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
        '    "retired": Benchmark(_lookup, repeats=1),\n',
    )
    return tree


@pytest.mark.slow
def test_a_slower_contraction_is_caught_by_name(slow, older):
    name = "tt_linear/two_factors"
    measured = measure([slow, older], [name])[name]
    decision = judge(measured, name, [slow, older], 1)
    assert decision.kind == "regression", f"{decision}; {measured.parts(1)}"


@pytest.mark.slow
def test_what_a_base_cannot_run_is_new(slow, older):
    measured = measure([slow, older], ["ttm_lookup/embedding"], launches=1)["ttm_lookup/embedding"]
    assert measured.missing[1].startswith("ModuleNotFoundError: No module named 'bench.workloads.lookup'")
    assert [len(launch) for launch in (*measured.turns[0], *measured.turns[1])] == [10, 0]
    assert measured.value().startswith("ratio ")


def test_what_only_the_base_times_has_vanished(slow, older, tmp_path):
    assert vanished(older) == ["retired"]
    assert vanished(slow) == []
    assert vanished(tmp_path) == []  # no gate at all


def test_a_tree_under_test_that_cannot_run_is_no_regression(older):
    with pytest.raises(GateError, match=r"^ttm_lookup/embedding cannot run in the tree"):
        measure([older], ["ttm_lookup/embedding"], launches=1)


def test_a_folder_without_the_packages_is_not_taken_for_the_installed_ones(tmp_path):
    with Worker(tmp_path) as worker:
        assert worker.answer() == {}
        worker.ask("make tt_linear/dense", "tt_linear/dense")
        assert worker.answer() == {"missing": "ImportError: No package 'comera'"}


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
    assert "not judged, there is no base (the tree is no git repository); ratio " in done.stdout


@pytest.mark.slow
def test_a_crashed_worker_gives_status_2(tmp_path):
    tree = a_copy(tmp_path)
    put_behind(
        tree / "bench" / "gate" / "timed_worker.py",
        '    """Answer requests until there are no more."""\n',
        "    os.abort()\n",
    )
    done = the_gate(tree, "-k", "two_factors")
    assert done.returncode == 2, done.stdout
    assert "ended during its start (signal 6)" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout


# The committed study of the rule (``tools/gate_power.py``).


def repetitions(name):
    return gate_power.read(ROOT / "results" / "reference" / "gate" / f"{name}.jsonl")


def test_the_study_sums_up_its_records(capsys):
    gate_power.main(["--summary", "--into", str(ROOT / "results" / "reference" / "gate" / "quiet.jsonl")])
    assert "0 alarms in 30 repetitions: at most 9.5 % false alarms" in capsys.readouterr().out


@pytest.mark.slow
def test_the_committed_repetitions_have_no_alarm_and_catch_a_slowdown_of_all():
    quiet, busy = repetitions("quiet"), repetitions("busy")
    assert [len(quiet), len(busy)] == [30, 30]
    assert not any(record["alarm"] or record["planted"] for record in (*quiet, *busy))
    for factor, least in ((1.10, 48), (1.15, 59)):
        caught = 0
        for records in (quiet, busy):
            of = [(BENCHMARKS[name].tolerance, gate_power.blocks_of(records, name)) for name in BENCHMARKS]
            caught += sum(
                any(gate_power._caught(blocks[number], factor, tolerance)[0] for tolerance, blocks in of)
                for number in range(len(records))
            )
        assert caught >= least


@pytest.mark.parametrize("percent", [10, 15])
def test_every_committed_repetition_with_a_planted_slowdown_has_an_alarm(percent):
    records = repetitions(f"planted-{percent}")
    assert len(records) == 10
    assert all(record["alarm"] and record["planted"] == percent / 100 for record in records)
