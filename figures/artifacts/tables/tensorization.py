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
from figures.columns import readable, table_of
from figures.frame import Records, settings_of
from figures.page.captions import beside
from figures.records.cells import TimesAndMemory, choose
from figures.records.time_values import time_columns, time_ratio
from figures.text import OLDER, REMARKS, bounds, pairing

#: The lines of a matrix.
SETTINGS = DENSE, PAPER, SOLVER = ("dense", "paper", "solver")

#: The experiment writes the published settings' ratios down in five or six digits.
_RATIO_DIGITS = 1e-4

#: How a record names rows and columns of a matrix, their modes, and the settings for the number of modes and the ranks.
_SIZES = {"linear": ("in_features", "out_features"), "lookup": ("rows", "columns")}
_MODES = {"linear": ("in_modes", "out_modes"), "lookup": ("row_modes", "column_modes")}
_CAPS = {"linear": ("order", "ranks"), "lookup": ("table_order", "table_ranks")}


@dataclass(frozen=True)
class Cores:
    """Modes and ranks of a tensorized matrix, and what follows from them.

    Example:
        >>> cores = Cores((12, 8, 8), (8, 8, 12), (12, 30, 30, 30, 12), is_table=False)
        >>> str(cores), cores.parameters, cores.rank_entries
        ('12·8·8 → 8·8·12', 20448, 114)
        >>> Cores((16, 20, 10, 10), (4, 4, 8, 6), (32, 32, 32), is_table=True).parameters
        167808
    """

    row_modes: tuple[int, ...]  # in-features of a layer, or rows of a table
    column_modes: tuple[int, ...]
    ranks: tuple[int, ...]  # of the inner bonds
    is_table: bool  # whether a core holds a row and a column mode (TTM), or one of either (TT)

    @property
    def parameters(self) -> int:
        """Entries of all cores; raises ValueError where modes and ranks do not fit one another."""
        modes = (*self.row_modes, *self.column_modes)
        if self.is_table:
            modes = tuple(r * c for r, c in zip(self.row_modes, self.column_modes, strict=True))
        bonds = itertools.pairwise((1, *self.ranks, 1))
        return sum(mode * left * right for mode, (left, right) in zip(modes, bonds, strict=True))

    @property
    def rank_entries(self) -> int:
        """Entries of the diagonals on the inner bonds."""
        return sum(self.ranks)

    def __str__(self) -> str:
        rows, columns = ("·".join(map(str, modes)) for modes in (self.row_modes, self.column_modes))
        return f"{rows} {'x' if self.is_table else '→'} {columns}"


@dataclass(frozen=True)
class Matrix:
    """One of the encoder's matrices with its published setting; a linear layer has a bias, a table has none."""

    name: str
    workload: str  # "linear" or "lookup"
    rows: int
    columns: int
    published: Cores
    published_parameters: int

    @property
    def size(self) -> int:
        return self.rows * self.columns

    @property
    def bias(self) -> int:
        return self.columns if self.workload == "linear" else 0

    def ratio(self, cores: Cores) -> float:
        """How many times smaller the layer is than the dense one, rank-control entries and bias counted."""
        return (self.size + self.bias) / (cores.parameters + cores.rank_entries + self.bias)


#: METHOD.md, Settings of the six-encoder model: as the released code has them.
MATRICES = (
    Matrix("attention", "linear", 768, 768, Cores((12, 8, 8), (8, 8, 12), (12, 30, 30, 30, 12), False), 20_448),
    Matrix("feed-forward 1", "linear", 768, 3072, Cores((12, 8, 8), (12, 16, 16), (12, 30, 30, 30, 16), False), 28_960),
    Matrix("feed-forward 2", "linear", 3072, 768, Cores((16, 16, 12), (8, 8, 12), (16, 30, 30, 30, 12), False), 28_960),
    Matrix("word embedding", "lookup", 30_522, 768, Cores((16, 20, 10, 10), (4, 4, 8, 6), (32,) * 3, True), 167_808),
)

#: Said of a solver's line that arrives at what was published.
_REPEATS = "the paper's own modes and ranks"


def _remarks(
    matrix: Matrix, setting: str, record: Record | None, status: str, cores: Cores | None, parameters: int | None
) -> list[str]:
    """Return what went wrong, and what the numbers alone do not show."""
    if record is None:
        return []
    status = "" if status == "ok" else status
    words = [": ".join(filter(None, (status, record.message)))]
    if parameters is None and record.status == "ok":
        words.append("modes and ranks are not in the record")
    if parameters is not None:
        entries = parameters + (cores.rank_entries if cores else 0) + matrix.bias
        if record.parameters not in (None, entries):
            counted = f"the record counts {record.parameters:,} parameters with bias"
            words.append(f"{counted}; {entries:,} follow from {'modes and ranks' if cores else 'its size'}")
    if setting == PAPER and cores not in (None, matrix.published):
        words.append("not the published modes and ranks")
    if setting == SOLVER and cores == matrix.published:
        words.append(_REPEATS)
    if disturbed := disturbed_blocks(record):
        words.append(f"{disturbed} disturbed block(s) left out")
    return list(filter(None, words))


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
        row_modes, column_modes, ranks = (tuple(operator.index(size) for size in layer[name]) for name in names)
        cores = Cores(row_modes, column_modes, ranks, is_table=record.workload == "lookup")
        _ = cores.parameters
    except (KeyError, TypeError, ValueError):
        raise RecordError(
            f"record {record.cell_id}: samples.tensorized is {layers!r}; expected {', '.join(names)} of one layer, "
            "which fit one another."
        ) from None
    return cores


def _matrix(record: Record) -> Matrix | None:
    """Return the matrix that a record is about; None for others."""
    sizes = settings_of(record, "workload_settings")
    here = (record.workload, *(sizes.get(name) for name in _SIZES.get(record.workload, ())))
    return next((one for one in MATRICES if (one.workload, one.rows, one.columns) == here), None)


def _slot(record: Record) -> tuple[Matrix, str] | None:
    """Return the matrix and setting of a record; None for other matrices, methods, modes, ranks and ratios."""
    matrix, settings = _matrix(record), settings_of(record, "method_settings")
    if matrix is None:
        return None
    if record.arm == DENSE:
        return matrix, DENSE
    order, ranks = (settings.get(name) for name in _CAPS[matrix.workload])
    if record.arm != COMERA or order != len(matrix.published.row_modes) or settings.get("lookup") != "optimized":
        return None
    if record.ratio is None:
        return (matrix, PAPER) if ranks == max(matrix.published.ranks) else None
    wanted = math.isclose(record.ratio, matrix.ratio(matrix.published), rel_tol=_RATIO_DIGITS)
    return (matrix, SOLVER) if wanted else None


def select(records: Records) -> list[TimesAndMemory]:
    """Return a page per device, of the newest record of each line; all of a matrix are on the same data."""
    pages = []
    for device, df in frame.by_device(records):
        slots = [_slot(record) for record in df["record"]]
        df = df.assign(
            slot=pd.Series(slots, index=df.index, dtype=object),
            matrix=[slot[0].name if slot else "" for slot in slots],
            optimizer_step=frame.column(df, "workload.optimizer_step", True).astype(bool),
        )
        same = ["batch_size", "precision", "cuda_graph", "compile", "optimizer_step"]
        page = choose(df, TimesAndMemory, ["slot"], same=same, each=["dataset"], arm="matrix", **device)
        pages.append(replace(page, df=frame.oldest_first(page.runs)))
    return pages


def table(page: TimesAndMemory) -> pd.DataFrame:
    """Return a line per matrix and setting, recorded or not; parameters are those of the weight or of its cores."""
    lines = []
    for matrix, setting in itertools.product(MATRICES, SETTINGS):
        record, dense, paper = (page.timed.get((matrix, one)) for one in (setting, DENSE, PAPER))
        time = time_columns(record, dense if setting != DENSE else None, "step", DENSE, rare=False)
        status, _, dense_pairing = (time.pop(f"time_{name}") for name in ("status", "message", "pairing"))
        over_paper = time_ratio(record, paper) if setting == SOLVER else None
        over_dense = {name: time.pop(name) for name in list(time) if name.startswith("time_over")}
        cores = cores_of(record) if record and setting != DENSE else None
        dense_size = (matrix.size, 1.0) if setting == DENSE else (None, None)
        parameters, ratio = (cores.parameters, matrix.ratio(cores)) if cores else dense_size
        sizes = {name: getattr(cores, name, ()) for name in ("row_modes", "column_modes", "ranks")}
        lines.append(
            {
                "device": page.device,
                "matrix": matrix.name,
                "rows": matrix.rows,
                "columns": matrix.columns,
                "setting": setting,
                "status": status,
                REMARKS: "; ".join(_remarks(matrix, setting, record, status, cores, parameters)),
                **{name: " ".join(map(str, found)) for name, found in sizes.items()},
                "parameters": parameters,
                "published_parameters": matrix.published_parameters if setting == PAPER else None,
                "rank_entries": cores.rank_entries if cores else None,
                "bias": matrix.bias,
                "wanted_ratio": record.ratio if record and setting == SOLVER else None,
                "ratio": ratio,
                "recorded_parameters": record and record.parameters,
                "batch_size": record and record.batch_size,
                "flops_per_step": record and record.flops_per_step,
                **time,
                **over_dense,
                "dense_pairing": dense_pairing,
                **bounds("time_over_paper", over_paper),
                "paper_pairing": pairing(over_paper),
                "predicted_for": (record.predicted_for if record else "") or "",
                "predicted_peak_mib": record and record.peak_memory_predicted_mib,
                "allocated_mib": record and record.peak_memory_allocated_mib,
                "reserved_mib": record and record.peak_memory_reserved_mib,
                "older_code": bool(page.older(record)),
            }
        )
    whole = ("parameters", "published_parameters", "rank_entries", "recorded_parameters", "batch_size")
    return table_of(lines, whole=(*whole, "flops_per_step", "launches", "blocks", "disturbed_blocks"))


def _modes(line: Any) -> str:
    """Write the modes of cores, or the size of a dense matrix."""
    between = "x" if line["matrix"] == "word embedding" else "→"
    if line["setting"] == DENSE:
        return f"{line['rows']} {between} {line['columns']}"
    rows, columns = (line[name].replace(" ", "·") for name in ("row_modes", "column_modes"))
    return f"{rows} {between} {columns}" if rows else ""


def shown(page: TimesAndMemory, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table without counts that follow from others; on a GPU with the allocator's peaks."""
    columns = ["matrix", "setting", "modes", "ranks", "parameters", "ratio", "gflops_per_step", "predicted_peak_mib"]
    columns += ["allocated_mib", "reserved_mib"] if page.kind == "cuda" else []
    columns += ["step_time_ms", "time_over_dense", "time_over_paper"]
    older = table["older_code"].map({True: f" {OLDER}", False: ""})
    more: dict[str, Any] = {
        "arm": table["setting"],
        "setting": table["setting"] + older,
        "modes": [_modes(line) for line in table.to_dict("records")],
        "gflops_per_step": table["flops_per_step"].astype("Float64") / 1e9,
        "time_status": table["status"],
    }
    return readable(table.drop(columns="older_code").assign(**more), columns)


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
    heading="Modes and ranks of the encoder's matrices",
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
    caption=beside(__file__),
    section="matrix",
    keys=("matrix", "setting"),
    breaks=("GFLOP", "step, ms"),
)
