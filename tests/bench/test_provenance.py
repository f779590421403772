"""Where a number comes from: hashes of the code that measured and of the machine, and a commit that is never blank."""

from __future__ import annotations

import ast
import dataclasses
import os
import re
import shutil
import subprocess
import types

import pytest
import torch
from small_cells import ROOT, a_record

import bench.core.provenance
from bench.core.provenance import MEASURING_CODE, _text, code_id, device_name, machine_hash, provenance

fresh_code_id, fresh_provenance = code_id.__wrapped__, provenance.__wrapped__


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A copy of the source, such as an archive gives: no git."""
    tree = tmp_path_factory.mktemp("exported") / "tree"
    for floor in ("comera", "baselines", "bench", "figures"):
        shutil.copytree(ROOT / floor, tree / floor, ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "README.md").write_text("read me")
    return tree


@pytest.fixture
def tree(original, tmp_path):
    return shutil.copytree(original, tmp_path / "tree")


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


def test_a_copy_of_the_code_has_the_same_id(original):
    assert fresh_code_id(original) == fresh_code_id(ROOT)


@pytest.mark.parametrize("folder", MEASURING_CODE)
def test_an_edit_in_any_measuring_folder_changes_the_id(tree, original, folder):
    file = sorted((tree / folder).rglob("*.py"))[-1]
    file.write_text(file.read_text() + "\nCHANGED = 1\n")
    assert fresh_code_id(tree) != fresh_code_id(original)


def test_an_edit_inside_a_function_changes_the_id(tree, original):
    file = tree / "bench" / "step" / "timing.py"
    text = file.read_text()
    assert "loss = self._run()" in text
    file.write_text(text.replace("loss = self._run()", "loss = self._run() * 1", 1))
    assert fresh_code_id(tree) != fresh_code_id(original)


def test_comments_docstrings_layout_moves_and_own_imports_leave_the_id(tree, original):
    file = tree / "bench" / "step" / "timing.py"
    text = file.read_text()
    reworded = text.replace('"""The loss is no longer a finite number."""', '"""Reworded."""')
    assert reworded != text
    file.write_text(f"# A comment.\n{reworded.replace('loss = self._run()', 'loss = (self._run())')}\n\n\n")
    moved = tree / "bench" / "measures" / "clock.py"
    file.rename(moved)
    for other in (tree / "bench").rglob("*.py"):
        other.write_text(other.read_text().replace("bench.step.timing", "bench.measures.clock"))
    assert moved.exists()
    assert fresh_code_id(tree) == fresh_code_id(original)


def test_a_constant_a_default_and_a_decorator_are_edits(tree, original):
    ids = {fresh_code_id(original)}
    file = tree / "bench" / "training" / "run.py"
    for before, after in (
        ("_CHECKPOINT_SECONDS = 60.0", "_CHECKPOINT_SECONDS = 61.0"),
        ("resume: bool = True", "resume: bool = False"),
        ("@dataclass(frozen=True)", "@dataclass"),
    ):
        assert before in file.read_text()
        file.write_text(file.read_text().replace(before, after, 1))
        ids.add(fresh_code_id(tree))
    assert len(ids) == 4


def test_an_empty_field_of_another_version_of_python_leaves_the_text(monkeypatch):
    """Python 3.12 gave functions and classes ``type_params``; records of it and of 3.11 are of the same code."""
    [function] = ast.parse("def f(x=None): return [x, '', b'', ...]").body
    text = _text(function)
    monkeypatch.setattr(ast.FunctionDef, "_fields", (*ast.FunctionDef._fields, "of_a_later_python"))
    function.of_a_later_python = []
    assert _text(function) == text
    assert "defaults=[Constant(value=None)]" in text
    assert "Constant(value=''), Constant(value=b''), Constant(value=Ellipsis)" in text


@pytest.mark.parametrize(
    "entry",
    ["README.md", "figures/__main__.py", "bench/runner/progress.py", "bench/__main__.py", "bench/conf/config.yaml"],
)
def test_what_does_not_measure_leaves_the_id(tree, original, entry):
    (tree / entry).write_text((tree / entry).read_text() + "\nCHANGED = 1\n")
    assert fresh_code_id(tree) == fresh_code_id(original)


def test_compiled_files_leave_the_id(tree, original):
    (tree / "comera" / "__pycache__").mkdir()
    (tree / "comera" / "__pycache__" / "layers.cpython-311.pyc").write_bytes(b"x")
    assert fresh_code_id(tree) == fresh_code_id(original)


@pytest.mark.usefixtures("elsewhere")
def test_an_exported_tree_names_its_commit(monkeypatch):
    assert fresh_provenance().git_commit == "unversioned"
    monkeypatch.setenv("BENCH_COMMIT", "")
    assert fresh_provenance().git_commit == "unversioned"
    monkeypatch.setenv("BENCH_COMMIT", "v1.2-3-gabcdef")
    assert fresh_provenance().git_commit == "v1.2-3-gabcdef"
    assert fresh_provenance().git_dirty is False


@pytest.mark.usefixtures("elsewhere")
def test_a_machine_without_git_names_its_commit(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("BENCH_COMMIT", "abc")
    assert fresh_provenance().git_commit == "abc"


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_repository_gives_its_own_commit(elsewhere, monkeypatch):
    def git(*arguments, cwd=elsewhere):
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        done = subprocess.run(["git", *identity, *arguments], cwd=cwd, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    monkeypatch.setenv("BENCH_COMMIT", "of the export")
    git("init", "--quiet", cwd=elsewhere.parent)
    assert fresh_provenance().git_commit == "of the export"  # another project's repository around the tree

    git("init", "--quiet")
    assert fresh_provenance().git_commit == "of the export"  # no commit yet
    git("add", ".")
    git("commit", "--quiet", "--message", "all")
    assert fresh_provenance().git_commit == git("rev-parse", "HEAD")
    assert fresh_provenance().git_dirty is False
    (elsewhere / "README.md").write_text("changed")
    (elsewhere / "figures" / "another.py").write_text("")
    assert fresh_provenance().git_dirty is False
    (elsewhere / "baselines" / "another.py").write_text("")
    assert fresh_provenance().git_dirty is True
    (elsewhere / "baselines" / "another.py").unlink()
    (elsewhere / "comera" / "layers.py").write_text("changed")
    assert fresh_provenance().git_dirty is True


def test_provenance_fills_its_columns():
    found = provenance()
    record = a_record(**dataclasses.asdict(found))
    for column in ("code_id", "device", "torch_version", "library_versions", "git_commit"):
        assert getattr(record, column).strip()
    assert (record.threads, record.torch_version) == (found.threads, torch.__version__)
    assert "peft " in record.library_versions
    assert "galore-torch " in record.library_versions
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
