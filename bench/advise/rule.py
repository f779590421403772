"""The rule that writes the answer on top: what to take, and why. It stands here and nowhere else.

The first of these that fits the batch on the device is recommended:

1. **Dense training that is exact**, for its loss is the one that all others are measured by: as it is; else with
   checkpointing, which computes the same numbers twice.
2. **Dense training with AdamW's moments in 8 bits**, without and with checkpointing: the same model and optimizer,
   rounded moments.
3. **The first two with a smaller batch**, of which several make one step (gradient accumulation): the one of them that
   fits the largest batch.
4. **Another optimizer of the dense model**, the leanest: its loss is another one, which the table shows where it was
   measured.
5. **A structured model**, the one with the smallest measured gap in loss; of arms whose gap is not measured, none.

A structured model replaces an exact one only by evidence: where, at a ratio within 1.5 times of the asked one, its loss
was measured level with dense training or below, on every bed and under every optimizer that was tried, and its least
time is lower.
CoMERA is held to the same rule as every other structured arm, and at an equal gap the others come first.

Arms for fine-tuning alone are never recommended, since the command asks about training.

A further sentence has what the best structured arm would change, so that "no" is as well founded as "yes".
"""

from collections.abc import Sequence

from bench.advise.answer import Answer, AnswerRow
from bench.advise.arms import Kind
from bench.advise.evidence import OPTIMIZERS

#: The largest gap in loss, in nats, that counts as level.
LEVEL = 0.01

#: How far the ratio at which a gap was measured may be from the asked one to count as evidence.
NEAR = 1.5


def advice(answer: Answer) -> str:
    """Return the sentences on top, by the rule of this module."""
    rows = answer.predicted
    if proven := _first(_proven(answer), answer.question.batch_size):
        return f"Take {proven.arm}, because it fits, {_gap(proven)}, and its least time is below dense training's."
    batch = answer.question.batch_size
    for kind, why in ((Kind.EXACT, "exact"), (Kind.EIGHT_BIT, "the same training with rounded moments")):
        if row := _first([row for row in rows if row.arm.kind is kind], batch):
            dense, alone = answer.dense, ""
            if dense is not None and dense is not row and dense.largest:
                alone = f" Dense alone fits batches of {dense.largest:,}, with gradients accumulated."
            return f"Take {row.arm}, because batch {batch:,} fits and it is {why}.{alone} {_structured(answer)}"
    close = [row for row in rows if row.arm.kind in (Kind.EXACT, Kind.EIGHT_BIT) and row.largest]
    if close:
        row = max(close, key=lambda each: (each.largest, -each.arm.kind))
        return (
            f"Take {row.arm} in batches of {row.largest:,} and accumulate gradients, because no dense AdamW fits batch "
            f"{batch:,} at once. Accumulated gradients are those of the whole batch. {_structured(answer)}"
        )
    others = sorted((row for row in rows if row.arm.kind is Kind.OPTIMIZER and row.largest), key=lambda row: row.peak)
    if others:
        row = others[0]
        taken = f"{row.arm} in batches of {min(row.largest, batch):,}"
        return f"Take {taken}, because no dense AdamW fits and it keeps the model."
    measured = [row for row in _by_gap(answer) if row.largest]
    if measured:
        row = measured[0]
        taken = f"{row.arm} in batches of {min(row.largest, batch):,}"
        return f"Take {taken}, because no dense model fits; {_gap(row)}."
    memory = answer.question.memory_gib
    room, more = ("", "take a larger device") if memory is None else (f" with memory_gib={memory:g}", "give it more")
    return (
        f"Nothing fits: no arm whose loss is known fits a single row of {answer.sequence_length:,} tokens on "
        f"{answer.device.name}{room}; shorten sequence_length, {more}, or shard the model."
    )


def _first(rows: Sequence[AnswerRow], batch_size: int) -> AnswerRow | None:
    return next((row for row in rows if row.fits(batch_size)), None)


def _by_gap(answer: Answer) -> list[AnswerRow]:
    """Structured arms whose gap was measured, the smallest one first.

    At an equal gap CoMERA comes last, and of one arm the ratio that is nearest to a measured one comes first.
    """

    def rank(row: AnswerRow) -> tuple[float, bool, float, float]:
        return _worst(row), row.arm.parsed.method == "comera", _distance(answer, row), row.peak

    return sorted((row for row in answer.predicted if row.arm.kind is Kind.STRUCTURED and row.gap), key=rank)


def _distance(answer: Answer, row: AnswerRow) -> float:
    """Return how far an arm's ratio is from the one that its gap was measured at, as a factor of at least 1."""
    if answer.evidence is None or row.arm.ratio is None:
        return 1.0
    quotient = row.arm.ratio / answer.evidence.nearest(row.arm.ratio)
    return max(quotient, 1 / quotient)


def _worst(row: AnswerRow) -> float:
    """Return the largest of the gaps measured on several beds under several optimizers."""
    return max(gap.high for gap in row.gap.values())


def _proven(answer: Answer) -> list[AnswerRow]:
    """Structured arms that the evidence puts level with dense training, and that are bound lower in time."""
    dense = answer.dense
    if dense is None or dense.least_ms is None or answer.evidence is None:
        return []
    return [
        row
        for row in _by_gap(answer)
        if _worst(row) <= LEVEL
        and _distance(answer, row) <= NEAR
        and row.least_ms is not None
        and row.least_ms < dense.least_ms
    ]


def _gap(row: AnswerRow) -> str:
    gaps = [f"{gap} nats under {OPTIMIZERS[name]}" for name, gap in row.gap.items()]
    return f"its loss on the test beds is {' and '.join(gaps)}"


def _structured(answer: Answer) -> str:
    """Return a sentence on what the structured arm with the smallest measured gap would change of dense training."""
    ranked, dense = _by_gap(answer), answer.dense
    if not ranked:
        return "No structured arm has a measured loss."
    best = ranked[0]
    if dense is None:
        return f"{best.arm} is the structured arm of the least measured gap, but {_gap(best)}."
    costs = [f"{best.peak / dense.peak:.2f}x of the memory of dense"]
    if best.least_ms is not None and dense.least_ms:
        costs.append(f"{best.least_ms / dense.least_ms:.2f}x of its least time")
    return f"{best.arm} would take {' and '.join(costs)}, but {_gap(best)}."
