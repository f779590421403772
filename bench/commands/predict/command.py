"""The command ``python -m bench predict``: read the words, predict what they are about, print the answer."""

from collections.abc import Callable, Sequence

from bench.commands.predict.answer import answer_to
from bench.commands.predict.step import question_of
from bench.commands.programs import progress, settings_parser, under_a_setting
from bench.core.reading import model_words
from bench.errors import ConfigError, stop_with
from bench.estimate.devices import DEVICES, GPUS, device_named
from bench.estimate.roofline import FORMS, SHOWN, layer_of, written
from bench.processes.process import first_line
from bench.protocol.methods import available
from bench.runner.configuration import one_sentence
from bench.runner.wording import by_key
from bench.workloads import available as workloads

_RANK = 30  # of the tensorized layer beside a dense one: the paper's
_DIGITS, _SHOWN_CHARACTERS = 9, 110  # of a rank at most, and of a wrong one in a sentence


def main(words: Sequence[str]) -> None:
    """Predict as the words say and print the answer; progress goes to the other stream.

    Raises ConfigError: a wrong setting or plug-in.
    """
    lists: dict[str, Sequence[str]] = {"devices": DEVICES, "workloads": workloads()}
    parser = settings_parser("predict", methods=[under_a_setting(available())], **lists)
    settings = parser.parse_args(words).settings
    if not settings:
        parser.print_help()
        return
    if any(word.startswith("shapes=") for word in settings):
        print(rooflines_of(settings), end="")
        return
    with progress("predicting ...") as report, one_sentence():
        answer = _answer(settings, report)
    print(answer, end="")


def _answer(words: Sequence[str], report: Callable[[str], None]) -> str:
    question, name = question_of(words)
    precision = question.cell.precision
    device = device_named(name, precision)
    if device.peak(precision) is None:
        raise ConfigError(f"precision is {precision!r}, in which {device.name} does not multiply; use bf16.")
    try:
        return answer_to(question, device, report)
    except ConfigError:
        raise
    except Exception as error:  # of a method, of a size that no tensor has, or of a user's model
        problem = f"training step cannot be traced without data ({first_line(error)})"
        what = f"model is '{model_words(question.path)}', whose" if question.path else f"{question.title}: its"
        stop_with(f"{what} {problem}.", status=2 if question.path or isinstance(error, ValueError) else 1)


def rooflines_of(words: Sequence[str]) -> str:
    """Return the rooflines of the layers that the words name, as text.

    Raises ConfigError: a wrong word or value.
    """
    given = by_key(words)
    if unknown := given.keys() - {"shapes", "rank", "device"}:
        raise ConfigError(f"{sorted(unknown)[0]} is no setting of shapes; allowed: shapes, rank, device.")
    rank, device = given.get("rank", str(_RANK)), given.get("device")
    if not rank.isdecimal() or len(rank) > _DIGITS:
        allowed = "whole numbers from 1 to the shorter side of a layer"
        raise ConfigError(f"rank is {rank[:_SHOWN_CHARACTERS]!r}; allowed: {allowed}.")
    if device is not None and device not in GPUS:
        raise ConfigError(f"device is {device!r}; allowed: {', '.join(sorted(GPUS))}.")
    try:
        layers = [layer_of(text, through) for text in given["shapes"].split(",") for through in (None, int(rank))]
    except ValueError as error:
        raise ConfigError(str(error)) from None
    for layer in layers if "rank" in given else ():
        most = min(layer.in_features, layer.out_features)
        if int(rank) > most:
            raise ConfigError(f"rank is {rank}; allowed for a layer of {layer.in_features}: 1 to {most}.")
    forms = [f"  {name:<12}{form.words}" for name, form in FORMS.items()]
    note = "Least times in ms, forward; op: bound by operations, mem: by memory traffic; -: no such products."
    names = SHOWN if device is None else (device,)
    return "\n".join([*(written(layer, names) + "\n" for layer in layers), note, *forms, ""])
