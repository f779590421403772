"""The kernels as operators of torch, so that fake tensors have their shapes without a GPU or Triton.

Shape suffixes as in :mod:`comera.kernels.feed_forward` and :mod:`comera.kernels.epilogue`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from comera.kernels.configurations import Tile

#: Tokens that a program of a columns kernel should at least sum over, and the most parts that there are.
_PART, _PARTS = 1024, 8

#: A multiple of every BLOCK_M, so that the parts of the tokens depend on nothing but their number.
_BLOCKS = 128

#: The most programs of LayerNorm's backward: their sums are then few beside the activations of 16,384 tokens.
_NORM_PROGRAMS = 1024

_LIBRARY = torch.library.Library("comera", "FRAGMENT")
_LIBRARY.define("hidden(str activation, Tensor z1, Tensor right1, Tensor? bias1, Tensor left2) -> Tensor")
_LIBRARY.define(
    "hidden_rows(str activation, Tensor z1, Tensor right1, Tensor? bias1, Tensor left2, Tensor dz2) -> Tensor"
)
_LIBRARY.define(
    "hidden_columns(str activation, Tensor z1, Tensor right1, Tensor? bias1, Tensor left2, Tensor dz2) -> Tensor"
)
_LIBRARY.define(
    "add_norm(Tensor y, Tensor residual, Tensor weight, Tensor shift, float p, float eps, ScalarType dtype)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    tags=(torch.Tag.nondeterministic_seeded,),
)
_LIBRARY.define(
    "add_norm_backward(Tensor dout, Tensor total, Tensor weight, Tensor statistics, Tensor bits, float p,"
    " ScalarType residual_dtype, ScalarType y_dtype) -> (Tensor, Tensor, Tensor)"
)


def _cdiv(count: int, size: int) -> int:
    return -(-count // size)


def _parts(tokens: int) -> tuple[int, int]:
    """Return the number of parts of the tokens, and the tokens of each but the last.

    >>> _parts(0), _parts(3000), _parts(100_000)
    ((1, 128), (2, 1536), (8, 12544))
    """
    wanted = min(max(tokens // _PART, 1), _PARTS)
    part = max(_cdiv(tokens, wanted * _BLOCKS), 1) * _BLOCKS
    return max(_cdiv(tokens, part), 1), part


def _norm_parts(tokens: int) -> tuple[int, int]:
    """Return the same of LayerNorm's backward.

    >>> _norm_parts(0), _norm_parts(5), _norm_parts(16384)
    ((1, 1), (5, 1), (1024, 16))
    """
    part = max(_cdiv(tokens, _NORM_PROGRAMS), 1)
    return max(_cdiv(tokens, part), 1), part


def _over_tokens(tokens: int) -> Callable[[Tile], tuple[int, ...]]:
    """Return a grid of programs with BLOCK_M tokens each."""
    return lambda tile: (_cdiv(tokens, tile["BLOCK_M"]),)


def _over_columns(columns: int, parts: int) -> Callable[[Tile], tuple[int, ...]]:
    """Return a grid of programs with BLOCK_N columns and a part of the tokens each."""
    return lambda tile: (_cdiv(columns, tile["BLOCK_N"]), parts)


def _hidden(
    activation: str, z1: torch.Tensor, right1: torch.Tensor, bias1: torch.Tensor | None, left2: torch.Tensor
) -> torch.Tensor:
    from comera.kernels import feed_forward
    from comera.kernels.launch import launch

    z2 = _hidden_shape(activation, z1, right1, bias1, left2)
    if T := z1.shape[1]:
        given = _hidden_arguments(activation, z1, right1, bias1, left2)
        launch(feed_forward.hidden_forward, _over_tokens(T), (len(right1), len(left2)), **given, z2=z2)
    return z2


def _hidden_shape(
    activation: str,  # noqa: ARG001 - the operator's signature
    z1: torch.Tensor,
    right1: torch.Tensor,  # noqa: ARG001
    bias1: torch.Tensor | None,  # noqa: ARG001
    left2: torch.Tensor,
) -> torch.Tensor:
    return z1.new_empty(left2.shape[0], z1.shape[1])


def _hidden_rows(
    activation: str,
    z1: torch.Tensor,
    right1: torch.Tensor,
    bias1: torch.Tensor | None,
    left2: torch.Tensor,
    dz2: torch.Tensor,
) -> torch.Tensor:
    from comera.kernels import feed_forward
    from comera.kernels.launch import launch

    dz1 = torch.empty_like(z1)
    if T := z1.shape[1]:
        given = _hidden_arguments(activation, z1, right1, bias1, left2) | {"dz2": dz2}
        launch(feed_forward.hidden_backward_rows, _over_tokens(T), (len(right1), len(left2)), **given, dz1=dz1)
    return dz1


def _hidden_rows_shape(
    activation: str,  # noqa: ARG001 - the operator's signature
    z1: torch.Tensor,
    *others: torch.Tensor | None,  # noqa: ARG001
) -> torch.Tensor:
    return torch.empty_like(z1)


def _hidden_columns(
    activation: str,
    z1: torch.Tensor,
    right1: torch.Tensor,
    bias1: torch.Tensor | None,
    left2: torch.Tensor,
    dz2: torch.Tensor,
) -> torch.Tensor:
    """Return parts of the gradients of right1, left2 and bias1: (S, P + Q + 1, H) in FP32."""
    from comera.kernels import feed_forward
    from comera.kernels.launch import launch

    sums = _hidden_columns_shape(activation, z1, right1, bias1, left2, dz2)
    parts, part = _parts(z1.shape[1])
    given = _hidden_arguments(activation, z1, right1, bias1, left2) | {"dz2": dz2}
    over = _over_columns(right1.shape[1], parts)
    launch(feed_forward.hidden_backward_columns, over, (len(right1), len(left2)), **given, sums=sums, part=part)
    return sums


def _hidden_columns_shape(
    activation: str,  # noqa: ARG001 - the operator's signature
    z1: torch.Tensor,
    right1: torch.Tensor,
    bias1: torch.Tensor | None,  # noqa: ARG001
    left2: torch.Tensor,
    dz2: torch.Tensor,  # noqa: ARG001
) -> torch.Tensor:
    (P, H), Q = right1.shape, left2.shape[0]
    return z1.new_empty(_parts(z1.shape[1])[0], P + Q + 1, H, dtype=torch.float32)


def _hidden_arguments(
    activation: str, z1: torch.Tensor, right1: torch.Tensor, bias1: torch.Tensor | None, left2: torch.Tensor
) -> dict[str, Any]:
    """Return the arguments that all three kernels of the hidden features share."""
    return {
        "z1": z1,
        "right1": right1,
        "bias1": bias1,
        "left2": left2,
        "T": z1.shape[1],
        "H": right1.shape[1],
        "P": len(right1),
        "Q": len(left2),
        "HAS_BIAS": bias1 is not None,
        "ACTIVATION": activation,
    }


_Four = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _add_norm(
    y: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    shift: torch.Tensor,
    p: float,
    eps: float,
    dtype: torch.dtype,
) -> _Four:
    from comera.kernels import epilogue

    out, total, statistics, bits = results = _add_norm_shape(y, residual, weight, shift, p, eps, dtype)
    T, M = y.shape
    if T:
        seed = torch.empty(1, dtype=torch.int64, device=y.device).random_() if p else None
        with _on(y):
            epilogue.add_norm_forward[(T,)](
                *(y, residual, weight, shift, seed, out, total, statistics, bits, p, _scale(p), eps, M),
                HAS_DROPOUT=p > 0,
                **_row_tile(M),
            )
    return results


def _add_norm_shape(
    y: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,  # noqa: ARG001 - the operator's signature
    shift: torch.Tensor,  # noqa: ARG001
    p: float,
    eps: float,  # noqa: ARG001
    dtype: torch.dtype,
) -> _Four:
    T, M = y.shape
    total = torch.empty_like(y, dtype=torch.promote_types(y.dtype, residual.dtype))
    statistics = y.new_empty(T, 2, dtype=torch.float32)
    bits = y.new_empty(T, _cdiv(M, 8) if p else 0, dtype=torch.uint8)
    return torch.empty_like(y, dtype=dtype), total, statistics, bits


def _add_norm_backward(
    dout: torch.Tensor,
    total: torch.Tensor,
    weight: torch.Tensor,
    statistics: torch.Tensor,
    bits: torch.Tensor,
    p: float,
    residual_dtype: torch.dtype,
    y_dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    from comera.kernels import epilogue

    results = _add_norm_backward_shape(dout, total, weight, statistics, bits, p, residual_dtype, y_dtype)
    (T, M), (parts, part) = dout.shape, _norm_parts(len(dout))
    with _on(dout):
        epilogue.add_norm_backward[(parts,)](
            *(dout, total, weight, statistics, bits, *results, _scale(p), T, M, part), HAS_DROPOUT=p > 0, **_row_tile(M)
        )
    return results


def _add_norm_backward_shape(
    dout: torch.Tensor,
    total: torch.Tensor,  # noqa: ARG001 - the operator's signature
    weight: torch.Tensor,  # noqa: ARG001
    statistics: torch.Tensor,  # noqa: ARG001
    bits: torch.Tensor,  # noqa: ARG001
    p: float,  # noqa: ARG001
    residual_dtype: torch.dtype,
    y_dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of residual and y, and parts of those of weight and shift: (G, 2, M) in FP32."""
    dresidual, dy = (torch.empty_like(dout, dtype=dtype) for dtype in (residual_dtype, y_dtype))
    return dresidual, dy, dout.new_empty(_norm_parts(len(dout))[0], 2, dout.shape[1], dtype=torch.float32)


def _on(x: torch.Tensor) -> contextlib.AbstractContextManager[object]:
    """Make the device of a tensor the current one, on which Triton launches."""
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()


def _scale(p: float) -> float:
    return 1 / (1 - p) if p < 1 else 0.0


def _row_tile(columns: int) -> dict[str, int]:
    """Return the width of a program that holds a row, and its warps: eight entries of the row for each thread.

    >>> _row_tile(768), _row_tile(20)
    ({'BLOCK': 1024, 'num_warps': 4}, {'BLOCK': 32, 'num_warps': 1})
    """
    block = max(1 << (columns - 1).bit_length(), 32)
    return {"BLOCK": block, "num_warps": min(max(block // 256, 1), 16)}


for _name, _kernel, _shape in (
    ("hidden", _hidden, _hidden_shape),
    ("hidden_rows", _hidden_rows, _hidden_rows_shape),
    ("hidden_columns", _hidden_columns, _hidden_columns_shape),
    ("add_norm", _add_norm, _add_norm_shape),
    ("add_norm_backward", _add_norm_backward, _add_norm_backward_shape),
):
    _LIBRARY.impl(_name, _kernel, "CUDA")
    _LIBRARY.impl(_name, _kernel, "CPU")  # in Triton's interpreter
    torch.library.register_fake(f"comera::{_name}", _shape, lib=_LIBRARY)
