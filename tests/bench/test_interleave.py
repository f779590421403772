"""Interleaving: arms alive together take turns, and one that fails takes no other with it."""

import itertools
import re
import subprocess
import sys
from collections import defaultdict

import odd_workers
import psutil
import pytest
from small_cells import ROOT, TIMING, a_cell, assert_one_line, environment

import bench.processes.interleave
import bench.processes.process
from bench.measures.run import time_cell
from bench.processes.interleave import time_cells
from bench.processes.process import CellFailure, CellProcess, Outcome
from bench.protocol import Data, Session

ARMS = ("comera", "dense", "galore", "lora")


class Arms:
    """Stand-ins for cell processes: they log what they are asked, and answer by their script."""

    def __init__(self):
        self.log = []
        self.alive = set()
        self.calibration = defaultdict(lambda: itertools.repeat(1.0))  # by arm: calibration product, block by block
        self.slowness = defaultdict(lambda: itertools.repeat(1.0))  # by arm: factor of a step, block by block
        self.failures = {}  # (arm, word): the failure; (arm, word, n): that of the n-th such request

    def __call__(self, serve, cell, data, time_limit_s):  # noqa: ARG002 - as CellProcess
        return StandIn(self, cell)

    def fail(self, arm, word):
        number = sum(entry == (arm, word) for entry in self.log)
        failure = self.failures.get((arm, word)) or self.failures.get((arm, word, number))
        if failure:
            raise CellFailure(*failure)


class StandIn:
    energy = None  # of a step, where the device counts any

    def __init__(self, arms, cell):
        self.arms, self.cell = arms, cell
        self.calibration = iter(arms.calibration[cell.arm])
        self.slowness = iter(arms.slowness[cell.arm])
        arms.alive.add(cell.arm)

    def answer(self):
        self.arms.log.append((self.cell.arm, "ready"))
        self.arms.fail(self.cell.arm, "ready")
        periods = {"svd": 200} if self.cell.method == "galore" else {}
        return {"step_ms": 10.0, "rare_periods": periods, "parameters": 1}

    def ask(self, word, content=None):
        assert self.cell.arm in self.arms.alive
        self.arms.log.append((self.cell.arm, word))
        self.arms.fail(self.cell.arm, word)
        if word == "rare":
            return {"svd": 123.0}
        if word == "energy":
            return self.energy and {
                **self.energy,
                "idle_w": content or 70.0 + self.arms.log.count((self.cell.arm, word)),
            }
        slow = 10.0 * next(self.slowness) * content - 10.0 * (content - 1)  # a single step has all of it
        return {"ms": [slow] + [10.0] * (content - 1), "calibration_ms": next(self.calibration)}

    def stop(self):
        self.arms.alive.discard(self.cell.arm)


@pytest.fixture
def arms(monkeypatch):
    arms = Arms()
    monkeypatch.setattr(bench.processes.interleave, "CellProcess", arms)
    yield arms
    assert not arms.alive, "every process is stopped"


def outcomes_of(mib=1.0, device="cpu", compile=False, **timing):
    timing_settings = {**TIMING, "blocks": 3, "extra_blocks": 2, "disturbed": 1.25, **timing}
    cells = [a_cell(method=name, timing_settings=timing_settings, device=device, compile=compile) for name in ARMS]
    return [Outcome(cell, columns={"peak_memory_predicted_mib": mib}) for cell in cells]


def session(advance=lambda cell, share, at="": None, needs_rare=lambda cell: True, note=pytest.fail):  # noqa: ARG005
    return Session(Data(), 2, advance, note=note, upkeep=pytest.fail, needs_rare=needs_rare)


def timed(outcomes, needs_rare=lambda cell: True, note=pytest.fail):  # noqa: ARG005
    """Time the outcomes and return them by arm; whatever happens, each arm's shares of progress add up to 1."""
    shares = defaultdict(list)

    def advance(cell, share, at=""):
        shares[cell.arm].append(share)
        assert re.fullmatch(r"(launch \d of \d, (started|block \d( beyond .*)?(, [\d.e+-]+ ms per step)?))?", at)

    time_cells(outcomes, time_cell, session(advance, needs_rare, note=note))
    found = {outcome.cell.arm: outcome for outcome in outcomes}
    assert {arm: sum(parts) for arm, parts in shares.items()} == pytest.approx(dict.fromkeys(found, 1.0))
    return found


def blocks_of(outcome):
    return outcome.columns["samples"]["blocks"]


def rounds(log):
    """The arms asked for a block, round by round: a round ends where an arm comes again."""
    result = [[]]
    for arm, word in log:
        if word == "block":
            if arm in result[-1]:
                result.append([])
            result[-1].append(arm)
    return result


def test_every_arm_runs_once_per_block_in_changing_order(arms):
    found = timed(outcomes_of(blocks=6))
    order = rounds(arms.log)
    assert [sorted(block) for block in order] == [sorted(ARMS)] * 6
    assert len({tuple(block) for block in order}) > 2
    for outcome in found.values():
        assert outcome.status == "ok"
        assert [block["block"] for block in blocks_of(outcome)] == list(range(6))
        assert not any(block["disturbed"] for block in blocks_of(outcome))


def test_each_launch_starts_all_arms_anew(arms):
    found = timed(outcomes_of(launches=3))
    assert [word for _, word in arms.log].count("ready") == 3 * len(ARMS)
    for outcome in found.values():
        names = [(block["launch"], block["block"]) for block in blocks_of(outcome)]
        assert names == [(launch, block) for launch in range(3) for block in range(3)]


def test_a_failure_in_a_later_launch_ends_that_arm_alone_and_keeps_its_blocks(arms):
    arms.failures["dense", "block", 5] = ("error", "made up")  # the second of its second launch
    found = timed(outcomes_of(launches=3))
    assert {arm: outcome.status for arm, outcome in found.items()} == {
        arm: "error" if arm == "dense" else "ok" for arm in ARMS
    }
    assert [(one["launch"], one["block"]) for one in blocks_of(found["dense"])] == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert len(blocks_of(found["comera"])) == 9
    assert [arm for arm, word in arms.log if word == "ready"].count("dense") == 2


def test_arms_on_a_gpu_prepare_side_by_side_and_then_show_alone_what_a_step_takes(arms, monkeypatch):
    monkeypatch.setattr(bench.processes.interleave, "free_memory_mib", lambda device: 1e6)  # noqa: ARG005
    alive, answer = [], StandIn.answer

    def answers_slowly(stand_in):
        alive.append(len(arms.alive))
        return {**answer(stand_in), "step_ms": 1000.0}  # beside the others

    monkeypatch.setattr(StandIn, "answer", answers_slowly)
    outcomes = outcomes_of(device="cuda", launches=1, block_seconds=0.1, max_steps=20)
    time_cells(outcomes, time_cell, session())
    assert alive == [len(ARMS)] * len(ARMS)
    assert arms.log[: 2 * len(ARMS)] == [(arm, word) for word in ("ready", "block") for arm in ARMS]
    for outcome in outcomes:
        assert [len(block["ms"]) for block in blocks_of(outcome)] == [10] * 3
        assert outcome.columns["step_ms"] == 10.0


@pytest.mark.parametrize(("device", "beside"), [("cpu", [1, 2, 3, 4]), ("cuda", [4, 4, 4, 4])])
def test_arms_that_compile_prepare_side_by_side_on_a_gpu(arms, monkeypatch, device, beside):
    monkeypatch.setattr(bench.processes.interleave, "free_memory_mib", lambda device: 1e6)  # noqa: ARG005
    alive, answer = [], StandIn.answer
    monkeypatch.setattr(StandIn, "answer", lambda self: (alive.append(len(arms.alive)), answer(self))[1])
    time_cells(outcomes_of(device=device, compile=True, launches=1), time_cell, session())
    assert alive == beside


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_energy_is_measured_in_every_launch_on_a_gpu_and_idle_power_once_in_it(arms, monkeypatch, device):
    monkeypatch.setattr(bench.processes.interleave, "free_memory_mib", lambda device: 1e6)  # noqa: ARG005
    monkeypatch.setattr(StandIn, "energy", {"energy_j": 3.0, "window_s": 2.0})
    arms.failures["comera", "block"] = ("error", "made up")
    found = timed(outcomes_of(device=device, launches=2))
    rows = {arm: outcome.columns["samples"].get("energy", []) for arm, outcome in found.items()}
    own = [{"launch": launch, "energy_j": 3.0, "window_s": 2.0, "idle_w": 71.0 + launch} for launch in range(2)]
    assert rows == {arm: own if device == "cuda" and arm != "comera" else [] for arm in ARMS}
    last_block = max(number for number, (_, word) in enumerate(arms.log) if word == "block")
    assert all(word == "energy" for _, word in arms.log[last_block + 1 :] if word != "rare")


@pytest.mark.usefixtures("arms")
def test_a_gpu_without_a_counter_of_energy_leaves_none(monkeypatch):
    monkeypatch.setattr(bench.processes.interleave, "free_memory_mib", lambda device: 1e6)  # noqa: ARG005
    for outcome in timed(outcomes_of(device="cuda", launches=1)).values():
        assert "energy" not in outcome.columns["samples"]


def test_a_disturbed_block_is_flagged_and_repeated(arms):
    arms.calibration["dense"] = [1.0, 1.3, 1.0, 1.0, 1.0]
    found = timed(outcomes_of())
    assert [block["disturbed"] for block in blocks_of(found["dense"])] == [False, True, False, False]
    assert [block["disturbed"] for block in blocks_of(found["comera"])] == [False] * 4  # pairs stay complete


def test_a_repeated_block_says_that_the_machine_was_busy(arms):
    arms.calibration["dense"] = [1.0, 1.3, 1.0, 1.0, 1.0]
    said = []
    time_cells(outcomes_of(), time_cell, session(lambda cell, _, at="": said.append((cell.arm, at))))
    busy = [(arm, at) for arm, at in said if "busy" in at]
    assert {arm for arm, _ in busy} == set(ARMS)
    words = r"launch \d of \d, block 4 beyond the planned ones, since the machine was busy, 10 ms per step"
    assert all(re.fullmatch(words, at) for _, at in busy)


def test_a_launch_that_is_slow_throughout_is_disturbed_and_repeated(arms):
    """Against the best of the job: its own median is as slow."""
    quiet, slow = [1.0] * 3, [2.0] * 5
    arms.calibration["dense"] = itertools.chain(quiet, slow, quiet)  # which the launches use up one after another
    found = timed(outcomes_of(launches=3))
    flags = [(block["launch"], block["disturbed"]) for block in blocks_of(found["dense"])]
    assert flags == [(0, False)] * 3 + [(1, True)] * 5 + [(2, False)] * 3
    assert not any(block["disturbed"] for arm in set(ARMS) - {"dense"} for block in blocks_of(found[arm]))


def test_an_arm_that_fails_midway_is_an_outcome_and_the_others_go_on(arms):
    arms.failures["galore", "block", 2] = ("error", "for a reason")
    found = timed(outcomes_of())
    assert (found["galore"].status, found["galore"].message) == ("error", "for a reason")
    assert [block["block"] for block in blocks_of(found["galore"])] == [0]
    assert ("galore", "rare") not in arms.log
    for arm in set(ARMS) - {"galore"}:
        assert found[arm].status == "ok"
        assert len(blocks_of(found[arm])) == 3


def test_an_arm_that_runs_out_of_memory_beside_others_runs_again_alone(arms):
    arms.failures["galore", "block", 2] = ("oom", "no memory")
    notes = []
    found = timed(outcomes_of(), note=lambda cell, text: notes.append((cell.arm, text)))
    assert notes == [("galore", "no memory; beside 3 other arms, so it runs again alone")]
    assert (found["galore"].status, found["galore"].message) == ("ok", "")
    assert {arm for arm, _ in arms.log[-4:]} == {"galore"}  # after all others
    assert {arm: len(blocks_of(outcome)) for arm, outcome in found.items()} == dict.fromkeys(ARMS, 3)
    assert {arm for arm, outcome in found.items() if "pairing" in outcome.columns} == {*ARMS} - {"galore"}


def test_one_that_does_not_fit_alone_either_is_out_of_memory(arms):
    arms.failures["galore", "ready"] = ("oom", "no memory")
    found = timed(outcomes_of(), note=lambda *_: None)
    assert (found["galore"].status, found["galore"].message) == ("oom", "no memory")
    assert blocks_of(found["galore"]) == []
    assert [entry for entry in arms.log if entry == ("galore", "ready")] == [("galore", "ready")] * 2
    assert all(found[arm].status == "ok" for arm in {*ARMS} - {"galore"})


@pytest.mark.parametrize("wanted", [True, False])
def test_rare_events_are_timed_where_they_are_needed(arms, wanted):
    asked = []
    found = timed(outcomes_of(), lambda cell: asked.append(cell.arm) or wanted)
    assert asked == ["galore"]  # the others have none
    assert [entry for entry in arms.log if entry[1] == "rare"] == [("galore", "rare")] * wanted
    assert found["galore"].columns["samples"].get("rare") == ({"svd": [123.0]} if wanted else None)


def test_a_pairing_is_shared_by_exactly_the_arms_timed_together(arms):
    first = timed(outcomes_of())
    arms.calibration.clear()
    arms.calibration["dense"] = itertools.repeat(1.01)
    second = timed(outcomes_of())
    names = [{outcome.columns["pairing"] for outcome in found.values()} for found in (first, second)]
    assert [len(pairing) for pairing in names] == [1, 1]
    assert names[0] != names[1]


def test_arms_that_do_not_fit_together_run_alone_and_unpaired(arms, monkeypatch):
    monkeypatch.setattr(bench.processes.interleave, "free_memory_mib", lambda device: 1000.0)  # noqa: ARG005
    notes = []
    found = timed(outcomes_of(mib=1.0), note=lambda cell, text: notes.append((len(arms.log), cell.arm, text)))
    [(begun, arm, text)] = notes
    assert (begun, arm) == (0, ARMS[0])  # before any arm has started
    assert_one_line(text, "2,004 MiB", "1,000 MiB", "unpaired")  # most of it is of the processes, not of their tensors
    assert [arm for arm, word in arms.log if word == "ready"] == list(ARMS)
    assert [arm for arm, _ in itertools.groupby(arm for arm, _ in arms.log)] == list(ARMS)
    for outcome in found.values():
        assert outcome.status == "ok"
        assert len(blocks_of(outcome)) == 3
        assert "pairing" not in outcome.columns


def test_an_arm_that_cannot_fit_is_not_started(arms, monkeypatch):
    monkeypatch.setattr(bench.processes.interleave, "free_memory_mib", lambda device: 1000.0)  # noqa: ARG005
    outcomes = outcomes_of()
    outcomes[1].columns["peak_memory_predicted_mib"] = 700.0
    found = timed(outcomes, note=lambda *_: None)
    assert found["dense"].status == "oom"
    assert_one_line(found["dense"].message, "1,200 MiB", "1,000 MiB")
    assert found["dense"].columns["samples"] == {"lacks": "memory"}
    assert ("dense", "ready") not in arms.log
    assert found["comera"].status == "ok"


# Real processes.

TROUBLE = {
    "raises": ("error", "RuntimeError: the arm is broken"),
    "hangs": ("timeout", "not finished after time_limit_s=2.5"),
    "is_killed": ("oom", "the process was killed (signal 9), most likely for want of memory"),
    "exits": ("error", "the process ended unexpectedly (exit code 3)"),
}
LIMIT_S, PATIENCE_S = 2.5, 60.0


def limit_of(what: str) -> dict[str, float]:
    """Short for what hangs; what ends by itself has time, however loaded the machine is."""
    return {"time_limit_s": LIMIT_S if what == "hangs" else PATIENCE_S}


@pytest.fixture(scope="module")
def server(cell_processes):  # noqa: ARG001
    """The server that processes are forked from, up and running, so that its start counts for no cell's limit."""
    process = CellProcess(odd_workers.odd_time_cell, a_cell(), Data(), 60.0)
    process.answer()
    process.stop()


@pytest.mark.slow
@pytest.mark.usefixtures("server")
def test_broken_processes_become_outcomes_beside_one_that_works():
    broken = [f"building {what}" for what in TROUBLE if what != "hangs"] + [f"running {what}" for what in TROUBLE]
    outcomes = [
        Outcome(
            a_cell(experiment=name, timing_settings={**TIMING, **limit_of(name.partition(" ")[2])}),
            columns={"peak_memory_predicted_mib": 1.0},
        )
        for name in ("works", *broken)
    ]
    before = set(psutil.Process().children(recursive=True))
    time_cells(outcomes, odd_workers.odd_time_cell, session(note=lambda *_: None))
    assert {outcome.cell.experiment: (outcome.status, outcome.message) for outcome in outcomes} == {
        "works": ("ok", ""),
        **{name: TROUBLE[name.partition(" ")[2]] for name in broken},
    }
    assert [len(blocks_of(outcome)) for outcome in outcomes] == [2] + [0] * len(broken)
    assert set(psutil.Process().children(recursive=True)) <= before


ASKING = """
import torch

asked = []
torch.cuda.is_available = lambda: asked.append("is_available") or True
torch.cuda.device_count = lambda: asked.append("device_count") or 1
torch.cuda.get_device_capability = lambda *_: asked.append("get_device_capability") or (9, 0)
import bench.runner.preload.each_cell
import bench.runner.preload.galore
import bench.runner.preload.lora
print(list(asked), torch.cuda.is_available())
"""


@pytest.mark.slow
def test_what_cells_processes_are_forked_from_leaves_the_device_alone(tmp_path):
    """Else none of them could use it."""
    done = subprocess.run(
        [sys.executable, "-c", ASKING],
        cwd=tmp_path,
        env=environment(PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "[] True\n", done.stderr
