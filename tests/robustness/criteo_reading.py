"""A click log of the size of Criteo's is read, and a smaller one whose reading is killed again and again.

``python tests/robustness/criteo_reading.py`` writes 45 million lines of the log's form, Zipf-distributed categories of
the Kaggle log's cardinalities with missing values and a wrong line in 20,000, reads them as a user does, ``python -m
bench.workloads.dlrm FOLDER``, and checks what was read against what was written: every label, the counts and categories
of some thousand blocks, and the ranks of each category. Then 5 million lines, whose reading is killed five times at
random moments, must give the bytes of a reading that nobody disturbed. Needs some 30 GB of disk. Speed, peak memory and
failures are written, one JSON object a line, to ``results/reference/robustness/``.
"""

import contextlib
import hashlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

sys.path[:0] = [str(Path(__file__).resolve().parent)]

from report import ROOT, arguments_of, write_report  # noqa: E402

from bench.workloads.dlrm.criteo import SOURCE  # noqa: E402
from bench.workloads.dlrm.model import COUNTS, DLRMSettings  # noqa: E402

BLOCK = 20_000  # lines that are drawn together, with a wrong one before them
KILLED_LINES, KILLS = 5_000_000, 5
RATE_MILLION, MEMORY_GIB = 3.0, 2.0  # lines a minute at least, and memory at most

_ROWS = DLRMSettings("kaggle").rows
_DIGITS = 7
_WRONG = (b"0\t1\t2\n", b"\n", b"2" + b"\t" * 39 + b"\n", b"1" + b"\t" * 38 + b"\t0123456g\n")
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_ABSENT = 0  # a byte that is not written


class Block(NamedTuple):
    """Lines as a reader is to find them, and as they are written."""

    labels: np.ndarray  # (lines,)
    counts: np.ndarray  # (lines, 13), ln(1 + count)
    categories: np.ndarray  # (lines, 26), 32-bit numbers
    text: bytes


def block_of(number: int, seed: int, lines: int = BLOCK) -> Block:
    """The block of a log, always the same for a seed."""
    source = np.random.default_rng([seed, number])
    labels = (source.random(lines) < 0.256).astype(np.uint8)
    values = np.minimum(np.exp(source.normal(np.linspace(0.2, 6.0, COUNTS), 1.5, (lines, COUNTS))), 10**_DIGITS - 1)
    values = np.floor(values).astype(np.int64)
    negative, missing = source.random((2, lines, COUNTS)) < np.array([0.01, 0.1])[:, None, None]
    rows = np.array(_ROWS)
    ranks = np.minimum((rows + 1.0) ** source.random((lines, len(rows))) - 1, rows - 1).astype(np.uint64)
    categories = ((ranks + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)).astype(np.uint32)
    absent = source.random(categories.shape) < 0.03
    text = _lines_of(labels, values, negative & ~missing, missing, categories, absent)
    counts = np.log1p(np.where(missing | negative, 0, values)).astype(np.float32)
    return Block(labels, counts, np.where(absent, 0, categories).astype(np.uint32), _WRONG[number % len(_WRONG)] + text)


def _lines_of(
    labels: np.ndarray,
    values: np.ndarray,
    negative: np.ndarray,
    missing: np.ndarray,
    categories: np.ndarray,
    absent: np.ndarray,
) -> bytes:
    """Fields of fixed width, of which the bytes that stand for nothing are left out."""
    lines = len(labels)
    digits = values[..., None] // 10 ** np.arange(_DIGITS - 1, -1, -1)
    decimals = np.where((digits > 0) | (np.arange(_DIGITS) == _DIGITS - 1), digits % 10 + ord("0"), _ABSENT)
    decimals[missing] = _ABSENT
    numbers = np.zeros((lines, COUNTS, _DIGITS + 2), np.uint8)
    numbers[..., 0], numbers[..., 1], numbers[..., 2:] = ord("\t"), np.where(negative, ord("-"), _ABSENT), decimals
    hexadecimals = np.zeros((*categories.shape, 9), np.uint8)
    shifts = np.arange(28, -1, -4, dtype=np.uint32)
    hexadecimals[..., 0] = ord("\t")
    hexadecimals[..., 1:] = np.where(absent[..., None], _ABSENT, _HEX[categories[..., None] >> shifts & np.uint32(15)])
    parts = (labels[:, None] + ord("0"), numbers.reshape(lines, -1), hexadecimals.reshape(lines, -1))
    ends = np.full((lines, 1), ord("\n"), np.uint8)
    octets = np.concatenate([*parts, ends], axis=1, dtype=np.uint8)
    return octets[octets != _ABSENT].tobytes()


def write_log(folder: Path, lines: int, seed: int) -> tuple[np.ndarray, int]:
    """Write so many lines, in whole blocks; their labels, and the bytes of the log."""
    folder.mkdir(parents=True)
    labels = []
    with (folder / SOURCE).open("wb") as file:
        for number in range(lines // BLOCK):
            block = block_of(number, seed)
            file.write(block.text)
            labels.append(block.labels)
            if number % 100 == 0:
                print(f"{number * BLOCK:,} of {lines:,} lines are written", file=sys.stderr, flush=True)
    return np.concatenate(labels), (folder / SOURCE).stat().st_size


def reading(folder: Path) -> subprocess.Popen:
    """Begin to read, or go on."""
    command = [sys.executable, "-m", "bench.workloads.dlrm", str(folder)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def peak_mib(process: subprocess.Popen) -> float:
    """Wait for the end; the most memory that the process has had, in MiB."""
    peak, status = 0.0, Path(f"/proc/{process.pid}/status")
    while process.poll() is None:
        with contextlib.suppress(OSError):
            if found := re.search(r"VmHWM:\s+(\d+) kB", status.read_text(encoding="ascii")):
                peak = int(found[1]) / 1024
        time.sleep(0.2)
    return peak


def wrong_arrays(arrays: Path, labels: np.ndarray, seed: int) -> list[str]:
    """What was read otherwise than it was written."""
    lines, found = len(labels), []
    read = np.fromfile(arrays / "labels", np.uint8)
    if not np.array_equal(read, labels):
        found.append(f"{len(read):,} labels are not the {lines:,} that were written")
    counts = np.memmap(arrays / "counts", np.float32, "r").reshape(-1, COUNTS)
    values = [np.memmap(arrays / f"value{place + 1}", np.uint32, "r") for place in range(len(_ROWS))]
    blocks = lines // BLOCK
    for number in range(0, blocks, max(1, blocks // 200)):
        block, part = block_of(number, seed), slice(number * BLOCK, (number + 1) * BLOCK)
        if not np.allclose(counts[part], block.counts, rtol=1e-6, atol=0):
            found.append(f"counts of block {number}")
        for place, value in enumerate(values):
            if not np.array_equal(value[part], block.categories[:, place]):
                found.append(f"category {place + 1} of block {number}")
    named = (arrays / "wrong_lines.txt").read_text(encoding="ascii").splitlines()
    expected = [1 + number * (BLOCK + 1) for number in range(blocks)]
    if [int(one.split(":")[0].removeprefix("line ").replace(",", "")) for one in named] != expected:
        found.append(f"{len(named)} wrong lines are named, and not the {blocks} that were written")
    for place, value in enumerate(values):
        found += [f"category {place + 1}: {one}" for one in _wrong_ranks(arrays / f"rank{place + 1}", value)]
    return found


def _wrong_ranks(path: Path, values: np.ndarray) -> list[str]:
    """Ranks are to name values one to one, the more frequent ones first."""
    ranks = np.fromfile(path, np.int32)
    if len(ranks) != len(values):
        return [f"{len(ranks):,} ranks for {len(values):,} values"]
    frequency = np.bincount(ranks)
    of_rank = np.zeros(len(frequency), np.uint32)
    of_rank[ranks] = values
    problems = [] if np.array_equal(of_rank[ranks], values) else ["values share a rank"]
    if len(np.unique(of_rank)) != len(of_rank):
        problems.append("a value has two ranks")
    if (np.diff(frequency) > 0).any():
        problems.append("a rarer value has a lower rank")
    return problems


def read_whole(place: Path, lines: int, seed: int) -> dict[str, Any]:
    """Write a log, read it once, and check it."""
    labels, size = write_log(place, lines, seed)
    begun = time.monotonic()
    process = reading(place)
    peak = peak_mib(process)
    seconds = time.monotonic() - begun
    problems = [] if process.returncode == 0 else [f"ended with {process.returncode}"]
    problems += wrong_arrays(place / "arrays", labels, seed)
    rate = lines / seconds * 60 / 1e6
    if rate < RATE_MILLION:
        problems.append(f"{rate:.2f} million lines a minute, not {RATE_MILLION:g}")
    if peak > MEMORY_GIB * 1024:
        problems.append(f"{peak:,.0f} MiB of memory, more than {MEMORY_GIB:g} GiB")
    return {
        "part": "whole",
        "lines": lines,
        "wrong_lines": lines // BLOCK,
        "gib": round(size / 2**30, 2),
        "seconds": round(seconds, 1),
        "million_lines_a_minute": round(rate, 2),
        "peak_mib": round(peak),
        "problems": problems,
    }


def hashes(arrays: Path) -> dict[str, str]:
    """Of every file but the lock and the state, which tells when the source was modified."""
    files = (path for path in arrays.iterdir() if path.name not in ("lock", "state.json"))
    return {path.name: hashlib.file_digest(path.open("rb"), "sha256").hexdigest() for path in files}


def read_killed(place: Path, lines: int, kills: int, seed: int) -> dict[str, Any]:
    """Read a log undisturbed, and again with so many SIGKILLs."""
    write_log(place, lines, seed)
    begun = time.monotonic()
    reading(place).wait()
    seconds = time.monotonic() - begun
    expected = hashes(place / "arrays")
    shutil.rmtree(place / "arrays")
    moments, killed_at = random.Random(seed), []
    while True:
        process = reading(place)
        with contextlib.suppress(subprocess.TimeoutExpired):
            limit = moments.uniform(0.05, 0.35) * seconds + 1.0 if len(killed_at) < kills else None
            process.wait(limit)
            break
        psutil.Process(process.pid).kill()
        process.wait()
        done = sum(path.stat().st_size for path in (place / "arrays").glob("*")) if (place / "arrays").is_dir() else 0
        killed_at.append({"after_s": round(limit or 0.0, 1), "mib_written": round(done / 2**20)})
    found = hashes(place / "arrays")
    problems = [f"{name} differs" for name in sorted({*expected, *found}) if expected.get(name) != found.get(name)]
    if process.returncode != 0:
        problems.append(f"ended with {process.returncode}")
    if len(killed_at) < kills:
        problems.append(f"only {len(killed_at)} of {kills} kills came before the end")
    return {"part": "killed", "lines": lines, "kills": killed_at, "problems": problems}


def main() -> None:
    """Read, kill, and write the report."""
    given = arguments_of(__doc__, count=45_000_000)
    if given.count < BLOCK:
        sys.exit(f"--count is {given.count}; allowed: whole numbers of lines from {BLOCK} up, in blocks of as many.")
    begun = time.monotonic()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        rows.append(read_whole(Path(name) / "whole", given.count, given.seed))
        print(rows[-1], file=sys.stderr, flush=True)
        shutil.rmtree(Path(name) / "whole")
        rows.append(read_killed(Path(name) / "killed", min(KILLED_LINES, given.count), KILLS, given.seed + 1))
        print(rows[-1], file=sys.stderr, flush=True)
    head = {"failures": sum(len(row["problems"]) for row in rows), "seconds": round(time.monotonic() - begun)}
    write_report("criteo_reading", given, [head, *rows])


if __name__ == "__main__":
    main()
