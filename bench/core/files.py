"""Files and folders that appear whole or not at all, also when the process is killed or the disk is full.

What is being written lies in a partial folder, hidden beside its final place. The folder's lock is held as long as the
process that writes lives, so :func:`remove_abandoned` can tell what a kill has left from what is still being written.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.errors import CONF, ConfigError

_SUFFIX, _LOCK = ".partial", ".lock"
_OWN = "results/local"


@contextlib.contextmanager
def locked(place: Path, wait: bool = True) -> Iterator[int]:
    """Hold the lock of a file or folder; where the file system has no locks, go on without.

    Raises BlockingIOError: another process holds it, and this one is not to wait.
    """
    handle = os.open(place, os.O_RDONLY if place.is_dir() else os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            if not wait:  # it may be in use
                raise
        yield handle
    finally:
        os.close(handle)


@contextlib.contextmanager
def partial_folder(parent: Path, name: str = "") -> Iterator[Path]:
    """Make a fresh folder in ``parent`` for content to be renamed, locked and then removed by this process.

    A fork of this process, which drops what it has inherited, leaves the folder alone.
    """
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    with contextlib.ExitStack() as stack:
        while True:
            folder = Path(tempfile.mkdtemp(dir=parent, prefix=f".{name}", suffix=_SUFFIX))
            with contextlib.suppress(FileNotFoundError):  # taken for an abandoned one before it was locked
                handle = stack.enter_context(locked(folder / _LOCK))
                if os.path.samestat(os.fstat(handle), os.stat(folder / _LOCK)):
                    break
        stack.callback(remove)
        yield folder


def remove_abandoned(root: Path, name: str = "", below: bool = True) -> None:
    """Remove partial folders and files of ended processes in ``root`` and ``below`` it, whose names begin so."""
    for folder, inner, files in os.walk(root):
        for one in (*inner, *files):
            if one.startswith(f".{name}") and one.endswith(_SUFFIX):
                path = Path(folder, one)
                place = path / _LOCK if path.is_dir() else path
                with contextlib.suppress(OSError), locked(place, wait=False):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        inner[:] = [one for one in inner if below and not one.endswith(_SUFFIX)]


def write_whole(contents: Mapping[Path, bytes]) -> None:
    """Put each content in the place of whatever its path holds; folders are made if need be.

    All contents reach the disk before the first rename, so that files which belong together are also kept together.
    Raises OSError: one cannot be written; it names the file, and nothing of them is left.
    """
    with contextlib.ExitStack() as stack:
        partial: dict[Path, Path] = {}  # by the folder that it lies in
        for path, content in contents.items():
            try:
                if path.parent not in partial:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    partial[path.parent] = stack.enter_context(partial_folder(path.parent))
                with (partial[path.parent] / path.name).open("wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(path)) from None
        for path in contents:
            os.replace(partial[path.parent] / path.name, path)


def check_folder(field: str, given: Path, inside: str = "") -> None:
    """Check that a folder, or one in it, can be written; neither need exist, and the attempt leaves nothing.

    Raises ConfigError: it names ``field``, by which the folder was given.
    """
    there = folder = given / inside
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.stat(folder)  # raises where no path can be like that
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        with tempfile.TemporaryFile(dir=there):  # os.access answers root about rights alone
            pass
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        place = f"{there} is no folder that can be written ({reason})"
        raise ConfigError(f"{field} is '{given}', but {place}; name another folder.") from None


def temporary_folder() -> Path:
    """Return the system's folder for temporary files, which becomes Python's.

    Python alone would first write a file there to see that it can, and a kill at that moment would leave it.
    """
    for given in filter(None, (*map(os.environ.get, ("TMPDIR", "TEMP", "TMP")), "/tmp")):
        if tempfile.tempdir is None and os.path.isdir(given) and os.access(given, os.W_OK | os.X_OK):
            tempfile.tempdir = os.path.abspath(given)
    return Path(tempfile.gettempdir())


def check_own_folder(field: str, given: Path, inside: str = "") -> None:
    """Check that a folder can be written, as :func:`check_folder`, and holds little else.

    What kills have left is looked for, and removed, everywhere below such a folder. Raises ConfigError: it holds the
    home folder, this program or other programs' temporary files.
    """
    folder = given.resolve()
    for holds in (Path.home(), temporary_folder(), CONF.parent.parent):
        if holds.resolve().is_relative_to(folder):
            raise ConfigError(f"{field} is '{given}', which holds {holds}; name a folder of its own, as in {_OWN}.")
    check_folder(field, given, inside)
