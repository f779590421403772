"""Where a number comes from: machine, driver, versions, and the code that ran."""

import ast
import contextlib
import functools
import hashlib
import importlib.metadata
import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]

#: Folders whose change makes a measurement a different one: the methods, and what builds, runs and measures a step.
MEASURING_CODE = (
    "comera", "baselines", "bench/protocol", "bench/workloads", "bench/data", "bench/step", "bench/estimate",
    "bench/measures", "bench/processes", "bench/distributed",
)  # fmt: skip

_OWN_PACKAGES = ("comera", "baselines", "bench")  # whose modules may move without a change of what is measured

#: Libraries whose version can change a measurement.
LIBRARIES = ("numpy", "peft", "galore-torch", "bitsandbytes", "torchao", "tokenizers", "transformers", "triton")


@dataclass(frozen=True)
class Provenance:
    """The record columns that say who measured."""

    code_id: str
    device: str
    driver: str
    threads: int
    torch_version: str
    library_versions: str
    git_commit: str
    git_dirty: bool


@functools.cache
def code_id(root: Path = ROOT) -> str:
    """Hash of what the measuring code does: of the syntax of all top-level statements, in an order of its own.

    Comments, docstrings, layout, the names of files, and from where the project's own names are imported do not count,
    so moved and reworded code keeps its id; any other edit changes it. The version of Python does not count either.
    """
    files = [file for folder in MEASURING_CODE for file in (root / folder).rglob("*.py")]
    statements = [statement for file in files for statement in _statements(file.read_bytes())]
    return hashlib.sha256("\n".join(sorted(statements)).encode()).hexdigest()[:16]


@functools.lru_cache(maxsize=256)  # copies of the tree differ in a file or two
def _statements(source: bytes) -> list[str]:
    """What the top-level statements of a file do, each as text."""
    return [_text(statement) for statement in _Bare().visit(ast.parse(source)).body]


def _text(node: Any) -> str:
    """A node of syntax as text, the same under every version of Python: ``ast.dump`` has the version's own fields.

    >>> _text(ast.parse("x = f(y=1)").body[0])
    "Assign(targets=[Name(id='x', ctx=Store())], value=Call(func=Name(id='f', ctx=Load()), \
keywords=[keyword(arg='y', value=Constant(value=1))]))"
    """
    if isinstance(node, list):
        return f"[{', '.join(map(_text, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    if isinstance(node, ast.Constant):  # None is a value too
        return f"Constant(value={node.value!r})"
    fields = [(name, value) for name, value in ast.iter_fields(node) if value is not None and value != []]
    return f"{type(node).__name__}({', '.join(f'{name}={_text(value)}' for name, value in fields)})"


class _Bare(ast.NodeTransformer):
    """Leaves out docstrings, and imports of the project's own modules."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = node.body[ast.get_docstring(node, clean=False) is not None :]
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        own = node.level or (node.module or "").partition(".")[0] in _OWN_PACKAGES
        return None if own else node

    def visit_Import(self, node: ast.Import) -> ast.AST | None:
        node.names = [name for name in node.names if name.name.partition(".")[0] not in _OWN_PACKAGES]
        return node if node.names else None


def device_name(on_cpu: bool = False) -> str:
    """What this machine's training device is called: the GPU where there is one, or the processor with its threads."""
    if torch.cuda.is_available() and not on_cpu:
        return torch.cuda.get_device_name()
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    threads = torch.get_num_threads()
    return f"{name}, {threads} thread" + "s" * (threads != 1)


def _driver(on_cpu: bool) -> str:
    if on_cpu or not torch.cuda.is_available():
        return ""
    output = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return f"{output.splitlines()[0] if output else 'unknown'}, CUDA {torch.version.cuda}"


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


@functools.cache
def provenance(on_cpu: bool = False) -> Provenance:
    """Who measures, found out once per process; ``on_cpu`` for what runs on the processor of a machine with a GPU.

    The commit is git's, or that of ``BENCH_COMMIT`` for an exported tree, or the word "unversioned"; never blank.
    ``git_dirty`` tells of measuring code that this commit lacks or has otherwise, new files too.
    """
    in_tree = _output("git", "rev-parse", "--show-toplevel")
    commit = _output("git", "rev-parse", "HEAD") if in_tree and Path(in_tree).resolve() == ROOT else None
    status = ("git", "status", "--porcelain", "--untracked-files=all", "--", *MEASURING_CODE)
    found = ((name, [*importlib.metadata.distributions(name=name)]) for name in LIBRARIES)
    return Provenance(
        code_id=code_id(),
        device=device_name(on_cpu),
        driver=_driver(on_cpu),
        threads=torch.get_num_threads(),
        torch_version=torch.__version__,
        library_versions=", ".join(f"{name} {installed[0].version}" for name, installed in found if installed),
        git_commit=commit or os.environ.get("BENCH_COMMIT") or "unversioned",
        git_dirty=bool(commit and _output(*status)),
    )
