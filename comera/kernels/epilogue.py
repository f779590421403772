"""Kernels of a sub-layer's end: ``LayerNorm(residual + dropout(y))``, and its backward.

Every wide tensor passes once. Forward reads ``y`` and ``residual``, writes the sum and the result; backward reads the
gradient and the sum and writes two gradients. Dropout is drawn in forward alone, by Philox under a key that lies on the
device, so that each replay of a CUDA Graph draws another mask; backward reads it as one bit per entry.

Shape suffixes: ``T`` tokens, ``M`` features, ``G`` programs. A program holds a whole row, so statistics need one pass.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def kept_entries(seed, t, p, BLOCK: tl.constexpr):
    """Return which entries of row t dropout keeps. One call of Philox serves four neighbours."""
    group = tl.arange(0, BLOCK // 4)
    token = group * 0 + t
    b0, b1, b2, b3 = tl.philox(tl.load(seed), group, token, group * 0, group * 0)
    drawn = tl.reshape(tl.join(tl.join(b0, b2), tl.join(b1, b3)), (BLOCK,))
    return (drawn >> 8).to(tl.float32) * 5.9604644775390625e-08 >= p


@triton.jit
def add_norm_forward(
    y,  # (T, M)
    residual,  # (T, M)
    weight,  # (M,)
    shift,  # (M,)
    seed,  # (1,) int64, not read without HAS_DROPOUT
    out,  # (T, M), written
    total,  # (T, M), written: residual + dropout(y)
    statistics,  # (T, 2) in FP32, written: mean, and reciprocal of the standard deviation
    bits,  # (T, M / 8) uint8, written with HAS_DROPOUT
    p,
    scale,
    eps,
    M,
    HAS_DROPOUT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute one token."""
    t = tl.program_id(0)
    n = tl.arange(0, BLOCK)
    inside = n < M
    row = t.to(tl.int64) * M + n
    u_M = tl.load(y + row, inside, 0.0).to(tl.float32)
    if HAS_DROPOUT:
        kept = kept_entries(seed, t, p, BLOCK)
        u_M = tl.where(kept, u_M * scale, 0.0)
        places = tl.arange(0, 8)[None, :]
        packed = tl.sum(tl.reshape(kept.to(tl.int32), (BLOCK // 8, 8)) << places, 1)
        byte = tl.arange(0, BLOCK // 8)
        bytes_of_row = (M + 7) // 8
        tl.store(bits + t.to(tl.int64) * bytes_of_row + byte, packed.to(tl.uint8), byte < bytes_of_row)
    u_M = (u_M + tl.load(residual + row, inside, 0.0).to(tl.float32)).to(total.dtype.element_ty)
    tl.store(total + row, u_M, inside)
    u_M = u_M.to(tl.float32)
    mean = tl.sum(tl.where(inside, u_M, 0.0), 0) / M
    centred_M = tl.where(inside, u_M - mean, 0.0)
    factor = 1.0 / tl.sqrt(tl.sum(centred_M * centred_M, 0) / M + eps)
    tl.store(statistics + 2 * t, mean)
    tl.store(statistics + 2 * t + 1, factor)
    weight_M = tl.load(weight + n, inside, 0.0).to(tl.float32)
    shift_M = tl.load(shift + n, inside, 0.0).to(tl.float32)
    tl.store(out + row, (centred_M * factor * weight_M + shift_M).to(out.dtype.element_ty), inside)


@triton.jit
def add_norm_backward(
    dout,  # (T, M)
    total,  # (T, M)
    weight,  # (M,)
    statistics,  # (T, 2) in FP32
    bits,  # (T, M / 8) uint8, not read without HAS_DROPOUT
    dresidual,  # (T, M), written
    dy,  # (T, M), written
    sums,  # (G, 2, M) in FP32, written: parts of the gradients of weight and shift
    scale,
    T,
    M,
    part,  # tokens of a program
    HAS_DROPOUT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute the gradients of a part of the tokens, one after another."""
    n = tl.arange(0, BLOCK)
    inside = n < M
    weight_M = tl.load(weight + n, inside, 0.0).to(tl.float32)
    dweight_M, dshift_M = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    first = tl.program_id(0) * part
    for t in range(first, tl.minimum(first + part, T)):
        row = tl.cast(t, tl.int64) * M + n
        mean, factor = tl.load(statistics + 2 * t), tl.load(statistics + 2 * t + 1)
        normal_M = tl.where(inside, (tl.load(total + row, inside, 0.0).to(tl.float32) - mean) * factor, 0.0)
        dout_M = tl.load(dout + row, inside, 0.0).to(tl.float32)
        dweight_M += dout_M * normal_M
        dshift_M += dout_M
        dnormal_M = dout_M * weight_M
        of_normal = tl.sum(dnormal_M * normal_M, 0) / M
        du_M = (dnormal_M - tl.sum(dnormal_M, 0) / M - normal_M * of_normal) * factor
        tl.store(dresidual + row, du_M.to(dresidual.dtype.element_ty), inside)
        if HAS_DROPOUT:
            packed_M = tl.load(bits + tl.cast(t, tl.int64) * ((M + 7) // 8) + n // 8, inside, 0).to(tl.int32)
            du_M = tl.where((packed_M >> (n % 8)) & 1 == 1, du_M * scale, 0.0)
        tl.store(dy + row, du_M.to(dy.dtype.element_ty), inside)
    sums += tl.program_id(0).to(tl.int64) * 2 * M
    tl.store(sums + n, dweight_M, inside)
    tl.store(sums + M + n, dshift_M, inside)
