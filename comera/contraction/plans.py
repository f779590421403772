"""Plans for the product of activations with a TT matrix: which matrix products, in which order, at what cost.

The cores ``G1 … G[2d]`` of a TT matrix (N, M) stand in a row, input modes first. A plan cuts the row into segments,
merges the cores of each segment among themselves, and lets the activations meet the segments one after another
(paper, section 4). Named plans:

* ``cores``: every core a segment of its own. Nothing is merged; right for few tokens.
* ``halves``: input cores in one segment, output cores in the other. Leading cost 2·B·R·(N + M); right for many tokens.
* ``dense``: all cores in one segment, the matrix itself. Leading cost 2·B·N·M; right where R(N + M) exceeds N·M.
* ``halves in`` and ``halves out``: input cores, or output cores, in one segment, the others on their own.

The backward pass of a product costs twice its forward pass, and both gradients use what the forward pass formed, so one
plan is forward and all gradients together. The features' digits are laid out such that no plan ever permutes
activations: on both sides the mode at the end of the chain is the fastest digit (:mod:`comera.tensor_train`). A plan is
run by :func:`comera.contraction.planned.tt_linear`.

Symbols: ``B`` tokens, ``N`` in-features, ``M`` out-features, ``R`` middle rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import torch

from comera.compatibility.autocast import autocast_type
from comera.dropout import acts_as_on_cuda
from comera.tensor_train import TTShape

#: First and last core of a segment, counted from 0.
Segment = tuple[int, int]

#: Addresses this far apart share their low bits, by which a cache chooses the set.
_PAGE_BYTES = 4096

#: Bytes of a number of bfloat16 or float16.
_HALF_BYTES = 2

#: A core by its number, or two trees whose results are multiplied.
Tree = int | tuple["Tree", "Tree"]


@dataclass(frozen=True)
class Machine:
    """A device in the cost model: the time of a matrix product, from its arithmetic, its bytes and its launch.

    A product of (m × k) by (k × n) takes ``overhead_s`` plus the larger of ``2mkn / flops_per_s``, stretched by
    ``1 + thin/d`` for each of its three dimensions d, and its operands and result divided by ``bytes_per_s``. A result
    whose rows lie a multiple of 4 KiB apart counts ``aliasing`` times: its rows compete for the same sets of a cache.
    Each byte kept for the backward pass costs another ``1 / bytes_per_s``.

    Args:
        name: of the device.
        flops_per_s: of large FP32 products.
        bytes_per_s: of memory.
        overhead_s: of one operation, launch and bookkeeping.
        thin: the dimension at which a product reaches half of its arithmetic rate.
        aliasing: how many times slower such a result is written.
        half_flops_per_s: of large products of two-byte numbers; None where they are no faster.
        tf32_flops_per_s: of large FP32 products where TF32 is allowed; None where they are no faster.
    """

    name: str
    flops_per_s: float
    bytes_per_s: float
    overhead_s: float
    thin: float
    aliasing: float = 1.0
    half_flops_per_s: float | None = None
    tf32_flops_per_s: float | None = None

    def seconds(self, product: Product, element_bytes: int) -> float:
        """Return the estimated time of one product."""
        stretch = math.prod(1 + self.thin / max(size, 1) for size in (product.rows, product.inner, product.columns))
        rate = self.half_flops_per_s if self.half_flops_per_s and element_bytes <= _HALF_BYTES else self.flops_per_s
        arithmetic = product.flops * stretch / rate
        moved = float(product.numbers * element_bytes)
        row_bytes = product.columns * element_bytes
        if product.rows > 1 and row_bytes % _PAGE_BYTES == 0:
            moved += (self.aliasing - 1) * product.batch * product.rows * row_bytes
        return self.overhead_s + max(arithmetic, moved / self.bytes_per_s)


_H100 = Machine("H100", 5.0e13, 2.5e12, 6e-6, 32.0, half_flops_per_s=6.0e14, tf32_flops_per_s=3.0e14)

#: Only ratios of the entries matter for a choice. Those of the CPU are borne out by a recorded grid of shapes
#: (``results/reference/contraction``). Those of CUDA are three quarters of a data sheet's rates, 0.6 of those of tensor
#: cores; no record supports them yet. A GPU without an entry counts as ``cuda``.
MACHINES = {
    "cpu": Machine("two CPU cores", 1.2e11, 2.0e10, 12e-6, 4.0, aliasing=3.0),
    "cuda": _H100,
    "H200": replace(_H100, name="H200", bytes_per_s=3.6e12),
}


def machine_of(x: torch.Tensor) -> Machine:
    """Return the machine that products of ``x`` run on, with the rate of TF32 where that is allowed.

    Example:
        >>> machine_of(torch.ones(2)).name
        'two CPU cores'
    """
    if not (x.is_cuda or acts_as_on_cuda()):
        return MACHINES["cpu"]
    return _gpu(x.device.index if x.is_cuda else None, torch.backends.cuda.matmul.fp32_precision == "tf32")


@cache
def _gpu(index: int | None, tf32: bool) -> Machine:
    name = "" if index is None else torch.cuda.get_device_name(index)
    machine = next((each for known, each in MACHINES.items() if known in name), MACHINES["cuda"])
    return replace(machine, flops_per_s=machine.tf32_flops_per_s) if tf32 and machine.tf32_flops_per_s else machine


def element_bytes_of(x: torch.Tensor) -> int:
    """Return the bytes of a number in the products of ``x``: under autocast those of its type.

    Example:
        >>> with torch.autocast("cpu", torch.bfloat16):
        ...     element_bytes_of(torch.ones(2)), element_bytes_of(torch.ones(2, dtype=torch.float64))
        (2, 8)
    """
    kind = autocast_type(x.device.type)
    return x.element_size() if kind is None or x.dtype == torch.float64 else kind.itemsize


def known_machine(machine: Machine | str) -> Machine:
    """Return the machine ``machine`` names; raises ValueError for an unknown name."""
    if isinstance(machine, Machine):
        return machine
    if machine not in MACHINES:
        raise ValueError(f"machine is {machine!r}; known: {', '.join(MACHINES)}.")
    return MACHINES[machine]


@dataclass(frozen=True)
class Product:
    """One matrix product: ``rows × inner`` by ``inner × columns``.

    ``left`` and ``right`` name the operands, ``result`` what is formed.
    """

    left: str
    right: str
    result: str
    rows: int
    inner: int
    columns: int

    batch = 1  # so many of them at once, see BatchedProduct

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.batch * self.rows * self.inner * self.columns

    @property
    def numbers(self) -> int:
        """Entries read and written."""
        left, right = self.rows * self.inner, self.inner * self.columns
        return self.batch * (left + right + self.rows * self.columns)

    def gradients(self) -> tuple[Product, Product]:
        """Return the products that carry the result's gradient to the two operands."""
        d, turned = "d" + self.result, (f"{self.left}ᵀ", f"{self.right}ᵀ")
        of_left = replace(self, left=d, right=turned[1], result=f"d{self.left}", inner=self.columns, columns=self.inner)
        of_right = replace(self, left=turned[0], right=d, result=f"d{self.right}", rows=self.inner, inner=self.rows)
        return of_left, of_right


@dataclass(frozen=True)
class BatchedProduct(Product):
    """``batch`` products of one size at once, each of operands of its own."""

    batch: int = 1


@dataclass(frozen=True)
class ProductSequence:
    """The products by which a layer multiplies activations with its weight, and what they cost.

    Args:
        name: of the sequence among the ways to contract a layer.
        tokens: rows of activations.
        products: of the forward pass, in order.
    """

    name: str
    tokens: int
    products: tuple[Product, ...]

    def is_parameter(self, operand: str) -> bool:
        """Return whether an operand of this name is a parameter, which is there under every plan."""
        raise NotImplementedError

    @property
    def backward(self) -> tuple[Product, ...]:
        """The products of the backward pass, in its order."""
        return tuple(gradient for product in reversed(self.products) for gradient in product.gradients())

    @property
    def flops(self) -> int:
        """FLOPs of the forward and the backward pass."""
        return 3 * self.forward_flops

    @property
    def forward_flops(self) -> int:
        return sum(product.flops for product in self.products)

    @property
    def saved(self) -> int:
        """Entries kept for the backward pass, parameters not counted: activations and what was formed of parameters."""
        kept = {}
        for product in self.products:
            kept[product.left] = product.batch * product.rows * product.inner
            kept[product.right] = product.batch * product.inner * product.columns
        return sum(size for name, size in kept.items() if not self.is_parameter(name))

    @property
    def largest(self) -> int:
        """Entries of the largest intermediate result."""
        return max(product.batch * product.rows * product.columns for product in self.products)

    def seconds(self, machine: Machine | str = "cpu", element_bytes: int = 4) -> float:
        """Return the estimated time of forward and backward pass on a :class:`Machine`, or on one given by name."""
        machine = known_machine(machine)
        steps = sum(machine.seconds(product, element_bytes) for product in (*self.products, *self.backward))
        return steps + self.saved * element_bytes / machine.bytes_per_s

    def card(self, element_bytes: int = 4) -> list[str]:
        """Return lines that list all products with their shapes, FLOPs and bytes, and the tensors kept."""
        head = f"  {'product':<18}   {'':<8} {'shapes':<34} {'FLOPs':>15} {'MiB moved':>10}"
        kept, largest = (numbers * element_bytes / 2**20 for numbers in (self.saved, self.largest))
        return [
            "forward",
            head,
            *_lines(self.products, element_bytes),
            "backward",
            *_lines(self.backward, element_bytes),
            f"kept for backward {kept:.3f} MiB, largest intermediate {largest:.3f} MiB",
        ]


@dataclass(frozen=True)
class Plan(ProductSequence):
    """A way to multiply ``tokens`` activations with a TT matrix, forward and backward.

    ``str(plan)`` is its cost card.
    """

    shape: TTShape
    segments: tuple[Segment, ...]
    trees: tuple[Tree, ...]

    def is_parameter(self, operand: str) -> bool:
        """Return whether it is a single core, not a merged one."""
        return operand[0] == "G" and operand[1:].isdigit()

    def __str__(self) -> str:
        return cost_card(self)


def _joined(first: int, last: int) -> str:
    """Return the name of a segment: ``G3``, or ``G1-3`` for merged cores."""
    return f"G{first + 1}" if first == last else f"G{first + 1}-{last + 1}"


def _rank_before(shape: TTShape, core: int) -> int:
    return shape.core_shapes[core][0]


def _rank_behind(shape: TTShape, core: int) -> int:
    return shape.core_shapes[core][2]


def _modes(shape: TTShape, first: int, last: int) -> int:
    """Return the product of the modes of some cores; 1 for none."""
    return math.prod(core[1] for core in shape.core_shapes[first : last + 1])


@lru_cache(maxsize=4096)
def _cheapest_merge(shape: TTShape, first: int, last: int) -> tuple[int, Tree]:
    """Return FLOPs and order of the cheapest merge of neighbouring cores, by dynamic programming over the cuts."""
    if first == last:
        return 0, first
    options = []
    for cut in range(first, last):
        left_flops, left = _cheapest_merge(shape, first, cut)
        right_flops, right = _cheapest_merge(shape, cut + 1, last)
        flops = _merge(shape, first, cut, last).flops + left_flops + right_flops
        options.append((flops, cut, (left, right)))
    flops, _, tree = min(options, key=lambda option: option[:2])
    return flops, tree


def _merge(shape: TTShape, first: int, cut: int, last: int) -> Product:
    """Return the product of cores ``first`` to ``cut``, merged, with those behind them up to ``last``."""
    rows = _rank_before(shape, first) * _modes(shape, first, cut)
    columns = _modes(shape, cut + 1, last) * _rank_behind(shape, last)
    names = (_joined(first, cut), _joined(cut + 1, last), _joined(first, last))
    return Product(*names, rows, _rank_behind(shape, cut), columns)


def _span(tree: Tree) -> Segment:
    """Return first and last core of a tree."""
    if isinstance(tree, int):
        return tree, tree
    return _span(tree[0])[0], _span(tree[1])[1]


def _merges(shape: TTShape, tree: Tree) -> list[Product]:
    """Return the products that merge a segment, in order."""
    if isinstance(tree, int):
        return []
    (first, cut), (_, last) = _span(tree[0]), _span(tree[1])
    return [*_merges(shape, tree[0]), *_merges(shape, tree[1]), _merge(shape, first, cut, last)]


def rows_of(shape: TTShape, tokens: int, segment: Segment) -> int:
    """Return the rows of activations that meet a segment: tokens, in-modes to come, out-modes already there."""
    first, last = segment
    return tokens * _modes(shape, last + 1, shape.half - 1) * _modes(shape, shape.half, first - 1)


def _meeting(shape: TTShape, tokens: int, segment: Segment) -> tuple[int, int, int]:
    """Return rows, inner and columns of the product in which the activations meet a segment."""
    first, last = segment
    inner = _modes(shape, first, min(last, shape.half - 1)) * _rank_before(shape, first)
    columns = _modes(shape, max(first, shape.half), last) * _rank_behind(shape, last)
    return rows_of(shape, tokens, segment), inner, columns


def _from_the_ends(shape: TTShape) -> tuple[Tree, Tree]:
    """Return the merges of the two halves, each from its end of the chain to the middle: the way of ``merge_cores``."""
    left: Tree = 0
    for core in range(1, shape.half):
        left = (left, core)
    right: Tree = 2 * shape.half - 1
    for core in range(2 * shape.half - 2, shape.half - 1, -1):
        right = (core, right)
    return left, right


def _plan(name: str, shape: TTShape, tokens: int, segments: Sequence[Segment]) -> Plan:
    if name == "halves":
        trees: tuple[Tree, ...] = _from_the_ends(shape)
    else:
        trees = tuple(_cheapest_merge(shape, *segment)[1] for segment in segments)
    products = [product for tree in trees for product in _merges(shape, tree)]
    activation = "x"
    for number, segment in enumerate(segments, start=1):
        result = "y" if number == len(segments) else f"z{number}"
        products.append(Product(activation, _joined(*segment), result, *_meeting(shape, tokens, segment)))
        activation = result
    return Plan(name, tokens, tuple(products), shape, tuple(segments), trees)


@lru_cache(maxsize=4096)
def candidates(shape: TTShape, tokens: int) -> tuple[Plan, ...]:
    """Return the named plans for a TT matrix and a number of tokens; of those that are alike, the first.

    Example:
        >>> shape = TTShape(768, 768, (12, 8, 8), (8, 8, 12), 30)
        >>> [plan.name for plan in candidates(shape, 128)]
        ['halves', 'cores', 'dense', 'halves in', 'halves out']
    """
    half, cores = shape.half, range(2 * shape.half)
    left, right = (0, half - 1), (half, 2 * half - 1)
    singles = [(core, core) for core in cores]
    named = {
        "halves": [left, right],
        "cores": singles,
        "dense": [(0, 2 * half - 1)],
        "halves in": [left, *singles[half:]],
        "halves out": [*singles[:half], right],
    }
    plans = [_plan(name, shape, tokens, segments) for name, segments in named.items()]
    return tuple({plan.segments: plan for plan in reversed(plans)}.values())[::-1]


def plan_contraction(shape: TTShape, tokens: int, machine: Machine | str = "cpu", element_bytes: int = 4) -> Plan:
    """Return the plan of least estimated time for forward and all gradients together.

    Args:
        shape: modes and ranks.
        tokens: B, the product of all leading dimensions of the activations.
        machine: a :class:`Machine`, or the name of a known one.
        element_bytes: of one number: 4 for float32, 2 for bfloat16.

    Raises:
        ValueError: no tokens to plan for, or an unknown machine.

    Example:
        >>> shape = TTShape(768, 768, (12, 8, 8), (8, 8, 12), 30)
        >>> plan_contraction(shape, tokens=4096).name
        'halves'
    """
    plan: Plan = least_time(candidates, shape, tokens, known_machine(machine), element_bytes)
    return plan


@lru_cache(maxsize=4096)
def least_time(
    candidates: Callable[[Any, int], Iterable[Any]], shape: Any, tokens: int, machine: Machine, element_bytes: int
) -> Any:
    """Return the plan of least estimated time of those that ``candidates`` gives for a shape and a number of tokens.

    Raises ValueError: no tokens to plan for.
    """
    if tokens < 1:
        raise ValueError(f"tokens is {tokens}; it must be at least 1.")
    return min(candidates(shape, tokens), key=lambda plan: plan.seconds(machine, element_bytes))


#: How many times faster than joint halves a plan has to be by the estimate, which does not count that the plan scales
#: and rearranges cores for each layer.
_MARGIN = 2.0


@lru_cache(maxsize=4096)
def joint_halves_pay(shape: TTShape, tokens: int, machine: Machine, element_bytes: int) -> bool:
    """Return whether halves that are merged together with those of other layers beat a layer's own plan.

    Such a merge has next to no launches of its own.

    Example:
        >>> shape = TTShape(768, 768, (12, 8, 8), (8, 8, 12), 150)
        >>> [joint_halves_pay(shape, tokens, MACHINES["cpu"], 4) for tokens in (1, 128)]
        [False, True]
    """
    plan = plan_contraction(shape, tokens, machine, element_bytes)
    halves = candidates(shape, tokens)[0]
    merges = len(halves.products) - len(halves.segments)
    joint = halves.seconds(machine, element_bytes) - 3 * merges * machine.overhead_s  # forward and two gradients
    return joint <= _MARGIN * plan.seconds(machine, element_bytes)


def _shapes(product: Product) -> str:
    shapes = f"({product.rows} x {product.inner}) ({product.inner} x {product.columns})"
    return shapes if product.batch == 1 else f"{product.batch} of {shapes}"


def _lines(products: Iterable[Product], element_bytes: int) -> list[str]:
    return [
        f"  {product.left + ' · ' + product.right:<18} = {product.result:<8} {_shapes(product):<34} "
        f"{product.flops:>15,} {product.numbers * element_bytes / 2**20:>10.3f}"
        for product in products
    ]


def cost_card(plan: Plan, element_bytes: int = 4) -> str:
    """Return a plan step by step, and its total beside that of the dense matrix and of the plain left-to-right order.

    Example:
        >>> shape = TTShape(768, 768, (12, 8, 8), (8, 8, 12), 30)
        >>> print(str(plan_contraction(shape, tokens=4096)).splitlines()[0])
        plan 'halves' for 4,096 tokens, 768 → 768, modes 12·8·8 → 8·8·12, ranks 12, 30, 30, 30, 12
    """
    shape = plan.shape
    modes = " → ".join("·".join(map(str, side)) for side in (shape.in_modes, shape.out_modes))
    dense = 6 * plan.tokens * shape.in_features * shape.out_features
    naive = next(other for other in candidates(shape, plan.tokens) if len(other.segments) == 2 * shape.half)
    *products, kept = plan.card(element_bytes)
    return "\n".join(
        [
            f"plan {plan.name!r} for {plan.tokens:,} tokens, {shape.in_features} → {shape.out_features}, "
            f"modes {modes}, ranks {', '.join(map(str, shape.ranks))}",
            *products,
            f"total {plan.flops:,} FLOPs: {plan.flops / dense:.3g} of a dense layer's {dense:,}, "
            f"{plan.flops / naive.flops:.3g} of the left-to-right order's {naive.flops:,}",
            kept,
        ]
    )
