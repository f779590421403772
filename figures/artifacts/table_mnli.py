"""The paper's tables on MNLI, per dataset: accuracy and sizes of dense training and CoMERA's stages, and ranks."""

from typing import Any

import pandas as pd

from figures.arms import COMERA
from figures.artifact import Artifact
from figures.claims.claims import read_claims
from figures.claims.training import CLAIMED, CLAIMED_DATASET, MARGIN, MNLI, RANKS_REMOVED
from figures.columns import readable
from figures.draw import metrics
from figures.frame import each
from figures.stats.curves import BLOCK, LAYERS, Ranks, block_shown, curve_of, ranks_before, ranks_of_block
from figures.stats.seeds import SIZES
from figures.stats.studies import Study
from figures.text import NOT_ASKED, NOT_RECORDED


def table(study: Study) -> pd.DataFrame:
    """Return a line per run: its metric, that of dense after as many steps, and its size."""
    name = study.metric.name
    columns = ["device", "dataset", "arm", "stage", "target_ratio", "target_mib", *metrics.RUN]
    columns += metrics.ends(name, f"dense_{name}_then", study.metric.less_column("dense"), *SIZES)
    return study.rows[[*columns, "size_fraction", "size_target", "size_met", "older_code"]].reset_index(drop=True)


def shown(study: Study, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table, with what was published beside a model of the paper's size."""
    metric, less = study.metric, study.metric.less_column("dense")
    more = {metric.name: metrics.metric_format(metric)}
    more |= {less: metrics.difference_format(metric, "less dense")}
    columns = ["run", metric.name, less, "stored_mib", "total_ratio", "tensorized_ratio"]
    columns += ["size_fraction", "size_target", "size_met"]
    text = readable(table.assign(run=study.rows["run"].array), columns, more)
    if study.is_papers and study.is_full_size:
        claims = read_claims()
        for behind, heading, quantity in (
            (metric.heading, "paper, MNLI: %", "acc"),
            ("total, MiB", "paper: MiB", "size"),
            ("total, times smaller", "paper: total", "ratio"),
            ("layers, times smaller", "paper: layers", "layers"),
        ):
            found = [claims.get(f"{CLAIMED.get(slot)}-{quantity}") for slot in study.slots]
            published = [
                f"{one.published.rstrip('%x').removesuffix(' MiB')}{'?' * one.unconfirmed}" if one else NOT_ASKED
                for one in found
            ]
            text.insert(list(text).index(behind) + 1, heading, published)
    return text


def about(study: Study, table: pd.DataFrame) -> dict[str, Any]:
    """Return which dataset the claims are about, and which difference to dense they call comparable."""
    return {**metrics.about_study(study, table), "claimed": CLAIMED_DATASET, "margin": MARGIN}


SIZES_AND_SCORES = Artifact(
    name="table_mnli",
    summary="accuracy, size and ranks of dense, early and late stages, beside the published accuracy; "
    "a table per device and dataset",
    order=130,
    **metrics.OF_STUDIES_AND_BED,
    table=table,
    shown=shown,
    about=about,
    rules=MNLI,
)


def _ranked(study: Study) -> pd.DataFrame:
    """Return the rows of arms that have ranks; CoMERA's also where no run of them finished."""
    has_ranks = study.rows["finished"].map(lambda runs: any(map(ranks_before, runs.values())))
    return study.rows[study.rows["arm"].isin([COMERA, *study.rows.loc[has_ranks, "arm"]])]


def _block(rows: pd.DataFrame) -> int | None:
    """Return the number of the block shown; None where no layer is in one, and all of them are shown."""
    return block_shown(name for runs in rows["finished"] for run in runs.values() for name in ranks_before(run))


def ranks_table(study: Study) -> pd.DataFrame:
    """Return a line per seed, state, layer and bond; one per seed and state that is missing."""
    rows = _ranked(study)
    block = _block(rows)
    statuses = study.df.set_index(["slot", "seed"])["status"].to_dict()
    lines: list[dict[str, Any]] = []
    for seed in study.seeds:
        states: dict[str, Ranks | str] = {}
        for arm, of_arm in rows.groupby("arm", sort=False):
            before = [ranks_before(runs[seed]) for runs in of_arm["finished"] if seed in runs]
            states[f"{arm}, before"] = ranks_of_block(before[0], block) if before else NOT_ASKED
            for row in each(of_arm):
                absent = statuses.get((row.slot, seed), NOT_RECORDED)
                run: Any = row.finished.get(seed)
                states[row.label] = ranks_of_block(curve_of(run)[-1].ranks, block) if run else absent
        for name, state in states.items():
            about = {"device": study.device, "dataset": study.dataset, "seed": seed}
            about |= {"state": name, "block": block}
            if isinstance(state, str):
                lines.append({**about, "status": state, "layer": "", "bond": None, "rank": None})
                continue
            for layer, ranks in state.items():
                for bond, rank in enumerate(ranks, start=1):
                    lines.append({**about, "status": "ok", "layer": layer, "bond": bond, "rank": rank})
    columns = ["device", "dataset", "seed", "state", "block", "status", "layer", "bond", "rank"]
    return pd.DataFrame(lines, columns=columns).astype({"bond": "Int64", "rank": "Int64"})


def ranks_shown(study: Study, table: pd.DataFrame) -> pd.DataFrame:
    """Return a line per layer and seed, with the ranks of all its bonds in every state."""
    found = table[table["layer"] != ""].astype({"rank": str})
    ranks = found.groupby(["seed", "state", "layer"], sort=False)["rank"].agg(" ".join).to_dict()
    absent = table[table["status"] != "ok"].set_index(["seed", "state"])["status"].to_dict()
    lines = []
    for seed in study.seeds:
        layers = table.loc[(table["seed"] == seed) & (table["layer"] != ""), "layer"].unique()
        for layer in layers if len(layers) else LAYERS.values():
            line = {"layer": layer, **({"seed": str(seed)} if len(study.seeds) > 1 else {})}
            for state in table["state"].unique():
                line[state] = ranks.get((seed, state, layer)) or absent.get((seed, state), NOT_ASKED)
            lines.append(line)
    return pd.DataFrame(lines)


def ranks_about(study: Study, table: pd.DataFrame) -> dict[str, Any]:
    """Return which block of how many is shown."""
    rows = _ranked(study)
    return {
        **metrics.about_study(study, table, rows),
        "block": _block(rows),
        "blocks": study.model.get("layers", _block(rows)),
        "kind": "encoder block" if study.is_papers else "block",
        "papers_block": BLOCK,
        "marked": bool(rows["older_code"].any()),
    }


RANKS = Artifact(
    name="table_ranks",
    part_of="table_mnli",
    summary="ranks of the fifth encoder block before training and after each stage; a table per device and dataset",
    order=140,
    **metrics.OF_STUDIES_AND_BED,
    table=ranks_table,
    shown=ranks_shown,
    about=ranks_about,
    rules=(RANKS_REMOVED,),
)

ARTIFACTS = (SIZES_AND_SCORES, RANKS)
