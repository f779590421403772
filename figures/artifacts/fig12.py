"""Fig. 12: time, peak memory and FLOPs against the compression of the whole model; a page per device and toggles.

Each job of a sweep times one ratio with dense beside it, so a timed record of dense belongs to the ratio of its job.
Otherwise dense is the model of ratio 1.

The claim is that the speed-up, dense's time per epoch over CoMERA's, grows with compression and vanishes as the ratio
tends to 1. At a batch size it *grows* when at the largest ratio it surely exceeds that at the smallest, and at no ratio
surely falls short of that at a smaller one, where surely means that the bounds do not meet. It *vanishes* when at
the smallest ratio, which must be 2 or less, its lower bound does not lie above 1.1: the claim is about a limit,
so 10 % may be left on the way to it, which is said, as is slower than dense. Both at every batch size: reproduced. It
grows at none: not reproduced. Anything between: partly. Times of a CPU decide nothing and are printed beside.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from statistics import median
from typing import Any, ClassVar

from matplotlib.figure import Figure

from bench.core.intervals import Estimate
from bench.core.record import Record
from figures.artifact import Artifact
from figures.claims.claims import Finding, Judgement, undecided
from figures.claims.ratio import ON_CPU, not_fp32, not_full_size
from figures.claims.rule import Rule
from figures.page import notes
from figures.page.drawn import Caption
from figures.page.footnotes import Footnotes
from figures.page.layout import panel_page
from figures.page.ratio_panels import Curve, RatioPanel, draw_panel, legend
from figures.records import cells
from figures.records.cells import TARGETS, quotient
from figures.records.crossover import Quotients, sides, standing
from figures.records.missing import Missing, RatioLimit, limit_of
from figures.records.select import COMERA, DENSE, RANK_RIVAL, SIZE_RIVAL, Toggles, by_arm, by_device, method_settings
from figures.records.sizes import FULL_SIZE_PARAMETERS
from figures.records.time_values import Time, TimeCell, time_cell, time_columns, time_ratio, time_unit
from figures.text import NOT_RECORDED, Column, bounds, ratio_text, significant, unpaired, with_bounds

EXPERIMENTS = ("ratios", "ratios_memory")

#: Arm, batch size, ratio; of a timed dense record the ratio that it was timed beside.
Cell = tuple[str, int, float]

_PANEL_HEIGHT, _COLUMNS, _LEGEND_COLUMNS = 2.1, 4, 4


@dataclass(frozen=True, kw_only=True)
class Fig12Page(cells.TimesAndMemory):
    experiments: ClassVar = EXPERIMENTS
    toggles: Toggles

    @property
    def cells(self) -> list[Cell]:
        return [*self.timed, *(cell for _, cell in self.predicted)]

    @property
    def arms(self) -> list[str]:
        """Those that have a ratio, in drawing order."""
        found = {arm for arm, _, _ in self.cells} - {DENSE}
        return sorted(found, key=by_arm)

    @property
    def time_batches(self) -> list[int]:
        return sorted({batch for _, batch, _ in self.timed})

    def memory_batches(self, target: str) -> list[int]:
        return sorted({batch for goal, (_, batch, _) in self.predicted if goal == target})

    def ratios(self, batch: int) -> list[float]:
        """The ratios of a batch size that any arm has a record for."""
        return sorted({ratio for arm, size, ratio in self.cells if size == batch and arm != DENSE})


#: What CoMERA is compared with beside dense, and what both share.
_RIVALS = {SIZE_RIVAL: " of the same size", RANK_RIVAL: " of the same middle ranks"}


@dataclass(frozen=True, kw_only=True)
class Fig12Row(cells.CellRow):
    """One arm at one batch size and ratio, compared with dense in the same job; dense has one row per batch size."""

    arm: str
    batch: int
    ratio: float  # 1 of dense
    flops: int | None  # per step
    parameters: int | None
    flops_over_dense: float | None = None
    size_ratio: float | None = None  # what became of the target ratio
    over_rivals: Mapping[str, Estimate | None] = field(default_factory=dict)  # CoMERA's time over a rival's, by arm
    timings: Mapping[float, TimeCell] = field(default_factory=dict)  # of dense, by the ratio that it was timed beside
    beside: float = 1.0  # the ratio of the job in which it was timed

    @property
    def remarks(self) -> str:
        """What failed of dense beside some ratios, too, while it was timed beside others."""
        failed = ((ratio, cell) for ratio, cell in self.timings.items() if self.time.time and cell.time is None)
        words = (f"{cell.status} beside ratio {ratio:g}: {cell.message}" for ratio, cell in failed)
        return "; ".join(filter(None, (super().remarks, *words)))

    @property
    def limit(self) -> RatioLimit | None:
        """The limit of the method's ratios, where the ratio lies beyond it."""
        return next(filter(None, (limit_of(cell.message) for cell in (self.time, *self.memory.values()))), None)


def _cell(record: Record) -> Cell | None:
    """None where the record is no part of a sweep over ratios."""
    if record.arm == DENSE:
        ratio = 1.0 if record.measure == "predict" else record.ratio
    else:
        settings = method_settings(record)
        ratio = record.ratio if "ratio" in settings or "ranks_of_ratio" in settings else None
    return None if ratio is None else (record.arm, record.batch_size, ratio)


_SELECT = cells.Select(
    _cell,
    memory_cell=lambda record: (DENSE, record.batch_size, 1.0) if record.arm == DENSE else _cell(record),
    same_per_arm=lambda record: {**method_settings(record), "ratio": None, "ranks_of_ratio": None},
)


def select(records: Sequence[Record]) -> list[Fig12Page]:
    """A selection per device, precision and toggles; a prediction belongs to every page of its precision."""
    pages = []
    for device, mine in by_device(records):
        timed = {record.precision for record in mine if record.measure == "run"}
        shown = [one for one in mine if one.measure == "run" or one.precision not in timed]
        found = {Toggles.of(one) for one in shown if one.measure in ("run", "predict")}
        toggles = sorted(found, key=lambda one: one.rank)
        pages += [_SELECT(one.among(mine), Fig12Page, **device, **one.page) for one in toggles]
    return [page for page in pages if page.shown]


def _known(page: Fig12Page, cell: Cell, runs: Sequence[Record]) -> dict[str, Any]:
    """FLOPs per step and parameters, from the first record that has them."""
    plans = (page.predicted.get((target, cell)) for target in TARGETS)
    known = (record for record in [*runs, *plans] if record is not None and record.flops_per_step is not None)
    record = next(known, None)
    return {"flops": getattr(record, "flops_per_step", None), "parameters": getattr(record, "parameters", None)}


def _dense_time(timings: Mapping[float, TimeCell], page: Fig12Page, batch: int) -> TimeCell:
    """The median over the jobs that timed dense."""
    good = {ratio: cell.time for ratio, cell in timings.items() if cell.time is not None}
    if not good:
        return next(iter(timings.values()), TimeCell(NOT_RECORDED if batch in page.time_batches else ""))
    total = Estimate(median(time.total.value for time in good.values()), None, None, len(good))
    marks = "".join(dict.fromkeys(mark for ratio in good for mark in timings[ratio].marks))
    return TimeCell(
        "ok", "", marks, Time(total, Estimate.exact(0.0), page.per), None, sum(timings[one].disturbed for one in good)
    )


def _asked(page: Fig12Page, batch: int) -> list[str]:
    return [target for target in TARGETS if batch in page.memory_batches(target)]


def _dense_row(page: Fig12Page, batch: int) -> Fig12Row:
    cell = (DENSE, batch, 1.0)
    runs = {ratio: run for (arm, size, ratio), run in sorted(page.timed.items()) if (arm, size) == cell[:2]}
    timings = {ratio: time_cell(run, None, page.older(run), page.per) for ratio, run in runs.items()}
    measured = next((one for one in runs if runs[one].peak_memory_allocated_mib is not None), 1.0)
    values = page.row(cell, cell, asked=_asked(page, batch))
    values["time"] = _dense_time(timings, page, batch)
    values["measured"] = page.row((DENSE, batch, measured), cell)["measured"]
    known = _known(page, cell, list(runs.values()))
    return Fig12Row(arm=DENSE, batch=batch, ratio=1.0, timings=timings, **known, **values)


def _row(page: Fig12Page, arm: str, batch: int, ratio: float, dense: Fig12Row) -> Fig12Row:
    cell = (arm, batch, ratio)
    run, rivals = page.timed.get(cell), _RIVALS if arm == COMERA else ()
    known, is_timed = _known(page, cell, [run] if run else []), batch in page.time_batches
    of_dense: dict[str, Any] = {"reference": (DENSE, batch, ratio), "memory_reference": (DENSE, batch, 1.0)}
    return Fig12Row(
        arm=arm,
        batch=batch,
        ratio=ratio,
        beside=ratio,
        flops_over_dense=quotient(known["flops"], dense.flops),
        size_ratio=quotient(dense.parameters, known["parameters"]),
        over_rivals={rival: time_ratio(run, page.timed.get((rival, batch, ratio))) for rival in rivals},
        **known,
        **page.row(cell, is_timed=is_timed, asked=_asked(page, batch), **of_dense),
    )


def rows_of(page: Fig12Page) -> list[Fig12Row]:
    """Dense, then every arm at every ratio, for each batch size that is timed or predicted."""
    rows = []
    for batch in sorted({batch for _, batch, _ in page.cells}):
        dense = _dense_row(page, batch)
        rows += [dense, *(_row(page, arm, batch, ratio, dense) for ratio in page.ratios(batch) for arm in page.arms)]
    return rows


def columns(page: Fig12Page, rows: Sequence[Fig12Row]) -> list[Column[Fig12Row]]:
    """Without times, or predictions for a target, the table for people has no column for them."""
    _, scale = time_unit(rows)
    predicted = [target for target in TARGETS if any(row.memory[target].peak is not None for row in rows)]

    def head(row: Fig12Row) -> dict[str, object]:
        toggles = page.toggles
        switches = {"precision": toggles.precision, "cuda_graph": toggles.cuda_graph, "compile": toggles.compile}
        cell = {"arm": row.arm, "batch_size": row.batch, "ratio": row.ratio, "beside": row.beside}
        return {"device": page.device, **switches, **cell, "size_ratio": row.size_ratio, "parameters": row.parameters}

    def time(row: Fig12Row) -> str:
        totals = [cell.time.total.value * scale for cell in row.timings.values() if cell.time is not None]
        span = f" ({significant(min(totals))} to {significant(max(totals))})" if len(totals) > 1 else ""
        return f"{row.time.text(scale)}{span} {row.time.marks}".strip()

    def work(row: Fig12Row) -> dict[str, object]:
        flops = {"flops_per_step": row.flops, "flops_over_dense": row.flops_over_dense}
        rivals = {SIZE_RIVAL: "time_over_low_rank", RANK_RIVAL: "time_over_low_rank_of_equal_rank"}
        over = [bounds(name, row.over_rivals.get(rival)) for rival, name in rivals.items()]
        return {**over[0], **over[1], **flops, "reach": str(row.limit or "")}

    times = time_columns(rows, page.per, DENSE, text=time)
    return [
        Column("batch", lambda row: row.batch),
        Column("ratio", lambda row: f"{row.ratio:g}"),
        Column("arm", lambda row: row.arm, head, left=True),
        Column("reached", lambda row: f"{row.size_ratio:.4g}" if row.size_ratio else None),
        *(times if page.timed else [replace(column, text=None) for column in times]),
        Column(tidy=work),
        *(column for target in TARGETS for column in cells.memory_columns(target, DENSE, target in predicted)),
        *cells.last_columns(
            page,
            Column("GFLOP per step", lambda row: significant(row.flops / 1e9, 4) if row.flops else None),
            Column("GFLOP / dense", lambda row: ratio_text(row.flops_over_dense, row.is_reference and row.flops)),
        ),
    ]


def tidy_rows(_: Fig12Page, rows: Sequence[Fig12Row]) -> list[Fig12Row]:
    """The rows of the table, but dense once per job."""
    jobs = ([replace(row, time=time, beside=beside) for beside, time in row.timings.items()] for row in rows)
    return [one for row, of_row in zip(rows, jobs, strict=True) for one in of_row or [row]]


@dataclass(frozen=True)
class Quantity:
    """A number of a row, drawn against the ratio, and its quotients to the same of another row."""

    name: str  # in a sentence
    title: str  # of a panel
    axis: str
    batches: Sequence[int]  # that there is a panel for
    value: Callable[
        [Fig12Row], Estimate | None
    ]  # on the axis; dense's bounds are the lowest and the highest of its jobs
    over: Callable[[Fig12Row, Fig12Row], Estimate | None]
    words: Callable[[Fig12Row], str]  # of dense
    cell: Callable[[Fig12Row], Missing]  # what says why there is no value
    measured: bool = False  # whether the allocator's peaks are of the same quantity


def _time_quantity(page: Fig12Page, rows: Sequence[Fig12Row]) -> Quantity:
    """Times as quotients to dense's in the same job."""
    unit, scale = time_unit(rows)

    def value(row: Fig12Row) -> Estimate | None:
        if not row.is_reference or row.time.time is None:
            return row.time.ratio
        middle = row.time.time.total.value
        jobs = [cell.time.total.value / middle for cell in row.timings.values() if cell.time is not None]
        return Estimate(1.0, min(jobs), max(jobs), len(jobs), kind="range")

    def words(dense: Fig12Row) -> str:
        return f"{significant(dense.time.time.total.value * scale)} {unit}" if dense.time.time else ""

    return Quantity(
        f"Time per {page.per}",
        "time",
        f"time per {page.per} / dense",
        page.time_batches,
        value,
        lambda row, other: row.time.ratio if other.is_reference else row.over_rivals.get(other.arm),
        words,
        lambda row: row.time,
    )


def _counted(of: Callable[[Fig12Row], float | None], unit: str, scale: float, **about: Any) -> Quantity:
    """A number that is known exactly; ``scale`` is how much the axis's unit is."""

    def exact(number: float | None) -> Estimate | None:
        return Estimate.exact(number) if number else None

    return Quantity(
        value=lambda row: exact((of(row) or 0.0) / scale),
        over=lambda row, other: exact(quotient(of(row), of(other))),
        words=lambda dense: f"{significant((of(dense) or 0.0) / scale, 4)} {unit}",
        **about,
    )


def _quantities(page: Fig12Page, rows: Sequence[Fig12Row]) -> list[Quantity]:
    """Time, work, then memory, for this kind of device first."""

    def failed(row: Fig12Row) -> Missing:
        return next((cell for cell in (row.time, *row.memory.values()) if cell.failed), row.time)

    def peak(target: str) -> Quantity:
        name = {"cuda": "CUDA", "cpu": "a CPU"}[target]
        return _counted(
            lambda row: row.memory[target].peak,
            "MiB",
            1.0,
            name=f"Peak memory for {name}",
            title="memory",
            axis=f"peak predicted for {name}, MiB",
            batches=page.memory_batches(target),
            cell=lambda row: row.memory[target],
            measured=target == page.kind == "cuda",
        )

    work = _counted(
        lambda row: row.flops,
        "GFLOP",
        1e9,
        name="FLOPs per step",
        title="FLOPs",
        axis="GFLOP per step",
        batches=page.time_batches or sorted({batch for _, batch, _ in page.cells}),
        cell=failed,
    )
    targets = sorted(TARGETS, key=lambda target: target != page.kind)
    predicted = [target for target in targets if any(row.memory[target].peak for row in rows)]
    return [_time_quantity(page, rows), work, *map(peak, predicted)]


def _of_arm(rows: Sequence[Fig12Row], arm: str, batch: int) -> list[Fig12Row]:
    return sorted((row for row in rows if (row.arm, row.batch) == (arm, batch)), key=lambda row: row.ratio)


def _over(rows: Sequence[Fig12Row], quantity: Quantity, arm: str, other: str, batch: int) -> Quotients:
    """By ratio the quotients of an arm to another one of the same ratio, or to dense."""
    others = {row.ratio: row for row in _of_arm(rows, other, batch)}
    pairs = [(row, others.get(1.0 if other == DENSE else row.ratio)) for row in _of_arm(rows, arm, batch)]
    return {row.ratio: one for row, rival in pairs if rival and (one := quantity.over(row, rival)) is not None}


def _compared(rows: Sequence[Fig12Row], quantity: Quantity, arm: str, other: str) -> list[str]:
    """A sentence on how the curve of an arm stands to another one, if both are there; batch sizes alike together."""
    how, size = (standing, "") if other == DENSE else (sides, _RIVALS[other])
    batches: dict[str, list[str]] = {}
    for batch in quantity.batches:
        if curve := _over(rows, quantity, arm, other, batch):
            batches.setdefault(how(curve), []).append(str(batch))
    words = "; ".join(f"{sentence} [batch {', '.join(found)}]" for sentence, found in batches.items())
    return [f"{quantity.name}, {arm} against {other}{size}: {words}."] if words else []


def caption(page: Fig12Page, rows: Sequence[Fig12Row]) -> Caption:
    quantities = _quantities(page, rows)
    count = next((row.parameters for row in rows if row.is_reference and row.parameters), None)
    size = "of the paper's size" if count == FULL_SIZE_PARAMETERS else "not the paper's size"
    title = f"time, memory and FLOPs by whole-model compression, {notes.model_words(page)}"
    together = "Times are compared with dense block by block within the job that timed both; every job timed dense."
    return Caption(
        title=f"Fig. 12: {title}" if page.is_papers else notes.first_upper(title),
        facts=[
            notes.step_fact(page),
            notes.data_fact(page) if page.timed else "Nothing timed.",
            *([f"Dense model: {count:,} parameters, {size}."] if count else []),
        ],
        notes=[
            "Ratio: parameters of the dense model over those of the arm, as asked for; the table has what was reached.",
            *([together] if page.timed else []),
            "All axes are logarithmic; crossovers are interpolated on them between the two nearest ratios.",
            *(line for one in quantities for arm in page.arms for line in _compared(rows, one, arm, DENSE)),
            *(line for rival in _RIVALS for one in quantities for line in _compared(rows, one, COMERA, rival)),
            *notes.cell_notes(page, rows),
            *notes.last_notes(page),
        ],
        remarks=notes.gathered(
            (
                row.arm,
                {"ratio": f"{row.ratio:g}", "batch": str(row.batch)},
                f"out of reach, {row.limit}" if row.limit and row.remarks else row.remarks,
            )
            for row in rows
        ),
    )


def _panel(
    page: Fig12Page, rows: Sequence[Fig12Row], quantity: Quantity, batch: int, footnotes: Footnotes
) -> RatioPanel:
    [dense] = _of_arm(rows, DENSE, batch)

    def why(row: Fig12Row) -> RatioLimit | int:
        cell = quantity.cell(row)
        lonely = "timed without dense to compare with" if cell.status == "ok" else cell.in_full
        return row.limit or footnotes.number(lonely)

    def curve(arm: str) -> Curve:
        of_arm = _of_arm(rows, arm, batch)
        values = {row.ratio: value for row in of_arm if (value := quantity.value(row)) is not None}
        missing = {row.ratio: why(row) for row in of_arm if row.ratio not in values}
        measured = {row.ratio: size for row in of_arm if (size := row.measured["allocated"]) is not None}
        over_dense = _over(rows, quantity, arm, DENSE, batch)
        return Curve(arm, values, over_dense, missing, measured if quantity.measured else {})

    return RatioPanel(
        title=f"{quantity.title}, batch {batch}",
        axis=quantity.axis,
        curves=tuple(map(curve, page.arms)),
        dense=quantity.value(dense),
        dense_words=quantity.words(dense),
        dense_allocated=dense.measured["allocated"] if quantity.measured else None,
    )


def _lines(panels: Sequence[Sequence[RatioPanel]]) -> list[list[RatioPanel]]:
    """The panels of each quantity as rows of the page; quantities share a row where all of their panels fit."""
    lines: list[list[RatioPanel]] = []
    for of_quantity in panels:
        if lines and len(lines[-1]) + len(of_quantity) <= _COLUMNS:
            lines[-1] += of_quantity
        else:
            lines += [list(of_quantity[start : start + _COLUMNS]) for start in range(0, len(of_quantity), _COLUMNS)]
    return lines


def draw(page: Fig12Page, rows: Sequence[Fig12Row], caption: Caption) -> Figure:
    footnotes = Footnotes()
    quantities = _quantities(page, rows)
    lines = _lines([[_panel(page, rows, one, batch, footnotes) for batch in one.batches] for one in quantities])
    panels = [panel for line in lines for panel in line]
    titles = [[panel.title for panel in line] for line in lines]
    foot = (*footnotes.lines(), *caption.notes)
    handles = legend(panels, page.arms)
    paper, axes = panel_page(caption.title, caption.facts, titles, foot, _PANEL_HEIGHT, handles, _LEGEND_COLUMNS)
    ratios = sorted({ratio for arm, _, ratio in page.cells if arm != DENSE})
    for one, panel in zip((one for line in axes for one in line), panels, strict=True):
        draw_panel(one, panel, page.arms, ratios)
    return paper.finish()


#: Fewer ratios say nothing about a curve; the smallest one must come this near to 1.
_FEWEST, _NEAR = 4, 2.0

#: How much faster than dense still counts as no faster, near the limit.
MARGIN = 0.1


def _speed_ups(page: Fig12Page, batch: int, rivals: Sequence[str]) -> Quotients:
    """By ratio, the time of the rival that takes least over CoMERA's; beside dense only of CoMERA's size."""
    found = {}
    for ratio in page.ratios(batch):
        ours = page.timed.get((COMERA, batch, ratio))
        fitting = [arm for arm in rivals if arm == DENSE or _same_size(page, arm, batch, ratio)]
        over = [one for arm in fitting if (one := time_ratio(page.timed.get((arm, batch, ratio)), ours)) is not None]
        if over:
            found[ratio] = min(over, key=lambda one: one.value)
    return found


def _same_size(page: Fig12Page, arm: str, batch: int, ratio: float) -> bool:
    return page.same_size((arm, batch, ratio), (COMERA, batch, ratio))


def _finding(page: Fig12Page, batch: int, curve: Quotients, rivals: Sequence[str]) -> Finding:
    graph = "on" if page.toggles.cuda_graph else "off"
    where = "on a CPU" if page.kind == "cpu" else f"on CUDA, CUDA Graph {graph}"
    numbers = (
        f"{with_bounds(one, unit='x')} at ratio {ratio:g}{', unpaired' * unpaired(one)}"
        for ratio, one in sorted(curve.items())
    )
    return Finding(f"{' or '.join(rivals)} / comera, time, batch {batch}, {where}", ", ".join(numbers))


def _surely_above(one: Estimate, other: Estimate) -> bool:
    assert one.low is not None
    assert other.high is not None
    return one.low > other.high


def _grows_and_vanishes(curve: Quotients) -> tuple[bool, bool, str]:
    """Whether the speed-up grows and whether it vanishes, with words for what it does instead."""
    ratios = sorted(curve)
    first, last = curve[ratios[0]], curve[ratios[-1]]
    falls = [(left, right) for left, right in combinations(ratios, 2) if _surely_above(curve[left], curve[right])]
    grows = _surely_above(last, first) and not falls
    assert first.low is not None
    vanishes = first.low <= 1 + MARGIN
    words = []
    if falls:
        left, right = falls[0]
        words.append(f"surely lower at ratio {right:g} than at {left:g}")
    elif not grows:
        words.append(f"not surely higher at ratio {ratios[-1]:g} than at {ratios[0]:g}")
    if not vanishes:
        words.append(f"still {first.value:.3g}x at ratio {ratios[0]:g}")
    elif first.low > 1:
        words.append(f"within the margin of {MARGIN:.0%} at ratio {ratios[0]:g}, {first.value:.3g}x")
    elif first.high is not None and first.high < 1:
        words.append(f"slower than dense at ratio {ratios[0]:g}, {first.value:.3g}x")
    return grows, vanishes, " and ".join(words)


def _usable(curve: Quotients) -> bool:
    wide = {ratio: one for ratio, one in curve.items() if one.low is not None and one.high is not None}
    return len(wide) == len(curve) >= _FEWEST and min(curve) <= _NEAR


def _judge(page: Fig12Page, rivals: Sequence[str]) -> Judgement:
    """Whether the speed-up over the fastest of these rivals grows with the ratio and vanishes toward 1."""
    curves = {batch: curve for batch in page.time_batches if (curve := _speed_ups(page, batch, rivals))}
    found = [_finding(page, batch, curve, rivals) for batch, curve in curves.items()]
    usable = {batch: _grows_and_vanishes(curve) for batch, curve in curves.items() if _usable(curve)}
    too_few = f"It takes {_FEWEST} ratios with bounds at one batch size, the smallest at most {_NEAR:g}."
    reasons = (
        ON_CPU if page.kind == "cpu" and page.timed else "",
        "" if curves else "No pair of finished cells to compare.",
        not_fp32(page),
        not_full_size(page),
        "" if usable else too_few,
    )
    if untested := undecided(reasons, found):
        return untested
    grows = [batch for batch, (grown, _, _) in usable.items() if grown]
    vanishes = [batch for batch, (_, vanished, _) in usable.items() if vanished]
    why = f"It grows at {len(grows)} of {len(usable)} batch sizes and vanishes at {len(vanishes)}"
    why += "".join(f"; batch {batch}: {words}" for batch, (_, _, words) in usable.items() if words)
    if missing := [batch for batch in page.time_batches if batch not in usable]:
        why += f"; too few ratios at batch {', '.join(map(str, missing))}"
    whole = len(grows) == len(vanishes) == len(page.time_batches)
    return Judgement("reproduced" if whole else "partly" if grows else "not reproduced", f"{why}.", found)


def _judge_fairly(page: Fig12Page) -> Judgement:
    sized = {
        arm for arm, batch, ratio in page.timed if arm not in (COMERA, DENSE) and _same_size(page, arm, batch, ratio)
    }
    if not sized:
        return Judgement("not tested here", "low_rank of equal size is not recorded.")
    return _judge(page, (DENSE, *sorted(sized)))


ARTIFACT = Artifact(
    name="fig12",
    heading="Fig. 12: compression of the whole model",
    summary="time per epoch, peak memory and FLOPs against the compression of the whole model, beside dense; "
    "an image per device, precision and toggles",
    experiments=EXPERIMENTS,
    made_by="make sweep-ratios",
    order=60,
    select=select,
    rows=rows_of,
    columns=columns,
    tidy_rows=tidy_rows,
    caption=caption,
    draw=draw,
    rules=(
        Rule(
            "ratio-monotone",
            "epoch time of dense / comera, by ratio: surely higher at the largest than at the smallest, nowhere surely "
            "falling, and at the smallest not surely > 1 + tolerance",
            device="cuda",
            tolerance=MARGIN,
            unit="x",
            judge=lambda _, page, __: _judge(page, (DENSE,)),
            fair=lambda _, page, __: _judge_fairly(page),
            fair_quantity="the same of the faster of dense and low_rank of the same ratio / comera",
        ),
    ),
    section="batch",
)
