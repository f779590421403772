"""The package is light to import and offers what it names."""

import subprocess
import sys
from pathlib import Path

import comera

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
        assert name.startswith("__") or getattr(comera, name).__doc__
