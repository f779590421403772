"""How the docstrings of this project are read: an "Example:" is code with its output, as "Examples:" is elsewhere."""

from __future__ import annotations

from typing import Any

from griffe import Extension, Object


class Examples(Extension):
    """An extension of griffe, which reads the docstrings for mkdocstrings."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
