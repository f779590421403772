"""Artifacts of contraction plans that are drawn by modules of before, until they are moved to ``figures/artifacts``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.core.record import Record
from figures import fig11, plans, table_tensorization
from figures.artifact import Artifact, Claims
from figures.page.drawn import Caption, Drawn


@dataclass(frozen=True, kw_only=True)
class OldArtifact(Artifact[Any, Any]):
    drawn_by: Callable[[Sequence[Record], Any], list[Drawn]]

    def render(self, records: Sequence[Record], claims: Claims) -> list[Drawn]:
        return self.drawn_by(self.of(records), dict(claims))


def _old(name: str, module: Any, order: int, heading: str, summary: str, **more: Any) -> OldArtifact:
    return OldArtifact(
        name=name, heading=heading, summary=summary, order=order, drawn_by=module.render, select=lambda _: (),
        rows=lambda _: (), columns=lambda *_: (), caption=lambda *_: Caption("", ()), **more,
    )  # fmt: skip


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
