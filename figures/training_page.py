"""What every figure and table of training says alike: the facts on top, the notes below, the names of its files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pandas as pd

from bench.core.record import device_folder
from figures.accuracy import Percent
from figures.claims.claims import Verdict
from figures.curve import curve_of
from figures.page.drawn import Caption, Drawn, csv, markdown
from figures.page.table import NOT_ASKED, NOT_RECORDED, OLDER, OLDER_WORDS
from figures.runs import EXPERIMENT, Shown
from figures.training_rows import Row, Spread

#: How each table of training begins a line.
STAGE = "run"

#: What S and S0 are.
SIZE_WORDS = "S: core entries left, as a share of those before any rank was cut"
WISHED_WORDS = "S0: what the late stage was to reach"


class Marked(Protocol):
    """A row that may carry a mark."""

    @property
    def mark(self) -> str: ...


def accuracy_words(interval: str) -> str:
    """What an accuracy is, with the kind of its interval."""
    return f"accuracy: share of validation examples answered rightly, with its 95 % interval ({interval})."


def or_dash(value: object) -> str:
    """The value in words, or what stands where there is none."""
    return NOT_ASKED if value is None else str(value)


def reached(met: bool | None) -> str:
    """Whether S <= S0, as a cell of a table."""
    return {None: NOT_ASKED, True: "yes", False: "NO"}[met]


def bounds(name: str, value: Percent | Spread | None) -> dict[str, float | None]:
    """A value with its bounds, as cells of a tidy table."""
    if value is None:
        return dict.fromkeys((name, f"{name}_low", f"{name}_high"))
    return {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}


def stem(name: str, study: Shown) -> str:
    """File name without ending: one per device and dataset, and per experiment where it is not the usual one."""
    parts = [name, device_folder(study.device), device_folder(study.dataset)]
    if study.experiment != EXPERIMENT:
        parts.append(device_folder(study.experiment))
    return "-".join(parts)


def _listed(study: Shown, column: str) -> str:
    return ", ".join(str(value) for value in study.values(column) if value != "")


def _switch(study: Shown, column: str) -> str:
    return " / ".join("on" if value else "off" for value in study.values(column))


def seeds_text(study: Shown) -> str:
    """``seed 0`` or ``seeds 0, 1, 2``."""
    return f"seed{'s' if len(study.seeds) > 1 else ''} {', '.join(map(str, study.seeds))}"


def _budget(study: Shown) -> str:
    early, late = study.stage_steps
    per_epoch = study.steps_per_epoch

    def epochs(steps: int) -> str:
        if not per_epoch:
            return ""
        return f" ({steps / per_epoch:.3g} epoch{'' if steps == per_epoch else 's'})"

    late_words = f", then {late:,} late ones{epochs(late)}" if late else ""
    return f"{early:,} early steps{epochs(early)}{late_words}"


def validation_examples(study: Shown) -> int | None:
    """How many examples every accuracy is over; None where no run finished."""
    counts = {len(curve_of(run)[-1].answers) for run in study.shown if run.status == "ok"}
    return max(counts, default=None)


def facts(study: Shown) -> tuple[str, ...]:
    """Device, setting and budget of the runs shown, and how large the model is."""
    shown = study.shown
    days = dict.fromkeys([shown[0].recorded_at[:10], shown[-1].recorded_at[:10]])
    drivers = f", driver {_listed(study, 'driver')}" if _listed(study, "driver") else ""
    examples = validation_examples(study)
    validated = f", validated on {examples:,} examples" if examples else ""
    count = study.dense_parameters
    classes = study.model.get("classes")
    size = "of the paper's size" if study.is_full_size else "not the paper's size"
    model = (f"Dense model: {count:,} parameters, {size}, {classes} classes.",) if count else ()
    return (
        f"Device: {study.device}. torch {_listed(study, 'torch_version')}{drivers}, {_listed(study, 'precision')}, "
        f"batch {_listed(study, 'batch_size')}, length up to {_listed(study, 'sequence_length')}, "
        f"CUDA Graph {_switch(study, 'cuda_graph')}, compile {_switch(study, 'compile')}. "
        f"Recorded {' to '.join(days)}.",
        f"Trained on {study.dataset!r}{validated}: {_budget(study)}, {seeds_text(study)}.",
        *model,
    )


def absences(rows: Sequence[Row]) -> list[str]:
    """A sentence on every run that is missing or failed."""
    lines = [f"{row.slot.label}, {remark.rstrip('.')}." for row in rows for remark in row.remarks]
    missing = [row.slot.label for row in rows if row.status == NOT_RECORDED]
    return [*lines, f"{NOT_RECORDED}: {'; '.join(missing)}."] if missing else lines


def notes(study: Shown, rows: Sequence[Marked]) -> list[str]:
    """What holds for every figure of training: marks, uncommitted changes, records that are left out."""
    lines = []
    if any(row.mark for row in rows):
        lines.append(f"{OLDER} {OLDER_WORDS}.")
    if any(record.git_dirty for record in study.shown):
        lines.append("Some records come from a tree with uncommitted changes.")
    return [*lines, *study.left_out]


def drawn(
    name: str,
    title: str,
    study: Shown,
    table: pd.DataFrame,
    tidy: pd.DataFrame,
    lines: Sequence[str],
    judged: Sequence[Verdict],
    images: dict[str, bytes] | None = None,
    below: Sequence[str] | None = None,
    left_aligned: frozenset[str] = frozenset(),
) -> Drawn:
    """Gather a figure, or a table where there are no ``images`` (by ending), with its Markdown page and CSV."""
    base, about = stem(name, study), facts(study)
    image = f"{base}.png" if images else ""
    files = {f"{base}.{ending}": content for ending, content in (images or {}).items()}
    files[f"{base}.md"] = markdown(Caption(title, about, lines), image, table, left_aligned, judged)
    files[f"{base}.csv"] = csv(tidy)
    under = tuple(lines if below is None else below)
    return Drawn(
        title=title, device=study.device, facts=about, notes=tuple(lines), table=table, verdicts=tuple(judged),
        files=files, below=under, left_aligned=left_aligned, records=tuple(study.shown),
    )  # fmt: skip
