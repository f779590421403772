"""The paper's table on MNLI: accuracy, size and compression of dense training and of CoMERA's stages, per dataset."""

from typing import Any

import pandas as pd

from figures.artifact import Artifact
from figures.claims.claims import read_claims
from figures.claims.training import CLAIMED, CLAIMED_DATASET, MARGIN, MNLI
from figures.columns import readable, table_of
from figures.page import training
from figures.page.captions import beside
from figures.records.studies import Study, StudyRow
from figures.text import NOT_ASKED, bounds

#: Published numbers: the column that they stand behind, their heading, and how the ids of their claims end.
_PUBLISHED = (
    ("metric", "paper, MNLI: %", "acc"),
    ("stored_mib", "paper: MiB", "size"),
    ("total_ratio", "paper: total", "ratio"),
    ("tensorized_ratio", "paper: layers", "layers"),
)


def table(study: Study) -> pd.DataFrame:
    """Return a line per run: its metric, that of dense after as many steps, and its size."""
    metric, lines = study.metric, []
    for row in study.rows:
        slot = row.slot
        lines.append(
            {
                **training.run_columns(
                    study, row, stage=slot.stage, target_ratio=slot.target, target_mib=slot.target_mib
                ),
                **bounds(metric.name, row.score()),
                **bounds(f"dense_{metric.name}_then", row.dense_score),
                **bounds(training.less_column(metric, "dense"), row.less_dense),
                **training.spread_columns(row, "stored_mib", "total_ratio", "tensorized_mib", "tensorized_ratio"),
                "size_fraction": row.mean("size_fraction"),
                "size_target": row.mean("size_target"),
                "size_met": row.size_met,
                "older_code": bool(row.mark),
            }
        )
    return table_of(lines)


def _published(row: StudyRow, quantity: str) -> str:
    """Return a published number of a run; one that was transcribed from memory carries a question mark."""
    claim = read_claims().get(f"{CLAIMED.get(row.slot)}-{quantity}")
    if claim is None:
        return NOT_ASKED
    return f"{claim.published.removesuffix('%').removesuffix(' MiB')}{'?' if claim.unconfirmed else ''}"


def shown(study: Study, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table, with what was published beside a model of the paper's size."""
    metric, less = study.metric, training.less_column(study.metric, "dense")
    more = {
        metric.name: training.metric_format(metric),
        less: training.difference_format(metric, "less dense"),
    }
    sizes = ["stored_mib", "total_ratio", "tensorized_ratio", "size_fraction", "size_target", "size_met"]
    own = table.assign(run=[row.name for row in study.rows])
    text = readable(own, ["run", metric.name, less, *sizes], more)
    if study.is_papers and study.is_full_size:
        headings = {"metric": metric.heading, "stored_mib": "total, MiB"}
        headings |= {"total_ratio": "total ratio", "tensorized_ratio": "layers ratio"}
        for column, heading, quantity in _PUBLISHED:
            place = list(text).index(headings[column]) + 1
            text.insert(place, heading, [_published(row, quantity) for row in study.rows])
    return text


def about(study: Study, table: pd.DataFrame) -> dict[str, Any]:
    """Return which dataset the claims are about, and which difference to dense they call comparable."""
    return {**training.about_study(study, table), "claimed": CLAIMED_DATASET, "margin": MARGIN}


ARTIFACT = Artifact(
    name="table_mnli",
    heading="Accuracy and size by stage",
    summary="accuracy with its bounds, size and compression of dense, early and late stages, beside the published; "
    "a table per device and dataset",
    order=130,
    **training.OF_STUDIES,
    table=table,
    shown=shown,
    about=about,
    caption=beside(__file__),
    rules=MNLI,
    keys=("run",),
    breaks=("total, MiB",),
)
