"""Source files to learn from: those that every machine with Python has, or the functions of CodeSearchNet.

A corpus is split by the *package* of a file, never by line or file: files of one package share names and habits, so a
model would recognise its training data in them. Which side a package is on follows from its name alone, so that it
stays there when the corpus grows. Files of equal content count once, and one that is held out is not trained on.

Machines have other versions of the same packages. The manifest, a line per file with its package, version and hash,
is therefore part of a corpus's name: records of another corpus are records of another dataset.
"""

import csv
import gzip
import hashlib
import importlib.metadata
import io
import json
import platform
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import NamedTuple

from bench.core.reading import open_regular
from bench.data.corpus import DataError

STANDARD_LIBRARY = "python"  # by which settings name it, beside the names of installed distributions
HELD_OUT = 0.12  # share of the packages that is held out
_LONGEST = 100_000  # characters of a file that are used: beyond lie tables of data
_DIGITS = 16  # of a file's hash in the manifest
_OFFICIAL = {"train": False, "valid": True, "test": True}  # CodeSearchNet's partitions: whether they are held out
_SOURCES = ("original_string", "whole_func_string", "code")  # keys of a function's source, in the order looked for


class Document(NamedTuple):
    """One file or function; ``held_out`` is None where its package's name decides."""

    package: str
    name: str
    text: str
    held_out: bool | None = None


class Listed(NamedTuple):
    """A line of the manifest."""

    package: str
    version: str
    file: str
    sha256: str


@dataclass(frozen=True)
class Sources:
    """Documents, read when they are asked for, and what they are."""

    title: str
    manifest: tuple[Listed, ...]
    documents: Callable[[], Iterator[Document]]

    @property
    def content_hash(self) -> str:
        return hashlib.sha256(self.manifest_csv()).hexdigest()

    @property
    def name(self) -> str:
        """Return the name, with the manifest's hash, so that nothing takes two corpora for one."""
        return f"{self.title}-{self.content_hash[:8]}"

    def manifest_csv(self) -> bytes:
        """Return the manifest as a table."""
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(Listed._fields)
        table.writerows(self.manifest)
        return text.getvalue().encode()

    def split(self) -> tuple[list[Document], list[Document]]:
        """Return documents to train on and held-out ones, each content once; raises DataError if one side is empty."""
        sides: tuple[list[Document], list[Document]] = ([], [])
        for document in self.documents():
            out = is_held_out(document.package) if document.held_out is None else document.held_out
            sides[out].append(document)
        seen: set[bytes] = set()
        held_out, train = _distinct(sides[True], seen), _distinct(sides[False], seen)
        for side, name in ((train, "trained on"), (held_out, "held out")):
            if not side:
                raise DataError(
                    f"the corpus {self.title} has no source file that is {name}; add packages or functions."
                )
        return train, held_out


def is_held_out(package: str) -> bool:
    """Return whether a package is held out, by its name alone.

    >>> [name for name in ("json", "email", "numpy.fft", "sqlite3", "wsgiref") if is_held_out(name)]
    ['json', 'sqlite3']
    """
    return int.from_bytes(hashlib.sha256(package.encode()).digest()[:8], "big") < HELD_OUT * 2**64


def _distinct(documents: Sequence[Document], seen: set[bytes]) -> list[Document]:
    """Return the documents whose content, but for space at the end of lines, was not seen before."""
    kept = []
    for document in documents:
        lines = "\n".join(line.rstrip() for line in document.text.split("\n")).strip()
        digest = hashlib.sha256(lines.encode()).digest()
        if lines and digest not in seen:
            seen.add(digest)
            kept.append(document)
    return kept


def installed(packages: Sequence[str]) -> Sources:
    """Return the ``.py`` files of installed packages, the standard library among them as ``python``.

    A file's package is its folder (``asyncio``, ``numpy.fft``); a module on the top level is a package of its own.
    Raises DataError: a package that is not installed, or has no source files.

    >>> sources = installed(["python"])
    >>> sources.manifest[0].package, len(sources.manifest) > 500
    ('__future__', True)
    """
    files: list[tuple[Listed, Path]] = []
    for name in packages:
        version, root, paths = _standard_library() if name == STANDARD_LIBRARY else _distribution(name)
        found = []
        for relative in sorted(paths):
            try:
                content = (root / relative).read_bytes()
                content.decode("utf-8")
            except (OSError, UnicodeDecodeError):
                continue  # sources in another encoding are tests of encodings
            package = ".".join(relative.parts[:-1]) or relative.stem
            digest = hashlib.sha256(content).hexdigest()[:_DIGITS]
            found.append((Listed(package, f"{name} {version}", relative.as_posix(), digest), root / relative))
        if not found:
            raise DataError(f"packages has {name!r}, which has no Python source files here; name another package.")
        files += found

    def documents() -> Iterator[Document]:
        for listed, path in files:
            yield Document(listed.package, listed.file, path.read_text(encoding="utf-8")[:_LONGEST])

    return Sources("-".join(packages), tuple(listed for listed, _ in files), documents)


def _standard_library() -> tuple[str, Path, list[PurePath]]:
    root = Path(sysconfig.get_path("stdlib"))
    paths = (path.relative_to(root) for path in root.rglob("*.py"))
    return (
        platform.python_version(),
        root,
        [path for path in paths if path.parts[0] not in ("site-packages", "dist-packages")],
    )


def _distribution(name: str) -> tuple[str, Path, list[PurePath]]:
    try:
        found = importlib.metadata.distribution(name)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        allowed = f"{STANDARD_LIBRARY} and the names of installed packages"
        raise DataError(f"packages has {name!r}, which is not installed; allowed: {allowed}.") from None
    paths = [PurePath(path) for path in found.files or () if path.suffix == ".py" and ".." not in path.parts]
    return found.version, Path(str(found.locate_file(""))), paths


def code_search_net(folder: Path) -> Sources:
    """Return the functions of CodeSearchNet's ``.jsonl.gz`` files anywhere below a folder.

    A function's package is its repository, and its partition decides whether it is held out (valid and test are); where
    a row names none, the repository does. Raises DataError: no such file, or a malformed row, with file and line.
    """
    paths = sorted(folder.rglob("*.jsonl.gz"))
    if not paths:
        wrong = "holds no .jsonl.gz file" if folder.is_dir() else "is not a folder"
        raise DataError(f"data_folder is {folder}, which {wrong}; it must hold those of CodeSearchNet.")
    manifest = []
    for path in paths:
        with open_regular(path) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()[:_DIGITS]
        manifest.append(Listed("codesearchnet", "", path.relative_to(folder).as_posix(), digest))

    def documents() -> Iterator[Document]:
        for path in paths:
            try:
                with open_regular(path) as packed, gzip.open(packed, "rt", encoding="utf-8") as lines:
                    for number, line in enumerate(lines, 1):
                        yield _function(line, f"{path}, line {number}")
            except (OSError, EOFError, UnicodeDecodeError) as error:
                raise DataError(f"{path} cannot be read ({error}).") from None

    return Sources("codesearchnet", tuple(manifest), documents)


def _function(line: str, where: str) -> Document:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise DataError(f"{where}: the row is not JSON; a row is one JSON object on one line.") from None
    source = next((row[key] for key in _SOURCES if key in row), None) if isinstance(row, dict) else None
    if not isinstance(source, str) or not isinstance(row.get("repo"), str):
        raise DataError(f"{where}: the row lacks text under repo and {' or '.join(_SOURCES)}, which a function has.")
    names = [str(row.get(key, "")) for key in ("path", "func_name")]
    return Document(row["repo"], "#".join(names), source[:_LONGEST], _OFFICIAL.get(str(row.get("partition"))))
