"""From a configuration to cells: every wrong value is one sentence with field, value and what is allowed."""

import math
import re
import shlex

import pytest
import torch
from hydra import compose
from omegaconf import OmegaConf
from small_cells import MODEL, TIMING, a_configuration, changed, one_line

from baselines import dense
from bench.core.identity import identity
from bench.data.corpus import DataError
from bench.errors import CONF
from bench.protocol.methods import ConfigError
from bench.runner.configuration import composed, configuration, job_configuration
from bench.runner.resolve import FIELDS, resolve, resolve_device
from bench.workloads import config_sections
from bench.workloads.encoder import EncoderSettings


@pytest.fixture
def config(pairs):
    """A job of three arms."""
    return a_configuration(pairs, methods=["comera", "low_rank", "low_rank:linear"])


def test_the_fields_are_those_of_the_configuration_file(config):
    assert sorted(config) == sorted({*FIELDS, *config_sections()})


def test_a_job_is_one_cell_per_arm(config, pairs):
    job = resolve(changed(config, "settings", {"low_rank": {"rank": 7}}))
    assert [cell.arm for cell in job.cells] == ["comera", "low_rank", "low_rank:linear"]
    assert [cell.method_settings["rank"] for cell in job.cells[1:]] == [7, 7]
    for cell in job.cells:
        assert (cell.experiment, cell.dataset, cell.batch_size) == ("made_up", pairs.name, 8)
        assert cell.workload_settings == identity(EncoderSettings(**MODEL, sequence_length=32))
        assert cell.timing_settings == TIMING
    assert len(job.data_hash) == 64


def test_an_arm_may_come_twice_with_other_settings(config):
    job = resolve(changed(config, "methods", [{"comera": {"ranks": 8}}, "comera"]))
    assert [cell.arm for cell in job.cells] == ["comera", "comera"]


def test_a_variant_has_settings_of_its_own_as_the_help_says():
    [line] = [line for line in (CONF / "help/run.txt").read_text().splitlines() if "{comera" in line]
    with configuration():
        methods = compose("config", shlex.split(line.partition("bench ")[2])).methods
    assert methods == ["comera", {"comera:orthogonal": {"ranks": 16}}]


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


#: By field, values that it does not take.
WRONG = {
    "workload": ["decoder"],
    "measure": ["guess", "witness"],
    "device": ["tpu"],
    "precision": ["fp7", 32],
    "reuse": ["always"],
    "batch_size": [0, -1, "abc", 2.0, True, None],
    "sequence_length": [0],
    "seed": [-1],
    "parallel": [-1],
    "ratio": [0, 0.5, -1, "two", True, math.nan, math.inf, [2]],
    "cuda_graph": [1],
    "compile": ["yes"],
    "fetch": [None],
    "name": ["../elsewhere", 3],
    "results": [None],
    "methods": [
        *([], "comera", ["sgd"], [None], ["low_rank:quadratic"], [{"comera": 3}], [{"comera": {}, "dense": {}}]),
        *(["dense", "comera", "dense"], ["comera:paper", "comera"], [{"comera": {"ranks": 8}}] * 2),  # twice
    ],
    "toggles": [
        *([], None, {"compile": True}, ["compile"], [{}, {"seed": 3}], [{}, {"batch_size": 0}], [{}, {"compile": 1}]),
        [{}, {"compile": True}, {"compile": True}],
    ],
    "model": [3],
    "model.sequence_length": [4, 65],
    "model.heads": [5],
    "model.layers": [0, "two"],
    "model.dropout": [1.0, math.nan],
    "model.classes": [2],
    "model.depth": [1],
    "timing": [None],
    "timing.blocks": [0, 2.5],
    "timing.extra_blocks": [-1],
    "timing.block_seconds": [0.0, 1e300],
    "timing.launches": [10**12],
    "world_size": [10**9],
    "timing.time_limit_s": [math.inf],
    "timing.disturbed": [1.0],
    "timing.allocator": ["fast"],
    "timing.rounds": [1],
    "settings": [[1]],
    "settings.sgd": [{}],
    "settings.galore": [3],
    "settings.galore.rank": [0, "x", True],
    "settings.galore.range": [1],
    "settings.galore.lr": [-1.0],
    "settings.comera.ratio": [0.5, "two"],
    "settings.comera.lookup": ["fast"],
    "settings.comera.gamma": [math.nan],
    "settings.lte.reset": [1],
    "extra": [{}],
    "dataset": [3, "mnli"],
    "data_folder": [3, "/no/such/folder"],
}


@pytest.mark.parametrize("field", WRONG)
def test_a_wrong_value_is_one_line_that_names_its_field(config, field):
    for value in WRONG[field]:
        with one_line((ConfigError, DataError), field.rpartition(".")[2].removesuffix("s")):
            resolve(changed(config, field, value))


def test_measures_and_ratios_are_of_some_workloads_and_some_methods(config):
    for changes, named in (
        ({"measure": "plan", "methods": ["comera"]}, "workload"),
        ({"measure": "plan", "workload": "linear", "data_folder": None, "methods": ["dense"]}, "methods"),
        ({"measure": "train", "workload": "lookup", "data_folder": None}, "lookup"),
        ({"ratio": 10.0, "methods": ["dense", "lora"]}, "ratio"),  # no arm of the job takes one
    ):
        with one_line(ConfigError, named):
            resolve(config | changes)


def test_toggles_add_rounds_of_all_arms(config):
    rounds = [{}, {"compile": True, "precision": "bf16"}, {"compile": False}]
    cells = resolve(config | {"methods": ["comera", "dense"], "toggles": rounds, "precision": "fp32"}).cells
    found = [(cell.method, cell.compile, cell.precision) for cell in cells]
    assert found == [(m, *toggle) for toggle in ((False, "fp32"), (True, "bf16")) for m in ("comera", "dense")]


def test_arms_of_several_batch_sizes_are_cells_of_one_job(config):
    rounds = [{"batch_size": 8}, {}, {"batch_size": 4, "precision": "bf16"}]
    cells = resolve(config | {"methods": ["comera", "dense"], "toggles": rounds, "batch_size": 2}).cells
    found = [(cell.method, cell.batch_size, cell.precision) for cell in cells]
    assert found == [(m, *each) for each in ((8, "fp32"), (2, "fp32"), (4, "bf16")) for m in ("comera", "dense")]
    alone = resolve(config | {"methods": ["comera", "dense"], "batch_size": 8}).cells
    assert cells[:2] == alone
    with one_line(ConfigError, "batch_size"):
        resolve(config | {"toggles": [{}, {"batch_size": 10**6}]})


@pytest.mark.parametrize("field", [*FIELDS, *config_sections()])
def test_a_field_that_is_not_there_is_missed(config, field):
    del config[field]
    with pytest.raises(ConfigError, match=field):
        resolve(config)


def test_cuda_where_there_is_none(config, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for measure in ("run", "train"):
        with pytest.raises(ConfigError, match="device"):
            resolve(config | {"device": "cuda", "measure": measure})
    cells = resolve(changed(changed(config, "device", "cuda"), "measure", "predict")).cells
    assert {cell.device for cell in cells} == {"cuda"}


def test_auto_is_the_device_there_is(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["workload=teacher", "model.width=512"],
            "model.width is a setting of workload=encoder, which",
        ),
        (["workload=teacher", "+text.other=1"], "text.other is a setting of workload=text"),
        (["workload=teacher,text", "text.width=64", "teacher.width=32,64"], ""),
        (["model.width=32"], ""),
    ],
)
def test_a_setting_of_another_workload_is_refused(words, said):
    with configuration():
        if not said:
            composed(["experiment=steps", *words])
            return
        with pytest.raises(ConfigError, match=re.escape(said)):
            composed(["experiment=steps", *words])


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["methods=[btt]", "training.optimizer=foo"], "training.optimizer is 'foo'"),
        (["methods=[btt,btt]"], "methods has 'btt' twice"),
    ],
)
def test_plan_and_arms_are_checked_before_the_data_is_read(words, named, monkeypatch):
    monkeypatch.setattr("bench.runner.resolve.open_workload", lambda *_, **__: pytest.fail("the data was read"))
    with configuration(), one_line(ConfigError, named):
        resolve(job_configuration(["experiment=formats_tiny", *words]))
