"""How many threads trainings have: small ones one, unless a variable says another number."""

import types

import pytest
import torch
from small_cells import a_cell

from bench.core.processors import THREAD_VARIABLES
from bench.protocol import Data
from bench.runner import threads


@pytest.fixture
def chosen(monkeypatch):
    """A function that returns the number of threads chosen for a cell, None where it is left as it is."""
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    found = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(torch, "set_num_threads", found.append)

    def choose(parameters, **fields):
        found.clear()
        model = types.SimpleNamespace(parameters=lambda: [torch.empty(parameters, device="meta")])
        monkeypatch.setattr(threads, "open_cell_workload", lambda *_: types.SimpleNamespace(build=lambda: model))
        threads.spare_threads([types.SimpleNamespace(cells=[a_cell(**fields)], data=Data())])
        return found[0] if found else None

    return choose


def test_small_trainings_have_one_thread(chosen, capsys):
    assert chosen(threads.SMALL - 1, measure="train", device="cpu") == 1
    assert capsys.readouterr().err == "small models train on one thread; OMP_NUM_THREADS sets another number.\n"


@pytest.mark.parametrize(
    ("parameters", "measure", "device"),
    [(threads.SMALL, "train", "cpu"), (10, "run", "cpu"), (10, "train", "cuda")],
)
def test_other_work_keeps_its_threads(chosen, parameters, measure, device):
    assert chosen(parameters, measure=measure, device=device) is None


@pytest.mark.parametrize("name", THREAD_VARIABLES)
def test_whoever_asks_for_threads_has_them(chosen, monkeypatch, name):
    monkeypatch.setenv(name, "2")
    assert chosen(10, measure="train", device="cpu") is None
