"""Verdicts on the claims that training runs touch: sizes, ranks, accuracy.

How a verdict falls. Only runs of the paper's encoder at full size decide anything. Sizes and ranks are decided by any
of them that has learned something, whatever the data and the device, since a model that guesses has no use for its
ranks: a compression *holds* when it reaches the published number less half a unit
of its last digit, a size in MiB when it is no larger than the published one by more than that (more compression than
published holds too, and is said). With several seeds the worst decides. A compression that reaches at least half of
what was published counts as partly reproduced.

Accuracy is claimed for MNLI, so other data leave it untested; what they show is said all the same. On MNLI it takes
three seeds and a margin of two points: reproduced when the whole interval lies above the margin, not reproduced when
the whole interval lies below it, partly when it lies on both sides. A comparison is void where dense itself does not
beat the bag-of-words probe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal

from figures.accuracy import Percent
from figures.claims.claims import FULL_SIZE_PARAMETERS, Claim, Finding, LedgerError, Outcome, Verdict
from figures.page.table import NOT_RECORDED
from figures.ranks import BLOCK, last_ranks, layers_without_ranks
from figures.runs import COMERA, DENSE_RUN, EARLY, PAPER_TARGETS, Slot, Study
from figures.training_rows import Row, Spread

#: How many points below dense, or below what was published, still count as comparable, and the seeds that takes.
MARGIN = 2.0
SEEDS_NEEDED = 3

#: Accuracy in percent of a linear probe on bags of words, on the validation pairs of MNLI-12k. On MNLI as a whole, with
#: more to learn from, such a probe does no worse.
BAG_OF_WORDS = {"nli_pool": 52.0, "mnli_12k": 52.0, "mnli": 52.0}

#: The dataset that the claims on accuracy are about.
CLAIMED_DATASET = "mnli"

#: A dense model as large as published to within this share (its size is known to three digits) is the same.
SAME_SIZE = 0.01

#: Half a unit of the last digit published, of a compression and of a size in MiB.
RATIO_SLACK, SIZE_SLACK = 0.5, 0.05

Rows = Mapping[Slot, Row]
Judge = Callable[[Claim, Study, Rows], Verdict]


def late(target: float) -> Slot:
    """CoMERA's late stage toward a share of the tensorized size."""
    return Slot(COMERA, "late", target)


def late_name(target: float) -> str:
    """How the ids of the claims on a late stage begin: ``mnli-late02`` for 0.2."""
    return f"mnli-late{10 * target:02.0f}"


def _row_of(rows: Rows, slot: Slot) -> Row:
    """The row of a slot, also where nothing was expected or recorded for it."""
    return rows.get(slot, Row(slot, NOT_RECORDED, "", (), {}))


def _absent(row: Row) -> str:
    """Why a slot has no number."""
    return f"{row.slot.label} is {row.status}" + (f" ({'; '.join(row.remarks).rstrip('.')})" if row.remarks else "")


def _other_model(study: Study) -> str:
    """Why the model of these runs decides nothing; empty where it is the paper's, or where no run tells its size."""
    count = study.dense_parameters
    if count is None or study.is_full_size:
        return ""
    return (
        f"The dense model of these runs has {count:,} parameters; the claim is about the six-encoder model of "
        f"{FULL_SIZE_PARAMETERS:,}."
    )


def _guesses(study: Study, row: Row) -> str:
    """Why the size of a run's model says nothing; empty where the model surely answers better than by guessing."""
    classes = study.model.get("classes")
    if not classes or row.accuracy is None or row.accuracy.low > 100 / classes:
        return ""
    return (
        f"At {row.accuracy} %, {row.slot.label} does not surely beat guessing among {classes} classes on "
        f"{study.dataset}, so that its size says nothing."
    )


def _judge_size(
    claim: Claim, study: Study, rows: Rows, *, slot: Slot, of: Literal["stored", "ratio", "tensorized_ratio"],
    slack: float = 0.0,
) -> Verdict:  # fmt: skip
    row = _row_of(rows, slot)
    spread: Spread | None = getattr(row, of)
    assert claim.low is not None
    if spread is None:
        return Verdict(claim, (), study.device, "not tested here", _other_model(study) or f"{_absent(row)}.")
    unit = " MiB" if of == "stored" else "x"
    heading = {"stored": "whole model", "ratio": "whole model", "tensorized_ratio": "tensorized layers"}[of]
    seeds = "one seed" if len(row.finished) == 1 else f"{len(row.finished)} seeds"
    found = (Finding(f"{heading}, {study.dataset}, {seeds}", spread.text(unit)),)
    if other := _other_model(study) or (slot != DENSE_RUN and _guesses(study, row)):
        return Verdict(claim, found, study.device, "not tested here", other)
    if slot == DENSE_RUN:
        same = abs(spread.value / claim.low - 1) <= SAME_SIZE
        outcome: Outcome = "reproduced" if same else "not reproduced"
        why = f"{'Within' if same else 'Not within'} {SAME_SIZE:.0%} of the published size."
    elif of == "stored":
        holds = spread.high <= claim.low + slack
        outcome = "reproduced" if holds else "not reproduced"
        why = f"{'At most' if holds else 'More than'} {claim.low + slack:g} MiB."
    else:
        need = claim.low - slack
        reached, half = spread.low >= need, spread.low >= need / 2
        outcome = "reproduced" if reached else "partly" if half else "not reproduced"
        why = f"{'Reaches' if reached else 'Short of'} {need:g}x"
        why += "; more than published." if spread.low > claim.low + slack else "."
    if row.size is not None and row.wished is not None:
        why += f" S is {row.size.text('')} of the full tensorized size, S0 was {row.wished.text('')}."
    return Verdict(claim, found, study.device, outcome, why)


def _void(study: Study, rows: Rows) -> str:
    """Why no comparison with dense can be made on these data; empty where one can."""
    probe, row = BAG_OF_WORDS.get(study.dataset), rows.get(DENSE_RUN)
    if probe is None or row is None or row.accuracy is None or row.accuracy.low > probe:
        return ""
    return (
        f"Void: dense itself, at {row.accuracy} %, does not surely beat the bag-of-words probe ({probe:g} %) on "
        f"{study.dataset}."
    )


def _against(found: Percent, bound: float, words: str) -> tuple[Outcome, str]:
    """The outcome for an interval against a lower bound."""
    if found.low >= bound:
        return "reproduced", f"The whole interval lies {words}."
    if found.high < bound:
        return "not reproduced", f"No part of the interval lies {words}."
    return "partly", f"Only a part of the interval lies {words}."


def _judge_accuracy(claim: Claim, study: Study, rows: Rows, *, slot: Slot) -> Verdict:
    row = _row_of(rows, slot)
    if row.accuracy is None:
        return Verdict(claim, (), study.device, "not tested here", _other_model(study) or f"{_absent(row)}.")
    ours = row.accuracy
    found = (Finding(f"validation accuracy on {study.dataset}, {ours.seeds_text}, {_epochs(study, row)}", f"{ours} %"),)
    if other := _other_model(study):
        return Verdict(claim, found, study.device, "not tested here", other)
    if study.dataset != CLAIMED_DATASET:
        why = f"The claim is about MNLI; on {study.dataset}, {slot.label} reached {ours} %."
        return Verdict(claim, found, study.device, "not tested here", why)
    assert claim.low is not None
    if ours.seeds < SEEDS_NEEDED:
        why = f"Inconclusive: {ours.seeds_text}, {SEEDS_NEEDED} are needed; published less ours is "
        return Verdict(claim, found, study.device, "not tested here", why + f"{claim.low - ours.value:+.1f} points.")
    outcome, why = _against(ours, claim.low - MARGIN, f"above {claim.low - MARGIN:g} %")
    return Verdict(claim, found, study.device, outcome, why)


def _epochs(study: Study, row: Row) -> str:
    per_epoch = study.steps_per_epoch
    return f"{row.steps / per_epoch:.2g} epochs" if per_epoch and row.steps else f"{row.steps} steps"


def _judge_same_accuracy(claim: Claim, study: Study, rows: Rows) -> Verdict:
    """Early stage against dense after as many steps."""

    def verdict(outcome: Outcome, why: str, found: Sequence[Finding] = ()) -> Verdict:
        return Verdict(claim, tuple(found), study.device, outcome, why)

    row, dense = _row_of(rows, EARLY), _row_of(rows, DENSE_RUN)
    apart = row.difference
    if row.accuracy is None or apart is None:
        missing = [_absent(one) for one in (row, dense) if one.accuracy is None]
        why = "; ".join(missing) or "dense has no accuracy after as many steps of the same seed"
        return verdict("not tested here", f"No pair of runs to compare: {why}.")
    words = (
        f"{EARLY.label} reached {row.accuracy} % on {study.dataset}, dense after as many steps {row.dense_then} %: a "
        f"difference of {apart.signed} points"
    )
    found = [
        Finding(f"early less dense, {study.dataset}, {apart.seeds_text}, paired bootstrap", f"{apart.signed} points")
    ]
    if other := _other_model(study):
        return verdict("not tested here", other, found)
    if void := _void(study, rows):
        return verdict("not tested here", f"{void} Found: {words}.", found)
    if study.dataset != CLAIMED_DATASET:
        few = f", inconclusive with {apart.seeds_text}" if apart.seeds < SEEDS_NEEDED else ""
        return verdict("not tested here", f"The claim is about MNLI; {words}{few}.", found)
    if apart.seeds < SEEDS_NEEDED:
        why = f"Inconclusive: {apart.seeds_text}, {SEEDS_NEEDED} are needed to tell {MARGIN:g} points; {words}."
        return verdict("not tested here", why, found)
    outcome, why = _against(apart, -MARGIN, f"above -{MARGIN:g} points")
    return verdict(outcome, why, found)


def _judge_ranks_removed(claim: Claim, study: Study, rows: Rows) -> Verdict:
    lates = [row for slot, row in rows.items() if slot.arm == COMERA and slot.stage == "late"]
    absent = [row for row in lates if row.status != "ok"]
    removed: dict[int, list[str]] = {}
    found = []
    for row in lates:
        for seed, run in row.finished.items():
            gone = layers_without_ranks(last_ranks(run))
            removed.setdefault(seed, []).extend(gone)
            text = f"{row.slot.label}: {', '.join(gone) or 'none'}"
            found.append(Finding(f"layers without ranks in the block shown, {study.dataset}, seed {seed}", text))
    if not removed:
        why = "; ".join(map(_absent, absent)) or "no late stage was asked for"
        return Verdict(claim, (), study.device, "not tested here", f"No late stage finished: {why}.")
    guessing = next(filter(None, (_guesses(study, row) for row in lates)), "")
    if other := _other_model(study) or guessing:
        return Verdict(claim, tuple(found), study.device, "not tested here", other)
    some = sum(bool(gone) for gone in removed.values())
    why = f"After a late stage, layers of block {BLOCK} have lost all ranks in {some} of {len(removed)} seed(s)."
    if not some and absent:
        why += f" Not finished: {'; '.join(map(_absent, absent))}."
        return Verdict(claim, tuple(found), study.device, "not tested here", why)
    outcome: Outcome = "reproduced" if some == len(removed) else "partly" if some else "not reproduced"
    return Verdict(claim, tuple(found), study.device, outcome, why)


_size = partial(partial, _judge_size)
_accuracy = partial(partial, _judge_accuracy)

#: How each claim is judged.
RULES: dict[str, Judge] = {
    "mnli-dense-size": _size(slot=DENSE_RUN, of="stored"),
    "mnli-early-size": _size(slot=EARLY, of="stored", slack=SIZE_SLACK),
    "mnli-early-ratio": _size(slot=EARLY, of="ratio", slack=RATIO_SLACK),
    "mnli-late02-size": _size(slot=late(0.2), of="stored", slack=SIZE_SLACK),
    "mnli-dense-acc": _accuracy(slot=DENSE_RUN),
    "mnli-early-acc": _accuracy(slot=EARLY),
    "mnli-same-accuracy": _judge_same_accuracy,
    "ranks-removed": _judge_ranks_removed,
    **{
        f"{late_name(target)}-ratio": _size(slot=late(target), of="ratio", slack=RATIO_SLACK)
        for target in PAPER_TARGETS
    },
    **{
        f"{late_name(target)}-layers": _size(slot=late(target), of="tensorized_ratio", slack=RATIO_SLACK)
        for target in PAPER_TARGETS
    },
    **{f"{late_name(target)}-acc": _accuracy(slot=late(target)) for target in PAPER_TARGETS},
}


def verdicts(study: Study, rows: Sequence[Row], claims: dict[str, Claim], wanted: Sequence[str]) -> list[Verdict]:
    """One verdict per wanted claim, in that order; raises LedgerError when the ledger lacks one."""
    for claim_id in wanted:
        if claim_id not in claims:
            raise LedgerError(f"the ledger has no claim {claim_id!r}; it has: {', '.join(claims)}.")
    by_slot = {row.slot: row for row in rows}
    return [RULES[claim_id](claims[claim_id], study, by_slot) for claim_id in wanted]
