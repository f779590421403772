"""Values of a configuration, checked by pydantic against a dataclass's annotations; a wrong one is one sentence.

Types are strict: no number is read from a text, no bool is a whole number, and all numbers are finite. A whole number
where a real one is expected becomes real, so that equal settings are equal cells; a list becomes a tuple where one is
expected.
"""

import functools
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from bench.errors import ConfigError


@dataclass(frozen=True)
class Allowed:
    """In an annotation: what is allowed, for the sentence on a wrong value; FIELD stands for the field's name."""

    text: str


FromZero = Annotated[int, Field(ge=0), Allowed("whole numbers from 0 up")]
FromOne = Annotated[int, Field(ge=1), Allowed("whole numbers from 1 up")]
#: Counts that take time or memory each: more of them is a slip of the finger, and would never end.
Launches = Annotated[int, Field(ge=1, le=1000), Allowed("whole numbers from 1 to 1,000")]
Blocks = Annotated[int, Field(ge=1, le=10_000), Allowed("whole numbers from 1 to 10,000")]
ExtraBlocks = Annotated[int, Field(ge=0, le=10_000), Allowed("whole numbers from 0 to 10,000")]
BlockSteps = Annotated[int, Field(ge=1, le=1_000_000), Allowed("whole numbers from 1 to 1,000,000")]
Layers = Annotated[int, Field(ge=1, le=10_000), Allowed("whole numbers from 1 to 10,000")]
#: Sizes of a model: sides of a layer, rows of a table, tokens of a sequence.
Width = Annotated[int, Field(ge=1, le=2**18), Allowed(f"whole numbers from 1 to {2**18:,}")]
Rows = Annotated[int, Field(ge=1, le=2**27), Allowed(f"whole numbers from 1 to {2**27:,}")]
Length = Annotated[int, Field(ge=1, le=2**20), Allowed(f"whole numbers from 1 to {2**20:,}")]
#: Seeds of epochs are made of it, and have to fit into 64 bits.
Seed = Annotated[int, Field(ge=0, lt=2**32), Allowed(f"whole numbers from 0 to {2**32 - 1:,}")]
Seconds = Annotated[float, Field(gt=0, le=31_536_000), Allowed("seconds above 0, up to a year (31,536,000)")]
Flag = Annotated[bool, Allowed("true, false")]
Section = Annotated[dict[str, Any], Allowed("single settings, as in FIELD.NAME=VALUE")]


@functools.cache
def _fields(kind: type) -> dict[str, tuple[Any, TypeAdapter[Any]]]:
    """Return annotation and check of each field of a dataclass."""
    config = ConfigDict(strict=True, allow_inf_nan=False)
    hints = typing.get_type_hints(kind, include_extras=True)
    names = [field.name for field in fields(kind)]  # what belongs to the class is no field
    return {name: (hints[name], TypeAdapter(hints[name], config=config)) for name in names}


def checked_fields(kind: type, values: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Return some or all fields of a dataclass, checked and converted, without making it.

    ``where`` is the section of the configuration; empty for its top. Raises ConfigError: an unknown field, or a value
    of the wrong type or range.
    """
    known = _fields(kind)
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where} is {values!r}; allowed: single settings, as in {where}.{next(iter(known))}=….")
    checked = {}
    for name, value in values.items():
        field = f"{where}.{name}" if where else name
        if name not in known:
            raise ConfigError(f"{field} is unknown; allowed: {', '.join(known)}.")
        hint, adapter = known[name]
        try:
            # Read as JSON, whose lists fit tuples and whose whole numbers fit real ones, under strict types as well.
            checked[name] = adapter.validate_json(json.dumps(value, default=str))
        except ValidationError as error:
            first = error.errors()[0]
            if first["type"] == "finite_number" and isinstance((first["loc"] or ("",))[-1], int):  # within a list
                raise ConfigError(f"{field} has {first['input']!r}; allowed: finite numbers.") from None
            finite = first["type"] == "finite_number" and not _markers(hint)
            allowed = "finite numbers" if finite else _allowed(hint).replace("FIELD", field)
            raise ConfigError(f"{field} is {value!r}; allowed: {allowed}.") from None
    return checked


def build_dataclass(kind: type, values: Mapping[str, Any], where: str) -> Any:
    """Make a dataclass from configuration values, with type checks and one sentence for a wrong one.

    Raises ConfigError: as :func:`checked_fields`, or a ValueError of the dataclass itself.

    >>> @dataclass(frozen=True)
    ... class Settings:
    ...     rank: FromOne = 8
    ...     rate: float = 0.1
    >>> build_dataclass(Settings, {"rate": 1}, "settings.mine")
    Settings(rank=8, rate=1.0)
    >>> build_dataclass(Settings, {"rank": 0}, "settings.mine")
    Traceback (most recent call last):
    bench.errors.ConfigError: settings.mine.rank is 0; allowed: whole numbers from 1 up.
    """
    checked = checked_fields(kind, values, where)
    try:
        return kind(**checked)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def _markers(hint: Any) -> list[str]:
    return [marker.text for marker in getattr(hint, "__metadata__", ()) if isinstance(marker, Allowed)]


def _allowed(hint: Any) -> str:
    """Name the values that an annotation allows."""
    if markers := _markers(hint):
        return markers[0]
    if typing.get_origin(hint) is Literal:
        return ", ".join(map(str, typing.get_args(hint)))
    if typing.get_origin(hint) is tuple and typing.get_args(hint)[0] in (int, float):
        return "a list of numbers, such as [0.8,0.5]"
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    kinds = typing.get_args(hint) if is_union else (hint,)
    names = [str(kind) if typing.get_args(kind) else getattr(kind, "__name__", str(kind)) for kind in kinds]
    return f"a value of type {' or '.join(names).replace('NoneType', 'null')}"
