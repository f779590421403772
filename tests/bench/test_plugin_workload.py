"""A workload of another package's: click labels, embedding bags, no text, a metric of its own. Nothing of the bench,
of comera or of the figures is touched for it, and every command works on it.
"""

import dataclasses
import io
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import torch
from small_cells import TIMING, run_bench
from torch import nn
from torch.nn import functional as F

import bench.workloads
from bench.commands.compare import ComparedPair
from bench.core.plugins import BY_HAND
from bench.core.record import read_all
from bench.core.samples import last_per_example
from bench.errors import ConfigError
from bench.gate.exact import all_benchmarks, measure
from bench.protocol import Evaluation, Gated, Metric, Stage, Words
from bench.workloads.base import BaseWorkload


@dataclass(frozen=True)
class ClickSettings:
    """Rows of each table, columns of all, tables, items per bag, width of the hidden layer, training examples."""

    rows: int = 50
    columns: int = 16
    tables: int = 3
    bag: int = 4
    hidden: int = 32
    examples: int = 400

    def __post_init__(self) -> None:
        if self.examples < 1:
            raise ValueError(f"examples is {self.examples}; allowed: whole numbers from 1")


class Clicks(nn.Module):
    """Sums of embeddings, one bag per table, then two linear layers."""

    def __init__(self, settings: ClickSettings) -> None:
        super().__init__()
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(settings.rows, settings.columns, mode="sum") for _ in range(settings.tables)
        )
        self.hidden = nn.Linear(settings.tables * settings.columns, settings.hidden)
        self.click = nn.Linear(settings.hidden, 1)

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        """Scores (B,) of items (B, tables, bag)."""
        sums = [bag(items[:, place]) for place, bag in enumerate(self.bags)]
        return self.click(torch.relu(self.hidden(torch.cat(sums, dim=1)))).squeeze(1)


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
    """Clicks on items that please; a user's taste is the sign of a sum over the bag."""

    name, Settings = "clicks", ClickSettings
    words = Words("click model", "An epoch is a million impressions.", "impression")
    metric = Metric("auc", "validation AUC", guess=0.5)
    examples_per_epoch = 1_000_000
    gated = (Gated("clicks", ClickSettings(), (8,), arms={"dense": ("dense", {}), "lora": ("lora", {})}),)

    @property
    def training_examples(self) -> int:
        return self.settings.examples

    def build(self) -> Clicks:
        return Clicks(self.settings)

    def targets(self) -> dict[str, str]:
        return {"hidden": "feed_forward"}

    def rows(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Items (examples, tables, bag) and clicks."""
        settings = self.settings
        source = np.random.default_rng(len(split))
        shape = (settings.examples if split == "train" else 101, settings.tables, settings.bag)
        items = source.integers(0, settings.rows, shape)
        taste = np.random.default_rng(0).normal(size=settings.rows)
        return items, taste[items].sum((1, 2)) > 0

    def batches(self, split, batch_size, seed, static, start=0) -> Iterator[dict[str, torch.Tensor]]:
        items, clicks = self.rows(split)
        order = np.random.default_rng(seed).permutation(len(items)) if split == "train" else np.arange(len(items))
        for at in range(start * batch_size, len(items), batch_size):
            chosen = order[at : at + batch_size]
            if len(chosen) == batch_size or not static:
                yield {"items": torch.from_numpy(items[chosen]), "clicks": torch.from_numpy(clicks[chosen]).float()}

    def loss(self, model, batch) -> torch.Tensor:
        return F.binary_cross_entropy_with_logits(model(batch["items"]), batch["clicks"])

    @torch.no_grad()
    def evaluate(self, model) -> Evaluation:
        items, clicks = self.rows("validation")
        scores = model(torch.from_numpy(items)).float().numpy()
        above = scores[clicks][:, None] > scores[~clicks][None, :]
        return Evaluation({"auc": float(above.mean())}, examples=len(items))


class PhasedClicks(ClickWorkload):
    """The same in two phases, by log-loss, which has a value per example."""

    name = "phased_clicks"
    metric = Metric("loss", "validation log-loss", higher_is_better=False)
    training_plan = TwoPhases

    def in_stage(self, stage: Stage) -> ClickWorkload:
        longer = self.settings.bag * (2 if stage.name == "long bags" else 1)
        return PhasedClicks(dataclasses.replace(self.settings, bag=longer))

    @torch.no_grad()
    def evaluate(self, model) -> Evaluation:
        items, clicks = self.rows("validation")
        losses = F.binary_cross_entropy_with_logits(
            model(torch.from_numpy(items)), torch.from_numpy(clicks).float(), reduction="none"
        ).tolist()
        return Evaluation({"loss": float(np.mean(losses))}, losses)


#: What every sweep of the small workload is given.
SMALL = ("run", "~experiment", "name=clicks", "workload=clicks", "device=cpu", "batch_size=20", "results=records")
SMALL += tuple(f"timing.{name}={value}" for name, value in TIMING.items())
ARMS = "methods=[dense,lora,{comera: {ranks: 4, order: 2}}]"


@pytest.fixture(autouse=True, scope="module")
def known():
    """The two workloads are known within this module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BY_HAND, "workload", {})
        for workload in (ClickWorkload, PhasedClicks):
            bench.workloads.register(workload)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("clicks")


def swept(folder, *arguments, experiment="clicks"):
    """The records of a sweep, by arm and stage."""
    before = {record.cell_id for record in read_all(folder / "records")} if (folder / "records").exists() else set()
    ended = run_bench(folder, *SMALL, *arguments)
    assert (ended.status, ended.output) == (0, ""), ended.error
    assert "Traceback" not in ended.error
    new = [record for record in read_all(folder / "records", experiment) if record.cell_id not in before]
    assert {record.status for record in new} == {"ok"}, [record.message for record in new]
    return {f"{record.arm} {record.stage}".rstrip(): record for record in new}


@pytest.mark.usefixtures("cell_processes")
class TestCommands:
    """In this order, since the later ones look at what the earlier have recorded."""

    @pytest.mark.slow
    def test_run(self, folder):
        records = swept(folder, ARMS)
        assert set(records) == {"dense", "lora", "comera"}
        for record in records.values():
            assert record.step_time_median_ms > 0
            assert record.peak_memory_predicted_mib > 0
            words = record.workload_words
            assert (words["model"], words["example"], words["examples_per_epoch"]) == (
                "click model",
                "impression",
                10**6,
            )
            times = [ms for block in record.samples["blocks"] for ms in block["ms"]]
            assert record.epoch_time_s == pytest.approx(np.mean(times) / 1e3 * 10**6 / 20)

    @pytest.mark.slow
    def test_train(self, folder):
        records = swept(
            folder,
            "measure=train",
            "methods=[dense,{comera: {ranks: 4, order: 2, lr_ranks: 0.01}}]",
            "training.early_steps=30",
            "training.late_steps=220",
            "training.targets=[0.5]",
            "settings.dense.lr=0.01",
        )
        assert set(records) == {"dense late", "comera early", "comera late"}
        for record in records.values():
            assert set(record.metrics) == {"auc"}
            assert (record.validation_examples, record.metric["text"]) == (101, "validation AUC")
            curve = record.samples["curve"]
            assert curve[-1]["metrics"] == record.metrics
            assert "per_example" not in curve[-1]
        assert records["dense late"].metrics["auc"] > 0.6

    @pytest.mark.slow
    def test_compare(self, folder):
        ended = run_bench(folder, "compare", "records", "records", "--format", "csv")
        assert ended.status == 0, ended.error
        rows = pd.read_csv(io.StringIO(ended.output))
        trained = rows[rows["measure"] == "train"]
        assert (trained["metric"] == "auc").all()
        assert (trained["metric_difference"] == 0).all()
        assert trained["metric_difference_low"].isna().all()
        assert "validation AUC" in run_bench(folder, "compare", "records", "records").output

    def test_a_plan_of_its_own(self, folder):
        """Stages have their own names and lengths, and the second one's batches another shape."""
        mine = ("workload=phased_clicks", "measure=train", "methods=[dense]", "name=phased")
        records = swept(folder, *mine, "training.second_steps=6", experiment="phased")
        [record] = records.values()
        stages = [(row["stage"], row["step"]) for row in record.samples["curve"]]
        assert stages == [("short bags", 8), ("long bags", 14)]
        assert (record.stage, record.train_steps, set(record.metrics)) == ("long bags", 14, {"loss"})
        values = last_per_example(record)
        assert (values.shape, record.validation_examples) == ((101,), 101)
        assert values.mean() == pytest.approx(record.metrics["loss"], rel=1e-5)
        before = dataclasses.replace(record, samples={"curve": record.samples["curve"][:1]})
        before.metrics = before.samples["curve"][0]["metrics"]
        found = ComparedPair(before, record).difference
        assert found.low < found.value < found.high


class TestWrongPlugins:
    @pytest.mark.parametrize("name", ["Settings", "build", "evaluate"])
    def test_a_missing_member_is_named(self, name):
        members = {member: getattr(ClickWorkload, member) for member in bench.workloads._MEMBERS}
        members |= {"name": "lacking", "section": "lacking"}
        del members[name]
        with pytest.raises(ConfigError, match=rf"^workload .*Lacking lacks {name}\.$"):
            bench.workloads.register(type("Lacking", (), members))
        assert "lacking" not in bench.workloads.available()

    @pytest.mark.parametrize("taken", ["clicks", "encoder"])
    def test_a_name_that_is_taken(self, taken):
        other = type("Other", (ClickWorkload,), {"name": taken, "__module__": "elsewhere"})
        with pytest.raises(ConfigError, match=f"'{taken}' .*taken"):
            bench.workloads.register(other)


def test_the_gate_counts_what_it_names():
    mine = {one.name: one for one in all_benchmarks() if one.workload == "clicks"}
    assert set(mine) == {f"clicks/{arm}/batch-8/{device}" for arm in ("dense", "lora") for device in ("cpu", "cuda")}
    counted = measure(mine["clicks/dense/batch-8/cpu"])
    assert counted["parameters"] == sum(p.numel() for p in Clicks(ClickSettings()).parameters())
    assert counted["flops_per_step"] > 0
