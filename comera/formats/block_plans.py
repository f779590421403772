"""Two ways to multiply activations with a block tensor train, their cost, and the choice between them.

* ``blocks``: the two batched products of :mod:`comera.formats.block_tensor_train`, of the fewest FLOPs.
* ``dense``: the weight is formed from its blocks, then multiplied as any other. It has more FLOPs, and is for devices
  on which products of small blocks are slow.

As with tensor trains, the backward pass costs twice the forward pass in either.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from comera.contraction.plans import BatchedProduct, Machine, Product, ProductSequence, known_machine, least_time
from comera.formats.block_shapes import BTTShape

#: How a layer multiplies; ``auto``: by the plan of least estimated time.
BlockContraction = Literal["blocks", "dense", "auto"]
CONTRACTIONS = get_args(BlockContraction)


@dataclass(frozen=True)
class BlockPlan(ProductSequence):
    """A way to multiply ``tokens`` activations with a block tensor train, forward and backward.

    ``str(plan)`` is its cost card. In it, A and B are the cores, W is the weight that is formed of them.
    """

    shape: BTTShape

    def is_parameter(self, operand: str) -> bool:
        """Return whether it is one of both cores."""
        return operand in ("A", "B")

    def __str__(self) -> str:
        shape = self.shape
        dense = 6 * self.tokens * shape.dense_count
        *products, kept = self.card()
        return "\n".join(
            [
                f"plan {self.name!r} for {self.tokens:,} tokens, {shape.in_features} → {shape.out_features}, "
                f"{shape.out_blocks} x {shape.in_blocks} blocks of rank {shape.rank}",
                *products,
                f"total {self.flops:,} FLOPs: {self.flops / dense:.3g} of a dense layer's {dense:,}",
                kept,
            ]
        )


@lru_cache(maxsize=4096)
def block_candidates(shape: BTTShape, tokens: int) -> tuple[BlockPlan, BlockPlan]:
    """Return the two plans of a block tensor train.

    Example:
        >>> blocks, dense = block_candidates(BTTShape(768, 768, 24, 24, rank=2), tokens=4096)
        >>> print(f"{dense.flops / blocks.flops:.1f}")
        8.0
    """
    j, i, r = shape.in_blocks, shape.out_blocks, shape.rank
    n, m = shape.in_size, shape.out_size
    blocks = (
        BatchedProduct("x", "A", "z", tokens, n, i * r, j),
        BatchedProduct("z", "B", "y", tokens, j * r, m, i),
    )
    dense = (
        BatchedProduct("A", "B", "W", n, r, m, i * j),
        Product("x", "W", "y", tokens, shape.in_features, shape.out_features),
    )
    return BlockPlan("blocks", tokens, blocks, shape), BlockPlan("dense", tokens, dense, shape)


def plan_blocks(shape: BTTShape, tokens: int, machine: Machine | str = "cpu", element_bytes: int = 4) -> BlockPlan:
    """Return the plan of least estimated time for forward and all gradients together.

    Args:
        shape: blocks and rank.
        tokens: the product of all leading dimensions of the activations.
        machine: a :class:`comera.contraction.Machine`, or the name of a known one.
        element_bytes: of one number: 4 for float32, 2 for bfloat16.

    Raises:
        ValueError: no tokens to plan for, or an unknown machine.

    Example:
        >>> plan = plan_blocks(BTTShape(768, 768, 24, 24, rank=2), tokens=4096)
        >>> print(str(plan).splitlines()[0])
        plan 'blocks' for 4,096 tokens, 768 → 768, 24 x 24 blocks of rank 2
    """
    plan: BlockPlan = least_time(block_candidates, shape, tokens, known_machine(machine), element_bytes)
    return plan
