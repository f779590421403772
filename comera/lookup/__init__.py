"""Rows of a TTM table without forming the table, and sums of them by bags."""

from comera.lookup.bags import BAG_MODES, BagMode, ttm_bags
from comera.lookup.rows import VARIANTS, Variant, ttm_rows

__all__ = ["BAG_MODES", "VARIANTS", "BagMode", "Variant", "ttm_bags", "ttm_rows"]
