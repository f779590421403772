"""The command ``python -m bench predict``: read the words, predict what they are about, print the answer."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from bench.commands.predict import layers, model
from bench.commands.predict.ranks import MODELLED, split
from bench.commands.predict.step import answer_to, checked_words, question_of
from bench.errors import CONF, ConfigError, Parser, stop_with
from bench.estimate.communication import LINKS
from bench.estimate.devices import DEVICES, device_named
from bench.interrupts import on_interrupt
from bench.processes.process import first_line
from bench.protocol.methods import available
from bench.runner.sweep import MISTAKES
from bench.runner.wording import reworded
from bench.workloads import available as workloads


def _parser() -> Parser:
    lists: dict[str, Sequence[str]] = {"methods": available(), "devices": DEVICES, "workloads": workloads()}
    lists |= {"links": tuple(LINKS), "exchanges": MODELLED}
    usage, _, about = (CONF / "help" / "predict.txt").read_text(encoding="utf-8").partition("\n\n")
    parser = Parser(
        prog="python -m bench predict",
        usage=usage.removeprefix("usage: "),
        description=about.format(**{name: ", ".join(known) for name, known in lists.items()}),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("settings", metavar="key=value", nargs="*", help=argparse.SUPPRESS)
    return parser


def main(words: Sequence[str]) -> None:
    """Predict as the words say and print the answer; progress goes to the other stream.

    Raises ConfigError: a wrong setting or plug-in.
    """
    parser = _parser()
    settings = parser.parse_args(words).settings
    if not settings:
        parser.print_help()
        return
    if any(word.startswith("shapes=") for word in settings):
        print(layers.rooflines_of(settings), end="")
        return
    console = Console(stderr=True)
    on_interrupt(lambda: "nothing was written; the same command starts again")
    with console.status("predicting ...") as status:
        report: Callable[[str], None] = status.update if console.is_terminal else console.print
        try:
            answer = _answer(settings, report)
        except MISTAKES as error:
            stop_with(str(error))
        except (HydraException, OmegaConfBaseException) as error:
            stop_with(reworded(error))
    if isinstance(answer, str):
        print(answer, end="")
    else:
        model.show(answer)


def _answer(settings: Sequence[str], report: Callable[[str], None]) -> str | Mapping[str, Any]:
    """Return the prediction of a step as text, or those of all arms for the page."""
    words, ranks = split(settings)
    given = checked_words(words)
    if "method" not in given and (ranks or "model" not in given):
        needs = f", which {ranks.count:,} ranks need" if ranks else ""
        raise ConfigError(f"method has no value{needs}; allowed: {', '.join(available())}.")
    if "method" not in given:
        return model.survey(given, report)
    question, name = question_of(words)
    precision = question.cell.precision
    device = device_named(name, precision)
    if device.peak(precision) is None:
        raise ConfigError(f"precision is {precision!r}, in which {device.name} does not multiply; use bf16.")
    try:
        return answer_to(question, device, report, ranks)
    except ConfigError:
        raise
    except Exception as error:  # of a method, of a size that no tensor has, or of a user's model
        problem = f"training step cannot be traced without data ({first_line(error)})"
        what = f"model is '{question.path}', whose" if question.path else f"{question.title}: its"
        stop_with(f"{what} {problem}.", status=2 if question.path or isinstance(error, ValueError) else 1)
