"""Artifacts of contraction plans that are drawn by modules of before, until they are moved to ``figures/artifacts``."""

from __future__ import annotations

from figures import fig11, plans, table_tensorization
from figures.old_training import _old

ARTIFACTS = (
    _old("fig11", fig11, 50, "Fig. 11: contraction paths",
         "contraction plans chosen for the encoder's layers as tensor diagrams, step by step; an image per device",
         experiments=fig11.EXPERIMENTS, measure="plan", made_by="make reproduce-fig11"),
    _old("plans", plans, 70, "The planner on a grid of shapes",
         "the contraction planner's choice over the best measured candidate on a grid of shapes; an image per device",
         experiments=plans.EXPERIMENTS, measure="plan", made_by="make plan-grid"),
    _old("table_tensorization", table_tensorization, 160, "Modes and ranks of the encoder's matrices",
         "modes, ranks, sizes, FLOPs and time of the encoder's matrices: dense, in the paper's tensorization, in the "
         "solver's; a table per device", experiments=(table_tensorization.EXPERIMENT,), measure="run",
         made_by="make reproduce-table-tensorization"),
)  # fmt: skip
