"""Energy of a training step on an NVIDIA GPU, from the counter that its driver keeps (NVML)."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

#: Least length of a window, in seconds: the counter moves in steps of some tens of milliseconds.
LEAST_WINDOW_S = 2.0

#: Seconds that a GPU rests before its idle power is measured: its clocks fall with a delay.
REST_S = 5.0

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


def idle_power(
    counter: Callable[[], float],
    synchronize: Callable[[], object],
    rest: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the watts of the idle GPU over :data:`LEAST_WINDOW_S`, after a rest of :data:`REST_S`.

    ``counter`` and ``clock`` return joules and seconds so far, ``synchronize`` waits until the device has finished,
    ``rest`` for so many seconds.
    """
    synchronize()
    rest(REST_S)
    joules, start = counter(), clock()
    rest(LEAST_WINDOW_S)
    return (counter() - joules) / (clock() - start)


def energy_of(
    run: Callable[[], object],
    step_s: float,
    idle_w: float,
    counter: Callable[[], float],
    synchronize: Callable[[], object],
    clock: Callable[[], float] = time.perf_counter,
) -> Energy:
    """Measure the energy of one call of ``run``, a step of about ``step_s`` seconds.

    As many steps as fill :data:`LEAST_WINDOW_S` are queued before the device is waited for, and again until as much
    time has passed. ``idle_w`` is from :func:`idle_power`, whose other arguments these are too.

    >>> now = [0.0]
    >>> def step(): now[0] += 1.0
    >>> energy_of(step, 1.0, 20.0, lambda: 50 * now[0], lambda: None, lambda: now[0])
    Energy(energy_j=30.0, idle_w=20.0, window_s=2.0)
    """
    synchronize()
    steps, joules, start = 0, counter(), clock()
    while (window := clock() - start) < LEAST_WINDOW_S:
        for _ in range(queued := math.ceil((LEAST_WINDOW_S - window) / step_s)):
            run()
        synchronize()
        steps += queued
    return Energy((counter() - joules - idle_w * window) / steps, idle_w, window)
