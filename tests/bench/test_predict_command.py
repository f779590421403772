"""``python -m bench predict``: what it says, and that a mistake is one sentence and exit status 2."""

from __future__ import annotations

import re

import pytest
from small_cells import MODEL, run_bench
from tiny import one_thread  # noqa: F401

import bench.__main__
import bench.commands.predict.step
from bench.estimate.devices import DEVICES
from bench.protocol.methods import available

SMALL = [f"model.{name}={value}" for name, value in MODEL.items()] + ["sequence_length=32"]


@pytest.fixture(autouse=True)
def small_search(monkeypatch):
    """A search that ends soon: what is tested here is not how it goes."""
    monkeypatch.setattr("bench.estimate.any_batch.LIMIT", 64)
    monkeypatch.setattr("bench.estimate.devices._BUFFER", 2**20)
    monkeypatch.setattr("bench.estimate.devices._SIDE", 64)


def predicted(folder, pairs, *words):
    ended = run_bench(folder, "predict", *SMALL, f"data_folder={pairs}", *words)
    assert ended.status == 0, ended.error
    assert list(folder.iterdir()) == []
    return ended.output


def number(text, label):
    [found] = re.findall(rf"^{re.escape(label)}(?: .*?)?  +([\d,.]+)$", text, flags=re.MULTILINE)
    return float(found.replace(",", ""))


@pytest.mark.slow
def test_it_says_what_a_record_of_the_same_cell_would(tmp_path, pairs):
    from bench.estimate.work import predict
    from bench.protocol import Data
    from bench.protocol.methods import build, checked_settings
    from bench.workloads import open_workload
    from bench.workloads.encoder import EncoderSettings

    workload = open_workload(
        "encoder", EncoderSettings(**MODEL, sequence_length=32), Data(data_folder=str(pairs)), check=False
    )
    method = build("comera", "", checked_settings("comera", {"ranks": 8}))
    expected = predict(workload, method, 4, "bf16", "cuda", 0)
    text = predicted(
        tmp_path, pairs, "method=comera", "settings.comera.ranks=8", "batch_size=4", "device=a100", "precision=bf16"
    )
    sizes = expected.memory.mib()
    assert number(text, "peak memory, MiB") == pytest.approx(sizes.pop("peak"), abs=0.05)
    for name, size in sizes.items():
        assert number(text, f"  {name}") == pytest.approx(size, abs=0.05)
    assert number(text, "FLOPs") == expected.work.flops_per_step
    assert "on NVIDIA A100 SXM, 80 GB" in text
    assert "batch 4, length 32, bf16" in text
    assert "Largest batch that fits: 64 at least" in text


@pytest.mark.slow
def test_this_machine_is_the_default_and_says_how_it_was_measured(tmp_path, pairs):
    text = predicted(tmp_path, pairs, "method=dense")
    assert "this machine's processor" in text
    assert "measured just now" in text
    assert "(predicted on the operations of cpu)" in text


@pytest.mark.slow
def test_multiples_of_ltes_heads_are_respected(tmp_path, pairs, monkeypatch):
    monkeypatch.setattr(bench.commands.predict.step.Device, "room_mib", property(lambda _: 4.0), raising=False)
    text = predicted(tmp_path, pairs, "method=lte", "settings.lte.heads=4", "settings.lte.rank=4", "batch_size=8")
    [fits, following] = re.findall(
        r"of multiples of 4: ([\d,]+) with .*?; ([\d,]+)\s+would take", " ".join(text.split())
    )[0]
    assert int(fits) % 4 == 0
    assert int(following) == int(fits) + 4


def test_it_does_not_fit_where_there_is_no_room(tmp_path, pairs, monkeypatch):
    monkeypatch.setattr(bench.commands.predict.step.Device, "room_mib", property(lambda _: 0.5), raising=False)
    text = predicted(tmp_path, pairs, "method=dense")
    assert "It does not fit" in text
    assert "No batch fits: the smallest, 1," in text


def test_a_batch_larger_than_the_data_is_predicted(tmp_path, pairs):
    assert "batch 5,000, length 32" in predicted(tmp_path, pairs, "method=dense", "batch_size=5000", "device=h100")


def test_variants_and_micro_workloads(tmp_path, pairs):
    assert "low_rank@rank:linear on the workload encoder" in predicted(tmp_path, pairs, "method=low_rank:linear")
    ended = run_bench(
        tmp_path,
        "predict",
        "method=comera",
        "workload=linear",
        "linear.in_features=64",
        "linear.out_features=96",
        "device=rtx3090",
    )
    assert ended.status == 0, ended.error
    assert "comera on the workload linear" in ended.output


@pytest.mark.parametrize("words", [(), ("--help",), ("method=dense", "-h")])
def test_usage_has_an_example_and_names_what_there_is(tmp_path, words):
    ended = run_bench(tmp_path, "predict", *words)
    assert (ended.status, ended.error) == (0, "")
    assert ended.output.startswith("usage: python -m bench predict")
    assert "python -m bench predict method=comera batch_size=64" in ended.output
    assert f"methods: {', '.join(available())}\n" in ended.output
    assert f"devices: {', '.join(DEVICES)}\n" in ended.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("batch_size=4", ["method has no value", ", ".join(available())]),
        ("method=", ["method is ''", ", ".join(available())]),
        ("method=sgd", ["method is 'sgd'", ", ".join(available())]),
        ("method=comra", ["method is 'comra'", ", ".join(available())]),
        ("method=low_rank:odd", ["'low_rank:odd'", "allowed: linear"]),
        ("method=dense device=tpu", ["device is 'tpu'", "a100, h100, h200, l4, rtx3090, rtx4090, cpu"]),
        ("method=dense device=cuda", ["device is 'cuda'", "a100, h100, h200, l4, rtx3090, rtx4090, cpu"]),
        ("method=dense batch_size=0", ["batch_size is 0", "from 1 up"]),
        ("method=dense batch_size=many", ["batch_size is 'many'", "from 1 up"]),
        ("method=dense batch_size=2,4", ["batch_size=2,4"]),
        ("method=dense batch_size=2 batch_size=4", ["batch_size is '2' and '4'", "once"]),
        ("method=comera ratio=0.5", ["ratio is 0.5", "from 1"]),
        ("method=comera ratio=100000", ["ratio=100000 is out of reach", "the largest within reach is"]),
        ("method=lte batch_size=8", ["LTE shards the batch over 16 heads", "batch size 8"]),
        ("method=dense precision=tf32", ["precision=tf32 needs a CUDA device"]),
        ("method=dense precision=fp8 device=rtx3090", ["precision is 'fp8'", "RTX 3090", "does not multiply"]),
        ("method=lora precision=fp8 device=h100", ["precision=fp8 has no FP8 products for", "peft's Linear"]),
        ("shapes=10x20 device=h100", ["shape is '10x20'", "TOKENSxINxOUT"]),
        ("shapes=0x16x16", ["tokens is 0", "from 1 up"]),
        ("shapes=10x16x16 batch_size=4", ["batch_size is no setting of shapes"]),
        ("shapes=10x16x16 rank=many", ["rank is 'many'"]),
        ("shapes=10x16x16 device=tpu", ["device is 'tpu'", "l4"]),
        ("method=dense precision=int4", ["precision is 'int4'", "fp32, tf32, bf16, bf16_weights, fp8"]),
        ("method=dense compile=true", ["compile is no setting of a prediction", "batch_size"]),
        ("method=dense methods=[lora]", ["methods is no setting of a prediction"]),
        ("method=dense experiment=fig1", ["experiment is no setting of a prediction"]),
        ("method=dense model.depth=2", ["model.depth is no setting"]),
        ("method=dense batch_size.x=2", ["batch_size.x is no setting"]),
        ("method=galore settings.galore.rnk=2", ["settings.galore.rnk is no setting"]),
        ("method=galore settings.galore.rank=x", ["settings.galore.rank is 'x'", "int"]),
        ("method=galore settings=4", ["settings is '4'", "settings.NAME=VALUE"]),
        ("method=dense fast", ["'fast' is no setting", "key=value"]),
        ("method=[dense", ["method", "[dense"]),
        ("method=dense workload=linear model.layers=1", ["model.layers is '1', which workload=linear has no use for"]),
        ("method=dense linear.in_features=8", ["linear.in_features is '8', which workload=encoder has no use for"]),
        (
            "method=dense workload=linear sequence_length=8",
            ["sequence_length is '8', which workload=linear has no use"],
        ),
        ("method=lora settings.galore.rank=2", ["settings.galore.rank is '2', which method=lora has no use for"]),
        ("method=dense workload=chess", ["workload is 'chess'", "encoder, linear, lookup"]),
        ("method=dense data_folder=/no/such", ["data_folder is /no/such"]),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path, words, said):
    ended = run_bench(tmp_path, "predict", *words.split(), as_given=True)
    assert_one_sentence(ended, said, tmp_path)


def assert_one_sentence(ended, said, folder):
    assert (ended.status, ended.output) == (2, "")
    [line] = [line for line in ended.error.splitlines() if not line.startswith("predicting")]
    assert line.startswith("error: ")
    for words in said:
        assert words in line
    assert list(folder.iterdir()) == []


def test_the_help_of_the_bench_names_every_command(tmp_path):
    text = run_bench(tmp_path, "--help").output
    for command, does in bench.__main__.COMMANDS.items():
        assert re.search(rf"^    {command} +{re.escape(does)}$", text, flags=re.MULTILINE)


def test_a_step_on_several_ranks_is_at_least_the_larger_of_its_parts(tmp_path, pairs):
    asked = ("method=dense", "batch_size=4", "device=h100", "world_size=4", "link=0.1")
    text = predicted(tmp_path, pairs, *asked)
    gradients = 4 * number(text, "parameters") / 2**20
    assert number(text, "sent per step by each of 4 ranks, MiB") == pytest.approx(1.5 * gradients, abs=0.006)
    alone, communication = number(text, "time of a step, ms: at least"), number(text, "  communication over Ethernet,")
    assert communication == pytest.approx(1e3 * 1.5 * gradients * 2**20 / (0.1e9 / 8 * 1448 / 1538), rel=0.1)
    assert (
        max(alone, communication)
        <= number(text, "time of a step on 4 ranks, ms: at least")
        <= alone + communication + 0.001
    )
    half = predicted(tmp_path, pairs, *asked, "exchange=ddp_bf16")
    assert number(half, "sent per step by each of 4 ranks, MiB") == pytest.approx(0.75 * gradients, abs=0.006)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["world_size=1", "link=nvlink"], "world_size is 1; allowed"),
        (["world_size=two", "link=nvlink"], "world_size is two; allowed"),
        (["link=nvlink"], "world_size is not given"),
        (["world_size=4"], "link is not given; allowed: ethernet_1,"),
        (["world_size=4", "link=-1"], "link is -1; allowed"),
        (["world_size=512", "link=nvlink"], "nvlink joins at most 256 ranks"),
        (["world_size=4", "link=nvlink", "exchange=pigeon"], "exchange is 'pigeon'; allowed: ddp,"),
        (["world_size=4", "link=nvlink", "link=1"], "give it once"),
    ],
)
def test_wrong_ranks_are_one_sentence(tmp_path, words, reason):
    ended = run_bench(tmp_path, "predict", "method=dense", *words, as_given=True)
    assert ended.status == 2
    assert ended.error.startswith("error: ")
    assert reason in ended.error
