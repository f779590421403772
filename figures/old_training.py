"""Artifacts of training that are drawn by modules of before, until they are moved to ``figures/artifacts``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.core.record import Record
from figures import fig6, pareto, table_mnli, table_ranks, table_search, training_claims, truncation
from figures.artifact import Artifact, Claims
from figures.claims.claims import Claim, Judgement
from figures.claims.rule import AT_MOST, REACHES, Rule
from figures.page.drawn import Caption, Drawn
from figures.ranks import BLOCK
from figures.runs import EXPERIMENT, PAPER_TARGETS, studies
from figures.training_claims import MARGIN, RATIO_SLACK, SAME_SIZE, SEEDS_NEEDED, SIZE_SLACK, late_name
from figures.training_rows import rows_of


@dataclass(frozen=True, kw_only=True)
class OldArtifact(Artifact[Any, Any]):
    drawn_by: Callable[[Sequence[Record], Any], list[Drawn]]

    def render(self, records: Sequence[Record], claims: Claims) -> list[Drawn]:
        return self.drawn_by(self.of(records), dict(claims))


def _old(name: str, module: Any, order: int, heading: str, summary: str, **more: Any) -> OldArtifact:
    values: dict[str, Any] = {
        "experiments": (EXPERIMENT,),
        "measure": "train",
        "select": _studies,
        "rows": rows_of,
    } | more
    return OldArtifact(
        name=name, heading=heading, summary=summary, order=order, drawn_by=module.render,
        columns=lambda *_: (), caption=lambda *_: Caption("", ()), **values,
    )  # fmt: skip


@dataclass(frozen=True)
class _Placed:
    """A study as the ledger asks for it."""

    study: Any

    @property
    def device(self) -> str:
        return str(self.study.device)

    @property
    def place(self) -> str:
        return str(self.study.dataset)

    @property
    def shown(self) -> list[Record]:
        return list(self.study.shown)


def _studies(records: Sequence[Record]) -> list[Any]:
    return [_Placed(study) for study in studies(records)]


def _rule(claim_id: str, quantity: str, holds: str = "", tolerance: float = 0.0, unit: str = "") -> Rule:
    def judge(claim: Claim, placed: Any, rows: Any) -> Judgement:
        found = training_claims.RULES[claim.id](claim, placed.study, {row.slot: row for row in rows})
        return Judgement(found.outcome, found.why, found.ours)

    return Rule(claim_id, quantity, holds, "any", tolerance, unit, judge)


def _size(claim_id: str, run: str) -> Rule:
    return _rule(claim_id, f"stored_mib of {run}, worst seed", AT_MOST, SIZE_SLACK, "MiB")


def _compression(claim_id: str, quotient: str, run: str) -> Rule:
    holds = f"{REACHES} (from half of it: partly)"
    return _rule(claim_id, f"{quotient} of {run}, worst seed", holds, RATIO_SLACK, "x")


def _accuracy(claim_id: str, run: str) -> Rule:
    return _rule(claim_id, f"accuracy on MNLI of {run}, {SEEDS_NEEDED} seeds", REACHES, MARGIN, "points")


_EARLY = "comera after its early stage"
_LATE = {late_name(target): f"comera after its late stage toward {target:g}" for target in PAPER_TARGETS}

_MNLI_RULES = (
    _rule("mnli-dense-size", "stored_mib of dense / published - 1", "within +-tolerance", 100 * SAME_SIZE, "%"),
    _size("mnli-early-size", _EARLY),
    _compression("mnli-early-ratio", "dense_mib / stored_mib", _EARLY),
    _size("mnli-late02-size", "comera after its late stage toward 0.2"),
    *(_compression(f"{name}-ratio", "dense_mib / stored_mib", run) for name, run in _LATE.items()),
    *(_compression(f"{name}-layers", "dense_tensorized_mib / tensorized_mib", run) for name, run in _LATE.items()),
    _accuracy("mnli-dense-acc", "dense"),
    _accuracy("mnli-early-acc", _EARLY),
    *(_accuracy(f"{name}-acc", run) for name, run in _LATE.items()),
)
_SAME = _rule(
    "mnli-same-accuracy",
    f"accuracy on MNLI of {_EARLY} - that of dense after as many steps, {SEEDS_NEEDED} seeds",
    ">= -tolerance", MARGIN, "points",
)  # fmt: skip
_REMOVED = _rule("ranks-removed", f"ranks after a late stage: in every seed some layer of block {BLOCK} has none left")


def _rows(placed: Any) -> Any:
    return rows_of(placed.study)


ARTIFACTS = (
    _old("fig6", fig6, 30, "Fig. 6: validation accuracy per epoch",
         "validation accuracy per epoch, dense against CoMERA; an image per device and dataset",
         rows=_rows, rules=(_SAME,)),
    _old("pareto", pareto, 120, "Accuracy against size",
         "accuracy against the size of the model, with the Pareto front; an image per device and dataset",
         experiments=(pareto.EXPERIMENT,)),
    _old("table_mnli", table_mnli, 130, "Accuracy and size by stage",
         "accuracy with its interval, size and compression of dense, early and late stages, beside the published; "
         "a table per device and dataset", rows=_rows, rules=_MNLI_RULES),
    _old("table_ranks", table_ranks, 140, "Ranks by stage",
         "ranks of the fifth encoder block before training and after each stage; a table per device and dataset",
         rows=_rows, rules=(_REMOVED,)),
    _old("table_search", table_search, 150, "Settings tried",
         "settings tried for each method with the loss, accuracy and size they reached; "
         "a table per device, dataset and experiment", experiments=table_search.EXPERIMENTS),
    _old("truncation", truncation, 170, "What truncation saves",
         "step time, peak memory and accuracy against the physically truncated size; an image per device and dataset"),
)  # fmt: skip
