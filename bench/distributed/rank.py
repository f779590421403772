"""One rank of a cell, started by torchrun: ``python -m bench.distributed.rank``, with its work in the environment."""

import contextlib
import datetime
import os
from multiprocessing.connection import Client

import torch
from torch import distributed

from bench.distributed.launch import ADDRESS, KEY, THREADS, die_with_parent, work_of_rank
from bench.processes.process import failures_reported, run_packed

#: A rank may wait this long for another, which evaluates or waits for its turn.
_PATIENCE = datetime.timedelta(days=7)


def main() -> None:
    """Meet the other ranks, and run what the cell's process has handed over."""
    die_with_parent()
    torch.set_num_threads(int(os.environ[THREADS]))
    host, colon, port = os.environ[ADDRESS].rpartition(":")
    address = (host, int(port)) if colon else os.environ[ADDRESS]
    connection = Client(address, authkey=bytes.fromhex(os.environ[KEY]))
    connection.send(("hello", int(os.environ["RANK"])))
    work = work_of_rank(connection)
    on_cuda = torch.cuda.is_available()
    if on_cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group("cpu:gloo,cuda:nccl" if on_cuda else "gloo", timeout=_PATIENCE)
    ended_well = False
    with failures_reported(connection):
        run_packed(connection, work)
        ended_well = True
    if not ended_well:  # torchrun would end all ranks before this one's answer is read
        with contextlib.suppress(EOFError, OSError):
            while (word := connection.recv()[0]) != "finish":
                if word == "leave":  # it is the want of another rank that has ended this one
                    os._exit(1)
    os._exit(0)  # without waiting for ranks that have been killed


if __name__ == "__main__":
    main()
