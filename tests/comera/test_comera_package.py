"""The package is light to import, offers what it names, and its examples run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import comera

MODULES = ["comera", *(f"comera.{found.name}" for found in pkgutil.iter_modules(comera.__path__))]

PRINT_NEWCOMERS = """
import sys
import numpy, torch
before = set(sys.modules)
import comera
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
"""


def test_importing_comera_brings_in_the_standard_library_torch_and_numpy_alone():
    root = Path(comera.__file__).resolve().parents[1]
    done = subprocess.run([sys.executable, "-c", PRINT_NEWCOMERS], cwd=root, capture_output=True, text=True, check=True)
    newcomers = set(done.stdout.split())
    assert "comera" in newcomers
    assert newcomers - sys.stdlib_module_names <= {"comera", "torch", "numpy"}


def test_every_public_name_is_there_and_explains_itself():
    assert len(set(comera.__all__)) == len(comera.__all__)
    for name in comera.__all__:
        assert getattr(comera, name).__doc__


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name):
    module = importlib.import_module(name)
    finder, runner = doctest.DocTestFinder(exclude_empty=True), doctest.DocTestRunner()
    report: list[str] = []
    for example in finder.find(module, extraglobs={"torch": torch, "nn": nn}):
        runner.run(example, out=report.append)
    assert runner.failures == 0, "".join(report)


def test_examples_are_found():
    finder = doctest.DocTestFinder(exclude_empty=True)
    assert sum(len(test.examples) for name in MODULES for test in finder.find(importlib.import_module(name))) > 20
