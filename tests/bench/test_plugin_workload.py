"""A workload of another package's: click labels, embedding bags, no text, a metric of its own. Nothing of the bench,
of comera or of the figures is touched for it, and every command works on it.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from small_cells import TIMING, run_bench
from torch import nn
from torch.nn import functional as F

import bench.workloads
from bench.commands.compare import Pair
from bench.core.plugins import BY_HAND
from bench.core.record import read_all
from bench.core.samples import last_per_example
from bench.core.table import table_path
from bench.errors import ConfigError
from bench.gate.exact import all_benchmarks, measure
from bench.protocol import Data, Evaluation, Gated, Metric, Stage, Words
from bench.training.run import checked_metric
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


class UnmeasuredClicks(ClickWorkload):
    """Its metric is no number."""

    name = "unmeasured_clicks"

    def evaluate(self, model) -> Evaluation:  # noqa: ARG002
        return Evaluation({"auc": "high"})


class EndlessClicks(ClickWorkload):
    """Its metric is no finite number."""

    name = "endless_clicks"

    def evaluate(self, model) -> Evaluation:  # noqa: ARG002
        return Evaluation({"auc": float("nan")})


#: What every sweep of the small workload is given.
SMALL = ("run", "~experiment", "name=clicks", "workload=clicks", "device=cpu", "batch_size=20", "results=records")
SMALL += tuple(f"timing.{name}={value}" for name, value in TIMING.items())
ARMS = "methods=[dense,lora,{comera: {ranks: 4, order: 2}}]"


@pytest.fixture(autouse=True, scope="module")
def known():
    """The two workloads are known within this module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BY_HAND, "workload", {})
        for workload in (ClickWorkload, PhasedClicks, UnmeasuredClicks, EndlessClicks):
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

    def test_check(self, folder):
        records = swept(folder, "measure=check", "methods=[dense]")
        assert all(row["passed"] is not False for row in records["dense"].samples["checks"])

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

    @pytest.mark.slow
    def test_the_table(self, folder):
        records = {record.cell_id: record for record in read_all(folder / "records", "clicks")}
        table = pd.read_csv(table_path(folder / "records", "clicks"), float_precision="round_trip")
        assert sorted(table["cell_id"]) == sorted(records)
        assert table.columns[-1] == "metric_auc"
        for _, line in table.iterrows():
            record = records[line["cell_id"]]
            assert line["metric_auc"] == record.metrics["auc"] if record.metrics else np.isnan(line["metric_auc"])
            assert line["workload"] == "clicks"

    @pytest.mark.slow
    @pytest.mark.parametrize("method", ["dense", "comera"])
    def test_predict(self, tmp_path, method):
        small = ["settings.comera.ranks=4", "settings.comera.order=2"] if method == "comera" else []
        ended = run_bench(tmp_path, "predict", "workload=clicks", f"method={method}", "device=h100", *small)
        assert ended.status == 0, ended.error
        assert ended.output.startswith(f"{method} on the workload clicks, data drawn, batch 8, fp32\n")
        assert "Largest batch that fits: 65,536 at least" in ended.output

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
        found = Pair(before, record).difference
        assert found.low < found.value < found.high

    def test_its_settings_are_checked(self, tmp_path):
        for words, said in (
            ("clicks.examples=0", "clicks: examples is 0; allowed: whole numbers from 1"),
            ("clicks.examples=many", "clicks.examples is 'many'"),
            ("clicks.pages=1", "clicks.pages"),
            (
                "workload=phased_clicks measure=train training.early_steps=3",
                "training.early_steps is unknown; allowed: ",
            ),
            ("workload=phased_clicks measure=train training.first_steps=few", "training.first_steps is 'few'"),
            ("workload=clicks measure=train training.first_steps=3", "training.first_steps is unknown; allowed: early"),
        ):
            ended = run_bench(tmp_path, *SMALL, "methods=[dense]", *words.split())
            assert_one_sentence(ended, said)

    @pytest.mark.parametrize(
        ("metrics", "said"),
        [
            ({"auc": "high"}, "returns 'high' as its metric 'auc'; allowed: numbers."),
            ({"auc": True}, "returns True as its metric 'auc'; allowed: numbers."),
            ({"auc": 0.5, "other": None}, "returns None as its metric 'other'; allowed: numbers."),
            ({"AUC": 0.5}, "leads with the metric 'auc', but evaluate returns AUC."),
            ({}, "leads with the metric 'auc', but evaluate returns none."),
        ],
    )
    def test_a_metric_that_is_no_number(self, monkeypatch, metrics, said):
        workload = ClickWorkload(ClickSettings())
        monkeypatch.setattr(workload, "evaluate", lambda _: Evaluation(metrics), raising=False)
        with pytest.raises(ConfigError) as error:
            checked_metric(workload.evaluate(None), workload)
        assert str(error.value) == f"workload=clicks {said}"

    def test_a_metric_that_is_no_number_ends_the_sweep(self, tmp_path):
        small = ("measure=train", "methods=[dense]", "training.early_steps=2", "training.late_steps=2")
        ended = run_bench(tmp_path, *SMALL, *small, "workload=unmeasured_clicks")
        assert_one_sentence(ended, "workload=unmeasured_clicks returns 'high' as its metric 'auc'; allowed: numbers.")

    def test_a_metric_that_is_not_finite_is_a_run_that_diverged(self, tmp_path):
        small = ("measure=train", "methods=[dense]", "training.early_steps=2", "training.late_steps=2")
        ended = run_bench(tmp_path, *SMALL, *small, "workload=endless_clicks")
        assert ended.status == 0
        [record] = read_all(tmp_path / "records")
        assert record.status == "diverged"
        assert "the validation auc of endless_clicks is not finite at step 2" in record.message


def assert_one_sentence(ended, said):
    assert (ended.status, ended.output) == (2, ""), ended.error
    assert ended.error.startswith("error: ")
    assert ended.error.count("\n") == 1
    assert said in ended.error


def test_values_that_are_not_those_of_the_metric():
    workload = ClickWorkload(ClickSettings())
    with pytest.raises(ConfigError, match=r"^workload=clicks returns 2 values with a mean of 0.5, not 0.75 as its"):
        checked_metric(Evaluation({"auc": 0.75}, [0.25, 0.75]), workload)


class TestWrongPlugins:
    @pytest.mark.parametrize(
        "name", ["Settings", "open", "build", "targets", "batches", "loss", "evaluate", "in_stage"]
    )
    def test_a_missing_member_is_named(self, name):
        members = {member: getattr(ClickWorkload, member) for member in bench.workloads._MEMBERS}
        members |= {"name": "lacking", "section": "lacking"}
        del members[name]
        with pytest.raises(ConfigError, match=rf"^workload .*Lacking lacks {name}\.$"):
            bench.workloads.register(type("Lacking", (), members))
        assert "lacking" not in bench.workloads.available()

    def test_an_abstract_member_is_named_too(self):
        class Unfinished(BaseWorkload):
            name, Settings = "unfinished", ClickSettings

        with pytest.raises(ConfigError, match="lacks batches, build, loss, targets"):
            bench.workloads.register(Unfinished)

    def test_what_an_opened_workload_lacks_is_named(self):
        members = {member: getattr(ClickWorkload, member) for member in bench.workloads._MEMBERS}
        kind = type("Unopened", (), {**members, "open": classmethod(lambda cls, *_: cls())})
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(BY_HAND["workload"], "clicks", kind)
            with pytest.raises(ConfigError, match="'clicks' lacks examples_per_epoch, dataset, data_hash, training_ex"):
                bench.workloads.open_workload("clicks", ClickSettings(rows=7), Data(), check=False)

    @pytest.mark.parametrize("taken", ["clicks", "encoder"])
    def test_a_name_that_is_taken(self, taken):
        other = type("Other", (ClickWorkload,), {"name": taken, "__module__": "elsewhere"})
        with pytest.raises(ConfigError, match=f"'{taken}' .*taken"):
            bench.workloads.register(other)

    def test_a_section_that_is_taken(self, monkeypatch):
        monkeypatch.setitem(BY_HAND["workload"], "other", type("Other", (ClickWorkload,), {"section": "model"}))
        with pytest.raises(ConfigError, match="'other' has the section 'model', which is taken"):
            bench.workloads.config_sections()

    @pytest.mark.parametrize(
        "command", [("run", *SMALL[1:], "methods=[dense]"), ("predict", "method=dense"), ("predict",)]
    )
    @pytest.mark.parametrize(
        ("kind", "said"),
        [
            (type("Lacking", (), {"name": "lacking"}), "workload lacking:Lacking lacks Settings, section"),
            (type("Encoder", (ClickWorkload,), {"name": "encoder"}), "'encoder' of lacking:Lacking has a name that is"),
            (ImportError("no such thing"), "workload 'lacking' of lacking:Lacking cannot be imported (no such thing)"),
        ],
    )
    def test_one_of_another_package_is_one_sentence(self, tmp_path, monkeypatch, command, kind, said):
        def load():
            if isinstance(kind, Exception):
                raise kind
            return kind

        point = SimpleNamespace(name="lacking", value="lacking:Lacking", load=load)
        found = {"comera_bench.workloads": [point]}
        monkeypatch.setattr("importlib.metadata.entry_points", lambda group: found.get(group, []))
        monkeypatch.delitem(vars(bench.workloads._REGISTRY), "_found", raising=False)
        assert_one_sentence(run_bench(tmp_path, *command), said)
        vars(bench.workloads._REGISTRY).pop("_found", None)


def test_the_gate_counts_what_it_names():
    mine = {one.name: one for one in all_benchmarks() if one.workload == "clicks"}
    assert set(mine) == {f"clicks/{arm}/batch-8/{device}" for arm in ("dense", "lora") for device in ("cpu", "cuda")}
    counted = measure(mine["clicks/dense/batch-8/cpu"])
    assert counted["parameters"] == sum(p.numel() for p in Clicks(ClickSettings()).parameters())
    assert counted["flops_per_step"] > 0
