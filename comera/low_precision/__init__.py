"""FP8: products of scaled operands.

A rank-wide product is bound by the bytes that it reads and writes, so multiplying in FP8 cannot make it faster than
BF16 does. Dense products in FP8 are torchao's, not ours.
"""

from comera.low_precision.products import FP8, product, products_on, thin_linear, use_fp8
from comera.low_precision.scaling import FORWARD, GRADIENTS, MULTIPLE, Quantized, quantize, scaled_product

__all__ = [
    "FORWARD",
    "FP8",
    "GRADIENTS",
    "MULTIPLE",
    "Quantized",
    "product",
    "products_on",
    "quantize",
    "scaled_product",
    "thin_linear",
    "use_fp8",
]
