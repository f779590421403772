"""Energy of a step: the idle GPU's share is subtracted."""

import sys
from types import SimpleNamespace

import pytest
from test_advise_measure import asked

from bench.advise.measure import MeasuredBlock, Times, as_json, as_text
from bench.step.energy import Energy, energy_counter, energy_of, idle_power


class Gpu:
    """A made-up device: ``idle`` watts at all times, ``busy`` more while it runs; its queue ends at a synchronize."""

    def __init__(self, idle: float, busy: float) -> None:
        self.idle, self.busy = idle, busy
        self.now = self.joules = self.queued = 0.0
        self.waits = 0

    def rest(self, seconds: float) -> None:
        self.now += seconds
        self.joules += self.idle * seconds

    def launch(self, seconds: float) -> None:
        self.queued += seconds

    def synchronize(self) -> None:
        self.waits += 1
        self.rest(self.queued)
        self.joules += self.busy * self.queued
        self.queued = 0.0

    def measured(self, step_s: float, guessed_s: float | None = None) -> Energy:
        def counter() -> float:
            return self.joules

        def clock() -> float:
            return self.now

        idle_w = idle_power(counter, self.synchronize, self.rest, clock)
        self.waits = 0
        return energy_of(lambda: self.launch(step_s), guessed_s or step_s, idle_w, counter, self.synchronize, clock)


@pytest.mark.parametrize("step_s", [0.3, 0.9, 5.0])
@pytest.mark.parametrize("idle", [0.0, 70.0])
def test_the_idle_gpu_s_share_is_subtracted(step_s, idle):
    gpu = Gpu(idle, busy=300.0)
    gpu.launch(10.0)  # an earlier step that is still running
    found = gpu.measured(step_s)
    assert found.energy_j == pytest.approx(300.0 * step_s)
    assert found.idle_w == pytest.approx(idle)
    assert found.window_s >= max(2.0, step_s)
    assert gpu.waits == 2  # before the window, and once the steps that fill it are queued


def test_a_window_is_filled_where_a_step_is_faster_than_was_thought():
    found = Gpu(70.0, busy=300.0).measured(0.1, guessed_s=0.5)
    assert found.window_s == pytest.approx(2.0, abs=0.1)
    assert found.energy_j == pytest.approx(30.0)


def test_idle_power_is_measured_after_a_rest():
    gpu = Gpu(70.0, busy=300.0)
    gpu.launch(3.0)  # runs as the rest begins, unless the device is waited for
    rest = gpu.rest
    watts = idle_power(
        lambda: gpu.joules, gpu.synchronize, lambda s: (rest(s), setattr(gpu, "idle", 20.0)), lambda: gpu.now
    )
    assert (watts, gpu.now) == (pytest.approx(20.0), 10.0)


def _driver(monkeypatch, joules=None):
    """Install a driver whose counter has no value, or counts millijoules."""

    class NVMLError(Exception):
        pass

    def total(handle):
        if joules is None:
            raise NVMLError("Not Supported")
        return 1000 * joules[handle]

    names = {
        "NVMLError": NVMLError,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
        "nvmlDeviceGetTotalEnergyConsumption": total,
    }
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(**names))
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: SimpleNamespace(uuid=f"0{device}"))


def test_the_counter_is_that_of_the_process_s_device_in_joules(monkeypatch):
    _driver(monkeypatch, {"GPU-00": 3, "GPU-01": 5})
    assert energy_counter(1)() == 5.0


def test_a_device_without_a_counter_has_none(monkeypatch):
    _driver(monkeypatch)
    assert energy_counter() is None


def test_the_table_has_energy_where_it_was_measured():
    times, mine, dense = Times(1.0, 2.0, 1.0), Energy(30.0, 70.0, 2.1), Energy(40.0, 70.0, 2.0)
    row = MeasuredBlock("btt, 1/4", 2**20, 2**20, times, times, mine, dense)
    text = as_text(asked("config.json"), [row], memory_alone=False).splitlines()
    assert text[-1].split()[-2:] == ["30", "0.75"]
    [plain] = as_json([row])
    assert plain["energy"] == {"energy_j": 30.0, "idle_w": 70.0, "window_s": 2.1}
