"""A whole figure as another package would bring it: the stored size of every arm as bars, and one claim about it."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from bench.core.record import Record
from figures.artifact import Artifact
from figures.claims.claims import Claim, Finding, Judgement
from figures.claims.rule import REACHES, Rule
from figures.page.drawn import Caption
from figures.page.layout import Page
from figures.page.notes import closing_notes, device_fact
from figures.records.select import Selected, by_arm, newest, pages_by_device
from figures.text import Column, significant

CLAIM = Claim("made-up-size", "made_up_sizes", "stored size of dense / comera", "", "value", 40.0, 40.0, "x", "stated")
TOLERANCE = 1.0


def rows_of(page: Selected) -> list[Record]:
    """The newest record of each arm."""
    chosen = newest(page.shown, lambda record: record.arm)
    return [chosen[arm] for arm in sorted(chosen, key=by_arm)]


def columns(page: Selected, rows: Sequence[Record]) -> list[Column[Record]]:  # noqa: ARG001 - as every artifact
    return [
        Column("arm", lambda row: row.arm, lambda row: {"device": page.device, "arm": row.arm}, left=True),
        Column("stored, MiB", lambda row: significant(row.stored_mib), lambda row: {"stored_mib": row.stored_mib}),
    ]


def caption(page: Selected, rows: Sequence[Record]) -> Caption:
    facts = (device_fact(page), f"{len(rows)} arms.")
    return Caption("Stored size of every arm", facts, closing_notes(page))


def draw(page: Selected, rows: Sequence[Record], caption: Caption) -> Figure:  # noqa: ARG001 - as every artifact
    sheet = Page(caption.title, caption.facts, caption.notes)
    [[axes]] = sheet.panels(0, 0.2 * len(rows))
    axes.barh([row.arm for row in rows], [row.stored_mib or 0.0 for row in rows])
    return sheet.finish()


def judged(claim: Claim, page: Selected, rows: Sequence[Record]) -> Judgement:  # noqa: ARG001 - as every artifact
    sizes = {row.arm: row.stored_mib for row in rows}
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
    select=pages_by_device,
    rows=rows_of,
    columns=columns,
    caption=caption,
    draw=draw,
    claims=(CLAIM,),
    rules=(Rule(CLAIM.id, "stored size of dense / comera", REACHES, "any", TOLERANCE, "x", judge=judged),),
)
