"""The two ways in which the gate is not green, each one sentence or a few lines without a traceback."""

from __future__ import annotations


class Regression(AssertionError):
    """A benchmark is not what it was; the gate ends with status 1."""


class GateError(Exception):
    """The gate could not run, in one sentence; it ends with status 2."""
