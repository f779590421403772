"""The command ``python -m bench advise``: read the words, predict, print the answer."""

import argparse
import json
from collections.abc import Sequence

import torch

from bench.advise.answer import answer_to
from bench.advise.arms import ARMS
from bench.advise.measure import as_json as measured_json
from bench.advise.measure import as_text as measured_text
from bench.advise.measure import measure
from bench.advise.model import task_of
from bench.advise.page import show
from bench.advise.question import PRECISIONS, question_of
from bench.advise.table import as_json, as_points, text
from bench.commands.programs import progress, settings_parser, under_a_setting
from bench.core.reading import known_models, read_configuration
from bench.errors import Parser
from bench.estimate.devices import DEVICES
from bench.runner.preload import HEAVY, prepare_processes
from bench.workloads.hugging_face import TASKS


def main(words: Sequence[str]) -> None:
    """Answer as the words say; progress goes to the other stream.

    Raises ConfigError: a wrong word.
    """
    measures = bool(words) and words[0] == "measure"
    parser = _parser(measures)
    given = parser.parse_intermixed_args(words[1:] if measures else words)
    if not words:
        parser.print_help()
        return
    settings = list(given.settings)
    if measures and not any(word.startswith("device=") for word in settings) and not torch.cuda.is_available():
        settings.append("device=cpu")
    question = question_of(settings)
    if not question.task:
        task_of(read_configuration(question.model))  # in a second; the processes of the arms take a minute
    prepare_processes(HEAVY)
    if measures:
        with progress("measuring ...") as report:
            rows = measure(question, given.memory, report)
        print(json.dumps(measured_json(rows), indent=1) if given.json else measured_text(question, rows, given.memory))
        return
    with progress("predicting ...") as report:
        answer = answer_to(question, report)
    print(json.dumps(as_json(answer), indent=1) if given.json else text(answer, given.parts), end="")
    if given.html:
        show(as_points(answer, settings))


def _parser(measures: bool) -> Parser:
    lists: dict[str, Sequence[str]] = {"devices": DEVICES, "precisions": PRECISIONS, "tasks": tuple(TASKS)}
    lists |= {"models": [under_a_setting(list(known_models()))], "arms": [under_a_setting(ARMS)]}
    parser = settings_parser("advise", **lists)
    for flag in ("--memory", "--json") if measures else ("--parts", "--json", "--html"):
        parser.add_argument(flag, action="store_true", help=argparse.SUPPRESS)
    return parser
