"""Kernels after the last thin product: ``LayerNorm(residual + dropout(z2ᵀ · right2 + bias2))``, and its backward.

They are kernels of their own, and not the tail of :func:`comera.kernels.feed_forward.hidden_forward`: what passes
between is ``z2``, 2·Q of at least 2·(N + M) elements per token, and for these few percent of the traffic a program of
both would hold the tiles of both, at one size for all. On their own they also follow an attention's output layer.

Shape suffixes: ``T`` tokens, ``M`` out-features, ``Q`` the rank, ``S`` parts of the tokens, ``G`` programs.

What LayerNorm normalises is never written: it is formed from ``z2`` and the residual in each pass that needs it, twice
per kernel, since a thin product costs less than a read. Statistics are combined tile by tile (Chan, Golub and LeVeque)
in FP32. Dropout replays its mask from a Philox counter, the token and the group of four out-features, under a key that
lies on the device, so that each replay of a CUDA Graph draws another one.
"""

from __future__ import annotations

import triton
import triton.language as tl

from comera.kernels.feed_forward import load_tile, store_tile


@triton.jit
def dropout_factors(seed, t, first_column, p, scale, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return dropout's factors for a tile: ``scale`` or 0. A counter gives four neighbouring columns their bits."""
    token = t[:, None] + tl.zeros((BLOCK_M, BLOCK_N // 4), tl.int32)
    group = first_column // 4 + tl.arange(0, BLOCK_N // 4)[None, :] + tl.zeros((BLOCK_M, BLOCK_N // 4), tl.int32)
    b0, b1, b2, b3 = tl.philox(tl.load(seed), group, token, token * 0, token * 0)
    bits = tl.reshape(tl.join(tl.join(b0, b2), tl.join(b1, b3)), (BLOCK_M, BLOCK_N))
    return tl.where((bits >> 8).to(tl.float32) * 5.9604644775390625e-08 >= p, scale, 0.0)


@triton.jit
def summed_tile(
    z2_TQ,
    right2,
    bias2,
    residual,
    seed,
    t,
    n,
    start,
    p,
    scale,
    T,
    M,
    Q,
    HAS_BIAS: tl.constexpr,
    HAS_DROPOUT: tl.constexpr,
    PRECISION: tl.constexpr,
    PADDED_Q: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Return a tile of LayerNorm's input, in FP32; zero beyond M."""
    y_TM = tl.dot(z2_TQ, load_tile(right2, tl.arange(0, PADDED_Q), n, Q, M), input_precision=PRECISION)
    if HAS_BIAS:
        y_TM += tl.load(bias2 + n, n < M, 0.0).to(tl.float32)[None, :]
    if HAS_DROPOUT:
        y_TM *= dropout_factors(seed, t, start, p, scale, BLOCK_M, BLOCK_N)
    return y_TM + load_tile(residual, t, n, T, M).to(tl.float32)


@triton.jit
def add_norm_forward(
    z2,  # (Q, T)
    right2,  # (Q, M)
    bias2,  # (M,), not read without HAS_BIAS
    residual,  # (T, M)
    weight,  # (M,)
    shift,  # (M,)
    seed,  # (1,) int64, not read without HAS_DROPOUT
    out,  # (T, M), written
    statistics,  # (2, T) in FP32, written: means, and reciprocals of standard deviations
    p,
    scale,
    eps,
    T,
    M,
    Q,
    HAS_BIAS: tl.constexpr,
    HAS_DROPOUT: tl.constexpr,
    PRECISION: tl.constexpr,
    PADDED_Q: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Compute BLOCK_M tokens, BLOCK_N out-features at a time: a pass for the statistics, one for the result."""
    t = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    z2_TQ = tl.trans(load_tile(z2, tl.arange(0, PADDED_Q), t, Q, T))
    mean_T, squares_T = tl.zeros((BLOCK_M,), tl.float32), tl.zeros((BLOCK_M,), tl.float32)
    for start in range(0, M, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        u_TM = summed_tile(
            z2_TQ,
            right2,
            bias2,
            residual,
            seed,
            t,
            n,
            start,
            p,
            scale,
            T,
            M,
            Q,
            HAS_BIAS,
            HAS_DROPOUT,
            PRECISION,
            PADDED_Q,
            BLOCK_M,
            BLOCK_N,
        )
        count = tl.minimum(M - start, BLOCK_N).to(tl.float32)
        tile_mean_T = tl.sum(u_TM, 1) / count
        deviation_TM = tl.where((n < M)[None, :], u_TM - tile_mean_T[:, None], 0.0)
        difference_T = tile_mean_T - mean_T
        share = count / (start + count)
        mean_T += difference_T * share
        squares_T += tl.sum(deviation_TM * deviation_TM, 1) + difference_T * difference_T * start * share
    scale_T = 1.0 / tl.sqrt(squares_T / M + eps)
    tl.store(statistics + t, mean_T, t < T)
    tl.store(statistics + T + t, scale_T, t < T)
    for start in range(0, M, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        u_TM = summed_tile(
            z2_TQ,
            right2,
            bias2,
            residual,
            seed,
            t,
            n,
            start,
            p,
            scale,
            T,
            M,
            Q,
            HAS_BIAS,
            HAS_DROPOUT,
            PRECISION,
            PADDED_Q,
            BLOCK_M,
            BLOCK_N,
        )
        weight_M = tl.load(weight + n, n < M, 0.0).to(tl.float32)
        shift_M = tl.load(shift + n, n < M, 0.0).to(tl.float32)
        normal_TM = (u_TM - mean_T[:, None]) * scale_T[:, None]
        store_tile(out, normal_TM * weight_M[None, :] + shift_M[None, :], t, n, T, M)


@triton.jit
def add_norm_backward_rows(
    z2,  # (Q, T)
    right2,  # (Q, M)
    bias2,  # (M,), not read without HAS_BIAS
    residual,  # (T, M)
    weight,  # (M,)
    seed,  # (1,) int64, not read without HAS_DROPOUT
    statistics,  # (2, T) in FP32
    dout,  # (T, M)
    dresidual,  # (T, M), written
    dz2,  # (Q, T), written
    sums,  # (G, 2, M) in FP32, written: the gradients of weight and shift
    p,
    scale,
    T,
    M,
    Q,
    HAS_BIAS: tl.constexpr,
    HAS_DROPOUT: tl.constexpr,
    PRECISION: tl.constexpr,
    PADDED_Q: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Compute gradients of BLOCK_M tokens: a pass for the two means in that of LayerNorm, one for the result."""
    t = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    q = tl.arange(0, PADDED_Q)
    z2_TQ = tl.trans(load_tile(z2, q, t, Q, T))
    mean_T = tl.load(statistics + t, t < T, 0.0)
    scale_T = tl.load(statistics + T + t, t < T, 0.0)
    of_ones_T, of_normal_T = tl.zeros((BLOCK_M,), tl.float32), tl.zeros((BLOCK_M,), tl.float32)
    for start in range(0, M, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        u_TM = summed_tile(
            z2_TQ,
            right2,
            bias2,
            residual,
            seed,
            t,
            n,
            start,
            p,
            scale,
            T,
            M,
            Q,
            HAS_BIAS,
            HAS_DROPOUT,
            PRECISION,
            PADDED_Q,
            BLOCK_M,
            BLOCK_N,
        )
        normal_TM = (u_TM - mean_T[:, None]) * scale_T[:, None]
        weight_M = tl.load(weight + n, n < M, 0.0).to(tl.float32)
        dnormal_TM = load_tile(dout, t, n, T, M).to(tl.float32) * weight_M[None, :]
        of_ones_T += tl.sum(dnormal_TM, 1) / M
        of_normal_T += tl.sum(dnormal_TM * normal_TM, 1) / M
    dz2_TQ = tl.zeros((BLOCK_M, PADDED_Q), tl.float32)
    sums += tl.program_id(0).to(tl.int64) * 2 * M
    for start in range(0, M, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        u_TM = summed_tile(
            z2_TQ,
            right2,
            bias2,
            residual,
            seed,
            t,
            n,
            start,
            p,
            scale,
            T,
            M,
            Q,
            HAS_BIAS,
            HAS_DROPOUT,
            PRECISION,
            PADDED_Q,
            BLOCK_M,
            BLOCK_N,
        )
        normal_TM = (u_TM - mean_T[:, None]) * scale_T[:, None]
        weight_M = tl.load(weight + n, n < M, 0.0).to(tl.float32)
        dout_TM = load_tile(dout, t, n, T, M).to(tl.float32)
        tl.store(sums + n, tl.sum(dout_TM * normal_TM, 0), n < M)
        tl.store(sums + M + n, tl.sum(dout_TM, 0), n < M)
        dnormal_TM = dout_TM * weight_M[None, :]
        du_TM = (dnormal_TM - of_ones_T[:, None] - normal_TM * of_normal_T[:, None]) * scale_T[:, None]
        store_tile(dresidual, du_TM, t, n, T, M)
        if HAS_DROPOUT:
            du_TM *= dropout_factors(seed, t, start, p, scale, BLOCK_M, BLOCK_N)
        right2_QM = load_tile(right2, q, n, Q, M)
        dz2_TQ = tl.dot(du_TM.to(z2_TQ.dtype), tl.trans(right2_QM), dz2_TQ, input_precision=PRECISION)
    store_tile(dz2, tl.trans(dz2_TQ), q, t, Q, T)


@triton.jit
def add_norm_backward_columns(
    z2,  # (Q, T)
    dresidual,  # (T, M)
    seed,  # (1,) int64, not read without HAS_DROPOUT
    sums,  # (S, Q + 1, M) in FP32, written: the gradients of right2 and bias2
    p,
    scale,
    T,
    M,
    Q,
    part,  # tokens of a part
    HAS_DROPOUT: tl.constexpr,
    PRECISION: tl.constexpr,
    PADDED_Q: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Sum over a part of the tokens for the gradients of BLOCK_N out-features."""
    column = tl.program_id(0) * BLOCK_N
    n = column + tl.arange(0, BLOCK_N)
    q = tl.arange(0, PADDED_Q)
    dright2_QM = tl.zeros((PADDED_Q, BLOCK_N), tl.float32)
    dbias2_M = tl.zeros((BLOCK_N,), tl.float32)
    first = tl.program_id(1) * part
    for start in range(first, tl.minimum(first + part, T), BLOCK_M):
        t = start + tl.arange(0, BLOCK_M)
        dy_TM = load_tile(dresidual, t, n, T, M).to(tl.float32)
        if HAS_DROPOUT:
            dy_TM *= dropout_factors(seed, t, column, p, scale, BLOCK_M, BLOCK_N)
        z2_QT = load_tile(z2, q, t, Q, T)
        dright2_QM = tl.dot(z2_QT, dy_TM.to(z2_QT.dtype), dright2_QM, input_precision=PRECISION)
        dbias2_M += tl.sum(dy_TM, 0)
    sums += tl.program_id(1).to(tl.int64) * (Q + 1) * M
    store_tile(sums, dright2_QM, q, n, Q, M)
    tl.store(sums + Q * M + n, dbias2_M, n < M)
