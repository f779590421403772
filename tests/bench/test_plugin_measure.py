"""A measure of one's own: asked for by name in sweeps and on the command line."""

import re
import sys

import pytest
from small_cells import TIMING, assert_refused, run_bench, small

from bench.core.record import read_all
from bench.measures import Measure
from bench.step.timing import mean_ms
from bench.step.train_step import build_step


def build_and_weigh(cell, workload):
    """Milliseconds that an arm takes to be built, and its largest parameter."""
    ms = mean_ms(lambda: build_step(cell, workload), 1, on_cuda=False)
    sizes = {name: p.numel() for name, p in build_step(cell, workload).model.named_parameters()}
    return {
        "step_time_median_ms": ms,
        "parameters": sum(sizes.values()),
        "samples": {"largest": max(sizes, key=sizes.get), "threads": cell.timing_settings["blocks"]},
    }


def only_small(cell):
    return "batches above 2 are not weighed." if cell.batch_size > 2 else None


MEASURE = Measure(
    name="weights",
    words="size of an arm, and how long it takes to be built",
    serve=build_and_weigh,
    unsupported=only_small,
    parallel=True,
    cost=lambda _: 1.0,
    text=lambda record: f"{record.parameters:,} parameters",
)

pytestmark = pytest.mark.usefixtures("cell_processes")


@pytest.fixture(autouse=True)
def named_here(monkeypatch):
    """This module is named in the environment."""
    monkeypatch.setenv("BENCH_PLUGINS", __name__)


ASKED = ("experiment=fig1", "measure=weights", "methods=[dense,low_rank]")


@pytest.mark.slow
def test_a_sweep_measures_records_and_resumes(tmp_path, pairs):
    arguments = (*ASKED, *small(pairs, tmp_path / "results"), "batch_size=2,4")
    ended = run_bench(tmp_path, *arguments)
    assert ended.status == 0, ended.error
    records = {(record.arm, record.batch_size): record for record in read_all(tmp_path / "results")}
    assert {key: record.status for key, record in records.items()} == {
        **dict.fromkeys((("dense", 2), ("low_rank@rank", 2)), "ok"),
        **dict.fromkeys((("dense", 4), ("low_rank@rank", 4)), "unsupported"),
    }
    assert records["dense", 4].message == "batches above 2 are not weighed."
    dense, factored = records["dense", 2], records["low_rank@rank", 2]
    assert dense.measure == "weights"
    assert 0 < dense.parameters != factored.parameters > 0
    assert dense.samples == {"largest": "embeddings.word.weight", "threads": TIMING["blocks"]}
    assert dense.step_time_median_ms > 0
    assert f"dense  ok: {dense.parameters:,} parameters" in ended.error
    assert run_bench(tmp_path, *arguments).error.count("done before") == 4


FROM_A_FILE = """
from bench.measures import Measure

def count(cell, workload):
    return {"parameters": sum(p.numel() for p in workload.build().parameters())}

MEASURE = Measure(name="counted", words="count the dense model", serve=count)
"""


def test_a_module_named_in_the_environment_is_imported_here_and_by_the_processes_of_cells(tmp_path, pairs, monkeypatch):
    (tmp_path / "my_measures.py").write_text(FROM_A_FILE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("BENCH_PLUGINS", "my_measures")
    asked = ("experiment=fig1", "measure=counted", "methods=[dense]", "batch_size=2")
    ended = run_bench(tmp_path, *asked, *small(pairs, tmp_path / "results"))
    assert ended.status == 0, ended.error
    [record] = read_all(tmp_path / "results")
    assert (record.status, record.measure, record.parameters > 0) == ("ok", "counted", True), record.message
    assert re.search(r"^  counted +count the dense model$", run_bench(tmp_path, "list").output, re.MULTILINE)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "wrong_plugin"),
        ("1 / 0", "wrong_plugin"),
        (FROM_A_FILE.replace(", serve=count", ""), "serve"),
        (FROM_A_FILE.replace('"counted"', '"run"'), "'run'"),
    ],
)
def test_a_wrong_plugin_is_one_sentence(tmp_path, monkeypatch, content, reason):
    if content is not None:
        (tmp_path / "wrong_plugin.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("BENCH_PLUGINS", "wrong_plugin")
    monkeypatch.delitem(sys.modules, "wrong_plugin", raising=False)
    assert_refused(run_bench(tmp_path, "experiment=fig1", "measure=counted"), reason)
