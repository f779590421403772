"""How the numbers of one figure or table came about, in words, from what their records hold."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from bench.core.record import Record
from bench.core.samples import block_means_ms
from figures.draw.facts import machines
from figures.frame import settings_of
from figures.stats import plans
from figures.stats.training import slot_of, stages_of
from figures.text import OLDER


class Fact(NamedTuple):
    """A line of the box beside a figure."""

    term: str
    text: str


class Failure(NamedTuple):
    """Cells that failed alike."""

    cells: str
    status: str
    message: str


def _distinct(values: Iterable[Any]) -> list[Any]:
    return sorted({value for value in values if value not in ("", None)})


def _listed(records: Sequence[Record], column: str) -> str:
    found = _distinct(getattr(record, column) for record in records)
    return ", ".join(f"{value:,}" if isinstance(value, int) else str(value) for value in found)


def _switch(records: Sequence[Record], column: str) -> str:
    return " and ".join("on" if value else "off" for value in _distinct(getattr(record, column) for record in records))


def _setting(records: Sequence[Record], name: str) -> str:
    """Return a setting of the clock, as the cells were resolved; empty where no record has it."""
    found = (settings_of(record, "timing_settings").get(name) for record in records)
    return " or ".join(f"{value:g}" for value in _distinct(one for one in found if isinstance(one, int | float)))


def _how(records: Sequence[Record], length: str = "length") -> str:
    """Batch, arithmetic and toggles; the length too, where there is a sequence."""
    lengths = "" if _listed(records, "sequence_length") == "1" else f"{length} {_listed(records, 'sequence_length')}, "
    return (
        f"batch {_listed(records, 'batch_size')}, {_listed(records, 'precision')}, {lengths}"
        f"CUDA Graph {_switch(records, 'cuda_graph')}, compile {_switch(records, 'compile')}"
    )


def _seen(records: Sequence[Record]) -> str:
    """On how many machines something ran, and for how many records that is not known; empty where nothing ran."""
    found = machines(records)
    if not found.known:
        return "machine not recorded" if found.unknown else ""
    unknown = f", unknown for {found.unknown:,} of {found.records:,} records" if found.unknown else ""
    return f"seen on {found.known} machine{'s' * (found.known != 1)}{unknown}"


def _clock(records: Sequence[Record]) -> str:
    seconds, steps, warm = (_setting(records, name) for name in ("block_seconds", "max_steps", "warmup_steps"))
    return f" A block: about {seconds} s, at most {steps} calls, after {warm} to warm up." if seconds else ""


def _timed(records: Sequence[Record]) -> str:
    counts = sorted(len(block_means_ms(record)) for record in records if record.status == "ok")
    together = ", the arms taking turns within each" if any(record.pairing for record in records) else ""
    data = ", ".join(repr(name) for name in _distinct(record.dataset for record in records))
    span = " to ".join(f"{count:,}" for count in dict.fromkeys((*counts[:1], *counts[-1:])))
    blocks = f"; {span} undisturbed block(s){together}" if any(counts) else "; no step finished"
    return f"{_how(records)}, data {data}{blocks}.{_clock(records)}"


def _planned(records: Sequence[Record]) -> str:
    blocks, tokens = _setting(records, "blocks"), _listed(records, "batch_size")
    how = f"{tokens} tokens, {_listed(records, 'precision')}, compile {_switch(records, 'compile')}"
    turns = f"every candidate plan in turn{f' in {blocks} blocks' if blocks else ''}"
    return f"forward pass and all gradients of one layer, {turns}; {how}.{_clock(records)}"


def _predicted(records: Sequence[Record]) -> str:
    work = "peak memory and work of a step on tensors without contents"
    return f"{work}, for {_listed(records, 'predicted_for')}: {_how(records)}. Nothing was timed for these."


def _trained(records: Sequence[Record]) -> str:
    stages: dict[str, set[int]] = {}
    for record in records:
        for stage in stages_of(record):
            stages.setdefault(stage["name"], set()).add(stage["steps"])
    steps = ", ".join(f"{name} stage {' or '.join(f'{n:,}' for n in sorted(found))}" for name, found in stages.items())
    examples, seeds = _listed(records, "validation_examples"), _distinct(record.seed for record in records)
    validated = f", validated on {examples} examples" if examples else ""
    return (
        f"{_how(records, 'length up to')}, data {_listed(records, 'dataset')}{validated}; steps: {steps}; "
        f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}."
    )


#: By measure, in this order; one that has no sentence of its own is said with its settings.
_HOW: dict[str, tuple[str, Callable[[Sequence[Record]], str]]] = {
    "run": ("Timed", _timed),
    "predict": ("Predicted", _predicted),
    "train": ("Trained", _trained),
    "plan": ("Timed", _planned),
}


def _code(records: Sequence[Record]) -> str:
    """Which commits the records come from, and what is not quite theirs."""
    counts = Counter(record.git_commit for record in records)
    commits = ", ".join(f"{commit[:12]}" + f" ({n:,})" * (len(counts) > 1) for commit, n in counts.items())
    newest = max(records, key=lambda record: (record.recorded_at, record.cell_id)).code_id
    older, dirty = sum(record.code_id != newest for record in records), sum(record.git_dirty for record in records)
    parts = [f"commit{'s' * (len(counts) > 1)} {commits}"]
    if older:
        parts.append(f"{OLDER} {older:,} of {len(records):,} by older measuring code than the newest")
    if dirty:
        parts.append(f"{dirty:,} of {len(records):,} from a tree with uncommitted changes")
    return "; ".join(parts)


def facts_of(records: Sequence[Record]) -> list[Fact]:
    """How, on what machine, with which versions, when and by which code the records were made.

    Raises RecordError for samples or stages that cannot be read.
    """
    made, found = [], {record.measure for record in records}
    for name in [*(name for name in _HOW if name in found), *sorted(found - set(_HOW))]:
        term, words = _HOW.get(name, (name.capitalize().replace("_", " "), _how))
        made.append(Fact(term, words([record for record in records if record.measure == name])))
    driver = _listed(records, "driver")
    machine = _listed(records, "device"), f"driver {driver}" if driver else "", _seen(records)
    libraries = _distinct(one.strip() for record in records for one in record.library_versions.split(","))
    moments = sorted(record.recorded_at[:16].replace("T", " ") for record in records)
    return [
        *made,
        Fact("Machine", "; ".join(filter(None, machine))),
        Fact("Versions", ", ".join([f"torch {_listed(records, 'torch_version')}", *libraries])),
        Fact("Recorded", f"{' to '.join(dict.fromkeys((moments[0], moments[-1])))} UTC, {len(records):,} records"),
        Fact("Code", _code(records)),
    ]


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
