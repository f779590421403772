"""The facts on top of every figure and table, and the notes that many have below."""

from collections.abc import Iterable, Mapping, Sequence

from bench.core.record import Record
from bench.core.samples import BUSY, best_calibrations_ms, block_means_ms, slowdown
from figures.records.select import Selected, by_arm
from figures.text import OLDER, OLDER_WORDS


def listed(selection: Selected, column: str) -> str:
    """The distinct values of a column, empty ones apart."""
    return ", ".join(str(value) for value in selection.values(column) if value != "")


def switches(selection: Selected) -> str:
    """CUDA Graph and torch.compile, on or off."""
    graph, compiled = (
        " / ".join("on" if value else "off" for value in selection.values(column))
        for column in ("cuda_graph", "compile")
    )
    return f"CUDA Graph {graph}, compile {compiled}"


def first_upper(text: str) -> str:
    """The text as a title begins."""
    return text[:1].upper() + text[1:]


def device_fact(selection: Selected, *settings: str) -> str:
    """Device, library, ``settings`` in words (empty ones apart), when records were made and on how many machines."""
    driver, days = listed(selection, "driver"), [record.recorded_at[:10] for record in selection.shown]
    parts = [f"torch {listed(selection, 'torch_version')}", f"driver {driver}" if driver else "", *settings]
    recorded = ["Recorded " + " to ".join(dict.fromkeys((days[0], days[-1]))), machines_seen(selection.shown)]
    return f"Device: {selection.device}. {', '.join(filter(None, parts))}. {', '.join(filter(None, recorded))}."


def machines_seen(records: Iterable[Record]) -> str:
    """On how many machines something ran, and for how many records that is not known; empty where nothing ran."""
    ran = [record.machine for record in records if record.measure != "predict" and record.status == "ok"]
    count, unknown = len({*ran} - {None}), ran.count(None)
    if not count:
        return "machine not recorded" if unknown else ""
    seen = f"seen on {count} machine{'s' * (count != 1)}"
    return f"{seen}, machine not recorded for {unknown:,} of {len(ran):,} records" if unknown else seen


def step_fact(selection: Selected) -> str:
    """The device with all that a step was run with; a length only where there are sequences."""
    lengths = listed(selection, "sequence_length")
    length = "" if lengths == "1" else f"length {lengths}"
    return device_fact(selection, listed(selection, "precision"), length, switches(selection))


def blocks_timed(records: Iterable[Record]) -> str:
    """How many undisturbed blocks of how many launches the times are of, or nothing where nothing was timed."""
    found = [block_means_ms(record) for record in records if record.status == "ok"]
    if not any(found):
        return ""
    launches = span(len({launch for launch, _ in blocks}) for blocks in found if blocks)
    return f"{span(map(len, found))} undisturbed blocks of {launches} launch{'es' * (launches != '1')}"


def span(counts: Iterable[int]) -> str:
    """The least and the greatest of some numbers, or nothing where there is none."""
    found = sorted(set(counts))
    return f"{found[0]}-{found[-1]}" if len(found) > 1 else "".join(map(str, found))


def mark_notes(marks: Iterable[str], words: Mapping[str, str]) -> list[str]:
    """What the marks mean that are there."""
    found = set("".join(marks))
    return [f"{mark} {meaning}." for mark, meaning in words.items() if mark in found]


def galore_note(timed: Iterable[Record]) -> list[str]:
    """That GaLore's optimizer is not fused, where any of its forms was timed."""
    if not any(record.method == "galore" and record.status == "ok" for record in timed):
        return []
    return [
        "GaLore's optimizer is an unfused Python loop over the parameters that it projects; the other arms have fused "
        "AdamW. A fused one would be faster."
    ]


def busy_note(records: Iterable[Record]) -> list[str]:
    """Say of which records' times the machine was busy, against the best calibration that all of these records know."""
    timed = [record for record in records if record.status == "ok"]
    best = best_calibrations_ms(timed)
    found = [(record, factor) for record in timed if (factor := slowdown(record, best)) is not None]
    slow = sorted((by_arm(one.arm), one.arm, one.batch_size, factor) for one, factor in found if factor > BUSY)
    if not slow:
        return []
    batches: dict[str, dict[str, None]] = {}
    for _, arm, batch, _ in slow:
        batches.setdefault(arm, {})[f"{batch:,}"] = None
    cells = "; ".join(f"{arm}, batch {' and '.join(sizes)}" for arm, sizes in batches.items())
    return [
        f"The machine was busy while {len(slow)} of {len(found)} timed records were made: a fixed product took up to "
        f"{max(factor for *_, factor in slow):.1f} times its best there. Their times may be too long: {cells}."
    ]


#: What an arm shares with CoMERA that names it behind an @.
_MATCHED = {
    "size": "@size: solved for as many parameters as CoMERA",
    "rank": "@rank: with CoMERA's middle ranks, and more parameters",
}


def matched_note(records: Sequence[Record]) -> list[str]:
    """A sentence on the two-factor arms that are named by what they share with CoMERA; none where there are none."""
    arms = [record.arm for record in records]
    found = [words for match, words in _MATCHED.items() if any(f"@{match}" in arm for arm in arms)]
    return [f"{'; '.join(found)}."] if found else []


def last_notes(selection: Selected) -> list[str]:
    """What rivals share with CoMERA, a busy machine, uncommitted changes, and the records that are left out."""
    dirty = any(record.git_dirty for record in selection.shown)
    return [
        *matched_note(selection.shown),
        *busy_note(selection.shown),
        *(["Some records come from a tree with uncommitted changes."] if dirty else []),
        *selection.left_out,
    ]


def closing_notes(selection: Selected) -> list[str]:
    """The mark of older code where it is used, then :func:`last_notes`."""
    return [*([f"{OLDER} {OLDER_WORDS}."] if selection.older_code else []), *last_notes(selection)]


def gathered(remarks: Iterable[tuple[str, Mapping[str, str], str]]) -> list[str]:
    """Subject, places and remark as lines, each remark once per subject with all places that it is about.

    >>> gathered([("lte", {"batch": "1"}, "unsupported"), ("lte", {"batch": "8"}, "unsupported")])
    ['lte, batch 1, 8: unsupported']
    """
    about: dict[tuple[str, str], dict[str, dict[str, None]]] = {}
    for subject, places, remark in remarks:
        for name, place in places.items() if remark else ():
            about.setdefault((subject, remark), {}).setdefault(name, {})[place] = None
    where = {key: "".join(f", {name} {', '.join(found)}" for name, found in one.items()) for key, one in about.items()}
    return [f"{subject}{words}: {remark}" for (subject, remark), words in where.items()]
