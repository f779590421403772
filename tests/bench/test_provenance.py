"""Where a number comes from: hashes of the code that measured and of the machine, and a commit that is never blank."""

import ast
import dataclasses
import os
import re
import shutil
import types

import pytest
import torch
from small_cells import a_record, git

import bench.core.provenance
from bench.core.provenance import MEASURING_CODE, _text, code_id, device_name, machine_hash, provenance

fresh_code_id, fresh_provenance = code_id.__wrapped__, provenance.__wrapped__

MODULE = '''"""A module."""

from functools import cache

import comera.layers
from bench.step import timing

LIMIT = 60.0


@cache
def function(x=3):
    """Return it."""
    return x + 1
'''


def write_tree(root):
    """Write a small tree: a module in each folder that measures, and in two that do not."""
    for number, folder in enumerate((*MEASURING_CODE, "figures", "bench/runner")):
        (root / folder / "below").mkdir(parents=True, exist_ok=True)
        (root / folder / "below" / "module.py").write_text(MODULE + f"NUMBER = {number}\n")
    (root / "README.md").write_text("read me")
    return root


@pytest.fixture
def original(tmp_path):
    return fresh_code_id(write_tree(tmp_path / "original"))


@pytest.fixture
def tree(tmp_path):
    return write_tree(tmp_path / "tree")


@pytest.fixture
def elsewhere(tree, monkeypatch):
    """The copy as the tree that provenance speaks of, with git's own settings out of the way."""
    monkeypatch.setattr(bench.core.provenance, "ROOT", tree)
    monkeypatch.delenv("BENCH_COMMIT", raising=False)
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    return tree


@pytest.mark.parametrize("folder", MEASURING_CODE)
def test_an_edit_in_any_measuring_folder_changes_the_id(tree, original, folder):
    file = tree / folder / "below" / "module.py"
    file.write_text(file.read_text() + "\nCHANGED = 1\n")
    assert fresh_code_id(tree) != original


def test_these_folders_measure():
    """With one fewer, a change there would leave the records of former code as they are."""
    measuring = "protocol workloads data step estimate measures training processes distributed"
    assert {*MEASURING_CODE} == {"comera", "baselines", *(f"bench/{name}" for name in measuring.split())}


#: What is edited, into what, and whether that changes the id.
EDITS = {
    "an expression": ("x + 1", "x + 2", True),
    "a default": ("x=3", "x=4", True),
    "a decorator": ("@cache", "@lru_cache", True),
    "a constant": ("LIMIT = 60.0", "LIMIT = 61.0", True),
    "a docstring": ('"""Return it."""', '"""Reworded."""', False),
    "layout and a comment": ("x + 1", "(x + 1)  # a comment", False),
    "an own import": ("from bench.step import timing", "from bench.measures import clock as timing, process", False),
    "an own import left out": ("import comera.layers\n", "", False),
    "nothing": ("x + 1", "x + 1", False),
}


@pytest.mark.parametrize("edit", EDITS)
def test_edits_of_code_change_the_id_and_others_and_a_move_leave_it(tree, original, edit):
    old, new, changes = EDITS[edit]
    file = tree / "bench" / "step" / "below" / "module.py"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    if not changes:
        file.rename(tree / "bench" / "measures" / "moved.py")
    assert (fresh_code_id(tree) != original) == changes


def test_an_empty_field_of_another_version_of_python_leaves_the_text(monkeypatch):
    """Python 3.12 gave functions and classes ``type_params``; records of it and of 3.11 are of the same code."""
    [function] = ast.parse("def f(x=None): return [x, '', b'', ...]").body
    text = _text(function)
    monkeypatch.setattr(ast.FunctionDef, "_fields", (*ast.FunctionDef._fields, "of_a_later_python"))
    function.of_a_later_python = []
    assert _text(function) == text
    assert "defaults=[Constant(value=None)]" in text
    assert "Constant(value=''), Constant(value=b''), Constant(value=Ellipsis)" in text


@pytest.mark.parametrize("entry", ["README.md", "figures/below/module.py", "bench/runner/below/module.py"])
def test_what_does_not_measure_leaves_the_id(tree, original, entry):
    (tree / entry).write_text((tree / entry).read_text() + "\nCHANGED = 1\n")
    (tree / "comera" / "layers.cpython-311.pyc").write_bytes(b"x")
    assert fresh_code_id(tree) == original


@pytest.mark.usefixtures("elsewhere")
def test_an_exported_tree_names_its_commit(monkeypatch):
    assert fresh_provenance().git_commit == "unversioned"
    monkeypatch.setenv("BENCH_COMMIT", "")
    assert fresh_provenance().git_commit == "unversioned"
    monkeypatch.setenv("BENCH_COMMIT", "v1.2-3-gabcdef")
    assert fresh_provenance().git_commit == "v1.2-3-gabcdef"
    assert fresh_provenance().git_dirty is False
    monkeypatch.setenv("PATH", "")  # without git
    assert fresh_provenance().git_commit == "v1.2-3-gabcdef"


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_repository_gives_its_own_commit(elsewhere, monkeypatch):
    monkeypatch.setenv("BENCH_COMMIT", "of the export")
    git(elsewhere.parent, "init", "--quiet")
    assert fresh_provenance().git_commit == "of the export"  # another project's repository around the tree

    git(elsewhere, "init", "--quiet")
    assert fresh_provenance().git_commit == "of the export"  # no commit yet
    git(elsewhere, "add", ".")
    git(elsewhere, "commit", "--quiet", "--message", "all")
    assert fresh_provenance().git_commit == git(elsewhere, "rev-parse", "HEAD")
    assert fresh_provenance().git_dirty is False
    (elsewhere / "README.md").write_text("changed")
    (elsewhere / "figures" / "another.py").write_text("")
    assert fresh_provenance().git_dirty is False
    (elsewhere / "baselines" / "another.py").write_text("")
    assert fresh_provenance().git_dirty is True
    (elsewhere / "baselines" / "another.py").unlink()
    (elsewhere / "comera" / "below" / "module.py").write_text("changed")
    assert fresh_provenance().git_dirty is True


def test_provenance_fills_its_columns():
    found = provenance()
    record = a_record(**dataclasses.asdict(found))
    for column in ("code_id", "device", "torch_version", "library_versions", "git_commit"):
        assert getattr(record, column).strip()
    assert (record.threads, record.torch_version) == (found.threads, torch.__version__)
    assert "peft " in record.library_versions
    assert "galore-torch " in record.library_versions
    assert re.fullmatch("[0-9a-f]{16}", record.code_id)
    assert "\n" not in record.device
    assert record.machine == machine_hash()


def test_what_runs_on_the_processor_of_a_machine_with_a_gpu_is_not_recorded_as_the_gpus(monkeypatch):
    monkeypatch.setattr(bench.core.provenance.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(bench.core.provenance.torch.cuda, "get_device_name", lambda: "Made-up GPU")
    assert fresh_provenance().device == "Made-up GPU"
    on_cpu = fresh_provenance(on_cpu=True)
    assert "Made-up GPU" not in on_cpu.device
    assert on_cpu.driver == ""


INFO = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 26
model\t\t: 2
model name\t: Made-up CPU
stepping\t: 1
microcode\t: 0x1
cpu MHz\t\t: 2596.1

processor\t: 1
model name\t: Made-up CPU
"""


@pytest.fixture
def system(tmp_path, monkeypatch):
    """A made-up system outside of any container: what it says of itself, by name, each in a file to be changed."""
    contents = {"_MACHINE_ID": "a" * 32, "_BOOT_ID": "b" * 36, "_CPU_INFO": INFO}
    files = {name: tmp_path / name for name in contents}
    for name, file in files.items():
        file.write_text(f"{contents[name]}\n")
        monkeypatch.setattr(bench.core.provenance, name, file)
    files["container"] = tmp_path / "container"
    monkeypatch.setattr(bench.core.provenance, "_CONTAINER", (files["container"],))
    return files


def test_a_machine_keeps_its_hash_when_it_is_started_or_brought_up_to_date(system):
    before = machine_hash(on_cpu=True)
    assert re.fullmatch("[0-9a-f]{12}", before)
    system["_BOOT_ID"].write_text("another\n")
    system["_CPU_INFO"].write_text(INFO.replace("0x1", "0x2").replace("2596.1", "2596.2"))
    assert machine_hash(on_cpu=True) == before


@pytest.mark.parametrize(
    ("name", "content"), [("_MACHINE_ID", "c" * 32), ("_CPU_INFO", INFO.replace("family\t: 26", "family\t: 25"))]
)
def test_machines_of_one_name_have_hashes_of_their_own(system, name, content):
    before = machine_hash(on_cpu=True), device_name(on_cpu=True)
    system[name].write_text(content)
    assert machine_hash(on_cpu=True) != before[0]
    assert device_name(on_cpu=True) == before[1]


@pytest.mark.usefixtures("system")
def test_copies_of_an_installation_are_told_apart_by_their_memory(monkeypatch):
    def with_gib(gib):
        memory = types.SimpleNamespace(total=int(gib * 2**30))
        monkeypatch.setattr(bench.core.provenance.psutil, "virtual_memory", lambda: memory)
        return machine_hash(on_cpu=True)

    assert with_gib(24) == with_gib(23.8) != with_gib(32)


@pytest.mark.parametrize("missing", ["container", "no id", "no content"])
def test_without_an_id_of_its_own_a_system_is_known_by_its_boot(system, missing):
    outside = machine_hash(on_cpu=True)
    if missing == "container":
        system["container"].touch()
    elif missing == "no id":
        system["_MACHINE_ID"].unlink()
    else:
        system["_MACHINE_ID"].write_text("\n")
    first = machine_hash(on_cpu=True)
    system["_BOOT_ID"].write_text("another\n")
    assert len({outside, first, machine_hash(on_cpu=True)}) == 3
    system["_BOOT_ID"].unlink()
    assert machine_hash(on_cpu=True) is None


@pytest.mark.usefixtures("system")
def test_gpus_are_part_of_a_machine_where_they_are_used(monkeypatch):
    monkeypatch.setattr(bench.core.provenance.torch.cuda, "is_available", lambda: True)
    gpus = []
    monkeypatch.setattr(bench.core.provenance, "_output", lambda *_: "\n".join(gpus))
    hashes = set()
    for gpu in ("GPU-1", "GPU-2"):
        gpus.append(gpu)
        hashes |= {machine_hash(), machine_hash(on_cpu=True)}
    assert len(hashes) == 3
