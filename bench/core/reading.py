"""Files that a user names: only regular ones of a sane size are opened, and their JSON is read strictly.

A device, a named pipe or a socket of the same name would hang the reader or fill its memory. Every file whose path
comes from a user, or lies in a folder that a user has named, is opened here.
"""

import contextlib
import difflib
import errno
import io
import json
import math
import os
import re
import stat
from pathlib import Path
from typing import Any

from bench.errors import CONF, ConfigError

RECORD_BYTES = 2**26  #: The largest file that is read whole: a record, a configuration, predictions.
SOURCE_BYTES = 2**40  #: The largest file that is read in parts: an archive of records, a data set.

#: Half of a character that takes two in UTF-16, alone.
_SURROGATE = re.compile("[\ud800-\udfff]")


def open_regular(path: str | Path, most_bytes: int = SOURCE_BYTES) -> io.BufferedReader:
    """Open a regular file of at most ``most_bytes`` for reading, without waiting.

    Raises OSError: there is none, it is no regular file, it is larger, or it cannot be read; the error names it.

    >>> open_regular("/dev/null")
    Traceback (most recent call last):
    OSError: [Errno 22] not a regular file: '/dev/null'
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, handle)
        facts = os.fstat(handle)
        if stat.S_ISDIR(facts.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if facts.st_size > most_bytes:
            reason = f"{facts.st_size:,} bytes; at most {most_bytes:,} are read"
            raise OSError(errno.EFBIG, reason, str(path))
        file = os.fdopen(handle, "rb")
        stack.pop_all()
    return file


def read_regular(path: str | Path, most_bytes: int = RECORD_BYTES) -> bytes:
    """Return the content of a regular file; raises OSError as :func:`open_regular`."""
    with open_regular(path, most_bytes) as file:
        return file.read()


def loads(text: str) -> Any:
    """Return the content of JSON that has finite numbers, Unicode text and each key of an object once.

    Raises ValueError or RecursionError otherwise.

    >>> loads('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    ValueError: "a" is given twice
    """
    content = json.loads(
        text, parse_constant=_no_number, parse_float=_finite, parse_int=_whole, object_pairs_hook=_once
    )
    if "\\u" in text and (half := _SURROGATE.search(json.dumps(content, ensure_ascii=False))):
        raise ValueError(f"\\u{ord(half[0]):x} is no character")
    return content


def _no_number(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def _finite(digits: str) -> float:
    if not math.isfinite(value := float(digits)):
        raise ValueError(f"{digits} is no finite number")
    return value


def _whole(digits: str) -> int:
    _finite(digits)
    return int(digits)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"{json.dumps(next(key for key in keys if keys.count(key) > 1))} is given twice")
    return content


def user_path(field: str, given: str | Path) -> Path:
    """Return the path that a user has written, with ``~`` as the home folder.

    Raises ConfigError: it names ``field``; there is no such home, or no path can be like that.

    >>> user_path("results", "results/local")
    PosixPath('results/local')
    """
    try:
        path = Path(given).expanduser()
        os.fsencode(path)
    except (RuntimeError, ValueError) as error:
        raise ConfigError(f"{field} is {str(given)!r}, which is no path ({error}); name another.") from None
    if "\0" in str(path):
        raise ConfigError(f"{field} is {str(given)!r}, which is no path (a null character); name another.")
    return path


def known_models() -> dict[str, Path]:
    """Return the configurations that the bench has, by name."""
    return {path.stem: path for path in sorted((CONF / "models").glob("*.json"))}


def model_path(given: str) -> Path:
    """Return the configuration that ``model=`` names: one of :func:`known_models`, or a path of the user's.

    Raises ConfigError: neither a name nor a path; the sentence has the nearest names.

    >>> model_path("gpt2_medium").name, model_path("./gpt2_medium")
    ('gpt2_medium.json', PosixPath('gpt2_medium'))
    """
    known, path = known_models(), user_path("model", given)
    if given in known:
        return known[given]
    if len(path.parts) == 1 and path.suffix != ".json" and not given.startswith(".") and not path.exists():
        nearest = difflib.get_close_matches(given.lower(), known, n=3, cutoff=0.5)
        names = f"nearest names: {', '.join(nearest)}" if nearest else f"names: {', '.join(known)}"
        raise ConfigError(f"model is {given!r}, which is neither a known name nor a path of a config.json; {names}.")
    return path


def model_words(path: Path) -> str:
    """Return the name of one of :func:`known_models`, or any other path as it is.

    >>> model_words(model_path("gpt2_medium")), model_words(Path("config.json"))
    ('gpt2_medium', 'config.json')
    """
    return path.stem if path in known_models().values() else str(path)


def read_configuration(path: Path) -> dict[str, Any]:
    """Return the content of a Hugging Face ``config.json``, or of the one in a folder.

    Raises ConfigError: it cannot be read, is no JSON, or names no ``model_type``.
    """
    wanted = "allowed: a Hugging Face config.json or a folder with one"
    file = path / "config.json" if path.is_dir() else path
    try:
        content = loads(read_regular(file).decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"model is {str(path)!r}, which cannot be read ({error.strerror}); {wanted}.") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"model is {str(path)!r}, which is not JSON ({error}); {wanted}.") from None
    if not isinstance(content, dict) or not isinstance(content.get("model_type"), str):
        raise ConfigError(f"model is {str(path)!r}, which names no model_type; {wanted}.")
    return content
