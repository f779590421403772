"""The probe of a workload's data: what it reaches, what its record holds, and where there is none."""

import random

import numpy as np
import pytest
from small_cells import MODEL, run_bench

from bench.core.record import read_all
from bench.core.samples import unpacked
from bench.data.bag_of_words import answers


def test_a_bag_of_words_sees_which_words_there_are_and_not_their_order() -> None:
    source = random.Random(0)
    rows = [([source.randrange(2), *(source.randrange(2, 20) for _ in range(6))], 0) for _ in range(300)]
    by_word = [(words, words[0]) for words, _ in rows]
    by_order = [(sorted(words, reverse=bool(n % 2)), n % 2) for n, (words, _) in enumerate(rows)]
    assert answers(by_word[:200], by_word[200:], 20).mean() > 0.95
    assert abs(answers(by_order[:200], by_order[200:], 20).mean() - 0.5) < 0.2


@pytest.mark.slow  # five fits of two probes
def test_the_record_holds_every_probe_and_leads_with_the_best(tmp_path) -> None:
    shape = [f"model.{name}={value}" for name, value in MODEL.items() if name != "classes"]
    ended = run_bench(
        tmp_path, "experiment=probe", "dataset=synthetic", "sequence_length=32", "results=records", *shape
    )
    assert ended.status == 0, ended.error
    [record] = read_all(tmp_path / "records")
    assert (record.status, record.measure) == ("ok", "probe")
    probes = record.samples["probes"]
    assert set(probes) == {"bag of words", "bag of words of the second sentence"}
    reached = {name: np.mean(unpacked(found["per_example"])) * 100 for name, found in probes.items()}
    assert {name: found["metrics"]["accuracy"] for name, found in probes.items()} == reached
    assert record.metrics["accuracy"] == max(reached.values()) == reached[record.samples["best"]]
    assert record.validation_examples == len(unpacked(probes["bag of words"]["per_example"]))
    assert record.metrics["accuracy"] > 40  # three classes
