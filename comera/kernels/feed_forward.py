"""Kernels between the thin products of a tensorized feed-forward: hidden features never leave the chip.

Shape suffixes: ``T`` tokens, ``H`` hidden features, ``P`` and ``Q`` the middle ranks of the two layers, ``S`` parts of
the tokens. All matrices are row-major, with the rank first, as in :mod:`comera.contraction.merging`, so that loads of
consecutive tokens or hidden features are wide whatever the rank is.

Ranks are padded to a multiple of 32 that tensor cores take (32, 64 or 128) by masks; so are the last tiles of tokens
and hidden features. Products accumulate in FP32, and activations are computed in FP32.

* :func:`hidden_forward`: a program per tile of tokens. It forms ``h`` tile by tile and adds it into its tile of ``z2``.
* :func:`hidden_backward_rows`: a program per tile of tokens. It forms the gradient of ``h`` the same way and adds it
  into its tile of ``dz1``.
* :func:`hidden_backward_columns`: a program per tile of hidden features and part of the tokens. It reads ``z1`` and
  ``dz2`` alone, which are as wide as the ranks, and owns what it writes: no atomics, so two runs of one configuration
  give the same bits. The parts are few and added afterwards.

In each, the matrix with the hidden features is the left operand of the second product, which tensor cores read from
registers. The products with the wide activations, ``x`` by ``left1`` and ``dy`` by ``right2``, are left to cuBLAS: they
read every wide activation once, and fusing them would save only the thin ``z``, 4 % of their traffic.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_tile(matrix, rows, columns, row_count, column_count):
    """Load a tile of a row-major matrix, zero outside of it."""
    inside = (rows < row_count)[:, None] & (columns < column_count)[None, :]
    return tl.load(matrix + rows.to(tl.int64)[:, None] * column_count + columns[None, :], inside, 0.0)


@triton.jit
def store_tile(matrix, tile, rows, columns, row_count, column_count):
    """Write a tile of a row-major matrix, in the matrix's type."""
    inside = (rows < row_count)[:, None] & (columns < column_count)[None, :]
    tl.store(
        matrix + rows.to(tl.int64)[:, None] * column_count + columns[None, :],
        tile.to(matrix.dtype.element_ty),
        inside,
    )


@triton.jit
def normal_law(x):
    """Return Φ(x) and exp(-x²/2), by one exponential: Abramowitz and Stegun 7.1.26, within 7.5e-8 of Φ."""
    bell = tl.exp(-0.5 * x * x)
    t = 1.0 / (1.0 + 0.23164189 * tl.abs(x))
    tail = t * (0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145)))) * bell
    return tl.where(x < 0.0, tail, 1.0 - tail), bell


@triton.jit
def activated(x, ACTIVATION: tl.constexpr):
    """Apply the activation to FP32 values."""
    if ACTIVATION == "gelu":
        below, _ = normal_law(x)
        y = x * below
    elif ACTIVATION == "gelu_tanh":  # (1 + tanh(u)) / 2 = sigmoid(2u)
        y = x * tl.sigmoid(1.5957691216057308 * x * (1.0 + 0.044715 * x * x))
    elif ACTIVATION == "relu":
        y = tl.where(x <= 0.0, 0.0, x)
    else:
        tl.static_assert(ACTIVATION == "silu")
        y = x * tl.sigmoid(x)
    return y


@triton.jit
def slope(x, ACTIVATION: tl.constexpr):
    """Return the derivative of the activation at FP32 values."""
    if ACTIVATION == "gelu":
        below, bell = normal_law(x)
        y = below + x * 0.3989422804014327 * bell
    elif ACTIVATION == "gelu_tanh":
        s = tl.sigmoid(1.5957691216057308 * x * (1.0 + 0.044715 * x * x))
        y = s + x * s * (1.0 - s) * 1.5957691216057308 * (1.0 + 0.134145 * x * x)
    elif ACTIVATION == "relu":
        y = tl.where(x <= 0.0, 0.0, 1.0)
    else:
        tl.static_assert(ACTIVATION == "silu")
        s = tl.sigmoid(x)
        y = s * (1.0 + x * (1.0 - s))
    return y


@triton.jit
def hidden_forward(
    z1,  # (P, T)
    right1,  # (P, H)
    bias1,  # (H,), not read without HAS_BIAS
    left2,  # (Q, H)
    z2,  # (Q, T), written
    T,
    H,
    P,
    Q,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
    PADDED_P: tl.constexpr,
    PADDED_Q: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Compute ``z2 = left2 · activation(z1ᵀ · right1 + bias1)ᵀ`` for BLOCK_M tokens, BLOCK_N features at a time."""
    t = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    p, q = tl.arange(0, PADDED_P), tl.arange(0, PADDED_Q)
    z1_TP = tl.trans(load_tile(z1, p, t, P, T))
    z2_TQ = tl.zeros((BLOCK_M, PADDED_Q), tl.float32)
    for start in range(0, H, BLOCK_N):
        h = start + tl.arange(0, BLOCK_N)
        pre_TH = tl.dot(z1_TP, load_tile(right1, p, h, P, H), input_precision=PRECISION)
        if HAS_BIAS:
            pre_TH += tl.load(bias1 + h, h < H, 0.0).to(tl.float32)[None, :]
        hidden_TH = activated(pre_TH, ACTIVATION).to(z1_TP.dtype)
        z2_TQ = tl.dot(hidden_TH, tl.trans(load_tile(left2, q, h, Q, H)), z2_TQ, input_precision=PRECISION)
    store_tile(z2, tl.trans(z2_TQ), q, t, Q, T)


@triton.jit
def hidden_backward_rows(
    z1,  # (P, T)
    dz2,  # (Q, T)
    right1,  # (P, H)
    bias1,  # (H,), not read without HAS_BIAS
    left2,  # (Q, H)
    dz1,  # (P, T), written
    T,
    H,
    P,
    Q,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
    PADDED_P: tl.constexpr,
    PADDED_Q: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Compute ``dz1 = right1 · (activation'(pre) ∘ (dz2ᵀ · left2))ᵀ`` for BLOCK_M tokens; ``pre`` is formed again."""
    t = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    p, q = tl.arange(0, PADDED_P), tl.arange(0, PADDED_Q)
    z1_TP = tl.trans(load_tile(z1, p, t, P, T))
    dz2_TQ = tl.trans(load_tile(dz2, q, t, Q, T))
    dz1_TP = tl.zeros((BLOCK_M, PADDED_P), tl.float32)
    for start in range(0, H, BLOCK_N):
        h = start + tl.arange(0, BLOCK_N)
        right1_PH = load_tile(right1, p, h, P, H)
        pre_TH = tl.dot(z1_TP, right1_PH, input_precision=PRECISION)
        if HAS_BIAS:
            pre_TH += tl.load(bias1 + h, h < H, 0.0).to(tl.float32)[None, :]
        dhidden_TH = tl.dot(dz2_TQ, load_tile(left2, q, h, Q, H), input_precision=PRECISION)
        dpre_TH = (dhidden_TH * slope(pre_TH, ACTIVATION)).to(z1_TP.dtype)
        dz1_TP = tl.dot(dpre_TH, tl.trans(right1_PH), dz1_TP, input_precision=PRECISION)
    store_tile(dz1, tl.trans(dz1_TP), p, t, P, T)


@triton.jit
def hidden_backward_columns(
    z1,  # (P, T)
    dz2,  # (Q, T)
    right1,  # (P, H)
    bias1,  # (H,), not read without HAS_BIAS
    left2,  # (Q, H)
    sums,  # (S, P + Q + 1, H) in FP32, written: the gradients of right1, left2 and bias1
    T,
    H,
    P,
    Q,
    part,  # tokens of a part
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
    PADDED_P: tl.constexpr,
    PADDED_Q: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Sum over a part of the tokens for the gradients of BLOCK_N hidden features."""
    h = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    p, q = tl.arange(0, PADDED_P), tl.arange(0, PADDED_Q)
    right1_HP, left2_HQ = tl.trans(load_tile(right1, p, h, P, H)), tl.trans(load_tile(left2, q, h, Q, H))
    bias1_H = tl.zeros((BLOCK_N,), tl.float32)
    if HAS_BIAS:
        bias1_H += tl.load(bias1 + h, h < H, 0.0).to(tl.float32)
    dright1_HP = tl.zeros((BLOCK_N, PADDED_P), tl.float32)
    dleft2_HQ = tl.zeros((BLOCK_N, PADDED_Q), tl.float32)
    dbias1_H = tl.zeros((BLOCK_N,), tl.float32)
    first = tl.program_id(1) * part
    for start in range(first, tl.minimum(first + part, T), BLOCK_M):
        t = start + tl.arange(0, BLOCK_M)
        z1_PT, dz2_QT = load_tile(z1, p, t, P, T), load_tile(dz2, q, t, Q, T)  # beyond T, dz2 = 0 adds nothing
        pre_HT = tl.dot(right1_HP, z1_PT, input_precision=PRECISION) + bias1_H[:, None]
        hidden_HT = activated(pre_HT, ACTIVATION).to(z1_PT.dtype)
        dleft2_HQ = tl.dot(hidden_HT, tl.trans(dz2_QT), dleft2_HQ, input_precision=PRECISION)
        dpre_HT = tl.dot(left2_HQ, dz2_QT, input_precision=PRECISION) * slope(pre_HT, ACTIVATION)
        dright1_HP = tl.dot(dpre_HT.to(z1_PT.dtype), tl.trans(z1_PT), dright1_HP, input_precision=PRECISION)
        dbias1_H += tl.sum(dpre_HT, 1)
    sums += tl.program_id(1).to(tl.int64) * (P + Q + 1) * H
    store_tile(sums, tl.trans(dright1_HP), p, h, P, H)
    store_tile(sums + P * H, tl.trans(dleft2_HQ), q, h, Q, H)
    tl.store(sums + (P + Q) * H + h, dbias1_H, h < H)
