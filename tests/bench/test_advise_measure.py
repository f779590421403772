"""``python -m bench advise measure``: one block, run and timed here."""

import dataclasses
import json

import pytest
from advised import saved
from small_cells import run_bench

from bench.advise.arms import AdvisedArm
from bench.advise.measure import WORDS, MeasuredBlock, Times, as_text, measured, one_block
from bench.advise.question import question_of
from bench.errors import TERMINAL
from bench.step.energy import Energy

_WIDE = {"hidden_size": 512, "intermediate_size": 1024}


def asked(path, *words):
    return question_of([f"model={path}", "device=cpu", "batch_size=2", "sequence_length=64", "ratio=4", *words])


def test_the_block_has_the_width_of_the_model_and_few_words(tmp_path):
    block = one_block(asked(saved(tmp_path, "llama", **_WIDE)))
    assert block.blocks == 1
    assert block.shapes.get_input_embeddings().weight.shape == (WORDS, 512)
    assert len(block.targets()) == 7


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ratio"), [("dense", None), ("muon", None), ("comera", 4)])
def test_the_predicted_peak_of_a_block_is_the_allocator_s(name, ratio, tmp_path):
    question = asked(saved(tmp_path, "llama", **_WIDE))
    found = measured(question, AdvisedArm(name, ratio), memory_alone=True, threads=1)
    assert found.left_out == ""
    assert found.times is None
    assert abs(found.error) < 0.02


def test_the_parts_of_a_step_are_timed_beside_dense(tmp_path):
    found = measured(asked(saved(tmp_path, "llama")), AdvisedArm("dense+checkpoint"), memory_alone=False, threads=1)
    for times in (found.times, found.dense):
        assert min(times.forward_ms, times.backward_ms, times.optimizer_ms) > 0
        assert times.step_ms == times.forward_ms + times.backward_ms + times.optimizer_ms


def test_the_ratio_of_dense_to_itself_is_given_as_noise(tmp_path):
    question = asked(saved(tmp_path, "llama"))
    dense = MeasuredBlock("dense", 1.0, 1.0, Times(1.0, 1.0, 1.09), Times(1.0, 1.0, 0.835))
    other = dataclasses.replace(dense, arm="muon")
    assert "Noise: dense over itself is 1.09, so ratios from 0.91 to 1.09" in as_text(question, [dense, other], False)
    assert "Noise" not in as_text(question, [other], False)
    assert "Noise" not in as_text(question, [MeasuredBlock("dense", 1.0, 1.0)], True)


def test_the_tables_fit_a_terminal(tmp_path):
    question = asked(saved(tmp_path, "llama"))
    times, energy = Times(12345.67, 23456.78, 3456.78), Energy(1.23e-4, 70.0, 2.1)
    names = ("dense", "dense:adamw8bit+checkpoint", str(AdvisedArm("comera:lean_block+checkpoint", 2.5)))
    rows = [MeasuredBlock(name, 2.0**38, 2.0**37, times, times, energy, energy) for name in names]
    text = as_text(question, [*rows, MeasuredBlock("lora", left_out="no memory")], memory_alone=False)
    assert max(map(len, text.splitlines())) <= TERMINAL
    assert text.count("comera:lean_block+checkpoint, 1/2.5") == 3
    assert "ms" not in as_text(question, rows, memory_alone=True).partition("Noise")[0]


@pytest.mark.slow
def test_the_command_measures_a_tiny_block(tmp_path):
    path = saved(tmp_path, "llama")
    words = [f"model={path}", "device=cpu", "batch_size=2", "sequence_length=32", "arms=dense"]
    ended = run_bench(tmp_path, "advise", "measure", *words, "--memory", "--json")
    assert ended.status == 0, ended.error
    [row] = json.loads(ended.output)
    assert row["arm"] == "dense"
    assert row["allocated"] > 0
