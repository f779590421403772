"""Arms of one job timed in interleaved blocks, in several launches.

All arms are alive together, each in its process, and take turns in random order, block by block. Whatever disturbs the
machine for a while then hits every arm of a block, and ratios are formed within blocks. Where the arms do not fit into
memory together they run one after another, and their records carry no pairing. That is predicted. An arm that runs out
of memory beside others all the same runs again alone: a record says ``oom`` of an arm that does not fit by itself.

A launch starts all processes anew. What holds for one of them, such as where its tensors lie in memory, is the same in
all of its blocks and another in the next; blocks of a single launch would leave that out.
"""

import dataclasses
import functools
import hashlib
import itertools
import random
import statistics
import timeit
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from bench.core.cell import Cell
from bench.core.samples import marked
from bench.processes.cluster import nodes
from bench.processes.process import CellProcess
from bench.protocol import CellFailure, Outcome, Session
from bench.step.allocator import free_memory_mib
from bench.step.timing import calls_per_block

#: Launches of a cell whose settings do not say how many.
LAUNCHES = 3

_STEPS_ALONE = 2  # of an arm that was warmed up beside others, before its first block

_PROCESS_MIB = 500.0  # of a process beside its tensors: program, a rank's torchrun, or a GPU's context
#: Operations per second that any processor does, the side of a product that shows what this one does, and how much
#: quicker it may be than that product.
_SLOWEST, _SIDE, _QUICKER = 1e9, 768, 3.0
_MEMORY_SHARE = 0.85  # part of the device's free memory that arms living together may be predicted to use


def time_cells(outcomes: Sequence[Outcome], serve: Callable[..., None], session: Session) -> None:
    """Time the arms whose prediction went well, filling in their outcomes.

    ``serve`` runs in an arm's process and answers as :func:`bench.measures.run.time_cell`.
    """
    for outcome in outcomes:
        if outcome.status == "ok" and (reason := _out_of_time(outcome)):
            outcome.fail(CellFailure("timeout", reason))
    alive = [outcome for outcome in outcomes if outcome.status == "ok"]
    for outcome in outcomes:
        if outcome.status != "ok":
            session.advance(outcome.cell, 1.0)
    if not alive:
        return
    free_mib = free_memory_mib(alive[0].cell.device)
    needs = [_need_mib(outcome) for outcome in alive]
    if sum(needs) <= _MEMORY_SHARE * free_mib:
        _time_together(alive, alive, serve, session, paired=True)
        for outcome in alive:
            if outcome.status == "oom" and len(alive) > 1:
                _time_again_alone(outcome, alive, serve, session)
        return
    if len(alive) > 1:
        session.note(alive[0].cell, _apart(len(alive), sum(needs), free_mib))
    for outcome, need in zip(alive, needs, strict=True):
        if outcome.cell.device == "cpu" and need > free_mib:
            reason = f"needs {need:,.0f} MiB by prediction, {free_mib:,.0f} MiB are free"
            outcome.fail(CellFailure("oom", reason))
            outcome.columns["samples"] = {"lacks": "memory"}
            session.advance(outcome.cell, 1.0)
        else:
            _time_together([outcome], alive, serve, session, paired=False)


def _time_again_alone(outcome: Outcome, job: Sequence[Outcome], serve: Callable[..., None], session: Session) -> None:
    """Time an arm that ran out of memory beside the others of its job, whose share of the work is told already."""
    session.note(outcome.cell, f"{outcome.message}; beside {len(job) - 1} other arms, so it runs again alone")
    outcome.status, outcome.message = "ok", ""
    outcome.columns.pop("pairing", None)  # of blocks before it failed
    _time_together([outcome], job, serve, dataclasses.replace(session, advance=lambda *_: None), paired=False)


def _apart(arms: int, need_mib: float, free_mib: float) -> str:
    """Return a sentence on arms that are timed one after another, for whoever would rather stop."""
    return (
        f"{arms} arms need {need_mib:,.0f} MiB together by prediction, of {free_mib:,.0f} MiB free {_MEMORY_SHARE:.0%} "
        "may be used: they are timed one after another, and their ratios are unpaired"
    )


def _out_of_time(outcome: Outcome) -> str:
    """Predict why an arm's first steps cannot end within its time limit; empty where they may, and on CUDA."""
    cell, flops = outcome.cell, outcome.columns.get("flops_per_step") or 0
    timing = cell.timing_settings
    steps, limit_s = timing["warmup_steps"] + 1, timing["time_limit_s"]
    if cell.device != "cpu" or cell.precision != "fp32" or steps * flops < _SLOWEST * limit_s:
        return ""
    least_s = steps * flops / (_QUICKER * _products_per_s())
    if least_s <= limit_s:
        return ""
    return f"{steps} steps take at least {least_s:,.0f} s by prediction, more than time_limit_s={limit_s:g}"


@functools.cache
def _products_per_s() -> float:
    """Return floating-point operations per second of square products on this machine's processor."""
    factor = torch.ones(_SIDE, _SIDE)
    seconds = min(timeit.repeat(lambda: torch.mm(factor, factor), number=1, repeat=3))
    return 2 * _SIDE**3 / seconds


def _need_mib(outcome: Outcome) -> float:
    """Return the memory that an arm takes here; on CPUs the ranks of a node share it, while each has its own GPU."""
    cell, columns = outcome.cell, outcome.columns
    need = float(columns["peak_memory_predicted_mib"]) + _PROCESS_MIB
    if cell.world_size == 1:
        return need
    kept = 2 if cell.exchange.startswith("powersgd") else 1  # times the gradients
    need += kept * columns.get("predicted_gradients_mib", 0.0)
    return need if cell.device == "cuda" else need * -(-cell.world_size // nodes())


def _time_together(
    outcomes: Sequence[Outcome], job: Sequence[Outcome], serve: Callable[..., None], session: Session, paired: bool
) -> None:
    """Time arms that are alive together, in blocks of random order; they may be some of those of the ``job``."""
    shares = {id(outcome): 0.0 for outcome in outcomes}
    timing = outcomes[0].cell.timing_settings
    launches = timing.get("launches", LAUNCHES)

    def progress(outcome: Outcome, share: float, at: str = "") -> None:
        share = min(share / launches, 1.0 - shares[id(outcome)])
        shares[id(outcome)] += share
        session.advance(outcome.cell, share, at and f"launch {launch + 1} of {launches}, {at}")

    for outcome in outcomes:
        outcome.columns["samples"] = {"blocks": []}
    order = random.Random(0)
    for launch in range(launches):
        _launch([one for one in outcomes if one.status == "ok"], job, serve, session, launch, order, progress)
    best_ms = _best_calibration_ms(_blocks(job))
    for outcome in outcomes:
        samples = outcome.columns["samples"]
        samples["blocks"] = marked(samples["blocks"], timing["disturbed"], best_ms)
        progress(outcome, 1.0 * launches)
    timed = [outcome for outcome in outcomes if outcome.columns["samples"]["blocks"]]
    if paired and len(timed) > 1:
        name = _pairing_name(timed)
        for outcome in timed:
            outcome.columns["pairing"] = name


def _launch(
    outcomes: Sequence[Outcome],
    job: Sequence[Outcome],
    serve: Callable[..., None],
    session: Session,
    launch: int,
    order: random.Random,
    progress: Callable[..., None],
) -> None:
    """Start the arms, add blocks, times of rare events and energy to their samples, and stop them."""
    arms: list[tuple[Outcome, CellProcess]] = []
    blocks: dict[int, list[dict[str, Any]]] = {id(outcome): [] for outcome in outcomes}
    try:
        at_once = all(_prepares_beside_others(outcome.cell) for outcome in outcomes)
        for outcome in outcomes:
            timing = outcome.cell.timing_settings
            arms.append((outcome, CellProcess(serve, outcome.cell, session.data, timing["time_limit_s"])))
            if not at_once:
                _note_ready(*arms[-1])
                progress(outcome, 0.3, "started")
        if at_once:
            for outcome, process in arms:
                _note_ready(outcome, process)
                progress(outcome, 0.3, "started")
            for outcome, process in arms:  # what a step takes alone
                if block := _ask(outcome, process, "block", _STEPS_ALONE):
                    outcome.columns["step_ms"] = min(block["ms"])
        number = 0
        while outcomes and number < timing["blocks"] + timing["extra_blocks"]:
            running = [(outcome, process) for outcome, process in arms if outcome.status == "ok"]
            best_ms = _best_calibration_ms([*_blocks(job), *itertools.chain(*blocks.values())])
            flags = (marked(blocks[id(outcome)], timing["disturbed"], best_ms) for outcome, _ in running)
            undisturbed = min((sum(not block["disturbed"] for block in arm) for arm in flags), default=0)
            if not running or undisturbed >= timing["blocks"]:
                break
            order.shuffle(running)
            for outcome, process in running:
                block = _ask(outcome, process, "block", calls_per_block(outcome.columns["step_ms"], timing))
                if block is not None:
                    blocks[id(outcome)].append({"launch": launch, "block": number, **block})
                again = " beyond the planned ones, since the machine was busy" if number >= timing["blocks"] else ""
                median = f", {statistics.median(block['ms']):.3g} ms per step" if block else ""
                progress(outcome, 0.6 / timing["blocks"], f"block {number + 1}{again}{median}")
            number += 1
        for outcome, process in arms:
            if outcome.status == "ok" and outcome.columns["rare_periods"] and session.needs_rare(outcome.cell):
                rare = outcome.columns["samples"].setdefault("rare", {})
                for name, ms in (_ask(outcome, process, "rare") or {}).items():
                    rare.setdefault(name, []).append(ms)
        idle_w = None  # of the GPU that all arms share, so the first one measures it
        for outcome, process in arms:
            if outcome.cell.device != "cuda" or outcome.cell.world_size > 1:
                continue
            if energy := _ask(outcome, process, "energy", idle_w):
                idle_w = energy["idle_w"]
                outcome.columns["samples"].setdefault("energy", []).append({"launch": launch, **energy})
    finally:
        for outcome, process in arms:
            outcome.columns["samples"]["blocks"] += blocks[id(outcome)]
            process.stop()


def _prepares_beside_others(cell: Cell) -> bool:
    """Return whether an arm may be built, compiled and warmed up while others are: on a GPU, for none of it is timed.

    On a CPU they would crowd one another out, and what a compilation takes is recorded.
    """
    return cell.device == "cuda" and cell.world_size == 1


def _note_ready(outcome: Outcome, process: CellProcess) -> None:
    """Wait until an arm is warmed up, and keep what is known of it by then."""
    columns = _ask(outcome, process) or {}
    if shapes := columns.pop("tensorized", []):
        outcome.columns["samples"]["tensorized"] = shapes
    outcome.columns.update(columns)


def _ask(outcome: Outcome, process: CellProcess, word: str = "", content: Any = None) -> Any:
    """Return the process's answer to a request, or its first one without; None once the cell has failed."""
    if outcome.status != "ok":
        return None
    try:
        return process.ask(word, content) if word else process.answer()
    except CellFailure as failure:
        outcome.fail(failure)
        return None


def _blocks(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """Return the blocks of all launches that have ended."""
    return [block for outcome in outcomes for block in outcome.columns.get("samples", {}).get("blocks", [])]


def _best_calibration_ms(blocks: Iterable[Mapping[str, Any]]) -> float | None:
    """Return the quickest calibration product of some blocks.

    It is by the wall clock: on a machine that was never quiet no block would be left beside the processor's time.
    """
    return min((block["calibration_ms"] for block in blocks), default=None)


def _pairing_name(outcomes: Sequence[Outcome]) -> str:
    """Return a name for this round of blocks, made from its own samples, so that no two rounds share one."""
    return hashlib.sha256(repr([outcome.columns["samples"] for outcome in outcomes]).encode()).hexdigest()[:12]
