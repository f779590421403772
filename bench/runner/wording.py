"""Hydra's and OmegaConf's mistakes as sentences of the bench."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from hydra.core.override_parser.types import Override
from hydra.errors import OverrideParseException

from bench.core.files import check_own_folder
from bench.core.reading import user_path
from bench.errors import ConfigError, experiments, stop_with

_QUOTES = "'\""

#: A quoted key of a dictionary within a value: what comes before it, its quote, and the key.
_QUOTED_KEY = re.compile(r"""([{,]\s*)(['"])([\w:@+./-]+)\2\s*:""")

#: Settings that are paths: a ``~`` in front is the home folder, and Hydra would not read it.
_PATHS = ("results", "data_folder", "start")

#: What a path may have that Hydra takes in quotes alone, and what has a meaning for Hydra or is quoted.
_NEEDS_QUOTES, _HAS_MEANING = re.compile(r"[=]|[^\x00-\x7f]"), re.compile(r"""['",\[\](){}$\\]""")


def checked_arguments(arguments: Sequence[str]) -> list[str]:
    """Return arguments for Hydra; stop over those that it would answer with a traceback or silence.

    Raises ConfigError: results are to go where no folder can be, or a setting is given twice.
    """
    given: dict[str, str] = {}
    checked = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if key[:1] == "-":
            stop_with(f"{argument} is no option; settings are given as key=value, such as batch_size=4.")
        if key == "experiment" and value not in experiments():
            stop_with(f"experiment is {value!r}; allowed: {', '.join(experiments())}.")
        if key == "settings":
            stop_with(f"settings is {value!r}; allowed: single ones, such as settings.comera.ranks=16.")
        if equals and not key:
            stop_with(f"{argument!r} names no setting; settings are given as key=value, such as batch_size=4.")
        name = key.lstrip("+~")
        if equals and name in given:
            raise ConfigError(f"{name} is {given[name]!r} and {value!r}; give it once.")
        if equals:
            given[name] = value
        argument = for_hydra(argument)
        value = argument.partition("=")[2]
        if key == "results" and value and not set("$,[]{}") & set(value):
            check_own_folder("results", Path(value.strip(_QUOTES)))  # now, since reading the data may take long
        checked.append(argument)
    return checked


def by_key(words: Sequence[str]) -> dict[str, str]:
    """Return words ``key=value`` by key.

    Raises ConfigError: a word of another form, or a key that is given twice.

    >>> by_key(["method=dense", "model=a=b"])
    {'method': 'dense', 'model': 'a=b'}
    """
    given: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise ConfigError(f"{word!r} is no setting; settings are given as key=value, such as batch_size=4.")
        if key in given:
            raise ConfigError(f"{key} is {given[key]!r} and {value!r}; give it once.")
        given[key] = value
    return given


def axis_values(override: Override) -> list[str]:
    """Return the values of an axis of a sweep.

    Raises ConfigError: it is an axis of Hydra's own settings, has no values, or one of them twice.
    """
    key, values = override.get_key_element(), list(override.sweep_string_iterator())
    if override.is_hydra_override():
        raise ConfigError(f"{key} has {len(values)} values; give one, since all jobs of a sweep share it.")
    if not values:
        given = override.input_line.partition("=")[2] if override.input_line else ""
        raise ConfigError(f"{key} is {given!r}, which holds no value; give at least one.")
    for value, count in Counter(values).items():
        if count > 1:
            raise ConfigError(f"{key} has the value {value} {count} times; give each value once.")
    return values


def for_hydra(argument: str) -> str:
    r"""Return ``key=value`` as Hydra reads it.

    The home folder takes the place of a ``~`` in front of a path. Keys that are quoted within the value, as in YAML and
    JSON, lose their quotes, since Hydra takes none there.

    >>> for_hydra("methods=[{'comera:lean': {'ranks': 4}}]")
    'methods=[{comera\\:lean: {ranks: 4}}]'
    """
    key, equals, value = argument.partition("=")
    if value[:1] in ("[", "{"):
        value = _QUOTED_KEY.sub(lambda found: found[1] + found[3].replace(":", r"\:") + ":", value)
        argument = f"{key}{equals}{value}"
    if key in _PATHS and value.strip(_QUOTES).startswith("~"):
        return f"{key}{equals}'{user_path(key, value.strip(_QUOTES))}'"
    if key in _PATHS and _NEEDS_QUOTES.search(value) and not _HAS_MEANING.search(value):
        return f"{key}{equals}'{value}'"
    return argument


def reworded(error: Exception) -> str:
    """Return one line for a mistake that Hydra or OmegaConf found: in their words, if these lead to a way out."""
    text = " ".join(str(error).split())
    if isinstance(error, OverrideParseException):
        forms = r"key=value, lists as [a,b], several values as a,b, settings of a variant as {a\:b: {c: 1}}"
        return f"{error.override!r} cannot be read; allowed: {forms}, and all other text in quotes."
    if re.search("Could not find 'hydra/launcher/submitit_(local|slurm)'", text):
        return "hydra/launcher needs the extra slurm here; install it: pip install -e '.[slurm]'."
    if text.startswith("Error merging override"):
        return f"{text.partition('override ')[2]} cannot be used; {str(error.__cause__).splitlines()[0]}."
    if "Could not override" in text:
        key = text.partition("Could not override '")[2].partition("'")[0]
        return f"{key} is no setting of the bench; python -m bench list names those there are."
    return text.split(" full_key:")[0]
