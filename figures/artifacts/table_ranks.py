"""The paper's table of ranks: those of the fifth encoder block before training and after each stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from figures.artifact import Artifact
from figures.claims.training import RANKS_REMOVED
from figures.page.drawn import Caption
from figures.page.notes import closing_notes
from figures.page.table import NOT_ASKED, NOT_RECORDED, Column
from figures.page.training import absences, facts
from figures.records.select import COMERA
from figures.records.studies import EXPERIMENT, Row, Study, studies
from figures.records.training import BLOCK, LAYERS, Ranks, block_shown, curve_of, ranks_before, ranks_of_block

#: By column, the ranks of one seed, or the word that stands in their place.
States = Mapping[str, Ranks | str]


@dataclass(frozen=True)
class Line:
    """A layer with one seed."""

    layer: str
    seed: int
    states: States


def _shown(study: Study) -> list[Row]:
    """Rows of arms that have ranks; CoMERA's also where no run of them finished."""
    ranked = {row.slot.arm for row in study.rows if any(map(ranks_before, row.finished.values()))}
    return [row for row in study.rows if row.slot.arm in ranked or row.slot.arm == COMERA]


def _block(study: Study) -> int | None:
    """The number of the block shown; None where no layer is in one."""
    runs = [run for row in _shown(study) for run in row.finished.values()]
    papers = BLOCK if study.is_papers and not runs else None
    return block_shown(name for run in runs for name in ranks_before(run)) or papers


def _states(study: Study, seed: int) -> States:
    """The states of the block shown, or of all layers where there is none."""
    rows, block = _shown(study), _block(study)
    states: dict[str, Ranks | str] = {}
    for arm in dict.fromkeys(row.slot.arm for row in rows):
        mine = [row for row in rows if row.slot.arm == arm]
        before = [ranks_before(row.finished[seed]) for row in mine if seed in row.finished]
        states[f"{arm}, before"] = ranks_of_block(before[0], block) if before else NOT_ASKED
        for row in mine:
            run = row.runs[seed]
            status = run.status if run else NOT_RECORDED
            states[row.label] = ranks_of_block(curve_of(run)[-1].ranks, block) if run and status == "ok" else status
    return states


def rows_of(study: Study) -> list[Line]:
    """A line per layer and seed."""
    lines = []
    for seed in study.seeds:
        states = _states(study, seed)
        found = dict.fromkeys(layer for state in states.values() if not isinstance(state, str) for layer in state)
        lines += [Line(layer, seed, states) for layer in found or dict.fromkeys(LAYERS.values())]
    return lines


def columns(study: Study, lines: Sequence[Line]) -> list[Column[Any]]:
    """A column per state; the CSV has a line per seed, state, layer and bond."""

    def text(line: Line, name: str) -> str:
        state = line.states[name]
        return state if isinstance(state, str) else " ".join(map(str, state.get(line.layer, ()))) or NOT_ASKED

    return [
        Column("layer", lambda line: line.layer, left=True),
        *([Column("seed", lambda line: str(line.seed))] if len(study.seeds) > 1 else []),
        *(Column(name, lambda line, name=name: text(line, name)) for name in lines[0].states),
        Column(tidy=lambda cells: {"device": study.device, "dataset": study.dataset, **cells[0]}),
        Column(tidy=lambda cells: cells[1], whole=True),
    ]


#: A line of the CSV: what it is about, and a bond with its rank.
Tidy = tuple[dict[str, object], dict[str, object]]


def tidy_rows(study: Study, lines: Sequence[Line]) -> list[Tidy]:  # noqa: ARG001 - as every artifact
    cells: list[Tidy] = []
    for seed in study.seeds:
        for name, state in _states(study, seed).items():
            about = {"seed": seed, "state": name, "block": _block(study)}
            if isinstance(state, str):
                cells.append(({**about, "status": state, "layer": ""}, {"bond": None, "rank": None}))
                continue
            cells += [
                ({**about, "status": "ok", "layer": layer}, {"bond": bond, "rank": rank})
                for layer, ranks in state.items()
                for bond, rank in enumerate(ranks, start=1)
            ]
    return cells


def caption(study: Study, lines: Sequence[Line]) -> Caption:  # noqa: ARG001 - as every artifact
    block = _block(study)
    blocks = int(study.model.get("layers", block or BLOCK))
    kind = "encoder block" if study.is_papers else "block"
    other = [f"The model has {blocks} {kind}s; this is the last one, block {block}, not the fifth."]
    return Caption(
        title=f"Ranks{f' of {kind} {block} of {blocks}' if block else ''}, by stage: {study.dataset!r}",
        facts=facts(study),
        notes=(
            *absences(_shown(study)),
            *(other if block not in (None, BLOCK) else []),
            "A cell holds the ranks of a layer's bonds, input side first. All zero: the layer is gone but for its bias.",
            "before: as initialised. After a stage: the shapes that the cores have, closed ranks cut out.",
            *closing_notes(study),
        ),
    )


ARTIFACT = Artifact(
    name="table_ranks",
    heading="Ranks by stage",
    summary="ranks of the fifth encoder block before training and after each stage; a table per device and dataset",
    experiments=(EXPERIMENT,),
    measure="train",
    order=140,
    select=studies,
    rows=rows_of,
    columns=columns,
    tidy_rows=tidy_rows,
    caption=caption,
    rules=(RANKS_REMOVED,),
)
