"""Links of a chosen rate between the ranks of one Linux machine, so that a step can be timed against bandwidth.

Every rank has a network namespace of its own. Two ranks are joined by a pair of virtual Ethernet devices, more by a
bridge in a further namespace. The kernel's token bucket filter (``tc ... tbf``) holds back what leaves an interface, so
both directions have the whole rate, as on a full-duplex cable; behind a bridge it also holds back what is on its way to
a rank, so that two senders cannot exceed the link of one receiver. Needed are Linux, root, and the commands ``ip`` and
``tc`` of iproute2.

What it is not:

* No delay is added. That takes ``netem``, which this project's machines have no kernel module for, so a packet needs
  some tens of microseconds, as between neighbours in a rack. Latency is in the model
  (:mod:`bench.estimate.communication`) and not in measurements.
* TCP is Reno's, which every Linux has and which fills the filter's queue. BBR, where it is a machine's default, probes
  for the rate anew after pauses between steps, and at times sends longer than the link needs.
* No loopback device is shaped. ``lo`` has an MTU of 64 KiB, and both of its directions would share one bucket. It is up
  in each namespace, since a rank may talk to itself, and what crosses it counts nowhere.
* Ranks share the machine's processors. Copying into and out of the kernel takes their time, which bounds what can be
  reached: on two cores 6 to 7 Gbit/s. Without a limit (``mbit=None``) a link is as fast as that.

The rate counts whole Ethernet frames, as that of a cable does: a frame of 1,514 bytes (an MTU of 1,500) carries 1,448
bytes of TCP's stream.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, Self

from bench.errors import ConfigError

#: Bytes of a packet on the link, without the 14 of Ethernet's header.
MTU = 1500

#: Share of a frame's bytes that TCP delivers: the headers of IPv4, TCP with time stamps (20 + 32) and Ethernet (14)
#: are no payload.
PAYLOAD_SHARE = (MTU - 52) / (MTU + 14)

#: The most ranks that one bridge joins.
MOST_RANKS = 64

#: Rates that the filter is given, in Mbit/s.
LEAST_MBIT, MOST_MBIT = 0.1, 100_000.0

#: The kernel hands over a stream in pieces, which the filter must let pass whole: small ones where the usual 64 KiB
#: would be a notable part of what passes in a step, the usual ones where many pieces would keep the processors busy.
_SMALL_PIECE, _PIECE = 16 * 1024, 64 * 1024

#: From this rate on, in Mbit/s, pieces are of the usual size.
_FAST_MBIT = 500.0

#: Bytes of headers that a piece needs in the bucket beside itself.
_HEADERS = 4096


#: Seconds of full rate that may pass at once. The filter's clock and a process that waits for a processor lose as much.
_BURST_S = 0.25e-3

#: Bytes that may wait in front of the filter before packets are dropped: more than senders keep on the way, so that no
#: packet is ever lost, and sent again.
_QUEUE = 16 * 2**20

_PREFIX = "comera"
_NAME = re.compile(rf"{_PREFIX}-(\d+)-[0-9a-f]{{8}}-(?:\d+|bridge)")
_INTERFACE = "link0"
_CONGESTION_CONTROL, _CONGESTION_FILE = "reno", "/proc/sys/net/ipv4/tcp_congestion_control"
_TIMEOUT_S = 30.0
_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP")


class Links:
    """A network namespace per rank, and links of so many Mbit/s between them; a context manager.

    Whatever ends the block, no namespace is left: exceptions and SIGINT as usual; SIGTERM and SIGHUP, which would end
    the process where it stands, raise SystemExit with status 128 + signal instead, unless the program handles them
    itself. What a process that was SIGKILLed left is removed by the next one that enters such a block. Namespaces of
    several programs at a time stay apart, so that they can have the same addresses.

    Args:
        ranks: how many, 2 to 64.
        mbit: the rate of each rank's link in each direction, in Mbit/s (10^6 bits); None for no limit.

    Raises ConfigError: a wrong number; on entry, where there is no Linux, no root, no ``ip`` or ``tc``, or where the
    kernel refuses.

    Example:
        with Links(2, mbit=100) as links:
            subprocess.run([*links.command(1), "ping", "-c", "1", links.address(0)])
    """

    def __init__(self, ranks: int, mbit: float | None) -> None:
        if isinstance(ranks, bool) or not isinstance(ranks, int) or not 2 <= ranks <= MOST_RANKS:
            raise ConfigError(f"ranks is {ranks!r}; links join 2 to {MOST_RANKS} ranks.")
        self.ranks, self.mbit = ranks, _checked(mbit)
        self._owner = 0
        self._stem = ""
        self._handled: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if self._stem:
            raise ConfigError("These links are in use; make others by another Links.")
        if reason := _not_here():
            raise ConfigError(reason)
        self._owner = os.getpid()
        self._stem = f"{_PREFIX}-{self._owner}-{secrets.token_hex(4)}"
        self._handle_signals()
        try:
            with _signals_deferred():
                sweep()
                self._make()
                self.set_rate(self.mbit)
        except BaseException:  # also a signal that came meanwhile
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.getpid() == self._owner:  # a fork that unwinds its copy of the block leaves the links alone
            self._close()

    def namespace(self, rank: int) -> str:
        """Return the name of a rank's namespace.

        Raises ConfigError: no such rank.
        """
        if not 0 <= rank < self.ranks:
            raise ConfigError(f"rank is {rank}; allowed: 0 to {self.ranks - 1}.")
        return f"{self._stem}-{rank}"

    def command(self, rank: int) -> list[str]:
        """Return the words that run a command in a rank's namespace, under the process id it would have without them.

        >>> Links(2, 100).command(0)[:3]
        ['ip', 'netns', 'exec']
        """
        return ["ip", "netns", "exec", self.namespace(rank)]

    def address(self, rank: int) -> str:
        """Return the IPv4 address of a rank, the same in every program.

        >>> Links(2, 100).address(1)
        '10.77.0.2'
        """
        self.namespace(rank)
        return f"10.77.0.{rank + 1}"

    def interface(self, rank: int) -> str:
        """Return the interface of a rank's link, for ``GLOO_SOCKET_IFNAME``; equal in all namespaces.

        >>> Links(2, 100).interface(1)
        'link0'
        """
        self.namespace(rank)
        return _INTERFACE

    def set_rate(self, mbit: float | None) -> None:
        """Change the rate of all links, while they are in use or not; None for no limit.

        Raises ConfigError: no rate; the kernel refuses.
        """
        mbit = _checked(mbit)
        for namespace, interface in self._senders():
            piece = str(_piece(mbit))
            _run("ip", "-n", namespace, "link", "set", "dev", interface, "gso_max_size", piece)
            device = ("tc", "-n", namespace, "qdisc", "replace", "dev", interface, "root")
            _run(*device, *(("noqueue",) if mbit is None else _filter(mbit)))
        self.mbit = mbit

    def _senders(self) -> list[tuple[str, str]]:
        """Return every interface whose sending side is limited, with its namespace."""
        ends = [(self.namespace(rank), _INTERFACE) for rank in range(self.ranks)]
        ports = [(self._bridge, f"port{rank}") for rank in range(self.ranks)] if self.ranks > 2 else []
        return [*ends, *ports]

    @property
    def _bridge(self) -> str:
        return f"{self._stem}-bridge"

    def _make(self) -> None:
        everyone = [self.namespace(rank) for rank in range(self.ranks)]
        for namespace in [*everyone, *([self._bridge] if self.ranks > 2 else [])]:
            _run("ip", "netns", "add", namespace)
            _run("ip", "-n", namespace, "link", "set", "lo", "up")
            _run("ip", "netns", "exec", namespace, "sh", "-c", f"echo {_CONGESTION_CONTROL} > {_CONGESTION_FILE}")
        if self.ranks == 2:
            _pair(everyone[0], _INTERFACE, everyone[1], _INTERFACE)
        else:
            _run("ip", "-n", self._bridge, "link", "add", "bridge0", "type", "bridge")
            _run("ip", "-n", self._bridge, "link", "set", "bridge0", "up")
            for rank, namespace in enumerate(everyone):
                _pair(namespace, _INTERFACE, self._bridge, f"port{rank}")
                _run("ip", "-n", self._bridge, "link", "set", f"port{rank}", "master", "bridge0")
        for namespace, interface in self._senders():
            # without a link-local IPv6 address there is one address to choose, and nothing that looks for neighbours
            look = ("mtu", str(MTU), "addrgenmode", "none")
            _run("ip", "-n", namespace, "link", "set", "dev", interface, *look)
            _run("ip", "-n", namespace, "link", "set", "dev", interface, "up")
        for rank, namespace in enumerate(everyone):
            _run("ip", "-n", namespace, "address", "add", f"{self.address(rank)}/24", "dev", _INTERFACE)

    def _close(self) -> None:
        try:
            with _signals_deferred():
                for name in _namespaces():
                    if name.startswith(f"{self._stem}-"):
                        _delete(name)
                self._stem = ""
        finally:
            for number, handler in self._handled.items():
                signal.signal(number, handler)
            self._handled = {}

    def _handle_signals(self) -> None:
        """Let the signals that would end the process at once unwind it instead, so that the block is left."""
        if threading.current_thread() is threading.main_thread():
            for name in ("SIGTERM", "SIGHUP"):
                number = getattr(signal, name)
                if signal.getsignal(number) == signal.SIG_DFL:
                    self._handled[number] = signal.signal(number, _unwind)


def _unwind(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _not_here() -> str | None:
    """Name what is missing of platform, privilege and commands."""
    if sys.platform != "linux":
        return f"Links of a chosen rate need Linux; this is {sys.platform}."
    if os.geteuid() != 0:
        return "Links of a chosen rate need root, for network namespaces; run as root, or without a link's rate."
    missing = [command for command in ("ip", "tc") if shutil.which(command) is None]
    if missing:
        return (
            f"Links of a chosen rate need {' and '.join(missing)} of iproute2, found in no folder of PATH; install it."
        )
    return None


def sweep() -> list[str]:
    """Remove the namespaces that killed programs left, and name them; those of living processes stay."""
    dead = []
    for name in _namespaces():
        if (found := _NAME.fullmatch(name)) and not os.path.exists(f"/proc/{found[1]}"):
            _delete(name)
            dead.append(name)
    return dead


def _namespaces() -> list[str]:
    """Return the names of all network namespaces, of any origin; an entry may have an id behind its name."""
    return [line.split()[0] for line in _run("ip", "netns", "list").splitlines() if line.strip()]


def _delete(namespace: str) -> None:
    """Remove a namespace with its interfaces; another program that sweeps may be first.

    Its interfaces are removed by name as well: a process that still runs in a namespace keeps it, but without a link.
    """
    with contextlib.suppress(ConfigError):
        for one in json.loads(_run("ip", "-n", namespace, "-j", "link", "show")):
            if one["ifname"] != "lo":
                with contextlib.suppress(ConfigError):
                    _run("ip", "-n", namespace, "link", "delete", one["ifname"])
    with contextlib.suppress(ConfigError):
        _run("ip", "netns", "delete", namespace)


def _pair(namespace: str, interface: str, other: str, others: str) -> None:
    """Return two interfaces that are the ends of one cable, made inside their namespaces."""
    peer = ("peer", "name", others, "netns", other)
    _run("ip", "link", "add", interface, "netns", namespace, "type", "veth", *peer)


def _piece(mbit: float | None) -> int:
    """Return the bytes of the pieces in which the kernel hands over a stream at that rate."""
    return _SMALL_PIECE if mbit is not None and mbit < _FAST_MBIT else _PIECE


def _filter(mbit: float) -> tuple[str, ...]:
    """Return the token bucket filter of a rate, as arguments of ``tc``.

    Its bucket holds a piece of a stream with all of its headers at least, and at high rates what passes while the
    filter's clock ticks once.

    >>> _filter(100.0)
    ('tbf', 'rate', '100000kbit', 'burst', '20480', 'limit', '16777216')
    >>> _filter(1000.0)[4], _filter(10_000.0)[4]
    ('69632', '312500')
    """
    burst = max(_piece(mbit) + _HEADERS, int(mbit * 1e6 / 8 * _BURST_S))
    return ("tbf", "rate", f"{mbit * 1e3:.0f}kbit", "burst", str(burst), "limit", str(_QUEUE))


def _checked(mbit: float | None) -> float | None:
    if mbit is None:
        return None
    if isinstance(mbit, bool) or not isinstance(mbit, int | float) or not LEAST_MBIT <= mbit <= MOST_MBIT:
        allowed = f"{LEAST_MBIT:g} to {MOST_MBIT:,.0f} Mbit/s, or none for no limit"
        raise ConfigError(f"The rate of a link is {mbit!r}; allowed: {allowed}.")
    return float(mbit)


def _run(*command: str) -> str:
    """Run a command and return its output.

    Raises ConfigError: it cannot run, or fails.
    """
    try:
        # in a process group of its own: Ctrl-C is for the program, which then removes what there is
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            process_group=0,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"Links of a chosen rate cannot be made: {' '.join(command)} ({error}).") from None
    if done.returncode:
        reason = " ".join(done.stderr.split()) or f"status {done.returncode}"
        raise ConfigError(f"Links of a chosen rate cannot be made here: {' '.join(command)} answers {reason!r}.")
    return done.stdout


@contextlib.contextmanager
def _signals_deferred() -> Iterator[None]:
    """Defer signals that end the program to the end of the block, where they are raised again."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    noted: list[int] = []
    numbers = [getattr(signal, name) for name in _SIGNALS]
    former = {number: signal.getsignal(number) for number in numbers}
    try:
        for number in numbers:
            signal.signal(number, lambda number, _: noted.append(number))
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
        for number in dict.fromkeys(noted):
            signal.raise_signal(number)
