"""The library of GaLore, without a CUDA device: bitsandbytes, which it imports, would set one up."""

import importlib

from bench.runner.preload.each_cell import no_device

with no_device():
    importlib.import_module("galore_torch")
