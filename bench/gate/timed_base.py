"""What the tree under test is compared with: the commit it started from, checked out beside it."""

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.gate import GateError

#: Where the project's main line may be, the first one found counts.
_MAIN_LINES = ("refs/remotes/origin/main", "refs/heads/main")

#: Set by git where it runs a hook, of another place perhaps.
_PLACES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX")

#: What is timed. A change elsewhere, say of the README, does not make a tree differ from its commit.
_TIMED_CODE = ("comera", "baselines", "bench")


@dataclass(frozen=True)
class Base:
    """The commit to compare with, or None, and in a few words why it is that one or why there is none."""

    commit: str | None
    reason: str


def _git(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in _PLACES}
    command = ["git", "-c", f"core.hooksPath={os.devnull}", *arguments]
    try:
        return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    except OSError:
        return subprocess.CompletedProcess(command, 127, "", "git is not installed")


def commit_of(root: Path, name: str) -> str | None:
    """The full hash of the commit that ``name`` stands for, or None."""
    return _git(root, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}").stdout.strip() or None


def find_base(root: Path, environ: Mapping[str, str] = os.environ) -> Base:
    """The commit that ``root`` is compared with.

    That is the one named by ``GATE_BASE``; else where HEAD left the main line (``origin/main``, else ``main``). Where
    HEAD is on the main line itself, it is HEAD if timed code has uncommitted changes, and HEAD's first parent if not.

    Raises:
        GateError: ``GATE_BASE`` names no commit.
    """
    top = _git(root, "rev-parse", "--show-toplevel")
    if top.returncode or Path(top.stdout.strip()).resolve() != root.resolve():
        return Base(None, "git is not installed" if top.returncode == 127 else "the tree is no git repository")
    named = environ.get("GATE_BASE", "").strip()
    if named.strip("0"):  # a new branch's "commit before" is written as zeros
        commit = commit_of(root, named)
        if commit is None:
            raise GateError(f"GATE_BASE is {named!r}; allowed: a commit of this repository.")
        return Base(commit, "named by GATE_BASE")
    head = commit_of(root, "HEAD")
    if head is None:
        return Base(None, "the repository has no commit")
    main = next((name for name in _MAIN_LINES if commit_of(root, name)), None)
    if main is not None:
        short = main.removeprefix("refs/remotes/").removeprefix("refs/heads/")
        fork = _git(root, "merge-base", "HEAD", main).stdout.strip()
        if not fork:
            return Base(None, f"HEAD and {short} have no commit in common here, as in a shallow clone")
        if fork != head:
            return Base(fork, f"where HEAD left {short}")
    if _git(root, "status", "--porcelain", "--", *_TIMED_CODE).stdout.strip():
        return Base(head, "HEAD, from which the tree differs")
    parent = commit_of(root, "HEAD~1")
    return Base(parent, "HEAD's first parent" if parent else "HEAD has no parent here, as in a shallow clone")


@contextlib.contextmanager
def worktree(root: Path, commit: str) -> Iterator[Path]:
    """A commit of the repository ``root``, checked out in a folder that is gone afterwards, whatever happens.

    Raises:
        GateError: git cannot check it out.
    """
    with tempfile.TemporaryDirectory(prefix="gate-base-") as folder:
        tree = Path(folder).resolve() / "tree"
        try:
            added = _git(root, "worktree", "add", "--quiet", "--detach", str(tree), commit)
            if added.returncode:
                reason = (added.stderr.strip().splitlines() or ["no reason given"])[-1]
                raise GateError(f"The base {commit[:12]} cannot be checked out beside the tree ({reason}).")
            yield tree
        finally:
            _git(root, "worktree", "remove", "--force", str(tree))
