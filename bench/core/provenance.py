"""Provenance of a number: machine, driver, versions, and the code that ran."""

import ast
import functools
import hashlib
import importlib.metadata
import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

ROOT = Path(__file__).resolve().parents[2]

#: Folders whose change makes a measurement a different one: the methods, and what builds, runs and measures a step.
MEASURING_CODE = (
    "comera",
    "baselines",
    "bench/protocol",
    "bench/workloads",
    "bench/data",
    "bench/step",
    "bench/estimate",
    "bench/measures",
    "bench/training",
    "bench/processes",
    "bench/distributed",
)

_OWN_PACKAGES = ("comera", "baselines", "bench")  # whose modules may move without a change of what is measured

#: Libraries whose version can change a measurement.
LIBRARIES = ("numpy", "peft", "galore-torch", "bitsandbytes", "torchao", "tokenizers", "transformers", "triton")

#: Ids of the system and of its start; in a container, which has one of these files, the first is the image's.
_MACHINE_ID, _BOOT_ID = Path("/etc/machine-id"), Path("/proc/sys/kernel/random/boot_id")
_CONTAINER = (Path("/.dockerenv"), Path("/run/.containerenv"))

_CPU_INFO = Path("/proc/cpuinfo")

#: Its lines on the kind of a processor, on x86 and ARM; an update of microcode changes none.
_PROCESSOR = (
    *("vendor_id", "cpu family", "model", "model name", "stepping"),
    *("CPU implementer", "CPU variant", "CPU part", "CPU revision"),
)


@dataclass(frozen=True)
class Provenance:
    """Record columns that name the machine and the code of a measurement."""

    code_id: str
    device: str
    machine: str | None
    driver: str
    threads: int
    torch_version: str
    library_versions: str
    git_commit: str
    git_dirty: bool


@functools.cache
def code_id(root: Path = ROOT) -> str:
    """Return a hash of the measuring code: of the syntax of all top-level statements, in an order of its own.

    Comments, docstrings, layout, the names of files, and from where the project's own names are imported do not count,
    so moved and reworded code keeps its id; any other edit changes it. The version of Python does not count either.
    """
    files = [file for folder in MEASURING_CODE for file in (root / folder).rglob("*.py")]
    statements = [statement for file in files for statement in _statements(file.read_bytes())]
    return hashlib.sha256("\n".join(sorted(statements)).encode()).hexdigest()[:16]


@functools.lru_cache(maxsize=256)  # copies of the tree differ in a file or two
def _statements(source: bytes) -> list[str]:
    """Return the top-level statements of a file without comments and docstrings, each as text."""
    return [_text(statement) for statement in _Bare().visit(ast.parse(source)).body]


def _text(node: Any) -> str:
    """Return a node of syntax as text that does not depend on the version of Python, unlike ``ast.dump``.

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
    """Name this machine's training device: the GPU where there is one, or the processor with its threads."""
    if _is_on_gpu(on_cpu):
        return torch.cuda.get_device_name()
    name = _processor().get("model name") or platform.processor() or platform.machine()
    threads = torch.get_num_threads()
    return f"{name}, {threads} thread" + "s" * (threads != 1)


def machine_hash(on_cpu: bool = False) -> str | None:
    """Return a short hash that tells machines of one name apart, made of no name; None where the system has no id.

    It is of the system's id, the processor, the GiB of memory (copies of an installation share the id) and the GPUs.
    Without ``/etc/machine-id``, and in a container, where that is the image's, the id is of the boot: a machine that
    was started again is another one then.
    """
    in_container = any(path.exists() for path in _CONTAINER)
    system = ("" if in_container else _content(_MACHINE_ID)) or _content(_BOOT_ID)
    if not system:
        return None
    processor = [f"{name}: {value}" for name, value in _processor().items()]
    gpus = _of_gpus("uuid") if _is_on_gpu(on_cpu) else None
    facts = ["bench", system, *processor, f"{psutil.virtual_memory().total / 2**30:.0f} GiB", gpus or ""]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:12]


def _content(path: Path) -> str:
    """Return the content of a file of one line; empty where there is none."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _processor() -> dict[str, str]:
    """Return Linux's description of its first processor, by name; empty elsewhere."""
    first, _, _ = _content(_CPU_INFO).partition("\n\n")
    found = (line.partition(":") for line in first.splitlines())
    values = {name.strip(): value.strip() for name, _, value in found}
    return {name: values[name] for name in _PROCESSOR if name in values}


def _is_on_gpu(on_cpu: bool) -> bool:
    return torch.cuda.is_available() and not on_cpu


def _of_gpus(column: str) -> str | None:
    """Return a column of ``nvidia-smi``, a line per GPU."""
    return _output("nvidia-smi", f"--query-gpu={column}", "--format=csv,noheader")


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


@functools.cache
def provenance(on_cpu: bool = False) -> Provenance:
    """Return the provenance of this process, cached; ``on_cpu`` for a processor in a machine with a GPU.

    The commit is git's, or that of ``BENCH_COMMIT`` for an exported tree, or the word "unversioned"; never blank.
    ``git_dirty`` tells of measuring code that this commit lacks or has otherwise, new files too.
    """
    in_tree = _output("git", "rev-parse", "--show-toplevel")
    commit = _output("git", "rev-parse", "HEAD") if in_tree and Path(in_tree).resolve() == ROOT else None
    status = ("git", "status", "--porcelain", "--untracked-files=all", "--", *MEASURING_CODE)
    found = ((name, [*importlib.metadata.distributions(name=name)]) for name in LIBRARIES)
    drivers = (_of_gpus("driver_version") or "unknown").splitlines() if _is_on_gpu(on_cpu) else []
    return Provenance(
        code_id=code_id(),
        device=device_name(on_cpu),
        machine=machine_hash(on_cpu),
        driver=f"{drivers[0]}, CUDA {torch.version.cuda}" if drivers else "",
        threads=torch.get_num_threads(),
        torch_version=torch.__version__,
        library_versions=", ".join(f"{name} {installed[0].version}" for name, installed in found if installed),
        git_commit=commit or os.environ.get("BENCH_COMMIT") or "unversioned",
        git_dirty=bool(commit and _output(*status)),
    )
