"""Processes that work side by side: one that ends or fails takes no other with it."""

import os

import pytest

from bench.errors import ConfigError
from bench.processes.process import each
from bench.protocol import CellFailure


def answered(word: str) -> str:
    """Return what a process makes of a word."""
    if word == "dies":
        os._exit(1)
    if word == "fails":
        raise RuntimeError("no such word")
    if word == "mistaken":
        raise ConfigError("the word is wrong.")
    return word.upper()


@pytest.mark.slow
@pytest.mark.usefixtures("cell_processes")
def test_a_process_that_ends_or_fails_takes_no_other_with_it():
    words = ("dies", "one", "fails", "two")
    found = dict(each(answered, {word: (word,) for word in words}, parallel=2))
    assert (found["one"], found["two"]) == ("ONE", "TWO")
    assert isinstance(found["dies"], CellFailure)
    assert str(found["dies"]) == "the process ended unexpectedly (exit code 1)"
    assert str(found["fails"]) == "RuntimeError: no such word"
    with pytest.raises(ConfigError, match="the word is wrong"):
        list(each(answered, {"mistaken": ("mistaken",), "one": ("one",)}, parallel=2))
