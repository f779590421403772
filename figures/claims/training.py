"""Claims about training runs: sizes, ranks and accuracy.

Only runs of the paper's encoder at full size decide anything. A size that the initial ranks, or the enforced target S0
of a late stage, already give is there by construction, whatever was learned. Other sizes, and ranks, are decided by
runs that surely beat guessing and the probe of their data. A compression *holds* when it reaches the published number
less half a unit of its last digit, a size when it is no larger than the published one by more than that; the worst seed
decides. A compression of at least half of what was published counts as partly reproduced. So does one that lies more
than a tenth beyond the published number, and such a size: it is another result than the published one.

Accuracy is claimed for MNLI, and takes three seeds and a margin of two points: reproduced when both bounds lie above
the margin, not reproduced when both lie below it. A comparison is void where dense itself does not beat the probe.
What MNLI cannot show is judged on pointer labels too, by the same rule: CoMERA less dense there.
"""

from typing import Any

import pandas as pd

from bench.core.cell import Arm
from figures.arms import COMERA, DENSE
from figures.claims.claims import Claim, Finding, Judgement, Outcome, by_bounds, undecided, untested
from figures.claims.rule import AT_MOST, REACHES, Bed, Rule
from figures.frame import each
from figures.stats import pointer, studies
from figures.stats.curves import BLOCK, TrainingSlot, curve_of, layers_without_ranks
from figures.stats.metric import Score
from figures.stats.seeds import spread_text, with_sizes
from figures.stats.sizes import FULL_SIZE_PARAMETERS
from figures.stats.studies import DENSE_RUN, EARLY, Runs, Study

#: How many points below dense, or below what was published, still count as comparable, and the seeds that takes.
MARGIN = 2.0
SEEDS_NEEDED = 3

#: The dataset that the claims on accuracy are about.
CLAIMED_DATASET = "mnli"

#: A dense model as large as published to within this share (its size is known to three digits) is the same.
SAME_SIZE = 0.01

#: Half a unit of the last digit published, of a compression and of a size in MiB.
RATIO_SLACK, SIZE_SLACK = 0.5, 0.05

#: A size this many times beyond the published one is another result.
FAR_SIZE = 1.1

#: How the ids of the claims on a run begin, and what rules call it.
CLAIMED, _WORDS = (
    {DENSE_RUN: "mnli-dense", EARLY: "mnli-early"},
    {DENSE_RUN: "dense", EARLY: f"{COMERA} after its early stage"},
)
for _target, _slot in studies.LATE.items():
    CLAIMED[_slot] = f"mnli-late{10 * _target:02.0f}"
    _WORDS[_slot] = f"{COMERA} after its late stage toward {_target:g}"

#: Sizes that claims are about, by how the ids of the claims end: a column, what it is of, and where records have it.
_SIZES = {
    "size": ("stored_mib", "whole model", "stored_mib"),
    "ratio": ("total_ratio", "whole model", "dense_mib / stored_mib"),
    "layers": ("tensorized_ratio", "tensorized layers", "dense_tensorized_mib / tensorized_mib"),
}


def _absent(row: Any) -> str:
    words = row.remarks.rstrip(".")
    return f"{row.run} is {row.status}" + (f" ({words})" if words else "")


def other_model(study: Runs) -> str:
    """Return why the model of these runs decides nothing; empty where it is the paper's or unknown."""
    count = study.dense_parameters
    if count is None or study.is_full_size:
        return ""
    claimed = f"the claim is about the six-encoder model of {FULL_SIZE_PARAMETERS:,}"
    return f"The dense model of these runs has {count:,} parameters; {claimed}."


def _learned_nothing(study: Study, row: Any) -> str:
    """Return why the size of a run's model proves nothing; empty where it surely beats guessing and the probe."""
    guessing = f"guessing among {study.model.get('classes')} classes on {study.dataset}"
    for bound, words in ((study.metric.guess, guessing), (study.metric.probe, _probe_words(study))):
        if row.score is not None and bound is not None and not row.score.beats(bound):
            at = f"At {row.score.text(unit=True)}, {row.run} does not surely beat"
            return f"{at} {words}, so that its size says nothing."
    return ""


def _probe_words(study: Study) -> str:
    metric = study.metric
    return f"the {metric.probe_text.replace(' ', '-')} probe ({metric.written(metric.probe or 0.0)}) on {study.dataset}"


def _enforced(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with the sizes that the settings alone give: at S0, or at full ranks before a late stage."""
    target, fraction = runs["size_target"].fillna(1.0), runs["size_fraction"]
    layers = runs["tensorized_mib"] * target / fraction.where(fraction > 0)
    stored = runs["stored_mib"] - runs["tensorized_mib"] + layers
    return with_sizes(runs.assign(stored_mib=stored, tensorized_mib=layers))


def _size_rule(slot: TrainingSlot, part: str) -> Rule:
    column, heading, expression = _SIZES[part]
    is_dense, is_size = slot == DENSE_RUN, part == "size"
    slack, unit = (SIZE_SLACK, " MiB") if is_size else (RATIO_SLACK, "x")

    def judge(claim: Claim, study: Study, _: Any) -> Judgement:
        row, published = study.row(slot), claim.low or 0.0
        bound = published + slack if is_size else published - slack

        def hold(sizes: pd.Series) -> bool:
            return bool((sizes <= bound if is_size else sizes >= bound).all())

        runs = study.finished[study.finished["slot"] == slot]
        sizes, other = runs[column], other_model(study)
        if runs.empty or sizes.isna().any():
            return untested(other or f"{_absent(row)}.")
        words = f"{heading}, {study.dataset}, {row.score.seeds_text}"
        found = [Finding(words, spread_text(sizes, unit))]
        if other:
            return untested(other, found)
        if is_dense:
            within = f"ithin {SAME_SIZE:.0%} of the published size"
            if abs(sizes.mean() / published - 1) <= SAME_SIZE:
                return Judgement("by construction", f"W{within}, which the architecture alone gives.", found)
            return Judgement("not reproduced", f"Not w{within}.", found)
        apart = ""
        if runs[["size_fraction", "size_target"]].notna().all(axis=None):
            left, target = spread_text(runs["size_fraction"]), spread_text(runs["size_target"])
            apart = f" S is {left} of the full tensorized size, S0 was {target}."
        enforced = _enforced(runs)[column]

        def far(sizes: pd.Series) -> bool:
            return bool((sizes < published / FAR_SIZE if is_size else sizes > published * FAR_SIZE).all())

        beyond = f"more than a tenth beyond the published {published:g}{unit}"
        if enforced.notna().all() and hold(enforced):
            is_target = runs["size_target"].notna().all()
            settings = "The enforced target S0" if is_target else "The full size at the initial ranks"
            why = f"{settings} alone gives {spread_text(enforced, unit)}; "
            if far(enforced):
                return Judgement("partly", f"{why}{beyond}.{apart}", found)
            return Judgement("by construction", f"{why}{bound:g}{unit} is asked.{apart}", found)
        if void := _learned_nothing(study, row):
            return untested(void, found)
        if hold(sizes) and far(sizes):
            return Judgement("partly", f"{beyond[0].upper()}{beyond[1:]}.{apart}", found)
        if hold(sizes):
            more = "; more than published" if not is_size and sizes.min() > published + slack else ""
            why = f"{'At most' if is_size else 'Reaches'} {bound:g}{unit}{more}.{apart}"
            return Judgement("reproduced", why, found)
        is_half = not is_size and sizes.min() >= bound / 2
        why = f"{'More than' if is_size else 'Short of'} {bound:g}{unit}.{apart}"
        return Judgement("partly" if is_half else "not reproduced", why, found)

    claim_id, quantity = f"{CLAIMED[slot]}-{part}", f"{expression} of {_WORDS[slot]}"
    if is_dense:
        quantity = f"{quantity} / published - 1"
        tolerance = 100 * SAME_SIZE
        return Rule(claim_id, quantity, "within +-tolerance", "any", tolerance, "%", judge=judge)
    quantity = f"{quantity}, worst seed"
    words = AT_MOST if is_size else f"{REACHES} (from half of it: partly)"
    return Rule(claim_id, quantity, words, tolerance=slack, unit=unit.strip(), judge=judge)


def _against(score: Score, bound: float, words: str, found: Finding) -> Judgement:
    outcome = by_bounds([score.span], least=bound)
    which = {"reproduced": "Both bounds lie", "not reproduced": "Neither bound lies"}
    return Judgement(outcome, f"{which.get(outcome, 'Only one bound lies')} {words}.", (found,))


def _beside_dense(study: Study, row: Any, dense: Any) -> Judgement:
    """Return what a run on pointer labels makes of "as accurate as dense"; void where dense does not beat the probe."""
    apart, probe = row.apart, study.metric.probe
    if apart is None:
        absent = "; ".join(_absent(one) for one in (row, dense) if one.score is None)
        return untested(f"{absent or 'No seed of both'}.")
    found = Finding(f"{row.run} less dense, {apart.seeds_text}", apart.text(sign=True, unit=True))
    reasons = []
    if probe is None or not dense.score.beats(probe):
        reasons.append("Void: dense does not surely beat a probe.")
    if apart.seeds < SEEDS_NEEDED:
        reasons.append(f"Inconclusive: {apart.seeds_text}, {SEEDS_NEEDED} are needed.")
    if judgement := undecided(reasons, (found,)):
        return judgement
    judgement = _against(apart, -MARGIN, f"above -{MARGIN:g} points", found)
    wrong, dense_wrong = (f"{100 - one.score.value:.2g} %" for one in (row, dense))
    below = "; no seed reaches dense" if apart.span[1] < 0 else ""
    why = f"{judgement.why.removesuffix('.')}{below}; {wrong} of labels wrong, dense {dense_wrong}"
    ours, theirs = (
        {(seed, at.step): at for seed, run in of.finished.items() for at in curve_of(run)} for of in (row, dense)
    )
    gaps = pd.Series({at: ours[at].value - theirs[at].value for at in ours.keys() & theirs.keys()})
    on_the_way = gaps.groupby(level=1).mean()
    if on_the_way.min() < min(apart.value, 0):
        why += f"; on the way up to {-on_the_way.min():.1f} points below dense, after {on_the_way.idxmin()} steps"
    return Judgement(judgement.outcome, f"{why}.", (found,))


def _bed(target: float | None = None) -> Bed:
    """Return how CoMERA is judged on pointer labels: ranks closed to a target, or None, ranks that are kept.

    The published form decides; the others are named with their own outcomes.
    """
    what = "ranks kept" if target is None else f"ranks closed to {target:g}"

    def judge(_: Claim, study: Study, __: Any) -> Judgement | None:
        [dense] = [row for row in each(study.rows) if row.arm == DENSE] or [study.row(DENSE_RUN)]
        forms = {
            row.arm: (row, _beside_dense(study, row, dense))
            for row in each(study.rows)
            if Arm.parse(row.arm).method == COMERA and row.slot.target == target
        }
        if not forms:
            return None
        decisive = [one for arm, (_, one) in forms.items() if arm == COMERA or arm.endswith(pointer.PUBLISHED)]
        outcome = decisive[0].outcome if decisive else "not tested here"
        why = " ".join(f"{row.run}: {one.outcome}. {one.why}" for row, one in forms.values())
        absent = "" if decisive else "The published form has no run. "
        return Judgement(outcome, f"{absent}{why}", [found for _, one in forms.values() for found in one.ours])

    quantity = (
        f"{pointer.ACCURACY['text']} of {COMERA}, {what}, less dense, {SEEDS_NEEDED} seeds, >= -{MARGIN:g} points"
    )
    return Bed("pointer", pointer.EXPERIMENT, quantity, judge)


def _accuracy_rule(slot: TrainingSlot, bed: Bed | None = None) -> Rule:
    def judge(claim: Claim, study: Study, _: Any) -> Judgement:
        row, published = study.row(slot), claim.low or 0.0
        ours, per_epoch, reasons = row.score, study.steps_per_epoch, [other_model(study)]
        if ours is None:
            return untested(reasons[0] or f"{_absent(row)}.")
        steps, reached = int(row.train_steps), ours.text(unit=True)
        length = f"{steps / per_epoch:.2g} epochs" if per_epoch else f"{steps} steps"
        found = Finding(f"{study.metric.text} on {study.dataset}, {ours.seeds_text}, {length}", reached)
        if study.dataset != CLAIMED_DATASET:
            reasons.append(f"The claim is about MNLI; on {study.dataset}, {row.run} reached {reached}.")
        if ours.seeds < SEEDS_NEEDED:
            less = f"published less ours is {published - ours.value:+.1f} points"
            reasons.append(f"Inconclusive: {ours.seeds_text}, {SEEDS_NEEDED} are needed; {less}.")
        bound = published - MARGIN
        return undecided(reasons, (found,)) or _against(ours, bound, f"above {bound:g} %", found)

    quantity = f"accuracy on MNLI of {_WORDS[slot]}, {SEEDS_NEEDED} seeds"
    return Rule(f"{CLAIMED[slot]}-acc", quantity, REACHES, tolerance=MARGIN, unit="points", judge=judge, bed=bed)


def _judge_same_accuracy(_: Claim, study: Study, __: Any) -> Judgement:
    """Early stage against dense after as many steps; void where dense itself does not surely beat the probe."""
    row, dense, probe = study.row(EARLY), study.row(DENSE_RUN), study.metric.probe
    reasons = [other_model(study)]
    apart = row.apart
    if apart is None:
        missing = "; ".join(_absent(one) for one in (row, dense) if one.score is None)
        why = missing or "dense has no accuracy after as many steps of the same seed"
        return untested(f"No pair of runs to compare: {why}.")
    points, seeds = apart.text(sign=True, unit=True), apart.seeds_text
    words = (
        f"{row.run} reached {row.score.text(unit=True)} on {study.dataset}, dense after as many steps "
        f"{row.dense_score.text(unit=True)}: a difference of {points}"
    )
    found = Finding(f"early less dense, {study.dataset}, {seeds}, paired bootstrap", points)
    if probe is not None and dense.score is not None and not dense.score.beats(probe):
        at = f"dense itself, at {dense.score.text(unit=True)}"
        reasons.append(f"Void: {at}, does not surely beat {_probe_words(study)}. Found: {words}.")
    if study.dataset != CLAIMED_DATASET:
        inconclusive = f", inconclusive with {seeds}" if apart.seeds < SEEDS_NEEDED else ""
        reasons.append(f"The claim is about MNLI; {words}{inconclusive}.")
    if apart.seeds < SEEDS_NEEDED:
        needed = f"{SEEDS_NEEDED} are needed to tell {MARGIN:g} points"
        reasons.append(f"Inconclusive: {seeds}, {needed}; {words}.")
    return undecided(reasons, (found,)) or _against(apart, -MARGIN, f"above -{MARGIN:g} points", found)


def _judge_ranks_removed(_: Claim, study: Study, __: Any) -> Judgement:
    """In every seed some late stage has closed all ranks of some layer."""
    rows = [row for row in each(study.rows) if row.arm == COMERA and len(row.slot.stages) > 1]
    absent = "; ".join(_absent(row) for row in rows if row.status != "ok")
    removed: dict[int, list[str]] = {}
    found = []
    for row in rows:
        for seed, run in row.finished.items():
            gone = layers_without_ranks(run)
            removed.setdefault(seed, []).extend(gone)
            heading = f"layers without ranks in the block shown, {study.dataset}, seed {seed}"
            found.append(Finding(heading, f"{row.run}: {', '.join(gone) or 'none'}"))
    if not removed:
        why = f"No late stage finished: {absent or 'no late stage was asked for'}."
        return untested(why)
    some = sum(map(bool, removed.values()))
    why = f"After a late stage, layers of block {BLOCK} have lost all ranks in {some} of {len(removed)} seed(s)."
    unfinished = f"{why} Not finished: {absent}." if absent and not some else ""
    outcome: Outcome = "reproduced" if some == len(removed) else "partly" if some else "not reproduced"
    reasons = (other_model(study), *(_learned_nothing(study, row) for row in rows), unfinished)
    return undecided(reasons, found) or Judgement(outcome, why, found)


def _judge_lte(_: Claim, study: Study, __: Any) -> Judgement:
    """Judge whether LTE surely beats guessing."""
    guess, runs = study.metric.guess, [row for row in each(study.rows) if row.arm == "lte" and row.score]
    if not runs or guess is None:
        return untested("No run of LTE has finished.")
    row = runs[-1]
    found = (Finding(f"lte, {study.dataset}, {row.score.seeds_text}", row.score.text(unit=True)),)
    other = f"The claim is about MNLI; these runs are on {study.dataset}."
    other *= not study.dataset.startswith(CLAIMED_DATASET)
    if reason := undecided((other_model(study), other), found):
        return reason
    if row.score.beats(guess):
        return Judgement("not reproduced", "LTE surely beats guessing.", found)
    return Judgement("reproduced", "LTE does not surely beat guessing.", found)


SAME_ACCURACY = Rule(
    "mnli-same-accuracy",
    f"accuracy on MNLI of {_WORDS[EARLY]} - that of dense after as many steps, {SEEDS_NEEDED} seeds",
    ">= -tolerance",
    tolerance=MARGIN,
    unit="points",
    judge=_judge_same_accuracy,
    bed=_bed(),
)
LTE_CONVERGENCE = Rule("lte-convergence", "accuracy on MNLI of lte > guessing", judge=_judge_lte)
RANKS_REMOVED = Rule(
    "ranks-removed",
    f"ranks after a late stage: in every seed some layer of block {BLOCK} has none left",
    judge=_judge_ranks_removed,
)

_LATE_SIZES = [_size_rule(slot, part) for part in ("ratio", "layers") for slot in studies.LATE.values()]
_LATE_ACCURACIES = [_accuracy_rule(slot, _bed(target)) for target, slot in studies.LATE.items()]

#: Of the late stages, and of the paper's table on MNLI.
LATE = (*_LATE_SIZES, *_LATE_ACCURACIES)
MNLI = (
    _size_rule(DENSE_RUN, "size"),
    _size_rule(EARLY, "size"),
    _size_rule(EARLY, "ratio"),
    _size_rule(studies.LATE[0.2], "size"),
    *_LATE_SIZES,
    _accuracy_rule(DENSE_RUN),
    _accuracy_rule(EARLY, _bed()),
    *_LATE_ACCURACIES,
    SAME_ACCURACY,
)
