"""The wheel: the library alone, typed, which works and imports fast in an environment of its own."""

import re
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tarfile
import time
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

import comera

ROOT = Path(__file__).resolve().parent.parent
SITE = Path(sysconfig.get_path("purelib"))


def test_the_version_is_one() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert str(citation["version"]) == comera.__version__
    assert f"\n## {comera.__version__}\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["setuptools"]["dynamic"]["version"]["attr"] == "comera.compatibility.version.__version__"


def test_needed_packages_are_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pinned = {line.partition("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    for extra in ("bench", "test", "lint", "docs"):
        for requirement in project["optional-dependencies"][extra]:
            assert re.split(r"[\[>=<;]", requirement)[0].lower() in pinned, requirement


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built of a copy of the clone."""
    clone, out = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("wheel")
    shutil.copytree(
        ROOT,
        clone,
        dirs_exist_ok=True,
        ignore=lambda folder, names: [
            name
            for name in names
            if name == "__pycache__"
            or (
                Path(folder) == ROOT
                and name not in ("comera", "bench", "figures", "baselines", "pyproject.toml", "README.md", "LICENSE")
            )
        ],
    )
    quiet = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation")
    subprocess.run([sys.executable, "-m", "pip", "wheel", *quiet, "-w", out, clone], check=True)
    [built] = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory) -> Path:
    """The interpreter of an environment with the wheel, beside the torch and numpy that are installed here."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    [own] = folder.glob("lib/python*/site-packages")
    began = time.perf_counter()
    quiet = ("--quiet", "--disable-pip-version-check", "--no-deps", "--target", own)
    subprocess.run([sys.executable, "-m", "pip", "install", *quiet, wheel], check=True)
    assert time.perf_counter() - began < 60
    (own / "torch_and_numpy.pth").write_text(f"{SITE}\n", encoding="utf-8")  # .pth files in there are not read
    return folder / "bin" / "python"


def run(python: Path, code: str, folder: Path) -> str:
    command = [python, "-c", code]
    return subprocess.run(command, cwd=folder, env={}, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_the_wheel_holds_the_library_alone(wheel) -> None:
    assert wheel.name == f"comera-{comera.__version__}-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {"comera", f"comera-{comera.__version__}.dist-info"}
    assert "comera/py.typed" in names
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "comera").rglob("*.py")}
    assert modules <= set(names)


@pytest.mark.slow
def test_the_source_archive_holds_the_library_alone(tmp_path) -> None:
    shutil.copytree(ROOT / "comera", tmp_path / "comera", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_none.py").touch()  # setuptools takes such files unless told
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    code = "from setuptools.build_meta import build_sdist; build_sdist('dist')"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)
    with tarfile.open(tmp_path / "dist" / f"comera-{comera.__version__}.tar.gz") as archive:
        folders = {name.split("/")[1] for name in archive.getnames() if name.count("/") > 1}
    assert folders == {"comera", "comera.egg-info"}


@pytest.mark.slow
def test_the_first_example_runs_in_an_environment_of_its_own(python, tmp_path) -> None:
    [code] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    began = time.perf_counter()
    ending = "import comera, importlib.util; print(comera.__file__, importlib.util.find_spec('bench'))"
    printed = run(python, f"{code}\n{ending}", tmp_path)
    assert time.perf_counter() - began < 60
    file, bench = printed.split()
    assert Path(file).is_relative_to(python.parents[1])
    assert bench == "None"


#: Prints how much processor time importing the library takes, over that of torch and numpy before it.
IMPORTED = """
import time
before = time.process_time()
import numpy, torch
between = time.process_time()
import comera
print((time.process_time() - between) / (between - before))
"""


@pytest.mark.slow
def test_importing_it_adds_little_to_importing_torch(python, tmp_path) -> None:
    run(python, IMPORTED, tmp_path)  # writes what is compiled
    assert statistics.median(float(run(python, IMPORTED, tmp_path)) for _ in range(3)) < 0.2
