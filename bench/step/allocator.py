"""Memory of a device: what is free, the peak of CUDA's allocator, and what of that peak is no tensor of a step.

cuBLAS keeps a workspace per thread and stream for good (32 MiB each on a Hopper GPU): one for the forward pass, one for
autograd's backward. A captured step runs on a stream of its own, for which cuBLAS keeps two more.

Predictions count tensors alone, so workspaces are measured and stated beside the peak.
"""

import gc

import psutil
import torch


def free_memory_mib(device: torch.device | str) -> float:
    """Return the device's memory that is free at this moment, in MiB."""
    if torch.device(device).type == "cuda":
        return float(torch.cuda.mem_get_info()[0]) / 2**20
    return float(psutil.virtual_memory().available) / 2**20


def take_workspaces(device: torch.device | str) -> int:
    """Have cuBLAS take its workspaces now, of the threads that run forward and backward; the bytes that they are."""
    if torch.device(device).type != "cuda":
        return 0
    before = torch.cuda.memory_allocated()
    weight = torch.ones(16, 16, device=device, requires_grad=True)
    (weight @ weight).sum().backward()
    torch.cuda.synchronize()
    del weight
    gc.collect()
    return torch.cuda.memory_allocated() - before


def workspaces_mib(taken: int, captured: bool) -> float:
    """Return the MiB of all workspaces, of the bytes that one stream takes; a captured step has a second stream.

    >>> workspaces_mib(64 * 2**20, captured=False), workspaces_mib(64 * 2**20, captured=True)
    (64.0, 128.0)
    """
    return (1 + captured) * taken / 2**20


def begin_peak() -> None:
    """Count the peak from now on; cached blocks without a tensor go back to the device first."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
