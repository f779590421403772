"""Choice between ways to compute the same: each is timed once per shape and device, forward and backward."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence

import torch

#: A way to compute a result from tensors.
Way = Callable[..., torch.Tensor]

_RUNS = 5

_FASTEST: dict[Hashable, str] = {}


def fastest(
    key: Hashable,
    device: torch.device,
    ways: Mapping[str, Way],
    prepare: Callable[[], Sequence[torch.Tensor | None]],
    otherwise: str,
) -> str:
    """Return the name of the fastest way on a device; the first call with a key times all of them.

    Nothing is timed while a CUDA graph is captured, nor off a GPU.

    Args:
        key: what the times depend on, the device aside.
        ways: functions of the same tensors, by name. One that fails is left out with a warning.
        prepare: returns the tensors.
        otherwise: the way that is taken where nothing has been timed.

    Example:
        >>> ways = {"mul": lambda x: x * x, "pow": lambda x: x**2}
        >>> fastest("squares", torch.device("cpu"), ways, lambda: [torch.ones(2)], otherwise="mul")
        'mul'
    """
    known = _FASTEST.get((key, device))
    if known is not None:
        return known
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return otherwise
    with torch.random.fork_rng([device]), torch.enable_grad():
        tensors = prepare()
        times = {name: _time_ms(name, way, tensors) for name, way in ways.items()}
    _FASTEST[key, device] = min(times, key=lambda name: times[name])
    return _FASTEST[key, device]


def _time_ms(name: str, way: Way, tensors: Sequence[torch.Tensor | None]) -> float:
    """Return the least time of a way and its gradients over a few runs on a GPU; infinite where it fails."""
    leaves = [None if tensor is None else tensor.detach().requires_grad_() for tensor in tensors]
    wanted = [leaf for leaf in leaves if leaf is not None]
    least = math.inf
    try:
        for _ in range(1 + _RUNS):  # the first compiles and tunes
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            result = way(*leaves)
            torch.autograd.grad(result, wanted, torch.ones_like(result))
            end.record()
            end.synchronize()
            least = min(least, start.elapsed_time(end))
    except torch.OutOfMemoryError:
        return math.inf
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        warnings.warn(f"{name} is not used, since it fails on this GPU: {reason}", stacklevel=2)
        return math.inf
    return least
