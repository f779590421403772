"""Fig. 1 in brief, for a first page on a small screen: five arms, time and memory at two batches each, over dense's.

It has the pages of Fig. 1 on which all of these are known, and no value of its own.
"""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from figures.arms import COMERA, DENSE, PLAIN
from figures.artifact import Artifact
from figures.artifacts import fig1
from figures.columns import across
from figures.draw import style
from figures.draw.captions import Caption
from figures.frame import Records
from figures.text import significant

#: Arms by name, with what they are called here, and the batches shown.
ARMS = {
    DENSE: "dense",
    "galore": "GaLore",
    "lora": "LoRA",
    "low_rank@size": "plain factors",
    COMERA: "CoMERA",
}
TIMED, PREDICTED = (1, 16), (1, 128)

_TIME, _MEMORY = f"time_over_{DENSE}", f"cuda_workspaces_over_{DENSE}"

#: The fill of an arm's bars, where it is not that of the others.
_FILLS = {COMERA: "steps, CoMERA"}

#: Inches of the picture: a phone shows its letters at about their size.
_SIZE = (4.8, 4.3)


def select(records: Records) -> list[fig1.Fig1Page]:
    """Return the pages of plain FP32 steps that have all arms."""
    return [page for page in fig1.select(records) if page.toggles == PLAIN and _is_whole(table(page))]


def table(page: fig1.Fig1Page) -> pd.DataFrame:
    """Return time and memory of each arm at each batch, over dense's."""
    found = fig1.table(page)
    found = found[found["arm"].isin(ARMS) & found["batch_size"].isin({*TIMED, *PREDICTED})]
    ends = [name for name in found if str(name).startswith(_TIME)]
    columns = ["device", "arm", "batch_size", *ends, *([_MEMORY] if _MEMORY in found else []), "older_code"]
    return found[columns].reset_index(drop=True)


def _is_whole(table: pd.DataFrame) -> bool:
    """Return whether no value of the picture is missing."""
    return all(
        column in table and _at(table, column, batch).notna().all()
        for column, batches in ((_TIME, TIMED), (_MEMORY, PREDICTED))
        for batch in batches
    )


def _at(table: pd.DataFrame, column: str, batch: int) -> pd.Series:
    """Return the values of all arms but dense at a batch, in their order; missing where an arm was not measured."""
    some = table[table["batch_size"] == batch].set_index("arm")[column].astype(float)
    return some.reindex([arm for arm in ARMS if arm != DENSE])


def shown(page: fig1.Fig1Page, table: pd.DataFrame) -> pd.DataFrame:  # noqa: ARG001
    """Return a line per arm."""
    return across(table, "arm", "batch_size", {_TIME: "", _MEMORY: ""})


def about(page: fig1.Fig1Page, table: pd.DataFrame) -> dict[str, Any]:  # noqa: ARG001
    """Return what CoMERA takes of dense's time and memory, and whether plain factors take less of all."""
    values = {
        column: pd.DataFrame({batch: _at(table, column, batch) for batch in batches})
        for column, batches in ((_TIME, TIMED), (_MEMORY, PREDICTED))
    }
    return {
        "takes": [[significant(float(one), 2) for one in found.T[COMERA]] for found in values.values()],
        "plain_take_less": all((found.loc["low_rank@size"] < found.loc[COMERA]).all() for found in values.values()),
    }


def draw(page: fig1.Fig1Page, table: pd.DataFrame, caption: Caption) -> Figure:  # noqa: ARG001
    """Draw a panel for each batch, of time above and of memory below, as bars with their values."""
    figure = Figure(figsize=_SIZE, dpi=style.DPI, layout="constrained")
    figure.suptitle(caption.title, fontsize=9.5, fontweight="bold", x=0.01, ha="left", wrap=True)
    figure.supxlabel("\n".join(caption.of_picture), fontsize=7, color=style.INK, x=0.01, ha="left", wrap=True)
    panels: Any = figure.subplots(2, 2)
    rows = ((_TIME, TIMED, "time"), (_MEMORY, PREDICTED, "memory"))
    for line, (column, batches, words) in zip(panels, rows, strict=True):
        found = {batch: pd.concat([pd.Series({DENSE: 1.0}), _at(table, column, batch)])[::-1] for batch in batches}
        longest = max(values.max() for values in found.values())
        for place, (axes, (batch, values)) in enumerate(zip(line, found.items(), strict=True)):
            colours = [style.TIME_FILLS[_FILLS.get(str(arm), "steps")].colour for arm in values.index]
            axes.barh(range(len(values)), values, color=colours, edgecolor=style.INK, linewidth=0.6)
            for row, value in enumerate(values):
                axes.annotate(
                    f"{significant(value, 2 + (value > 1))}x",
                    (value, row),
                    (3, 0),
                    textcoords="offset points",
                    va="center",
                )
            axes.set_yticks(range(len(values)), [ARMS[str(arm)] for arm in values.index] if not place else [])
            axes.set_xlim(0, 1.35 * longest)
            axes.set_xticks([])
            axes.set_title(f"{words}, batch {batch}", loc="left", fontsize=9, fontweight="bold")
            axes.tick_params(labelsize=9, length=0)
    return figure


ARTIFACT = Artifact(
    name="fig1_brief",
    part_of="fig1",
    summary="five arms of Fig. 1 at two batches, for a small screen",
    experiments=fig1.EXPERIMENTS,
    lenders=fig1.LENDERS,
    made_by="make reproduce-fig1",
    order=11,
    select=select,
    table=table,
    shown=shown,
    about=about,
    draw=draw,
)
