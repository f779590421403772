"""Fig. 9: normalised cross entropy per step of DLRM's arms, drawn as Fig. 6 is; a page per device and click log."""

from dataclasses import replace
from typing import Any

from figures.artifacts import fig6
from figures.artifacts.tables.dlrm import CURVE, EXPERIMENT, is_synthetic, log_notes, log_words
from figures.page.drawn import Caption
from figures.page.notes import first_upper
from figures.records.studies import Study


def caption(study: Study, lines: Any) -> Caption:
    """That of Fig. 6, with what is known of the log."""
    shared = fig6.caption(study, lines)
    title = f"normalised cross entropy of DLRM per step on {log_words(study)}"
    title = first_upper(title) if is_synthetic(study) else f"Fig. 9: {title}"
    return replace(shared, title=title, notes=(*shared.notes, *log_notes(study)))


ARTIFACT = replace(
    fig6.ARTIFACT,
    name="fig9",
    heading="Fig. 9: normalised cross entropy of DLRM per step",
    summary="normalised cross entropy of DLRM's arms per step; an image per device and click log",
    experiments=(EXPERIMENT,),
    made_by="make reproduce-fig9",
    order=60,
    caption=caption,
    rules=(CURVE,),
)
