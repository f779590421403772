"""What may go wrong in a cell's process, as functions that such a process can import.

A cell says in its ``experiment`` what is to happen: "in_time" or "in_block" is when, the rest what.
"""

import os
import signal
import time
from multiprocessing.connection import Connection
from typing import Any

from bench.core.cell import Cell
from bench.protocol import Data

READY: dict[str, Any] = {"parameters": 1, "stored_mib": 1.0, "rare_periods": {}, "step_ms": 1.0}


def misbehave(what: str) -> None:
    """Do what a broken arm does; return where it is not broken."""
    if what == "raises":
        raise RuntimeError("the arm is broken\nin two lines")
    if what == "hangs":
        time.sleep(600)
    if what == "is_killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "exits":
        os._exit(3)


def odd_time_cell(connection: Connection, cell: Cell, data: Data) -> None:  # noqa: ARG001 - as time_cell
    """An arm that takes 1 ms a step and breaks where its cell says."""
    when, _, what = cell.experiment.partition(" ")
    if when == "building":
        misbehave(what)
    connection.send(("ready", dict(READY)))
    while True:
        word, content = connection.recv()
        if word == "finish":
            return
        if when == "running":
            misbehave(what)
        connection.send((word, {"ms": [1.0] * content, "calibration_ms": 1.0}))
