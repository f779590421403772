"""The paper's table on MNLI: accuracy, size and compression of dense training and of CoMERA's stages, per dataset."""

from typing import Any

import pandas as pd

from figures.artifact import Artifact
from figures.claims.claims import read_claims
from figures.claims.training import CLAIMED, CLAIMED_DATASET, MARGIN, MNLI
from figures.columns import readable
from figures.draw import training
from figures.stats.seeds import SIZES
from figures.stats.studies import Study
from figures.text import NOT_ASKED


def table(study: Study) -> pd.DataFrame:
    """Return a line per run: its metric, that of dense after as many steps, and its size."""
    name = study.metric.name
    columns = ["device", "dataset", "arm", "stage", "target_ratio", "target_mib", *training.RUN]
    columns += training.ends(name, f"dense_{name}_then", study.metric.less_column("dense"), *SIZES)
    return study.rows[[*columns, "size_fraction", "size_target", "size_met", "older_code"]].reset_index(drop=True)


def shown(study: Study, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table, with what was published beside a model of the paper's size."""
    metric, less = study.metric, study.metric.less_column("dense")
    more = {metric.name: training.metric_format(metric)}
    more |= {less: training.difference_format(metric, "less dense")}
    columns = ["run", metric.name, less, "stored_mib", "total_ratio", "tensorized_ratio"]
    columns += ["size_fraction", "size_target", "size_met"]
    text = readable(table.assign(run=study.rows["run"].array), columns, more)
    if study.is_papers and study.is_full_size:
        claims = read_claims()
        for behind, heading, quantity in (
            (metric.heading, "paper, MNLI: %", "acc"),
            ("total, MiB", "paper: MiB", "size"),
            ("total ratio", "paper: total", "ratio"),
            ("layers ratio", "paper: layers", "layers"),
        ):
            found = [claims.get(f"{CLAIMED.get(slot)}-{quantity}") for slot in study.slots]
            published = [
                f"{one.published.removesuffix('%').removesuffix(' MiB')}{'?' * one.unconfirmed}" if one else NOT_ASKED
                for one in found
            ]
            text.insert(list(text).index(behind) + 1, heading, published)
    return text


def about(study: Study, table: pd.DataFrame) -> dict[str, Any]:
    """Return which dataset the claims are about, and which difference to dense they call comparable."""
    return {**training.about_study(study, table), "claimed": CLAIMED_DATASET, "margin": MARGIN}


ARTIFACT = Artifact(
    name="table_mnli",
    summary="accuracy with its bounds, size and compression of dense, early and late stages, beside the published; "
    "a table per device and dataset",
    order=130,
    **training.OF_STUDIES_AND_BED,
    table=table,
    shown=shown,
    about=about,
    rules=MNLI,
    keys=("run",),
    breaks=("total, MiB",),
)
