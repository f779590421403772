"""Formats of a weight beside the tensor trains: sizes, plans and layer of block tensor trains."""

from comera.formats.block_plans import BlockPlan, block_candidates, plan_blocks

__all__ = ["BlockPlan", "block_candidates", "plan_blocks"]
