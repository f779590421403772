"""Closing rank entries along a planned curve of the size, least important first.

The published late stage pulls all rank entries down by a price on the size. Here the size follows a curve from what is
there to the target (cubic, as in the gradual pruning of Zhu and Gupta, arXiv 1710.01878), and the entries to close are
chosen. The saliency of an entry d is the average of ``|d · ∂L/∂d|`` over the last steps: to first order, what the loss
of a batch changes by when the entry is set to 0 (Molchanov et al., arXiv 1611.06440). A factor of the loss multiplies
all saliencies alike, so the choice does not depend on it.

Saliencies are divided by the square root of their layer's own, the largest sum over any of its bonds. A layer that has
learned little yet, such as one that starts at zero, would else lose all it has to the layers that learned first; of its
share of the layer alone, an entry of a layer that matters to nothing would count as much as one of any other.

Per parameter (``"saliency_per_parameter"``), the saliency of an entry is also divided by the core entries that closing
it frees.

A bond that loses its last entry closes its whole layer. That choice has a saliency of its own: the layer's. So a layer
never closes because a short bond at its end ran out of entries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch

from comera.layers import TensorTrainLayer

Numbers = npt.NDArray[np.float64]

Order = Literal["saliency", "saliency_per_parameter", "magnitude"]
ORDERS: tuple[Order, ...] = get_args(Order)

#: How a late stage chooses what closes; ``"paper"`` prices the size (:class:`comera.LateStage`).
LateVariant = Literal[Order, "paper"]
LATE_VARIANTS: tuple[LateVariant, ...] = get_args(LateVariant)

#: Weight of the past in the running average of saliencies.
MEMORY = 0.97
#: The least share of its target at which a run may end.
LEAST = 0.95
#: An open entry stays above the threshold by this factor.
_LIFT = 1.01
#: A curve has this many cuts at most.
_CUTS = 100


def size_on_curve(done: float, start: float, target: float) -> float:
    """Return the size after a share of the curve, from ``start`` at 0 to ``target`` at 1.

    Example:
        >>> [round(size_on_curve(done, 1.0, 0.2), 3) for done in (0.0, 0.5, 1.0)]
        [1.0, 0.3, 0.2]
    """
    return target + (start - target) * (1 - min(max(done, 0.0), 1.0)) ** 3


class Closing:
    """Closes rank entries of tensorized layers in the order of their importance, and keeps them closed.

    Between :meth:`mark`, before a step of the optimizer, and :meth:`hold`, after it, no entry closes or opens: what
    momentum has moved across the threshold is put back. :meth:`close_to` and :meth:`follow` close entries.

    Args:
        layers: tensorized layers, whose cores are distinct.
        order: ``"saliency"``, that over the core entries freed (``"saliency_per_parameter"``), or ``"magnitude"`` of
            the entries.
        may_close_layers: whether a layer may close as a whole.

    Example:
        >>> from comera import TTLinear
        >>> layer = TTLinear(16, 16, (4, 4), (4, 4), ranks=(4, 4, 4))
        >>> closing = Closing([layer], "magnitude")
        >>> _ = layer.diagonals.data.copy_(torch.linspace(0.1, 1.2, 12))
        >>> closing.close_to(100), layer.active_ranks()
        (100, (1, 4, 4))
    """

    def __init__(
        self, layers: Sequence[TensorTrainLayer], order: Order = "saliency", may_close_layers: bool = True
    ) -> None:
        if order not in ORDERS:
            raise ValueError(f"order is {order!r}; allowed: {', '.join(ORDERS)}.")
        self.layers, self.order, self.may_close_layers = list(layers), order, may_close_layers
        self.saliency: list[torch.Tensor] = []  # per layer, of its entries
        self._open: torch.Tensor | None = None  # which entries were, before the step

    @torch.no_grad()
    def mark(self) -> None:
        """Note which entries are open; :meth:`hold` keeps these open and the others closed."""
        diagonals: list[torch.Tensor] = [layer.diagonals for layer in self.layers]
        entries = torch.cat(diagonals)
        self._open = entries.abs() > self._thresholds(entries)

    @torch.no_grad()
    def average(self, scale: float | torch.Tensor = 1.0) -> None:
        """Take the gradients of the task into the averages of the saliencies.

        Args:
            scale: of the gradients, where a scaled loss has not been unscaled yet.
        """
        if self.order == "magnitude":
            return
        diagonals: list[torch.Tensor] = [layer.diagonals for layer in self.layers]
        gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in diagonals]
        slopes = torch.cat(diagonals) * torch.cat(gradients)
        slopes = slopes.abs() / scale
        slopes = torch.where(slopes.isfinite(), slopes, 0.0)  # a step that a scaler leaves out
        past = torch.cat(self.saliency) if self.saliency else torch.zeros_like(slopes)
        sizes = [layer.diagonals.numel() for layer in self.layers]
        self.saliency = list(past.lerp(slopes, 1 - MEMORY).split(sizes))

    @torch.no_grad()
    def hold(self) -> None:
        """Close what has opened since :meth:`mark`, and lift what has closed just above the threshold."""
        if self._open is None:
            return
        diagonals: list[torch.Tensor] = [layer.diagonals for layer in self.layers]
        entries = torch.cat(diagonals)
        thresholds = self._thresholds(entries)
        lifted = torch.where(entries < 0, -_LIFT * thresholds, _LIFT * thresholds)
        held = torch.where(entries.abs() > thresholds, entries, lifted) * self._open
        torch._foreach_copy_(diagonals, list(held.split([each.numel() for each in diagonals])))

    def _thresholds(self, entries: torch.Tensor) -> torch.Tensor:
        of_layers = {layer.threshold for layer in self.layers}
        if len(of_layers) == 1:
            return entries.new_full((), of_layers.pop())
        return torch.cat([torch.full_like(layer.diagonals, layer.threshold) for layer in self.layers])

    @torch.no_grad()
    def close_to(self, size: float, least: float | None = None) -> int:
        """Close entries, the least important first, until at most ``size`` core entries remain.

        Args:
            size: core entries that may remain.
            least: no choice leaves fewer, where another choice does not; None: :data:`LEAST` of ``size``.

        Returns:
            The core entries that remain. They are more than ``size`` where all that could close is closed.
        """
        chains = _OpenBonds(self.layers, self._importances(), self.order == "saliency_per_parameter")
        closed = chains.close_to(size, LEAST * size if least is None else least, self.may_close_layers)
        for layer, places in zip(self.layers, closed, strict=True):
            if places:
                layer.diagonals[torch.tensor(places, device=layer.diagonals.device)] = 0.0
        return chains.size

    def follow(self, step: int, steps: int, start: float, target: float) -> bool:
        """Close what the curve asks for after step ``step`` of ``steps``, in at most a hundred cuts.

        Args:
            step: counted from 1; beyond ``steps`` nothing closes.
            start, target: core entries at both ends of the curve.

        Returns:
            Whether this was the last cut.
        """
        if step < steps and step % max(steps // _CUTS, 1):
            return False
        if step <= steps:
            self.close_to(size_on_curve(step / steps, start, target), LEAST * target)
        return step == steps

    @torch.no_grad()
    def settle(self, size: float, optimizer: torch.optim.Optimizer) -> None:
        """Bring the cores to ``size`` entries by magnitude, and stop what moves the rank entries.

        A step may close many entries at once. Those that it closed open first, so that the largest of them stay.

        Args:
            size: core entries that may remain.
            optimizer: whose momentum of the rank entries is cleared, since it would carry them on.
        """
        self.hold()
        Closing(self.layers, "magnitude", self.may_close_layers).close_to(size)
        for diagonals in (layer.diagonals for layer in self.layers):
            for name, value in optimizer.state.get(diagonals, {}).items():
                if name != "step" and isinstance(value, torch.Tensor) and value.shape == diagonals.shape:
                    value.zero_()
        self.mark()

    @torch.no_grad()
    def keep_layers_open(self) -> None:
        """Open the largest entry of every bond that has no open entry."""
        for layer in self.layers:
            for bond in layer.diagonals.data.split(layer.shape.ranks):
                if bond.numel() and not bool((bond.abs() > layer.threshold).any()):
                    bond[bond.abs().argmax()] = _LIFT * layer.threshold

    def _importances(self) -> list[Numbers]:
        """Return the importance of every entry, per layer; infinite where it is frozen."""
        by_saliency = self.order != "magnitude" and bool(self.saliency)
        found = []
        for number, layer in enumerate(self.layers):
            tensor = self.saliency[number] if by_saliency else layer.diagonals.abs()
            values: Numbers = tensor.double().cpu().numpy()
            if not layer.diagonals.requires_grad:
                values = np.full_like(values, np.inf)
            elif by_saliency and values.any():
                ends = np.cumsum(layer.shape.ranks)[:-1]
                values = values / np.sqrt(max(bond.sum() for bond in np.split(values, ends)))
            found.append(values)
        return found

    def cut(self) -> None:
        """Drop the averages of closed entries, right before the entries themselves are cut."""
        if self.saliency:
            masks = [layer.diagonals.detach().abs() > layer.threshold for layer in self.layers]
            masks = [
                mask & all(layer.active_ranks()) for mask, layer in zip(masks, self.layers, strict=True)
            ]  # a chain with a closed bond loses all of them
            self.saliency = [each[mask] for each, mask in zip(self.saliency, masks, strict=True)]
        self._open = None

    def state_dict(self) -> dict[str, list[list[float]]]:
        """Return the averages as plain numbers, which every format of checkpoints can hold."""
        return {"saliency": [each.tolist() for each in self.saliency]}

    def load_state_dict(self, state: Mapping[str, list[list[float]]]) -> None:
        """Take over :meth:`state_dict`."""
        saved = zip(state["saliency"], self.layers, strict=False)
        self.saliency = [torch.tensor(each, device=to.diagonals.device, dtype=to.diagonals.dtype) for each, to in saved]
        self._open = None


def least_size(layers: Sequence[TensorTrainLayer], may_close_layers: bool) -> int:
    """Return the core entries that remain when all is closed that may close.

    Example:
        >>> from comera import TTLinear
        >>> least_size([TTLinear(16, 16, (4, 4), (4, 4), ranks=4)], may_close_layers=False)
        16
    """
    return 0 if may_close_layers else sum(sum(layer.mode_sizes()) for layer in layers)


class _OpenBonds:
    """Bonds of all layers in flat arrays, for the greedy choice of what closes next.

    Args:
        layers: tensorized layers.
        importances: of the entries of each.
        per_parameter: whether importances count over the core entries that are freed.
    """

    def __init__(self, layers: Sequence[TensorTrainLayer], importances: Sequence[Numbers], per_parameter: bool) -> None:
        self.per_parameter = per_parameter
        self.places: list[npt.NDArray[np.int64]] = []  # per bond: open entries of its layer, least important first
        self.values: list[Numbers] = []  # per bond: their importances
        self.layer_of: list[int] = []
        left, right, before, behind = [], [], [], []
        self.closed: list[list[int]] = [[] for _ in layers]
        for number, (layer, values) in enumerate(zip(layers, importances, strict=True)):
            modes, ranks = layer.mode_sizes(), layer.shape.ranks
            is_open = (layer.diagonals.detach().abs() > layer.threshold).cpu().numpy()
            start = 0
            for bond, rank in enumerate(ranks):
                places = start + np.flatnonzero(is_open[start : start + rank])
                order = places[np.argsort(values[places], kind="stable")]
                here = len(self.places)
                self.places.append(order)
                self.values.append(values[order])
                self.layer_of.append(number)
                left.append(modes[bond])
                right.append(modes[bond + 1])
                before.append(here - 1 if bond else -1)
                behind.append(here + 1 if bond + 1 < len(ranks) else -1)
                start += rank
        self.next = np.zeros(len(self.places), dtype=np.int64)  # per bond: entries closed so far
        self.candidates = np.array([each[0] if len(each) else np.inf for each in self.values])  # per bond: the next
        self.ranks = np.array([*(len(each) for each in self.places), 1], dtype=np.float64)  # the last: ends of chains
        self.left, self.right = np.array(left, dtype=np.float64), np.array(right, dtype=np.float64)
        self.before, self.behind = np.array(before, dtype=np.int64), np.array(behind, dtype=np.int64)
        self.bonds_of = [np.flatnonzero(np.array(self.layer_of) == number) for number in range(len(layers))]
        for bonds in self.bonds_of:  # a chain with a bond without open entries has no entry left
            if len(bonds) and not self.ranks[bonds].all():
                self.ranks[bonds] = 0
        self.size = int(sum(self._size_of(number) for number in range(len(layers))))

    def _size_of(self, number: int) -> float:
        """Return the core entries of a layer."""
        bonds = self.bonds_of[number]
        if not len(bonds):
            return 0.0
        inner = float((self.left[bonds] * self.ranks[self.before[bonds]] * self.ranks[bonds]).sum())
        return inner + float(self.right[bonds[-1]] * self.ranks[bonds[-1]])

    def close_to(self, size: float, least: float, may_close_layers: bool) -> list[list[int]]:
        """Close one entry after another; returns the closed entries of each layer."""
        while self.size > size:
            freed = self.left * self.ranks[self.before] + self.right * self.ranks[self.behind]
            importances = np.where(self.ranks[:-1] > 1, self.candidates, np.inf)
            if may_close_layers:
                for number in {self.layer_of[bond] for bond in np.flatnonzero(self.ranks[:-1] == 1)}:
                    bonds = self.bonds_of[number]
                    last = bonds[self.ranks[bonds] == 1]
                    freed[last] = self._size_of(number)
                    importances[last] = max(self.values[bond][self.next[bond] :].sum() for bond in bonds)
            if self.per_parameter:
                importances = importances / np.maximum(freed, 1.0)
            possible = np.isfinite(importances)
            if not possible.any():
                break
            fitting = possible & (freed <= self.size - least)
            if fitting.any():
                chosen = int(np.argmin(np.where(fitting, importances, np.inf)))
            else:
                chosen = int(np.argmin(np.where(possible, freed, np.inf)))
            self._close(chosen, int(freed[chosen]))
        return self.closed

    def _close(self, bond: int, freed: int) -> None:
        number = self.layer_of[bond]
        if self.ranks[bond] > 1:
            self.closed[number].append(int(self.places[bond][self.next[bond]]))
            self.next[bond] += 1
            self.ranks[bond] -= 1
            self.candidates[bond] = self.values[bond][self.next[bond]]
        else:
            for each in self.bonds_of[number]:
                self.closed[number] += [int(place) for place in self.places[each][self.next[each] :]]
                self.next[each] = len(self.places[each])
                self.ranks[each] = 0
        self.size -= freed
