"""The library of LoRA."""

import importlib

from bench.runner.preload.each_cell import no_device

with no_device():
    importlib.import_module("peft")
