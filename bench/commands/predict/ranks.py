"""``python -m bench predict … world_size=N link=NAME``: the same step on N ranks, by the model of communication."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import nn

from bench.core.cell import EXCHANGES
from bench.errors import ConfigError
from bench.estimate.communication import LINKS, Link, RatedMachine, Training
from bench.estimate.devices import Device
from bench.estimate.parameters import parameters_of
from bench.estimate.work import Prediction, bound
from bench.runner.wording import by_key

#: Settings that this module answers, and exchanges of which it has a model for a single step.
KEYS = ("world_size", "link", "exchange")
MODELLED = tuple(name for name in EXCHANGES if name != "local_steps")

_MOST = 4096


@dataclass(frozen=True)
class AskedRanks:
    """So many ranks, the link of each, and how gradients travel."""

    count: int
    link: Link
    exchange: str

    def rows(self, prediction: Prediction, device: Device, precision: str, model: nn.Module) -> list[tuple[str, str]]:
        """Return what each rank sends and how long its step with ``model`` takes at least, as labels and values."""
        compute = bound(prediction.work, prediction.traffic, device, precision).step_ms
        machine = RatedMachine(device.peak(precision) or 0.0, device.bandwidth)
        step = Training(tensors=parameters_of(model), compute_ms=compute, exchange=self.exchange, machine=machine)
        count = self.count
        return [
            (f"sent per step by each of {count:,} ranks, MiB ({self.exchange})", f"{step.sent_mib(count):,.2f}"),
            (f"time of a step on {count:,} ranks, ms: at least", f"{step.step_ms(count, self.link):,.3f}"),
            (f"  communication over {self.link.words}", f"{step.communication_ms(count, self.link):,.3f}"),
        ]


def split(words: Sequence[str]) -> tuple[list[str], AskedRanks | None]:
    """Return the words that are not about ranks, and the ranks that the others describe; None without any.

    Raises ConfigError: a wrong value, one without the other, or the same twice.

    >>> rest, ranks = split(["method=dense", "world_size=8", "link=infiniband"])
    >>> rest, ranks.count, ranks.exchange
    (['method=dense'], 8, 'ddp')
    """
    given = by_key([word for word in words if word.partition("=")[0] in KEYS])
    rest = [word for word in words if word.partition("=")[0] not in KEYS]
    return rest, _ranks_of(given) if given else None


def _ranks_of(given: Mapping[str, str]) -> AskedRanks:
    count, name, exchange = given.get("world_size", ""), given.get("link", ""), given.get("exchange", EXCHANGES[0])
    if not count.isdigit() or not 2 <= int(count) <= _MOST:
        raise ConfigError(f"world_size is {count or 'not given'}; allowed: whole numbers from 2 to {_MOST:,}.")
    if exchange not in MODELLED:
        raise ConfigError(f"exchange is {exchange!r}; allowed: {', '.join(MODELLED)}.")
    if name not in LINKS and not _is_rate(name):
        raise ConfigError(f"link is {name or 'not given'}; allowed: {', '.join(LINKS)}, or a rate in Gbit/s.")
    if name in LINKS:
        if int(count) > LINKS[name].most_ranks:
            raise ConfigError(f"world_size is {count}; {name} joins at most {LINKS[name].most_ranks:,} ranks.")
        return AskedRanks(int(count), LINKS[name], exchange)
    rate = float(name)
    return AskedRanks(
        int(count), replace(LINKS["ethernet_10"], gbit=rate, words=f"Ethernet, {rate:g} Gbit/s"), exchange
    )


def _is_rate(text: str) -> bool:
    try:
        return 0 < float(text) < 1e6
    except ValueError:
        return False
