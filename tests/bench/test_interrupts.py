"""Ctrl-C and SIGTERM: one sentence, status 130 or 143, no process left, and nothing torn."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from interrupted import PATIENCE_S, Sweep, is_running, sweep
from small_cells import ROOT, TRAINED, environment

from bench.core.checkpoint import load
from bench.core.record import read_all

#: A quiet machine takes less than 5 s; beside other tests everything takes longer.
LIMIT_S = 30.0

#: How a terminal's Ctrl-C comes, to all processes, and a SIGTERM, to the first.
SIGNALS = [(signal.SIGINT, True, 130), (signal.SIGTERM, False, 143)]
BY_SIGNAL = pytest.mark.parametrize(("number", "whole_group", "status"), SIGNALS, ids=["SIGINT", "SIGTERM"])

WAITING = """
import hashlib, sys, time
from bench.interrupts import interruptible, on_interrupt
with interruptible():
    on_interrupt(lambda: "3 of 21 cells recorded")
    print("begun", flush=True)
    {}
"""

#: Python code that waits, inside a call that does not come back to Python, and over code that takes an interrupt away.
WAYS = {
    "python": "time.sleep(60)",
    "another library": "hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)",
    "swallowed": "exec('while True:\\n try:\\n  time.sleep(60)\\n except KeyboardInterrupt:\\n  pass')",
}


def start(command, folder, **changes):
    return psutil.Popen(
        command,
        cwd=folder,
        env=environment(**changes),
        start_new_session=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def interrupt(process, number, whole_group):
    """Send a signal; exit status, what was printed as errors, and that all processes have ended in time."""
    below = process.children(recursive=True)
    begun = time.monotonic()
    os.killpg(process.pid, number) if whole_group else process.send_signal(number)
    _, error = process.communicate(timeout=LIMIT_S + PATIENCE_S)
    took = time.monotonic() - begun
    _, alive = psutil.wait_procs(below, timeout=max(LIMIT_S - took, 0.1))
    alive = [each for each in alive if is_running(each)]
    for each in alive:
        each.kill()
    assert alive == []
    assert took < LIMIT_S
    return process.returncode, error


def assert_one_sentence(error, *words):
    assert "Traceback" not in error
    lines = [line for line in error.splitlines() if line.startswith("interrupted: ")]
    assert len(lines) == 1
    assert error.splitlines()[-1] == lines[0]
    for word in words:
        assert word in lines[0]


@BY_SIGNAL
@pytest.mark.parametrize("way", WAYS)
def test_whatever_the_program_is_doing(tmp_path, number, whole_group, status, way):
    process = start([sys.executable, "-c", WAITING.format(WAYS[way])], tmp_path)
    assert process.stdout.readline() == "begun\n"
    ended, error = interrupt(process, number, whole_group)
    assert ended == status
    assert_one_sentence(error, "3 of 21")


#: The same handler answers both signals (:func:`test_whatever_the_program_is_doing`), so what is slow gets one of them.
INTERRUPT, TERMINATE = SIGNALS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signals", "grid", "cells"),
    [
        (
            TERMINATE,
            ("experiment=fig1", "measure=predict", "methods=[dense,low_rank]", "batch_size=1,2,4,8", "parallel=2"),
            8,
        ),
        (
            INTERRUPT,
            ("experiment=fig1", "methods=[comera,dense,lora]", "batch_size=2,4", "timing.block_seconds=1000.0"),
            6,
        ),
    ],
    ids=["predicted", "timed"],
)
def test_a_sweep(tmp_path, pairs, signals, grid, cells):
    number, whole_group, status = signals
    running = Sweep(tmp_path, pairs, grid, stderr=subprocess.PIPE, text=True)
    running.wait_for(1)
    ended, error = interrupt(running.process, number, whole_group)
    assert ended == status
    kept = len(read_all(tmp_path / "results"))
    assert 1 <= kept < cells
    assert_one_sentence(error, f" of {cells} cells")
    told = int(error.splitlines()[-1].split()[1])
    assert kept - 3 <= told <= kept  # those of one job are recorded at once, and counted one after another
    assert sweep(tmp_path, pairs, grid).error.count("done before") == kept
    assert len(read_all(tmp_path / "results")) == cells


@pytest.mark.slow
def test_a_training_keeps_its_checkpoint(tmp_path, pairs):
    number, whole_group, status = TERMINATE
    grid = [*TRAINED, "methods=[comera]"]
    running = Sweep(tmp_path, pairs, grid, stderr=subprocess.PIPE, text=True)
    running.wait_for(0, checkpoints=1)
    ended, error = interrupt(running.process, number, whole_group)
    assert ended == status
    assert_one_sentence(error, "of 2 cells")
    [folder, *_] = (tmp_path / "results").glob(".checkpoints/*/*")
    [record, *_] = [*read_all(tmp_path / "results"), None]
    if record is not None:
        assert load(folder, f"{record.experiment}, {record.arm}, cell {folder.name}") is not None
    sweep(tmp_path, pairs, grid)
    assert {record.status for record in read_all(tmp_path / "results")} == {"ok"}


BERT = (
    '{"model_type": "bert", "hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 100, '
    '"intermediate_size": 96, "max_position_embeddings": 64}'
)
REFERENCE = str(ROOT / "results" / "reference")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signals", "command", "sign"),
    [
        (TERMINATE, ["bench", "advise", "model=config.json", "sequence_length=16", "device=h100"], "reading the model"),
        (INTERRUPT, ["bench", "experiment=fig1", "measure=predict", "dataset=synthetic", "parallel=1"], " cells  fig1"),
        (TERMINATE, ["figures", "fig1", "--records", REFERENCE], ""),
    ],
    ids=["advise", "run", "figures"],
)
def test_a_command(tmp_path, signals, command, sign):
    """It is interrupted once it has printed ``sign``, or after a second, when it reads."""
    number, whole_group, status = signals
    (tmp_path / "config.json").write_text(BERT)
    process = start([sys.executable, "-m", *command], tmp_path)
    if sign:
        while sign not in (line := process.stderr.readline()):
            assert line, "it has ended"
    else:
        time.sleep(1.0)
    ended, error = interrupt(process, number, whole_group)
    assert ended == status
    assert_one_sentence(error)
    assert [path for path in tmp_path.rglob("*") if path.name.endswith(".partial")] == []


STARTING = """
import os, struct, sys
from multiprocessing import forkserver
from bench.processes.process import start_server
from bench.runner.preload import prepare_processes
prepare_processes([])
start_server()
for content in (b"", b"\\x80\\x05X", struct.pack("i", 1)):
    ended, line = forkserver.connect_to_new_process([])
    os.write(line, content)
    os.close(line)
    assert forkserver.read_signed(ended) > 0
    try:
        forkserver.read_signed(ended)
    except EOFError:
        pass
"""


@pytest.mark.slow
def test_a_process_whose_command_has_ended_while_it_starts_is_silent(tmp_path):
    process = start([sys.executable, "-c", STARTING], tmp_path)
    _, error = process.communicate(timeout=120)
    assert (process.returncode, error) == (0, "")
