"""The workload ``teacher``: its samples, their scale, its probes and its narrower students."""

import dataclasses
import itertools

import pytest
import torch

from bench.core.identity import identity
from bench.workloads.teacher import TeacherSettings, TeacherWorkload

SMALL = TeacherSettings(
    width=32, layers=2, teacher_width=16, teacher_layers=2, validation_samples=500, test_samples=600
)


@pytest.fixture(scope="module")
def workload():
    return TeacherWorkload(SMALL)


def test_samples_are_fresh_and_follow_from_seed_and_number(workload):
    batches = [*itertools.islice(workload.batches("train", 50, 3, True), 3)]
    again = next(workload.batches("train", 50, 3, True, start=2))
    assert all(torch.equal(batches[2][name], again[name]) for name in ("inputs", "outputs"))
    assert not any(torch.equal(one["inputs"], other["inputs"]) for one, other in itertools.combinations(batches, 2))
    assert not torch.equal(next(workload.batches("train", 50, 4, True))["inputs"], batches[0]["inputs"])


def test_outputs_have_mean_0_and_variance_1(workload):
    outputs = next(workload.batches("train", 50_000, 0, True))["outputs"]
    assert float(outputs.mean()) == pytest.approx(0, abs=0.03)
    assert float(outputs.var()) == pytest.approx(1, abs=0.05)


def test_a_constant_guesses_and_simple_functions_probe(workload):
    found = workload.evaluate(workload.build())  # its last layer is zero
    assert found.metrics["loss"] == pytest.approx(1, abs=0.15)
    assert workload.metric.guess == 1.0
    losses = {name: probe.metrics["loss"] for name, probe in workload.probes().items()}
    assert 0 < losses["quadratic function"] < losses["linear function"] < 1
    assert workload.metric.probe == losses["quadratic function"]


def test_another_teacher_is_other_data():
    other = TeacherWorkload(TeacherSettings(width=32, teacher_seed=5))
    assert TeacherWorkload(TeacherSettings(width=32)).data_hash == TeacherWorkload(TeacherSettings(width=64)).data_hash
    assert other.data_hash != TeacherWorkload(TeacherSettings(width=32)).data_hash


def test_a_student_learns(workload):
    torch.manual_seed(0)
    model = workload.build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for batch in itertools.islice(workload.batches("train", 256, 0, True), 150):
        optimizer.zero_grad()
        workload.loss(model, batch).backward()
        optimizer.step()
    assert workload.evaluate(model).metrics["loss"] < workload.metric.probe


def test_a_loss_is_of_the_samples_that_it_names():
    workload = TeacherWorkload(SMALL)
    model = workload.build()
    found = workload.evaluate(model).metrics
    with torch.no_grad():
        by_hand = [float((model(side["inputs"]) - side["outputs"]).square().mean()) for side in workload._held_out]
    assert by_hand[0] != pytest.approx(by_hand[1], rel=1e-4)
    assert [found["loss"], found["test_loss"]] == pytest.approx(by_hand)


def test_inputs_are_a_setting_which_another_teacher_has():
    usual, wider = (TeacherWorkload(dataclasses.replace(SMALL, **changes)) for changes in ({}, {"inputs": 12}))
    batch = next(wider.batches("train", 4, 0, True))
    assert batch["inputs"].shape == (4, 12)
    assert wider.build()(batch["inputs"]).shape == (4,)
    assert wider.build().narrowed(937).first.in_features == 12
    assert wider.data_hash != usual.data_hash == TeacherWorkload(dataclasses.replace(SMALL, inputs=8)).data_hash
    assert "inputs" not in identity(SMALL)
