"""The paper's table of ranks: those of the fifth encoder block before training and after each stage."""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from figures.artifact import Artifact
from figures.claims.training import RANKS_REMOVED
from figures.page import training as shared
from figures.page.drawn import Caption
from figures.page.notes import last_notes, mark_notes
from figures.records.select import COMERA
from figures.records.studies import Study, StudyRow
from figures.records.training import BLOCK, LAYERS, Ranks, block_shown, curve_of, ranks_before, ranks_of_block
from figures.text import NOT_ASKED, NOT_RECORDED, OLDER, OLDER_WORDS, Column

#: A line of the table that people read, or of the CSV.
Cells = Mapping[str, Any]


def _shown(study: Study) -> list[StudyRow]:
    """Rows of arms that have ranks; CoMERA's also where no run of them finished."""
    ranked = {row.slot.arm for row in study.rows if any(map(ranks_before, row.finished.values()))}
    return [row for row in study.rows if row.slot.arm in ranked or row.slot.arm == COMERA]


def _block(study: Study) -> int | None:
    """The number of the block shown; None where no layer is in one, and all of them are shown."""
    return block_shown(name for row in _shown(study) for run in row.finished.values() for name in ranks_before(run))


def _states(study: Study, seed: int) -> dict[str, Ranks | str]:
    """By column, the ranks of one seed, or the word that stands in their place."""
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


def rows_of(study: Study) -> list[Cells]:
    """A line per layer and seed, with a cell per state."""
    table: list[Cells] = []
    for seed in study.seeds:
        states = _states(study, seed)
        found = dict.fromkeys(layer for state in states.values() if not isinstance(state, str) for layer in state)
        for layer in found or LAYERS.values():
            ranks = {
                name: state if isinstance(state, str) else " ".join(map(str, state.get(layer, ()))) or None
                for name, state in states.items()
            }
            table.append({"layer": layer} | ({"seed": seed} if len(study.seeds) > 1 else {}) | ranks)
    return table


def tidy_rows(study: Study, _: Any) -> list[Cells]:
    """A line per seed, state, layer and bond."""
    table: list[Cells] = []
    for seed in study.seeds:
        for name, state in _states(study, seed).items():
            about = {"device": study.device, "dataset": study.dataset, "seed": seed, "state": name}
            about["block"] = _block(study)
            if isinstance(state, str):
                table.append({**about, "status": state, "layer": "", "bond": None, "rank": None})
                continue
            bonds = ((layer, bond, rank) for layer, ranks in state.items() for bond, rank in enumerate(ranks, start=1))
            table += [{**about, "status": "ok", "layer": one[0], "bond": one[1], "rank": one[2]} for one in bonds]
    return table


def columns(_: Any, table: Sequence[Cells]) -> list[Column[Cells]]:
    whole = ("bond", "rank")
    return [
        *(Column[Cells](name, itemgetter(name), left=name == "layer") for name in table[0]),
        Column(tidy=lambda cells: {name: cell for name, cell in cells.items() if name not in whole}),
        Column(tidy=lambda cells: {name: cells[name] for name in whole}, whole=True),
    ]


def caption(study: Study, _: Any) -> Caption:
    rows, block = _shown(study), _block(study)
    kind, blocks = "encoder block" if study.is_papers else "block", study.model.get("layers", block)
    last = f"The model has {blocks} {kind}s; this is the last one, block {block}, not the fifth."
    return Caption(
        title=f"Ranks{f' of {kind} {block} of {blocks}' if block else ''}, by stage: {study.dataset!r}",
        facts=shared.facts(study),
        notes=(
            *shared.absences(rows),
            *([last] if block not in (None, BLOCK) else []),
            "A cell holds the ranks of a layer's bonds, input side first. All zero: the layer is gone but for "
            "its bias.",
            "before: as initialised. After a stage: the shapes that the cores have, closed ranks cut out.",
            *mark_notes((row.mark for row in rows), {OLDER: OLDER_WORDS}),
            *last_notes(study),
        ),
    )


ARTIFACT = Artifact(
    name="table_ranks",
    heading="Ranks by stage",
    summary="ranks of the fifth encoder block before training and after each stage; a table per device and dataset",
    order=140,
    **shared.OF_STUDIES,
    rows=rows_of,
    columns=columns,
    tidy_rows=tidy_rows,
    caption=caption,
    rules=(RANKS_REMOVED,),
)
