"""Real sweeps and trainings that are killed, or run out of disk, at random moments: nothing may be lost by it.

``python tests/robustness/interruptions.py kills`` sends 100 SIGKILLs, ``… full_disks`` lets the disk be full 20 times
(on a small ``tmpfs``, so it needs the right to mount one); ``--only code`` is for one of the commands alone. After each
of them every record that was there before must be there, whole and once; after the next undisturbed start, what the
commands leave must be what they leave elsewhere, and no partial file or folder may be left, in the system's temporary
folder neither. How that went is written, one JSON object a line, to ``results/reference/robustness/``.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "bench")]

from interrupted import TIMES, is_running, record_files, records_by_file  # noqa: E402
from report import arguments_of, write_report  # noqa: E402
from small_cells import TRAINED, environment, last_of_each, small, write_pairs  # noqa: E402

from bench.core.record import path_of, read  # noqa: E402

#: What is interrupted.
ALL = ("sweep", "training", "code")

#: Arguments of a training of the small model on source code, with both phases; it takes about a minute.
CODE = [
    *("experiment=code_phases", "methods=[comera]", "device=cpu", "results=results", "training.early_steps=1200"),
    *("training.late_steps=300", "settings.comera.lr_ranks=0.01"),
]

#: Bytes of which a file on a ``tmpfs`` takes a whole number.
PAGE = 4096


@dataclass
class Scenario:
    """A command that writes records, and how it went on when it was interrupted.

    Args:
        name: what it is.
        arguments: of ``python -m bench``, run in a folder with ``pairs``; records go to ``results``.
        but: columns that differ from one run to the next.
        share: of all interruptions.
    """

    name: str
    arguments: list[str]
    but: set[str] = field(default_factory=lambda: {"recorded_at"})
    share: float = 0.0


def scenarios() -> list[Scenario]:
    """The commands."""
    grid = {
        "sweep": ["experiment=fig1", "measure=predict", "methods=[dense,low_rank]", "batch_size=1,2,4,8", "parallel=1"],
        "training": [*TRAINED, "methods=[comera,dense]"],
    }
    made = {
        name: last_of_each([words[0], *small(Path("pairs"), Path("results")), *words[1:]])
        for name, words in grid.items()
    }
    return [
        Scenario("sweep", made["sweep"], share=0.6),
        Scenario("training", made["training"], but=TIMES, share=0.2),
        Scenario("code", CODE, but=TIMES, share=0.2),
    ]


class Place:
    """A folder to run a scenario in, with a temporary folder of its own."""

    def __init__(self, root: Path, results: Path | None = None) -> None:
        self.root, self.temporary = root, root / "t"
        self.results = root / "results"
        self.temporary.mkdir(parents=True)
        if results is not None:
            self.results.symlink_to(results)
        write_pairs(root / "pairs")

    def start(self, scenario: Scenario) -> psutil.Popen:
        """The command, in a process group of its own."""
        return psutil.Popen(
            [sys.executable, "-m", "bench", *scenario.arguments],
            cwd=self.root,
            start_new_session=True,
            text=True,
            env=environment(TMPDIR=str(self.temporary)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def finish(self, scenario: Scenario) -> str:
        """Run the command undisturbed; what it prints if that goes wrong."""
        process = self.start(scenario)
        _, error = process.communicate(timeout=600)
        return "" if process.returncode == 0 else f"{scenario.name} ended with {process.returncode}: {error[-500:]}"

    def contents(self) -> dict[str, bytes]:
        """The files of records."""
        return {str(path.relative_to(self.root)): path.read_bytes() for path in record_files(self.results)}

    def problems(self, before: dict[str, bytes]) -> list[str]:
        """What is wrong with the records right after an interruption, compared with those before."""
        found, there = [], self.contents()
        for name, content in before.items():
            if name not in there:
                found.append(f"{name} is lost")
            elif there[name] != content:
                found.append(f"{name} has changed")
        for name in there:
            try:
                record = read(self.root / name)
            except ValueError as error:
                found.append(f"torn: {error}")
                continue
            if path_of(record, self.results) != self.root / name:
                found.append(f"{name} is at the wrong place")
        doubled = [one for one, count in Counter(Path(name).name for name in there).items() if count > 1]
        return [*found, *(f"{name} is there twice" for name in doubled)]

    def left_over(self) -> list[str]:
        """Partial files and folders, here and in the temporary folder."""
        walked = (one for folder in (self.results, self.temporary) for one in os.walk(folder))
        paths = [Path(inside, name) for inside, folders, files in walked for name in (*folders, *files)]
        odd = (path for path in paths if path.name.endswith((".partial", ".former")) or self.temporary in path.parents)
        return [str(path.relative_to(self.root)) for path in odd if "torchinductor" not in str(path)]

    def clear(self) -> None:
        """Remove the records and checkpoints, for a fresh start."""
        subprocess.run(["find", "-H", str(self.results), "-mindepth", "1", "-delete"], check=False)


def kill(process: psutil.Popen, whole_group: bool) -> None:
    """Kill a command at once, workers and all, or the coordinator alone; wait until all of it is gone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        workers = process.children(recursive=True)
        os.killpg(process.pid, signal.SIGKILL) if whole_group else process.kill()
        process.wait()
        _, alive = psutil.wait_procs(workers, timeout=300)  # one that is still importing ends late on a busy machine
        for worker in filter(is_running, alive):
            raise AssertionError(f"left behind: {worker}")


def whole(place: Place, scenario: Scenario) -> tuple[dict[str, Any], float]:
    """What the scenario leaves when nothing disturbs it, and the seconds it takes."""
    begun = time.monotonic()
    assert not (error := place.finish(scenario)), error
    return records_by_file(place.root, but=scenario.but), time.monotonic() - begun


def settled(place: Place, scenario: Scenario, expected: dict[str, Any]) -> list[str]:
    """What is wrong after an undisturbed end; nothing where it is like one that was never disturbed."""
    if error := place.finish(scenario):
        return [error]
    found = records_by_file(place.root, but=scenario.but)
    differing = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
    return [*(f"{name} differs" for name in differing), *(f"{name} is left over" for name in place.left_over())]


def kills(count: int, seed: int, names: Sequence[str] = ALL) -> Iterator[dict[str, Any]]:
    """Kill commands at random moments, time and again, until each is done; a line for each scenario."""
    moments = random.Random(f"{seed} {names}")
    for scenario in (one for one in scenarios() if one.name in names):
        wanted = round(count * scenario.share)
        with tempfile.TemporaryDirectory() as name:
            place = Place(Path(name))
            expected, seconds = whole(place, scenario)
            place.clear()
            done = rounds = checks = 0
            problems: list[str] = []
            while done < wanted:
                before = place.contents()
                process = place.start(scenario)
                time.sleep(moments.uniform(0.05, 1.0) * seconds)
                was_alive = process.poll() is None
                kill(process, whole_group=moments.random() < 0.5)
                process.stderr.close()
                done += was_alive
                checks += 1
                problems += place.problems(before)
                if not was_alive or done == wanted or moments.random() < 0.15:
                    problems += settled(place, scenario, expected)
                    place.clear()
                    rounds += 1
        yield {
            "scenario": scenario.name,
            "interruptions": done,
            "checks": checks,
            "undisturbed_ends": rounds,
            "records": len(expected),
            "seconds_undisturbed": round(seconds, 1),
            "problems": problems,
        }


@contextlib.contextmanager
def small_disk(folder: Path, kib: int) -> Iterator[None]:
    """A disk of so many KiB in the place of a folder."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def full_disks(count: int, seed: int, names: Sequence[str] = ALL) -> Iterator[dict[str, Any]]:
    """Run commands on disks too small for what they write, then on these made large; a line for each scenario."""
    sizes = random.Random(f"{seed} {names}")
    for scenario in (one for one in scenarios() if one.name in names):
        wanted = max(round(count * scenario.share), 1)
        full, problems = 0, []
        with tempfile.TemporaryDirectory() as name:
            expected, _ = whole(place := Place(Path(name) / "undisturbed"), scenario)
            files = [path for path in place.results.rglob("*") if path.is_file()]
            used = sum(-(-path.stat().st_size // PAGE) for path in files) * PAGE / 1024
            for number in range(wanted):
                disk = Path(name) / f"disk{number}"
                kib = max(round(used * sizes.uniform(0.1, 0.9)), 16)
                with small_disk(disk, kib):
                    place = Place(Path(name) / f"place{number}", disk)
                    process = place.start(scenario)
                    _, error = process.communicate(timeout=600)
                    sentences = [line for line in error.splitlines() if line.startswith("error: ")]
                    if (process.returncode, len(sentences), "Traceback" in error) != (1, 1, False):
                        problems.append(f"{kib} KiB: status {process.returncode}, {error[-500:]}")
                    full += "No space left" in error or "StorageFull" in error
                    problems += [f"{kib} KiB: {one} is left over" for one in place.left_over()]
                    problems += [f"{kib} KiB: {one}" for one in place.problems({})]
                    before = place.contents()
                    subprocess.run(["mount", "-o", "remount,size=100m", str(disk)], check=True)
                    problems += [f"{kib} KiB: {one}" for one in settled(place, scenario, expected)]
                    lost = [one for one in before if _is_lost(place, one, before[one])]
                    problems += [f"{kib} KiB: {one} was recorded and then changed" for one in lost]
        counts = {"interruptions": wanted, "full": full, "records": len(expected)}
        yield {"scenario": scenario.name, **counts, "problems": problems}


def _is_lost(place: Place, name: str, content: bytes) -> bool:
    """Whether a record that counts has changed; one of an error is made anew."""
    return b'"status": "error"' not in content and (place.root / name).read_bytes() != content


def main() -> None:
    """Interrupt and write the report."""
    which = sys.argv.pop(1) if sys.argv[1:2] in (["kills"], ["full_disks"]) else sys.exit(__doc__)
    given = arguments_of(__doc__, count={"kills": 100, "full_disks": 20}[which], parts=ALL)
    names = [given.only] if given.only else ALL
    begun = time.monotonic()
    interrupt = {"kills": kills, "full_disks": full_disks}[which]
    with ThreadPoolExecutor(len(names)) as pool:  # they wait for processes
        found = pool.map(lambda name: list(interrupt(given.count, given.seed, [name])), names)
        rows = [row for one in found for row in one]
    head = {
        "interruptions": sum(row["interruptions"] for row in rows),
        "failures": sum(len(row["problems"]) for row in rows),
        "seconds": round(time.monotonic() - begun),
    }
    write_report("_".join(filter(None, (which, given.only))), given, [head, *rows])


if __name__ == "__main__":
    main()
