"""A cell's identity: every field counts, the order in which they were given does not.

That identities stay what they are is checked on all committed records, in ``test_reference_records.py``.
"""

import dataclasses
import json
import math

import pytest
from small_cells import a_cell

from bench.core.cell import Cell
from bench.core.identity import LATER
from comera import protocol

CHANGES = {
    "experiment": "another",
    "workload": "another",
    "dataset": "mnli",
    "method": "comera",
    "variant": "linear",
    "measure": "predict",
    "device": "cuda",
    "batch_size": 3,
    "precision": "bf16",
    "cuda_graph": True,
    "compile": True,
    "checkpoint": True,
    "seed": 1,
    "ratio": 2.0,
    "method_settings": {"lr": 1.0},
    "workload_settings": {"layers": 2},
    "timing_settings": {"blocks": 9},
    "training": {"steps_per_epoch": 7},
    "world_size": 2,
    "exchange": "ddp",
    "link_mbit": 100.0,
}


def test_the_table_of_changes_covers_every_field():
    assert set(CHANGES) == {field.name for field in dataclasses.fields(Cell)}


@pytest.mark.parametrize("field", CHANGES)
def test_each_field_is_part_of_the_identity(field):
    cell = a_cell()
    changed = dataclasses.replace(cell, **{field: CHANGES[field]})
    assert changed.cell_id("data") != cell.cell_id("data")


@pytest.mark.parametrize(
    ("ranks", "device", "backend"), [(1, "cuda", ""), (2, "cuda", "nccl"), (1, "cpu", ""), (2, "cpu", "gloo")]
)
def test_several_ranks_exchange_by_what_their_device_has(ranks, device, backend):
    assert dataclasses.replace(a_cell(), world_size=ranks, device=device).backend == backend


def test_the_order_of_settings_does_not_matter():
    cell = a_cell(method="galore")
    names = ("method_settings", "workload_settings", "timing_settings")
    turned = {name: dict(reversed(getattr(cell, name).items())) for name in names}
    other = dataclasses.replace(cell, **turned)
    assert other.to_json() == cell.to_json()
    assert other.cell_id("data") == cell.cell_id("data")


def test_a_cell_survives_json():
    cell = a_cell(method="low_rank", variant="linear", ratio=3.5)
    assert Cell.from_json(cell.to_json()) == cell
    assert Cell.from_json(json.dumps(json.loads(cell.to_json()), indent=2)).to_json() == cell.to_json()


def test_later_settings_of_methods_and_of_the_bench_are_marked_alike():
    assert protocol.LATER == LATER


def test_numbers_that_are_none_have_no_identity():
    with pytest.raises(ValueError, match="JSON"):
        a_cell(ratio=math.nan).to_json()
