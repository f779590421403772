"""Launches in which the arms of two records took turns.

Older records may hold launches of several calls, hours apart or of several machines of one kind. These are numbered on.
"""

from typing import Any

from bench.core.record import Record

#: Pairing of the launches of earlier calls, by launch as text; those of the latest are paired as the record says.
_PAIRINGS = "pairings"

#: One row per earlier call: when its record was written, on which machine, and how many launches it added.
_CALLS = "earlier_calls"


def pairing_by_launch(record: Record) -> dict[int, str]:
    """Return by launch the name that arms share which were timed together in it; empty where it ran alone."""
    earlier = record.samples.get(_PAIRINGS, {})
    launches = {block.get("launch", 0) for block in record.samples.get("blocks", [])}
    return {launch: earlier.get(str(launch), record.pairing) for launch in sorted(launches)}


def paired_launches(one: Record, other: Record) -> set[int]:
    """Return the launches in which both records' arms took turns."""
    ours, theirs = pairing_by_launch(one), pairing_by_launch(other)
    return {launch for launch, name in ours.items() if name and theirs.get(launch) == name}


def calls_by_launch(record: Record) -> dict[int, int]:
    """Return by launch the place of the call that measured it, the earliest call being 0."""
    places = [place for place, call in enumerate(calls_of(record)) for _ in range(call["launches"])]
    return dict(zip(pairing_by_launch(record), places, strict=False))


def call_of(record: Record) -> dict[str, Any]:
    """Return when and on which machine the launches of the latest call were measured, and how many they are."""
    before = sum(call["launches"] for call in record.samples.get(_CALLS, []))
    launches = len({block.get("launch", 0) for block in record.samples["blocks"]}) - before
    return {"recorded_at": record.recorded_at, "machine": record.machine, "launches": launches}


def calls_of(record: Record) -> list[dict[str, Any]]:
    """Return :func:`call_of` for every call whose launches the record holds, the earliest first."""
    return [*record.samples.get(_CALLS, []), call_of(record)] if record.samples.get("blocks") else []
