"""Methods are found by their files, and their settings checked by their types."""

import dataclasses
import sys

import pytest
from small_cells import ROOT, one_line

import baselines
from bench.core.cell import Arm
from bench.protocol.methods import (
    ConfigError,
    available,
    build,
    build_dataclass,
    checked_settings,
    default_settings,
    parse_arm,
)

NEW_METHOD = """
from dataclasses import dataclass

VARIANTS = ("plain", "fancy")


@dataclass(frozen=True)
class Settings:
    pace: float = 0.5


def build(settings, variant):
    return (settings, variant)
"""


@pytest.fixture
def a_new_file(tmp_path, monkeypatch):
    """A folder whose modules are methods as well, with one method in it."""
    (tmp_path / "dropped_in.py").write_text(NEW_METHOD)
    (tmp_path / "_shared.py").write_text("")
    monkeypatch.setattr(baselines, "__path__", [*baselines.__path__, str(tmp_path)])
    available.cache_clear()
    yield
    available.cache_clear()
    sys.modules.pop("baselines.dropped_in", None)


def test_methods_are_the_files_of_baselines_and_comera():
    files = {path.stem for path in (ROOT / "baselines").glob("*.py") if not path.name.startswith("_")}
    assert available()[0] == "comera"
    assert set(available()) == files | {"comera"}
    assert len(available()) == len(files) + 1


@pytest.mark.usefixtures("a_new_file")
def test_a_new_file_is_a_new_method():
    assert "dropped_in" in available()
    assert "_shared" not in available()
    assert parse_arm("dropped_in") == parse_arm("dropped_in:plain") == Arm("dropped_in")
    assert parse_arm("dropped_in:fancy") == Arm("dropped_in", "fancy")
    assert checked_settings("dropped_in", {"pace": 2}) == {"pace": 2.0}
    settings, variant = build("dropped_in", "", {"pace": 2.0})
    assert (settings.pace, variant) == (2.0, "plain")
    with pytest.raises(ConfigError, match="has no variant 'odd', allowed: plain, fancy"):
        parse_arm("dropped_in:odd")


@pytest.mark.parametrize("name", available())
def test_every_method_is_complete(name):
    """Settings that all have defaults, variants with the default first, and what the bench calls."""
    settings = default_settings(name)
    # left out where not given, so that cells without them are those of before
    later = ("ratio", "ranks_of_ratio", "drop_unreachable", "lr_tables", "late", "may_close_layers", "fused")
    later += ("merge_tf32",)
    later += ("recovery",) * (name == "dense") + ("depth",) * (name in ("dense", "btt", "grouped"))
    without_ratio = {field: value for field, value in settings.items() if field not in later}
    assert checked_settings(name, {}) == checked_settings(name, settings) == without_ratio
    method = build(name, "", settings)
    hooks = "unsupported adapt optimizer objective after_step rare_events state_dict load_state_dict stored_size"
    hooks += " use_task_loss"
    assert all(callable(getattr(method, hook)) for hook in hooks.split())
    assert method.capture in ("whole_step", "forward_backward", "none")
    assert (method.capture == "whole_step") == (method.capture_reason == "")
    assert parse_arm(name) == Arm(name)


@pytest.mark.parametrize(
    ("arm", "parsed"),
    [
        ("comera:paper", Arm("comera")),
        ("comera:released", Arm("comera", "released")),
        ("low_rank:linear+checkpoint", Arm("low_rank", "linear", checkpoint=True)),
        ("dense+powersgd_4", Arm("dense", exchange="powersgd_4")),
        ("galore:8bit+checkpoint+powersgd_4", Arm("galore", "8bit", checkpoint=True, exchange="powersgd_4")),
    ],
)
def test_the_default_variant_has_no_name(arm, parsed):
    assert parse_arm(arm) == parsed
    assert parse_arm(str(parsed)) == parsed


@pytest.mark.parametrize(
    "arm",
    [
        "",
        "sgd",
        "Dense",
        "_arm",
        ":linear",
        "os",
        "+ddp",
        "dense+check",
        "dense+checkpoint+checkpoint",
        "dense+powersgd_5",
        "dense+ddp+checkpoint",
        "dense+ddp+ddp",
        "dense:",
        "dense@",
        "dense+",
        "dense@size",
        "low_rank@rate",
        "lora@rank:x",
    ],
)
def test_nothing_else_is_a_method(arm):
    with one_line(ConfigError, "method"):
        parse_arm(arm)


@dataclasses.dataclass(frozen=True)
class Sizes:
    count: int = 1
    share: float = 0.5
    name: str | None = None
    flag: bool = False

    def __post_init__(self):
        if self.count < 0:
            raise ValueError(f"count is {self.count}; allowed: 0 and more")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("counts", 1),
        ("count", 1.0),
        ("count", True),
        ("count", -1),
        ("share", "half"),
        ("share", False),
        ("share", float("inf")),
        ("name", 1),
        ("flag", 0),
        ("flag", None),
    ],
)
def test_a_wrong_setting_is_one_line_that_names_it(field, value):
    with one_line(ConfigError, "sizes", field):
        build_dataclass(Sizes, {field: value}, "sizes")


def test_right_settings_are_taken_and_whole_numbers_made_real():
    assert build_dataclass(Sizes, {"count": 3, "share": 1, "name": "x"}, "sizes") == Sizes(3, 1.0, "x")
    assert type(build_dataclass(Sizes, {"share": 1}, "sizes").share) is float
    assert build_dataclass(Sizes, {"name": None}, "sizes") == Sizes()
