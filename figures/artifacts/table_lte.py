"""LTE trained from scratch: what it reaches at its defaults and at other rates, beside dense training."""

from typing import Any

from figures.artifact import Artifact
from figures.artifacts.table_search import about, shown, table, tries_of
from figures.claims.claims import Claim, Finding, Judgement, Outcome, undecided, untested
from figures.claims.rule import Rule
from figures.claims.training import other_model
from figures.frame import each
from figures.stats.studies import PROBES, Runs, searches


def judge(_: Claim, search: Runs, __: Any) -> Judgement:
    """Judge whether LTE surely beats guessing; a probe is what it then has to beat to be of use."""
    guess, tries = search.metric.guess, tries_of(search)
    tries = tries[(tries["arm"] == "lte") & tries["score"].notna()]
    found = [Finding(f"lte, {one.text}, {search.dataset}", one.score.text(unit=True)) for one in each(tries)]
    if tries.empty or guess is None:
        return untested("No run of LTE has finished.")
    other = f"The claim is about MNLI; these runs are on {search.dataset}."
    other *= not search.dataset.startswith("mnli")
    if reason := undecided((other_model(search), other), found):
        return reason
    learnt = [score.beats(guess) for score in tries["score"]]
    if not any(learnt):
        return Judgement("reproduced", "LTE does not surely beat guessing.", found)
    outcome: Outcome = "not reproduced" if all(learnt) else "partly"
    return Judgement(outcome, "LTE surely beats guessing.", found)


ARTIFACT = Artifact(
    name="table_lte",
    summary="what LTE reaches from scratch, by its settings, beside dense training; a table per device and dataset",
    experiments=("lte_small", "lte"),
    measure="train",
    made_by="make reproduce-table-lte",
    order=156,
    lenders=PROBES,
    select=searches,
    table=table,
    shown=shown,
    about=about,
    section="arm",
    rules=(
        Rule(
            "lte-convergence",
            "accuracy on MNLI of lte, of every setting that was tried, > guessing",
            judge=judge,
        ),
    ),
)
