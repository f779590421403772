"""A whole figure as another package would bring it: the stored size of every arm as bars, and one claim about it."""

import pandas as pd
from matplotlib.figure import Figure

from figures import frame
from figures.arms import by_arm
from figures.artifact import Artifact
from figures.claims.claims import Claim, Finding, Judgement
from figures.claims.rule import REACHES, Rule
from figures.draw.captions import Caption
from figures.draw.layout import Paper

CLAIM = Claim("made-up-size", "made_up_sizes", "stored size of dense / comera", "", "value", 40.0, 40.0, "x", "stated")
TOLERANCE = 1.0

CAPTION = """
{% import "notes.md.j2" as notes with context %}
# Stored size of every arm
{{ notes.device(page) }}
{{ table | length }} arms.

{{ notes.last(page) }}
"""


def table(page: frame.Page) -> pd.DataFrame:
    """The newest record of each arm."""
    chosen = frame.newest(page.df, ["arm"]).sort_values("arm", key=lambda arms: arms.map(by_arm))
    return chosen[["device", "arm", "stored_mib"]]


def draw(page: frame.Page, table: pd.DataFrame, caption: Caption) -> Figure:  # noqa: ARG001 - as every artifact
    sheet = Paper(caption.title, caption.facts, caption.notes)
    [[axes]] = sheet.panels(0, 0.2 * len(table))
    axes.barh(table["arm"], table["stored_mib"].fillna(0.0))
    return sheet.finish()


def judged(claim: Claim, page: frame.Page, table: pd.DataFrame) -> Judgement:  # noqa: ARG001 - as every artifact
    sizes = dict(zip(table["arm"], table["stored_mib"], strict=True))
    above, below = sizes.get("dense"), sizes.get("comera")
    if not above or not below or claim.low is None:
        return Judgement("not tested here", "It needs the sizes of dense and of comera.")
    holds = above / below >= claim.low - TOLERANCE
    found = [Finding("dense / comera", f"{above / below:.3g}x")]
    return Judgement("reproduced" if holds else "not reproduced", "Sizes do not vary.", found)


ARTIFACT = Artifact(
    name="made_up_sizes",
    heading="Sizes, made up",
    summary="the stored size of every arm; an image per device",
    experiments=("made_up",),
    select=frame.pages,
    table=table,
    caption=CAPTION,
    draw=draw,
    claims=(CLAIM,),
    rules=(Rule(CLAIM.id, "stored size of dense / comera", REACHES, "any", TOLERANCE, "x", judge=judged),),
)
