"""Fig. 10: time per step and peak memory of the full CodeBERT-like model; a page per device and phase.

The phases of the paper differ in the length of a row, 128 tokens and then 512, so a page is of one length. The whole
model is as much smaller as was published, since its ranks are solved for that.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd

from bench.core.record import Record
from figures.artifact import Artifact
from figures.artifacts import fig1
from figures.claims import ratio
from figures.claims.claims import Claim, Finding, Judgement, Outcome, undecided
from figures.claims.rule import REACHES, Rule
from figures.page.captions import beside
from figures.records import cells
from figures.records.cells import TARGETS
from figures.records.select import COMERA, DENSE, PLAIN, Toggles, by_arm, by_device
from figures.records.time_values import Per

EXPERIMENTS = ("fig10_time", "fig10_memory")

#: What claims call codebert.
WORKLOAD = "code"

#: Parameters of the dense model.
FULL_SIZE = 357_189_408

#: Tokens of a row in the second phase.
SECOND = 512

#: Parameters of the word embedding, 52,000 x 1,024, which stays dense.
WORD_EMBEDDING = 53_248_000

#: One percent of either published size; half a digit of the published speed-ups.
_WHOLE_TOLERANCE, _ENCODER_TOLERANCE, _TIME_SLACK = 0.0423, 0.0977, 0.05

#: The second size that is published of this model, of which the ledger has the first.
WITHOUT_EMBEDDING = Claim(
    "codebert-encoder-ratio",
    "text",
    "compression of all but the word embedding",
    "comera",
    "value",
    9.77,
    9.77,
    "x",
    "stated",
    "codebert",
)


@dataclass(frozen=True, kw_only=True)
class Fig10Page(fig1.Fig1Page):
    """One length's cells, with no more than there are records of."""

    experiments: ClassVar = EXPERIMENTS
    length: int

    @property
    def per(self) -> Per:
        return "step"

    @property
    def arms(self) -> list[str]:
        return sorted({arm for arm, _ in self.timed} | {arm for _, (arm, _) in self.predicted}, key=by_arm)

    @property
    def time_batches(self) -> list[int]:
        return sorted({batch for _, batch in self.timed})

    @property
    def memory_batches(self) -> list[int]:
        return sorted({batch for _, (_, batch) in self.predicted})

    @property
    def targets(self) -> list[str]:
        return [goal for goal in TARGETS if any(target == goal for target, _ in self.predicted)]


def select(records: Sequence[Record]) -> list[Fig10Page]:
    """A page per device and length, of plain FP32 steps."""
    pages = []
    for device, mine in by_device(records):
        plain = [record for record in mine if Toggles.of(record) == PLAIN or record.measure == "predict"]
        for length in sorted({record.sequence_length for record in plain}):
            place: Mapping[str, Any] = {"place": f"rows of {length} tokens", "suffix": (f"length-{length}",)}
            some = [record for record in plain if record.sequence_length == length]
            choose = cells.Select(lambda record: (record.arm, record.batch_size))
            pages.append(choose(some, Fig10Page, **device, **place, toggles=PLAIN, length=length))
    return [page for page in pages if page.shown]


def about(page: Fig10Page, _: pd.DataFrame) -> dict[str, Any]:
    """Return how many times smaller than dense each arm's model is."""
    return {"smaller": _size_ratios(page)}


def _size_ratios(page: Fig10Page) -> dict[str, float]:
    """Parameters of dense over those of each smaller arm."""
    counts = {record.arm: record.parameters for record in page.shown if record.parameters}
    dense = counts.get(DENSE)
    return {arm: dense / count for arm, count in counts.items() if dense and count < dense}


def _not_full_size(page: Fig10Page) -> str:
    dense = {record.parameters for record in page.shown if record.arm == DENSE and record.parameters}
    if dense == {FULL_SIZE}:
        return ""
    return "No record of the dense model." if not dense else "The dense model of these records is not the paper's."


def _size_rule(claim_id: str, tolerance: float, quantity: str, apart: int) -> Rule:
    """The rule of a claim on the size of the full model, where so many parameters are left out on both sides."""

    def judge(claim: Claim, page: Fig10Page, _: Any) -> Judgement:
        counts = {record.arm: record.parameters for record in page.shown if record.parameters}
        missing = "" if COMERA in counts else "No record of comera."
        if untested := undecided([_not_full_size(page), missing]):
            return untested
        found = (FULL_SIZE - apart) / (counts[COMERA] - apart)
        why = "The solver was asked for 4.23 times in all, with the embedding dense. Counts do not vary."
        outcome: Outcome = "by construction" if abs(found - (claim.low or 0.0)) <= tolerance else "not reproduced"
        return Judgement(outcome, why, [Finding(quantity, f"{found:.3f}x")])

    return Rule(claim_id, quantity, "within the tolerance", "any", tolerance, "x", judge=judge, workload=WORKLOAD)


def _judge_time(
    claim: Claim, page: Fig10Page, rivals: Callable[[int], Sequence[str]], ours: Sequence[str]
) -> Judgement:
    """The published range is that of the two phases: its low end belongs to the first, its high one to the second."""
    pairs = {
        batch: ([(arm, batch) for arm in rivals(batch)], [(arm, batch) for arm in ours]) for batch in page.time_batches
    }
    points = ratio.time_points(page, pairs, page.place)
    if page.kind == "cpu":
        return Judgement("not tested here", ratio.ON_CPU, points)
    needed = claim.high if page.length == SECOND else claim.low
    if untested := undecided([_not_full_size(page), ratio.not_fp32(page)], points):
        return untested
    return ratio.decide(_of_phase(claim, needed), points, len(points), _TIME_SLACK)


def _judge_fairly(claim: Claim, page: Fig10Page, _: Any) -> Judgement:
    def rivals(batch: int) -> list[str]:
        return [*fig1.forms(page, DENSE), *fig1.sized_rivals(page, batch)]

    if all(len(rivals(batch)) < 2 for batch in page.time_batches):
        return Judgement("not tested here", "Neither low_rank of equal size nor another form of dense is recorded.")
    return _judge_time(claim, page, rivals, fig1.forms(page, COMERA))


def _of_phase(claim: Claim, value: float | None) -> Claim:
    return Claim(**{**vars(claim), "low": value, "high": value, "kind": "value"})


RULES = (
    _size_rule("codebert-ratio", _WHOLE_TOLERANCE, "parameters of dense / comera, full model", 0),
    _size_rule(WITHOUT_EMBEDDING.id, _ENCODER_TOLERANCE, "the same without the word embedding", WORD_EMBEDDING),
    Rule(
        "codebert-speedup",
        "step time of dense / comera, full model, each phase",
        REACHES,
        "cuda",
        _TIME_SLACK,
        "x",
        judge=lambda claim, page, _: _judge_time(claim, page, lambda _: [DENSE], [COMERA]),
        fair=_judge_fairly,
        fair_quantity="step time of the form of dense or of low_rank of equal size that takes least / that of comera, "
        "each phase",
        workload=WORKLOAD,
    ),
)

ARTIFACT = Artifact(
    name="fig10",
    heading="Fig. 10: the CodeBERT-like model",
    summary="time per step and peak memory of the full CodeBERT-like model; an image per device and phase",
    experiments=EXPERIMENTS,
    made_by="make reproduce-fig10",
    order=45,
    select=select,
    table=fig1.table,
    shown=fig1.shown,
    about=about,
    caption=beside(__file__),
    draw=fig1.draw,
    rules=RULES,
    claims=(WITHOUT_EMBEDDING,),
)
