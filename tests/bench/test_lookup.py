"""The workload ``lookup``: its draws, a step without the optimizer's, and its way from a configuration to records."""

import itertools
import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_cells import TIMING, a_configuration, changed, run_bench

from bench.core.record import read_all
from bench.estimate.memory import predict_memory, trace_memory
from bench.estimate.work import predict
from bench.protocol.methods import ConfigError, ForwardBackward, build, checked_settings
from bench.runner.resolve import resolve
from bench.step.train_step import TrainStep
from bench.workloads.lookup import DISTRIBUTIONS, ZIPF_EXPONENT, LookupSettings, LookupWorkload
from comera import TTMEmbedding
from comera.lookup import VARIANTS

SMALL = LookupSettings(rows=600, columns=24)
TABLE = {"rows": 600, "columns": 24, "optimizer_step": True}


def a_method(name="comera", **settings):
    return build(name, "", checked_settings(name, settings))


def first(dataset, batch_size, seed=0, settings=SMALL, start=0):
    return next(LookupWorkload(settings, dataset).batches("train", batch_size, seed, True, start))["indices"]


@given(st.sampled_from(DISTRIBUTIONS), st.integers(1, 500), st.integers(1, 200), st.integers(0, 2**31 - 1))
def test_every_index_is_a_row_of_the_table_and_a_seed_draws_the_same_ones(dataset, rows, batch_size, seed):
    settings = LookupSettings(rows=rows, columns=2)
    indices = first(dataset, batch_size, seed, settings)
    assert (indices.shape, indices.dtype) == ((batch_size,), torch.int64)
    assert 0 <= int(indices.min()) <= int(indices.max()) < rows
    assert torch.equal(indices, first(dataset, batch_size, seed, settings))


@pytest.mark.parametrize("dataset", DISTRIBUTIONS)
def test_batches_differ_and_can_be_started_anywhere(dataset):
    stream = LookupWorkload(SMALL, dataset).batches("train", 50, 3, True)
    batches = [batch["indices"] for batch in itertools.islice(stream, 4)]
    assert not any(torch.equal(one, other) for one, other in itertools.combinations(batches, 2))
    assert torch.equal(first(dataset, 50, 3, start=2), batches[2])
    assert not torch.equal(first(dataset, 50, 4), batches[0])


def test_frequencies_are_even_or_follow_zipf_s_law():
    draws, rows = 1_000_000, SMALL.rows
    counts = {
        name: torch.bincount(first(name, draws), minlength=rows).sort(descending=True)[0] for name in DISTRIBUTIONS
    }
    assert counts["uniform"][0] < 1.3 * draws / rows
    law = torch.arange(1, rows + 1, dtype=torch.float64) ** -ZIPF_EXPONENT
    expected = draws * law / law.sum()
    torch.testing.assert_close(counts["zipf"][:20].double(), expected[:20], rtol=0.05, atol=0.0)
    assert abs(int(counts["zipf"][300:].sum()) - float(expected[300:].sum())) < 0.05 * float(expected[300:].sum())


def test_a_step_without_the_optimizer_s_leaves_the_table_and_keeps_no_state():
    workload = LookupWorkload(SMALL, "zipf")
    for name in ("comera", "dense"):
        method = ForwardBackward(a_method(name))
        model = method.adapt(workload.build(), workload.targets())
        before = [parameter.clone() for parameter in model.parameters()]
        step = TrainStep(model, method, method.optimizer(model), workload.loss, "fp32", "cpu")
        for batch in itertools.islice(workload.batches("train", 40, 0, True), 2):
            loss = step(batch)
            torch.testing.assert_close(loss, workload.loss(model, batch).detach())
        for parameter, old in zip(model.parameters(), before, strict=True):
            assert torch.equal(parameter, old)
            assert bool(parameter.grad.any())
        assert not step.optimizer.state


def test_a_prediction_knows_how_many_rows_are_unique():
    """On fake tensors and on real ones a look-up takes the same bytes, whatever part of a batch repeats."""
    peaks = {}
    for lookup in VARIANTS:
        workload, method = LookupWorkload(SMALL, "zipf"), ForwardBackward(a_method(lookup=lookup))
        predicted = predict_memory(workload, method, 300, "fp32", "cpu", 0)
        torch.manual_seed(0)
        model = method.adapt(workload.build(), workload.targets())
        assert isinstance(model.table, TTMEmbedding)
        step = TrainStep(model, method, method.optimizer(model), workload.loss, "fp32", "cpu")
        booked = trace_memory(step, next(workload.batches("train", 300, 0, True)))
        assert math.isclose(predicted.peak, booked.peak, rel_tol=0.02)
        peaks[lookup] = predicted.peak
    assert peaks["optimized"] < peaks["order"] < peaks["plain"]
    assert peaks["optimized"] < peaks["unique"] < peaks["plain"]


@pytest.mark.parametrize("whole", [True, False], ids=["with the optimizer's step", "forward and backward"])
@pytest.mark.parametrize("variant", ["", "sparse", "row_wise"])
def test_fake_and_real_steps_of_an_uncompressed_table_book_the_same_bytes(variant, whole):
    workload = LookupWorkload(SMALL, "zipf")
    method = build("dense", variant, checked_settings("dense", {}))
    method = method if whole else ForwardBackward(method)
    predicted = predict_memory(workload, method, 300, "fp32", "cpu", 0)
    model = method.adapt(workload.build(), workload.targets())
    step = TrainStep(model, method, method.optimizer(model), workload.loss, "fp32", "cpu")
    assert trace_memory(step, next(workload.batches("train", 300, 0, True))) == predicted


def test_a_sparse_gradient_takes_no_memory_of_the_table_s_size():
    """Its indices and its values are the batch itself; its coalescing has as many rows as the batch has unique ones."""
    columns, batch_size, rows = 16, 50, 100_000
    workload = LookupWorkload(LookupSettings(rows, columns), "uniform")
    unique = first("uniform", batch_size, settings=workload.settings).unique().numel()
    batch, table = batch_size * (8 + 4 * columns), 4 * rows * columns

    def predicted(variant, device):
        method = build("dense", variant, checked_settings("dense", {}))
        return predict_memory(workload, method, batch_size, "fp32", device, 0)

    moments, plain = predicted("sparse", "cuda"), predicted("", "cuda")
    assert (moments.gradients, moments.optimizer) == (batch, 2 * table)
    assert plain.gradients == table
    per_row = {device: predicted("row_wise", device) for device in ("cpu", "cuda")}
    assert per_row["cuda"].optimizer == 4 * rows
    # The gradient's coalescing, of which the CPU's has room for repeated rows, norms, sums, and the step.
    room = {"cpu": batch, "cuda": unique * (8 + 4 * columns)}
    for device, memory in per_row.items():
        assert memory.temporaries == room[device] + unique * (4 + 4 + 4 * columns)


def test_work_and_traffic_of_a_sparse_gradient_leave_the_rest_of_the_table_out():
    workload = LookupWorkload(LookupSettings(100_000, 16), "uniform")
    traffic = {
        variant: predict(workload, build("dense", variant, checked_settings("dense", {})), 50, "fp32", "cpu", 0).traffic
        for variant in ("", "sparse", "row_wise")
    }
    table = 4 * 100_000 * 16
    assert min(traffic[""].read, traffic[""].written) > 2 * table
    for variant in ("sparse", "row_wise"):
        assert max(traffic[variant].read, traffic[variant].written) < 0.01 * table


@pytest.fixture
def config(tmp_path):
    """A job of two look-ups and the dense table."""
    methods = [{"comera": {"lookup": "optimized"}}, {"comera": {"lookup": "plain"}}, "dense"]
    changes = {"workload": "lookup", "data_folder": None, "dataset": "zipf", "table": dict(TABLE), "methods": methods}
    return a_configuration(tmp_path, **changes)


def test_arms_with_settings_of_their_own_are_cells_of_their_own(config):
    job = resolve(changed(config, "settings", {"comera": {"table_ranks": 5}}))
    assert [cell.arm for cell in job.cells] == ["comera", "comera", "dense"]
    assert [cell.method_settings.get("lookup") for cell in job.cells] == ["optimized", "plain", None]
    assert [cell.method_settings.get("table_ranks") for cell in job.cells] == [5, 5, None]
    assert len({cell.cell_id(job.data_hash) for cell in job.cells}) == 3
    for cell in job.cells:
        assert (cell.dataset, cell.sequence_length, cell.workload_settings) == ("zipf", 1, TABLE)
    config["methods"] = ["comera", *config["methods"]]
    with pytest.raises(ConfigError, match="comera"):  # the first is what the optimized one is by default
        resolve(config)


@pytest.mark.slow
@pytest.mark.usefixtures("cell_processes")
def test_the_experiment_records_every_variant_of_both_kinds_of_step(tmp_path):
    timing = [f"timing.{name}={value}" for name, value in TIMING.items()]
    table = ["table={rows:600,columns:24}"]
    ended = run_bench(
        tmp_path, "experiment=fig5", "results=records", "device=cpu", "batch_size=50", "dataset=zipf", *table, *timing
    )
    assert (ended.status, ended.output) == (0, "")
    assert "comera optimizer_step=False lookup=plain  ok" in ended.error
    records = read_all(tmp_path / "records", "fig5")
    found = set()
    for record in records:
        cell = json.loads(record.config_json)
        whole = cell["workload_settings"]["optimizer_step"]
        found.add((cell["method_settings"].get("lookup", record.arm), whole))
        assert (record.status, record.workload, record.dataset) == ("ok", "lookup", "zipf")
        assert record.epoch_time_s is None
        assert record.pairing
        assert record.step_time_median_ms
        assert (record.predicted_optimizer_mib > 0.001) == whole
    arms = (*VARIANTS, "dense", "dense:sparse", "dense:row_wise")
    assert found == set(itertools.product(arms, (False, True)))
