"""A check of the words of ``python -m figures``, made before pandas and matplotlib are imported."""

from collections.abc import Sequence
from itertools import pairwise

from bench.core.files import check_folder
from bench.core.reading import user_path
from bench.errors import ConfigError, stop_with


def check_out(words: Sequence[str]) -> None:
    """End the program with one sentence if ``--out`` names a folder that cannot be written.

    With ``--check`` nothing is written, and any folder will do.
    """
    named = [word.removeprefix("--out=") for word in words if word.startswith("--out=")]
    named += [after for word, after in pairwise(words) if word == "--out"]
    if "--check" in words:
        return
    try:
        for folder in named:
            check_folder("--out", user_path("--out", folder))
    except ConfigError as error:
        stop_with(str(error))
