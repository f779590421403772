"""A user's mistakes: one sentence each, naming what was given and what is allowed, and exit status 2."""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

CONF = Path(__file__).parent / "conf"


class ConfigError(ValueError):
    """A wrong setting or plug-in; the message is one sentence naming field, value and what is allowed."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence."""

    def error(self, message: str) -> NoReturn:
        stop_with(f"{message}; see {self.prog} --help.")


def experiments() -> list[str]:
    """Names of the experiments there are."""
    return sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))


def stop_with(message: str, status: int = 2) -> NoReturn:
    """End the program; over a user's mistake with status 2."""
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(status)


def check_arguments(arguments: Sequence[str]) -> None:
    """Stop over arguments that Hydra would answer with its own usage or a traceback."""
    from hydra._internal.utils import get_args_parser

    _, unknown = get_args_parser().parse_known_args(arguments)
    if unknown:
        stop_with(f"{unknown[0]} is no option; settings are given as key=value, such as batch_size=4.")
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if key == "experiment" and value not in experiments():
            stop_with(f"experiment is {value!r}; allowed: {', '.join(experiments())}.")
        if key == "settings":
            stop_with(f"settings is {value!r}; allowed: single ones, such as settings.comera.ranks=16.")
        if equals and not key:
            stop_with(f"{argument!r} names no setting; settings are given as key=value, such as batch_size=4.")


def reworded(error: Exception) -> str:
    """One sentence for a mistake that Hydra or OmegaConf found."""
    from hydra.errors import OverrideParseException

    text = " ".join(str(error).split())
    if isinstance(error, OverrideParseException):
        return f"{error.override!r} cannot be read; allowed: key=value, lists as [a,b], several values as a,b."
    if "'experiment'" in text and "must specify" in text:
        return f"experiment has no value; allowed: {', '.join(experiments())}."
    if re.search("Could not find 'hydra/launcher/submitit_(local|slurm)'", text):
        return "hydra/launcher needs the extra slurm here; install it: pip install -e '.[slurm]'."
    if text.startswith("Error merging override"):
        return f"{text.partition('override ')[2]} cannot be used; {str(error.__cause__).splitlines()[0]}."
    if "Could not override" in text:
        key = text.partition("Could not override '")[2].partition("'")[0]
        return f"{key} is no setting of the bench; see python -m bench run --help for those there are."
    return text.split(" full_key:")[0][:300]
