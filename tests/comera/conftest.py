"""Seeds, and no deadline for drawn examples."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

settings.register_profile("comera", deadline=None)  # a busy machine is no failure
settings.load_profile("comera")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
