"""Training from trained weights: ``start=FOLDER``, its arms, and what a record holds of it."""

import pytest
import torch
from small_cells import assert_refused, run_bench

import comera
from bench.core.record import read_all
from bench.errors import ConfigError
from bench.estimate.work import predict
from bench.protocol import Data
from bench.protocol.methods import build, checked_settings
from bench.workloads import open_workload, workload_class
from bench.workloads.text.model import CausalLanguageModel, TextSettings
from bench.workloads.text.saved import load, save

SIZES = {"blocks": 1, "width": 16, "heads": 2, "context": 8, "validation_tokens": 64, "test_tokens": 64}
TEXT = "text={blocks: 1, width: 16, heads: 2, context: 8, validation_tokens: 64, test_tokens: 64}"


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COMERA_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def text(tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "one.txt").write_text("the red door opens on the green hill. " * 100)
    return folder


@pytest.fixture
def trained(tmp_path):
    """A folder that holds one model, in a folder of its own."""
    torch.manual_seed(1)
    model = CausalLanguageModel(TextSettings(**SIZES), 256)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    save(model, tmp_path / "models" / "dense")
    return tmp_path / "models"


def opened(text, start=None, **sizes):
    data = Data(data_folder=str(text), start=None if start is None else str(start))
    return open_workload("text", TextSettings(**(SIZES | sizes)), data, True)


def test_every_model_has_the_weights_of_the_start_and_data_are_named_for_them(text, trained):
    workload, plain = opened(text, trained), opened(text)
    saved = load(trained / "dense").state_dict()
    for name, values in workload.build().state_dict().items():
        torch.testing.assert_close(values, saved[name], rtol=0, atol=0)
    with torch.device("meta"):
        assert workload.build().head.weight.is_meta
    assert workload.data_hash != plain.data_hash
    assert workload.dataset.startswith(f"{plain.dataset}-from-")
    other = load(trained / "dense")
    with torch.no_grad():
        other.head.weight[0, 0] += 1
    save(other, trained / "dense")
    again = workload_class("text").open(workload.settings, Data(data_folder=str(text), start=str(trained)), True)
    assert again.data_hash != workload.data_hash


@pytest.mark.parametrize(
    ("start", "sizes", "said"),
    [
        ("missing", {}, "missing holds no model of text"),
        ("models", {"width": 32, "context": 4}, "give text.width=16 text.feed_forward=64 text.context=8"),
        ("tensorized", {}, "whose model is not dense"),
        ("several", {}, "which has 2 models; name one"),
    ],
)
def test_a_start_that_does_not_fit_is_refused(tmp_path, text, trained, start, sizes, said):
    model = load(trained / "dense")
    for name in ("several/one", "several/two"):
        save(model, tmp_path / name)
    save(comera.tensorize(model, {"blocks.*": comera.TT(ranks=2)}, start="weights"), tmp_path / "tensorized")
    with pytest.raises(ConfigError, match=said):
        opened(text, tmp_path / start, **sizes)


def test_a_fine_tune_wants_a_start(tmp_path):
    """Without one it would train from scratch, and nothing would say so."""
    ended = run_bench(tmp_path, "experiment=fine_tune", "methods=[dense]", "ratio=null")
    assert_refused(ended, "start is empty", "start=results/local/.models/text", folder=tmp_path)


def test_a_workload_without_trained_models_refuses_a_start():
    with pytest.raises(ConfigError, match="start is FOLDER, and workload=linear starts from no trained model"):
        open_workload("linear", workload_class("linear").Settings(), Data(start="FOLDER"), False)


@pytest.mark.parametrize("method", ["comera", "low_rank"])
def test_the_variant_weights_keeps_the_nearest_of_its_size(text, trained, method):
    """Its weights are nearer to the trained ones than drawn ones are, and a prediction has the same sizes."""
    workload, settings = opened(text, trained), checked_settings(method, {"ratio": 1.2})
    names = [name for name in workload.targets() if name.endswith("query")]

    def apart(variant):
        model = build(method, variant, settings).adapt(workload.build(), workload.targets())
        dense = workload.build()
        pairs = [(model.get_submodule(name).weight, dense.get_submodule(name).weight) for name in names]
        return sum((own - given).norm().item() / given.norm().item() for own, given in pairs) / len(pairs)

    assert apart("weights") < 0.95 < 1.2 < apart("orthogonal")
    arm = build(method, "weights", settings)
    model = arm.adapt(workload.build(), workload.targets())
    found = predict(workload, build(method, "weights", settings), 2, "fp32", "cpu", 0).columns()
    assert found["parameters"] == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("shape", [(8, 6), (6, 8)])
def test_factors_of_full_rank_are_the_weight(shape):
    torch.manual_seed(0)
    linear = torch.nn.Linear(*shape)
    model = torch.nn.Sequential(linear)
    build("low_rank", "weights", checked_settings("low_rank", {"rank": 6})).adapt(model, {"0": "feed_forward"})
    torch.testing.assert_close(model[0].weight.detach(), linear.weight.detach())
    torch.testing.assert_close(model[0].first.norm(), model[0].second.norm())


def test_a_fine_tune_begins_where_training_ended_and_records_it(tmp_path, text):
    own = [f"data_folder={text}", "batch_size=4", TEXT]
    before = run_bench(tmp_path, "experiment=text", *own, "methods=[dense]", "ratio=null", "training.steps=200")
    assert before.status == 0, before.error
    [first] = read_all(tmp_path / "results")
    tuned = "methods=[dense,'comera:weights','dense:narrow']"
    start = f"start={tmp_path}/results/local/.models/text"
    after = run_bench(tmp_path, "experiment=fine_tune", *own, tuned, "ratio=1.2", start, "training.steps=4")
    assert after.status == 0, after.error
    records = {record.arm: record for record in read_all(tmp_path / "results") if record.experiment == "fine_tune"}
    begun = {arm: record.samples["start"] for arm, record in records.items()}
    assert begun["dense"] == pytest.approx(first.metrics)
    assert first.metrics["loss"] < begun["comera:weights"]["loss"]
    assert begun["dense:narrow"]["loss"] == pytest.approx(5.545, abs=1e-3)  # from scratch, log 256
    assert "start" not in first.samples
    assert str(tmp_path) not in records["dense"].config_json
