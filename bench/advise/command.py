"""The command ``python -m bench advise``: read the words, predict, print the answer."""

import json
import textwrap
from collections.abc import Sequence

import torch
from rich.console import Console

from bench.advise.answer import answer_to
from bench.advise.arms import ARMS
from bench.advise.measure import as_json as measured_json
from bench.advise.measure import as_text as measured_text
from bench.advise.measure import measure
from bench.advise.question import PRECISIONS, question_of
from bench.advise.table import as_json, as_points, text
from bench.commands.predict_all import show
from bench.errors import CONF, ConfigError, stop_with
from bench.estimate.devices import DEVICES
from bench.interrupts import on_interrupt
from bench.workloads.hugging_face import TASKS

_INDENT = " " * 20  # of what a setting of the help is

_FLAGS, _MEASURE_FLAGS = ("--json", "--html"), ("--memory", "--json")


def main(words: Sequence[str]) -> None:
    """Answer as the words say; progress goes to the other stream."""
    if not words or {"-h", "--help"} & set(words):
        print(_help(), end="")
        return
    if words[0] == "measure":
        _measure(words[1:])
        return
    flags = [word for word in words if word.startswith("-")]
    settings = [word for word in words if not word.startswith("-")]
    console = Console(stderr=True)
    on_interrupt(lambda: "nothing was written; the same command starts again")
    try:
        if unknown := [flag for flag in flags if flag not in _FLAGS]:
            raise ConfigError(f"{unknown[0]} is no argument of advise; allowed: {', '.join(_FLAGS)}.")
        question = question_of(settings)
        with console.status("predicting ...") as status:
            answer = answer_to(question, status.update if console.is_terminal else console.print)
    except ConfigError as error:
        stop_with(str(error))
    print(json.dumps(as_json(answer), indent=1) if "--json" in flags else text(answer), end="")
    if "--html" in flags:
        show(as_points(answer, settings))


def _measure(words: Sequence[str]) -> None:
    """Measure one block on this machine and print what was found."""
    flags = [word for word in words if word.startswith("-")]
    settings = [word for word in words if not word.startswith("-")]
    console = Console(stderr=True)
    on_interrupt(lambda: "nothing was written; the same command starts again")
    if unknown := [flag for flag in flags if flag not in _MEASURE_FLAGS]:
        raise ConfigError(f"{unknown[0]} is no argument of measure; allowed: {', '.join(_MEASURE_FLAGS)}.")
    if not any(word.startswith("device=") for word in settings) and not torch.cuda.is_available():
        settings.append("device=cpu")
    question = question_of(settings)
    with console.status("measuring ...") as status:
        rows = measure(question, "--memory" in flags, status.update if console.is_terminal else console.print)
    found = measured_json(rows) if "--json" in flags else None
    print(measured_text(question, rows, "--memory" in flags) if found is None else json.dumps(found, indent=1))


def _help() -> str:
    lists = {"devices": DEVICES, "precisions": PRECISIONS, "tasks": tuple(TASKS)}
    words = {name: ", ".join(known) for name, known in lists.items()}
    arms = textwrap.fill(f"({', '.join(ARMS)})", 118, initial_indent=_INDENT, subsequent_indent=_INDENT)
    return (CONF / "help" / "advise.txt").read_text(encoding="utf-8").format(**words, arms=arms)
