"""The plain values by which a cell is known, with one rule for fields that came after records were made.

Such a field has the metadata :data:`LATER` (where this module is out of reach, :data:`comera.protocol.LATER`). At its
default it is left out, so that cells from before it keep their ids.
"""

import dataclasses
from typing import Any

#: Metadata of a field of a dataclass that is left out at its default.
LATER = {"later": True}


def identity(settings: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as plain values, without later ones at their defaults.

    >>> @dataclasses.dataclass
    ... class Settings:
    ...     rank: int
    ...     ratio: float | None = dataclasses.field(default=None, metadata=LATER)
    >>> identity(Settings(8)), identity(Settings(8, 2.0))
    ({'rank': 8}, {'rank': 8, 'ratio': 2.0})
    """
    values = dataclasses.asdict(settings)
    for field in dataclasses.fields(settings):
        factory = field.default_factory
        default = field.default if factory is dataclasses.MISSING else factory()
        if field.metadata.get("later") and values[field.name] == default:
            del values[field.name]
    return values
