"""Masked language modelling on source files: the corpus and its split, tokens, masks, probes, the model, whole runs."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import json
import math
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from interrupted import Killed, as_bytes, kill_at
from small_cells import a_training_cell, run_bench
from tiny import one_thread  # noqa: F401

import bench.runner.sweep
from bench.core import checkpoint
from bench.core.record import read_all
from bench.core.samples import last_per_example
from bench.data.corpus import DataError
from bench.measures.probe import probe
from bench.protocol import Data, Stage
from bench.protocol.methods import build, checked_settings
from bench.training.run import TrainingRun, Upkeep, checked_metric, scheduled_share
from bench.workloads import open_workload, recorded_words, workload_class
from bench.workloads.code import corpus
from bench.workloads.code import tokens as code_tokens
from bench.workloads.code.corpus import Document, Sources, code_search_net, installed, is_held_out
from bench.workloads.code.masking import chosen_count, masked
from bench.workloads.code.model import CodeSettings, MaskedLanguageModel
from bench.workloads.code.probes import probe_losses
from bench.workloads.code.tokens import FIRST_ID, MASK_ID, SEPARATOR_ID, streams, train_tokenizer
from bench.workloads.code.workload import CodeWorkload, MaskedPlan
from comera import solve_model, tensorize

SMALL = CodeSettings(
    layers=2,
    width=32,
    heads=2,
    feed_forward=64,
    vocabulary=300,
    positions=64,
    dropout=0.1,
    sequence_length=16,
    windows=2,
)
SIDES = {
    out: [name for name in map("package{}".format, range(300)) if is_held_out(name) == out] for out in (True, False)
}


def function(number: int) -> str:
    return f"def area_{number}(width, height):\n    return width * height + {number}\n" * 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Functions in the form of CodeSearchNet, in two files, with one that is there twice."""
    place = tmp_path_factory.mktemp("functions")
    names = [*SIDES[False][:8], *SIDES[True][:6]]
    rows = [
        {"repo": name, "path": "a.py", "func_name": f"f{number}", "original_string": function(7 * place + number)}
        for place, name in enumerate(names)
        for number in range(6)
    ]
    rows.append({**rows[0], "func_name": "again"})
    for number in (0, 1):
        with gzip.open(place / f"python_{number}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows[number::2])
    return place


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(code_tokens.CACHE_VARIABLE, str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def workload(folder):
    return open_workload("code", SMALL, Data(data_folder=str(folder)), check=True)


class TestModel:
    def test_the_papers_has_as_many_parameters_as_published(self):
        with torch.device("meta"):
            model = MaskedLanguageModel(CodeSettings())
        assert sum(parameter.numel() for parameter in model.parameters()) == 357_189_408

    def test_its_encoder_shrinks_so_that_the_whole_is_as_much_smaller_as_published(self):
        settings = CodeSettings()
        with torch.device("meta"):
            model = MaskedLanguageModel(settings)
        names = CodeWorkload.targets.__get__(type("Opened", (), {"settings": settings})())()
        before = sum(model.get_submodule(name).weight.numel() for name in names)
        solution = solve_model(model, names, 4.23)
        with torch.device("meta"):
            small = tensorize(model, solution.plan)
        left = sum(parameter.numel() for parameter in small.parameters())
        word = 52_000 * 1024
        assert before == 301_989_888
        assert len(names) == 144
        assert 357_189_408 / left == pytest.approx(4.23, rel=0.01)
        assert before / (before - 357_189_408 + left) == pytest.approx(10.33, rel=0.01)
        assert (357_189_408 - word) / (left - word) == pytest.approx(9.77, rel=0.01)

    def test_the_head_shares_the_embedding_and_scores_chosen_places_alone(self):
        model = MaskedLanguageModel(SMALL).eval()
        ids = torch.randint(FIRST_ID, 300, (2, 16))
        every = torch.arange(16).expand(2, -1)
        some = torch.tensor([[3, 8], [0, 15]])
        scores = model(ids, every)
        assert torch.allclose(model(ids, some), scores.gather(1, some[..., None].expand(-1, -1, 300)), atol=1e-6)
        word = model.embeddings.word.weight
        assert [n for n, p in model.named_parameters() if p.shape == word.shape] == ["embeddings.word.weight"]

    @pytest.mark.parametrize(
        ("changed", "sentence"),
        [
            ({"heads": 5}, "heads is 5; allowed: divisors"),
            ({"sequence_length": 100}, "sequence_length is 100; allowed: 5 to positions"),
            ({"late_length": 40}, "late_length is 40; allowed: null, or multiples of 16 up to positions \\(64\\)"),
            ({"late_length": 128}, "late_length is 128"),
        ],
    )
    def test_wrong_sizes(self, changed, sentence):
        with pytest.raises(ValueError, match=sentence):
            dataclasses.replace(SMALL, **changed)


class TestCorpus:
    def test_the_standard_library_is_there(self):
        sources = installed(["python"])
        train, held_out = sources.split()
        assert {document.package for document in train}.isdisjoint(document.package for document in held_out)
        assert 0.03 < len(held_out) / len(train) < 0.25
        assert len({document.text for document in train + held_out}) == len(train) + len(held_out)
        assert not any("site-packages" in document.name for document in train + held_out)

    def test_the_manifest_names_every_file_with_version_and_hash(self):
        rows = list(csv.DictReader(installed(["omegaconf"]).manifest_csv().decode().splitlines()))
        assert {"omegaconf/base.py", "omegaconf/_utils.py"} <= {row["file"] for row in rows}
        assert all(row["version"].startswith("omegaconf 2.") and len(row["sha256"]) == 16 for row in rows)
        assert {row["package"] for row in rows} >= {"omegaconf", "omegaconf.grammar"}

    def test_another_file_makes_another_corpus(self, folder, tmp_path):
        for path in folder.iterdir():
            (tmp_path / path.name).write_bytes(path.read_bytes())
        same = code_search_net(tmp_path)
        assert same.name == code_search_net(folder).name
        with gzip.open(tmp_path / "python_0.jsonl.gz", "at", encoding="utf-8") as file:
            file.write(json.dumps({"repo": "new", "code": "x = 1"}) + "\n")
        assert code_search_net(tmp_path).name != same.name

    def test_a_content_counts_once_and_held_out_files_go_first(self):
        train, out = SIDES[False][0], SIDES[True][0]
        documents = [
            Document(train, "a", "x = 1\n"),
            Document(train, "b", "x = 1   \n\n"),
            Document(train, "c", "y = 2"),
        ]
        documents += [Document(out, "d", "y = 2\n"), Document(out, "e", "   \n"), Document(train, "f", "z = 3")]
        kept = Sources("some", (), lambda: iter(documents)).split()
        assert [[document.name for document in side] for side in kept] == [["a", "f"], ["d"]]

    def test_the_official_partition_goes_before_the_repository(self, tmp_path):
        rows = [
            {"repo": "r", "code": f"x = {place}", "partition": side} for place, side in enumerate(("train", "valid"))
        ]
        with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        assert [[one.text for one in side] for side in code_search_net(tmp_path).split()] == [["x = 0"], ["x = 1"]]

    def test_missing_or_malformed_data_is_one_sentence(self, folder, tmp_path, monkeypatch):
        with pytest.raises(DataError, match=r"^data_folder is .*, which holds no .jsonl.gz file; it must hold those"):
            open_workload("code", SMALL, Data(data_folder=str(tmp_path)), check=True)
        with pytest.raises(DataError, match=r"^code.packages has 'no-such-package', which is not installed; allowed:"):
            installed(["python", "no-such-package"])
        with monkeypatch.context() as patch:
            patch.setattr(corpus, "_distribution", lambda _: ("1.0", tmp_path, []))
            with pytest.raises(
                DataError, match=r"^code.packages has 'compiled', which has no Python source files here;"
            ):
                installed(["compiled"])
        with pytest.raises(
            DataError, match=r"^dataset is 'other'; the corpus on this machine is: codesearchnet-\w{8} \(or"
        ):
            open_workload("code", SMALL, Data("other", data_folder=str(folder)), check=True)
        for line in ("nonsense", "[]", '{"code": "x"}', '{"repo": "r", "code": 1}'):
            with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
                file.write('{"repo": "r", "code": "x"}\n' + line + "\n")
            with pytest.raises(DataError, match=r"a.jsonl.gz, line 2: the row"):
                list(code_search_net(tmp_path).documents())
        with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
            file.write(json.dumps({"repo": SIDES[False][0], "code": "x"}))
        with pytest.raises(DataError, match=r"^the corpus codesearchnet has no source file that is held out; add"):
            code_search_net(tmp_path).split()


class TestTokens:
    def test_any_text_comes_back(self):
        tokenizer = train_tokenizer([function(1)] * 3, 290)
        text = "def naïve(width):\n\treturn '✓', x  # [MASK]\n"
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids) == text
        assert min(ids) >= FIRST_ID
        assert tokenizer.token_to_id("[MASK]") == MASK_ID
        assert len(ids) < len(text.encode())
        assert tokenizer.get_vocab_size() <= 290

    def test_training_is_the_same_in_every_process(self):
        """Many pairs are equally frequent; the hash tables of a process have an order of their own."""
        code = (
            "import hashlib; from bench.workloads.code.tokens import train_tokenizer;"
            "text = ' '.join(f'{a}{b}{a}' for a in 'abcdefghijklm' for b in 'nopqrstuvwxyz');"
            "print(hashlib.sha256(train_tokenizer([text] * 2, 380).to_str().encode()).hexdigest())"
        )
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout
        exec(code, {"print": (here := []).append})
        assert here == other.split()

    def test_too_small_a_vocabulary(self):
        with pytest.raises(
            DataError, match=r"^code.vocabulary is 200; the bytes and \[PAD\], \[SEP\], \[MASK\] alone need 259"
        ):
            train_tokenizer(["x"], 200)

    def test_a_killed_start_goes_on_where_it_was(self, folder, tmp_path, monkeypatch):
        sources = code_search_net(folder)
        monkeypatch.setattr(code_tokens, "_PART", 8)
        monkeypatch.setenv(code_tokens.CACHE_VARIABLE, str(tmp_path / "whole"))
        whole = streams(sources, 300)
        monkeypatch.setenv(code_tokens.CACHE_VARIABLE, str(tmp_path / "killed"))
        for call in (1, 2, 4):
            with monkeypatch.context() as patch:
                kill_at(patch, code_tokens, "write_whole", call)
                with pytest.raises(Killed):
                    streams(sources, 300)
        made: list[str] = []
        again = streams(sources, 300, made.append)
        assert 0 < len(made) < 11  # parts that were there are not made again
        assert np.array_equal(again.train, whole.train)
        assert all(np.array_equal(*files) for files in zip(again.held_out, whole.held_out, strict=True))
        streams(sources, 300, lambda line: pytest.fail(f"made again: {line}"))

    def test_documents_end_with_a_separator(self, folder):
        cached = streams(code_search_net(folder), 300)
        train, held_out = code_search_net(folder).split()
        assert int((cached.train == SEPARATOR_ID).sum()) == len(train) == 8 * 6
        assert len(cached.held_out) == len(held_out) == 6 * 6
        assert all(
            file[-1] == SEPARATOR_ID and (file != SEPARATOR_ID).sum() == len(file) - 1 for file in cached.held_out
        )


class TestMasking:
    def test_the_rule(self):
        rows = np.random.default_rng(0).integers(FIRST_ID, 1000, (4000, 64))
        batch = {name: tensor.numpy() for name, tensor in masked(rows, (1, 2), 1000).items()}
        seen = np.take_along_axis(batch["input_ids"], batch["positions"], 1)
        assert np.array_equal(np.take_along_axis(rows, batch["positions"], 1), batch["labels"])
        assert batch["positions"].shape == (4000, chosen_count(64)) == (4000, 10)
        assert all(len(set(row)) == 10 for row in batch["positions"].tolist())
        assert np.bincount(batch["positions"].ravel()).std() < 40  # every place about 625 times
        kept = seen == batch["labels"]
        shares = [(seen == MASK_ID).mean(), (~kept & (seen != MASK_ID)).mean(), kept.mean()]
        assert shares == pytest.approx([0.8, 0.1, 0.1], abs=0.01)
        untouched = np.ones(rows.shape, dtype=bool)
        np.put_along_axis(untouched, batch["positions"], False, 1)
        assert np.array_equal(batch["input_ids"][untouched], rows[untouched])
        assert seen.min() >= MASK_ID

    def test_separators_are_left_alone(self):
        rows = np.full((50, 32), SEPARATOR_ID)
        rows[:, :6] = 9
        assert set(masked(rows, (0,), 50)["labels"].ravel().tolist()) == {9}

    def test_every_arm_and_every_resumed_run_sees_the_same(self, workload):
        whole = list(workload.batches("train", 8, seed=5, static=False))
        rest = list(workload.batches("train", 8, seed=5, static=True, start=3))
        assert len(rest) == len(whole) - 3 == workload.batches_per_epoch(8) - 3
        for one, other in zip(whole[3:], rest, strict=True):
            assert all(torch.equal(one[name], other[name]) for name in one)
        first = next(workload.batches("train", 8, seed=6, static=True))
        assert not torch.equal(first["input_ids"], whole[0]["input_ids"])

    def test_an_epoch_has_every_row_once(self, workload):
        def restored(batch):
            return batch["input_ids"].scatter(1, batch["positions"], batch["labels"]).tolist()

        rows = [tuple(row) for batch in workload.batches("train", 1, 3, True) for row in restored(batch)]
        length = workload.sequence_length
        stream = workload.train[: workload.training_examples * length].reshape(-1, length)
        assert Counter(rows) == Counter(map(tuple, stream.tolist()))

    @pytest.mark.parametrize(
        ("split", "batch_size", "sentence"),
        [
            ("test", 8, "split is 'test'; allowed: train, validation"),
            ("train", 0, "batch_size is 0; allowed: whole numbers from 1"),
            ("train", 10**6, "batch_size is 1000000; allowed: 1 to the"),
        ],
    )
    def test_wrong_batches(self, workload, split, batch_size, sentence):
        with pytest.raises(ValueError, match=sentence):
            workload.batches(split, batch_size, 0, True)

    def test_a_late_stage_has_longer_rows_of_as_many_tokens(self, folder):
        settings = dataclasses.replace(SMALL, late_length=64)
        longer = open_workload("code", settings, Data(data_folder=str(folder)), True)
        early, late = (longer.in_stage(Stage(name, 1)) for name in ("early", "late"))
        assert early is longer
        assert late is longer.in_stage(Stage("late", 2, target=0.5))
        batches = [next(one.batches("train", 8, 0, True)) for one in (early, late)]
        assert [tuple(batch["input_ids"].shape) for batch in batches] == [(8, 16), (2, 64)]
        assert late.training_examples // 2 >= early.batches_per_epoch(8)
        with pytest.raises(ValueError, match="batch_size is 6; allowed with rows of 64 tokens: multiples of 4"):
            late.batches("train", 6, 0, True)


class TestProbes:
    def test_they_are_the_textbook_models(self):
        """A chain of two words: after 3 comes 4, after 4 comes 3 or 5; what is masked has visible neighbours."""
        source = np.random.default_rng(0)
        stream = np.array([3, 4, 3, 4, 5] * 2000, dtype=np.uint32)
        rows = np.array([stream[start : start + 20] for start in source.integers(0, 9000, 200)])
        found = probe_losses(stream, 6, [(masked(rows, (0,), 6), np.arange(200))], 200)
        entropy = -sum(share * math.log(share) for share in (0.4, 0.4, 0.2))
        assert entropy - 0.25 < found["unigram"] < entropy  # what stays visible tells a little
        assert found["bigram"] < 0.35 * found["unigram"]

    def test_without_any_order_neighbours_tell_nothing(self):
        stream = np.random.default_rng(0).integers(3, 13, 200_000).astype(np.uint32)
        rows = stream[:40_000].reshape(-1, 20)
        found = probe_losses(stream, 13, [(masked(rows, (0,), 13), np.arange(2000))], 2000)
        assert found["bigram"] == pytest.approx(found["unigram"], abs=0.01)

    def test_they_go_with_the_metric(self, workload):
        metric = workload.metric
        assert (metric.name, metric.unit, metric.higher_is_better) == ("loss", "nats", False)
        assert metric.probe < metric.guess < math.log(300)

    def test_their_record_has_both_models_on_rows_of_either_length(self, folder):
        settings = dataclasses.replace(SMALL, late_length=64)
        workload = open_workload("code", settings, Data(data_folder=str(folder)), True)
        found = probe(None, workload)
        late = workload.in_stage(Stage("late", 1))
        for one, of in ((found["samples"], workload), (found["samples"]["late"], late)):
            reached = {name: model["metrics"]["loss"] for name, model in one["probes"].items()}
            assert reached == {"unigram model": of.metric.guess, "bigram model": of.metric.probe}
            assert one["best"] == "bigram model"
        assert found["metrics"] == {"loss": workload.metric.probe}
        assert found["validation_examples"] == sum(len(file) >= 16 for file in workload.streams.held_out)
        assert "late" not in probe(None, open_workload("code", SMALL, Data(data_folder=str(folder)), True))["samples"]


class TestEvaluation:
    def test_it_is_a_mean_over_files(self, workload):
        torch.manual_seed(0)
        model = workload.build()
        found = workload.evaluate(model)
        assert checked_metric(found, workload).name == "loss"
        assert model.training
        assert len(found.per_example) == 6 * 6
        assert recorded_words(workload)["validated"] == "held-out file"
        assert found.metrics["loss"] == pytest.approx(math.log(300), abs=0.5)
        assert found.metrics["loss"] == pytest.approx(np.mean(found.per_example))
        assert workload.evaluate(model) == found

    def test_it_tells_a_right_answer(self, workload):
        class Knowing(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.zeros(1))
                self.answers = iter([batch["labels"] for _, batch in workload._held_out()])

            def forward(self, input_ids, positions):  # noqa: ARG002
                return 20.0 * torch.nn.functional.one_hot(next(self.answers), 300)

        found = workload.evaluate(Knowing())
        assert found.metrics["accuracy"] == 100
        assert found.metrics["loss"] < 1e-4


class TestPlan:
    def test_rates_rise_and_fall(self):
        shares = [scheduled_share(step, 50, 0.1, 0.2) for step in range(50)]
        assert shares[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
        assert shares[-1] == pytest.approx(0.2)
        assert np.diff(np.diff(shares[5:])) == pytest.approx(0, abs=1e-9)
        assert scheduled_share(0, 1, 0.1, 0.2) == 1

    def test_a_step_has_its_rate(self, workload, tmp_path):
        cell = code_cell("dense")
        run = TrainingRun(cell, workload, Upkeep(tmp_path / "run", "mine", "c"), lambda _: None)
        rates = []
        step = run.step.optimizer.step
        run.step.optimizer.step = lambda: (rates.append(run.step.optimizer.param_groups[0]["lr"]), step())
        run.run()
        expected = [scheduled_share(step, steps, 0.25, 0.5) for steps in (8, 4) for step in range(steps)]
        assert rates == pytest.approx([1e-3 * share for share in expected])
        assert [row["step"] for row in run.columns()["samples"]["curve"]] == [3, 6, 8, 9, 12]

    def test_its_settings_are_the_usual_ones_and_its_own(self):
        own = {field.name for field in dataclasses.fields(MaskedPlan)} - {
            field.name for field in dataclasses.fields(MaskedPlan.__mro__[1])
        }
        assert own == {"warmup", "final_rate"}
        assert workload_class("code").training_plan is MaskedPlan


ARMS = {"dense": {"lr": 1e-3}, "comera": {"lr_cores": 1e-3, "lr_ranks": 0.3, "lr_dense": 1e-3, "ranks": 6}}
ARMS["low_rank"] = {"rank": 4, "lr_factors": 1e-3, "lr": 1e-3}


def code_cell(method):
    """Eight early steps and four late ones, with longer rows."""
    cell = a_training_cell()
    method_settings = checked_settings(method, ARMS[method])
    target = 0.8 if build(method, "", method_settings).shrinks else None
    stages = [dataclasses.asdict(Stage("early", 8)), dataclasses.asdict(Stage("late", 4, target))]
    training = {**cell.training, "stages": stages, "steps_per_epoch": 5, "static": False, "curve_steps": 3}
    training["schedule"] = {"warmup": 0.25, "final": 0.5}
    settings = dataclasses.asdict(dataclasses.replace(SMALL, late_length=64))
    return dataclasses.replace(
        cell,
        workload="code",
        workload_settings=settings,
        training=training,
        batch_size=8,
        method=method,
        method_settings=method_settings,
    )


class TestRuns:
    @pytest.fixture
    def phased(self, folder):
        return open_workload("code", dataclasses.replace(SMALL, late_length=64), Data(data_folder=str(folder)), True)

    @staticmethod
    def left(run):
        stored = checkpoint.load(run.upkeep.folder, "mine")
        for row in (stored["position"], *stored["position"]["curve"]):
            del row["seconds"]
        return as_bytes({"stored": stored, "optimizer": run.step.optimizer.state_dict()})

    @pytest.mark.parametrize("arm", ARMS)
    def test_killed_ten_times_it_ends_as_if_left_alone(self, phased, tmp_path, monkeypatch, arm):
        cell = code_cell(arm)

        def a_run(name):
            upkeep = Upkeep(folder=tmp_path / name, identity="mine", code_id="c", checkpoint_steps=1)
            return TrainingRun(cell, phased, upkeep, lambda _: None)

        alone = a_run("alone")
        alone.run()
        for _ in range(10):
            run = a_run("killed")
            with monkeypatch.context() as patch:
                kill_at(patch, run.step, "_gradients", 2)
                with pytest.raises(Killed):
                    run.run()
        last = a_run("killed")
        last.run()
        assert last.at.step == 12
        assert self.left(last) == self.left(alone)

    @pytest.mark.slow
    @pytest.mark.parametrize("arm", ARMS)
    def test_every_arm_learns_the_held_out_files(self, folder, tmp_path, arm):
        """Functions that differ in a number: far below what a unigram model reaches."""
        settings = dataclasses.replace(SMALL, dropout=0.0)
        workload = open_workload("code", settings, Data(data_folder=str(folder)), check=True)
        cell = code_cell(arm)
        rates = {name: 3e-3 for name in ARMS[arm] if name.startswith("lr")}
        stages = [dataclasses.asdict(Stage("early", 1000))]
        training = {**cell.training, "stages": stages, "curve_steps": 100, "steps_per_epoch": 10}
        method_settings = {**cell.method_settings, **rates, **({"gamma": 0.0} if arm == "comera" else {})}
        cell = dataclasses.replace(cell, training=training, method_settings=method_settings, batch_size=32)
        run = TrainingRun(cell, workload, Upkeep(tmp_path / "run", "mine", "c"), lambda _: None)
        run.run()
        assert run.columns()["metrics"]["loss"] < 0.8 * workload.metric.guess


@pytest.mark.slow
@pytest.mark.usefixtures("cell_processes")
def test_a_sweep_leaves_records_and_the_manifest_of_their_corpus(folder, tmp_path):
    sizes = [f"code.{name}={value}" for name, value in dataclasses.asdict(SMALL).items() if isinstance(value, int)]
    words = ["workload=code", "name=made_up", "methods=[dense]", "batch_size=8", "device=cpu", "training.targets=[]"]
    words += ["training.early_steps=4", "training.curve_steps=2", "results=records", f"data_folder='{folder}'"]
    ended = run_bench(tmp_path, "run", "experiment=training", *words, *sizes)
    assert (ended.status, ended.output) == (0, ""), ended.error
    [record] = read_all(tmp_path / "records")
    sources = code_search_net(folder)
    assert (record.status, record.dataset, record.sequence_length) == ("ok", sources.name, 16)
    assert set(record.metrics) == {"loss", "token_loss", "accuracy"}
    assert record.metric["probe_text"] == "bigram model"
    assert record.metric["probe"] < record.metric["guess"]
    assert last_per_example(record).mean() == pytest.approx(record.metrics["loss"], rel=1e-4)
    assert [row["step"] for row in record.samples["curve"]] == [2, 4]
    assert (tmp_path / "records" / "made_up" / f"{sources.name}.csv").read_bytes() == sources.manifest_csv()
    ended = run_bench(tmp_path, "run", "experiment=training", *words, *sizes, "code.late_length=17")
    assert (ended.status, ended.error.count("\n")) == (2, 1)
    assert "late_length is 17; allowed: null, or multiples of 16" in ended.error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("experiment", "jobs", "arms", "stages"),
    [
        (
            "code_ratios",
            5,
            ["comera", "low_rank@size", "comera:orthogonal", "low_rank@size:orthogonal", "dense"],
            [["early"]] * 5,
        ),
        ("code_search", 4, ["comera", "low_rank@size", "dense"], [["early"]] * 3),
        ("code_prices", 4, ["comera"], [["early"]]),
        ("code_phases", 1, ["comera", "comera", "dense"], [["early"], ["early", "late"], ["early", "late"]]),
    ],
)
def test_the_experiments_of_the_small_preset(folder, tmp_path, monkeypatch, experiment, jobs, arms, stages):
    found = []
    monkeypatch.setattr(bench.runner.sweep, "run_job", lambda job, *_: found.append(job.cells))
    words = [f"data_folder='{folder}'", "device=cpu", "code.vocabulary=300"]
    ended = run_bench(tmp_path, f"experiment={experiment}", *words)
    assert (ended.status, ended.output) == (0, ""), ended.error
    assert len(found) == jobs
    for cells in found:
        assert [cell.arm for cell in cells] == arms
        assert [[stage["name"] for stage in cell.training["stages"]] for cell in cells] == stages
        for cell in cells:
            assert cell.training["schedule"] == {"warmup": 0.1, "final": 0.05}
            assert (cell.workload_settings["width"], cell.sequence_length, cell.seed) == (128, 32, 0)
            prices = {"code_phases": {0.01}, "code_prices": {0.01, 0.1}}.get(experiment, {0.0})
            assert cell.method_settings.get("gamma") in (prices if cell.method == "comera" else {None})
    rates = {cell.method_settings["lr"] for cells in found for cell in cells if cell.method == "dense"}
    if "dense" in arms:
        assert rates == ({1e-3, 2e-3, 4e-3, 8e-3} if experiment == "code_search" else {2e-3})
