"""Ranks of one encoder block: the fifth, as in the paper, or the last where there are fewer."""

from __future__ import annotations

import re
from collections.abc import Iterable

from bench.core.record import Record
from figures.curve import Ranks, curve_of

#: The block that the paper's rank table shows, counted from 1.
BLOCK = 5

#: Layers of a block in the order of the forward pass, as the table calls them.
LAYERS = {
    "attention.query": "query",
    "attention.key": "key",
    "attention.value": "value",
    "attention.output": "output",
    "feed_forward.expand": "feed-forward 1",
    "feed_forward.contract": "feed-forward 2",
}

_IN_BLOCK = re.compile(r"blocks\.(\d+)\.(.+)")


def block_shown(names: Iterable[str]) -> int | None:
    """The number, from 1, of the block to show among these layers; None where no layer is in a block."""
    numbers = {int(found[1]) + 1 for name in names if (found := _IN_BLOCK.fullmatch(name))}
    if not numbers:
        return None
    return BLOCK if BLOCK in numbers else max(numbers)


def ranks_of_block(ranks: Ranks, block: int | None) -> dict[str, tuple[int, ...]]:
    """Ranks by layer, under the table's names and in its order; a layer that it does not know keeps its own name."""
    inside = {
        found[2]: values
        for name, values in ranks.items()
        if (found := _IN_BLOCK.fullmatch(name)) and int(found[1]) + 1 == block
    }
    order = [*(name for name in LAYERS if name in inside), *sorted(set(inside) - set(LAYERS))]
    return {LAYERS.get(name, name): inside[name] for name in order}


def last_ranks(run: Record) -> dict[str, tuple[int, ...]]:
    """Ranks of the block shown at the end of a run."""
    ranks = curve_of(run)[-1].ranks
    return ranks_of_block(ranks, block_shown(ranks))


def layers_without_ranks(ranks: Ranks) -> list[str]:
    """Layers whose ranks are all zero: they pass their bias only."""
    return [name for name, values in ranks.items() if not any(values)]
