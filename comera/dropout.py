"""Dropout whose mask is drawn, and kept for backward, as one bit per entry.

On a CPU ``torch.nn.functional.dropout`` draws a number per entry and keeps a mask as wide as the activations. Here 64
entries are drawn at a time: with keep-probability ``0.b₁b₂…bₖ`` in binary, and ``w₁ … wₖ`` random words, the words
``r ← r OR wᵢ`` where ``bᵢ`` is 1, ``r ← r AND wᵢ`` where it is 0, from the last digit to the first, have each bit set
with exactly that probability, all bits independent. k is 16, so the probability is met to 2⁻¹⁷; what is kept is divided
by the probability that is met, so the mean is that of the input.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import handle_torch_function, has_torch_function_unary

_DIGITS = 16
_WORDS_AT_A_TIME = 4096  # the words of all digits then stay in a cache: 512 KiB

_GATHER = 0x0102040810204080  # times eight bytes of 0 or 1: their bits come to lie in the highest byte, in order
_SPREAD = 0x0101010101010101
_ONE_EACH = 0x8040201008040201 - 2**64  # bit i of byte i


def met_probability(p: float) -> float:
    """Return the probability of keeping an entry in place of ``1 - p``: its multiple of 2⁻¹⁶, never 0."""
    return max(round((1 - p) * 2**_DIGITS), 1) / 2**_DIGITS


def _bits_of_seed(seed: torch.Tensor, entries: int, keep: float) -> torch.Tensor:
    words, digits = -(-entries // 64), round(keep * 2**_DIGITS)
    if digits == 2**_DIGITS:
        return torch.full((8 * words,), 255, dtype=torch.uint8)
    source = np.random.SFC64(int(seed))
    drawn = np.empty(words, dtype=np.uint64)
    used = [digits >> place & 1 for place in range(_DIGITS)]
    used = used[used.index(1) + 1 :]  # behind the last digit that is 1, whose word is taken as it is
    for start in range(0, words, _WORDS_AT_A_TIME):
        part = drawn[start : start + _WORDS_AT_A_TIME]
        random = source.random_raw((len(used) + 1) * len(part)).reshape(-1, len(part))
        part[:] = random[0]
        for digit, word in zip(used, random[1:], strict=True):
            (np.bitwise_or if digit else np.bitwise_and)(part, word, out=part)
    return torch.from_numpy(drawn.view(np.uint8))


def _drawn_bits(entries: int, keep: float) -> torch.Tensor:
    return _bits_of_seed(_drawn_seed(), entries, keep)


def _drawn_seed() -> torch.Tensor:
    return torch.randint(2**63 - 1, ())


def _unpacked_bits(bits: torch.Tensor, entries: int) -> torch.Tensor:
    return torch.from_numpy(np.unpackbits(bits.numpy(), count=entries, bitorder="little"))


# Operators, so that fake tensors, which have shapes only, take the drawing as one step. The compiler takes equal calls
# of an operator for one, random or not, but for those of torch: there the seed is drawn by torch and is an argument.
_LIBRARY = torch.library.Library("comera", "FRAGMENT")
_LIBRARY.define("drawn_bits(int entries, float keep) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
_LIBRARY.impl("drawn_bits", _drawn_bits, "CompositeExplicitAutograd")
_LIBRARY.define("bits_of_seed(Tensor seed, SymInt entries, float keep) -> Tensor")
_LIBRARY.impl("bits_of_seed", _bits_of_seed, "CPU")
_LIBRARY.define("unpacked_bits(Tensor bits, SymInt entries) -> Tensor")
_LIBRARY.impl("unpacked_bits", _unpacked_bits, "CPU")


@torch.library.register_fake("comera::drawn_bits", lib=_LIBRARY)
def _(entries: int, keep: float) -> torch.Tensor:  # noqa: ARG001 - the operator's signature
    return torch.empty(-(-entries // 64) * 8, dtype=torch.uint8)


@torch.library.register_fake("comera::bits_of_seed", lib=_LIBRARY)
def _(seed: torch.Tensor, entries: int, keep: float) -> torch.Tensor:  # noqa: ARG001 - the operator's signature
    return torch.empty(-(-entries // 64) * 8, dtype=torch.uint8)


@torch.library.register_fake("comera::unpacked_bits", lib=_LIBRARY)
def _(bits: torch.Tensor, entries: int) -> torch.Tensor:  # noqa: ARG001 - the operator's signature
    return torch.empty(entries, dtype=torch.uint8)


def drawn_bits(entries: int, keep: float) -> torch.Tensor:
    """Draw independent bits, set with probability ``keep``, as uint8: one or more per entry, in words of 64.

    The words are those of numpy's SFC64, seeded by a draw from torch's CPU generator: the same seed of torch gives the
    same bits, and a restored state of it gives them again.
    """
    if torch.compiler.is_compiling():
        return torch.ops.comera.bits_of_seed(_drawn_seed(), entries, keep)
    return torch.ops.comera.drawn_bits(entries, keep)


_FACTORS: dict[tuple[float, torch.dtype], torch.Tensor] = {}


def _factors(scale: float, dtype: torch.dtype) -> torch.Tensor:
    """Return the factors of eight entries for each byte of bits: (256, 8)."""
    if (known := _FACTORS.get((scale, dtype))) is not None and torch._C._len_torch_dispatch_stack() == 0:
        return known
    made = (torch.arange(256)[:, None] >> torch.arange(8) & 1).to(dtype) * scale
    if type(made) is torch.Tensor:  # not a fake one, which has no entries
        _FACTORS[scale, dtype] = made
    return made


def masked(x: torch.Tensor, bits: torch.Tensor, scale: float) -> torch.Tensor:
    """Return ``x`` times ``scale`` where its bit is set, 0 elsewhere.

    Args:
        x: any shape, on the CPU.
        bits: uint8, bit i of byte j for entry 8·j + i.
    """
    if torch.compiler.is_compiling():  # a byte per entry is what compiled loops read fastest
        mask = torch.ops.comera.unpacked_bits(bits, x.numel()).view(x.shape)
        return x * mask.to(x.dtype) * scale
    factors = F.embedding(bits.int(), _factors(scale, x.dtype)).view(-1)
    return factors[: x.numel()].view(x.shape).mul_(x)


class BitDropout(torch.autograd.Function):
    """``masked``, keeping the bits."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, bits: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.save_for_backward(bits)
        ctx.scale = scale
        return masked(x, bits, scale)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        [bits] = ctx.saved_tensors
        return masked(gradient, bits, ctx.scale), None, None


class _NativeDropout(torch.autograd.Function):
    """Dropout by torch's law and random numbers for a GPU, keeping bits instead of bytes."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, p: float, found: list[torch.Tensor]) -> torch.Tensor:
        result, mask = torch.native_dropout(x, p, True)
        found.append(_packed(mask))
        ctx.save_for_backward(*found)
        ctx.scale = 1 / (1 - p)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        [bits] = ctx.saved_tensors
        return _native_masked(gradient, bits, ctx.scale), None, None


def _packed(mask: torch.Tensor) -> torch.Tensor:
    """Pack eight entries of a mask into a byte."""
    bytes_ = F.pad(mask.reshape(-1), (0, -mask.numel() % 8)).view(torch.int64)
    return (bytes_ * _GATHER >> 56).to(torch.uint8)


def _unpacked(bits: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    entries = (bits.long() * _SPREAD & _ONE_EACH).view(torch.uint8).bool()
    return entries[: shape.numel()].view(shape)


def _native_masked(x: torch.Tensor, bits: torch.Tensor, scale: float) -> torch.Tensor:
    result: torch.Tensor = torch.ops.aten.native_dropout_backward(x, _unpacked(bits, x.shape), scale)
    return result


#: How a dropped tensor is made of the input, bits and a scale.
Masked = Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]


def in_bits(x: torch.Tensor, p: float, own_law: bool) -> tuple[torch.Tensor, Masked, torch.Tensor, float]:
    """Return a dropped tensor, and the function, bits and scale that make it of ``x`` once more.

    Args:
        x: any shape.
        p: above 0 and below 1.
        own_law: draw as :func:`dropout` does on a CPU; else as torch does, with its random numbers.
    """
    if own_law:
        scale = 1 / met_probability(p)
        bits = drawn_bits(x.numel(), met_probability(p))
    elif x.is_cuda or _as_on_cuda:
        found: list[torch.Tensor] = []
        return _NativeDropout.apply(x, p, found), _native_masked, found[0], 1 / (1 - p)
    else:
        bits, scale = _packed(torch.empty_like(x).bernoulli_(1 - p).bool()), 1 / (1 - p)
    return BitDropout.apply(x, bits, scale), masked, bits, scale


_as_on_cuda = False


@contextlib.contextmanager
def as_on_cuda() -> Iterator[None]:
    """Have CPU tensors take the form of dropout that CUDA tensors take, for predictions of their memory."""
    global _as_on_cuda
    before, _as_on_cuda = _as_on_cuda, True
    try:
        yield
    finally:
        _as_on_cuda = before


def acts_as_on_cuda() -> bool:
    """Return whether CPU tensors take the form of CUDA tensors here, see :func:`as_on_cuda`."""
    return _as_on_cuda


def dropout(input: torch.Tensor, p: float = 0.5, training: bool = True) -> torch.Tensor:
    """Drop out as ``torch.nn.functional.dropout``; on a CPU the mask takes a bit per entry and less time to draw.

    Off the CPU, in exported programs and within transforms of ``torch.func`` it is torch's own.

    Args:
        input: any shape and floating type.
        p: probability of an entry to become 0; 1 - p is rounded to a multiple of 2⁻¹⁶ on a CPU.

    Raises:
        ValueError: p outside [0, 1].

    Example:
        >>> kept = dropout(torch.ones(1000, 64), 0.2) > 0
        >>> round(kept.double().mean().item(), 1)
        0.8
    """
    if has_torch_function_unary(input):
        return handle_torch_function(dropout, (input,), input, p=p, training=training)
    if not 0 <= p <= 1:
        raise ValueError(f"p is {p}; a probability lies between 0 and 1.")
    if not applies(input, p, training):
        return F.dropout(input, p, training)
    return in_bits(input, p, own_law=True)[0]


def applies(input: torch.Tensor, p: float, training: bool) -> bool:
    """Return whether a mask of bits is drawn."""
    transformed = torch.compiler.is_exporting() or torch._C._are_functorch_transforms_active()
    return training and 0 < p < 1 and input.device.type == "cpu" and not (transformed or _as_on_cuda)


class Dropout(nn.Module):
    """As ``nn.Dropout``, by :func:`dropout`.

    Example:
        >>> Dropout(0.1).eval()(torch.ones(2))
        tensor([1., 1.])
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"p is {p}; a probability lies between 0 and 1.")
        self.p = p

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return dropout(input, self.p, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}"
