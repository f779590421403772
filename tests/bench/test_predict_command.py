"""``python -m bench predict``: what it says, and that a mistake is one sentence and exit status 2."""

import re

import pytest
from small_cells import MODEL, assert_refused, run_bench

import bench.__main__
import bench.commands.predict.step
from bench.errors import CONF

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
def test_multiples_of_ltes_heads_are_respected(tmp_path, pairs, monkeypatch):
    monkeypatch.setattr(bench.commands.predict.step.Device, "room_mib", property(lambda _: 4.0), raising=False)
    text = predicted(tmp_path, pairs, "method=lte", "settings.lte.heads=4", "settings.lte.rank=4", "batch_size=8")
    [fits, following] = re.findall(
        r"of multiples of 4: ([\d,]+) with .*?; ([\d,]+)\s+would take", " ".join(text.split())
    )[0]
    assert int(fits) % 4 == 0
    assert int(following) == int(fits) + 4


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("batch_size=4", "method"),
        ("method=comra", "comra"),
        ("method=low_rank:odd", "low_rank:odd"),
        ("method=dense device=tpu", "device"),
        ("method=dense batch_size=0", "batch_size"),
        ("method=dense batch_size=2,4", "batch_size"),
        ("method=comera ratio=0.5", "ratio"),
        ("method=comera ratio=100000", "ratio"),
        ("method=lte batch_size=8", "batch size 8"),
        ("method=dense precision=fp8 device=rtx3090", "precision"),
        ("method=lora precision=fp8 device=h100", "precision"),
        ("shapes=10x20 device=h100", "shape"),
        ("shapes=10x16x16 rank=many", "rank"),
        ("method=dense compile=true", "compile"),
        ("method=dense model.depth=2", "model.depth"),
        ("method=galore settings.galore.rnk=2", "settings.galore.rnk"),
        ("method=galore settings=4", "settings"),
        ("method=dense fast", "fast"),
        ("method=dense workload=linear model.layers=1", "model.layers"),
        ("method=lora settings.galore.rank=2", "settings.galore.rank"),
        ("method=dense workload=chess", "workload"),
        ("method=dense data_folder=/no/such", "data_folder"),
        ("method=galore settings.galore.rank=100000", "galore.rank is 100000"),
        ("method=lora settings.lora.rank=2000", "lora.rank is 2000"),
        ("method=low_rank settings.low_rank.embedding_rank=2000", "low_rank.embedding_rank is 2000"),
        ("method=comera settings.comera.table_ranks=100000", "comera.table_ranks is 100000"),
        (f"method=dense batch_size={2**63 - 1}", "batch_size"),
        ("method=dense model.layers=1000000000", "model.layers"),
        ("method=dense workload=lookup table.rows=1000000000000", "table.rows"),
        ("method=lora ratio=10", "ratio"),
        (f"shapes={'9' * 5000}x1x1", "shape"),
        ("method=dense world_size=4", "world_size"),
        (f"model={CONF}/models/bert_base.json", "method"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(tmp_path, words, named):
    assert_refused(run_bench(tmp_path, "predict", *words.split(), as_given=True), named, folder=tmp_path)


def test_the_help_of_the_bench_names_every_command(tmp_path):
    text = run_bench(tmp_path, "--help").output
    assert all(re.search(rf"^    {command} ", text, flags=re.MULTILINE) for command in bench.__main__.COMMANDS)
