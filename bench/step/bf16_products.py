"""Products of BF16 operands on a CPU that has no instructions for them: the same numbers, by FP32's fast kernels.

PyTorch's own kernels for BF16 are slow there. What they compute is the sum of exact products in FP32, rounded to BF16
once; the same comes from operands that are widened to FP32, multiplied and rounded, up to the order of the sum.
Trainings use it, since their numbers alone count. Whatever times a step does not.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_ATEN = torch.ops.aten

#: By product what computes it into a fresh result; of those in place the first operand is the result.
_FRESH: dict[Any, Any] = {packet: packet.default for packet in (_ATEN.mm, _ATEN.bmm, _ATEN.addmm, _ATEN.baddbmm)}
_IN_PLACE: dict[Any, Any] = {_ATEN.addmm_: _ATEN.addmm.default, _ATEN.baddbmm_: _ATEN.baddbmm.default}


def multiplies_bf16(device: str | torch.device) -> bool:
    """Return whether PyTorch has fast BF16 products on a device: all but CPUs without them in its library."""
    if torch.device(device).type != "cpu":
        return True
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class WidenedProducts(TorchDispatchMode):
    """Within it products with a BF16 operand are computed in FP32 and rounded.

    Example:
        >>> rows, columns = torch.randn(4, 8).bfloat16(), torch.randn(8, 3).bfloat16()
        >>> with WidenedProducts():
        ...     product = rows @ columns
        >>> torch.equal(product, (rows.float() @ columns.float()).bfloat16())
        True
    """

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs, packet = dict(kwargs or {}), func.overloadpacket
        in_fp32 = _FRESH.get(packet) or _IN_PLACE.get(packet)
        if in_fp32 is None or not any(map(_is_bf16, args)):
            return func(*args, **kwargs)
        into = args[0] if packet in _IN_PLACE else kwargs.pop("out", None)
        product = in_fp32(*(one.float() if _is_bf16(one) else one for one in args), **kwargs)
        return product.bfloat16() if into is None else into.copy_(product)


def _is_bf16(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16
