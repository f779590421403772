"""Checks of files and folders that words name, made before torch is imported, which takes seconds."""

from collections.abc import Sequence

from bench.core.reading import model_path, read_configuration, user_path
from bench.errors import ConfigError

_QUOTES = "'\""


def check_inputs(words: Sequence[str]) -> None:
    """Check the ``model`` and ``data_folder`` that words ``key=value`` name; several values are left for later.

    Raises ConfigError: a configuration that cannot be read, a folder that is missing or empty and is not to be fetched.
    """
    given = {key: value.strip(_QUOTES) for key, _, value in (word.partition("=") for word in words)}
    if given.get("model"):
        read_configuration(model_path(given["model"]))
    folder, fetch = given.get("data_folder", ""), given.get("fetch", "false").lower()
    if folder in ("", "null") or fetch != "false" or set("$,[]{}") & set(folder):
        return
    path = user_path("data_folder", folder)
    try:
        if not path.is_dir():
            raise ConfigError(f"data_folder is {folder}, which is not a folder; name one that holds the data.")
        if next(path.iterdir(), None) is None:
            raise ConfigError(f"data_folder is {folder}, which is empty; name one that holds the data.")
    except OSError as error:
        raise ConfigError(f"data_folder is {folder}, which cannot be read ({error.strerror or error}).") from None
