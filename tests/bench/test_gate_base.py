"""What the gate compares a tree with, on small repositories made for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from small_cells import git

from bench.gate import GateError, timed
from bench.gate.timed import find_base, find_bases, worktree

NOTHING: dict[str, str] = {}


class Repository:
    """A git repository of one timed file."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def git(self, *arguments: str) -> str:
        return git(self.root, *arguments)

    def commit(self, content: str) -> str:
        self.file.parent.mkdir(exist_ok=True)
        self.file.write_text(content)
        self.git("add", ".")
        self.git("commit", "-qm", content)
        return self.git("rev-parse", "HEAD")

    @property
    def file(self) -> Path:
        return self.root / "comera" / "layers.py"

    def clone(self, *options: str) -> Repository:
        other = Repository(self.root.parent / f"clone{len(options)}")
        self.git("clone", "-q", *options, f"file://{self.root}", str(other.root))
        return other

    def base(self, **environ: str) -> tuple[str | None, str]:
        found = find_base(self.root, environ)
        return found.commit, found.reason


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)


@pytest.fixture
def empty(tmp_path):
    root = tmp_path / "origin"
    root.mkdir()
    repository = Repository(root)
    repository.git("init", "-q", "--initial-branch", "main")
    return repository


@pytest.fixture
def repository(empty):
    """Three commits on main."""
    for content in ("one", "two", "three"):
        empty.commit(content)
    return empty


def test_on_main_it_is_the_first_parent(repository):
    assert repository.base() == (repository.git("rev-parse", "HEAD~1"), "HEAD's first parent")


def test_uncommitted_changes_on_main_are_compared_with_head(repository):
    head = repository.git("rev-parse", "HEAD")
    (repository.root / "README.md").write_text("not timed")
    assert repository.base()[1] == "HEAD's first parent"
    (repository.root / "bench").mkdir()
    (repository.root / "bench" / "new.py").write_text("")
    assert repository.base() == (head, "HEAD, from which the tree differs")
    (repository.root / "bench" / "new.py").unlink()
    repository.file.write_text("changed")
    assert repository.base() == (head, "HEAD, from which the tree differs")


def test_on_a_branch_it_is_where_it_left_main_whatever_main_and_the_tree_have_since(repository):
    fork = repository.git("rev-parse", "HEAD")
    repository.git("checkout", "-qb", "topic")
    repository.commit("four")
    repository.commit("five")
    assert repository.base() == (fork, "where HEAD left main")
    repository.git("checkout", "-q", "main")
    repository.commit("meanwhile")
    repository.git("checkout", "-q", "topic")
    repository.file.write_text("changed")
    assert repository.base() == (fork, "where HEAD left main")
    repository.git("checkout", "-q", "--detach", "--force")
    assert repository.base() == (fork, "where HEAD left main")


def test_a_base_can_be_named(repository):
    first = repository.git("rev-parse", "HEAD~2")
    assert repository.base(GATE_BASE="HEAD~2") == (first, "named by GATE_BASE")
    for unset in ("", "0" * 40):
        assert repository.base(GATE_BASE=unset)[1] == "HEAD's first parent"
    with pytest.raises(GateError, match=r"^GATE_BASE is 'gone'; allowed: a commit of this repository\.$"):
        repository.base(GATE_BASE="gone")


def test_a_shallow_clone_has_none(repository):
    clone = repository.clone("--depth", "1")
    assert clone.base() == (None, "HEAD has no parent here, as in a shallow clone")
    clone.file.write_text("changed")
    assert clone.base()[1] == "HEAD, from which the tree differs"


def test_no_repository_has_none(repository, tmp_path, monkeypatch):
    folder = repository.root / "exported"
    folder.mkdir()
    assert find_base(folder, NOTHING).reason == "the tree is no git repository"  # it is another one's
    assert find_base(tmp_path, NOTHING).commit is None
    monkeypatch.setenv("PATH", "")
    assert find_base(repository.root, NOTHING).reason == "git is not installed"


@pytest.mark.parametrize("end", [None, KeyboardInterrupt])
def test_the_checkout_is_gone_afterwards(repository, end):
    commit = repository.git("rev-parse", "HEAD~1")

    def use() -> None:
        with worktree(repository.root, commit) as tree:
            assert (tree / "comera" / "layers.py").read_text() == "two"
            assert len(repository.git("worktree", "list").splitlines()) == 2
            (tree / "comera" / "cache.pyc").write_text("left behind")
            places.append(tree)
            if end:
                raise end

    places: list[Path] = []
    if end:
        with pytest.raises(end):
            use()
    else:
        use()
    assert len(repository.git("worktree", "list").splitlines()) == 1
    assert not places[0].parent.exists()


@pytest.fixture
def pinned(repository, tmp_path, monkeypatch):
    """Pin a commit of the repository, by its place before HEAD or in words."""
    path = tmp_path / "pinned.txt"
    monkeypatch.setattr(timed, "PINNED", path)

    def pin(name: str) -> str:
        commit = repository.git("rev-parse", name) if name.startswith("HEAD") else name
        path.write_text(f"{commit}\n")
        return commit

    return pin


def test_the_pinned_commit_is_a_second_base(repository, pinned):
    commit = pinned("HEAD~2")
    parent, second = find_bases(repository.root, NOTHING)
    assert parent.reason == "HEAD's first parent"
    assert (second.commit, second.reason) == (commit, "pinned")
    assert find_bases(repository.root, {"GATE_SHORT": "1"}) == [parent]
