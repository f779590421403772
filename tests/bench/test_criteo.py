"""The reader of Criteo's click log: what it makes of good lines and wrong ones, and that a kill changes nothing."""

import hashlib
import json
import math
import multiprocessing
import os
import random
from pathlib import Path

import numpy as np
import pytest

from bench.protocol import Data
from bench.workloads.dlrm import DLRMSettings, DLRMWorkload, criteo
from bench.workloads.dlrm.criteo import CriteoLog, parse, prepare

ROWS = DLRMSettings("kaggle").rows
GOOD = "1\t" + "\t".join(map(str, range(13))) + "\t" + "\t".join(["68fd1e64"] * 26)


def lines(number: int, seed: int = 0) -> list[str]:
    """Made-up lines with missing values, negative counts and categories of many frequencies."""
    source = random.Random(seed)
    made = []
    for _ in range(number):
        counts = [
            source.choice(["", "-1", "0", str(source.randrange(10 ** source.randrange(1, 8)))]) for _ in range(13)
        ]
        categories = [source.choice(["", f"{int(source.paretovariate(0.5)) % 2**32:08x}"]) for _ in range(26)]
        made.append("\t".join([source.choice("01"), *counts, *categories]))
    return made


def log_in(folder: Path, text: list[str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.txt").write_text("\n".join(text) + "\n", encoding="ascii")
    return folder


def hashes(target: Path) -> dict[str, str]:
    files = [path for path in target.iterdir() if path.name not in ("lock", "state.json")]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_every_field_is_what_python_reads() -> None:
    made = lines(200)
    found = parse(("\n".join(made) + "\n").encode())
    assert not found.wrong
    for line, label, counts, categories in zip(made, *found[:3], strict=True):
        fields = line.split("\t")
        assert label == int(fields[0])
        assert counts.tolist() == pytest.approx([math.log1p(max(int(one or 0), 0)) for one in fields[1:14]])
        assert categories.tolist() == [int(one or "0", 16) for one in fields[14:]]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "1 fields, not 40"),
        (GOOD + "\t", "41 fields, not 40"),
        (GOOD.rpartition("\t")[0], "39 fields, not 40"),
        ("2" + GOOD[1:], "the label is neither 0 nor 1"),
        (GOOD[1:], "the label is neither 0 nor 1"),
        (GOOD.replace("\t12\t", "\t1e2\t"), "count 13 is no whole number"),
        (GOOD.replace("\t12\t", "\t-\t"), "count 13 is no whole number"),
        (GOOD.replace("\t12\t", "\t12345678901\t"), "count 13 is no whole number"),
        (GOOD[:-1], "category 26 is no number of 8 hexadecimal digits"),
        (GOOD[:-1] + "G", "category 26 is no number of 8 hexadecimal digits"),
        (GOOD + "\r", "category 26 is no number of 8 hexadecimal digits"),
    ],
)
def test_a_wrong_line_is_named_and_its_neighbours_stay(line: str, reason: str) -> None:
    found = parse(f"{GOOD}\n{line}\n{GOOD}\n".encode())
    assert found.wrong == {1: reason}
    assert found.labels.tolist() == [1, 1]
    assert (found.categories == 0x68FD1E64).all()


def test_ranks_are_by_frequency_and_rare_values_share_the_last_row(tmp_path: Path) -> None:
    made = lines(400)
    prepare(log_in(tmp_path / "log", made), tmp_path / "arrays")
    log = CriteoLog("criteo", tmp_path / "arrays", (1000,) * 26, hashed=False)
    column = np.concatenate([log.lines(split, 0, 400).categories[4] for split in ("train", "validation", "test")])
    text = [line.split("\t")[18] for line in made]
    counts = {value: text.count(value) for value in set(text)}
    ranked = sorted(counts, key=lambda value: (-counts[value], text.index(value)))
    assert column.tolist() == [ranked.index(value) for value in text]
    capped = CriteoLog("criteo", tmp_path / "arrays", (7,) * 26, hashed=False).lines("train", 0, 300).categories[4]
    assert capped.tolist() == [min(ranked.index(value), 6) for value in text[:300]]
    hashed = CriteoLog("criteo", tmp_path / "arrays", (7,) * 26, hashed=True).lines("train", 0, 300).categories[4]
    assert len({(value, row) for value, row in zip(text, hashed.tolist(), strict=False)}) == len(set(text[:300]))
    assert set(hashed.tolist()) == set(range(7))


def test_six_days_train_and_the_seventh_is_split(tmp_path: Path) -> None:
    made = lines(72)
    prepare(log_in(tmp_path / "log", made), tmp_path / "arrays")
    log = CriteoLog("criteo", tmp_path / "arrays", ROWS, hashed=False)
    assert [log.size(split) for split in ("train", "validation", "test")] == [62, 5, 5]
    labels = [bool(click) for split in ("train", "validation", "test") for click in log.lines(split, 0, 99).clicks]
    assert labels == [line[0] == "1" for line in made]


def _killed(folder: Path, target: Path, chunks: int) -> None:
    """Read until so many reports have come, then die with half a chunk on the disk."""
    seen = iter(range(chunks))

    def report(text: str) -> None:
        if next(seen, None) is None:
            is_first_pass = text.startswith("train.txt")
            for name in ("labels", "counts", "value3", "wrong_lines.txt") if is_first_pass else ("rank26",):
                with (target / name).open("ab") as file:
                    file.write(b"half")
            os._exit(9)

    criteo._CHUNK = 5000
    prepare(folder, target, report)


def test_a_reading_that_was_killed_gives_the_same_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(criteo, "_CHUNK", 5000)
    folder = log_in(tmp_path / "log", [*lines(400), "wrong", *lines(100, seed=1)])
    whole = prepare(folder, tmp_path / "whole")
    context = multiprocessing.get_context("fork")
    for chunks in (1, 4, 20):
        process = context.Process(target=_killed, args=(folder, tmp_path / "killed", chunks))
        process.start()
        process.join()
        assert process.exitcode == 9
        assert json.loads((tmp_path / "killed" / "state.json").read_text())["offset"] > 0
    assert prepare(folder, tmp_path / "killed") == whole
    assert hashes(tmp_path / "killed") == hashes(tmp_path / "whole")


@pytest.mark.skipif("COMERA_DATA" not in os.environ, reason="needs the folder of real data")
def test_the_real_lines_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    workload = DLRMWorkload.open(DLRMSettings("kaggle"), Data("criteo_8k"), True)
    assert workload.training_examples == 6172
    batch = next(workload.batches("train", 1000, 0, static=True))
    assert batch["counts"].shape == (1000, 13)
    assert 0.2 < float(batch["clicks"].mean()) < 0.3
    assert 0.9 < workload.metric.probe < 1.1
