"""Where the time of a step goes, by kind of work, CoMERA beside dense training; a table per device."""

from typing import Any

import pandas as pd

from bench.core.record import Record
from figures import frame
from figures.arms import by_arm
from figures.artifact import Artifact
from figures.frame import Records
from figures.text import NOT_ASKED, OLDER, one_line, significant

#: What is equal for two profiles side by side, apart from arm, batch size and precision; and the columns of a cell.
SAME = ("workload", "sequence_length", "cuda_graph", "compile", "workload.*")
CELL = ("precision", "batch_size", "arm")


def select(records: Records) -> list[frame.Page]:
    """Return a page per device that has a profile: of each cell the newest, all of the model of the newest one."""
    pages = []
    for device, df in frame.by_device(records):
        df = frame.oldest_first(df)
        good = df[df["status"] == "ok"]
        models = frame.settings(good, SAME)
        alike = good[models == next(iter(models[::-1]), "")]
        notes = []
        for one in frame.each(df[df["status"] != "ok"]):
            cell = f"{one.arm}, batch {one.batch_size:,}, {one.precision}"
            notes.append(f"No profile of {cell}: {one.status}, {one_line(one.message)}.")
        if len(alike) < len(good):
            notes.append(f"{len(good) - len(alike)} profile(s) of another model, length or toggles are left out.")
        shown = frame.oldest_first(frame.newest(alike, CELL))
        pages.append(frame.Page(**device, df=shown, left_out=tuple(notes)))
    return [page for page in pages if len(page.df)]


def about(page: frame.Page, _: pd.DataFrame) -> dict[str, Any]:
    """Return whether kernels of a GPU were profiled, or operators on a CPU."""
    return {"on_cuda": _on_cuda(page)}


def _on_cuda(page: frame.Page) -> bool:
    return bool(page.df["cell.device"].str.startswith("cuda").any())


def _place(record: Record) -> tuple[object, ...]:
    """Order FP32 before other precisions, then by batch size, and arms as Fig. 1 has them."""
    return record.precision != "fp32", record.precision, record.batch_size, by_arm(record.arm)


def table(page: frame.Page) -> pd.DataFrame:
    """Return a line per kind of work of each arm, then one per costly kernel or operator, which has a ``name``."""
    lines = []
    for record in sorted(page.shown, key=_place):
        cell = {name: getattr(record, name) for name in ("device", "batch_size", "precision", "arm")}
        whole = {"busy_ms": record.samples["busy_ms"], "step_ms": record.step_time_median_ms}
        for part in (*record.samples["kinds"], *record.samples["costliest"]):
            work = {"kind": part["kind"], "name": part.get("name", ""), "ms": part["ms"]}
            work |= {"launches": part["launches"], "moved_mib": part.get("moved_mib")}
            lines.append({**cell, **work, **whole, "cell_id": record.cell_id})
    return pd.DataFrame(lines)


def shown(page: frame.Page, table: pd.DataFrame) -> pd.DataFrame:
    """Return a line per kind of work, the costliest first, with the ms of each arm; then what the whole step takes."""
    on_cuda = _on_cuda(page)
    found = []
    kinds = table[table["name"] == ""]
    for (batch, precision), part in kinds.groupby(["batch_size", "precision"], sort=False):
        arms = {}
        for arm, own in part.groupby("arm", sort=False):
            busy, step, cell = own[["busy_ms", "step_ms", "cell_id"]].iloc[0]
            share = "{} ({:.0%})" if busy else "{}"
            cells = {
                kind: share.format(significant(ms), ms / (busy or 1))
                for kind, ms in own.set_index("kind")["ms"].items()
            }
            cells["all kinds"] = significant(own["ms"].sum())
            if on_cuda:
                cells["waiting for launches"] = significant(max(0.0, step - busy))
            older = f" {OLDER}" if cell in page.older_code else ""
            cells["step without profiler"] = significant(step) + older
            cells["launches" if on_cuda else "calls of operators"] = f"{own['launches'].sum():,.0f}"
            cells["MiB moved"] = significant(own["moved_mib"].sum())
            arms[str(arm)] = pd.Series(cells)
        costs = part.groupby("kind")["ms"].sum().sort_values(ascending=False, kind="stable")
        lines = pd.DataFrame(arms).reindex(list(dict.fromkeys([*costs.index, *cells])))
        lines.insert(0, "kind", lines.index)
        lines.insert(0, "step", f"batch {batch:,}, {precision}")
        found.append(lines)
    return pd.concat(found, ignore_index=True).fillna(NOT_ASKED)


ARTIFACT = Artifact(
    name="table_profile",
    summary="time of a step by kind of work, with launches and bytes, CoMERA beside dense; a table per device",
    experiments=("profile",),
    measure="profile",
    order=100,
    select=select,
    table=table,
    shown=shown,
    about=about,
    section="step",
)
