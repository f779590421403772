"""Ranks of a cell: torchrun starts them, and each request goes to all of them.

The process of a cell that has several ranks computes nothing. It starts torchrun, which starts the ranks. Every rank
connects to it by a socket in a temporary folder, or between nodes by TCP; waiting for a request takes no processor
time. A request goes to all ranks at once, and their answers are made one. If a rank dies, all of them end.

All of them end with the one who started them: on Linux a rank is killed when torchrun dies, and torchrun when the
cell's process does.
"""

import contextlib
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.multiprocessing import _prctl_pr_set_pdeathsig  # type: ignore[attr-defined]

from bench.core.cell import Cell
from bench.errors import ConfigError
from bench.processes.cluster import nodes
from bench.processes.process import packed
from bench.protocol import CellFailure

#: In the environment of a rank: where it finds its work, to whom it answers, and what it may use.
WORK, ADDRESS, KEY, THREADS = "BENCH_RANK_WORK", "BENCH_RANK_ADDRESS", "BENCH_RANK_KEY", "BENCH_RANK_THREADS"

_GRACE_S = 1.0  # for the end of a dead rank's connection to be seen after the complaint of another
_POLITE_S = 10.0  # for ranks to end by themselves

#: One answer from those of all ranks to the same request, by rank; the word is that of the answer.
Combine = Callable[[str, list[Any]], Any]


def serves_ranks(cell: Cell) -> bool:
    """Return whether this process starts the ranks of a cell, and is not itself a rank."""
    return cell.world_size > 1 and WORK not in os.environ


class Ranks:
    """The ranks of one cell, from start to end; a context.

    Args:
        cell: with several ranks.
        work: what each runs, as :func:`bench.processes.process.packed` makes it.
    """

    def __init__(self, cell: Cell, work: bytes) -> None:
        self.cell, self._work = cell, work
        self._stack = contextlib.ExitStack()
        self._torchrun: subprocess.Popen[bytes] | None = None
        self._connections: dict[int, Connection] = {}
        self._polite = True

    def __enter__(self) -> "Ranks":
        with self._stack:
            self._folder = Path(tempfile.mkdtemp(prefix="ranks-"))
            self._stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
            (self._folder / "work").write_bytes(self._work)
            self._key = secrets.token_bytes(16)
            across = nodes() > 1
            address = (socket.gethostname(), 0) if across else str(self._folder / "socket")
            self._listener = Listener(address, "AF_INET" if across else "AF_UNIX", 2 * self.cell.world_size, self._key)
            self._stack.callback(self._listener.close)
            self._stack.callback(self._kill)
            self._start()
            self._ending = self._stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._polite &= kind is None
        self._ending.close()

    def give_up(self) -> None:
        """Have the ranks killed at the end, not waited for: one has failed, for which the others wait."""
        self._polite = False

    def _start(self) -> None:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--max-restarts=0"]
        rank = ["-m", "bench.distributed.rank"]
        if nodes() > 1:
            self._spawn(slurm_command(torchrun, rank, self.cell.world_size, nodes()), {})
        else:
            lo = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
            self._spawn([*torchrun, "--standalone", f"--nproc-per-node={self.cell.world_size}", *rank], lo)

    def _spawn(self, command: list[str], own: Mapping[str, str]) -> None:
        here = self.cell.world_size // nodes()
        threads = str(max(1, torch.get_num_threads() // here))
        address = self._listener.address
        environment = {
            **os.environ,
            WORK: str(self._folder / "work") if isinstance(address, str) else "",
            ADDRESS: address if isinstance(address, str) else f"{address[0]}:{address[1]}",
            KEY: self._key.hex(),
            THREADS: threads,
            "OMP_NUM_THREADS": threads,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(Path.cwd()), *sys.path))),
            "TORCH_CPP_LOG_LEVEL": "ERROR",
            **own,
        }
        with (self._folder / "errors").open("wb") as errors:
            self._torchrun = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - there are no other threads here
            )

    def _kill(self) -> None:
        """End all that was started: politely first, with the ranks that torchrun has started."""
        for connection in self._connections.values():
            with contextlib.suppress(OSError):
                connection.send(("finish", None))
            connection.close()
        if self._torchrun is None:
            return
        begun = time.monotonic()
        known: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            torchrun = psutil.Process(self._torchrun.pid)
            known += [torchrun, *torchrun.children(recursive=True)]
        while self._torchrun.poll() is None:
            if time.monotonic() - begun > _POLITE_S or not self._connections or not self._polite:
                break
            time.sleep(0.05)
        for each in known:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        self._torchrun.wait()
        psutil.wait_procs(known, timeout=_POLITE_S)

    def send(self, word: str, content: Any) -> None:
        """Send a request to all ranks."""
        for connection in self._connections.values():
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # what is received will say why
                connection.send((word, content))

    def receive(self, others: list[Connection]) -> Iterator[tuple[int, Any]]:
        """Yield the answers of ranks as they come: rank and answer, and rank -1 where one of ``others`` has something.

        Raises CellFailure: torchrun has ended.
        """
        accept = self._listener._listener._socket  # type: ignore[attr-defined]
        assert self._torchrun is not None
        end = os.pidfd_open(self._torchrun.pid)
        try:
            while True:
                ready: list[Any] = wait([accept, *self._connections.values(), end, *others])
                if accept in ready:
                    self._accept()
                    continue
                said = False
                for rank, connection in list(self._connections.items()):
                    if connection not in ready or connection.closed:  # by :meth:`has_lost_one` meanwhile
                        continue
                    said = True
                    try:
                        answer = connection.recv()
                    except (EOFError, ConnectionResetError):
                        self._connections.pop(rank).close()
                        continue
                    yield rank, answer
                if any(one in ready for one in others):
                    yield -1, None
                if not said and end in ready:
                    raise failure_of((self._folder / "errors").read_text(errors="replace"))
        finally:
            os.close(end)

    def _accept(self) -> None:
        connection = self._listener.accept()
        word, rank = connection.recv()
        assert word == "hello"
        if nodes() > 1:
            connection.send_bytes(self._work)
        self._connections[rank] = connection

    def has_lost_one(self) -> bool:
        """Return whether a rank has ended without a message, so that the error of another is the lack of it."""
        end = time.monotonic() + _GRACE_S
        while len(self._connections) == self.cell.world_size:
            left = end - time.monotonic()
            if left < 0:
                return False
            ready = wait(list(self._connections.values()), left)
            for rank, connection in list(self._connections.items()):
                if connection in ready:
                    try:
                        connection.recv()  # another complaint
                    except (EOFError, ConnectionResetError):
                        self._connections.pop(rank).close()
        return True


def failure_of(text: str) -> CellFailure:
    """Return the failure that torchrun's last output describes.

    >>> failure_of("Signal 9 (SIGKILL) received by PID 12").status
    'oom'
    """
    if re.search(r"Signal 9 \(SIGKILL\)|exitcode\s*: -9", text):
        return CellFailure("oom", "a rank was killed (signal 9), most likely for want of memory")
    errors = [line.strip() for line in text.splitlines() if re.match(r"\s*\S*(Error|Exception)\b", line)]
    return CellFailure("error", f"the ranks ended unexpectedly ({(errors or ['no reason given'])[0]})"[:300])


def slurm_command(torchrun: list[str], rank: list[str], ranks: int, over: int) -> list[str]:
    """Return the command that starts torchrun on every node of a Slurm job, with an equal part of the ranks each."""
    if ranks % over:
        raise ConfigError(f"world_size is {ranks}; allowed on {over} nodes: a multiple of {over}.")
    here, port = socket.gethostname(), 20_000 + int(os.environ.get("SLURM_JOB_ID", "0")) % 20_000
    words = [
        *torchrun,
        f"--nnodes={over}",
        f"--nproc-per-node={ranks // over}",
        f"--master-addr={here}",
        f"--master-port={port}",
    ]
    line = f'exec {shlex.join(words)} --node-rank="$SLURM_NODEID" {shlex.join(rank)}'
    return ["srun", "--overlap", f"--nodes={over}", f"--ntasks={over}", "--ntasks-per-node=1", "sh", "-c", line]


def die_with_parent() -> None:
    """Have the system kill this process when the one that started it dies, on Linux."""
    if sys.platform == "linux":
        _prctl_pr_set_pdeathsig(signal.SIGKILL)


def relay(connection: Connection, cell: Cell, serve: Callable[..., None], *arguments: Any, combine: Combine) -> None:
    """Start the ranks of a cell in its process, each to run ``serve(connection, cell, *arguments)``, and relay them.

    Requests from ``connection`` go to all ranks, and one answer comes back, made by ``combine``; None of its answers is
    passed on. Returns when it is asked to finish, or nobody asks.
    """
    with Ranks(cell, packed(serve, cell, *arguments)) as ranks:
        answers: dict[str, dict[int, Any]] = {}
        for rank, answer in ranks.receive([connection]):
            if rank < 0:
                word, content = connection.recv()
                if word == "finish":
                    return
                ranks.send(word, content)
                continue
            word, content = answer
            if word in ("failed", "mistake"):
                if word == "failed" and ranks.has_lost_one():
                    ranks.send("leave", None)
                    continue  # torchrun ends, and its output says why
                connection.send(answer)
                ranks.give_up()
                return
            if word == "progress":
                connection.send(answer)
                continue
            answers.setdefault(word, {})[rank] = content
            if len(answers[word]) < cell.world_size:
                continue
            by_rank = [content for _, content in sorted(answers.pop(word).items())]
            connection.send((word, combine(word, by_rank)))
            if word == "done":
                return


def work_of_rank(connection: Connection) -> bytes:
    """Return the function that a rank is to run; called in a rank."""
    place = os.environ[WORK]
    return Path(place).read_bytes() if place else connection.recv_bytes()
