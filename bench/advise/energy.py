"""Energy of a training step on an NVIDIA GPU, from the counter that its driver keeps (NVML)."""

import time
from collections.abc import Callable
from dataclasses import dataclass

#: Least length of a window, in seconds: the counter moves in steps of some tens of milliseconds.
LEAST_WINDOW_S = 2.0

_MILLI = 1e-3


@dataclass(frozen=True)
class Energy:
    """Energy of one step, beyond what the idle GPU would have taken in the same time."""

    energy_j: float  # joules of a step, idle subtracted
    idle_w: float  # watts of the idle GPU, its process and memory in place
    window_s: float  # seconds over which steps were counted


def energy_counter(device: int = 0) -> Callable[[], float] | None:
    """Return a call that reads the joules a CUDA device has taken so far; None where NVML has no counter of it.

    Devices from Volta on have one.
    """
    import pynvml  # its driver library exists only beside a GPU
    import torch

    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except pynvml.NVMLError:
        return None
    return lambda: float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) * _MILLI


def energy_of(
    run: Callable[[], object],
    counter: Callable[[], float],
    synchronize: Callable[[], object],
    idle: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.perf_counter,
) -> Energy:
    """Measure the energy of one call of ``run``.

    The GPU rests for :data:`LEAST_WINDOW_S`, then ``run``, a step, is called until as much time has passed.
    ``counter`` and ``clock`` return joules and seconds so far, ``synchronize`` waits until the device has finished,
    ``idle`` for so many seconds.

    >>> now = [0.0]
    >>> def pass_time(seconds): now[0] += seconds
    >>> energy_of(lambda: pass_time(1.0), lambda: 50 * now[0], lambda: None, pass_time, lambda: now[0])
    Energy(energy_j=0.0, idle_w=50.0, window_s=2.0)
    """
    synchronize()
    joules, start = counter(), clock()
    idle(LEAST_WINDOW_S)
    idle_w = (counter() - joules) / (clock() - start)
    steps, joules, start = 0, counter(), clock()
    while (window := clock() - start) < LEAST_WINDOW_S:
        run()
        synchronize()
        steps += 1
    return Energy((counter() - joules - idle_w * window) / steps, idle_w, window)
