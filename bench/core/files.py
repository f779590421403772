"""Files that appear whole or not at all, also when the process is killed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path


def write_whole(contents: Mapping[Path, bytes]) -> None:
    """Put each content in the place of whatever its path holds; folders are made if need be.

    All contents reach the disk before the first rename, so that files which belong together are also kept together.
    """
    staged: list[tuple[str, Path]] = []
    try:
        for path, content in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".partial")
            staged.append((temporary, path))
            with os.fdopen(handle, "wb") as file:
                os.fchmod(file.fileno(), 0o644)
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        while staged:
            os.replace(*staged[0])
            del staged[0]
    except OSError:  # such as a full disk: nothing half-made stays behind
        for temporary, _ in staged:
            os.unlink(temporary)
        raise
