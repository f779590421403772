"""Fig. 9: normalised cross entropy per step of DLRM's arms, drawn as Fig. 6 is; a page per device and click log."""

from dataclasses import replace

from figures.artifacts import fig6
from figures.artifacts import table_dlrm as dlrm

ARTIFACT = replace(
    fig6.ARTIFACT,
    name="fig9",
    summary="normalised cross entropy of DLRM's arms per step; an image per device and click log",
    experiments=(dlrm.EXPERIMENT,),
    made_by="make reproduce-fig9",
    order=60,
    about=lambda study, table: {**fig6.about(study, table), **dlrm.about(study, table)},
    rules=(dlrm.CURVE,),
)
