"""README and docs are true: their examples run, their links lead somewhere, their tables are drawn from records."""

import functools
import json
import re
import sys
from pathlib import Path
from subprocess import run
from typing import Any

import pandas as pd
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, get_scheduler

import comera
from bench.advise.measure import MeasuredBlock, as_text
from bench.advise.question import question_of
from bench.commands.reproduce import targets
from bench.core.record import read_all
from figures.__main__ import main
from figures.documents import PLACES

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


_ADVICE = text_of("docs/does-it-pay.md")


def python_in(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text_of(page), flags=re.DOTALL)


@pytest.mark.filterwarnings("error:the late stage ends")
def test_the_first_example_learns_and_ends_at_its_target() -> None:
    [code] = python_in("README.md")
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    exec(code, names)
    constant = torch.tanh(torch.randn(1000, 64) @ names["target"]).square().mean().item()
    assert names["loss"].item() < 0.5 * constant
    cores = sum(layer.packed_cores.numel() for layer in names["model"] if hasattr(layer, "packed_cores"))
    assert 0.95 <= 2 * cores / _start_of(names["comera"]) <= 1


def _start_of(comera: Any) -> int:
    """Return the core entries of the README's model before its training."""
    dense = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))
    return comera.full_size(comera.tensorized_layers(comera.tensorize(dense, {"*": comera.TT(ranks=30)})))


def test_the_recipe_of_the_library_learns_and_ends_at_its_target() -> None:
    [recipe] = [code for code in python_in("docs/library.md") if "schedule = " in code]
    assert len(recipe.splitlines()) <= 8
    torch.manual_seed(0)
    matrix = torch.randn(48, 4) @ torch.randn(4, 48) / 14  # of a rank that the recipe's cores can have
    linear = torch.nn.Linear
    model = torch.nn.Sequential(linear(48, 96), torch.nn.GELU(), linear(96, 96), torch.nn.GELU(), linear(96, 48))
    names: dict[str, Any] = {"model": model}
    exec(recipe, names)
    model, optimizer = names["model"], names["optimizer"]
    start = comera.full_size(comera.tensorized_layers(model))
    for _ in range(400):
        x = torch.randn(64, 48)
        y = torch.tanh(x @ matrix)
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        names["schedule"].step()
    assert loss.item() < 0.5 * y.square().mean().item()
    assert 0.95 <= comera.full_size(comera.tensorized_layers(model)) / (0.5 * start) <= 1


def test_the_versions_of_torch_that_the_readme_names_are_those_of_the_records() -> None:
    readme, measured = text_of("README.md"), set[tuple[bool, str]]()
    for path in (ROOT / "results" / "reference").glob("*.csv"):
        table = pd.read_csv(path, usecols=["device", "torch_version"], dtype=str).dropna()
        versions = table["torch_version"].str.partition("+")[0]
        measured |= set(zip(table["device"].str.startswith("NVIDIA"), versions, strict=True))
    [on_gpu] = re.findall(r"records of the GPU were measured with (\d+\.\d+\.\d+)", readme)
    [tested] = re.findall(r"Tested with PyTorch (.*?);", readme)
    assert {version for is_gpu, version in measured if is_gpu} == {on_gpu}
    assert {version for is_gpu, version in measured if not is_gpu} <= set(re.findall(r"\d+\.\d+\.\d+", tested))


def test_the_readme_is_a_screen_and_a_half() -> None:
    assert len([line for line in text_of("README.md").splitlines() if not line.startswith("<!--")]) <= 90


@pytest.mark.filterwarnings("error:the late stage ends")
def test_the_library_example_runs(tmp_path, monkeypatch) -> None:
    code, block_tensor_trains, _, between_wrappers, saving = python_in("docs/library.md")
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
    start = comera.full_size(comera.tensorized_layers(loaded))
    comera.set_ranks(loaded, saved["ranks"])
    loaded.load_state_dict(saved["model"])
    assert torch.equal(loaded.eval()(tokens).logits, model.eval()(tokens).logits)
    assert 0.95 <= comera.full_size(comera.tensorized_layers(loaded)) / (0.5 * start) <= 1
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        names["ddp"] = torch.nn.parallel.DistributedDataParallel(model)
        exec(between_wrappers, names)
        assert names.pop("ddp").module is model
    finally:
        torch.distributed.destroy_process_group()
    exec(saving, names)
    assert comera.ranks_of(names["model"])
    exec(block_tensor_trains, names)
    blocks = [layer for layer in names["model"].modules() if isinstance(layer, comera.BTTLinear)]
    assert len(blocks) == 8
    assert all(3.9 < layer.shape.ratio < 4.1 for layer in blocks)


@pytest.mark.filterwarnings("ignore:lr_ranks is", "error:the late stage ends")
def test_the_trainer_example_trains_as_the_plain_loop_does(tmp_path, monkeypatch) -> None:
    [code] = python_in("docs/loops.md")
    assert len([line for line in code.splitlines() if line]) <= 12
    monkeypatch.chdir(tmp_path)
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 128}
    config = BertConfig(**sizes, vocab_size=200, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    tokens = torch.randint(1, 200, (40, 8), generator=torch.Generator().manual_seed(0))
    names: dict[str, Any] = {"config": config, "steps": 12}
    names["examples"] = [{"input_ids": row, "labels": row[0] % 2} for row in tokens]
    seen: list[tuple[dict[str, Any], float]] = []

    forward = BertForSequenceClassification.forward

    @functools.wraps(forward)
    def noted(self: BertForSequenceClassification, **kwargs: Any) -> Any:
        output = forward(self, **kwargs)
        seen.append((kwargs, output.loss.item()))
        return output

    torch.manual_seed(0)
    with monkeypatch.context() as patch:  # a global hook of torch leaves something behind when it is removed
        patch.setattr(BertForSequenceClassification, "forward", noted)
        exec(code, names)
    assert len(seen) == 12

    torch.manual_seed(0)
    model = comera.tensorize(BertForSequenceClassification(config), "auto", ratio=3)
    optimizer = torch.optim.AdamW(comera.parameter_groups(model), lr=1e-3)
    start = comera.full_size(comera.tensorized_layers(model))
    comera.control_ranks(model, optimizer, names["plan"])
    scheduler = get_scheduler("linear", optimizer, 0, 12)  # the Trainer's default, as is clipping at 1
    for batch, loss in seen:
        output = model(**batch)
        assert output.loss.item() == loss
        output.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    loaded = comera.load_pretrained("run/final")
    assert comera.ranks_of(loaded) == comera.ranks_of(model)
    assert 0.95 <= comera.full_size(comera.tensorized_layers(loaded)) / (0.5 * start) <= 1
    assert all(map(torch.equal, loaded.parameters(), model.parameters()))


@pytest.mark.parametrize("page", PAGES)
def test_every_linked_file_is_there(page) -> None:
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text_of(page))
    assert targets or page not in ("README.md", "docs/results.md")
    for target in targets:
        assert (ROOT / page).parent.joinpath(target).is_file(), target


@pytest.mark.slow
def test_numbers_and_verdicts_are_those_of_the_reference_records(monkeypatch, capsys) -> None:
    """``python -m figures docs`` makes them so."""
    monkeypatch.chdir(ROOT)
    assert main(["docs", "--check"]) == 0, capsys.readouterr().out


def test_only_embedded_pictures_are_committed_as_png() -> None:
    """All others are SVG alone; ``python -m figures FIGURE --png`` makes one more."""
    embedded = {name for page in PAGES for name in re.findall(r"!\[[^]]*\]\([^)]*/([^/)]+\.png)\)", text_of(page))}
    assert {path.name for path in (ROOT / "figures" / "rendered" / "reference").glob("*.png")} == embedded


def words_in(text: str) -> int:
    return len(re.findall(r"\S*\w\S*", re.sub(r"!?\]\([^)]*\)", "]", text)))


def seen(text: str) -> str:
    """Return a Markdown text without comments, which no reader sees."""
    return re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)


#: The sections of docs/results.md by title.
_SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", text_of("docs/results.md"), flags=re.MULTILINE | re.DOTALL))

#: Numbers with a unit that were chosen or published, not measured.
_SETTINGS = (
    *("1.5 times smaller", "20 times smaller", "4 times smaller", "8 times smaller", "8 and 16 times smaller"),
    *("1.15 times",),
    *("24 GiB", "10 Mbit/s", "100 Mbit/s", "0.02 nats", "interval of 95 %", "within 10 % of"),
    *("43 to 361 times smaller", "9 times less memory than GaLore?"),
)
_UNIT = r"(?:th\b|x\b| ?%| (?:times|ms|s|[KMG]iB|nats|points|[MG]bit/s)\b)"


def measured_numbers(text: str) -> list[str]:
    text = " ".join(text.split())
    for setting in _SETTINGS:
        text = text.replace(setting, "")
    return re.findall(rf"\d(?:[\d.,]*\d)?{_UNIT}", text)


def test_what_ends_surely_below_a_dense_model_of_its_size_is_what_the_readme_says() -> None:
    readme = text_of("README.md")
    assert "no compressed language model of its size ended surely lower in loss here" in readme
    assert "`grouped` layers in their best shape did, at both sizes" in readme
    found: dict[str, set[str]] = {}
    pages = sorted((ROOT / "figures" / "rendered" / "reference").glob("formats-*.md"))
    for page in pages:
        words = re.findall(r"surely below: (.*?)\.$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert words
        found.setdefault("teacher" if "teacher" in page.name else "other", set()).update(words)
    best = "grouped groups 8 depth 0.667 1/3.81, grouped groups 4 depth 0.667 1/7.16"
    assert found == {"teacher": {"none", best}, "other": {"none"}}


def test_results_are_short() -> None:
    beside_tables = [line for line in seen(text_of("docs/results.md")).splitlines() if not line.startswith("|")]
    assert words_in("\n".join(beside_tables)) <= 1800
    assert len(re.findall(r"^\| .* \|$", _SECTIONS["What was asked"], flags=re.MULTILINE)) <= 1 + 12


@pytest.mark.parametrize("title", sorted(_SECTIONS))
def test_a_section_of_results_is_short(title) -> None:
    """At most 120 words beside the picture and the table."""
    prose = [line for line in seen(_SECTIONS[title]).splitlines() if not line.startswith(("|", "!["))]
    assert words_in("\n".join(prose)) <= 120


def test_measured_numbers_of_results_come_from_records() -> None:
    """Neither the page beside its places nor the words of a template hold one that was typed by hand."""
    page = text_of("docs/results.md")
    places = re.findall(r"<!-- template (\S+) -->", page)
    texts = {"docs/results.md": re.sub(r"<!-- (\w+) .*?<!-- /\1 -->", "", page, flags=re.DOTALL)}
    texts |= {place: (PLACES / f"{place}.md.j2").read_text(encoding="utf-8") for place in places}
    assert len(texts) > 10
    for name, text in texts.items():
        assert measured_numbers(re.sub(r"\{%.*?%\}|\{\{.*?\}\}", "", text, flags=re.DOTALL)) == [], name


#: Phrases on what was set, or was not tried, of which no record has a value.
_NOT_OF_RECORDS = (
    *("every seed", "no rank control", '`"none"` | nothing', "none timed", "predicted, none"),
    "timed neither at batches",
)


def said_of_all(template: str) -> list[str]:
    """Return the lines of a template that say something of every case, or of none, and do not check or compute it."""
    template = re.sub(r"\{([%{#])(?:(?![%}#]\}).)*\n.*?[%}#]\}", "", template, flags=re.DOTALL)  # those of many lines
    lines = [line for line in template.splitlines() if not re.search(r"holds\(|standing|cases\(|refuse\(", line)]
    for phrase in _NOT_OF_RECORDS:
        lines = [line.replace(phrase, "") for line in lines]
    words = [re.sub(r"\{[%{#].*?[%}#]\}|\[.*?\]\(.*?\)", "", line) for line in lines]
    every = re.compile(r"\b(every|always|never|no|nothing|neither|none)\b", re.IGNORECASE)
    return [line for line in words if every.search(line)]


def test_what_results_say_of_every_case_is_checked_by_their_template() -> None:
    for template in PLACES.rglob("*.md.j2"):
        assert said_of_all(template.read_text(encoding="utf-8")) == [], template
    for words in ("* CoMERA always wins.", "* It gains nothing.", "* No arm beats it.", "* Neither ends lower."):
        assert said_of_all(words) == [words]
        assert said_of_all(words + "{{ holds(numbers(times), below=1) }}") == []


def test_a_number_typed_by_hand_is_found() -> None:
    for words, found in {
        "takes 4.4 to 4.8\ntimes as long": ["4.8 times"],
        "1,022.1 MiB, 45.3 %, 45x, a 45th": ["1,022.1 MiB", "45.3 %", "45x", "45th"],
        "width 128, 1,000 steps of 32 rows, 20 times smaller, at 10 Mbit/s, 30,522 x 768, 64 H100": [],
    }.items():
        assert measured_numbers(words) == found


def test_reference_records_are_from_real_data_and_readable() -> None:
    records = read_all(ROOT / "results" / "reference", "fig1")
    assert len(records) >= 21
    assert {record.dataset for record in records} == {"mnli_12k"}
    assert all(record.parameters == 66_957_315 for record in records if record.arm == "dense" and record.status == "ok")


@pytest.mark.parametrize("page", PAGES)
def test_named_files_and_targets_exist(page) -> None:
    for name in re.findall(r"`((?:bench|comera|figures|baselines|tests)/[\w/.]+\.(?:py|yaml))`", text_of(page)):
        assert (ROOT / name).is_file(), name
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    known = {*re.findall(r"^([a-z0-9-]+):", makefile, flags=re.MULTILINE), *targets()}
    assert set(re.findall(r"\bmake ([a-z][a-z0-9-]+)", text_of(page))) <= known


def _cases() -> list[tuple[list[str], str]]:
    """The worked cases of advice: the words of each command, and what it printed."""
    found = re.findall(
        r"```\npython -m bench advise (model=[^\n]*)\n```\n\n```text\n(.*?)```", _ADVICE, flags=re.DOTALL
    )
    return [(words.split(), printed) for words, printed in found]


def test_the_commands_of_advice_are_accepted() -> None:
    commands = re.findall(r"^python -m bench advise (?:measure )?(model=.*)$", _ADVICE, flags=re.MULTILINE)
    assert len(commands) == 7
    for command in commands:
        question_of([word for word in command.split() if not word.startswith("--")])


def advice(*words: str) -> str:
    """Return what the command prints."""
    call = [sys.executable, "-m", "bench", "advise", *words]
    return run(call, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_the_worked_cases_are_what_the_command_prints() -> None:
    first, *others = _cases()
    assert len(others) == 2
    assert advice(*first[0]).strip() == first[1].strip()
    for words, printed in others:  # of some arms, since all take a minute
        rows = advice(*words, "arms=dense,dense+checkpoint,dense:small,comera").splitlines()
        [start] = [number for number, row in enumerate(rows) if row.startswith("arm ")]
        found = {" ".join(row.split()) for row in rows[start : start + 5]}
        assert len(found) == 5
        assert found <= {" ".join(row.split()) for row in printed.splitlines()}, words


def test_the_measured_peaks_are_those_on_record() -> None:
    [(words, printed)] = re.findall(
        r"advise measure (model=\S*llama\S*[^\n]*)\n```\n\n```text\n(.*?)```", _ADVICE, re.DOTALL
    )
    rows = json.loads((ROOT / "results" / "advise" / "llama_1b_block.json").read_text(encoding="utf-8"))
    errors = [row.pop("error") for row in rows]
    found = [MeasuredBlock(**row) for row in rows]
    question = question_of([word for word in words.split() if not word.startswith("--")])
    assert as_text(question, found, memory_alone=True).strip() == printed.strip()
    assert max(map(abs, errors)) < 0.02


def test_the_readme_s_advice_is_of_the_worked_case() -> None:
    [table] = re.findall(
        r"\.venv/bin/python -m bench advise (.*?)\n(arm .*?)```", text_of("README.md"), flags=re.DOTALL
    )
    [printed] = [printed for words, printed in _cases() if words[0] == table[0].split()[0]]
    lines = {" ".join(line.split()) for line in printed.splitlines()}
    assert len(table[1].splitlines()) == 5
    assert {" ".join(line.split()) for line in table[1].splitlines()} <= lines
