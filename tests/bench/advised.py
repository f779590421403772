"""Small configurations of six families, and rows made up for tests of ``python -m bench advise``."""

import json

from bench.advise.answer import Answer, AnswerRow
from bench.advise.arms import AdvisedArm
from bench.advise.evidence import Evidence, GapRange, LossBed
from bench.advise.question import question_of
from bench.estimate.devices import GPUS

_LLAMA = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 64,
}

#: Configurations as their authors write them, with five blocks each.
CONFIGS = {
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": 64,
        "n_layer": 5,
        "n_head": 4,
        "n_positions": 64,
        "vocab_size": 512,
        "bos_token_id": 1,
        "eos_token_id": 1,
    },
    "llama": {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 5, **_LLAMA},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 5, "tie_word_embeddings": True, **_LLAMA},
    "mistral": {"architectures": ["MistralForCausalLM"], "num_hidden_layers": 5, "sliding_window": 16, **_LLAMA},
    "bert": {
        "architectures": ["BertForMaskedLM"],
        "hidden_size": 64,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "intermediate_size": 160,
        "vocab_size": 512,
        "max_position_embeddings": 64,
    },
    "t5": {
        "architectures": ["T5ForConditionalGeneration"],
        "d_model": 64,
        "d_ff": 160,
        "d_kv": 16,
        "num_layers": 5,
        "num_heads": 4,
        "vocab_size": 512,
        "is_encoder_decoder": True,
        "pad_token_id": 0,
        "decoder_start_token_id": 0,
    },
}


def saved(folder, kind, **changes):
    """Write a configuration and return its path; a change of None leaves a field out."""
    content = {"model_type": kind, **CONFIGS[kind], **changes}
    path = folder / "config.json"
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))
    return path


def assert_one_error(ended):
    """The command ended over a user's mistake, with one sentence behind its progress."""
    assert (ended.status, ended.output) == (2, "")
    assert [line.startswith("error: ") for line in ended.error.splitlines()].count(True) == 1
    assert ended.error.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in ended.error


def row(name, ratio=None, peak=1.0, largest=64, least_ms=10.0, gap=None):
    """Make up a row; a gap is a number, the same on all beds, or a range over them."""
    gaps = {key: value if isinstance(value, GapRange) else GapRange(value, value) for key, value in (gap or {}).items()}
    return AnswerRow(
        AdvisedArm(name, ratio),
        1000,
        "the optimizer's step",
        {"parameters": peak},
        largest,
        10**12,
        least_ms,
        gap=gaps,
    )


def answer(*rows, batch_size=32):
    """Make up an answer of such rows."""
    question = question_of(["model=config.json", f"batch_size={batch_size}"])
    found = Evidence((LossBed("a bed", {4.0: {}}, -0.3),))
    return Answer(question, "a model", 5, 64, (2, 3), GPUS["h100"], tuple(rows), found)
