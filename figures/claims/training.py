"""Claims about training runs: sizes, ranks and accuracy.

How a verdict falls. Only runs of the paper's encoder at full size decide anything. A size that the initial ranks, or
the enforced target S0 of a late stage, already give is there by construction, whatever was learned. Other sizes, and
ranks, are decided by runs that surely beat the probe of their data and guessing, whatever the data and the device,
since a model that learned no more than a bag of words has no use for its ranks: a compression *holds* when it reaches
the published number less half a unit of its last digit, a size in MiB when it is no larger than the published one by
more than that (more compression than published holds too, and is said). With several seeds the worst decides. A
compression that reaches at least half of what was published counts as partly reproduced.

Accuracy is claimed for MNLI, so other data leave it untested; what they show is said all the same. On MNLI it takes
three seeds and a margin of two points: reproduced when both bounds lie above the margin, not reproduced when both lie
below it, partly when they lie on both sides. A comparison is void where dense itself does not
beat the probe of these data.
"""

from typing import Any

from figures.arms import COMERA
from figures.claims.claims import Claim, Finding, Judgement, Outcome, undecided
from figures.claims.rule import AT_MOST, REACHES, Rule
from figures.records.cells import quotient
from figures.records.metric import Score
from figures.records.seeds import Spread
from figures.records.sizes import FULL_SIZE_PARAMETERS
from figures.records.studies import DENSE_RUN, EARLY, PAPER_TARGETS, Runs, Study, StudyRow, late
from figures.records.training import BLOCK, TrainingSlot, layers_without_ranks

#: How many points below dense, or below what was published, still count as comparable, and the seeds that takes.
MARGIN = 2.0
SEEDS_NEEDED = 3

#: The dataset that the claims on accuracy are about.
CLAIMED_DATASET = "mnli"

#: A dense model as large as published to within this share (its size is known to three digits) is the same.
SAME_SIZE = 0.01

#: Half a unit of the last digit published, of a compression and of a size in MiB.
RATIO_SLACK, SIZE_SLACK = 0.5, 0.05

_LATE = {target: late(target) for target in PAPER_TARGETS}

#: How the ids of the claims on a run begin, and what rules call it.
CLAIMED = {DENSE_RUN: "mnli-dense", EARLY: "mnli-early"} | {
    slot: f"mnli-late{10 * target:02.0f}" for target, slot in _LATE.items()
}
_WORDS = {DENSE_RUN: "dense", EARLY: "comera after its early stage"} | {
    slot: f"comera after its late stage toward {target:g}" for target, slot in _LATE.items()
}

#: Sizes that claims are about, by how the ids of the claims end: a column, what it is of, and where records have it.
_SIZES = {
    "size": ("stored_mib", "whole model", "stored_mib"),
    "ratio": ("total_ratio", "whole model", "dense_mib / stored_mib"),
    "layers": ("tensorized_ratio", "tensorized layers", "dense_tensorized_mib / tensorized_mib"),
}


def _absent(row: StudyRow) -> str:
    return f"{row.name} is {row.status}" + (f" ({'; '.join(row.remarks).rstrip('.')})" if row.remarks else "")


def other_model(study: Runs) -> str:
    """Return why the model of these runs decides nothing; empty where it is the paper's or unknown."""
    count = study.dense_parameters
    if count is None or study.is_full_size:
        return ""
    claimed = f"the claim is about the six-encoder model of {FULL_SIZE_PARAMETERS:,}"
    return f"The dense model of these runs has {count:,} parameters; {claimed}."


def _learned_nothing(study: Study, row: StudyRow) -> str:
    """Return why the size of a run's model proves nothing; empty where it surely beats guessing and the probe."""
    metric, score = study.metric, row.score()
    if score is None:
        return ""
    reached = f"At {score.text(unit=True)}, {row.name} does not surely beat"
    if metric.guess is not None and not score.beats(metric.guess):
        classes = study.model["classes"]
        return f"{reached} guessing among {classes} classes on {study.dataset}, so that its size says nothing."
    if metric.probe is not None and not score.beats(metric.probe):
        return f"{reached} {_probe_words(study)}, so that its size says nothing."
    return ""


def _probe_words(study: Study) -> str:
    metric = study.metric
    name = metric.probe_text.replace(" ", "-")
    return f"the {name} probe ({metric.written(metric.probe or 0.0)}) on {study.dataset}"


def _enforced(row: StudyRow, column: str) -> Spread | None:
    """Return the size or compression that the settings alone give: at S0, or at full ranks before a late stage."""
    found = []
    for run in row.finished.values():
        if not run.tensorized_mib or not run.size_fraction or run.stored_mib is None:
            return None
        layers = run.tensorized_mib * (run.size_target or 1.0) / run.size_fraction
        whole = run.stored_mib - run.tensorized_mib + layers
        ratios = {"total_ratio": quotient(run.dense_mib, whole)}
        ratios["tensorized_ratio"] = quotient(run.dense_tensorized_mib, layers)
        found.append({"stored_mib": whole, **ratios}[column])
    return Spread.of(found)


def _size_rule(slot: TrainingSlot, part: str) -> Rule:
    column, heading, expression = _SIZES[part]
    unit, slack = ("MiB", SIZE_SLACK) if part == "size" else ("x", RATIO_SLACK)

    def holds(spread: Spread, published: float) -> bool:
        if slot == DENSE_RUN:
            return abs(spread.value / published - 1) <= SAME_SIZE
        return spread.high <= published + slack if part == "size" else spread.low >= published - slack

    def judge(claim: Claim, study: Study, _: Any) -> Judgement:
        row, published = study.row(slot), claim.low or 0.0
        spread = row.spread(column)
        if spread is None:
            return Judgement("not tested here", other_model(study) or f"{_absent(row)}.")
        seeds = "one seed" if len(row.finished) == 1 else f"{len(row.finished)} seeds"
        found = Finding(f"{heading}, {study.dataset}, {seeds}", spread.text(" MiB" if part == "size" else "x"))
        if other := other_model(study):
            return Judgement("not tested here", other, (found,))
        if slot == DENSE_RUN:
            within = f"ithin {SAME_SIZE:.0%} of the published size"
            if holds(spread, published):
                return Judgement("by construction", f"W{within}, which the architecture alone gives.", (found,))
            return Judgement("not reproduced", f"Not w{within}.", (found,))
        bound = f"{published + slack:g} MiB" if part == "size" else f"{published - slack:g}x"
        left, target = row.spread("size_fraction"), row.spread("size_target")
        apart = ""
        if left is not None and target is not None:
            apart = f" S is {left.text('')} of the full tensorized size, S0 was {target.text('')}."
        enforced = _enforced(row, column)
        if enforced is not None and holds(enforced, published):
            settings = "The enforced target S0" if target else "The full size at the initial ranks"
            given = enforced.text(" MiB" if part == "size" else "x")
            return Judgement("by construction", f"{settings} alone gives {given}; {bound} is asked.{apart}", (found,))
        if void := _learned_nothing(study, row):
            return Judgement("not tested here", void, (found,))
        more = "; more than published" if part != "size" and spread.low > published + slack else ""
        half = part != "size" and spread.low >= (published - slack) / 2
        outcome: Outcome = "reproduced" if holds(spread, published) else "partly" if half else "not reproduced"
        said = ("At most", "More than") if part == "size" else ("Reaches", "Short of")
        return Judgement(outcome, f"{said[outcome != 'reproduced']} {bound}{more}.{apart}", (found,))

    quantity, words = f"{expression} of {_WORDS[slot]}, worst seed", f"{REACHES} (from half of it: partly)"
    if slot == DENSE_RUN:
        quantity, words = f"{expression} of dense / published - 1", "within +-tolerance"
        return Rule(f"{CLAIMED[slot]}-{part}", quantity, words, tolerance=100 * SAME_SIZE, unit="%", judge=judge)
    if part == "size":
        words = AT_MOST
    return Rule(f"{CLAIMED[slot]}-{part}", quantity, words, tolerance=slack, unit=unit, judge=judge)


def _against(score: Score, bound: float, words: str, found: Finding) -> Judgement:
    low, high = score.span
    outcome: Outcome = "reproduced" if low >= bound else "not reproduced" if high < bound else "partly"
    which = {"reproduced": "Both bounds lie", "not reproduced": "Neither bound lies", "partly": "Only one bound lies"}
    return Judgement(outcome, f"{which[outcome]} {words}.", (found,))


def _accuracy_rule(slot: TrainingSlot) -> Rule:

    def judge(claim: Claim, study: Study, _: Any) -> Judgement:
        row, published = study.row(slot), claim.low or 0.0
        ours, per_epoch = row.score(), study.steps_per_epoch
        if ours is None:
            return Judgement("not tested here", other_model(study) or f"{_absent(row)}.")
        epochs = f"{row.steps / per_epoch:.2g} epochs" if per_epoch and row.steps else f"{row.steps} steps"
        reached = ours.text(unit=True)
        found = Finding(f"{study.metric.text} on {study.dataset}, {ours.seeds_text}, {epochs}", reached)
        other = f"The claim is about MNLI; on {study.dataset}, {row.name} reached {reached}."
        needed = f"Inconclusive: {ours.seeds_text}, {SEEDS_NEEDED} are needed"
        few = f"{needed}; published less ours is {published - ours.value:+.1f} points."
        about_mnli, enough = study.dataset == CLAIMED_DATASET, ours.seeds >= SEEDS_NEEDED
        reasons = (other_model(study), "" if about_mnli else other, "" if enough else few)
        bound = published - MARGIN
        return undecided(reasons, (found,)) or _against(ours, bound, f"above {bound:g} %", found)

    quantity = f"accuracy on MNLI of {_WORDS[slot]}, {SEEDS_NEEDED} seeds"
    return Rule(f"{CLAIMED[slot]}-acc", quantity, REACHES, tolerance=MARGIN, unit="points", judge=judge)


def _void(study: Study) -> str:
    """Return why dense cannot be compared on these data; empty where it can."""
    probe, dense = study.metric.probe, study.row(DENSE_RUN).score()
    if probe is None or dense is None or dense.beats(probe):
        return ""
    return f"Void: dense itself, at {dense.text(unit=True)}, does not surely beat {_probe_words(study)}."


def _judge_same_accuracy(_: Claim, study: Study, __: Any) -> Judgement:
    """Early stage against dense after as many steps."""
    row, dense = study.row(EARLY), study.row(DENSE_RUN)
    apart, then = row.less_dense, row.dense_score
    ours = row.score()
    if ours is None or apart is None or then is None:
        missing = [_absent(one) for one in (row, dense) if one.score() is None]
        why = "; ".join(missing) or "dense has no accuracy after as many steps of the same seed"
        return Judgement("not tested here", f"No pair of runs to compare: {why}.")
    points, seeds = apart.text(sign=True, unit=True), apart.seeds_text
    words = (
        f"{row.name} reached {ours.text(unit=True)} on {study.dataset}, dense after as many steps "
        f"{then.text(unit=True)}: a difference of {points}"
    )
    found = Finding(f"early less dense, {study.dataset}, {seeds}, paired bootstrap", points)
    void, few = _void(study), apart.seeds < SEEDS_NEEDED
    other = f"The claim is about MNLI; {words}{f', inconclusive with {seeds}' if few else ''}."
    inconclusive = f"Inconclusive: {seeds}, {SEEDS_NEEDED} are needed to tell {MARGIN:g} points; {words}."
    elsewhere = other if study.dataset != CLAIMED_DATASET else ""
    reasons = (other_model(study), void and f"{void} Found: {words}.", elsewhere, inconclusive if few else "")
    return undecided(reasons, (found,)) or _against(apart, -MARGIN, f"above -{MARGIN:g} points", found)


def _judge_ranks_removed(_: Claim, study: Study, __: Any) -> Judgement:
    """In every seed some late stage has closed all ranks of some layer."""
    rows = [row for row in study.rows if row.slot.arm == COMERA and len(row.slot.stages) > 1]
    absent = "; ".join(_absent(row) for row in rows if row.status != "ok")
    removed: dict[int, list[str]] = {}
    found = []
    for row in rows:
        for seed, run in row.finished.items():
            gone = layers_without_ranks(run)
            removed.setdefault(seed, []).extend(gone)
            heading = f"layers without ranks in the block shown, {study.dataset}, seed {seed}"
            found.append(Finding(heading, f"{row.name}: {', '.join(gone) or 'none'}"))
    if not removed:
        why = f"No late stage finished: {absent or 'no late stage was asked for'}."
        return Judgement("not tested here", why)
    some = sum(map(bool, removed.values()))
    why = f"After a late stage, layers of block {BLOCK} have lost all ranks in {some} of {len(removed)} seed(s)."
    unfinished = f"{why} Not finished: {absent}." if absent and not some else ""
    outcome: Outcome = "reproduced" if some == len(removed) else "partly" if some else "not reproduced"
    void = [_learned_nothing(study, row) for row in rows]
    untested = undecided((other_model(study), *void, unfinished), found)
    return untested or Judgement(outcome, why, found)


SAME_ACCURACY = Rule(
    "mnli-same-accuracy",
    f"accuracy on MNLI of {_WORDS[EARLY]} - that of dense after as many steps, {SEEDS_NEEDED} seeds",
    ">= -tolerance",
    tolerance=MARGIN,
    unit="points",
    judge=_judge_same_accuracy,
)
RANKS_REMOVED = Rule(
    "ranks-removed",
    f"ranks after a late stage: in every seed some layer of block {BLOCK} has none left",
    judge=_judge_ranks_removed,
)

#: Of the late stages.
LATE = (
    *(_size_rule(slot, part) for part in ("ratio", "layers") for slot in _LATE.values()),
    *map(_accuracy_rule, _LATE.values()),
)

#: Of the paper's table on MNLI.
MNLI = (
    _size_rule(DENSE_RUN, "size"),
    _size_rule(EARLY, "size"),
    _size_rule(EARLY, "ratio"),
    _size_rule(late(0.2), "size"),
    *LATE[: 2 * len(_LATE)],
    *map(_accuracy_rule, (DENSE_RUN, EARLY)),
    *LATE[2 * len(_LATE) :],
    SAME_ACCURACY,
)
