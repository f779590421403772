"""Claims about ratios of time or of peak memory, of which there is one per batch size, and how their verdict falls.

A published number is of the rival over CoMERA. Each such ratio is held against ``need``: the published low end less
``slack``, half a unit of the last published digit ("9x" needs 8.5). A statement ("faster and smaller") is judged by
ratios of CoMERA over the rival, which have to lie below 1. Both bounds of a ratio count: the range over launches where
there are fewer than six, else the 95 % interval; over calls where the launches are of several. The ratio

* *holds* when the lower bound reaches ``need``; for a statement, when the upper bound lies below 1;
* *leans* when the lower bound lies above 1 and reaches half of ``need``; a statement cannot lean;
* is *refuted* when the upper bound lies below ``need``; for a statement, when the lower bound reaches 1;
* is *open* otherwise.

All hold and none is missing: reproduced, or predicted where a batch size has predictions alone. All found are refuted:
not reproduced. None holds or leans, and some are open: not tested here. Anything between: partly. More than published
holds too, which is said; but a ratio that surely lies beyond twice the published upper end is too good to be
comparable: one of its sides must be another thing than the published one: partly.

Memory counts in every reading of it: allocated and reserved where a GPU measured it, else the prediction without and
with the workspaces that cuBLAS holds. The fair baseline is judged likewise, of the named rival and of CoMERA the form
that takes least. Low rank of equal size, which no claim names, is compared beside it and decides nothing.

A claim about a GPU is decided on one. What other records have is printed beside.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pandas as pd

from bench.core.intervals import Estimate
from figures.claims.claims import Claim, Judgement, Outcome, undecided, untested
from figures.claims.rule import BELOW_ONE, REACHES, DeviceKind, Judge, Rule
from figures.stats.cells import BEFORE_HOPPER_MIB, ON_HOPPER_MIB, TimesAndMemory
from figures.stats.sizes import FULL_SIZE_PARAMETERS
from figures.text import unpaired, with_bounds
from figures.times import steps

Grade = Literal["holds", "leans", "refuted", "open"]

#: A ratio that reaches this share of what it needs leans toward the claim.
_LEANING = 0.5

#: So many times the published upper end is far larger than published.
_FAR = 2.0

ON_CPU = "The claim is about a GPU; times of a CPU cannot decide it."


#: What cuBLAS holds in MiB beside a prediction, in words.
_WITH = ", with cuBLAS's workspaces"
WORKSPACES = {
    "": 0.0,
    f"{_WITH} before Hopper (16.3 MiB)": BEFORE_HOPPER_MIB,
    f"{_WITH} on Hopper (64 MiB)": ON_HOPPER_MIB,
}


@dataclass(frozen=True)
class RatioPoint:
    """One ratio that bears on a claim, with the words that say what it is."""

    quantity: Literal["time", "memory"]
    batch_size: int
    ratio: Estimate
    source: str
    kind: str  # of the device that it is a ratio on: "cpu" or "cuda"
    is_predicted: bool = False

    @property
    def heading(self) -> str:
        return f"{self.quantity}, {self.source}"

    def __str__(self) -> str:
        return f"{with_bounds(self.ratio, unit='x')} at batch {self.batch_size}{', unpaired' * unpaired(self.ratio)}"


def grade(low: float, high: float, need: float | None) -> Grade:
    """Grade what a ratio's bounds say about a claim that needs a ratio of ``need``; None for a statement.

    >>> grade(1.9, 2.1, need=1.5), grade(1.1, 1.2, need=1.5), grade(1.1, 1.2, need=8.5), grade(0.9, 9.0, need=8.5)
    ('holds', 'leans', 'refuted', 'open')
    >>> grade(0.4, 0.5, need=None), grade(1.1, 1.2, need=None)
    ('holds', 'refuted')
    """
    if need is None:
        return "holds" if high < 1 else "refuted" if low >= 1 else "open"
    if low >= need:
        return "holds"
    if low > 1 and low >= _LEANING * need:
        return "leans"
    return "refuted" if high < need else "open"


def _tally(grades: Sequence[Grade], need: float | None, expected: int) -> str:
    """How many ratios there are of each grade, in words."""
    parts = [f"{grades.count('holds')} of {expected} ratios {'lie below 1' if need is None else f'reach {need:g}x'}"]
    if missing := expected - len(grades):
        parts.append(f"{missing} could not be formed")
    if need is not None and (leaning := grades.count("leans")):
        reached = f"at least {_LEANING * need:g}x" if _LEANING * need > 1 else "above 1"
        parts.append(f"{leaning} short of it but {reached}")
    if refuted := grades.count("refuted"):
        parts.append(f"{refuted} surely {'not below 1' if need is None else f'below {need:g}x'}")
    if undecided := grades.count("open"):
        parts.append(f"{undecided} undecided")
    return ", ".join(parts)


def decide(claim: Claim, points: Sequence[RatioPoint], expected: int, slack: float) -> Judgement:
    """Return the judgement on a claim by the ratios found, of which there should be so many."""
    bounded = [(point, point.ratio.low, point.ratio.high) for point in points]
    judged = [(point, low, high) for point, low, high in bounded if low is not None and high is not None]
    if not judged:
        blocks, pairs = "Fewer than two undisturbed blocks.", "No pair of finished cells to compare."
        return untested(blocks if points else pairs, points)
    need = None if claim.low is None else claim.low - slack
    grades = [grade(low, high, need) for _, low, high in judged]
    why = _tally(grades, need, expected)
    far = claim.high is not None and any(low > _FAR * claim.high for _, low, _ in judged)
    if far:
        why += "; more than twice as large as published in places, too good to be comparable"
    elif claim.high is not None and any(low > claim.high + slack for _, low, _ in judged):
        why += "; larger than published in places"
    bases = dict.fromkeys(f"{point.quantity} {point.source.partition(_WITH)[0]}" for point, _, _ in judged)
    why += f"; judged by {' and '.join(bases)}."
    outcome = _outcome(grades, expected, far)
    measured = {(point.quantity, point.batch_size) for point, _, _ in judged if not point.is_predicted}
    if outcome == "reproduced" and measured != {(point.quantity, point.batch_size) for point, _, _ in judged}:
        outcome = "predicted"
    return Judgement(outcome, f"The bounds leave it open: {why}" if outcome == "not tested here" else why, points)


def _outcome(grades: Sequence[Grade], expected: int, far: bool) -> Outcome:
    found = set(grades)
    if found == {"refuted"}:
        return "not reproduced"
    if not found & {"holds", "leans"}:
        return "not tested here"
    whole = found == {"holds"} and len(grades) >= expected
    return "reproduced" if whole and not far else "partly"


#: The ratios that a page and its table have for a claim, at all batch sizes.
Evidence = Callable[[Any, pd.DataFrame], list[RatioPoint]]


def _least(above: pd.DataFrame, below: pd.DataFrame, column: str) -> Iterator[tuple[int, pd.Series, pd.Series]]:
    """Yield by batch size the line of either side with the least value in a column."""
    sides = [
        side.loc[side[column] > 0]
        .sort_values(column, kind="stable")
        .drop_duplicates("batch_size")
        .set_index("batch_size")
        for side in (above, below)
    ]
    for batch in sides[0].index.intersection(sides[1].index).sort_values():
        yield int(batch), sides[0].loc[batch], sides[1].loc[batch]


def sides(
    df: pd.DataFrame, column: str, above: Sequence[str], below: Sequence[str]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows of either side of a ratio, by their value in a column, which is their ``form``."""
    rows = df.assign(form=df[column])
    return rows[rows["form"].isin(above)], rows[rows["form"].isin(below)]


def _source(words: Sequence[str], one: pd.Series, other: pd.Series) -> str:
    return ", ".join(filter(None, (f"{one['form']} over {other['form']}", *words)))


def time_points(page: TimesAndMemory, above: pd.DataFrame, below: pd.DataFrame, how: str = "") -> list[RatioPoint]:
    """Return by batch size the ratio of times, of either side the record that takes least.

    Args:
        page: with the device.
        above, below: the records of either side; ``form`` is what they are called.
        how: with what they ran.
    """
    above, below = (side[["batch_size", "form", "times"]].assign(time=_times(side["times"])) for side in (above, below))
    points = []
    for batch, one, other in _least(above, below, "time"):
        ratio = one["times"].over(other["times"])
        if ratio is not None:
            where = {"cpu": "on a CPU", "cuda": "on CUDA"}[page.kind]
            source = _source((where, how), one, other)
            points.append(RatioPoint("time", batch, ratio, source, page.kind))
    return points


def _times(times: pd.Series) -> list[float]:
    return [math.nan if step is None else step.value for step in steps(times)]


def memory_points(above: pd.DataFrame, below: pd.DataFrame) -> list[RatioPoint]:
    """Return ratios of peak memory in every reading: measured on the device, else predicted, for CUDA before a CPU.

    The sides are lines of a page's table with a ``form``. A form that takes least by prediction and was not measured
    leaves the batch size to predictions.
    """
    measured, finished = ["allocated_mib", "reserved_mib"], ("ok", "no time")
    others = above.columns.intersection(["cuda_peak_mib", "cpu_peak_mib", "plain_allocated_mib"])
    columns = ["batch_size", "form", *others]
    above, below = (
        side[columns].join(side[measured].where(side["time_status"].isin(finished))) for side in (above, below)
    )
    leanest = (
        {batch: pair for batch, *pair in _least(above, below, "cuda_peak_mib")} if "cuda_peak_mib" in above else {}
    )
    predicted = {f"for cuda, predicted{words}": ("cuda_peak_mib", held) for words, held in WORKSPACES.items()}
    allocated = {f"{name} on CUDA": (f"{name}_mib", 0.0) for name in ("allocated", "reserved")}
    sources: list[tuple[str, dict[str, tuple[str, float]]]] = [
        ("cuda", allocated),
        ("cuda", {"allocated on CUDA, plain steps": ("plain_allocated_mib", 0.0)}),
        ("cuda", predicted),
        ("cpu", {"for cpu, predicted": ("cpu_peak_mib", 0.0)}),
    ]
    found: list[RatioPoint] = []
    for kind, readings in sources:
        points = []
        for words, (column, held) in readings.items():
            for batch, one, other in _least(above, below, column) if column in above else ():
                if "predicted" not in words and any(pd.isna(form[column]) for form in leanest.get(batch, ())):
                    continue
                ratio = Estimate.exact((one[column] + held) / (other[column] + held))
                source = _source((words,), one, other)
                points.append(RatioPoint("memory", batch, ratio, source, kind, "predicted" in words))
        known = {point.batch_size for point in found}
        found += [point for point in points if point.batch_size not in known]
    return sorted(found, key=lambda point: point.batch_size)


def not_full_size(page: TimesAndMemory) -> str:
    """Return why these records decide nothing about the paper's model; empty where they may."""
    dense = page.df.loc[page.df["arm"] == "dense", "parameters"].dropna()
    other = {*dense} - {FULL_SIZE_PARAMETERS}
    return "The dense model of these records is not the paper's full-size one." if other else ""


def not_fp32(page: TimesAndMemory) -> str:
    """Return why these records decide nothing about FP32; empty where they may."""
    used = page.values("precision")
    return "" if used == ["fp32"] else f"The claim is about FP32; these records are {', '.join(used)}."


def ratio_rule(
    claim_id: str,
    quantity: str,
    evidence: Sequence[Evidence],
    batches: Sequence[int],
    *,
    slack: float = 0.5,
    device: DeviceKind = "cuda",
    conditions: Sequence[Callable[[Any], str]] = (not_fp32, not_full_size),
    beside: Evidence | None = None,
    at: str = "batch {}",
    fair: Sequence[Evidence] = (),
    fair_quantity: str = "",
    fair_conditions: Sequence[Callable[[Any], str]] = (),
    alternative: Sequence[Evidence] = (),
    alternative_name: str = "",
) -> Rule:
    """Return the rule of a claim about ratios: every part of the evidence must hold at each of the batch sizes.

    Args:
        slack: subtracted from the published low end; 0 for a statement, whose evidence has CoMERA above.
        conditions: each says why a page decides nothing; empty where it may.
        beside: what is printed, as published, where a page decides nothing; the evidence at all batch sizes unless
            given.
        at: how the batch sizes are said.
        fair, fair_quantity: the evidence with the fair baseline, and what it is in words; ``fair_conditions`` say why a
            page has no such baseline, which goes before all other reasons.
        alternative, alternative_name: the evidence on CoMERA over a method that the claim does not name, and that
            method.
    """

    def judging(
        parts: Sequence[Evidence],
        required: Sequence[Callable[[Any], str]],
        beside: Evidence | None = None,
        first: Sequence[Callable[[Any], str]] = (),
        slack: float = slack,
        is_statement: bool = False,
    ) -> Judge:
        def judge(claim: Claim, page: TimesAndMemory, table: pd.DataFrame) -> Judgement:
            if is_statement:
                claim = replace(claim, low=None, high=None, kind="statement yes")
            if lacking := undecided(condition(page) for condition in first):
                return lacking
            found = [point for part in parts for point in part(page, table)]
            points = [point for point in found if point.batch_size in batches]
            shown = [point for point in found if point.quantity == "time" or point in points]
            if device == "cuda" and page.kind == "cpu":
                return untested(ON_CPU, beside(page, table) if beside else shown)
            decisive = [point for point in points if point.kind == "cuda"]
            if found and not any(point.kind == "cuda" for point in found):
                why = "The claim is about a GPU; predictions for a CPU cannot decide it."
                return untested(why, found)
            reasons = (condition(page) for condition in required)
            reason = undecided(reasons, decisive or (beside(page, table) if beside else ()))
            missing = len(parts) * len(batches) - len({(point.quantity, point.batch_size) for point in decisive})
            return reason or decide(claim, decisive, len(decisive) + missing, slack)

        return judge

    sizes = at.format(", ".join(f"{batch:,}" for batch in batches))
    holds = f"{REACHES} (from half of it, where that is > 1: partly)" if slack else BELOW_ONE
    return Rule(
        claim_id,
        f"{quantity}, {sizes}",
        holds,
        device,
        slack,
        "x" if slack else "",
        judge=judging(evidence, conditions, beside),
        fair=judging(fair, conditions, first=fair_conditions) if fair else None,
        fair_quantity=f"{fair_quantity}, {sizes}" if fair else "",
        alternative=judging(alternative, conditions, slack=0.0, is_statement=True) if alternative else None,
        alternative_name=alternative_name,
    )
