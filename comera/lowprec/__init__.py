"""FP8: products of scaled operands, and storage of activations in blocks.

The two gain in different places. A rank-wide product is bound by the bytes that it reads and writes, so multiplying in
FP8 (:mod:`comera.lowprec.products`) cannot make it faster than BF16 does; what is *kept* in FP8
(:mod:`comera.lowprec.storage`) has half of BF16's bytes. Dense products in FP8 are torchao's, not ours.
"""

from comera.lowprec.products import FP8, AmaxHistory, product, products_on, thin_linear, use_fp8
from comera.lowprec.scaling import FORWARD, GRADIENTS, MULTIPLE, Quantized, quantize, scaled_product
from comera.lowprec.storage import InBlocks, recorded_errors

__all__ = [
    "FORWARD",
    "FP8",
    "GRADIENTS",
    "MULTIPLE",
    "AmaxHistory",
    "InBlocks",
    "Quantized",
    "product",
    "products_on",
    "quantize",
    "recorded_errors",
    "scaled_product",
    "thin_linear",
    "use_fp8",
]
