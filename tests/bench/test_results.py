"""What a record has that no measure makes: the ranks of plain factors."""

from __future__ import annotations

import pytest
from small_cells import a_cell, a_training_cell

from bench.protocol import Data, Outcome
from bench.protocol.methods import build_for
from bench.runner.results import Results
from bench.workloads import open_cell_workload

DATA = Data("synthetic")
TRAINING = a_training_cell().training


def recorded(folder, status="ok", **cell):
    """The samples of the record of such a cell, which a measure left with one of its own."""
    outcome = Outcome(a_cell(timing_settings={}, **cell), status, columns={"samples": {"curve": []}})
    [record] = Results(folder, "exact").record([outcome], "d", DATA)
    return record.samples


GIVEN = {"rank": 7, "embedding_rank": 40}  # the table is 32 wide


@pytest.mark.parametrize(
    ("variant", "settings"),
    [("", GIVEN), ("linear", GIVEN), ("", {"ratio": 4.0}), ("orthogonal", {"ratio": 4.0}), ("lean", {"ratio": 4.0})],
)
def test_a_training_of_plain_factors_records_their_ranks(tmp_path, variant, settings):
    cell = {"measure": "train", "training": TRAINING, "method": "low_rank", "variant": variant, "settings": settings}
    samples = recorded(tmp_path, **cell)
    workload = open_cell_workload(a_cell(**cell), DATA)
    model = build_for(a_cell(**cell)).adapt(workload.build(), workload.targets())
    factors = {name: factor for name, factor in model.state_dict().items() if name.endswith(".second")}
    ranks = {name.removesuffix(".second"): len(factor) for name, factor in factors.items()}
    assert samples == {"curve": [], "factor_ranks": ranks}
    assert len(ranks) == len(workload.targets()) - (variant == "linear")
    if settings is GIVEN:
        assert set(ranks.values()) == ({7} if variant == "linear" else {7, 32})


@pytest.mark.parametrize(
    "cell",
    [
        {"method": "comera", "measure": "train", "training": TRAINING},
        {"method": "low_rank", "measure": "predict"},
        {"method": "low_rank", "measure": "train", "training": TRAINING, "status": "oom"},
    ],
)
def test_other_records_have_none(tmp_path, cell):
    assert recorded(tmp_path, **cell) == {"curve": []}
