"""Files that a user names: what is no regular file of a sane size is refused at once, by all that read one."""

import os

import pytest
from small_cells import a_record, assert_refused, run_bench

from bench.core.reading import loads, open_regular, read_regular, user_path
from bench.core.record import path_of
from bench.errors import ConfigError


def fifo(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    return path


def test_what_is_no_regular_file_is_not_opened(tmp_path):
    path = fifo(tmp_path / "odd")
    with pytest.raises(OSError, match="odd"):
        open_regular(path)
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)


def test_a_file_beyond_the_limit_is_not_read(tmp_path):
    path = tmp_path / "large"
    path.write_bytes(b"12345")
    assert read_regular(path, 5) == b"12345"
    with pytest.raises(OSError, match="5 bytes"):
        read_regular(path, 4)


@pytest.mark.parametrize(
    "text", ['{"a": 1, "a": 1}', '[{"b": {"a": 1, "a": 2}}]', "NaN", "[1e999]", f"1{'0' * 400}", '"\\ud800"', "{"]
)
def test_json_that_says_two_things_or_none_is_refused(text):
    with pytest.raises(ValueError, match=r"\S"):
        loads(text)


@pytest.mark.parametrize("given", ["~nobody-of-this-name/x", "a\0b"])
def test_what_no_path_can_be_is_refused_by_name(given):
    with pytest.raises(ConfigError, match="results"):
        user_path("results", given)


COMMANDS = {
    "predict": (["predict", "method=dense", "model=odd.json", "device=h100"], "odd.json"),
    "advise": (["advise", "model=odd.json"], "odd.json"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_refuses_it_in_one_sentence(tmp_path, name):
    arguments, named = COMMANDS[name]
    fifo(tmp_path / "odd.json")
    fifo(path_of(a_record(), tmp_path / "records"))
    assert_refused(run_bench(tmp_path, *arguments), named)
