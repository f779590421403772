"""What pytest collects beside ``tests``: the examples in the docstrings of the packages."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

GATE = Path(__file__).parent / "tests" / "gate"

#: They have no examples, and importing them loads heavy packages, for processes that are forked from the importing one.
collect_ignore = [f"bench/runner/preload/{name}.py" for name in ("each_cell", "galore", "lora")]
if importlib.util.find_spec("triton") is None:  # there is none for this system
    kernels = ("feed_forward", "epilogue", "launch", "autograd", "ahead_of_time")
    collect_ignore += [f"comera/kernels/{name}.py" for name in kernels]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the gate out unless it is named: it compares with another commit, and has an exit status of its own."""
    named = any("tests/gate" in argument for argument in config.args)
    return True if collection_path == GATE and not named else None
