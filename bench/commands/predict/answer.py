"""The answer to a question about one step, as text."""

from collections.abc import Callable
from textwrap import fill

from bench.commands.predict.step import StepQuestion
from bench.errors import TERMINAL
from bench.estimate.any_batch import smallest_batch
from bench.estimate.devices import Device, Largest
from bench.estimate.memory import CATEGORIES, TOLERANCE
from bench.estimate.work import Prediction, bound, predict


def answer_to(question: StepQuestion, device: Device, report: Callable[[str], None]) -> str:
    """Predict the step itself, then as many others as it takes to find the largest batch; the answer as text.

    ``report`` receives progress messages. Raises ConfigError: a batch larger than data whose rows cannot be repeated.
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
    width = max(len(label) for label, value in rows if value)
    number = max(len(value) for _, value in rows)
    lines = [f"{label:<{width}}  {value:>{number}}" if value else fill(label, TERMINAL) for label, value in rows]
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
    return "\n".join([*lines, "", *(fill(one, TERMINAL, subsequent_indent="  ") for one in sentences), ""])


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
