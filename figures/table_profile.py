"""Where the time of a step goes, by kind of work, CoMERA beside dense training; a table per device.

``render`` is a pure function: the same records give the same bytes under the same file names.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bench.core.record import Record
from figures.claims import Claim
from figures.device_table import drawn, older_code
from figures.report import Drawn
from figures.selection import ARMS, config_of, devices, oldest_first
from figures.tables import NOT_ASKED, OLDER, significant

#: The experiment whose records the table is made of.
EXPERIMENT = "profile"
TITLE = "Where the time of a step goes, by kind of work"

_STEP, _KIND = "step", "kind"
_COSTLIEST = 3


@dataclass(frozen=True)
class Step:
    """The profiled arms of one batch size and precision, in the order of Fig. 1."""

    batch: int
    precision: str
    profiles: Mapping[str, Record]  # by arm

    @property
    def label(self) -> str:
        return f"batch {self.batch:,}, {self.precision}"

    @property
    def kinds(self) -> list[str]:
        """Every kind of work that an arm has, what takes longest over all arms first."""
        spent: dict[str, float] = {}
        for record in self.profiles.values():
            for kind in record.samples["kinds"]:
                spent[kind["kind"]] = spent.get(kind["kind"], 0.0) + kind["ms"]
        return sorted(spent, key=lambda kind: (-spent[kind], kind))


@dataclass(frozen=True)
class Profiles:
    """What is shown of one device."""

    on_cuda: bool
    steps: tuple[Step, ...]
    left_out: tuple[str, ...]

    @property
    def shown(self) -> list[Record]:
        return oldest_first(record for step in self.steps for record in step.profiles.values())


def _setting(record: Record) -> str:
    """What has to be alike for two profiles to stand side by side, apart from arm, batch size and precision."""
    sizes = config_of(record).get("workload_settings")
    return json.dumps([record.workload, record.sequence_length, record.cuda_graph, record.compile, sizes])


def select(records: Iterable[Record], device: str) -> Profiles:
    """The newest profile of each arm, batch size and precision, all of the model that the newest one is of."""
    mine = oldest_first(record for record in records if record.device == device)
    good = [record for record in mine if record.status == "ok"]
    failed = [record for record in mine if record.status != "ok"]
    notes = [
        f"No profile of {record.arm}, batch {record.batch_size:,}, {record.precision}: {record.status}, "
        f"{' '.join(record.message.split()).rstrip('.')}."
        for record in failed
    ]
    alike = [record for record in good if _setting(record) == _setting(good[-1])]
    if len(alike) < len(good):
        notes.append(f"{len(good) - len(alike)} profile(s) of another model, length or toggles are left out.")
    newest = {(record.precision, record.batch_size, record.arm): record for record in alike}
    arms = sorted({arm for *_, arm in newest}, key=lambda arm: (ARMS.index(arm) if arm in ARMS else len(ARMS), arm))
    steps = tuple(
        Step(batch, precision, {arm: newest[key] for arm in arms if (key := (precision, batch, arm)) in newest})
        for precision, batch in sorted({key[:2] for key in newest}, key=lambda pair: (pair[0] != "fp32", *pair))
    )
    on_cuda = any(str(config_of(record).get("device", "")).startswith("cuda") for record in mine)
    return Profiles(on_cuda, steps, tuple(notes))


def waiting_ms(record: Record) -> float:
    """Time per step in which a CUDA device has no kernel to run, as far as the timed steps exceed its kernels."""
    return max(0.0, (record.step_time_median_ms or 0.0) - record.samples["busy_ms"])


def _arms(profiles: Profiles) -> list[str]:
    return list(dict.fromkeys(arm for step in profiles.steps for arm in step.profiles))


def text_table(profiles: Profiles) -> pd.DataFrame:
    """The table a person reads: milliseconds with their share of the work, launches and MiB per step."""
    counted = "launches" if profiles.on_cuda else "calls"
    older, lines = older_code(profiles.shown), []
    for step in profiles.steps:
        for kind in step.kinds:
            line = {_STEP: step.label, _KIND: kind}
            for arm in _arms(profiles):
                record = step.profiles.get(arm)
                line |= _cells(arm, counted, _share(record, kind), record.samples["busy_ms"] if record else 0.0)
            lines.append(line)
        total = {_STEP: step.label, _KIND: "all kinds"}
        whole = {_STEP: step.label, _KIND: "step without profiler"}
        for arm in _arms(profiles):
            record = step.profiles.get(arm)
            total |= _cells(arm, counted, _sum(record), None)
            whole |= _cells(arm, counted, None, None)
            if record:
                mark = f" {OLDER}" if record.cell_id in older else ""
                whole[f"{arm}, ms"] = f"{significant(record.step_time_median_ms or 0.0)}{mark}"
        lines += [total, whole]
    table = pd.DataFrame(lines)
    first = [_STEP, _KIND, *(f"{arm}, ms" for arm in _arms(profiles))]
    return table[[*first, *(name for name in table.columns if name not in first)]]


def _share(record: Record | None, kind: str) -> Mapping[str, Any] | None:
    """What a record has of a kind of work."""
    return next((one for one in record.samples["kinds"] if one["kind"] == kind), None) if record else None


def _sum(record: Record | None) -> Mapping[str, Any] | None:
    if record is None:
        return None
    return {
        name: sum(one[name] for one in record.samples["kinds"]) for name in ("ms", "launches", "moved_mib")
    }  # fmt: skip


def _cells(arm: str, counted: str, share: Mapping[str, Any] | None, busy_ms: float | None) -> dict[str, str]:
    """An arm's cells of one line; dashes where it has nothing of the kind."""
    names = f"{arm}, ms", f"{arm}, {counted}", f"{arm}, MiB"
    if share is None:
        return dict.fromkeys(names, NOT_ASKED)
    percent = f" ({share['ms'] / busy_ms:.0%})" if busy_ms else ""
    values = f"{significant(share['ms'])}{percent}", f"{share['launches']:,.0f}", _mib(share["moved_mib"])
    return dict(zip(names, values, strict=True))


def _mib(size: float) -> str:
    return significant(size) if size >= 0.01 else "0"


def tidy_table(profiles: Profiles) -> pd.DataFrame:
    """The table a program reads: a row per kind of work, and one per costly kernel or operator."""
    lines = []
    for step in profiles.steps:
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
    return pd.DataFrame(lines)


def _limits(record: Record, on_cuda: bool) -> str:
    """What takes the time of an arm's step, in order; on a GPU idle time takes its place among the kinds of work."""
    parts = [(one["ms"], f"{one['kind']} {significant(one['ms'])}") for one in record.samples["kinds"]]
    if on_cuda:
        parts.append((waiting_ms(record), f"waiting for launches {significant(waiting_ms(record))}"))
    ordered = ", ".join(words for ms, words in sorted(parts, key=lambda part: -part[0]) if ms)
    return f"{record.arm}: {ordered} ms of {significant(record.step_time_median_ms or 0.0)}."


def _costliest(record: Record) -> str:
    what = "; ".join(
        f"{one['name'][:60]} {significant(one['ms'])} ms" for one in record.samples["costliest"][:_COSTLIEST]
    )
    return f"{record.arm}, costliest: {what}."


def _notes(profiles: Profiles) -> list[str]:
    what, counted = ("kernels on the device", "launches") if profiles.on_cuda else ("operators", "calls")
    notes = [
        f"ms: of {what}, under the profiler, with the share of all kinds; {counted}, MiB: per step. MiB is what "
        "PyTorch's operators are given and return, of which a cache may save some. Kinds go by the names of "
        f"{'kernels' if profiles.on_cuda else 'operators'}."
    ]
    if not profiles.on_cuda:
        notes.append(
            "On a CPU the profiler's own time counts with the operators', so that all kinds together may take longer "
            "than the step without it; other holds what calls operators, too."
        )
    for step in profiles.steps:
        notes += [f"{step.label}, {_costliest(record)}" for record in step.profiles.values()]
    return notes + list(profiles.left_out)


def _of_device(records: Sequence[Record], device: str) -> Drawn | None:
    profiles = select(records, device)
    if not profiles.steps:
        return None
    facts = [
        f"{step.label}, {_limits(record, profiles.on_cuda)}"
        for step in profiles.steps
        for record in step.profiles.values()
    ]
    return drawn(
        "table_profile", TITLE, profiles.shown, facts, (text_table(profiles), tidy_table(profiles)),
        _notes(profiles), frozenset({_STEP, _KIND}), _STEP,
    )  # fmt: skip


def render(records: Sequence[Record], claims: dict[str, Claim]) -> list[Drawn]:  # noqa: ARG001 - as every artifact
    """One table per device that has a profile; it touches no claim."""
    return [one for device in devices(records) if (one := _of_device(records, device))]
