"""Where the time of a step goes, by kind of work, CoMERA beside dense training; a table per device."""

from dataclasses import dataclass

import pandas as pd

from bench.core.record import Record
from figures import frame
from figures.arms import by_arm
from figures.artifact import Artifact
from figures.columns import table_of
from figures.draw.captions import beside
from figures.frame import Records
from figures.text import NOT_ASKED, OLDER, one_line, significant

#: What is equal for two profiles side by side, apart from arm, batch size and precision; and the columns of a cell.
SAME = ("workload", "sequence_length", "cuda_graph", "compile", "workload.*")
CELL = ("precision", "batch_size", "arm")


@dataclass(frozen=True, kw_only=True, eq=False)
class ProfilePage(frame.Page):
    """The newest profiles of one model on one device."""

    on_cuda: bool


def select(records: Records) -> list[ProfilePage]:
    """Return a page per device that has a profile: of each cell the newest, all of the model of the newest one."""
    pages = []
    for device, df in frame.by_device(records):
        df = frame.oldest_first(df)
        failed, good = df.loc[df["status"] != "ok", "record"], df[df["status"] == "ok"]
        if good.empty:
            continue
        notes = []
        for one in failed:
            cell = f"{one.arm}, batch {one.batch_size:,}, {one.precision}"
            notes.append(f"No profile of {cell}: {one.status}, {one_line(one.message)}.")
        models = frame.settings(good, SAME)
        alike = good[models == models.iloc[-1]]
        if len(alike) < len(good):
            notes.append(f"{len(good) - len(alike)} profile(s) of another model, length or toggles are left out.")
        shown = frame.oldest_first(frame.newest(alike, CELL))
        on_cuda = df["cell.device"].str.startswith("cuda").any()
        pages.append(ProfilePage(**device, df=shown, left_out=tuple(notes), on_cuda=bool(on_cuda)))
    return pages


def _place(record: Record) -> tuple[object, ...]:
    """Order FP32 before other precisions, then by batch size, and arms as Fig. 1 has them."""
    return record.precision != "fp32", record.precision, record.batch_size, by_arm(record.arm)


def table(page: ProfilePage) -> pd.DataFrame:
    """Return a line per kind of work of each arm, then one per costly kernel or operator, which has a ``name``."""
    lines = []
    for record in sorted(page.shown, key=_place):
        for part in (*record.samples["kinds"], *record.samples["costliest"]):
            lines.append(
                {
                    "device": record.device,
                    "batch_size": record.batch_size,
                    "precision": record.precision,
                    "arm": record.arm,
                    "kind": part["kind"],
                    "name": part.get("name", ""),
                    "ms": part["ms"],
                    "launches": part["launches"],
                    "moved_mib": part.get("moved_mib"),
                    "busy_ms": record.samples["busy_ms"],
                    "step_ms": record.step_time_median_ms,
                    "cell_id": record.cell_id,
                }
            )
    return table_of(lines)


def shown(page: ProfilePage, table: pd.DataFrame) -> pd.DataFrame:
    """Return a line per kind of work, the costliest first, with the ms of each arm; then what the whole step takes."""
    lines = []
    kinds = table[table["name"] == ""]
    for (batch, precision), part in kinds.groupby(["batch_size", "precision"], sort=False):
        order = part.groupby("kind")["ms"].sum().reset_index().sort_values(["ms", "kind"], ascending=[False, True])
        by_kind: dict[str, dict[str, str]] = {kind: {} for kind in order["kind"]}
        whole = ("all kinds", *(("waiting for launches",) if page.on_cuda else ()), "step without profiler")
        counted = "launches" if page.on_cuda else "calls of operators"
        rows = {**by_kind, **{name: {} for name in (*whole, counted, "MiB moved")}}
        for arm, own in part.groupby("arm", sort=False):
            busy, step = own["busy_ms"].iloc[0], own["step_ms"].iloc[0]
            for kind, ms in zip(own["kind"], own["ms"], strict=True):
                rows[kind][str(arm)] = f"{significant(ms)} ({ms / busy:.0%})" if busy else significant(ms)
            rows["all kinds"][str(arm)] = significant(own["ms"].sum())
            if page.on_cuda:
                rows["waiting for launches"][str(arm)] = significant(max(0.0, step - busy))
            older = f" {OLDER}" if own["cell_id"].iloc[0] in page.older_code else ""
            rows["step without profiler"][str(arm)] = significant(step) + older
            rows[counted][str(arm)] = f"{own['launches'].sum():,.0f}"
            rows["MiB moved"][str(arm)] = significant(own["moved_mib"].sum())
        named = {"step": f"batch {batch:,}, {precision}"}
        lines += [{**named, "kind": kind, **cells} for kind, cells in rows.items()]
    return pd.DataFrame(lines).fillna(NOT_ASKED)


ARTIFACT = Artifact(
    name="table_profile",
    heading="Where the time goes",
    summary="time of a step by kind of work, with launches and bytes, CoMERA beside dense; a table per device",
    experiments=("profile",),
    measure="profile",
    order=100,
    select=select,
    table=table,
    shown=shown,
    caption=beside(__file__),
    section="step",
)
