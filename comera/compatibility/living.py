"""Living objects of given classes, which have left no mark on what they hold."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from itertools import compress
from typing import Any


def living(classes: Iterable[type]) -> list[Any]:
    """Find the objects of these classes, and of those derived from them, among all objects of this process.

    There may be millions of objects, so that they are compared by class alone, without a Python call for each.

    Example:
        >>> class Wrapper: ...
        >>> wrapper = Wrapper()
        >>> living([Wrapper]) == [wrapper]
        True
    """
    kinds: set[type] = set()
    pending = list(classes)
    while pending:
        kind = pending.pop()
        kinds.add(kind)
        pending += set(type.__subclasses__(kind)) - kinds
    objects = gc.get_objects()
    return list(compress(objects, map(kinds.__contains__, map(type, objects))))
