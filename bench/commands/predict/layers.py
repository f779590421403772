"""``shapes=TOKENSxINxOUT,…``: bytes and least times of single layers, dense and through a rank, in every precision."""

from collections.abc import Sequence

from bench.errors import ConfigError
from bench.estimate.devices import GPUS
from bench.estimate.roofline import FORMS, SHOWN, layer_of, written
from bench.runner.wording import by_key

_RANK = 30  # of the tensorized layer beside a dense one: the paper's
_DIGITS, _SHOWN_CHARACTERS = 9, 110  # of a rank at most, and of a wrong one in a sentence


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
