"""The encoder's matrices, a table per device: dense, in the paper's modes and ranks, and in the solver's."""

import itertools
from collections.abc import Mapping
from typing import Any

import pandas as pd

from figures import frame
from figures.arms import COMERA, DENSE
from figures.artifact import Artifact
from figures.columns import readable
from figures.frame import Records
from figures.stats.cells import TimesAndMemory, choose
from figures.text import OLDER

MATRICES = {"768 x 768": "attention", "768 x 3072": "feed-forward 1", "3072 x 768": "feed-forward 2"}
MATRICES |= {"30522 x 768": "word embedding"}
SETTINGS, _SLOT = (DENSE, "paper", "solver"), ["matrix", "setting"]
_SIDES = {"linear": ("in_features", "out_features"), "lookup": ("rows", "columns")}
_PAPERS = {"order": 3, "ranks": 30, "table_order": 4, "table_ranks": 32}


def _slot(row: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the matrix and setting of a record; None for another matrix, arm, order or rank."""
    size = " x ".join(str(row.get(f"workload.{name}")) for name in _SIDES.get(row["workload"], ()))
    setting = DENSE if row["arm"] == DENSE else "solver" if "ratio" in row else "paper"
    is_ours = row["arm"] == COMERA and all(row.get(f"method.{name}", most) == most for name, most in _PAPERS.items())
    return (MATRICES.get(size), setting) if is_ours or setting == DENSE else (None, None)


def select(records: Records) -> list[TimesAndMemory]:
    """Return a page per device, of the newest record of each line; all of a matrix are on the same data."""
    df = frame.of(records)
    rows = frame.dicts(df, "workload", "arm", "ratio", "workload.*", "method.*")
    df = df.join(pd.DataFrame(map(_slot, rows), df.index, _SLOT, dtype=object))
    same = ["batch_size", "precision", "cuda_graph", "compile", "workload.optimizer_step"]
    about: dict[str, Any] = {"same": same, "each": ["dataset"], "arm": "matrix"}
    return [choose(one, TimesAndMemory, _SLOT, **about, **device) for device, one in frame.by_device(df)]


def _shape(tensorized: Any) -> list[str]:
    """Return modes and ranks of a record's tensorized layer in words; empty where it has none."""
    [layer] = tensorized if isinstance(tensorized, list) and tensorized else [{}]
    modes = ["·".join(map(str, layer[name])) for name in layer if name.endswith("modes")]
    return [" x ".join(modes), " ".join(map(str, layer.get("ranks", ())))]


def table(page: TimesAndMemory) -> pd.DataFrame:
    """Return a line per matrix and setting, recorded or not."""
    grid = pd.DataFrame(itertools.product(MATRICES.values(), SETTINGS), columns=_SLOT).assign(device=page.device)
    found = page.timed(grid, "samples.tensorized", "parameters", "flops_per_step", "peak_memory_predicted_mib")
    times = page.times(grid, DENSE, {"setting": DENSE}, rare=False)
    whole = page.timed(grid.assign(setting=DENSE), "parameters")["parameters"]
    lost = (times["time_status"] + ": " + times["time_message"]).where(times["time_message"] != "", "")
    shapes = pd.DataFrame(map(_shape, found["samples.tensorized"]), grid.index, ["modes", "ranks"])
    own = {"ratio": whole / found["parameters"], "gflops_per_step": found["flops_per_step"] / 1e9, "remarks": lost}
    table = pd.concat([grid, shapes, found[["parameters"]].astype("Int64"), times, page.measured(grid)], axis=1)
    return table.assign(**own, predicted_peak_mib=found["peak_memory_predicted_mib"])


def shown(_: TimesAndMemory, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table without details of its times."""
    setting = table["setting"] + table["older_code"].map({True: f" {OLDER}", False: ""})
    columns = [*_SLOT, "modes", "ranks", "parameters", "ratio", "gflops_per_step", "predicted_peak_mib"]
    return readable(table.assign(setting=setting), [*columns, "step_time_ms", f"time_over_{DENSE}"])


ARTIFACT = Artifact(
    name="table_tensorization",
    summary="modes, ranks, sizes and times of the encoder's matrices: dense, the paper's and the solver's tensors",
    experiments=("tensorization",),
    measure="run",
    order=160,
    select=select,
    table=table,
    shown=shown,
    about=lambda _, table: {"table": table.assign(arm=table["matrix"] + ", " + table["setting"])},
    section="matrix",
)
