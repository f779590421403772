"""Ranks of a cell: torchrun starts them, and each request goes to all of them.

The process of a cell that has several ranks computes nothing. It starts torchrun, which starts the ranks and, where a
rank has died, all of them anew. Every rank connects to it by a socket in a temporary folder, which also ranks in
network namespaces of their own can reach, or between nodes by TCP; waiting for a request takes no processor time. A
request goes to all ranks at once, and their answers are made one.

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
from contextlib import AbstractContextManager
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
WORK, ADDRESS, KEY, THREADS, INTERFACE = (
    *("BENCH_RANK_WORK", "BENCH_RANK_ADDRESS", "BENCH_RANK_KEY", "BENCH_RANK_THREADS", "BENCH_RANK_INTERFACE"),
)

_PORT = 29500  # of torchrun's store, in a network namespace of this run's own
_GRACE_S = 1.0  # for the end of a dead rank's connection to be seen after the complaint of another
_POLITE_S = 10.0  # for ranks to end by themselves

#: One answer from those of all ranks to the same request, by rank; the word is that of the answer.
Combine = Callable[[str, list[Any]], Any]


def serves_ranks(cell: Cell) -> bool:
    """Return whether this process starts the ranks of a cell, and is not itself a rank."""
    return cell.world_size > 1 and WORK not in os.environ


def interface() -> str:
    """Return the network interface that this rank alone sends through; empty where others do so too."""
    return os.environ.get(INTERFACE, "")


class Ranks:
    """The ranks of one cell, from start to end; a context.

    Args:
        cell: with several ranks.
        work: what each runs, as :func:`bench.processes.process.packed` makes it.
        restarts: how often torchrun may start them anew after one has died.
    """

    def __init__(self, cell: Cell, work: bytes, restarts: int) -> None:
        self.cell, self._work, self._restarts = cell, work, restarts
        self._stack = contextlib.ExitStack()
        self._torchruns: list[subprocess.Popen[bytes]] = []
        self._connections: dict[int, Connection] = {}
        self._round = -1  # how often the ranks that are connected have been started anew
        self._links: Any = None
        self._polite = True

    def __enter__(self) -> "Ranks":
        with self._stack:
            self._folder = Path(tempfile.mkdtemp(prefix="ranks-"))
            self._stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
            if self.cell.link_mbit is not None:
                self._links = self._stack.enter_context(_links(self.cell.world_size))
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

    def shape(self) -> None:
        """Limit the links between ranks to the rate of the cell."""
        if self._links is not None:
            self._links.set_rate(self.cell.link_mbit)

    def _start(self) -> None:
        torchrun = [sys.executable, "-m", "torch.distributed.run", f"--max-restarts={self._restarts}"]
        rank = ["-m", "bench.distributed.rank"]
        if self._links is not None:
            for number in range(self.cell.world_size):
                node = [f"--nnodes={self.cell.world_size}", f"--node-rank={number}", "--nproc-per-node=1"]
                master = [f"--master-addr={self._links.address(0)}", f"--master-port={_PORT}"]
                name = self._links.interface(number)
                own = {INTERFACE: name, "GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name}
                self._spawn([*self._links.command(number), *torchrun, *node, *master, *rank], own)
        elif nodes() > 1:
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
        number = len(self._torchruns)
        with (self._folder / f"errors-{number}").open("wb") as errors:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - there are no other threads here
            )
        self._torchruns.append(process)

    def _kill(self) -> None:
        """End all that was started: politely first, with the ranks that torchrun has started."""
        for connection in self._connections.values():
            with contextlib.suppress(OSError):
                connection.send(("finish", None))
            connection.close()
        begun = time.monotonic()
        known: list[psutil.Process] = []
        for process in self._torchruns:
            with contextlib.suppress(psutil.NoSuchProcess):
                known += [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        while any(process.poll() is None for process in self._torchruns):
            if time.monotonic() - begun > _POLITE_S or not self._connections or not self._polite:
                break
            time.sleep(0.05)
        for each in known:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        for process in self._torchruns:
            process.wait()
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
        ends = {os.pidfd_open(process.pid): process for process in self._torchruns}
        try:
            while True:
                ready: list[Any] = wait([accept, *self._connections.values(), *ends, *others])
                if accept in ready:
                    self._accept()
                    continue
                said = False
                for rank, connection in list(self._connections.items()):
                    if connection not in ready:
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
                if not said and any(one in ends for one in ready):
                    raise self._ended()
        finally:
            for handle in ends:
                os.close(handle)

    def _accept(self) -> None:
        connection = self._listener.accept()
        word, (rank, begun) = connection.recv()
        assert word == "hello"
        if nodes() > 1:
            connection.send_bytes(self._work)
        if begun > self._round:
            for old in self._connections.values():
                old.close()
            self._connections, self._round = {}, begun
        if begun == self._round:
            self._connections[rank] = connection

    @property
    def round(self) -> int:
        """Number of times the ranks were restarted."""
        return self._round

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

    def _ended(self) -> CellFailure:
        """Return the reason why torchrun ended, in one sentence."""
        text = "\n".join(path.read_text(errors="replace") for path in sorted(self._folder.glob("errors-*")))
        return failure_of(text)


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


def _links(ranks: int) -> AbstractContextManager[Any]:
    from bench.distributed.links import Links  # needs the rights of root

    links: AbstractContextManager[Any] = Links(ranks, None)
    return links


def relay(
    connection: Connection, cell: Cell, serve: Callable[..., None], *arguments: Any, combine: Combine, restarts: int = 0
) -> None:
    """Start the ranks of a cell in its process, each to run ``serve(connection, cell, *arguments)``, and relay them.

    Requests from ``connection`` go to all ranks, and one answer comes back, made by ``combine``; None of its answers is
    passed on. Links get their rate when all ranks are ready. Returns when it is asked to finish, or nobody asks.
    """
    with Ranks(cell, packed(serve, cell, *arguments), restarts) as ranks:
        answers: dict[str, dict[int, Any]] = {}
        begun = ranks.round
        for rank, answer in ranks.receive([connection]):
            if rank < 0:
                word, content = connection.recv()
                if word == "finish":
                    return
                ranks.send(word, content)
                continue
            word, content = answer
            if ranks.round != begun:
                begun = ranks.round
                answers.clear()
            if word in ("failed", "mistake"):
                if word == "failed" and ranks.has_lost_one():
                    ranks.send("leave", None)
                    continue  # torchrun starts all anew, or ends
                connection.send(answer)
                ranks.give_up()
                return
            if word == "progress":
                connection.send(answer)
                continue
            answers.setdefault(word, {})[rank] = content
            if len(answers[word]) < cell.world_size:
                continue
            if word == "ready":
                ranks.shape()
            by_rank = [content for _, content in sorted(answers.pop(word).items())]
            connection.send((word, combine(word, by_rank)))
            if word == "done":
                return


def work_of_rank(connection: Connection) -> bytes:
    """Return the function that a rank is to run; called in a rank."""
    place = os.environ[WORK]
    return Path(place).read_bytes() if place else connection.recv_bytes()
