"""Kernels compiled ahead of time against the table that the library is tuned over; forms of a feed-forward in turns."""

from pathlib import Path

import pytest
from small_cells import TIMING, a_layer_cell

from bench.core.record import read_all
from bench.measures import named
from bench.measures.kernels import kernels_columns
from bench.measures.micro import feed_forward_columns
from bench.protocol import Data
from bench.workloads import open_cell_workload
from comera import kernels
from comera.kernels.configurations import ARCHITECTURES, PADDED_RANKS, Configuration, allowed, candidates

RECORDS = read_all(Path(__file__).parents[2] / "results" / "reference", "kernels")


def a_feed_forward(measure, **changes):
    return a_layer_cell(24, 96, measure=measure, method="comera", batch_size=64, **changes)


@pytest.mark.parametrize("kernel", [*kernels.HIDDEN, *kernels.ADD_NORM])
@pytest.mark.parametrize(
    ("kind", "padded"),
    [(kind, padded) for kind in ("fp32", "tf32", "bf16") for padded in PADDED_RANKS if candidates(kind, padded)],
)
def test_configurations_are_tuned_over_if_the_records_say_that_they_fit_everywhere(kind, padded, kernel):
    [record] = [one for one in RECORDS if (one.precision, one.samples["shape"]["padded"]) == (kind, padded)]
    rows = [row for row in record.samples["kernels"] if row["kernel"] == kernel]
    fit = {}
    for row in rows:
        tile = Configuration(*(row[field] for field in Configuration._fields))
        within = row["shared"] <= ARCHITECTURES[row["arch"]]
        assert row["fits"] == (within and not (row["spill_stores"] or row["spill_loads"] or row["stack"]))
        fit.setdefault(tile, {})[row["arch"]] = row["fits"]
    assert all(set(by_arch) == set(ARCHITECTURES) for by_arch in fit.values())
    everywhere = {tile for tile, by_arch in fit.items() if all(by_arch.values())}
    assert set(candidates(kind, padded)) <= set(fit)
    assert set(allowed(kernel, kind, padded)) == everywhere & set(candidates(kind, padded))


def test_the_kernels_are_compiled_for_every_architecture(monkeypatch):
    ahead_of_time = pytest.importorskip("comera.kernels.ahead_of_time")
    tile = Configuration(16, 64, 4, 2)
    monkeypatch.setattr("bench.measures.kernels.candidates", lambda *_: (tile,))
    monkeypatch.setattr("bench.measures.kernels.ACTIVATIONS", ("gelu", "relu"))
    monkeypatch.setattr(ahead_of_time, "KERNELS", {"hidden_forward": ahead_of_time.KERNELS["hidden_forward"]})
    cell = a_feed_forward("kernels", device="cuda", precision="bf16")
    columns = kernels_columns(cell, open_cell_workload(cell, Data()))
    rows = columns["samples"]["kernels"]
    assert [(row["arch"], row["block_n"], row["fits"]) for row in rows] == [(80, 64, True), (90, 64, True)]
    for row in rows:
        gelu, relu = (
            ahead_of_time.resources("hidden_forward", "bf16", 32, tile, row["arch"], one) for one in ("gelu", "relu")
        )
        assert row["registers"] == max(gelu.registers, relu.registers)


def test_on_a_cpu_the_forms_agree_and_the_kernels_are_missing():
    cell = a_feed_forward("feed_forward")
    columns = feed_forward_columns(cell, open_cell_workload(cell, Data()))
    rows = {row["name"]: row for row in columns["samples"]["forms"]}
    assert set(rows) == {f"{form}{end}" for form in ("dense", "layers", "tiles", "kernels") for end in ("", ", norm")}
    for name, row in rows.items():
        if name.startswith("kernels"):
            assert (row["ms"], row["message"]) == ([], "no kernels for fp32 at these ranks on this device")
        else:
            assert len(row["ms"]) == TIMING["blocks"]
            assert row["error"] is None if name.endswith("norm") else row["error"] < 1e-5
    assert columns["step_time_median_ms"] > 0
    assert named("feed_forward").unsupported(a_feed_forward("feed_forward", compile=True)) is not None
