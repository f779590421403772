"""Every arm moves every trained matrix of every workload within a few steps, wherever the workload starts."""

import gzip
import itertools
import json

import numpy as np
import pytest
import torch

from bench.data.synthetic import synthetic_corpus
from bench.data.wordpiece import PairTokenizer, train_vocabulary
from bench.protocol import Data, methods
from bench.workloads import available, open_workload, workload_class
from bench.workloads.encoder import EncoderSettings, EncoderWorkload

STEPS, RATE = 20, 1e-2

#: The least change of the entry that moves most. Adam moves it by up to the rate a step, gradient descent by less.
LEAST = 0.5 * RATE

BLOCKS = {"layers": 1, "width": 16, "heads": 2, "feed_forward": 32}
SETTINGS = {
    "code": {**BLOCKS, "vocabulary": 300, "positions": 16, "sequence_length": 16, "windows": 1},
    "dlrm": {"preset": "small", "max_rows": 500, "training_lines": 4000, "validation_lines": 2000},
    "linear": {"in_features": 16, "out_features": 16},
    "lookup": {"rows": 100, "columns": 16},
    "pointer": {**BLOCKS, "vocabulary": 60, "context": 12, "evaluated": 200, "probe_windows": 2000},
    "teacher": {"width": 16, "layers": 2, "teacher_width": 8, "teacher_layers": 1},
    "text": {"blocks": 1, "width": 16, "heads": 2, "context": 8, "validation_tokens": 64, "test_tokens": 80},
}
ARMS = {
    "comera": {"ranks": 4, "table_ranks": 4},
    "galore": {"rank": 4},
    "low_rank": {"rank": 4, "embedding_rank": 4},
    "lte": {"rank": 4, "heads": 4},
    "lora": {"rank": 4},
}


def folder_of(workload, place):
    """Write drawn words in the form that the workload reads."""
    source = np.random.default_rng(0)
    words = ["".join(source.choice([*"abcdefghijklmnopqrstuvwxyz"], 4)) for _ in range(80)]
    texts = [" ".join(source.choice(words, 600)) + "\n" for _ in range(40)]
    if workload == "code":
        rows = [
            {"repo": f"r{number}", "path": "a.py", "func_name": "f", "original_string": text}
            for number, text in enumerate(texts)
        ]
        with gzip.open(place / "python_0.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    for number, text in enumerate(texts) if workload != "code" else ():
        (place / f"{number:02}.txt").write_text(text)
    return str(place)


@pytest.fixture(scope="module")
def workloads(tmp_path_factory):
    """All workloads, small."""
    opened = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMERA_CACHE", str(tmp_path_factory.mktemp("cache")))
        for name in available():
            if name == "encoder":
                settings, corpus = (
                    EncoderSettings(**BLOCKS, vocabulary=300, sequence_length=16),
                    synthetic_corpus(300, 99),
                )
                opened[name] = EncoderWorkload(settings, corpus, PairTokenizer(train_vocabulary(corpus, 300)))
                continue
            reads = name in ("code", "pointer", "text")
            data = Data(data_folder=folder_of(name, tmp_path_factory.mktemp(name))) if reads else Data()
            opened[name] = open_workload(name, workload_class(name).Settings(**SETTINGS[name]), data, False)
        yield opened


def arm(name, variant):
    defaults = methods.default_settings(name)
    settings = {field: RATE for field in defaults if field.startswith("lr")} | ARMS.get(name, {})
    if methods.takes_ratio(name, variant) and variant == "narrow":
        settings["ratio"] = 1.5
    return methods.build(name, variant, settings)


def is_trained_matrix(key, parameter):
    """Return whether a parameter has the entries of a matrix, some of which are kept as vectors."""
    named = key.rpartition(".")[2] in ("packed_cores", "coefficients")
    return parameter.requires_grad and (parameter.ndim > 1 or named)


@pytest.mark.parametrize(
    ("name", "variant"), [(name, variant) for name in methods.available() for variant in methods.variants(name)]
)
def test_every_arm_moves_every_trained_matrix(name, variant, workloads):
    for label, workload in workloads.items():
        torch.manual_seed(0)
        method, model = arm(name, variant), workload.build()
        if getattr(method, "model_unsupported", lambda *_: None)(model, workload.targets()):
            continue
        model = method.adapt(model, workload.targets()).train()
        optimizer = method.optimizer(model)
        trained = {key: each for key, each in model.named_parameters() if is_trained_matrix(key, each)}
        before = {key: each.detach().clone() for key, each in trained.items()}
        batches = workload.batches("train", 8, 0, True)
        for step, batch in enumerate(itertools.islice(batches, STEPS)):
            optimizer.zero_grad()
            method.objective(workload.loss(model, batch), model).backward()
            optimizer.step()
            method.after_step(model, optimizer, step)
        moved = {key: float((each.detach() - before[key]).abs().max()) for key, each in trained.items()}
        least = 0.0 if variant == "sgd" else LEAST
        still = [key for key, most in moved.items() if most <= least]
        assert not still, f"{name}:{variant} on {label}"
