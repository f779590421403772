"""From a configuration to cells: every wrong value is one sentence with field, value and what is allowed."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from omegaconf import OmegaConf
from small_cells import MODEL, TIMING, a_configuration, changed

from baselines import dense, galore
from bench.data.corpus import DataError
from bench.errors import CONF
from bench.protocol.methods import ConfigError, available
from bench.runner.resolve import FIELDS, resolve, resolve_device
from bench.workloads import config_sections
from bench.workloads.encoder import EncoderSettings


@pytest.fixture
def config(pairs):
    """A job of three arms."""
    return a_configuration(pairs, methods=["comera", "low_rank", "low_rank:linear"])


@pytest.fixture
def no_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_the_fields_are_those_of_the_configuration_file(config):
    assert sorted(config) == sorted({*FIELDS, *config_sections()})


def test_a_job_is_one_cell_per_arm(config, pairs):
    job = resolve(changed(config, "settings", {"low_rank": {"rank": 7}}))
    assert [cell.arm for cell in job.cells] == ["comera", "low_rank", "low_rank:linear"]
    assert [cell.method_settings["rank"] for cell in job.cells[1:]] == [7, 7]
    for cell in job.cells:
        assert (cell.experiment, cell.dataset, cell.batch_size) == ("made_up", pairs.name, 8)
        assert cell.workload_settings == dataclasses.asdict(EncoderSettings(**MODEL, sequence_length=32))
        assert cell.timing_settings == TIMING
    assert len(job.data_hash) == 64


@pytest.mark.parametrize(
    ("field", "value", "twice"),
    [
        ("methods", ["dense", "comera", "dense"], "dense"),
        ("methods", ["comera:paper", "comera"], "comera"),
        ("methods", [{"comera": {"ranks": 8}}, {"comera": {"ranks": 8}}], "comera"),
        ("toggles", [{}, {"compile": True}, {"compile": True}], "compile"),
    ],
)
def test_what_is_given_twice_is_refused(config, field, value, twice):
    with pytest.raises(ConfigError) as error:
        resolve(changed(config, field, value))
    assert str(error.value).startswith(f"{field} has ")
    assert twice in str(error.value)


def test_an_arm_may_come_twice_with_other_settings(config):
    job = resolve(changed(config, "methods", [{"comera": {"ranks": 8}}, "comera"]))
    assert [cell.arm for cell in job.cells] == ["comera", "comera"]


def test_a_whole_number_and_the_same_real_one_are_one_cell(config):
    ids = {
        resolve(changed(config, "settings.lora.alpha", value) | {"methods": ["lora"]}).cells[0].cell_id("")
        for value in (64.0, 64)
    }
    assert len(ids) == 1


def test_how_a_prediction_is_timed_is_no_part_of_it(config):
    predicted = changed(config, "measure", "predict")
    [cell, *_] = resolve(predicted).cells
    assert cell.timing_settings == {}
    assert resolve(changed(predicted, "timing.blocks", 9)).cells[0] == cell


def test_a_ratio_goes_to_the_methods_that_take_one_and_are_not_given_their_own(config):
    """A timed arm without one stands beside those of its job, so it carries the job's."""
    own = [{"comera": {"ratio": 3.0}}, {"low_rank": {"ratio": None}}]
    config |= {"ratio": 2.5, "methods": ["comera", "low_rank:linear", "dense", "lora", *own]}
    ratios = [(cell.arm, cell.method_settings.get("ratio"), cell.ratio) for cell in resolve(config).cells]
    assert ratios == [
        ("comera", 2.5, 2.5),
        ("low_rank@size:linear", 2.5, 2.5),
        ("dense", None, 2.5),
        ("lora", None, 2.5),
        ("comera", 3.0, 3.0),
        ("low_rank@size", 2.5, 2.5),
    ]
    shared = resolve(changed(config, "settings.comera.ratio", 4.0)).cells
    assert [cell.ratio for cell in shared if cell.method == "comera"] == [4.0, 3.0]


@pytest.mark.parametrize("measure", ["predict", "train"])
def test_without_a_clock_an_arm_without_a_ratio_is_the_same_whatever_the_job_s(config, measure):
    config |= {"measure": measure, "methods": ["comera", "dense"]}
    config["training"]["targets"] = []
    jobs = [resolve(config | {"ratio": ratio}) for ratio in (None, 2.0, 4.0)]
    assert [[cell.ratio for cell in job.cells] for job in jobs] == [[None, None], [2.0, None], [4.0, None]]
    assert len({job.cells[1].cell_id(job.data_hash) for job in jobs}) == 1
    assert len({job.cells[0].cell_id(job.data_hash) for job in jobs}) == 3


def test_the_usual_allocator_is_no_part_of_a_cell(config):
    usual, system = (resolve(changed(config, "timing.allocator", name)).cells[0] for name in ("steady", "system"))
    assert "allocator" not in usual.timing_settings
    assert system.timing_settings == {**usual.timing_settings, "allocator": "system"}


def test_a_job_s_ratio_may_be_whole(config):
    config["methods"] = ["comera", "dense"]
    ids = {tuple(cell.cell_id("") for cell in resolve(config | {"ratio": ratio}).cells) for ratio in (2, 2.0)}
    assert len(ids) == 1


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("workload", "decoder", "encoder"),
        ("measure", "guess", "allowed: allocator_peak, check, "),
        ("measure", "witness", "allocator_peak"),
        ("device", "tpu", "auto, cpu, cuda"),
        (
            "precision",
            "fp7",
            "fp32, tf32, bf16, bf16_weights, fp8, fp8_row, fp8_delayed, fp8_split, fp8_filtered, fp8_row_filtered",
        ),
        (
            "precision",
            32,
            "fp32, tf32, bf16, bf16_weights, fp8, fp8_row, fp8_delayed, fp8_split, fp8_filtered, fp8_row_filtered",
        ),
        ("reuse", "always", "exact, config, extend, never"),
        ("batch_size", 0, "from 1 up"),
        ("batch_size", -1, "from 1 up"),
        ("batch_size", "abc", "from 1 up"),
        ("batch_size", 2.0, "from 1 up"),
        ("batch_size", True, "from 1 up"),
        ("batch_size", None, "from 1 up"),
        ("sequence_length", 0, "from 1 to"),
        ("model.sequence_length", 4, "from 5"),
        ("model.sequence_length", 65, "positions (64)"),
        ("seed", -1, "from 0 to 4,294,967,295"),
        ("parallel", -1, "from 0 up"),
        *(("ratio", value, "numbers from 1 (as large as dense) up, or null") for value in (0, 0.5, -1, "two", True)),
        *(("ratio", value, "numbers from 1 (as large as dense) up, or null") for value in (math.nan, math.inf, [2])),
        ("settings.comera.ratio", 0.5, "from 1 (as large as dense) up"),
        ("settings.comera.ratio", "two", "float or null"),
        ("settings.low_rank.ratio", 0.5, "from 1 (dense) up"),
        ("settings.low_rank.ratio", math.nan, "finite"),
        ("cuda_graph", 1, "true, false"),
        ("compile", "yes", "true, false"),
        *(("toggles", value, "[{},{compile: true}]") for value in ([], None, {"compile": True}, ["compile"])),
        ("fetch", None, "true, false"),
        ("name", "../elsewhere", "letters, digits"),
        ("name", 3, "folder"),
        ("results", None, "folder"),
        ("model", 3, "model.NAME=VALUE"),
        ("timing", None, "timing.NAME=VALUE"),
        ("settings", [1], "settings.NAME=VALUE"),
        ("settings.galore", 3, "settings.galore."),
        ("model.heads", 5, "1, 2, 4, 8, 16, 32"),
        ("model.layers", 0, "from 1"),
        ("model.layers", "two", "whole numbers"),
        ("model.dropout", 1.0, "from 0 to below 1"),
        ("model.dropout", math.nan, "numbers from 0 to below 1"),
        ("model.classes", 2, "at least 3"),
        ("timing.blocks", 0, "from 1 to"),
        ("timing.blocks", 2.5, "whole numbers"),
        ("timing.extra_blocks", -1, "from 0 to"),
        ("timing.block_seconds", 0.0, "above 0"),
        ("timing.time_limit_s", math.inf, "above 0"),
        ("timing.disturbed", 1.0, "above 1"),
        ("timing.allocator", "fast", "steady, system"),
        ("settings.galore.rank", 0, "from 1 up"),
        ("settings.galore.rank", "x", "int"),
        ("settings.galore.rank", True, "int"),
        ("settings.galore.lr", -1.0, "above 0"),
        ("settings.lte.reset", 1, "bool"),
        ("settings.comera.lookup", "fast", "optimized"),
        ("settings.comera.gamma", math.nan, "finite"),
        ("dataset", 3, "str"),
        ("data_folder", 3, "str or null"),
    ],
)
def test_a_wrong_value_is_one_sentence(config, field, value, allowed):
    with pytest.raises(ConfigError) as error:
        resolve(changed(config, field, value))
    message = str(error.value)
    assert f"{field.rpartition('.')[2]} is {value!r}" in message
    assert allowed in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("toggles", "message"),
    [
        ({"batch_size": 3}, "toggles.batch_size is unknown; allowed: precision, cuda_graph, compile, checkpoint."),
        (
            {"precision": "fp7"},
            "toggles.precision is 'fp7'; allowed: fp32, tf32, bf16, bf16_weights, fp8, fp8_row, fp8_delayed, "
            "fp8_split, fp8_filtered, fp8_row_filtered.",
        ),
        ({"compile": 1}, "toggles.compile is 1; allowed: true, false."),
    ],
)
def test_a_wrong_toggle_is_one_sentence(config, toggles, message):
    with pytest.raises(ConfigError) as error:
        resolve(config | {"toggles": [{}, toggles]})
    assert str(error.value) == message


def test_toggles_add_rounds_of_all_arms(config):
    rounds = [{}, {"compile": True, "precision": "bf16"}, {"compile": False}]
    cells = resolve(config | {"methods": ["comera", "dense"], "toggles": rounds, "precision": "fp32"}).cells
    found = [(cell.method, cell.compile, cell.precision) for cell in cells]
    assert found == [(m, *toggle) for toggle in ((False, "fp32"), (True, "bf16")) for m in ("comera", "dense")]


@pytest.mark.parametrize(
    ("methods", "given", "allowed"),
    [
        (["sgd"], "method is 'sgd'", ", ".join(available())),
        (["comera", "low_rank:quadratic"], "method is 'low_rank:quadratic'", "linear"),
        (["lora:fast"], "method is 'lora:fast'", "it has none"),
        ([None], "method is 'None'", ", ".join(available())),
        ([], "methods is []", "[comera,dense]"),
        ("comera", "methods is 'comera'", "[comera,dense]"),
    ],
)
def test_wrong_methods_are_one_sentence(config, methods, given, allowed):
    with pytest.raises(ConfigError) as error:
        resolve(changed(config, "methods", methods))
    assert given in str(error.value)
    assert allowed in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("field", "allowed"),
    [
        ("extra", FIELDS),
        ("model.depth", MODEL),
        ("timing.rounds", ("launches", "blocks", "extra_blocks")),
        ("settings.galore.range", [field.name for field in dataclasses.fields(galore.Settings)]),
        ("settings.sgd", available()),
    ],
)
def test_an_unknown_setting_is_one_sentence(config, field, allowed):
    with pytest.raises(ConfigError) as error:
        resolve(changed(config, field, {}))
    assert field.removeprefix("settings.") in str(error.value)
    assert ", ".join(allowed) in str(error.value)


@pytest.mark.parametrize("field", [*FIELDS, *config_sections()])
def test_a_field_that_is_not_there_is_missed(config, field):
    del config[field]
    with pytest.raises(ConfigError, match=f"^{field} has no value"):
        resolve(config)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"data_folder": "/no/such/folder"}, "data_folder is /no/such/folder, which is not a folder"),
        ({"data_folder": None, "dataset": "squad"}, "dataset is 'squad'; allowed: auto, mnli"),
        ({"data_folder": None, "dataset": "mnli"}, "data_folder is not set"),
        ({"data_folder": None, "fetch": True}, "data_folder is not set"),
        ({"dataset": "mnli"}, "dataset is 'mnli' but data_folder"),
    ],
)
def test_missing_data_is_one_sentence(config, changes, reason):
    with pytest.raises(DataError) as error:
        resolve(config | changes)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


def test_a_malformed_row_is_named_with_file_and_line(config, pairs, tmp_path):
    for name in ("train.jsonl", "dev_matched.jsonl"):
        (tmp_path / name).write_text((pairs / name).read_text())
    lines = (tmp_path / "train.jsonl").read_text().splitlines()
    lines[6] = lines[6].replace('"label"', '"lable"')
    (tmp_path / "train.jsonl").write_text("\n".join(lines))
    with pytest.raises(DataError, match=r"train\.jsonl, line 7: the key 'label' is missing"):
        resolve(changed(config, "data_folder", str(tmp_path)))


@pytest.mark.usefixtures("no_cuda")
def test_cuda_where_there_is_none(config):
    for measure in ("run", "train"):
        with pytest.raises(
            ConfigError, match=r"device is 'cuda', but this machine offers no CUDA device; allowed here: "
        ):
            resolve(config | {"device": "cuda", "measure": measure})
    cells = resolve(changed(changed(config, "device", "cuda"), "measure", "predict")).cells
    assert {cell.device for cell in cells} == {"cuda"}


@pytest.mark.usefixtures("no_cuda")
def test_auto_is_the_device_there_is(monkeypatch):
    assert resolve_device("auto") == resolve_device("auto", needed=False) == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_device("auto") == resolve_device("cuda") == "cuda"
    assert resolve_device("cpu") == "cpu"


def test_defaults_of_the_file_are_the_paper_s_model():
    file = OmegaConf.to_container(OmegaConf.load(CONF / "config.yaml"))
    assert file["model"] == {
        "classes": None,
        "sequence_length": "${sequence_length}",
    }  # classes: as the data has labels
    model = {**config_sections()["model"], "sequence_length": file["sequence_length"], "classes": 3}
    assert EncoderSettings(**model) == EncoderSettings()
    assert dense.Settings().lr == 5e-5
