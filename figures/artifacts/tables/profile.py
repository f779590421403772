"""Where the time of a step goes, by kind of work, CoMERA beside dense training; a table per device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bench.core.record import Record
from figures.artifact import Artifact
from figures.columns import frame
from figures.page.captions import beside
from figures.records.select import Selected, by_arm, config_of, newest, oldest_first, pages_by_device, workload_settings
from figures.text import NOT_ASKED, OLDER, one_line, significant


@dataclass(frozen=True)
class Step:
    """The profiled arms of one batch size and precision, in the order of Fig. 1."""

    batch: int
    precision: str
    profiles: Mapping[str, Record]  # by arm


@dataclass(frozen=True, kw_only=True)
class ProfilePage(Selected):
    """The newest profiles of one model on one device."""

    on_cuda: bool
    steps: tuple[Step, ...]


def _setting(record: Record) -> tuple[Any, ...]:
    """What has to be alike for two profiles to stand side by side, apart from arm, batch size and precision."""
    return record.workload, record.sequence_length, record.cuda_graph, record.compile, workload_settings(record)


def _page(of_device: Selected) -> ProfilePage | None:
    """Return the newest profile of each arm, batch size and precision, all of the model that the newest one is of."""
    good = [record for record in of_device.shown if record.status == "ok"]
    if not good:
        return None
    notes = [
        f"No profile of {one.arm}, batch {one.batch_size:,}, {one.precision}: {one.status}, {one_line(one.message)}."
        for one in of_device.shown
        if one.status != "ok"
    ]
    alike = [record for record in good if _setting(record) == _setting(good[-1])]
    if len(alike) < len(good):
        notes.append(f"{len(good) - len(alike)} profile(s) of another model, length or toggles are left out.")
    shown = newest(alike, lambda record: (record.precision, record.batch_size, record.arm))
    arms = sorted({arm for *_, arm in shown}, key=by_arm)
    steps = [
        Step(batch, precision, {arm: shown[key] for arm in arms if (key := (precision, batch, arm)) in shown})
        for precision, batch in sorted({key[:2] for key in shown}, key=lambda pair: (pair[0] != "fp32", *pair))
    ]
    on_cuda = any(str(config_of(record).get("device", "")).startswith("cuda") for record in of_device.shown)
    return ProfilePage(
        device=of_device.device,
        kind=of_device.kind,
        shown=oldest_first(shown.values()),
        left_out=tuple(notes),
        on_cuda=on_cuda,
        steps=tuple(steps),
    )


def select(records: Sequence[Record]) -> list[ProfilePage]:
    """Return a page per device that has a profile."""
    return [page for one in pages_by_device(records) if (page := _page(one))]


def table(page: ProfilePage) -> pd.DataFrame:
    """A line per kind of work of each arm, then one per costly kernel or operator, which has a ``name``."""
    lines = []
    for step in page.steps:
        for arm, record in step.profiles.items():
            for part in (*record.samples["kinds"], *record.samples["costliest"]):
                lines.append(
                    {
                        "device": record.device,
                        "batch_size": step.batch,
                        "precision": step.precision,
                        "arm": arm,
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
    return frame(lines)


def shown(page: ProfilePage, table: pd.DataFrame) -> pd.DataFrame:
    """A line per kind of work, the costliest first, with the ms of each arm; then what the whole step takes."""
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
