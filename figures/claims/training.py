"""Claims about training runs: sizes, ranks and accuracy.

How a verdict falls. Only runs of the paper's encoder at full size decide anything. Sizes and ranks are decided by any
of them that has learned something, whatever the data and the device, since a model that guesses has no use for its
ranks: a compression *holds* when it reaches the published number less half a unit
of its last digit, a size in MiB when it is no larger than the published one by more than that (more compression than
published holds too, and is said). With several seeds the worst decides. A compression that reaches at least half of
what was published counts as partly reproduced.

Accuracy is claimed for MNLI, so other data leave it untested; what they show is said all the same. On MNLI it takes
three seeds and a margin of two points: reproduced when the whole interval lies above the margin, not reproduced when
the whole interval lies below it, partly when it lies on both sides. A comparison is void where dense itself does not
beat the probe of these data.
"""

from __future__ import annotations

from typing import Any

from figures.claims.claims import FULL_SIZE_PARAMETERS, Claim, Finding, Judgement, Outcome
from figures.claims.rule import AT_MOST, REACHES, Rule
from figures.records.metric import Score
from figures.records.select import COMERA
from figures.records.studies import DENSE_RUN, EARLY, PAPER_TARGETS, Row, Study, late
from figures.records.training import BLOCK, Slot, layers_without_ranks

#: How many points below dense, or below what was published, still count as comparable, and the seeds that takes.
MARGIN = 2.0
SEEDS_NEEDED = 3

#: The dataset that the claims on accuracy are about.
CLAIMED_DATASET = "mnli"

#: A dense model as large as published to within this share (its size is known to three digits) is the same.
SAME_SIZE = 0.01

#: Half a unit of the last digit published, of a compression and of a size in MiB.
RATIO_SLACK, SIZE_SLACK = 0.5, 0.05

#: How the ids of the claims on a run begin.
CLAIMED = {DENSE_RUN: "mnli-dense", EARLY: "mnli-early"} | {
    late(target): f"mnli-late{10 * target:02.0f}" for target in PAPER_TARGETS
}

#: What the rules call a run.
_WORDS = {DENSE_RUN: "dense", EARLY: "comera after its early stage"} | {
    late(target): f"comera after its late stage toward {target:g}" for target in PAPER_TARGETS
}

#: The sizes that claims are about: what they are of, and where they stand in records.
_SIZES = {
    "stored_mib": ("whole model", "stored_mib"),
    "total_ratio": ("whole model", "dense_mib / stored_mib"),
    "tensorized_ratio": ("tensorized layers", "dense_tensorized_mib / tensorized_mib"),
}


def _untested(why: str, *found: Finding) -> Judgement:
    return Judgement("not tested here", why, found)


def _absent(row: Row) -> str:
    """Why a slot has no number."""
    return f"{row.name} is {row.status}" + (f" ({'; '.join(row.remarks).rstrip('.')})" if row.remarks else "")


def _other_model(study: Study) -> str:
    """Why the model of these runs decides nothing; empty where it is the paper's, or where no run tells its size."""
    count = study.dense_parameters
    if count is None or study.is_full_size:
        return ""
    return (
        f"The dense model of these runs has {count:,} parameters; the claim is about the six-encoder model of "
        f"{FULL_SIZE_PARAMETERS:,}."
    )


def _guesses(row: Row) -> str:
    """Why the size of a run's model says nothing; empty where the model surely answers better than by guessing."""
    guess = row.study.metric.guess
    if guess is None or row.score is None or row.score.beats(guess):
        return ""
    return (
        f"At {row.score.text(unit=True)}, {row.name} does not surely beat guessing among {row.study.model['classes']} "
        f"classes on {row.study.dataset}, so that its size says nothing."
    )


def _size_rule(slot: Slot, of: str, claim_id: str) -> Rule:
    """A claim on a size of a run's model or on a compression, by the worst seed."""
    heading, expression = _SIZES[of]
    unit, slack = (" MiB", SIZE_SLACK) if of == "stored_mib" else ("x", RATIO_SLACK)

    def outcome(claim: Claim, low: float, high: float) -> tuple[Outcome, str]:
        published = claim.low or 0.0
        if slot == DENSE_RUN:
            same = abs((low + high) / 2 / published - 1) <= SAME_SIZE
            within = f"{'Within' if same else 'Not within'} {SAME_SIZE:.0%} of the published size."
            return "reproduced" if same else "not reproduced", within
        if of == "stored_mib":
            holds, bound = high <= published + slack, f"{published + slack:g} MiB."
            return ("reproduced", f"At most {bound}") if holds else ("not reproduced", f"More than {bound}")
        need = published - slack
        more = "; more than published." if low > published + slack else "."
        if low >= need:
            return "reproduced", f"Reaches {need:g}x{more}"
        return "partly" if low >= need / 2 else "not reproduced", f"Short of {need:g}x{more}"

    def judge(claim: Claim, study: Study, _: Any) -> Judgement:
        row = study.row(slot)
        spread = row.spread(of)
        if spread is None:
            return _untested(_other_model(study) or f"{_absent(row)}.")
        seeds = "one seed" if len(row.finished) == 1 else f"{len(row.finished)} seeds"
        found = Finding(f"{heading}, {study.dataset}, {seeds}", spread.text(unit))
        if other := _other_model(study) or (slot != DENSE_RUN and _guesses(row)):
            return _untested(other, found)
        fell, why = outcome(claim, spread.low, spread.high)
        size, target = row.spread("size_fraction"), row.spread("size_target")
        if size is not None and target is not None:
            why += f" S is {size.text('')} of the full tensorized size, S0 was {target.text('')}."
        return Judgement(fell, why, (found,))

    if slot == DENSE_RUN:
        quantity, holds = f"{expression} of dense / published - 1", "within +-tolerance"
        return Rule(claim_id, quantity, holds, "any", 100 * SAME_SIZE, "%", judge)
    holds = AT_MOST if of == "stored_mib" else f"{REACHES} (from half of it: partly)"
    return Rule(claim_id, f"{expression} of {_WORDS[slot]}, worst seed", holds, "any", slack, unit.strip(), judge)


def _against(found: Score, bound: float, words: str) -> Judgement:
    """The judgement on an interval against a lower bound."""
    low, high = found.span
    if low >= bound:
        return Judgement("reproduced", f"The whole interval lies {words}.")
    if high < bound:
        return Judgement("not reproduced", f"No part of the interval lies {words}.")
    return Judgement("partly", f"Only a part of the interval lies {words}.")


def _epochs(study: Study, row: Row) -> str:
    per_epoch = study.steps_per_epoch
    return f"{row.steps / per_epoch:.2g} epochs" if per_epoch and row.steps else f"{row.steps} steps"


def _accuracy_rule(slot: Slot) -> Rule:
    """A claim on the accuracy of a run."""

    def judge(claim: Claim, study: Study, _: Any) -> Judgement:
        row = study.row(slot)
        ours = row.score
        if ours is None:
            return _untested(_other_model(study) or f"{_absent(row)}.")
        heading = f"{study.metric.text} on {study.dataset}, {ours.seeds_text}, {_epochs(study, row)}"
        found = Finding(heading, ours.text(unit=True))
        if other := _other_model(study):
            return _untested(other, found)
        if study.dataset != CLAIMED_DATASET:
            reached = f"on {study.dataset}, {row.name} reached {ours.text(unit=True)}"
            return _untested(f"The claim is about MNLI; {reached}.", found)
        bound = (claim.low or 0.0) - MARGIN
        if ours.seeds < SEEDS_NEEDED:
            less = f"published less ours is {bound + MARGIN - ours.value:+.1f} points"
            return _untested(f"Inconclusive: {ours.seeds_text}, {SEEDS_NEEDED} are needed; {less}.", found)
        judged = _against(ours, bound, f"above {bound:g} %")
        return Judgement(judged.outcome, judged.why, (found,))

    quantity = f"accuracy on MNLI of {_WORDS[slot]}, {SEEDS_NEEDED} seeds"
    return Rule(f"{CLAIMED[slot]}-acc", quantity, REACHES, "any", MARGIN, "points", judge)


def _void(study: Study) -> str:
    """Why no comparison with dense can be made on these data; empty where one can."""
    probe, dense = study.metric.probe, study.row(DENSE_RUN).score
    if probe is None or dense is None or dense.beats(probe):
        return ""
    return (
        f"Void: dense itself, at {dense.text(unit=True)}, does not surely beat the "
        f"{study.metric.probe_text.replace(' ', '-')} probe ({probe:g} {study.metric.unit}) on {study.dataset}."
    )


def _judge_same_accuracy(_: Claim, study: Study, __: Any) -> Judgement:
    """Early stage against dense after as many steps."""
    row, dense = study.row(EARLY), study.row(DENSE_RUN)
    apart, then = row.less_dense, row.dense_score
    if row.score is None or apart is None or then is None:
        missing = [_absent(one) for one in (row, dense) if one.score is None]
        why = "; ".join(missing) or "dense has no accuracy after as many steps of the same seed"
        return _untested(f"No pair of runs to compare: {why}.")
    words = (
        f"{row.name} reached {row.score.text(unit=True)} on {study.dataset}, dense after as many steps "
        f"{then.text(unit=True)}: a difference of {apart.text(sign=True, unit=True)}"
    )
    heading = f"early less dense, {study.dataset}, {apart.seeds_text}, paired bootstrap"
    found = Finding(heading, apart.text(sign=True, unit=True))
    if other := _other_model(study):
        return _untested(other, found)
    if void := _void(study):
        return _untested(f"{void} Found: {words}.", found)
    few = apart.seeds < SEEDS_NEEDED
    if study.dataset != CLAIMED_DATASET:
        inconclusive = f", inconclusive with {apart.seeds_text}" if few else ""
        return _untested(f"The claim is about MNLI; {words}{inconclusive}.", found)
    if few:
        needed = f"{apart.seeds_text}, {SEEDS_NEEDED} are needed to tell {MARGIN:g} points"
        return _untested(f"Inconclusive: {needed}; {words}.", found)
    judged = _against(apart, -MARGIN, f"above -{MARGIN:g} points")
    return Judgement(judged.outcome, judged.why, (found,))


def _judge_ranks_removed(_: Claim, study: Study, __: Any) -> Judgement:
    """In every seed some late stage has closed all ranks of some layer."""
    lates = [row for row in study.rows if row.slot.arm == COMERA and len(row.slot.stages) > 1]
    absent = "; ".join(_absent(row) for row in lates if row.status != "ok")
    removed: dict[int, list[str]] = {}
    found = []
    for row in lates:
        for seed, run in row.finished.items():
            gone = layers_without_ranks(run)
            removed.setdefault(seed, []).extend(gone)
            heading = f"layers without ranks in the block shown, {study.dataset}, seed {seed}"
            found.append(Finding(heading, f"{row.name}: {', '.join(gone) or 'none'}"))
    if not removed:
        return _untested(f"No late stage finished: {absent or 'no late stage was asked for'}.")
    if other := _other_model(study) or next(filter(None, map(_guesses, lates)), ""):
        return _untested(other, *found)
    some = sum(bool(gone) for gone in removed.values())
    why = f"After a late stage, layers of block {BLOCK} have lost all ranks in {some} of {len(removed)} seed(s)."
    if not some and absent:
        return _untested(f"{why} Not finished: {absent}.", *found)
    return Judgement("reproduced" if some == len(removed) else "partly" if some else "not reproduced", why, found)


#: How the last part of a claim's id says what it is about.
_PARTS = {"size": "stored_mib", "ratio": "total_ratio", "layers": "tensorized_ratio"}


def _sizes(slot: Slot, part: str) -> Rule:
    return _size_rule(slot, _PARTS[part], f"{CLAIMED[slot]}-{part}")


_LATE = tuple(map(late, PAPER_TARGETS))

SAME_ACCURACY = Rule(
    "mnli-same-accuracy",
    f"accuracy on MNLI of {_WORDS[EARLY]} - that of dense after as many steps, {SEEDS_NEEDED} seeds",
    ">= -tolerance", "any", MARGIN, "points", _judge_same_accuracy,
)  # fmt: skip
RANKS_REMOVED = Rule(
    "ranks-removed", f"ranks after a late stage: in every seed some layer of block {BLOCK} has none left",
    judge=_judge_ranks_removed,
)  # fmt: skip

#: Of the late stages: sizes, then accuracies.
LATE_SIZES = tuple(_sizes(slot, part) for part in ("ratio", "layers") for slot in _LATE)
LATE_ACCURACIES = tuple(map(_accuracy_rule, _LATE))

#: Of the paper's table on MNLI.
MNLI = (
    _sizes(DENSE_RUN, "size"),
    _sizes(EARLY, "size"),
    _sizes(EARLY, "ratio"),
    _sizes(late(0.2), "size"),
    *LATE_SIZES,
    _accuracy_rule(DENSE_RUN),
    _accuracy_rule(EARLY),
    *LATE_ACCURACIES,
    SAME_ACCURACY,
)
