"""Rivals of CoMERA's size and of its ranks: what configurations, predictions and records make of @size and @rank."""

import dataclasses

import pytest
import torch
from small_cells import a_cell, a_configuration, a_record, changed

from bench.core.cell import Cell
from bench.protocol import Data
from bench.protocol.methods import ConfigError, build_for
from bench.runner.resolve import resolve
from bench.workloads import open_cell_workload

METHODS = ["comera", "low_rank@size", "low_rank@size:lean", "low_rank@rank", "low_rank"]


def parameters(cell: Cell, data: Data) -> int:
    """The parameters that a cell trains."""
    with torch.device("meta"):
        workload = open_cell_workload(cell, data)
        model = build_for(cell).adapt(workload.build(), workload.targets())
    return sum(parameter.numel() for parameter in model.parameters())


def counts(config: dict) -> dict[str, int]:
    job = resolve(config)
    return {cell.arm: parameters(cell, job.data) for cell in job.cells}


@pytest.fixture
def config(pairs):
    return a_configuration(pairs, methods=METHODS)


@pytest.mark.parametrize("ratio", [None, 2.0])
def test_a_rival_of_equal_size_has_comeras_parameters(config, ratio):
    sizes = counts(changed(config, "ratio", ratio))
    assert sizes["low_rank@size"] == pytest.approx(sizes["comera"], rel=0.02)
    assert sizes["low_rank@size:lean"] == sizes["low_rank@size"]
    assert sizes["low_rank@rank"] > 1.1 * sizes["comera"]


def test_its_size_follows_comeras_own_settings(config):
    small = counts(changed(config, "settings", {"comera": {"ranks": 8, "table_ranks": 30}}))
    assert small["low_rank@size"] == pytest.approx(small["comera"], rel=0.02)
    own = counts(changed(config, "methods", [{"comera": {"table_ranks": 24}}, "low_rank@size"]))
    assert own["low_rank@size"] == pytest.approx(own["comera"], rel=0.02)
    config |= {"ratio": 2.0, "methods": ["comera", "low_rank@size"]}
    ratios = counts(changed(config, "settings", {"comera": {"ratio": 4.0}}))
    assert ratios["low_rank@size"] == pytest.approx(ratios["comera"], rel=0.02)


def test_a_rival_of_equal_rank_has_comeras_middle_ranks_at_a_ratio(config):
    job = resolve(changed(config, "ratio", 2.0))
    cells = {cell.arm: cell for cell in job.cells}
    with torch.device("meta"):
        workload = open_cell_workload(cells["comera"], job.data)
        ours = build_for(cells["comera"]).adapt(workload.build(), workload.targets())
        arm = build_for(cells["low_rank@rank"])
        theirs = arm.factor_ranks(arm.adapt(workload.build(), workload.targets()))
    name = "blocks.0.attention.query"
    assert name in theirs
    layer = ours.get_submodule(name)
    assert theirs[name] == layer.shape.ranks[len(layer.shape.ranks) // 2]
    assert cells["low_rank@rank"].ratio == 2.0  # it stands beside the arms of that ratio


def test_the_plain_arm_is_the_one_of_equal_rank_where_nothing_is_solved(config):
    job = resolve(config)
    assert [cell.arm for cell in job.cells] == ["comera", "low_rank@size", "low_rank@size:lean", "low_rank@rank"]


def test_a_ratio_of_its_own_contradicts_the_match(config):
    for match in ("size", "rank"):
        with pytest.raises(ConfigError, match=r"ratio=8.*@" + match):
            resolve(changed(config, "methods", ["comera", {f"low_rank@{match}": {"ratio": 8.0}}]))


@pytest.mark.parametrize(
    ("settings", "arm"),
    [
        ({"rank": 30, "embedding_rank": 32}, "low_rank@rank"),
        ({"rank": 30, "embedding_rank": 32, "ratio": 44.9}, "low_rank@size"),
        ({"rank": 30, "embedding_rank": 32, "ranks_of_ratio": 8.0}, "low_rank@rank"),
        ({"rank": 16, "embedding_rank": 32}, "low_rank"),
    ],
)
def test_a_record_names_its_arm_as_its_cell_does(settings, arm):
    cell = dataclasses.replace(a_cell(method="low_rank"), method_settings=settings)
    assert Cell.from_json(cell.to_json()).arm == cell.arm == arm
    assert a_record(method="low_rank", config_json=cell.to_json()).arm == arm
