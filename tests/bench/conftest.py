"""What tests of whole cells share: a small corpus, and processes that use one thread."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from small_cells import environment, write_pairs

import bench.__main__
from bench.core.provenance import provenance


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small corpus."""
    folder = tmp_path_factory.mktemp("data") / "pairs"
    write_pairs(folder)
    return folder


@pytest.fixture(scope="module")
def cell_processes() -> Iterator[None]:
    """Make the processes of cells what they are under ``python -m bench``, with one thread each.

    Their server starts with the first of them and keeps the environment that it finds then.
    """
    provenance.cache_clear()
    with pytest.MonkeyPatch.context() as patch, mock.patch.dict(os.environ, environment(), clear=True):
        patch.setitem(sys.modules, "__main__", bench.__main__)  # this entry alone: modules imported meanwhile stay
        yield
    provenance.cache_clear()
