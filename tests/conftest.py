"""One thread for torch, also in the processes that tests start; no examples are collected from tests.

The suite runs in two processes on two cores, and on tensors as small as those of the tests a second thread only waits.
The variable is read when torch is imported, which no test module has done yet.
"""

import gc
import os
from collections.abc import Generator

import pytest

os.environ["OMP_NUM_THREADS"] = "1"


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Collect modules as tests alone: two ``conftest.py`` cannot be imported as modules with examples."""
    collectors = yield
    return [collector for collector in collectors if type(collector) is pytest.Module]


def pytest_collection_finish() -> None:
    """Take what imports have made, a million objects, out of the way of garbage collection and of walks over it."""
    gc.freeze()
