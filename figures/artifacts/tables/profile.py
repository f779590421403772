"""Where the time of a step goes, by kind of work, CoMERA beside dense training; a table per device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.core.record import Record
from figures.artifact import Artifact
from figures.page.drawn import Caption
from figures.page.notes import closing_notes, device_fact, galore_note
from figures.records.select import Selected, by_arm, config_of, newest, oldest_first, pages_by_device, workload_settings
from figures.text import Column, one_line, significant

_COSTLIEST = 3

#: Milliseconds, launches and MiB of one kind of work, or of several.
Share = Mapping[str, Any]


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


@dataclass(frozen=True, kw_only=True)
class ProfilePage(Selected):
    on_cuda: bool
    steps: tuple[Step, ...]

    @property
    def profiles(self) -> list[tuple[Step, str, Record]]:
        return [(step, arm, record) for step in self.steps for arm, record in step.profiles.items()]

    @property
    def counted(self) -> str:
        return "launches" if self.on_cuda else "calls"


@dataclass(frozen=True)
class ProfileRow:
    """A kind of work in a step, all kinds together, or the step without the profiler."""

    step: Step
    kind: str
    shares: Mapping[str, Share]  # by arm
    is_sum: bool = False
    whole: Mapping[str, str] | None = None  # the time of the step in words, by arm


def _setting(record: Record) -> tuple[Any, ...]:
    """What has to be alike for two profiles to stand side by side, apart from arm, batch size and precision."""
    return record.workload, record.sequence_length, record.cuda_graph, record.compile, workload_settings(record)


def _page(of_device: Selected) -> ProfilePage | None:
    """The newest profile of each arm, batch size and precision, all of the model that the newest one is of."""
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
    """A selection per device that has a profile."""
    return [page for one in pages_by_device(records) if (page := _page(one))]


def rows_of(page: ProfilePage) -> list[ProfileRow]:
    rows = []
    for step in page.steps:
        profiles = step.profiles.items()
        kinds = {arm: {one["kind"]: one for one in record.samples["kinds"]} for arm, record in profiles}
        for kind in step.kinds:
            rows.append(ProfileRow(step, kind, {arm: found[kind] for arm, found in kinds.items() if kind in found}))
        sums = {
            arm: {name: sum(one[name] for one in found.values()) for name in ("ms", "launches", "moved_mib")}
            for arm, found in kinds.items()
        }
        times = {arm: significant(record.step_time_median_ms or 0.0) for arm, record in profiles}
        whole = {arm: f"{times[arm]} {page.older(record)}".rstrip() for arm, record in profiles}
        rows += [
            ProfileRow(step, "all kinds", sums, is_sum=True),
            ProfileRow(step, "step without profiler", {}, whole=whole),
        ]
    return rows


def columns(page: ProfilePage, _: Sequence[ProfileRow]) -> list[Column[Any]]:
    """Milliseconds with their share of the work by arm, then launches and MiB; the CSV has costly kernels besides."""
    arms = dict.fromkeys(arm for _, arm, _ in page.profiles)

    def ms(arm: str, row: ProfileRow) -> str | None:
        if row.whole is not None:
            return row.whole.get(arm)
        share = row.shares.get(arm)
        busy = None if row.is_sum or share is None else row.step.profiles[arm].samples["busy_ms"]
        percent = f" ({share['ms'] / busy:.0%})" if share and busy else ""
        return f"{significant(share['ms'])}{percent}" if share else None

    def launches(arm: str, row: ProfileRow) -> str | None:
        return f"{row.shares[arm]['launches']:,.0f}" if arm in row.shares else None

    def moved(arm: str, row: ProfileRow) -> str | None:
        size = row.shares.get(arm, {}).get("moved_mib")
        return None if size is None else significant(size) if size >= 0.01 else "0"

    def of_arm(name: str, cell: Any, arm: str) -> Column[Any]:
        return Column(f"{arm}, {name}", lambda row: cell(arm, row))

    def tidy(line: tuple[Step, str, Record, Share]) -> dict[str, object]:
        step, arm, record, part = line
        return {
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

    return [
        Column("step", lambda row: row.step.label, left=True),
        Column("kind", lambda row: row.kind, left=True),
        *(of_arm("ms", ms, arm) for arm in arms),
        *(of_arm(name, cell, arm) for arm in arms for name, cell in ((page.counted, launches), ("MiB", moved))),
        Column(tidy=tidy),
    ]


def tidy_rows(page: ProfilePage, _: Sequence[ProfileRow]) -> list[tuple[Step, str, Record, Share]]:
    """A row per kind of work, and one per costly kernel or operator."""
    parts = [(*one, (*one[2].samples["kinds"], *one[2].samples["costliest"])) for one in page.profiles]
    return [(step, arm, record, part) for step, arm, record, found in parts for part in found]


def _limits(record: Record, on_cuda: bool) -> str:
    """What takes the time of an arm's step, in order; on a GPU idle time takes its place among the kinds of work.

    Idle is a CUDA device as far as the timed steps exceed its kernels.
    """
    step_ms = record.step_time_median_ms or 0.0
    parts = [(one["ms"], one["kind"]) for one in record.samples["kinds"]]
    parts += [(max(0.0, step_ms - record.samples["busy_ms"]), "waiting for launches")] if on_cuda else []
    ordered = sorted(parts, key=lambda part: -part[0])
    spent = ", ".join(f"{words} {significant(ms)}" for ms, words in ordered if ms)
    return f"{record.arm}: {spent} ms of {significant(step_ms)}."


def caption(page: ProfilePage, _: Sequence[ProfileRow]) -> Caption:
    what, names = ("kernels on the device", "kernels") if page.on_cuda else ("operators", "operators")
    profiles = [(step.label, record) for step, _, record in page.profiles]
    notes = [
        f"ms: of {what}, under the profiler, with the share of all kinds; {page.counted}, MiB: per step. MiB is what "
        f"PyTorch's operators are given and return, of which a cache may save some. Kinds go by the names of {names}.",
        "Each arm was profiled in one process, one arm after another. Read shares within an arm; Fig. 1 has the ratios "
        "of arms, whose blocks take turns.",
    ]
    if not page.on_cuda:
        notes.append(
            "On a CPU the profiler's own time counts with the operators', so that all kinds together may take longer "
            "than the step without it; other holds what calls operators, too."
        )
    for label, record in profiles:
        costliest = record.samples["costliest"][:_COSTLIEST]
        what = "; ".join(f"{one['name'][:60]} {significant(one['ms'])} ms" for one in costliest)
        notes.append(f"{label}, {record.arm}, costliest: {what}.")
    return Caption(
        title="Where the time of a step goes, by kind of work",
        facts=(device_fact(page), *(f"{label}, {_limits(record, page.on_cuda)}" for label, record in profiles)),
        notes=(*notes, *galore_note(page.shown), *closing_notes(page)),
    )


ARTIFACT = Artifact(
    name="table_profile",
    heading="Where the time goes",
    summary="time of a step by kind of work, with launches and bytes, CoMERA beside dense; a table per device",
    experiments=("profile",),
    measure="profile",
    order=100,
    select=select,
    rows=rows_of,
    columns=columns,
    tidy_rows=tidy_rows,
    caption=caption,
    section="step",
)
