"""From a configuration to training runs: which runs there are, their stages, and one sentence for a wrong value."""

from __future__ import annotations

import math

import pytest
from small_cells import a_configuration, changed

from bench.protocol.methods import ConfigError
from bench.runner.resolve import resolve


@pytest.fixture
def training(pairs):
    """A job of two arms; the corpus has 240 rows, so batches of 40 make six steps per epoch."""
    config = a_configuration(pairs, measure="train", methods=["comera", "dense"], batch_size=40)
    config["settings"] = {"comera": {"lr_ranks": 0.01}}
    config["training"] |= {"early_epochs": 2.0, "late_epochs": 50.0, "targets": [0.8, 0.5]}
    return config


def stages(config):
    """Per run, its arm and the steps, target and target in MiB of its stages."""
    names = ("steps", "target", "target_mib")
    cells = resolve(config).cells
    return [(cell.arm, *(tuple(stage[n] for n in names) for stage in cell.training["stages"])) for cell in cells]


def test_an_early_run_and_a_late_one_per_target(training):
    early, late = (12, None, None), (300, None, None)
    assert stages(changed(training, "training.targets_mib", [0.1])) == [
        ("comera", early),
        ("comera", early, (300, 0.8, None)),
        ("comera", early, (300, 0.5, None)),
        ("comera", early, (300, None, 0.1)),
        ("dense", early, late),
    ]
    cell = resolve(training).cells[0]
    assert (cell.training["steps_per_epoch"], cell.training["static"]) == (6, False)
    assert cell.timing_settings == {}


def test_without_a_target_there_is_only_an_early_stage(training):
    early = (12, None, None)
    assert stages(changed(training, "training.targets", [])) == [("comera", early), ("dense", early)]


def test_steps_go_before_epochs_and_padded_epochs_drop_what_is_left(training):
    training["training"] |= {"early_steps": 5, "late_steps": 200, "targets": [1]}
    assert stages(training)[1] == ("comera", (5, None, None), (200, 1.0, None))
    padded = changed(training, "training.static", True) | {"batch_size": 100}
    steps = {resolve(config).cells[0].training["steps_per_epoch"] for config in (padded, training)}
    assert steps == {2, 6}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        *(
            ({"targets": wrong}, f"training.targets is {wrong!r}; allowed: a list of shares above 0 and at most 1")
            for wrong in ([0.5, 0], [1.5], [-0.1], 0.5, None, ["half"], [True])
        ),
        *(
            ({"targets_mib": wrong}, f"training.targets_mib is {wrong!r}; allowed: a list of finite numbers")
            for wrong in (3, ["half"])
        ),
        ({"targets": [math.nan]}, "training.targets has nan; allowed: finite numbers."),
        ({"targets_mib": [math.inf]}, "training.targets_mib has inf; allowed: finite numbers."),
        ({"targets_mib": [0.1, 1e-3]}, "training.targets_mib is 0.001; what stays dense weighs 0.02 MiB, the small"),
        *(
            ({name: wrong}, f"training.{name} is {wrong!r}; allowed: whole numbers from 1 to 1,000,000,000, or null.")
            for name, wrong in (("early_steps", 0), ("late_steps", -3), ("early_steps", 2.5), ("late_steps", True))
        ),
        ({"early_epochs": 0.0}, "training.early_epochs is 0.0; allowed: numbers above 0, up to 1,000,000."),
        ({"late_epochs": math.inf}, "training.late_epochs is inf; allowed: numbers above 0, up to 1,000,000."),
        ({"time_limit_s": 0}, "training.time_limit_s is 0; allowed: seconds above 0, up to a year"),
        ({"static": 1}, "training.static is 1; allowed: a value of type bool."),
        ({"early_epoch": 3}, "training.early_epoch is unknown; allowed: early_epochs, late_epochs, early_steps"),
        (
            {"late_steps": 150},
            "lr_ranks is 0.01 and the late stage has 150 steps, so a rank entry moves by 1.5 at most and cannot be "
            "relied on to reach zero; lr_ranks times steps must be at least 2.",
        ),
    ],
)
def test_a_wrong_value_is_one_sentence(training, changes, sentence):
    training["training"] |= changes
    with pytest.raises(ConfigError) as error:
        resolve(training)
    assert str(error.value).startswith(sentence)
    assert "\n" not in str(error.value)


def test_the_smallest_size_named_is_within_reach(training):
    with pytest.raises(ConfigError, match=r"weighs (\d\.\d\d) MiB") as error:
        resolve(changed(training, "training.targets_mib", [0.001]))
    smallest = float(str(error.value).split(" weighs ")[1].split()[0])
    assert stages(changed(training, "training.targets_mib", [smallest + 0.01]))


def test_a_rate_too_small_for_the_late_stage_matters_only_where_there_is_one(training):
    slow = changed(training, "settings.comera.lr_ranks", 1e-4)
    with pytest.raises(ConfigError, match=r"^lr_ranks is 0\.0001 and the late stage has 300 steps"):
        resolve(slow)
    assert len(resolve(changed(slow, "training.targets", [])).cells) == 2
    assert len(resolve(slow | {"methods": ["dense"]}).cells) == 1


@pytest.mark.parametrize("static", [False, True])
def test_a_batch_larger_than_the_corpus(training, static):
    large = changed(training, "training.static", static) | {"batch_size": 241}
    with pytest.raises(ConfigError, match=r"^batch_size is 241; allowed: 1 to the 240 training rows\.$"):
        resolve(large)
    [cell] = resolve(changed(large, "training.targets", []) | {"methods": ["dense"]}, any_batch=True).cells
    assert cell.batch_size == 241


def test_classes_are_those_of_the_data_unless_given(training):
    assert resolve(changed(training, "model.classes", None)).cells[0].workload_settings["classes"] == 3
