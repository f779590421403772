"""How the numbers of one figure or table came about, from what their records hold; the words are in a template."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.core.record import Record
from bench.core.samples import block_means_ms
from figures.draw.facts import machines, span
from figures.frame import settings_of
from figures.stats import plans
from figures.stats.training import slot_of, stages_of
from figures.text import templates


class Fact(NamedTuple):
    """A line of the box beside a figure."""

    term: str
    text: str


class Failure(NamedTuple):
    """Cells that failed alike."""

    cells: str
    status: str
    message: str


def _distinct(records: Sequence[Record], column: str) -> list[Any]:
    return sorted({getattr(record, column) for record in records} - {"", None})


def _listed(records: Sequence[Record], column: str) -> str:
    found = _distinct(records, column)
    return ", ".join(f"{value:,}" if isinstance(value, int) else str(value) for value in found)


def _switch(records: Sequence[Record], column: str) -> str:
    return " and ".join("on" if value else "off" for value in _distinct(records, column))


def _setting(records: Sequence[Record], name: str) -> str:
    """Return a setting of the clock, as the cells were resolved; empty where no record has it."""
    found = [settings_of(record, "timing_settings").get(name) for record in records]
    return " or ".join(f"{value:g}" for value in sorted({one for one in found if isinstance(one, int | float)}))


def _undisturbed(records: Sequence[Record]) -> str:
    """Return how many undisturbed blocks records have; empty where they have none."""
    counts = [len(block_means_ms(record)) for record in records if record.status == "ok"]
    return " to ".join(dict.fromkeys((f"{min(counts):,}", f"{max(counts):,}"))) if any(counts) else ""


def _stages(records: Sequence[Record]) -> dict[str, str]:
    stages: dict[str, set[int]] = {}
    for record in records:
        for stage in stages_of(record):
            stages.setdefault(stage["name"], set()).add(stage["steps"])
    return {name: " or ".join(f"{steps:,}" for steps in sorted(found)) for name, found in stages.items()}


TEMPLATES = Path(__file__).parent / "templates"

_ENVIRONMENT = templates(TEMPLATES)
_ENVIRONMENT.globals |= {"distinct": _distinct, "listed": _listed, "switch": _switch}
_ENVIRONMENT.globals |= {"setting": _setting, "undisturbed": _undisturbed, "stages": _stages}
_ENVIRONMENT.globals |= {"machines": machines}


def facts_of(records: Sequence[Record]) -> list[Fact]:
    """How, on what machine, with which versions, when and by which code the records were made.

    Raises RecordError for samples or stages that cannot be read.
    """
    found = {record.measure for record in records}
    order = [*(one for one in ("run", "predict", "train", "plan") if one in found), *sorted(found)]
    versions = {record.library_versions for record in records}
    newest = max(records, key=lambda record: (record.recorded_at, record.cell_id)).code_id
    about = {
        "records": records,
        "measures": {name: [one for one in records if one.measure == name] for name in order},
        "libraries": sorted({one.strip() for one in ",".join(versions).split(",")} - {""}),
        "moments": span((record.recorded_at[:16].replace("T", " ") for record in records), " to "),
        "commits": Counter(record.git_commit for record in records),
        "older": sum(record.code_id != newest for record in records),
        "dirty": sum(record.git_dirty for record in records),
    }
    lines = _ENVIRONMENT.get_template("facts.txt.j2").render(about).splitlines()
    return [Fact(*" ".join(line.split()).split("|", 1)) for line in lines if line.strip()]


def _cell(record: Record) -> tuple[str, str]:
    """Return what the cell is one of, and which one it is."""
    if record.measure == "plan":
        return "", plans.shape_of(record)
    ratio = f" {record.ratio:g}x" if record.ratio is not None else ""
    if record.measure == "train":
        return f"{record.arm}{ratio}, {slot_of(record).goal}", f"seed {record.seed}"
    what = {"run": "timed", "predict": f"predicted for {record.predicted_for}"}.get(record.measure, record.measure)
    return f"{record.arm}{ratio}, {what}", f"batch {record.batch_size:,}"


def failures_of(records: Sequence[Record]) -> list[Failure]:
    """Every record that is not ``ok``; cells that failed alike share a line."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for record in (record for record in records if record.status != "ok"):
        family, one = _cell(record)
        groups.setdefault((family, record.status, record.message or "no message was recorded"), []).append(one)
    return [
        Failure(": ".join(filter(None, (family, "; ".join(cells)))), status, message)
        for (family, status, message), cells in groups.items()
    ]
