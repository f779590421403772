"""Arms of one job timed in interleaved blocks, in several launches.

All arms are alive together, each in its process, and take turns in random order, block by block. Whatever disturbs the
machine for a while then hits every arm of a block, and ratios are formed within blocks. Where the arms do not fit into
memory together they run one after another, and their records carry no pairing.

A launch starts all processes anew. What holds for one of them, such as where its tensors lie in memory, is the same in
all of its blocks and another in the next; without several launches an interval would leave that out.
"""

import hashlib
import random
from collections.abc import Callable, Sequence
from typing import Any

from bench.core.samples import marked
from bench.processes.cluster import nodes
from bench.processes.process import CellProcess
from bench.protocol import CellFailure, Outcome, Session
from bench.step.allocator import free_memory_mib
from bench.step.timing import calls_per_block

#: Launches of a cell whose settings do not say how many.
LAUNCHES = 3

_RANK_MIB = 500.0  # of the program of a rank, and of the torchrun that it may have for itself
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
    needs = [_need_mib(outcome) for outcome in alive]
    if sum(needs) <= _MEMORY_SHARE * free_mib:
        _time_together(alive, serve, session, paired=True)
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
            _time_together([outcome], serve, session, paired=False)


def _apart(arms: int, need_mib: float, free_mib: float) -> str:
    """A sentence on arms that are timed one after another, for whoever would rather stop."""
    return (
        f"{arms} arms need {need_mib:,.0f} MiB together by prediction, of {free_mib:,.0f} MiB free {_MEMORY_SHARE:.0%} "
        "may be used: they are timed one after another, and their ratios are unpaired"
    )


def _need_mib(outcome: Outcome) -> float:
    """Memory that an arm takes here; of ranks on CPUs those of a node share it, while each has a GPU of its own."""
    cell, columns = outcome.cell, outcome.columns
    need = float(columns["peak_memory_predicted_mib"])
    if cell.world_size == 1:
        return need
    kept = 2 if cell.exchange.startswith("powersgd") or cell.exchange == "local_steps" else 1  # times the gradients
    need += kept * columns.get("predicted_gradients_mib", 0.0)
    return need if cell.device == "cuda" else (need + _RANK_MIB) * -(-cell.world_size // nodes())


def _time_together(outcomes: Sequence[Outcome], serve: Callable[..., None], session: Session, paired: bool) -> None:
    """Time arms that are alive together, in blocks of random order."""
    shares = {id(outcome): 0.0 for outcome in outcomes}
    timing = outcomes[0].cell.timing_settings
    launches = timing.get("launches", LAUNCHES)

    def progress(outcome: Outcome, share: float) -> None:
        share = min(share / launches, 1.0 - shares[id(outcome)])
        shares[id(outcome)] += share
        session.advance(outcome.cell, share)

    for outcome in outcomes:
        outcome.columns["samples"] = {"blocks": []}
    order = random.Random(0)
    for launch in range(launches):
        _launch([one for one in outcomes if one.status == "ok"], serve, session, launch, order, progress)
    for outcome in outcomes:
        samples = outcome.columns["samples"]
        samples["blocks"] = marked(samples["blocks"], timing["disturbed"])
        progress(outcome, 1.0 * launches)
    timed = [outcome for outcome in outcomes if outcome.columns["samples"]["blocks"]]
    if paired and len(timed) > 1:
        name = _pairing_name(timed)
        for outcome in timed:
            outcome.columns["pairing"] = name


def _launch(
    outcomes: Sequence[Outcome],
    serve: Callable[..., None],
    session: Session,
    launch: int,
    order: random.Random,
    progress: Callable[[Outcome, float], None],
) -> None:
    """Start the arms, add blocks and times of rare events to their samples, and stop them."""
    arms: list[tuple[Outcome, CellProcess]] = []
    blocks: dict[int, list[dict[str, Any]]] = {id(outcome): [] for outcome in outcomes}
    try:
        for outcome in outcomes:
            timing = outcome.cell.timing_settings
            process = CellProcess(serve, outcome.cell, session.data, timing["time_limit_s"])
            arms.append((outcome, process))
            columns = _ask(outcome, process) or {}
            if shapes := columns.pop("tensorized", []):
                outcome.columns["samples"]["tensorized"] = shapes
            outcome.columns.update(columns)
            progress(outcome, 0.3)
        number = 0
        while outcomes and number < timing["blocks"] + timing["extra_blocks"]:
            running = [(outcome, process) for outcome, process in arms if outcome.status == "ok"]
            undisturbed = min((_undisturbed(blocks[id(o)], timing["disturbed"]) for o, _ in running), default=0)
            if not running or undisturbed >= timing["blocks"]:
                break
            order.shuffle(running)
            for outcome, process in running:
                block = _ask(outcome, process, "block", calls_per_block(outcome.columns["step_ms"], timing))
                if block is not None:
                    blocks[id(outcome)].append({"launch": launch, "block": number, **block})
                progress(outcome, 0.6 / timing["blocks"])
            number += 1
        for outcome, process in arms:
            if outcome.status == "ok" and outcome.columns["rare_periods"] and session.needs_rare(outcome.cell):
                rare = outcome.columns["samples"].setdefault("rare", {})
                for name, ms in (_ask(outcome, process, "rare") or {}).items():
                    rare.setdefault(name, []).append(ms)
    finally:
        for outcome, process in arms:
            outcome.columns["samples"]["blocks"] += blocks[id(outcome)]
            process.stop()


def _ask(outcome: Outcome, process: CellProcess, word: str = "", content: Any = None) -> Any:
    """The process's answer to a request, or its first one without; None once the cell has failed."""
    if outcome.status != "ok":
        return None
    try:
        return process.ask(word, content) if word else process.answer()
    except CellFailure as failure:
        outcome.fail(failure)
        return None


def _undisturbed(blocks: list[dict[str, Any]], factor: float) -> int:
    return sum(not block["disturbed"] for block in marked(blocks, factor))


def _pairing_name(outcomes: Sequence[Outcome]) -> str:
    """A name for this round of blocks, made from its own samples, so that no two rounds share one."""
    return hashlib.sha256(repr([outcome.columns["samples"] for outcome in outcomes]).encode()).hexdigest()[:12]
