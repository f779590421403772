"""Links between namespaces: they keep their rate, count what crosses them, and leave nothing behind."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from bench.distributed.links import PAYLOAD_SHARE, Links, sweep
from bench.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]


def why_not() -> str | None:
    """Return why there can be no links here; None where a pair can be made."""
    try:
        with Links(2, 100):
            return None
    except ConfigError as error:
        return str(error)


REASON = why_not()
needs_links = pytest.mark.skipif(REASON is not None, reason=REASON or "")

RECEIVE = """
import socket, sys, time
server = socket.create_server((sys.argv[1], 5000))
print("ready", flush=True)
stream, count, start = server.accept()[0], 0, None
while piece := stream.recv(65536):
    start, count = start or time.perf_counter(), count + len(piece)
print(count, time.perf_counter() - start)
"""
SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], 5000)) as stream:
    stream.sendall(bytes(int(sys.argv[2])))
"""


def seconds(links: Links, size: int) -> float:
    """How long so many bytes take from rank 1 to rank 0."""
    address = links.address(0)
    command = [*links.command(0), sys.executable, "-c", RECEIVE, address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        subprocess.run([*links.command(1), sys.executable, "-c", SEND, address, str(size)], check=True, timeout=60)
        count, taken = server.stdout.read().split()
    assert int(count) == size
    return float(taken)


def sent_bytes(links: Links, rank: int) -> int:
    """Bytes that a rank's interface has sent since the links were made, a header for each piece of a stream."""
    shown = subprocess.check_output(["ip", "-n", links.namespace(rank), "-s", "-j", "link", "show", "dev", "link0"])
    return int(json.loads(shown)[0]["stats64"]["tx"]["bytes"])


def namespaces(pid: int) -> list[str]:
    """Names of the namespaces that a process made."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in listed.splitlines() if line.startswith(f"comera-{pid}-")]


@needs_links
def test_a_link_keeps_its_rate_and_counts_its_bytes() -> None:
    size = 5_000_000
    with Links(2, 100) as links:
        before = sent_bytes(links, 1)
        slow = seconds(links, size)
        sent = sent_bytes(links, 1) - before
        links.set_rate(400)
        assert 3.3 <= slow / seconds(links, size) <= 4.7
        links.set_rate(None)
        assert seconds(links, size) < slow / 5
    assert size <= sent <= 1.02 * size
    # no lower bound: a busy machine is slower; an upper one, since no machine may be faster than its link
    assert size * 8 / slow / 100e6 <= 1.02 * PAYLOAD_SHARE


@needs_links
def test_nothing_is_left_behind_an_exception() -> None:
    def fail() -> None:
        with Links(2, 100):
            assert len(namespaces(os.getpid())) == 2
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert namespaces(os.getpid()) == []


def holder() -> subprocess.Popen[str]:
    """A process that has entered its links and waits."""
    code = """
        import signal, time
        from bench.distributed.links import Links
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests that run under nohup ignore it
        signal.signal(signal.SIGINT, signal.default_int_handler)  # as those of a shell's background ignore this
        with Links(2, 100):
            print("ready", flush=True)
            time.sleep(60)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@needs_links
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_nothing_is_left_behind_a_signal(number) -> None:
    with holder() as process:
        assert len(namespaces(process.pid)) == 2
        process.send_signal(number)
        assert process.wait(30) != 0
    assert namespaces(process.pid) == []


@needs_links
def test_what_a_killed_process_left_is_swept_by_the_next() -> None:
    with holder() as living, holder() as process:
        process.kill()
        process.wait(30)
        assert len(namespaces(process.pid)) == 2
        with Links(2, 100):
            assert namespaces(process.pid) == []
        assert len(namespaces(living.pid)) == 2
        living.terminate()
    assert namespaces(living.pid) == []
    assert not [name for name in sweep() if f"-{living.pid}-" in name]


@needs_links
def test_links_that_the_kernel_refuses_are_one_sentence_and_leave_nothing(monkeypatch) -> None:
    monkeypatch.setattr("bench.distributed.links._filter", lambda _: ("no_such_filter",))
    with pytest.raises(ConfigError, match=r"no_such_filter answers .*\.$"), Links(2, 100):
        pass
    assert namespaces(os.getpid()) == []
