"""The facts on top of every figure and table, and the notes that many have below."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bench.core.record import Record
from bench.core.samples import block_means_ms
from figures.page.table import OLDER, OLDER_WORDS
from figures.records.select import Selected, TimesAndMemory
from figures.records.time_values import PAPER_EXAMPLES, workload_words


def listed(selection: Selected, column: str) -> str:
    """The distinct values of a column, empty ones apart."""
    return ", ".join(str(value) for value in selection.values(column) if value != "")


def _switch(selection: Selected, column: str) -> str:
    return " / ".join("on" if value else "off" for value in selection.values(column))


def toggles_words(selection: Selected) -> str:
    """CUDA Graph and torch.compile, on or off."""
    return f"CUDA Graph {_switch(selection, 'cuda_graph')}, compile {_switch(selection, 'compile')}"


def length_words(selection: Selected, name: str = "length") -> str:
    """The length of sequences, or nothing where there are none."""
    lengths = listed(selection, "sequence_length")
    return "" if lengths == "1" else f"{name} {lengths}"


def days(records: Sequence[Record]) -> str:
    """The first and the last day on which the records, oldest first, were made."""
    return " to ".join(dict.fromkeys((records[0].recorded_at[:10], records[-1].recorded_at[:10])))


def device_fact(selection: Selected, *settings: str) -> str:
    """Device, library, ``settings`` in words (empty ones apart), and when the records were made."""
    driver = listed(selection, "driver")
    parts = [f"torch {listed(selection, 'torch_version')}", f"driver {driver}" if driver else "", *settings]
    return f"Device: {selection.device}. {', '.join(filter(None, parts))}. Recorded {days(selection.shown)}."


def step_fact(selection: Selected) -> str:
    """The device with all that a step was run with."""
    return device_fact(selection, listed(selection, "precision"), length_words(selection), toggles_words(selection))


def blocks_timed(records: Iterable[Record]) -> str:
    """How many undisturbed blocks the times are of, or nothing where nothing was timed."""
    counts = sorted({len(block_means_ms(record)) for record in records if record.status == "ok"})
    return f"{counts[0]}-{counts[-1]}" if len(counts) > 1 else "".join(map(str, counts))


def data_fact(page: TimesAndMemory) -> str:
    """The data that the steps ran on, and in how many blocks."""
    blocks = blocks_timed(page.timed.values())
    return f"Timed on {listed(page, 'dataset')!r} data, {blocks} undisturbed blocks." if blocks else "Nothing timed."


def model_words(selection: Selected) -> str:
    """What the records' workloads call their models."""
    return ", ".join(dict.fromkeys(str(workload_words(record)["model"]) for record in selection.own))


def epoch_fact(selection: Selected) -> str:
    """What an epoch is, as the records' workloads have it."""
    return " ".join(dict.fromkeys(str(workload_words(record)["epoch"]) for record in selection.own)).strip()


def mark_notes(marks: Iterable[str], words: Mapping[str, str]) -> list[str]:
    """What the marks mean that are there."""
    found = {mark for several in marks for mark in several}
    return [f"{mark} {meaning}." for mark, meaning in words.items() if mark in found]


def disturbed_note(count: int) -> list[str]:
    """What became of disturbed blocks, where there were any."""
    return [f"{count} disturbed block(s) in all are left out of times, intervals and ratios."] if count else []


def length_note(page: TimesAndMemory) -> list[str]:
    """That steps were timed at a length which is not that of the paper's epoch, where they were."""
    timed = list(page.timed.values())
    lengths = sorted({record.sequence_length for record in timed})
    papers = all(workload_words(record)["examples_per_epoch"] == PAPER_EXAMPLES for record in timed)
    if not timed or not papers or lengths == [128]:
        return []
    return [f"Timed at length {', '.join(map(str, lengths))}, not at the 128 of the paper's epoch."]


def last_notes(selection: Selected) -> list[str]:
    """Uncommitted changes, and the records that are left out."""
    dirty = any(record.git_dirty for record in selection.shown)
    return [*(["Some records come from a tree with uncommitted changes."] if dirty else []), *selection.left_out]


def closing_notes(selection: Selected) -> list[str]:
    """The mark of older code where it is used, then :func:`last_notes`."""
    return [*([f"{OLDER} {OLDER_WORDS}."] if selection.older_code else []), *last_notes(selection)]


def gathered(remarks: Iterable[tuple[str, str, str]], places: str = "batch") -> list[str]:
    """Remarks as lines, each once per subject with all places that it is about.

    >>> gathered([("lte", "1", "unsupported"), ("lte", "8", "unsupported"), ("lora", "1", "")])
    ['lte, batch 1, 8: unsupported']

    Args:
        remarks: subject, place and remark; empty remarks are left out.
        places: what the places are.
    """
    about: dict[tuple[str, str], list[str]] = {}
    for subject, place, remark in remarks:
        if remark:
            about.setdefault((subject, remark), []).append(place)
    return [f"{subject}, {places} {', '.join(where)}: {remark}" for (subject, remark), where in about.items()]
