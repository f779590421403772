"""Seeds, and no deadline for drawn examples."""

import pytest
import torch
from hypothesis import settings

settings.register_profile("comera", deadline=None, max_examples=25)  # a busy machine is no failure
settings.load_profile("comera")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def fresh_compiler():
    """Compiled code of no other test, and none left for one."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()
