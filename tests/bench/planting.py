"""A plugin for pytest (``-p planting``) that plants what ``PLANT`` names before the gate runs."""

import os
from pathlib import Path

import planted
import pytest

from bench.gate import baseline

PATCH = pytest.MonkeyPatch()


def pytest_configure(config: pytest.Config) -> None:
    name = os.environ["PLANT"]
    if name == "no_baseline":
        PATCH.setattr(baseline, "FOLDER", Path(os.devnull).parent / "nowhere")
    else:
        getattr(planted, name)(PATCH)
    config.add_cleanup(PATCH.undo)
