"""Settings of several ranks: what becomes of them, and one sentence for each that is wrong."""

import pytest
import torch
from small_cells import a_configuration, one_line

from bench.errors import ConfigError
from bench.runner.resolve import resolve


@pytest.fixture
def config(pairs):
    return a_configuration(pairs, methods=["comera", "dense"])


def test_one_rank_leaves_cells_as_they_are(config):
    for cell in resolve(config).cells:
        assert (cell.world_size, cell.exchange, cell.backend) == (1, "", "")
        assert "world_size" not in cell.to_json()


def test_arms_exchange_as_they_say_and_else_as_the_job_says(config):
    arms = ["comera", "dense", "dense+powersgd_4", "dense+ddp"]
    assert [cell.exchange for cell in resolve(config | {"methods": arms, "world_size": 2}).cells] == [
        *("ddp", "ddp", "powersgd_4")
    ]
    cells = resolve(config | {"methods": arms, "world_size": 2, "exchange": "fsdp2"}).cells
    assert [cell.exchange for cell in cells] == ["fsdp2", "fsdp2", "powersgd_4", "ddp"]
    assert [cell.arm for cell in cells] == ["comera+fsdp2", "dense+fsdp2", "dense+powersgd_4", "dense"]
    assert {cell.backend for cell in cells} == {"gloo"}


TWO = {"world_size": 2}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"world_size": 0}, "world_size"),
        ({"world_size": 2.5}, "world_size"),
        ({"exchange": "dpp"}, "exchange"),
        (TWO | {"exchange": "dpp"}, "exchange"),
        (TWO | {"link_mbit": 10}, "link_mbit"),
        ({"exchange": "ddp"}, "exchange"),
        ({"methods": ["dense+powersgd_4"]}, "exchange"),
        ({"methods": ["dense+ddp"]}, "exchange"),
        (TWO | {"measure": "predict"}, "measure"),
        ({"world_size": 3, "batch_size": 100}, "batch_size"),
        ({"world_size": 1000}, "world_size"),
    ],
)
def test_a_wrong_value_is_one_line_that_names_its_field(config, changes, field):
    with one_line(ConfigError, field):
        resolve(config | changes)


def test_a_rank_needs_a_device_of_its_own(config, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match="world_size"):
        resolve(config | TWO | {"device": "cuda"})
    assert resolve(config | TWO | {"device": "cuda"}, elsewhere=True).cells[0].backend == "nccl"
