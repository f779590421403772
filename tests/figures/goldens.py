"""Goldens: files in ``goldens/`` with what is made of made-up records.

``ACCEPT_GOLDENS=1 python -m pytest tests/figures`` writes them anew; ``git diff`` shows what changed.
"""

import os
from pathlib import Path

FOLDER = Path(__file__).parent / "goldens"


def golden(name: str, found: str) -> None:
    """Compare a text with the golden of this name, or write it where that is asked for."""
    path = FOLDER / name
    if os.environ.get("ACCEPT_GOLDENS"):
        FOLDER.mkdir(exist_ok=True)
        path.write_text(found, encoding="utf-8")
    assert path.is_file(), f"{path} is missing; ACCEPT_GOLDENS=1 writes it."
    assert found == path.read_text(encoding="utf-8")
