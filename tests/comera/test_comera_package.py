"""The package is light to import and offers what it names."""

import subprocess
import sys
from pathlib import Path

import comera

IMPORTED_AND_RUN = """
import sys
import numpy, torch
before = set(sys.modules)
import comera
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
from comera import TTLinear
from comera.functional import tt_feed_forward
first, second = TTLinear(8, 12, (2, 4), (4, 3), 2), TTLinear(12, 8, (4, 3), (2, 4), 2)
tt_feed_forward(torch.randn(5, 8), first, second).sum().backward()
print("triton" in sys.modules)
"""


def test_comera_brings_in_the_standard_library_torch_and_numpy_alone_and_no_kernel_on_a_cpu():
    root = Path(comera.__file__).resolve().parents[1]
    command = [sys.executable, "-c", IMPORTED_AND_RUN]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    imported, triton = done.stdout.splitlines()
    assert "comera" in imported.split()
    assert set(imported.split()) - sys.stdlib_module_names <= {"comera", "torch", "numpy"}
    assert triton == "False"


def test_every_public_name_is_there_and_explains_itself():
    assert len(set(comera.__all__)) == len(comera.__all__)
    for name in comera.__all__:
        assert name.startswith("__") or getattr(comera, name).__doc__
