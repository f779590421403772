"""The paper's table of ranks: those of the fifth encoder block before training and after each stage."""

from typing import Any

import pandas as pd

from figures.arms import COMERA
from figures.artifact import Artifact
from figures.claims.training import RANKS_REMOVED
from figures.columns import table_of
from figures.page import training
from figures.page.captions import beside
from figures.records.studies import Study, StudyRow
from figures.records.training import BLOCK, LAYERS, Ranks, block_shown, curve_of, ranks_before, ranks_of_block
from figures.text import NOT_ASKED, NOT_RECORDED


def _shown(study: Study) -> list[StudyRow]:
    """Return the rows of arms that have ranks; CoMERA's also where no run of them finished."""
    ranked = {row.slot.arm for row in study.rows if any(map(ranks_before, row.finished.values()))}
    return [row for row in study.rows if row.slot.arm in ranked or row.slot.arm == COMERA]


def _block(study: Study) -> int | None:
    """Return the number of the block shown; None where no layer is in one, and all of them are shown."""
    return block_shown(name for row in _shown(study) for run in row.finished.values() for name in ranks_before(run))


def _states(study: Study, seed: int) -> dict[str, Ranks | str]:
    """Return by state the ranks of one seed, or its status where there are none."""
    rows, block = _shown(study), _block(study)
    states: dict[str, Ranks | str] = {}
    for arm in dict.fromkeys(row.slot.arm for row in rows):
        of_arm = [row for row in rows if row.slot.arm == arm]
        before = [ranks_before(row.finished[seed]) for row in of_arm if seed in row.finished]
        states[f"{arm}, before"] = ranks_of_block(before[0], block) if before else NOT_ASKED
        for row in of_arm:
            run = row.finished.get(seed)
            absent = getattr(row.runs[seed], "status", NOT_RECORDED)
            states[row.label] = ranks_of_block(curve_of(run)[-1].ranks, block) if run else absent
    return states


def table(study: Study) -> pd.DataFrame:
    """Return a line per seed, state, layer and bond; one per seed and state that is missing."""
    block, lines = _block(study), []
    for seed in study.seeds:
        for name, state in _states(study, seed).items():
            about = {"device": study.device, "dataset": study.dataset, "seed": seed, "state": name, "block": block}
            if isinstance(state, str):
                lines.append({**about, "status": state, "layer": "", "bond": None, "rank": None})
                continue
            for layer, ranks in state.items():
                bonds = enumerate(ranks, start=1)
                lines += [{**about, "status": "ok", "layer": layer, "bond": bond, "rank": rank} for bond, rank in bonds]
    columns = ("device", "dataset", "seed", "state", "block", "status", "layer", "bond", "rank")
    return table_of(lines, whole=("bond", "rank")) if lines else pd.DataFrame(columns=columns)


def shown(study: Study, table: pd.DataFrame) -> pd.DataFrame:
    """Return a line per layer and seed, with the ranks of all its bonds in every state."""
    found = {
        key: " ".join(map(str, ranks))
        for key, ranks in table[table["layer"] != ""].groupby(["seed", "state", "layer"], sort=False)["rank"]
    }
    absent = table[table["status"] != "ok"].set_index(["seed", "state"])["status"].to_dict()
    lines = []
    for seed in study.seeds:
        layers = table.loc[(table["seed"] == seed) & (table["layer"] != ""), "layer"].unique()
        for layer in layers if len(layers) else LAYERS.values():
            line = {"layer": layer, **({"seed": str(seed)} if len(study.seeds) > 1 else {})}
            for state in table["state"].unique():
                line[state] = found.get((seed, state, layer)) or absent.get((seed, state), NOT_ASKED)
            lines.append(line)
    return pd.DataFrame(lines)


def about(study: Study, table: pd.DataFrame) -> dict[str, Any]:
    """Return which block of how many is shown."""
    block = _block(study)
    return {
        **training.about_study(study, table, _shown(study)),
        "block": block,
        "blocks": study.model.get("layers", block),
        "kind": "encoder block" if study.is_papers else "block",
        "papers_block": BLOCK,
        "marked": any(row.mark for row in _shown(study)),
    }


ARTIFACT = Artifact(
    name="table_ranks",
    heading="Ranks by stage",
    summary="ranks of the fifth encoder block before training and after each stage; a table per device and dataset",
    order=140,
    **training.OF_STUDIES,
    table=table,
    shown=shown,
    about=about,
    caption=beside(__file__),
    rules=(RANKS_REMOVED,),
)
