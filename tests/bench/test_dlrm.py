"""The workload dlrm: its model, its synthetic logs, its metrics, and the arms that train on it."""

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss, roc_auc_score

from bench.estimate.memory import predict_memory
from bench.protocol import Data
from bench.protocol.methods import build
from bench.workloads.dlrm import DLRMSettings, DLRMWorkload, scores
from bench.workloads.dlrm.model import CARDINALITIES, DLRM
from bench.workloads.dlrm.synthetic import TEACHERS, SyntheticLog

SMALL = DLRMSettings("small", training_lines=40_000, validation_lines=20_000)


def opened(settings: DLRMSettings = SMALL, dataset: str = TEACHERS[0]) -> DLRMWorkload:
    return DLRMWorkload.open(settings, Data(dataset), False)


@pytest.mark.parametrize(
    ("settings", "parameters"),
    [  # tables, then both perceptrons with their biases, by hand
        (DLRMSettings("paper"), 33_762_577 * 32 + 8_440_864 + 8_787_969),
        (DLRMSettings("kaggle"), 33_762_577 * 16 + 155_984 + 320_001),
    ],
)
def test_the_presets_have_the_published_sizes(settings: DLRMSettings, parameters: int) -> None:
    with torch.device("meta"):
        model = DLRM(settings)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert sum(CARDINALITIES["kaggle"]) == 33_762_577


def test_the_interaction_is_every_product_of_two_different_vectors() -> None:
    torch.manual_seed(0)
    model = DLRM(SMALL).double()
    seen = []
    model.top.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    counts, rows = torch.rand(3, 13, dtype=torch.float64), [torch.randint(0, 3, (3, 1)) for _ in range(26)]
    model(counts, rows)
    bottom = model.bottom(counts)
    vectors = [bottom, *(table.weight[row[:, 0]] for table, row in zip(model.tables.values(), rows, strict=True))]
    products = [(vectors[i] * vectors[j]).sum(1) for i in range(27) for j in range(i)]
    torch.testing.assert_close(seen[0], torch.cat([bottom, torch.stack(products, 1)], 1))


@pytest.mark.parametrize("name", TEACHERS)
def test_a_line_of_a_synthetic_log_does_not_depend_on_how_it_is_asked_for(name: str) -> None:
    log = SyntheticLog(name, DLRMSettings("kaggle").rows, {"train": 9000, "validation": 100, "test": 100}, False)
    whole, part = log.lines("train", 0, 9000), log.lines("train", 3000, 5000)
    for one, other in zip(whole, part, strict=True):
        lines = np.moveaxis(one, -1, 0)[3000:5000] if one.shape[0] == 26 else one[3000:5000]
        np.testing.assert_array_equal(lines, np.moveaxis(other, -1, 0) if one.shape[0] == 26 else other)
    assert abs(whole.clicks.mean() - 0.256) < 0.02
    assert all(rows.max() < size for rows, size in zip(whole.categories, log._rows, strict=True))


@pytest.mark.parametrize("name", TEACHERS)
def test_the_teacher_bounds_what_can_be_reached_and_beats_the_probe(name: str) -> None:
    workload = opened(DLRMSettings("small", training_lines=30_000, validation_lines=30_000), name)
    ceiling, metric = workload.log.ceiling, workload.metric
    assert 0.75 < ceiling["auc"] < 0.85
    assert ceiling["nce"] < metric.probe - 0.05 < metric.guess - 0.05


def test_the_metrics_are_those_of_scikit_learn() -> None:
    source = np.random.default_rng(0)
    logits, clicks = source.normal(size=5000), source.random(5000) < 0.3
    found, probability = scores.metrics(logits, clicks), 1 / (1 + np.exp(-logits))
    assert found["auc"] == pytest.approx(roc_auc_score(clicks, probability))
    assert found["log_loss"] == pytest.approx(log_loss(clicks, probability))
    assert found["nce"] == pytest.approx(log_loss(clicks, probability) / log_loss(clicks, np.full(5000, clicks.mean())))
    parts = scores.groups(logits, clicks)
    assert len(parts["auc"]) == 10
    assert np.mean(parts["nce"]) == pytest.approx(found["nce"])


def test_batches_of_an_epoch_have_every_line_once_in_an_order_of_the_seed() -> None:
    workload = opened()

    def firsts(seed: int) -> list[float]:
        return [float(batch["counts"].sum()) for batch in workload.batches("train", 3000, seed, static=False)]

    assert len(firsts(0)) == 14
    assert sorted(firsts(0)) == sorted(firsts(1))
    assert firsts(0) != firsts(1)
    rest = [float(batch["counts"].sum()) for batch in workload.batches("train", 3000, 0, False, start=10)]
    assert rest == firsts(0)[10:]


@pytest.mark.slow
def test_sparse_gradients_save_the_memory_of_dense_ones() -> None:
    workload = opened(DLRMSettings("paper"))
    peaks = {
        variant: predict_memory(workload, build("dense", variant, {}), 10_000, "fp32", "cuda", 0).peak / 2**30
        for variant in ("", "sparse", "row_wise")
    }
    assert peaks[""] == pytest.approx(16.84, abs=0.05)  # four times 4.09 GiB, and the activations
    assert peaks["row_wise"] < peaks["sparse"] - 7 < peaks[""] - 10
