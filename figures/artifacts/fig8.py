"""Fig. 8: time and peak memory of a training step of DLRM; a page per device, model and source of the tables' sizes.

Two verdicts stand beside each other: against dense tables with dense gradients under Adam, as published, and against
tables with sparse gradients and one number of state per row, as a recommender team would train them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from bench.core.record import Record
from figures.artifact import Artifact
from figures.claims import ratio
from figures.claims.claims import Claim, Finding, Judgement
from figures.claims.rule import REACHES, Rule
from figures.page import bars, notes
from figures.page.drawn import Caption
from figures.page.footnotes import Footnotes
from figures.records import cells
from figures.records.select import by_device, method_settings, workload_settings
from figures.records.time_values import Per, time_columns, time_ratio
from figures.text import NOT_RECORDED, Column, significant

OPTIMIZED, PLAIN, ADAM, SPARSE, ROW_WISE = "optimized", "plain", "dense", "sparse", "row-wise"
RIVALS = {"dense": ADAM, "dense:sparse": SPARSE, "dense:row_wise": ROW_WISE}
VARIANTS = (OPTIMIZED, PLAIN, *RIVALS.values())
BATCHES = (10_000, 20_000, 40_000)

#: Parameters of the paper's dense model, with the tables of Criteo Kaggle.
FULL_SIZE = 1_097_631_297

#: GPU memory, in GiB, that predictions are held against.
ROOMS = (24, 80)

#: A look-up variant or rival, and the batch size.
Cell = tuple[str, int]


class Fig8Place(NamedTuple):
    """What one page is about beside its device."""

    preset: str
    tables: str

    @property
    def words(self) -> str:
        return f"preset {self.preset}, tables of {self.tables}"


@dataclass(frozen=True, kw_only=True)
class Fig8Page(cells.TimesAndMemory):
    about: Fig8Place

    @property
    def per(self) -> Per:
        return "step"

    @property
    def batches(self) -> list[int]:
        return sorted({*BATCHES, *(batch for _, batch in self.timed), *(cell[1] for _, cell in self.predicted)})

    @property
    def variants(self) -> list[str]:
        found = {name for name, _ in self.timed} | {name for _, (name, _) in self.predicted}
        return [name for name in VARIANTS if name in found]

    @property
    def by_cell(self) -> dict[Cell, Record]:
        """A record of every cell, the timed one where there is one."""
        return {**{cell: one for (_, cell), one in self.predicted.items()}, **self.timed}

    def stored(self, variant: str) -> float | None:
        """MiB of the stored model."""
        found = self.by_cell.items()
        return next((one.stored_mib for (name, _), one in found if name == variant and one.stored_mib), None)

    def work(self, variant: str, batch: int) -> int | None:
        """FLOPs of a step's products, forward and backward."""
        record = self.by_cell.get((variant, batch))
        return record.flops_per_step if record else None


@dataclass(frozen=True, kw_only=True)
class Fig8Row(cells.CellRow):
    batch: int
    variant: str
    stored: float | None
    work: int | None


def _cell(record: Record) -> Cell | None:
    name = method_settings(record).get("lookup") if record.arm == "comera" else RIVALS.get(record.arm)
    return (str(name), record.batch_size) if name in VARIANTS else None


def _place(record: Record) -> Fig8Place | None:
    model = workload_settings(record)
    return Fig8Place(model["preset"], model["tables"]) if {"preset", "tables"} <= set(model) else None


_SELECT = cells.Select(
    _cell,
    same_per_arm=lambda record: {**method_settings(record), "variant": record.variant, "lookup": None},
    arm=lambda record: record.method if record.method == "comera" else record.arm,
)


def select(records: Sequence[Record]) -> list[Fig8Page]:
    """A selection per device and model."""
    pages = []
    for device, mine in by_device(records):
        for place in sorted({place for record in mine if (place := _place(record))}):
            here = [record for record in mine if _place(record) == place and record.precision == "fp32"]
            pages.append(_SELECT(here, Fig8Page, about=place, place=place.words, suffix=tuple(place), **device))
    return [page for page in pages if page.shown]


def rows_of(page: Fig8Page) -> list[Fig8Row]:
    """Every variant and rival at every batch size, by batch size."""
    return [
        Fig8Row(
            batch=batch,
            variant=name,
            stored=page.stored(name),
            work=page.work(name, batch),
            **page.row((name, batch), (OPTIMIZED, batch)),
        )
        for batch in page.batches
        for name in page.variants
    ]


def columns(page: Fig8Page, rows: Sequence[Fig8Row]) -> list[Column[Fig8Row]]:
    """Targets without any prediction have no column for people."""
    shown = [target for target in cells.TARGETS if any(row.memory[target].status != NOT_RECORDED for row in rows)]

    def head(row: Fig8Row) -> dict[str, object]:
        model = {"preset": page.about.preset, "tables": page.about.tables}
        return {"device": page.device, **model, "batch_size": row.batch, "variant": row.variant}

    return [
        Column("batch", lambda row: f"{row.batch:,}", head),
        Column("arm", lambda row: row.variant, left=True),
        *time_columns(rows, "step", OPTIMIZED, ("step, ms", f"/ {OPTIMIZED}"), rare=False),
        *(column for target in cells.TARGETS for column in cells.memory_columns(target, OPTIMIZED, target in shown)),
        Column(
            "products, GFLOP",
            lambda row: significant(row.work and row.work / 1e9),
            lambda row: {"flops_per_step": row.work},
        ),
        Column("model MiB", lambda row: significant(row.stored, 4), lambda row: {"stored_mib": row.stored}),
        *cells.last_columns(page),
    ]


def _ratio(page: Fig8Page, target: str, rival: str, batch: int) -> float | None:
    return cells.quotient(page.peak(target, (rival, batch)), page.peak(target, (OPTIMIZED, batch)))


def _verdicts(page: Fig8Page) -> list[str]:
    """A sentence per rival, on model size, predicted memory and time; and what fits where."""
    lines = []
    rivals = {ADAM: "As published, against dense gradients and Adam", ROW_WISE: "Against sparse gradients, row-wise"}
    for rival, words in rivals.items():
        peaks = [(batch, _ratio(page, "cuda", rival, batch)) for batch in page.batches]
        parts = [f"peak memory, predicted, {value:.1f}x at {batch:,}" for batch, value in peaks if value]
        for batch in page.batches:
            time = time_ratio(page.timed.get((rival, batch)), page.timed.get((OPTIMIZED, batch)))
            parts += [f"time {time.value:.2f}x at {batch:,}"] if time else []
        lines += [f"{words}: {rival} over optimized: {', '.join(parts)}."] if parts else []
    for room in ROOMS:
        fits = {
            name: [b for b in page.batches if (page.peak("cuda", (name, b)) or 1e9) <= room * 1024 * 0.95]
            for name in page.variants
        }
        if any(target == "cuda" for target, _ in page.predicted):
            room_words = [f"{name} {max(found):,}" if found else f"{name} none" for name, found in fits.items()]
            lines.append(
                f"Largest of these batches that fits into {room} GiB of a GPU, predicted: {', '.join(room_words)}."
            )
    return lines


def caption(page: Fig8Page, rows: Sequence[Fig8Row]) -> Caption:
    blocks = notes.blocks_timed(page.timed.values())
    title = f"time per step and peak memory of DLRM, {page.about.words}"
    subjects = ((row.variant, {"batch": f"{row.batch:,}"}, row.remarks) for row in rows)
    alone = [record for record in page.timed.values() if record.status == "ok" and not record.pairing]
    return Caption(
        title=f"Fig. 8: {title}" if page.about == Fig8Place("paper", "kaggle") else notes.first_upper(title),
        facts=(
            notes.step_fact(page),
            f"Lines of {notes.listed(page, 'dataset')!r}. {f'Timed in {blocks}.' if blocks else 'Nothing timed.'}",
            "optimized, plain: CoMERA with its optimized look-up, and with a gather and a product per core and index; "
            "dense: dense gradients, Adam; sparse: SparseAdam; row-wise: row-wise Adagrad.",
        ),
        of_picture=(bars.SCALES.format("the optimized one's"),),
        notes=(
            *notes.cell_notes(page, rows, *_verdicts(page)),
            *(["Arms that did not fit into memory together ran one after another, unpaired."] if alone else []),
            *notes.last_notes(page),
        ),
        remarks=notes.gathered(subjects),
    )


def draw(page: Fig8Page, rows: Sequence[Fig8Row], caption: Caption) -> Figure:
    footnotes, target = Footnotes(), "cuda" if any(goal == "cuda" for goal, _ in page.predicted) else "cpu"
    measured = page.kind == "cuda" and any(row.measured["allocated"] is not None for row in rows)

    def memory_bar(row: Fig8Row) -> bars.Bar:
        return bars.memory_bar(row.memory[target], row.measured if measured else {}, footnotes)

    legend = {"steps, CoMERA": "CoMERA, optimized look-up", "steps": "plain look-up and dense tables"}
    times = bars.panels(rows, page.batches, lambda row: bars.time_bar(row, 1.0, footnotes), "batch {:,}")
    found = [
        bars.time_band("Time per step {}, in ms", page.kind, times, legend),
        bars.memory_band(target, bars.panels(rows, page.batches, memory_bar, "batch {:,}"), rows, measured),
    ]
    foot = (*footnotes.lines(), *caption.of_picture, *caption.notes)
    return bars.draw_bars(caption.title, caption.facts, page.variants, found, foot)


def _evidence(what: Any, *above: str) -> ratio.Evidence:
    """Ratios of the one of these variants that takes least over the optimized one."""
    return lambda page: what(
        page, {batch: ([(one, batch) for one in above], [(OPTIMIZED, batch)]) for batch in page.batches}
    )


def not_the_papers(page: Fig8Page) -> str:
    """Why these records decide nothing about the paper's model; empty where they may."""
    dense = {one.parameters for one in page.shown if one.arm == "dense" and one.parameters is not None}
    if dense == {FULL_SIZE}:
        return ""
    return f"The claim is about the model of {FULL_SIZE:,} parameters; these records are of {page.about.words}."


def _synthetic(page: Fig8Page) -> str:
    names = [name for name in page.values("dataset") if name.startswith("synthetic")]
    return f"The claim is about Criteo's log; these steps ran on {', '.join(names)}." if names else ""


def _judge_size(claim: Claim, page: Fig8Page, _: Any) -> Judgement:
    """Sizes do not hang on the data, so those of any log decide."""
    dense, ours = page.stored(ADAM), page.stored(OPTIMIZED)
    if dense is None or ours is None:
        return Judgement("not tested here", "It needs both models.")
    found = (Finding("stored size of dense / comera", f"{dense / ours:.2f}x, {dense:,.0f} / {ours:.1f} MiB"),)
    if other := not_the_papers(page):
        return Judgement("not tested here", other, found)
    if dense / ours < (claim.low or 0) - 0.5:
        return Judgement("not reproduced", "Counts do not vary.", found)
    return Judgement("by construction", "The ranks were chosen for it; what the model learns is a claim apart.", found)


_FULL: dict[str, Any] = {"conditions": (ratio.not_fp32, not_the_papers)}
_TIMED: dict[str, Any] = {"conditions": (ratio.not_fp32, not_the_papers, _synthetic)}
_TABLES = (ADAM, SPARSE, ROW_WISE)
_FAIR = "{} of the dense tables that take least (sparse gradients, row-wise Adagrad) / optimized comera"


def _fair(quantity: str, what: Any) -> dict[str, Any]:
    return {"fair": [_evidence(what, *_TABLES)], "fair_quantity": _FAIR.format(quantity)}


RULES = (
    Rule("dlrm-size", "stored size of dense / comera", REACHES, "any", 0.5, "x", judge=_judge_size),
    ratio.ratio_rule(
        "dlrm-memory",
        "peak memory of dense (Adam) / comera, allocated or predicted for CUDA",
        [_evidence(ratio.memory_points, ADAM)],
        BATCHES[:1],
        device="any",
        **_FULL,
        **_fair("peak memory", ratio.memory_points),
    ),
    ratio.ratio_rule(
        "recsys-time",
        "epoch time of dense (Adam) / comera",
        [_evidence(ratio.time_points, ADAM)],
        BATCHES,
        **_TIMED,
        **_fair("step time", ratio.time_points),
    ),
    ratio.ratio_rule(
        "dlrm-opt-plain",
        "step time and peak memory of plain / optimized comera",
        [_evidence(ratio.time_points, PLAIN), _evidence(ratio.memory_points, PLAIN)],
        BATCHES,
        slack=0.0,
        **_TIMED,
    ),
    ratio.ratio_rule(
        "dlrm-opt-dense",
        "peak memory of dense (Adam) / optimized comera, allocated or predicted",
        [_evidence(ratio.memory_points, ADAM)],
        BATCHES,
        slack=0.0,
        device="any",
        **_FULL,
        **_fair("peak memory", ratio.memory_points),
    ),
)

ARTIFACT: Artifact[Fig8Page] = Artifact(
    name="fig8",
    heading="Fig. 8: time and memory of DLRM",
    summary="time and peak memory of a training step of DLRM, beside dense tables with dense and with sparse gradients",
    experiments=("fig8", "fig8_memory"),
    made_by="make reproduce-fig8",
    order=50,
    select=select,
    rows=rows_of,
    columns=columns,
    caption=caption,
    draw=draw,
    rules=RULES,
    section="batch",
)
