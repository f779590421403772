"""Arms of one job timed in interleaved blocks.

All arms are alive together, each in its process, and take turns in random order, block by block. Whatever disturbs the
machine for a while then hits every arm of a block, and ratios are formed within blocks. Where the arms do not fit into
memory together they run one after another, and their records carry no pairing.
"""

import hashlib
import random
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from bench.processes.process import CellProcess
from bench.protocol import CellFailure, Outcome, Session
from bench.step.allocator import free_memory_mib
from bench.step.timing import calls_per_block

_MEMORY_SHARE = 0.85  # part of the device's free memory that arms living together may be predicted to use


def time_cells(outcomes: Sequence[Outcome], serve: Callable[..., None], session: Session) -> None:
    """Time the arms whose prediction went well, filling in their outcomes.

    ``serve`` runs in an arm's process and answers as :func:`bench.measures.run.time_cell`.
    """
    alive = [outcome for outcome in outcomes if outcome.status == "ok"]
    for outcome in outcomes:
        if outcome.status != "ok":
            session.advance(outcome.cell, 1.0)
    if not alive:
        return
    free_mib = free_memory_mib(alive[0].cell.device)
    needs = [outcome.columns["peak_memory_predicted_mib"] for outcome in alive]
    if sum(needs) <= _MEMORY_SHARE * free_mib:
        _time_together(alive, serve, session, paired=True)
        return
    for outcome, need in zip(alive, needs, strict=True):
        if outcome.cell.device == "cpu" and need > free_mib:
            reason = f"needs {need:,.0f} MiB by prediction, {free_mib:,.0f} MiB are free"
            outcome.fail(CellFailure("oom", reason))
            outcome.columns["samples"] = {"lacks": "memory"}
            session.advance(outcome.cell, 1.0)
        else:
            _time_together([outcome], serve, session, paired=False)


def _time_together(outcomes: Sequence[Outcome], serve: Callable[..., None], session: Session, paired: bool) -> None:
    """Time arms that are alive together, in blocks of random order."""
    shares = {id(outcome): 0.0 for outcome in outcomes}

    def progress(outcome: Outcome, share: float) -> None:
        share = min(share, 1.0 - shares[id(outcome)])
        shares[id(outcome)] += share
        session.advance(outcome.cell, share)

    arms: list[tuple[Outcome, CellProcess]] = []
    timing = outcomes[0].cell.timing_settings
    try:
        for outcome in outcomes:
            process = CellProcess(serve, outcome.cell, session.data, timing["time_limit_s"])
            arms.append((outcome, process))
            outcome.columns.update(_ask(outcome, process) or {})
            progress(outcome, 0.3)
        blocks: dict[int, list[dict[str, Any]]] = {id(outcome): [] for outcome in outcomes}
        order = random.Random(0)
        number = 0
        while number < timing["blocks"] + timing["extra_blocks"]:
            running = [(outcome, process) for outcome, process in arms if outcome.status == "ok"]
            undisturbed = min((_undisturbed(blocks[id(o)], timing["disturbed"]) for o, _ in running), default=0)
            if not running or undisturbed >= timing["blocks"]:
                break
            order.shuffle(running)
            for outcome, process in running:
                block = _ask(outcome, process, "block", calls_per_block(outcome.columns["step_ms"], timing))
                if block is not None:
                    blocks[id(outcome)].append({"block": number, **block})
                progress(outcome, 0.6 / timing["blocks"])
            number += 1
        for outcome, process in arms:
            samples: dict[str, Any] = {"blocks": _marked(blocks[id(outcome)], timing["disturbed"])}
            if outcome.status == "ok" and outcome.columns["rare_periods"] and session.needs_rare(outcome.cell):
                times = _ask(outcome, process, "rare") or {}
                samples["rare"] = {name: [ms] for name, ms in times.items()}
            if shapes := outcome.columns.pop("tensorized", []):
                samples["tensorized"] = shapes
            outcome.columns["samples"] = samples
            progress(outcome, 1.0)
    finally:
        for _, process in arms:
            process.stop()
    timed = [outcome for outcome in outcomes if outcome.columns["samples"]["blocks"]]
    if paired and len(timed) > 1:
        name = _pairing_name(timed)
        for outcome in timed:
            outcome.columns["pairing"] = name


def _ask(outcome: Outcome, process: CellProcess, word: str = "", content: Any = None) -> Any:
    """The process's answer to a request, or its first one without; None once the cell has failed."""
    if outcome.status != "ok":
        return None
    try:
        return process.ask(word, content) if word else process.answer()
    except CellFailure as failure:
        outcome.fail(failure)
        return None


def _marked(blocks: list[dict[str, Any]], factor: float) -> list[dict[str, Any]]:
    """An arm's blocks with a flag for those whose calibration or mean step took ``factor`` times the median of all."""
    if not blocks:
        return []
    pairs = [(block["calibration_ms"], statistics.fmean(block["ms"])) for block in blocks]
    usual = [statistics.median(times) for times in zip(*pairs, strict=True)]
    slow = [any(ms > factor * middle for ms, middle in zip(pair, usual, strict=True)) for pair in pairs]
    return [{**block, "disturbed": flag} for block, flag in zip(blocks, slow, strict=True)]


def _undisturbed(blocks: list[dict[str, Any]], factor: float) -> int:
    return sum(not block["disturbed"] for block in _marked(blocks, factor))


def _pairing_name(outcomes: Sequence[Outcome]) -> str:
    """A name for this round of blocks, made from its own samples, so that no two rounds share one."""
    return hashlib.sha256(repr([outcome.columns["samples"] for outcome in outcomes]).encode()).hexdigest()[:12]
