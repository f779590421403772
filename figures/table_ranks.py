"""The paper's table of ranks: those of the fifth encoder block before training and after each stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from bench.core.record import Record
from figures.claims.claims import Claim
from figures.curve import Ranks, curve_of, ranks_before
from figures.page.drawn import Drawn
from figures.page.table import NOT_ASKED, NOT_RECORDED, REMARKS
from figures.ranks import BLOCK, LAYERS, block_shown, ranks_of_block
from figures.runs import COMERA, Study, studies
from figures.training_claims import verdicts
from figures.training_page import absences, drawn, notes
from figures.training_rows import Row, rows_of

CLAIMS = ("ranks-removed",)
_LAYER, _SEED = "layer", "seed"


def _text(ranks: tuple[int, ...]) -> str:
    return " ".join(map(str, ranks))


def _shown(rows: Sequence[Row]) -> list[Row]:
    """Rows of arms that have ranks; CoMERA's also where no run of them finished."""
    ranked = {row.slot.arm for row in rows if any(ranks_before(run) for run in row.finished.values())}
    return [row for row in rows if row.slot.arm in ranked or row.slot.arm == COMERA]


def _states(study: Study, rows: Sequence[Row], seed: int) -> dict[str, Ranks | str]:
    """By column, the ranks of one seed, or the word that stands in their place."""
    states: dict[str, Ranks | str] = {}
    for arm in dict.fromkeys(row.slot.arm for row in rows):
        mine = [row for row in rows if row.slot.arm == arm]
        before = [ranks_before(row.finished[seed]) for row in mine if seed in row.finished]
        states[f"{arm}, before"] = before[0] if before else NOT_ASKED
        for row in mine:
            run = study.runs.get((row.slot, seed))
            status = run.status if run else NOT_RECORDED
            states[row.label] = curve_of(run)[-1].ranks if run and status == "ok" else status
    return states


def text_table(study: Study, rows: Sequence[Row], block: int | None) -> pd.DataFrame:
    """The table a person reads: a line per layer (and seed), a column per state."""
    lines = []
    known: Mapping[str, object] = dict.fromkeys(LAYERS.values())
    for seed in study.seeds:
        columns = {
            name: state if isinstance(state, str) else ranks_of_block(state, block)
            for name, state in _states(study, rows, seed).items()
        }
        found = [layer for state in columns.values() if not isinstance(state, str) for layer in state]
        for layer in dict.fromkeys(found or known):
            line = {_LAYER: layer} | ({_SEED: str(seed)} if len(study.seeds) > 1 else {})
            for name, state in columns.items():
                line[name] = state if isinstance(state, str) else _text(state.get(layer, ())) or NOT_ASKED
            lines.append(line)
    return pd.DataFrame(lines)


def tidy_table(study: Study, rows: Sequence[Row], block: int | None) -> pd.DataFrame:
    """The table a program reads: a line per seed, state, layer and bond."""
    lines: list[dict[str, object]] = []
    for seed in study.seeds:
        for state, ranks in _states(study, rows, seed).items():
            where = {"device": study.device, "dataset": study.dataset, "seed": seed, "state": state, "block": block}
            if isinstance(ranks, str):
                lines.append({**where, "status": ranks, "layer": "", "bond": None, "rank": None})
                continue
            for layer, values in ranks_of_block(ranks, block).items():
                lines += [
                    {**where, "status": "ok", "layer": layer, "bond": bond, "rank": rank}
                    for bond, rank in enumerate(values, start=1)
                ]
    return pd.DataFrame(lines).astype({"bond": "Int64", "rank": "Int64"})


def _notes(study: Study, rows: Sequence[Row], block: int | None, blocks: int) -> list[str]:
    lines = [
        "A cell holds the ranks of a layer's bonds, input side first. All zero: the layer is gone but for its bias.",
        "before: as initialised. After a stage: the shapes that the cores have, closed ranks cut out.",
    ]
    if block is not None and block != BLOCK:
        lines.insert(0, f"The model has {blocks} encoder blocks; this is the last one, block {block}, not the fifth.")
    return [*lines, *notes(study, rows)]


def of_study(study: Study, claims: dict[str, Claim]) -> Drawn:
    """The table of one device and dataset."""
    every = rows_of(study)
    rows = _shown(every)
    names = [name for row in rows for run in row.finished.values() for name in ranks_before(run)]
    block = block_shown(names)
    blocks = int(study.model.get("layers", block or BLOCK))
    judged = verdicts(study, every, claims, CLAIMS)
    lines = [*absences(rows), *_notes(study, rows, block, blocks)]
    title = f"Ranks of encoder block {block or BLOCK} of {blocks}, by stage: {study.dataset!r}"
    tables = text_table(study, rows, block), tidy_table(study, rows, block)
    return drawn("table_ranks", title, study, *tables, lines, judged, left_aligned=frozenset({_LAYER, REMARKS}))


def render(records: Sequence[Record], claims: dict[str, Claim]) -> list[Drawn]:
    """One table per device and dataset."""
    return [of_study(study, claims) for study in studies(records)]
