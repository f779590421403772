"""Bytes on paper are those of the tensors that two ranks give to collectives, for every exchange."""

import pytest
from small_cells import MODEL, a_cell
from two_processes import in_two_processes

from bench.core.cell import EXCHANGES, Cell
from bench.distributed.step import build_exchanged
from bench.distributed.traffic import SentBytes
from bench.measures.run import batches_on
from bench.protocol import Data
from bench.workloads import open_cell_workload

pytestmark = pytest.mark.slow  # processes start and import torch

#: What the rule of FSDP2 depends on: tensor trains, frozen parameters, and numbers of two bytes.
ARMS = {"dense": "fp32", "comera": "fp32", "lora": "fp32", "dense with BF16 weights": "bf16_weights"}

CASES = [("dense", name) for name in EXCHANGES]
CASES += [(arm, name) for arm in ("comera", "lora", "dense with BF16 weights") for name in ("ddp", "fsdp2")]


def counted_and_on_paper(rank: int, cell: Cell, pairs: str) -> tuple[float, float]:
    """Return the bytes that a step gave to collectives, counted, and by the rule of the exchange."""
    workload = open_cell_workload(cell, Data(data_folder=pairs))
    step = build_exchanged(cell, workload)
    [batch] = batches_on(cell, workload, 1, rank)
    for _ in range(step.exchange.warm_up_steps):
        step(batch)
    with SentBytes(2) as counted:
        step(batch)
    return counted.sent, step.exchange.sent_bytes()


@pytest.mark.parametrize(("arm", "exchange"), CASES)
def test_paper_says_what_is_counted(arm, exchange, pairs):
    """Three blocks, an embedding and a head of three classes, whose rows two ranks do not divide."""
    cell = a_cell(
        method=arm.split()[0],
        precision=ARMS[arm],
        world_size=2,
        exchange=exchange,
        workload_settings={**MODEL, "layers": 3, "sequence_length": 32},
    )
    for counted, on_paper in in_two_processes(counted_and_on_paper, cell, str(pairs)):
        assert on_paper == counted > 0
