"""From a configuration to training runs: which runs there are, their stages, and one sentence for a wrong value."""

import math

import pytest
from small_cells import a_configuration, changed, one_line

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
    ("field", "values"),
    [
        ("targets", [[0.5, 0], [1.5], [-0.1], 0.5, None, ["half"], [True], [math.nan]]),
        ("targets_mib", [3, ["half"], [math.inf], [0.1, 1e-3]]),
        ("early_steps", [0, 2.5]),
        ("late_steps", [-3, True, 150]),  # in 150 steps at this rate no rank can be relied on to close
        ("early_epochs", [0.0]),
        ("late_epochs", [math.inf]),
        ("time_limit_s", [0]),
        ("static", [1]),
        ("early_epoch", [3]),
    ],
)
def test_a_wrong_value_is_one_line_that_names_its_field(training, field, values):
    for value in values:
        with one_line(ConfigError, "lr_ranks" if value == 150 else field):
            resolve(changed(training, f"training.{field}", value))


def test_the_smallest_size_named_is_within_reach(training):
    with pytest.raises(ConfigError, match=r"weighs (\d\.\d\d) MiB") as error:
        resolve(changed(training, "training.targets_mib", [0.001]))
    smallest = float(str(error.value).split(" weighs ")[1].split()[0])
    assert stages(changed(training, "training.targets_mib", [smallest + 0.01]))


def test_a_rate_too_small_for_the_late_stage_matters_only_where_there_is_one(training):
    slow = changed(training, "settings.comera.lr_ranks", 1e-4)
    with pytest.raises(ConfigError, match="lr_ranks"):
        resolve(slow)
    assert len(resolve(changed(slow, "training.targets", [])).cells) == 2
    assert len(resolve(slow | {"methods": ["dense"]}).cells) == 1


def test_classes_are_those_of_the_data_unless_given(training):
    assert resolve(changed(training, "model.classes", None)).cells[0].workload_settings["classes"] == 3
