"""The workload ``teacher``: its samples, their scale, its probes and its narrower students."""

from __future__ import annotations

import itertools

import pytest
import torch

from bench.workloads.teacher import Student, TeacherSettings, TeacherWorkload

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


def test_the_two_held_out_sets_differ(workload):
    validation, test = workload._held_out
    assert (len(validation["outputs"]), len(test["outputs"])) == (500, 600)
    assert not torch.equal(validation["inputs"][:100], test["inputs"][:100])


def test_another_teacher_is_other_data():
    other = TeacherWorkload(TeacherSettings(width=32, teacher_seed=5))
    assert TeacherWorkload(TeacherSettings(width=32)).data_hash == TeacherWorkload(TeacherSettings(width=64)).data_hash
    assert other.data_hash != TeacherWorkload(TeacherSettings(width=32)).data_hash


@pytest.mark.parametrize("ratio", [1.5, 4.0, 8.0])
def test_a_narrower_student_has_the_wanted_size(ratio):
    student = Student(TeacherSettings())
    dense = sum(parameter.numel() for parameter in student.parameters())
    narrow = student.narrowed(round(dense / ratio))
    assert sum(parameter.numel() for parameter in narrow.parameters()) == pytest.approx(dense / ratio, rel=0.02)


def test_a_student_learns(workload):
    torch.manual_seed(0)
    model = workload.build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for batch in itertools.islice(workload.batches("train", 256, 0, True), 150):
        optimizer.zero_grad()
        workload.loss(model, batch).backward()
        optimizer.step()
    assert workload.evaluate(model).metrics["loss"] < workload.metric.probe


@pytest.mark.parametrize("size", [0, -1, 2.0, True])
def test_a_wrong_batch_size_is_refused(workload, size):
    with pytest.raises(ValueError, match=r"^batch_size is"):
        workload.batches("train", size, 0, True)


def test_validation_batches_end(workload):
    batches = [*workload.batches("validation", 200, 0, True)]
    assert [len(batch["outputs"]) for batch in batches] == [200, 200]
