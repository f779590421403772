"""Starting a kernel on the configuration that is fastest for the sizes at hand."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
import triton

from comera.kernels.configurations import Tile, arithmetic, candidates, padded_rank


def launch(kernel: Any, grid: Callable[[Tile], tuple[int, ...]], ranks: tuple[int, ...], **arguments: Any) -> None:
    """Run a kernel; the first call at about so many tokens times every configuration.

    One that takes more shared memory than the device has drops out; one that spills registers loses by its time.

    Args:
        kernel: of :mod:`comera.kernels.feed_forward`.
        grid: how many programs there are, of the tile's sizes.
        ranks: that tiles are to hold.
        arguments: the kernel's, without PRECISION, padded ranks and tile.
    """
    z: torch.Tensor = arguments["z1"]
    kind, padded = arithmetic(z.dtype), padded_rank(*ranks)
    tuner = _tuner(kernel, kind, padded, z.device, arguments["T"].bit_length(), arguments.get("ACTIVATION"))
    arguments["PRECISION"] = "tf32" if kind == "tf32" else "ieee"
    arguments |= {name: padded for name in ("PADDED_P", "PADDED_Q") if name in kernel.arg_names}
    with torch.cuda.device(z.device) if z.is_cuda else contextlib.nullcontext():
        tuner[grid](**arguments)


@functools.cache
def _tuner(kernel: Any, kind: str, padded: int, device: torch.device, *_: object) -> Any:
    """Return the tuner that chooses a kernel's configuration once per value of the other arguments.

    There is nothing to be timed in the interpreter, which takes the first configuration.
    """
    configurations = [
        triton.Config({"BLOCK_M": one.block_m, "BLOCK_N": one.block_n}, num_warps=one.warps, num_stages=one.stages)
        for one in candidates(kind, padded)
    ]
    return triton.autotune(configurations[: 1 if device.type == "cpu" else None], key=[])(kernel)
