"""The answer to a question about one step, as text; with ``world_size=N link=NAME`` on several ranks.

Ranks follow the model of communication (:mod:`bench.estimate.communication`).
"""

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import nn

from bench.commands.predict.step import StepQuestion
from bench.core.cell import EXCHANGES
from bench.errors import ConfigError
from bench.estimate.any_batch import smallest_batch
from bench.estimate.communication import LINKS, Link, RatedMachine, Training
from bench.estimate.devices import Device, Largest
from bench.estimate.memory import CATEGORIES, TOLERANCE, fake_training
from bench.estimate.parameters import parameters_of
from bench.estimate.work import Prediction, bound, predict
from bench.runner.wording import by_key

_WIDTH = 110  # of a line of text

#: Settings of ranks, and exchanges that have a model of a single step.
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
    if not given:
        return rest, None
    count, name, exchange = given.get("world_size", ""), given.get("link", ""), given.get("exchange", EXCHANGES[0])
    if not count.isdigit() or not 2 <= int(count) <= _MOST:
        raise ConfigError(f"world_size is {count or 'not given'}; allowed: whole numbers from 2 to {_MOST:,}.")
    if exchange not in MODELLED:
        raise ConfigError(f"exchange is {exchange!r}; allowed: {', '.join(MODELLED)}.")
    link = LINKS.get(name) or _ethernet(name)
    if link is None:
        raise ConfigError(f"link is {name or 'not given'}; allowed: {', '.join(LINKS)}, or a rate in Gbit/s.")
    if name in LINKS and int(count) > link.most_ranks:
        raise ConfigError(f"world_size is {count}; {name} joins at most {link.most_ranks:,} ranks.")
    return rest, AskedRanks(int(count), link, exchange)


def _ethernet(rate: str) -> Link | None:
    try:
        gbit = float(rate)
    except ValueError:
        return None
    return replace(LINKS["ethernet_10"], gbit=gbit, words=f"Ethernet, {gbit:g} Gbit/s") if 0 < gbit < 1e6 else None


def answer_to(
    question: StepQuestion, device: Device, report: Callable[[str], None], ranks: AskedRanks | None = None
) -> str:
    """Predict the step itself, then as many others as it takes to find the largest batch; the answer as text.

    With ``ranks`` each of them has such a step. ``report`` receives progress messages. Raises ConfigError: a batch
    larger than data whose rows cannot be repeated.
    """
    cell = question.cell
    report(f"predicting batch {cell.batch_size:,} ...")
    prediction = predict(*question.at(cell.batch_size))
    memory, sizes = prediction.memory, prediction.memory.mib()
    length = [f"length {cell.sequence_length:,}"] if cell.sequence_length > 1 else []
    rows = [
        (", ".join([question.title, f"batch {cell.batch_size:,}", *length, cell.precision]), ""),
        (f"on {device.name}", ""),
        *([(prediction.arithmetic, "")] if prediction.arithmetic != cell.precision else []),
        ("", ""),
        (f"peak memory, MiB (predicted on the operations of {cell.device})", f"{sizes['peak']:,.1f}"),
        *((f"  {name}", f"{sizes[name]:,.1f}") for name in CATEGORIES),
        ("parameters", f"{memory.parameter_count:,}"),
        ("model as stored, MiB", f"{memory.stored / 2**20:,.1f}"),
        ("FLOPs of matrix products per step", f"{prediction.work.flops_per_step:,}"),
        *_time_rows(cell.precision, device, prediction),
    ]
    if ranks:
        with fake_training(*question.at(cell.batch_size)) as (step, _):
            rows += ranks.rows(prediction, device, cell.precision, step.model)
    width = max(len(label) for label, value in rows if value)
    number = max(len(value) for _, value in rows)
    lines = [f"{label:<{width}}  {value:>{number}}" if value else label for label, value in rows]
    on_cpu, room = device.kind == "cpu", device.room_mib
    set_aside = f"{device.reserve_mib:,.0f} MiB and {TOLERANCE[device.kind]:.0%}"
    sentences = [
        f"It {'fits' if sizes['peak'] <= room else 'does not fit'}: {device.memory_mib:,.0f} MiB "
        f"{'free on' if on_cpu else 'of'} the device, less {set_aside}, leave room for a predicted peak of "
        f"{room:,.0f} MiB.",
        _largest(question, question.largest(device, {cell.batch_size: sizes["peak"]}, report)),
        "",
        *question.notes,
        "Not modelled: the allocator's rounding and fragmentation, workspaces of kernels, "
        f"{'the interpreter and its libraries' if on_cpu else 'the CUDA context, the driver'}; {set_aside} are set "
        "aside for them.",
        "Bytes that must move: weights, optimizer state and batch read once, what the step changes written back once, "
        "what forward keeps for backward written and read once, each less what the caches can hold.",
        "The time is a bound over the whole step, the larger of its two parts; the overheads of kernels and of Python "
        "come on top, and a small step is made of them.",
    ]
    return "\n".join([*lines, "", *(textwrap.fill(one, _WIDTH, subsequent_indent="  ") for one in sentences), ""])


def _time_rows(precision: str, device: Device, prediction: Prediction) -> list[tuple[str, str]]:
    """Return bytes and the bound on the time, with what it is made of."""
    times = bound(prediction.work, prediction.traffic, device, precision)
    peak, rate = (device.peak(precision) or 0.0) / 1e12, device.bandwidth / 1e12
    rows = [
        ("time of a step, ms: at least", f"{times.step_ms:,.3f}"),
        (f"  operations at {peak:,.3g} TFLOP/s ({device.rates})", f"{times.operations_ms:,.3f}"),
    ]
    if device.cache is None or times.traffic_ms is None:
        return rows
    moved = f"{prediction.traffic.compulsory(device.cache) / 2**20:,.1f}"
    return [
        (f"MiB that must move, beside {device.cache / 2**20:,.0f} MiB of cache", moved),
        *rows,
        (f"  traffic at {rate:,.3g} TB/s ({device.rates})", f"{times.traffic_ms:,.3f}"),
    ]


def _largest(question: StepQuestion, found: Largest) -> str:
    multiple = smallest_batch(question.method(), question.cell)
    if not found.batch_size:
        return f"No batch fits: the smallest, {multiple}, takes {found.next_mib:,.0f} MiB."
    sentence = f"Largest batch that fits{f', of multiples of {multiple}' if multiple > 1 else ''}: {found.batch_size:,}"
    if found.next_mib is None:
        return f"{sentence} at least; beyond {question.workload.limit:,} none is tried."
    following = f"{found.batch_size + multiple:,} would take {found.next_mib:,.0f} MiB"
    return f"{sentence} with {found.peak_mib:,.0f} MiB; {following}."
