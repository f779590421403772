"""Notes of other packages that say nothing about what runs here: silenced by name, in this place alone.

bitsandbytes and torchao complain about libraries of theirs that do not load, torch about how torchao registers its
types, and fake tensors print a traceback of their own beside the exception that they raise.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

#: Loggers and the level from which their messages are shown.
_LOGGERS = {
    "bitsandbytes": logging.ERROR,
    "torchao": logging.ERROR,
    "torch.utils._pytree": logging.ERROR,
    "torch._subclasses.fake_tensor": logging.CRITICAL,
}

#: Warnings: how they begin, as a regular expression, and their category.
_WARNINGS: tuple[tuple[str, type[Warning]], ...] = ((r"(?s).*register_constant\(\)|.*_register_pytree_node", Warning),)


def silence() -> None:
    """Silence the notes in this process, for good; a command calls it before its first line."""
    for name, level in _LOGGERS.items():
        logging.getLogger(name).setLevel(level)
    for message, category in _WARNINGS:
        warnings.filterwarnings("ignore", message, category)


@contextmanager
def quiet_import() -> Iterator[None]:
    """Silence the notes while the block imports such packages; for users of an arm outside of a command."""
    levels = {logging.getLogger(name): logging.getLogger(name).level for name in _LOGGERS}
    with warnings.catch_warnings():
        silence()
        try:
            yield
        finally:
            for logger, level in levels.items():
                logger.setLevel(level)
