"""What pytest collects beside ``tests``: the examples in the docstrings of the packages."""

from __future__ import annotations

from pathlib import Path

import pytest

GATE = Path(__file__).parent / "tests" / "gate"

#: It has no example, and importing it loads heavy packages, for processes that are forked from the importing one.
collect_ignore = ["bench/processes/preload.py"]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the gate out unless it is named: it compares with another commit, and has an exit status of its own."""
    named = any("tests/gate" in argument for argument in config.args)
    return True if collection_path == GATE and not named else None
