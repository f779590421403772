"""The README tells the truth: its example runs, its figure exists, its table is drawn from committed records."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

import comera
from bench.core.record import read_all

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_library_example_runs(tmp_path, monkeypatch) -> None:
    [code] = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    names: dict[str, Any] = {}
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    exec(code, names)
    model = names["model"]
    assert isinstance(model, torch.nn.Module)
    dense = names["BertForSequenceClassification"](names["BertConfig"](num_hidden_layers=2))
    assert 20 * sum(p.numel() for p in model.parameters()) < sum(p.numel() for p in dense.parameters())
    tokens = torch.randint(1000, 30000, (2, 16))
    saved = torch.load("truncated.pt", weights_only=True)
    plan = {"*.word_embeddings": comera.TTM(ranks=32), "*.layer.*": comera.TT(ranks=30)}
    loaded = comera.tensorize(dense, plan)
    comera.set_ranks(loaded, saved["ranks"])
    loaded.load_state_dict(saved["model"])
    assert torch.equal(loaded.eval()(tokens).logits, model.eval()(tokens).logits)


def test_every_linked_file_is_there() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).is_file(), target


def test_tables_are_those_drawn_from_the_reference_records() -> None:
    blocks = re.findall(r"<!-- drawn (\S+) -->(.*?)<!-- /drawn -->", README, flags=re.DOTALL)
    assert len(blocks) == README.count("<!-- drawn ") > 0
    for name, block in blocks:
        drawn = (ROOT / "figures" / "rendered" / "reference" / f"{name}.md").read_text(encoding="utf-8").splitlines()
        lines = [line for line in block.splitlines() if line.startswith("|")]
        assert len(lines) > 5
        assert [line for line in lines if line not in drawn] == []


def test_reference_records_are_from_real_data_and_readable() -> None:
    records = read_all(ROOT / "results" / "reference", "fig1")
    assert len(records) >= 21
    assert {record.dataset for record in records} == {"mnli_12k"}
    assert all(record.parameters == 66_957_315 for record in records if record.arm == "dense" and record.status == "ok")


def test_named_files_and_modules_exist() -> None:
    for name in re.findall(r"`((?:bench|comera|figures|baselines)/[\w/]+\.py)`", README):
        assert (ROOT / name).is_file(), name
