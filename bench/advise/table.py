"""The answer as text, as JSON, and as points of the explorer's page."""

import shlex
import textwrap
from collections.abc import Collection, Sequence
from typing import Any

from bench.advise.answer import GIB, MIB, Answer, AnswerRow
from bench.advise.arms import Kind
from bench.advise.evidence import OPTIMIZERS, GapRange
from bench.advise.linear import MOST
from bench.advise.rule import advice
from bench.commands.programs import aligned
from bench.estimate.memory import CATEGORIES, TOLERANCE

_WIDTH = 100  # of a line of text, and of the tables of all arms
_NONE = "not recorded"  # of a gap

_HEADINGS = ("arm", "params", "peak GiB", "max batch", "least ms", "tokens/s", "loss gap")
_PARTS = ("arm", "parameters", *("weights", "gradients", "optimizer", "activations", "temporaries"))
_OTHERS = ("arm", "TFLOP", *(f"loss gap, {name}" for name in OPTIMIZERS.values()))


def text(answer: Answer, parts: bool = False) -> str:
    """Return the answer on top, the table, and how its columns are to be read.

    With ``parts``, tables of the peak's parts, of work and of the gap under each optimizer follow.
    """
    question, device = answer.question, answer.device
    step = (
        f"batch {question.batch_size:,}, length {answer.sequence_length:,}, {question.precision}, on {device.name}: "
        f"peaks up to {device.room_mib / 1024:,.1f} of {device.memory_mib / 1024:,.1f} GiB fit"
    )
    head = [
        textwrap.fill(each, _WIDTH) for each in (advice(answer), "", f"{answer.model}, {answer.blocks} blocks", step)
    ]
    table = aligned([_HEADINGS, *(_cells(answer, row) for row in answer.predicted)])
    left_out = [f"{row.arm} is left out: {row.left_out}" for row in answer.rows if row.left_out]
    shapes = [f"{row.arm}: {row.shape}." for row in answer.predicted if row.shape]
    texts = (*_notes(answer), *shapes, *left_out)
    notes = [textwrap.fill(each, _WIDTH, subsequent_indent="  ") for each in texts]
    return "\n".join([*head, "", *table, "", *(_parts(answer) if parts else ()), *notes, ""])


def _cells(answer: Answer, row: AnswerRow) -> tuple[str, ...]:
    tokens = answer.question.batch_size * answer.sequence_length
    largest = f"{row.largest:,}" + "+" * (row.largest >= MOST) if row.largest else "none"
    return (
        str(row.arm),
        f"{row.parameters / 1e6:,.1f}M",
        f"{row.peak / GIB:,.2f}",
        largest,
        "-" if row.least_ms is None else f"{row.least_ms:,.1f}",
        "-" if row.least_ms is None else f"{1000 * tokens / row.least_ms:,.0f}",
        _gap(row.gap.values()),
    )


def _gap(gaps: Collection[GapRange]) -> str:
    """Return the range over several ranges."""
    return str(GapRange(min(gap.low for gap in gaps), max(gap.high for gap in gaps))) if gaps else _NONE


def _parts(answer: Answer) -> list[str]:
    """Return the tables of parts, of work and of gaps, with a sentence on the moment of the peak."""
    rows = answer.predicted
    moments = (
        f"Memory in GiB at the moment of the peak, part by part: {_moments(answer)}. A part that is 0 there, as "
        "gradients before the backward pass, is not 0 at other moments."
    )
    memory: list[tuple[str, ...]] = [_PARTS]
    others: list[tuple[str, ...]] = [_OTHERS]
    for row in rows:
        *parts, last = (f"{row.memory.get(name, 0.0) / GIB:,.2f}" for name in CATEGORIES)
        memory.append((str(row.arm), f"{row.parameters:,}", *parts, last.rjust(len(_PARTS[-1]))))
        gaps = (str(row.gap.get(name, _NONE)) for name in OPTIMIZERS)
        others.append((str(row.arm), f"{row.flops / 1e12:,.2f}", *gaps))
    return [textwrap.fill(moments, _WIDTH), "", *aligned(memory), "", *aligned(others), ""]


def _notes(answer: Answer) -> list[str]:
    """Return how the columns are counted, and what they leave out."""
    (short, longer), device, found = answer.traced, answer.device, answer.evidence
    traced = "All blocks were traced, since they follow no pattern, or are few."
    if short != longer:
        traced = f"Traced: {short} and {longer} blocks, and two batches; memory and work are linear in both."
    times = "Least times need the rates of a device: on this machine, python -m bench advise measure times a block."
    if device.peak_flops:
        times = (
            "least ms and tokens/s are bounds, not times: matrix products at the rated peak, or compulsory traffic at "
            "the rated bandwidth, whichever takes longer. No arm was timed."
        )
    gaps = "loss gap: no records of formats are here."
    if found is not None:
        used = [name for key, name in OPTIMIZERS.items() if key in found.optimizers]
        gaps = (
            f"loss gap: nats above dense training under the same optimizer, measured on {found.words}, on one corpus "
            f"of repetitive text, with matrices {' and '.join(f'{ratio:g}' for ratio in found.beds[0].gaps)} times "
            f"smaller. Shown is the range over these beds, under {' and '.join(used)}, at the nearest ratio; muon "
            "beside dense AdamW. It is no forecast for your model."
        )
        if left := [name for name in OPTIMIZERS.values() if name not in used]:
            gaps += f" Gaps under {left[0]} are left out: dense ends above the n-gram model of its size there."
    of_kinds = {
        Kind.STRUCTURED: "Structured arms: all linear layers of the blocks, at the share of their size that is named; "
        "embeddings and output layer stay dense. low_rank@size has the size of comera. dense:narrow and dense:small "
        "are dense models with about as many parameters in all: of as many blocks with fewer columns everywhere, or of "
        "half or three quarters of the blocks, in the shape whose loss is on record, else that of the lower predicted "
        "peak.",
        Kind.FINE_TUNING: "lora is for fine-tuning: its frozen weights must come from a trained model.",
    }
    kinds = {row.arm.kind for row in answer.rows}
    return [
        *answer.left_out,
        *(traced, times, gaps),
        *(note for kind, note in of_kinds.items() if kind in kinds),
        f"Not modelled: the allocator's rounding and fragmentation, workspaces of kernels; "
        f"{device.reserve_mib:,.0f} MiB and {TOLERANCE[device.kind]:.0%} are set aside for them.",
    ]


def _moments(answer: Answer) -> str:
    """Return the moments of the arms' peaks, arms with one moment together."""
    by_moment: dict[str, list[str]] = {}
    for row in answer.predicted:
        by_moment.setdefault(row.moment, []).append(str(row.arm))
    common = max(by_moment, key=lambda moment: len(by_moment[moment]))
    others = [f"{moment} ({', '.join(arms)})" for moment, arms in by_moment.items() if moment != common]
    return "; ".join([*others, f"{common} ({'all others' if others else 'all arms'})"])


def as_json(answer: Answer) -> dict[str, Any]:
    """Return the answer in plain values: bytes, FLOPs, milliseconds, nats."""
    question = answer.question
    return {
        "advice": advice(answer),
        "model": answer.model,
        "blocks": answer.blocks,
        "batch_size": question.batch_size,
        "sequence_length": answer.sequence_length,
        "notes": list(answer.left_out),
        "precision": question.precision,
        "device": answer.device.name,
        "room_bytes": round(answer.device.room_mib * MIB),
        "arms": [_plain(answer, row) for row in answer.rows],
    }


def _plain(answer: Answer, row: AnswerRow) -> dict[str, Any]:
    head = {"arm": row.arm.name, "ratio": row.arm.ratio, "checkpoint": row.arm.checkpoint}
    if row.left_out:
        return head | {"left_out": row.left_out}
    return head | {
        "parameters": row.parameters,
        "shape": row.shape or None,
        "peak_bytes": round(row.peak),
        "peak_moment": row.moment,
        "at_peak_bytes": {name: round(value) for name, value in row.memory.items()},
        "largest_batch": row.largest,
        "flops_per_step": row.flops,
        "least_time_ms": row.least_ms,
        "bound_by": row.bound_by or None,
        "loss_gap_nats": {name: list(gap) for name, gap in row.gap.items()},
        "loss_gap_measured_at_ratio": found.nearest(row.arm.ratio)
        if (found := answer.evidence) and row.arm.ratio and row.gap
        else None,
    }


def as_points(answer: Answer, words: Sequence[str]) -> dict[str, Any]:
    """Return the answer as the explorer reads it: a point per arm, and the largest batch of each.

    ``words`` are those of the command, which each point repeats.
    """
    question = answer.question
    points = [
        {
            "source": "your model",
            "arm": str(row.arm),
            "batch_size": question.batch_size,
            "precision": question.precision,
            "device": answer.device.name,
            "workload": answer.model,
            "dataset": "random tokens",
            "measure": "predict",
            "predicted_for": answer.device.kind,
            "sequence_length": answer.sequence_length,
            "peak_memory_predicted_mib": row.peak / MIB,
            **{f"predicted_{name}_mib": value / MIB for name, value in row.memory.items()},
            "parameters": row.parameters,
            "flops_per_step": row.flops,
            "command": shlex.join(["python", "-m", "bench", "advise", *words]),
            **({} if row.least_ms is None else {"least_time_ms": row.least_ms}),
            **({} if row.arm.ratio is None else {"ratio": row.arm.ratio}),
        }
        for row in answer.predicted
    ]
    largest = [
        {
            "arm": str(row.arm),
            "device": answer.device.name,
            "batch_size": row.largest,
            "peak_mib": row.peak / MIB,
            "words": f"{row.largest:,}" if row.largest else "none fits",
        }
        for row in answer.predicted
    ]
    return {"model": answer.model, "points": points, "largest": largest, "notes": [advice(answer), *_notes(answer)]}
