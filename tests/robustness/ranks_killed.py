"""Training runs of two ranks of which a random one is killed at random moments: torchrun starts them anew.

``python tests/robustness/ranks_killed.py --count 20`` sends 20 SIGKILLs to ranks, at most three to a run, which is how
often torchrun may start them anew. Every run must end by itself, with the bytes of one that nobody disturbed, and leave
no process, port, network namespace or temporary file. Records that were there before must be there, whole and
unchanged. How that went is written, one JSON object a line, to ``results/reference/robustness/``.
"""

import contextlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "bench")]

from interrupted import TIMES, files_in, is_running, records_by_file  # noqa: E402
from interruptions import Place, Scenario, whole  # noqa: E402
from report import arguments_of, write_report  # noqa: E402
from small_cells import last_of_each, small  # noqa: E402

#: What is trained: CoMERA with a late stage, and PowerSGD, whose error buffers are part of a checkpoint.
ARMS = "methods=[comera,dense+powersgd_4]"

#: Kills of one run: as often torchrun starts its ranks anew.
MOST = 3


def scenario() -> Scenario:
    """Two ranks, and stages long enough to be killed in."""
    stages = [
        *("training.early_steps=60", "training.late_steps=120", "training.targets=[0.5]", "training.static=true"),
        *("settings.comera.lr_ranks=0.02", "settings.comera.threshold=0.02"),
    ]
    words = ["experiment=steps", "measure=train", *small(Path("pairs"), Path("results"))]
    words = last_of_each([*words, "batch_size=20", "world_size=2", ARMS])
    return Scenario("ranks", [*words, *stages], but=TIMES)


def ranks_below(process: psutil.Popen) -> list[psutil.Process]:
    """The ranks that a command has started."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in process.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if "bench.distributed.rank" in child.cmdline() and "torch.distributed.run" not in child.cmdline():
                    found.append(child)
    return found


def namespaces() -> set[str]:
    """The network namespaces of this machine that have a name."""
    with contextlib.suppress(OSError):
        done = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
        return {line.split()[0] for line in done.stdout.splitlines() if line}
    return set()


def ports_of(processes: list[psutil.Process]) -> set[int]:
    """The TCP ports on which processes listen."""
    ports = set()
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            ports |= {one.laddr.port for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN}
    return ports


def disturbed(place: Place, scenario: Scenario, moments: random.Random, kills: int, seconds: float) -> dict[str, Any]:
    """Run the command and kill so many ranks of it; what happened, with what was wrong."""
    before = namespaces()
    process = place.start(scenario)
    done, seen, ports = 0, {}, set()
    due = time.monotonic() + moments.uniform(0.1, 0.5) * seconds
    while process.poll() is None:
        ranks = ranks_below(process)
        with contextlib.suppress(psutil.NoSuchProcess):
            others = process.children(recursive=True)
            seen |= {each.pid: each for each in (*ranks, *others)}
            ports |= ports_of(others)
        if ranks and done < kills and time.monotonic() >= due:
            with contextlib.suppress(psutil.NoSuchProcess):
                moments.choice(ranks).kill()
                done += 1
            due = time.monotonic() + moments.uniform(0.1, 0.5) * seconds
        time.sleep(0.1)
    problems = [] if process.returncode == 0 else [f"ended with {process.returncode}: {process.stderr.read()[-500:]}"]
    process.stderr.close()
    _, alive = psutil.wait_procs(list(seen.values()), timeout=30)
    problems += [f"left behind: {one}" for one in alive if is_running(one)]
    problems += [f"namespace left behind: {one}" for one in namespaces() - before]
    listening = {one.laddr.port for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN}
    problems += [f"port {port} is still taken" for port in ports & listening]
    problems += [f"{one} is left over" for one in place.left_over()]
    return {"kills": done, "problems": [*problems, *place.problems({})]}


def kills(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Kill ranks until so many have been; a line for each run."""
    moments = random.Random(seed)
    what = scenario()
    with tempfile.TemporaryDirectory() as name:
        place = Place(Path(name))
        expected, seconds = whole(place, what)
        tensors = checkpoints(place)
        done = 0
        while done < count:
            place.clear()
            row = disturbed(place, what, moments, min(MOST, count - done), seconds)
            records = records_by_file(place.root, but=what.but)
            row["problems"] += [
                f"{one} differs" for one in {*records, *expected} if records.get(one) != expected.get(one)
            ]
            now = checkpoints(place)
            row["problems"] += [f"{one} differs" for one in {*now, *tensors} if now.get(one) != tensors.get(one)]
            done += row["kills"]
            yield {**row, "records": len(records), "checkpoints": len(now)}


def checkpoints(place: Place) -> dict[str, bytes]:
    """The tensors of all checkpoints: model, optimizer, error buffers and random numbers."""
    return {name: content for name, content in files_in(place.results).items() if name.endswith(".safetensors")}


def main() -> None:
    """Kill ranks and write the report."""
    given = arguments_of(__doc__, count=20)
    begun = time.monotonic()
    rows = []
    for row in kills(given.count, given.seed):
        rows.append(row)
        print(row, file=sys.stderr, flush=True)
    head = {
        "interruptions": sum(row["kills"] for row in rows),
        "failures": sum(len(row["problems"]) for row in rows),
        "seconds": round(time.monotonic() - begun),
    }
    write_report("ranks_killed", given, [head, *rows])


if __name__ == "__main__":
    main()
