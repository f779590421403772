"""The encoder's matrices: the paper's tensorization of each beside the solver's for the same ratio, and the dense one.

A table that touches no claim; one per device.
"""

import itertools
import math
import operator
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from bench.core.record import Record, RecordError
from bench.core.samples import disturbed_blocks
from figures import frame
from figures.arms import COMERA
from figures.artifact import Artifact
from figures.columns import readable
from figures.frame import Records, settings_of
from figures.stats.cells import TimesAndMemory, choose
from figures.stats.time_values import ratio_columns
from figures.text import OLDER, REMARKS

#: The columns of a cell, and the lines of a matrix.
_SLOT = ["matrix", "setting"]
SETTINGS = DENSE, PAPER, SOLVER = ("dense", "paper", "solver")

#: How a record names rows and columns of a matrix, their modes, and the settings for the number of modes and the ranks.
_SIZES = {"linear": ("in_features", "out_features"), "lookup": ("rows", "columns")}
_MODES = {"linear": ("in_modes", "out_modes"), "lookup": ("row_modes", "column_modes")}
_CAPS = {"linear": ("order", "ranks"), "lookup": ("table_order", "table_ranks")}


@dataclass(frozen=True)
class Cores:
    """Modes and ranks of a tensorized matrix.

    Example:
        >>> Cores((12, 8, 8), (8, 8, 12), (12, 30, 30, 30, 12)).parameters
        20448
        >>> Cores((16, 20, 10, 10), (4, 4, 8, 6), (32, 32, 32), is_table=True).parameters
        167808
    """

    row_modes: tuple[int, ...]  # in-features of a layer, or rows of a table
    column_modes: tuple[int, ...]
    ranks: tuple[int, ...]  # of the inner bonds
    is_table: bool = False  # whether a core holds a row and a column mode (TTM), or one of either (TT)

    @property
    def parameters(self) -> int:
        """Entries of all cores; raises ValueError where modes and ranks do not fit one another."""
        modes = (*self.row_modes, *self.column_modes)
        if self.is_table:
            modes = tuple(r * c for r, c in zip(self.row_modes, self.column_modes, strict=True))
        bonds = itertools.pairwise((1, *self.ranks, 1))
        return sum(mode * left * right for mode, (left, right) in zip(modes, bonds, strict=True))


@dataclass(frozen=True)
class Matrix:
    """One of the encoder's matrices with its published setting; a linear layer has a bias, a table has none."""

    name: str
    rows: int
    columns: int
    published_parameters: int
    published: Cores

    @property
    def workload(self) -> str:
        return "lookup" if self.published.is_table else "linear"

    @property
    def size(self) -> int:
        return self.rows * self.columns

    @property
    def bias(self) -> int:
        return self.columns if self.workload == "linear" else 0

    def ratio(self, cores: Cores) -> float:
        """How many times smaller the layer is than the dense one, rank-control entries and bias counted."""
        return (self.size + self.bias) / (cores.parameters + sum(cores.ranks) + self.bias)


#: METHOD.md, Settings of the six-encoder model: as the released code has them.
MATRICES = (
    Matrix("attention", 768, 768, 20_448, Cores((12, 8, 8), (8, 8, 12), (12, 30, 30, 30, 12))),
    Matrix("feed-forward 1", 768, 3072, 28_960, Cores((12, 8, 8), (12, 16, 16), (12, 30, 30, 30, 16))),
    Matrix("feed-forward 2", 3072, 768, 28_960, Cores((16, 16, 12), (8, 8, 12), (16, 30, 30, 30, 12))),
    Matrix("word embedding", 30_522, 768, 167_808, Cores((16, 20, 10, 10), (4, 4, 8, 6), (32,) * 3, True)),
)

#: Said of a solver's line that arrives at what was published.
_REPEATS = "the paper's own modes and ranks"


def cores_of(record: Record) -> Cores | None:
    """Return modes and ranks of the record's one tensorized layer, None where it holds none.

    Raises RecordError for other layers.
    """
    layers = record.samples.get("tensorized")
    if layers is None:
        return None
    names = (*_MODES[record.workload], "ranks")
    try:
        [layer] = layers
        rows, columns, ranks = (tuple(map(operator.index, layer[name])) for name in names)
        cores = Cores(rows, columns, ranks, is_table=record.workload == "lookup")
        _ = cores.parameters
    except (KeyError, TypeError, ValueError):
        raise RecordError(
            f"record {record.cell_id}: samples.tensorized is {layers!r}; expected {', '.join(names)} of one layer, "
            "which fit one another."
        ) from None
    return cores


def _slot(record: Record) -> tuple[str | None, str | None]:
    """Return the matrix and setting of a record; None for other matrices, methods, modes, ranks and ratios."""
    sizes = settings_of(record, "workload_settings")
    settings = settings_of(record, "method_settings")
    here = (record.workload, *(sizes.get(name) for name in _SIZES.get(record.workload, ())))
    matrix = next((one for one in MATRICES if (one.workload, one.rows, one.columns) == here), None)
    if matrix is None:
        return None, None
    if record.arm == DENSE:
        return matrix.name, DENSE
    order, ranks = (settings.get(name) for name in _CAPS[matrix.workload])
    is_ours = record.arm == COMERA and settings.get("lookup") == "optimized"
    if not is_ours or order != len(matrix.published.row_modes):
        return None, None
    if record.ratio is None:
        return (matrix.name, PAPER) if ranks == max(matrix.published.ranks) else (None, None)
    # the experiment writes the published settings' ratios down in five or six digits
    wanted = math.isclose(record.ratio, matrix.ratio(matrix.published), rel_tol=1e-4)
    return (matrix.name, SOLVER) if wanted else (None, None)


def select(records: Records) -> list[TimesAndMemory]:
    """Return a page per device, of the newest record of each line; all of a matrix are on the same data."""
    pages = []
    for device, df in frame.by_device(records):
        slots = pd.DataFrame(map(_slot, df["record"]), df.index, _SLOT, dtype=object)
        step = frame.column(df, "workload.optimizer_step", True).astype(bool)
        df = df.join(slots).assign(optimizer_step=step)
        same = ["batch_size", "precision", "cuda_graph", "compile", "optimizer_step"]
        about: dict[str, Any] = {"same": same, "each": ["dataset"], "arm": "matrix", **device}
        page = choose(df, TimesAndMemory, _SLOT, **about)
        pages.append(replace(page, df=frame.oldest_first(page.runs)))
    return pages


def _sizes(matrix: Matrix, setting: str, record: Record | None, status: str) -> dict[str, Any]:
    """Return sizes of a line, and remarks on what went wrong or what the numbers alone do not show."""
    cores = cores_of(record) if record and setting != DENSE else None
    parameters = cores.parameters if cores else matrix.size if setting == DENSE else None
    remarks = []
    if record:
        remarks = [": ".join(filter(None, ("" if status == "ok" else status, record.message)))]
        entries = (parameters or 0) + (sum(cores.ranks) if cores else 0) + matrix.bias
        if parameters is None and record.status == "ok":
            remarks.append("modes and ranks are not in the record")
        elif parameters is not None and record.parameters not in (None, entries):
            counted = f"the record counts {record.parameters:,} parameters with bias"
            source = "modes and ranks" if cores else "its size"
            remarks.append(f"{counted}; {entries:,} follow from {source}")
        if setting == PAPER and cores not in (None, matrix.published):
            remarks.append("not the published modes and ranks")
        if setting == SOLVER and cores == matrix.published:
            remarks.append(_REPEATS)
        if disturbed := disturbed_blocks(record):
            remarks.append(f"{disturbed} disturbed block(s) left out")
    modes = {name: getattr(cores, name, ()) for name in ("row_modes", "column_modes", "ranks")}
    return {
        REMARKS: "; ".join(filter(None, remarks)),
        **{name: " ".join(map(str, found)) for name, found in modes.items()},
        "parameters": parameters,
        "published_parameters": matrix.published_parameters if setting == PAPER else None,
        "rank_entries": sum(cores.ranks) if cores else None,
        "bias": matrix.bias,
        "ratio": matrix.ratio(cores) if cores else 1.0 if setting == DENSE else None,
    }


def table(page: TimesAndMemory) -> pd.DataFrame:
    """Return a line per matrix and setting, recorded or not; parameters are those of the weight or of its cores."""
    sizes_of = [(one.name, one.rows, one.columns) for one in MATRICES]
    matrices = pd.DataFrame(sizes_of, columns=["matrix", "rows", "columns"])
    grid = matrices.merge(pd.Series(SETTINGS, name="setting"), "cross").assign(device=page.device)
    counts = {"parameters": "recorded_parameters", "batch_size": "batch_size"}
    counts["flops_per_step"] = "flops_per_step"
    predicted = {"predicted_for": "predicted_for", "peak_memory_predicted_mib": "predicted_peak_mib"}
    found = page.timed(grid, "record", "ratio", *counts, *predicted)
    is_solver, paper = grid["setting"] == SOLVER, page.record_of(grid, setting=PAPER)
    times = page.times(grid, DENSE, {"setting": DENSE}, rare=False)
    slots = itertools.product(MATRICES, SETTINGS)
    lines = zip(slots, frame.known(found["record"]), times["time_status"], strict=True)
    sizes = pd.DataFrame([_sizes(*slot, record, status) for slot, record, status in lines])
    over_paper = ratio_columns("time_over_paper", found["record"].where(is_solver), paper)
    parts = [
        grid[["device", "matrix", "rows", "columns", "setting"]],
        times["time_status"].rename("status"),
        sizes.drop(columns="ratio"),
        found["ratio"].where(is_solver).rename("wanted_ratio"),
        sizes["ratio"],
        found[[*counts]].rename(columns=counts),
        times.filter(like="step_time_ms"),
        times[["launches", "blocks", "disturbed_blocks"]],
        times.filter(like="time_over_dense"),
        times["time_pairing"].rename("dense_pairing"),
        over_paper.rename(columns={"pairing": "paper_pairing"}),
        found[[*predicted]].rename(columns=predicted),
        page.measured(grid),
    ]
    whole = ["parameters", "published_parameters", "rank_entries", *counts.values()]
    whole += ["launches", "blocks", "disturbed_blocks"]
    return pd.concat(parts, axis=1).astype(dict.fromkeys(whole, "Int64"))


def shown(page: TimesAndMemory, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table without counts that follow from others; on a GPU with the allocator's peaks."""
    columns = [*_SLOT, "modes", "ranks", "parameters", "ratio", "gflops_per_step"]
    columns += ["predicted_peak_mib"]
    columns += ["allocated_mib", "reserved_mib"] if page.kind == "cuda" else []
    columns += ["step_time_ms", "time_over_dense", "time_over_paper"]
    between = table["matrix"].map(lambda name: " x " if name == "word embedding" else " → ")
    rows, columns_of = (table[f"{one}_modes"].str.replace(" ", "·") for one in ("row", "column"))
    modes = rows + between + columns_of
    size = table["rows"].astype(str) + between + table["columns"].astype(str)
    lines = table.drop(columns="older_code").assign(
        arm=table["setting"],
        setting=table["setting"] + table["older_code"].map({True: f" {OLDER}", False: ""}),
        modes=modes.mask(table["row_modes"] == "", "").mask(table["setting"] == DENSE, size),
        gflops_per_step=table["flops_per_step"].astype("Float64") / 1e9,
        time_status=table["status"],
    )
    return readable(lines, columns)


def about(page: TimesAndMemory, table: pd.DataFrame) -> dict[str, Any]:
    """Return what a step is, which lines repeat the paper's, and remarks on the others."""
    repeats = table[REMARKS].str.contains(_REPEATS, regex=False)
    return {
        "table": table.assign(arm=table["matrix"] + ", " + table["setting"]),
        "repeating": table.loc[repeats, "matrix"].tolist(),
        "remarks": table[(table[REMARKS] != "") & (table[REMARKS] != _REPEATS)].to_dict("records"),
        "with_optimizer": bool(page.df["optimizer_step"].head(1).all()),
        "settings": SETTINGS,
    }


ARTIFACT = Artifact(
    name="table_tensorization",
    summary="modes, ranks, sizes, FLOPs and time of the encoder's matrices: dense, in the paper's tensorization, in "
    "the solver's; a table per device",
    experiments=("tensorization",),
    measure="run",
    made_by="make reproduce-table-tensorization",
    order=160,
    select=select,
    table=table,
    shown=shown,
    about=about,
    section="matrix",
    keys=("matrix", "setting"),
    breaks=("GFLOP", "step, ms"),
)
