"""The sizes that a chain of cores can take, and the ranks for a wanted size or ratio.

A chain with modes ``m[i]`` and ranks ``R[i]`` stores ``Σ R[i-1]·m[i]·R[i]`` core entries and one rank-control entry per
rank. Ranks are searched under these rules:

* They rise to the middle bond and fall behind it; none exceeds its bond, nor what its outer neighbour can feed it (that
  neighbour's rank times the mode between).
* They stay close to the *flat* profile, the middle rank R clipped at every bond: within 1 of it where that gives a size
  within 2 % of the wanted one, else within a depth that leaves no size out.
* Of all candidates of one size (a cell of 1 %) the one with the smallest R is taken, since a row costs FLOPs in
  proportion to R whatever the other ranks are; then the flattest, then the cheapest to merge.

Candidates and cells do not depend on the wanted size. Hence a smaller wanted size never gives a larger chain.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

from comera.modes import bond_limits
from comera.protocol import OutOfReach

#: How far the true parameter count may be from the wanted one.
TOLERANCE = 0.02

#: Sizes within a factor of this count as equal, so that cost decides between them.
_CELL = 1.01

#: How far below the flat profile a rank may be at first, and at last, by the number of cores in its half.
_SHALLOW = 1
_DEPTH = {1: 0, 2: 31, 3: 8, 4: 6}


class _ModeSide(NamedTuple):
    """Inner ranks of one half, from the end of the chain toward the middle, and what they cost."""

    entries: int
    deficit: int
    merge_flops: int
    ranks: tuple[int, ...]


class Candidate(NamedTuple):
    """Core and rank-control entries, and the ranks that have them."""

    entries: int
    ranks: tuple[int, ...]


def _merge_flops(modes: Sequence[int], ranks: Sequence[int]) -> int:
    """Return the FLOPs of merging one half; modes from the chain's end, ranks from 1 there to R in the middle."""
    width, total = modes[0], 0
    for mode, (outer, inner) in zip(modes[1:], itertools.pairwise(ranks[1:]), strict=True):
        width *= mode
        total += 2 * width * outer * inner
    return total


@lru_cache(maxsize=8192)
def _sides(modes: tuple[int, ...], limits: tuple[int, ...], middle: int, depth: int) -> tuple[_ModeSide, ...]:
    """Return the admissible inner ranks of a half, sorted by their entries.

    Args:
        modes: of the half's cores, from the end of the chain.
        limits: of its inner bonds, one fewer than modes.
        middle: R, the rank of the middle bond; its own control entries are counted elsewhere.
        depth: how far below the flat profile a rank may be.
    """
    flat = [min(middle, limit) for limit in limits]
    found = []
    for inner in itertools.product(*(range(max(1, rank - depth), rank + 1) for rank in flat)):
        ranks = (1, *inner, middle)
        bonds = [(a, mode, b) for (a, b), mode in zip(itertools.pairwise(ranks), modes, strict=True)]
        if all(a <= b <= a * mode for a, mode, b in bonds):
            entries = sum(math.prod(bond) for bond in bonds) + sum(inner)
            deficit = max((most - rank for most, rank in zip(flat, inner, strict=True)), default=0)
            found.append(_ModeSide(entries, deficit, _merge_flops(modes, ranks), inner))
    return tuple(sorted(found))


@dataclass(frozen=True)
class Chain:
    """A chain of cores with its modes fixed and its ranks free.

    Args:
        modes: one per core (for TTM the product of row and column mode).
        half: number of cores before the middle bond.

    Example:
        >>> chain = Chain((12, 8, 8, 8, 8, 12), 3)
        >>> chain.smallest
        Candidate(entries=61, ranks=(1, 1, 1, 1, 1))
        >>> chain.flat(30)
        Candidate(entries=20562, ranks=(12, 30, 30, 30, 12))
    """

    modes: tuple[int, ...]
    half: int

    @cached_property
    def limits(self) -> tuple[int, ...]:
        """The largest rank of every bond."""
        return bond_limits(self.modes)

    @cached_property
    def _halves(self) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], tuple[tuple[int, ...], tuple[int, ...]]]:
        """Modes and inner limits of the two halves, each from its end of the chain to the middle."""
        left = self.modes[: self.half], self.limits[: self.half - 1]
        return left, (self.modes[self.half :][::-1], self.limits[self.half :][::-1])

    def flat(self, middle: int) -> Candidate:
        """Return the middle rank clipped at every bond: the largest size with this R."""
        ranks = tuple(min(middle, limit) for limit in self.limits)
        bonds = zip(itertools.pairwise((1, *ranks, 1)), self.modes, strict=True)
        return Candidate(sum(a * mode * b for (a, b), mode in bonds) + sum(ranks), ranks)

    @property
    def smallest(self) -> Candidate:
        return self.flat(1)

    @property
    def largest(self) -> Candidate:
        return self.flat(self.limits[self.half - 1])

    def merge_flops(self, ranks: Sequence[int]) -> int:
        """Return the FLOPs of merging both halves into two matrices.

        Example:
            >>> Chain((12, 8, 8, 8, 8, 12), 3).merge_flops((12, 30, 30, 30, 12)) == 2 * (2*96*12*30 + 2*768*30*30)
            True
        """
        (left, _), (right, _) = self._halves
        middle = self.half - 1
        return _merge_flops(left, (1, *ranks[: middle + 1])) + _merge_flops(right, (1, *ranks[middle:][::-1]))

    def _by_middle(self, size: float, deep: bool) -> Iterator[tuple[int, tuple[_ModeSide, ...], tuple[_ModeSide, ...]]]:
        """Yield R, left and right sides, from the last R whose flat profile is below a size to the first too large."""
        middles = range(1, self.limits[self.half - 1] + 1)
        first = bisect.bisect_left(middles, size, key=lambda middle: self.flat(middle).entries)
        for middle in middles[max(first - 1, 0) :]:
            left, right = (
                _sides(modes, limits, middle, _DEPTH.get(len(modes), 2) if deep else _SHALLOW)
                for modes, limits in self._halves
            )
            yield middle, left, right
            if left[0].entries + middle + right[0].entries > size:
                return

    def in_cell(self, size: float, deep: bool) -> Candidate | None:
        """Return the cheapest candidate in the cell of a size: smallest R, then flattest, then cheapest to merge."""
        cell = math.floor(math.log(size, _CELL))
        low, high = _CELL**cell, _CELL ** (cell + 1)
        for middle, lefts, rights in self._by_middle(low, deep):
            best: tuple[tuple[int, int, int], Candidate] | None = None
            for left in lefts:
                rest = left.entries + middle
                for right in rights[bisect.bisect_left(rights, low - rest, key=_entries) :]:
                    if rest + right.entries >= high:
                        break
                    cost = left.merge_flops + right.merge_flops
                    key = max(left.deficit, right.deficit), cost, rest + right.entries
                    if best is None or key < best[0]:
                        best = key, _joined(left, middle, right)
            if best is not None:
                return best[1]
        return None

    def around(self, size: float, deep: bool) -> tuple[Candidate | None, Candidate | None]:
        """Return the largest candidate up to a size and the smallest above it; None where there is none."""
        below: Candidate | None = None
        above: Candidate | None = None
        for middle, lefts, rights in self._by_middle(size, deep):
            for left in lefts:
                place = bisect.bisect_right(rights, size - left.entries - middle, key=_entries)
                if place and (below is None or left.entries + middle + rights[place - 1].entries > below.entries):
                    below = _joined(left, middle, rights[place - 1])
                if place < len(rights) and (
                    above is None or left.entries + middle + rights[place].entries < above.entries
                ):
                    above = _joined(left, middle, rights[place])
        return below, above


def _entries(side: _ModeSide) -> int:
    return side.entries


def _joined(left: _ModeSide, middle: int, right: _ModeSide) -> Candidate:
    return Candidate(left.entries + middle + right.entries, (*left.ranks, middle, *right.ranks[::-1]))


def search(chains: Sequence[Chain], size: float) -> tuple[int, Candidate]:
    """Return the candidate for a size: within 2 % in the first chain that has one, else the nearest of all chains.

    Args:
        chains: in the sequence in which they are to be tried.
        size: wanted number of core and rank-control entries.

    Returns:
        The place of the chain among ``chains``, and the candidate.

    Example:
        >>> search([Chain((12, 8, 8, 8, 8, 12), 3)], 20_560)
        (0, Candidate(entries=20562, ranks=(12, 30, 30, 30, 12)))
    """
    nearest: list[tuple[float, int, Candidate]] = []
    for place, chain in enumerate(chains):
        for deep in (False, True):
            if (candidate := chain.in_cell(size, deep)) is not None:
                return place, candidate
            found = [candidate for candidate in chain.around(size, deep) if candidate is not None]
            distance, candidate = min((abs(candidate.entries - size), candidate) for candidate in found)
            if distance <= TOLERANCE * size:
                return place, candidate
            nearest.append((distance, place, candidate))
    _, place, candidate = min(nearest, key=lambda entry: entry[:2])
    return place, candidate


def check_ratio(ratio: float) -> None:
    """Raise ValueError unless ``ratio`` is a finite number from 1 up."""
    number = isinstance(ratio, int | float) and not isinstance(ratio, bool)
    if not number or not math.isfinite(ratio) or ratio < 1:
        raise ValueError(f"ratio is {ratio!r}; it must be a finite number from 1 (as large as dense) up.")


def search_within(chains: Sequence[Chain], dense_count: int, ratio: float, what: str) -> tuple[Chain, Candidate]:
    """Return the chain and the candidate for a ratio.

    Args:
        chains: in the sequence in which they are to be tried.
        dense_count: entries of the dense weight.
        ratio: wanted dense entries over core and rank-control entries.
        what: what is tensorized, for the sentence of an error.

    Raises:
        ValueError: a ratio below 1.
        OutOfReach: no candidate is within 2 %; the sentence names the largest or smallest ratio within reach, or those
            on either side of a gap.
    """
    check_ratio(ratio)
    size = dense_count / ratio
    place, found = search(chains, size)
    if abs(found.entries - size) <= TOLERANCE * size:
        return chains[place], found
    least, most = min(chain.smallest.entries for chain in chains), max(chain.largest.entries for chain in chains)
    start = f"ratio={ratio:g} is out of reach for {what}"
    if size < least:
        largest = dense_count / least
        raise OutOfReach(f"{start}; the largest within reach is {largest:.6g}, with all ranks 1.", largest=largest)
    if size > most:
        smallest = dense_count / most
        words = f"{start}; the smallest within reach is {smallest:.6g}, with the largest ranks."
        raise OutOfReach(words, smallest=smallest)
    pairs = [chain.around(size, deep=True) for chain in chains]
    smaller = max(below.entries for below, _ in pairs if below)
    larger = min(above.entries for _, above in pairs if above)
    nearest = f"{dense_count / larger:.6g} and {dense_count / smaller:.6g}"
    raise OutOfReach(f"{start} within {TOLERANCE:.0%}; the nearest ratios on either side are {nearest}.")
