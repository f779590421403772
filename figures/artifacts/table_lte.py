"""LTE trained from scratch: what it reaches at its defaults and at other rates, beside dense training."""

from typing import Any

from figures.artifact import Artifact
from figures.artifacts.table_search import about, shown, table, tries_of
from figures.claims.claims import Claim, Finding, Judgement
from figures.claims.rule import Rule
from figures.claims.training import other_model
from figures.draw.captions import beside
from figures.stats.studies import PROBES, Runs, searches


def judge(_: Claim, search: Runs, __: Any) -> Judgement:
    """Judge whether LTE surely beats guessing; a probe is what it then has to beat to be of use."""
    metric = search.metric
    tries = tries_of(search)
    tries = tries[(tries["arm"] == "lte") & tries["score"].notna()]
    texts = [f"lte, {settings}, {search.dataset}" for settings in tries["text"]]
    found = [Finding(*one) for one in zip(texts, [one.text(unit=True) for one in tries["score"]], strict=True)]
    if tries.empty or metric.guess is None:
        return Judgement("not tested here", "No run of LTE has finished.")
    if other := other_model(search):
        return Judgement("not tested here", other, found)
    if not search.dataset.startswith("mnli"):
        return Judgement("not tested here", f"The claim is about MNLI; these runs are on {search.dataset}.", found)
    learnt = [score.beats(metric.guess) for score in tries["score"]]
    if any(learnt):
        return Judgement("partly" if not all(learnt) else "not reproduced", "LTE surely beats guessing.", found)
    return Judgement("reproduced", "LTE does not surely beat guessing.", found)


ARTIFACT = Artifact(
    name="table_lte",
    heading="LTE from scratch",
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
    caption=beside(__file__),
    section="arm",
    rules=(
        Rule(
            "lte-convergence",
            "accuracy on MNLI of lte, of every setting that was tried, > guessing",
            "",
            "any",
            judge=judge,
        ),
    ),
)
