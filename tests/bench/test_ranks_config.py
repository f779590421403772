"""Settings of several ranks: what becomes of them, and one sentence for each that is wrong."""

from __future__ import annotations

import pytest
import torch
from small_cells import a_configuration, run_bench, small

from bench.core.cell import LOCAL_STEPS
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
        *("ddp", "ddp", "powersgd_4"),
    ]
    cells = resolve(config | {"methods": arms, "world_size": 2, "exchange": "ddp_bf16"}).cells
    assert [cell.exchange for cell in cells] == ["ddp_bf16", "ddp_bf16", "powersgd_4", "ddp"]
    assert [cell.arm for cell in cells] == ["comera+ddp_bf16", "dense+ddp_bf16", "dense+powersgd_4", "dense"]
    assert {cell.backend for cell in cells} == {"gloo"}


def test_settings_go_to_the_exchanges_that_have_them(config):
    arms = ["dense", "dense+local_steps", "dense+fsdp2"]
    asked = {"methods": arms, "world_size": 2, "bucket_mib": 1, "local_steps": 5, "link_mbit": 100}
    found = [(cell.bucket_mib, cell.local_steps, cell.link_mbit) for cell in resolve(config | asked).cells]
    assert found == [(1, None, 100), (None, 5, 100), (None, None, 100)]
    [cell] = resolve(config | {"methods": ["dense+local_steps"], "world_size": 2}).cells
    assert cell.local_steps == LOCAL_STEPS


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"world_size": 0}, "world_size is 0; allowed: whole numbers from 1 to 4,096."),
        ({"world_size": 2.5}, "world_size is 2.5; allowed: whole numbers from 1 to 4,096."),
        ({"world_size": 2, "exchange": "dpp"}, "exchange is 'dpp'; allowed: ddp, ddp_bf16, powersgd_4, powersgd_32"),
        ({"exchange": "dpp"}, "exchange is 'dpp'; allowed: ddp,"),
        ({"exchange": 3}, "exchange is 3"),
        ({"exchange": "ddp"}, "exchange is 'ddp', which one rank has no use for; allowed: world_size from 2 up."),
        ({"methods": ["dense+powersgd_4"]}, "exchange of dense+powersgd_4 is 'powersgd_4', which one rank has no use"),
        ({"methods": ["dense+ddp"]}, "exchange of dense is 'ddp', which one rank"),
        ({"link_mbit": 10}, "link_mbit is 10, which one rank has no use for"),
        ({"bucket_mib": 1}, "bucket_mib is 1, which one rank"),
        ({"local_steps": 4}, "local_steps is 4, which one rank"),
        ({"world_size": 2, "link_mbit": 0}, "link_mbit is 0; allowed: finite numbers above 0, or null."),
        ({"world_size": 2, "bucket_mib": -1}, "bucket_mib is -1; allowed: finite numbers above 0, or null."),
        ({"world_size": 2, "local_steps": 0}, "local_steps is 0; allowed: whole numbers from 1 up, or null."),
        ({"world_size": 2, "local_steps": 4}, "local_steps is 4, which only exchange=local_steps has a use for."),
        (
            {"world_size": 2, "exchange": "fsdp2", "bucket_mib": 4},
            "bucket_mib is 4, which only exchange=ddp, ddp_bf16, powersgd_4, powersgd_32 has a use for.",
        ),
        (
            {"world_size": 2, "measure": "predict"},
            "world_size is 2, but measure=predict is of one rank; allowed: run, train.",
        ),
        ({"world_size": 3, "batch_size": 100}, "batch_size is 100 on each of world_size=3 ranks, but"),
        ({"world_size": 1000}, "allowed: none, there are fewer rows than ranks."),
    ],
)
def test_a_wrong_value_is_one_sentence(config, changes, sentence):
    with pytest.raises(ConfigError) as error:
        resolve(config | changes)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_a_rank_needs_a_device_of_its_own(config, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match=r"world_size is 2, but here are 1 CUDA device\(s\), one per rank\."):
        resolve(config | {"world_size": 2, "device": "cuda"})
    assert resolve(config | {"world_size": 2, "device": "cuda"}, elsewhere=True).cells[0].backend == "nccl"


def test_the_command_ends_with_status_2(pairs, tmp_path):
    arguments = ["experiment=fig1", *small(pairs, tmp_path / "results"), "methods=[dense]", "exchange=ddp"]
    ended = run_bench(tmp_path, *arguments)
    assert ended.status == 2
    assert ended.error.strip().splitlines() == [
        "error: exchange is 'ddp', which one rank has no use for; allowed: world_size from 2 up."
    ]
