"""A workload of another package's, with a plan, a metric and cells of the gate of its own.

docs/extending.md adds a plainer one, which ``tests/test_extending.py`` puts through every command.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from small_cells import TIMING, run_bench_apart
from torch import nn
from torch.nn import functional as F

import bench.workloads
from bench.core.record import read_all
from bench.core.samples import per_example
from bench.errors import ConfigError
from bench.gate.exact import all_benchmarks, measure
from bench.protocol import Data, Evaluation, Gated, Metric, Stage, Words
from bench.training.plan import training_cells
from bench.workloads.base import BaseWorkload


@dataclass(frozen=True)
class ClickSettings:
    """Rows and columns of the table, items per bag."""

    rows: int = 50
    columns: int = 16
    bag: int = 4


class Clicks(nn.Module):
    """A sum of embeddings, then two linear layers: items (B, bag) to scores (B,)."""

    def __init__(self, settings: ClickSettings) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(settings.rows, settings.columns, mode="sum")
        self.hidden, self.click = nn.Linear(settings.columns, 32), nn.Linear(32, 1)

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        return self.click(torch.relu(self.hidden(self.bag(items)))).squeeze(1)


@dataclass(frozen=True)
class TwoPhases:
    """A training plan of its own: phases of so many steps, the second with longer bags."""

    first_steps: int = 8
    second_steps: int = 4
    static: bool = True
    time_limit_s: float = 60.0

    def runs(self, steps_per_epoch: int, shrinks: bool) -> list[tuple[Stage, ...]]:  # noqa: ARG002
        return [(Stage("short bags", self.first_steps), Stage("long bags", self.second_steps))]


class ClickWorkload(BaseWorkload):
    """Clicks on items that please."""

    name, Settings, training_plan = "clicks", ClickSettings, TwoPhases
    words = Words("click model", "An epoch is a million impressions.", "impression")
    examples_per_epoch = 1_000_000
    metric = Metric("loss", "validation log-loss", higher_is_better=False)
    gated = (Gated("clicks", ClickSettings(), (8,), arms={"dense": ("dense", {}), "lora": ("lora", {})}),)
    training_examples = 400

    def build(self) -> Clicks:
        return Clicks(self.settings)

    def targets(self) -> dict[str, str]:
        return {"hidden": "feed_forward"}

    def in_stage(self, stage: Stage) -> ClickWorkload:
        longer = self.settings.bag * (2 if stage.name == "long bags" else 1)
        return ClickWorkload(dataclasses.replace(self.settings, bag=longer))

    def rows(self, split: str) -> dict[str, torch.Tensor]:
        shape = (self.training_examples if split == "train" else 101, self.settings.bag)
        items = np.random.default_rng(len(split)).integers(0, self.settings.rows, shape)
        clicks = items.mean(1) > self.settings.rows / 2
        return {"items": torch.from_numpy(items), "clicks": torch.from_numpy(clicks).float()}

    def batches(self, split, batch_size, seed, static, start=0) -> Iterator[dict[str, torch.Tensor]]:  # noqa: ARG002
        rows = self.rows(split)
        for at in range(start * batch_size, len(rows["clicks"]) - batch_size + 1, batch_size):
            yield {name: tensor[at : at + batch_size] for name, tensor in rows.items()}

    def loss(self, model, batch, **how) -> torch.Tensor:
        return F.binary_cross_entropy_with_logits(model(batch["items"]), batch["clicks"], **how)

    @torch.no_grad()
    def evaluate(self, model) -> Evaluation:
        losses = self.loss(model, self.rows("validation"), reduction="none").tolist()
        return Evaluation({"loss": float(np.mean(losses))}, losses)


WORKLOAD = ClickWorkload


@pytest.fixture(autouse=True, scope="module")
def known():
    """The workload is known within this module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENCH_PLUGINS", __name__)
        yield


@pytest.mark.slow
def test_a_plan_of_its_own(tmp_path):
    """Stages have their own names and lengths, and the second one's batches another shape."""
    words = ("run", "~experiment", "name=phased", "workload=clicks", "measure=train", "methods=[dense]")
    words += ("device=cpu", "batch_size=20", "results=records", "training.second_steps=6")
    words += tuple(f"timing.{name}={value}" for name, value in TIMING.items())
    ended = run_bench_apart(tmp_path, *words, BENCH_PLUGINS=__name__)
    assert (ended.status, ended.output) == (0, ""), ended.error
    [record] = read_all(tmp_path / "records", "phased")
    stages = [(row["stage"], row["step"]) for row in record.samples["curve"]]
    assert stages == [("short bags", 8), ("long bags", 14)]
    assert (record.stage, record.train_steps, set(record.metrics)) == ("long bags", 14, {"loss"})
    words = record.workload_words
    assert (words["model"], words["example"], words["examples_per_epoch"]) == ("click model", "impression", 10**6)
    values = per_example(record, record.samples["curve"][-1])
    assert (values.shape, record.validation_examples) == ((101,), 101)
    assert values.mean() == pytest.approx(record.metrics["loss"], rel=1e-5)


def offered(monkeypatch, workload):
    """Let a further module offer a workload."""
    module = types.ModuleType("another_package")
    module.WORKLOAD = workload
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setenv("BENCH_PLUGINS", f"{__name__},{module.__name__}")


@pytest.mark.parametrize("name", ["Settings", "build", "evaluate"])
def test_a_missing_member_is_named(name, monkeypatch):
    members = {member: getattr(ClickWorkload, member) for member in bench.workloads._MEMBERS}
    members |= {"name": "lacking", "section": "lacking"}
    del members[name]
    offered(monkeypatch, type("Lacking", (), members))
    with pytest.raises(ConfigError, match=f"of another_package lacks {name}"):
        bench.workloads.available()


def test_opening_and_planning_compute_no_metric(monkeypatch):
    """Its probes may take a minute of counting, and a job that is only resolved shows none of it."""
    metric = functools.cached_property(lambda _: pytest.fail("the metric is computed"))
    kind = type("Counting", (ClickWorkload,), {"name": "counting", "section": "counting", "metric": metric})
    metric.__set_name__(kind, "metric")
    offered(monkeypatch, kind)
    opened = bench.workloads.open_workload("counting", kind.Settings(), Data(), False)

    def planned(*_):
        raise ConfigError("planned")

    monkeypatch.setattr("bench.training.plan.plan_of", planned)
    with pytest.raises(ConfigError, match="planned"):
        training_cells(None, {}, opened)


def test_a_metric_that_turns_out_to_be_none_is_refused():
    kind = type("Without", (), {"name": "made_up", "training_examples": 10, "metric": property(lambda _: None)})
    with pytest.raises(ConfigError, match="made_up has no metric to evaluate"):
        training_cells(None, {}, kind())


@pytest.mark.parametrize("taken", ["clicks", "encoder"])
def test_a_name_that_is_taken_is_refused(taken, monkeypatch):
    other = type("Other", (ClickWorkload,), {"name": taken, "__module__": "elsewhere"})
    offered(monkeypatch, other)
    with pytest.raises(ConfigError, match=f"'{taken}' of another_package has a name that is taken"):
        bench.workloads.available()


def test_the_gate_counts_what_it_names():
    mine = {one.name: one for one in all_benchmarks() if one.workload == "clicks"}
    assert set(mine) == {f"clicks/{arm}/batch-8/{device}" for arm in ("dense", "lora") for device in ("cpu", "cuda")}
    counted = measure(mine["clicks/dense/batch-8/cpu"])
    assert counted["parameters"] == sum(p.numel() for p in Clicks(ClickSettings()).parameters())
    assert counted["flops_per_step"] > 0
