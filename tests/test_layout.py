"""The house: no module imports itself by way of others, and no folder has more files than one can look over."""

import importlib.util
import re
import subprocess
from collections import Counter
from pathlib import Path

import grimp
import pytest

from bench.__main__ import COMMANDS
from figures.registry import by_name

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("comera", "baselines", "bench", "figures")
MODULES = 16

#: One flat folder of figures and tables by their names, which are what one looks for there.
FLAT = ROOT / "figures" / "artifacts"


def circle_in(imports: dict[str, set[str]]) -> list[str]:
    """A circle of imports, or nothing."""
    done: set[str] = set()
    for start in sorted(imports):
        path, pending = [start], [sorted(imports[start])]
        while path:
            if not pending[-1]:
                done.add(path.pop())
                pending.pop()
                continue
            following = pending[-1].pop()
            if following in path:
                return [*path[path.index(following) :], following]
            if following not in done:
                path.append(following)
                pending.append(sorted(imports.get(following, ())))
    return []


def test_no_circle_of_imports() -> None:
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) > 100
    assert circle_in(imports) == []


def test_a_circle_would_be_found() -> None:
    assert circle_in({"a": {"b"}, "b": {"c", "d"}, "c": set(), "d": {"b"}}) == ["b", "d", "b"]
    assert circle_in({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_folder_has_too_many_modules(package) -> None:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    modules = [path for path in (ROOT / package).rglob("*.py") if path.name != "__init__.py"]
    crowded = {
        folder: count
        for folder, count in Counter(path.parent for path in modules).items()
        if count > MODULES and folder != FLAT
    }
    assert modules
    assert crowded == {}


def test_a_class_name_occurs_once() -> None:
    """But for ``Settings``, which every rival's module has, as :mod:`baselines` asks of it."""
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    texts = [path.read_text(encoding="utf-8") for path in files]
    names = Counter(name for text in texts for name in re.findall(r"^ *class (\w+)[(:]", text, flags=re.MULTILINE))
    assert len(names) > 100
    assert [name for name, count in names.items() if count > 1] == ["Settings"]


@pytest.mark.parametrize(
    ("counted", "most"),
    [
        (lambda: len([*(ROOT / "bench" / "conf").rglob("*.yaml")]), 60),
        (lambda: len([*FLAT.glob("[!_]*.py")]), 22),
        (lambda: len(by_name()), 22),
        (lambda: len(COMMANDS), 8),
    ],
    ids=["YAML files", "modules of figures", "names of figures", "commands"],
)
def test_there_are_no_more_than_one_can_look_over(counted, most) -> None:
    assert 0 < counted() <= most


def test_a_clone_stays_small() -> None:
    """No more than 48 MiB of tracked files; large pictures and records that nothing draws go first."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("no clone of git")
    files = [path for name in listed.stdout.split("\0")[:-1] if (path := ROOT / name).is_file()]
    assert sum(path.stat().st_size for path in files) <= 48 * 2**20
