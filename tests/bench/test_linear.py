"""The workload ``linear``: its draws, its one layer, and the memory of its step."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench.workloads.linear import LinearSettings, LinearWorkload

SMALL = LinearSettings(in_features=24, out_features=36)


def first(batch_size, seed=0, settings=SMALL, start=0):
    return next(LinearWorkload(settings).batches("train", batch_size, seed, True, start))["rows"]


@given(st.integers(1, 60), st.integers(1, 200), st.integers(0, 2**31 - 1))
def test_a_seed_draws_the_same_rows(width, batch_size, seed):
    settings = LinearSettings(in_features=width)
    rows = first(batch_size, seed, settings)
    assert (rows.shape, rows.dtype) == ((batch_size, width), torch.float32)
    assert bool(rows.isfinite().all())
    assert torch.equal(rows, first(batch_size, seed, settings))


def test_batches_differ_and_can_be_started_anywhere():
    stream = LinearWorkload(SMALL).batches("train", 50, 3, True)
    batches = [batch["rows"] for batch in itertools.islice(stream, 4)]
    assert not any(torch.equal(one, other) for one, other in itertools.combinations(batches, 2))
    assert torch.equal(first(50, 3, start=2), batches[2])
    assert not torch.equal(first(50, 4), batches[0])


def test_the_loss_is_the_mean_square_of_the_layer_s_output():
    workload = LinearWorkload(SMALL)
    model, batch = workload.build(), next(workload.batches("train", 7, 0, True))
    output = batch["rows"] @ model.linear.weight.T + model.linear.bias
    assert output.shape == (7, 36)
    torch.testing.assert_close(workload.loss(model, batch), (output**2).sum() / output.numel())
    assert workload.evaluate(model).metrics == {}
    with pytest.raises(ValueError, match="has no epoch"):
        workload.batches_per_epoch(7)
