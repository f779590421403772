"""The operations CUDA would choose, on CPU tensors: what makes a memory prediction for a GPU possible without one.

PyTorch picks other operations on CUDA than on a CPU for the same module, and they keep other tensors for backward.
Inside :func:`cuda_operations` the dispatcher itself makes CUDA's choice for CPU tensors, so it holds wherever the call
comes from: ``torch.nn``, a functional, C++, peft, Hugging Face. (A mode over Python functions would not see calls made
from inside another one, such as the dropout within ``F.multi_head_attention_forward``.)

Modelled
    * dropout: ``native_dropout``, which keeps a boolean mask (1 byte per element); the CPU's keeps a scaled mask in
      the input's type (4 bytes in float32), comera's a bit on the CPU and torch's own on CUDA;
    * scaled dot-product attention: memory-efficient attention in float32 or with a mask, flash attention in half
      precision without one, plain products where neither kernel takes the shapes. The kernels keep query, key, value,
      output, log-sum-exp and the state of the random numbers; masks become a bias in the query's type, padded to the
      kernel's alignment. An Ampere or later GPU is assumed, and cuDNN's attention off, as every train step of the
      bench has it;
    * autocast: CUDA runs norms, softmax, sums, powers and some losses in float32, the CPU does not;
    * optimizers left to their defaults: CUDA takes the multi-tensor form (:func:`use_cuda_defaults`). Fused ones need
      nothing: their ``step`` counters are tensors of four bytes on either device.

The same on both devices, hence left alone: linear, layer_norm, gelu, tanh, embedding, cross_entropy, element-wise
operations, in-place dropout.

Not modelled
    * the allocator's rounding (512 bytes a tensor, whole blocks when reserved) and its fragmentation;
    * what lives only inside one kernel: cuBLAS workspaces, the float32 sums of flash attention's backward, the sorting
      in embedding's backward, partial sums of layer_norm's backward;
    * the CUDA context, compiled code (torch.compile), convolutions and recurrent layers of cuDNN;
    * ``torch.inference_mode``, which takes the CPU's operations.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from comera.dropout import as_on_cuda

aten = torch.ops.aten

#: Bytes to which the memory-efficient kernel needs rows aligned, elements to which it needs a bias aligned, and the
#: widest head that flash attention takes.
_ROW_ALIGNMENT_BYTES, _BIAS_ALIGNMENT, _FLASH_MAX_HEAD = 16, 8, 256

#: Operations that CUDA's autocast runs in float32 by casting their tensors …
AUTOCAST_FLOAT32 = (
    *("layer_norm", "native_layer_norm", "rms_norm", "group_norm", "cosine_similarity", "dist", "logsumexp"),
    "softplus",
    *("exp", "expm1", "log", "log1p", "log2", "log10", "reciprocal", "rsqrt"),
    *("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar"),
)
#: … and those that it runs in float32 by asking for a float32 result.
AUTOCAST_FLOAT32_RESULT = (
    *("softmax.int", "log_softmax.int", "sum", "sum.dim_IntList", "cumsum", "cumprod"),
    *("linalg_vector_norm", "linalg_matrix_norm"),
)

_active = False


@contextlib.contextmanager
def cuda_operations() -> Iterator[None]:
    """Let CPU tensors take the operations that CUDA tensors would take, in this process, until the block ends.

    Meant for fake tensors (``FakeTensorMode``). Dropout and autocast also run on real CPU tensors; the attention
    kernels do not exist there and raise ``NotImplementedError``. Entering it inside itself raises ``RuntimeError``.

    >>> x = torch.ones(4, requires_grad=True)
    >>> with cuda_operations():
    ...     y = torch.nn.functional.dropout(x, 0.1)
    >>> y.grad_fn.name()
    'NativeDropoutBackward0'
    """
    global _active
    if _active:
        raise RuntimeError("cuda_operations() is active already; it cannot be entered a second time inside itself.")
    _active = True
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("dropout", _dropout, "AutogradCPU")
        library.impl("scaled_dot_product_attention", _attention, "AutogradCPU")
        for names, in_float32 in ((AUTOCAST_FLOAT32, _cast_to_float32), (AUTOCAST_FLOAT32_RESULT, _ask_for_float32)):
            for name in filter(_only_cuda_casts, names):
                packet, _, overload = name.partition(".")
                library.impl(name, in_float32(getattr(getattr(aten, packet), overload or "default")), "AutocastCPU")
        with as_on_cuda():
            yield
    finally:
        library._destroy()
        _active = False


def active() -> bool:
    """Return whether CPU tensors take CUDA's operations here."""
    return _active


def use_cuda_defaults(optimizer: torch.optim.Optimizer) -> None:
    """Have a torch optimizer without an explicit form use that of CUDA parameters, the multi-tensor form.

    That form holds temporaries for all parameters at once, where the loop over parameters holds them for one.
    """
    for group in optimizer.param_groups:
        undecided = "foreach" in group and group["foreach"] is None and group.get("fused") is None
        if undecided and not group.get("differentiable") and not isinstance(group.get("lr"), torch.Tensor):
            group["foreach"] = True


def _dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if not train or p == 0 or x.numel() == 0:
        return x
    if p == 1:
        return x * torch.zeros((), dtype=x.dtype, device=x.device)
    return aten.native_dropout(x, p, True)[0]


def _attention(
    query: torch.Tensor,  # (batch, heads, queries, head width)
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.where(attn_mask, 0.0, torch.full((), float("-inf"), dtype=query.dtype))
    width = query.shape[-1]
    same_shape_class = all(t.dim() == 4 and t.stride(-1) == 1 and t.numel() > 0 for t in (query, key, value))
    half = query.dtype in (torch.float16, torch.bfloat16)
    if same_shape_class and half and attn_mask is None and width == value.shape[-1] and width <= _FLASH_MAX_HEAD:
        if missing := -width % 8:
            scale = width**-0.5 if scale is None else scale
            query, key, value = (F.pad(t, (0, missing)) for t in (query, key, value))
        output = aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]
        return output[..., :width] if missing else output
    aligned = all(t.shape[-1] * t.element_size() % _ROW_ALIGNMENT_BYTES == 0 for t in (query, value))
    if same_shape_class and aligned and not enable_gqa and query.dtype != torch.float64:
        if attn_mask is not None:
            attn_mask = _aligned(attn_mask).expand(*query.shape[:-1], key.shape[-2])
        keep = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, attn_mask, keep, dropout_p, is_causal, scale=scale
        )[0]
    return aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]


def _aligned(bias: torch.Tensor) -> torch.Tensor:
    """Return ``bias``, or a view into a copy whose rows start at multiples of the kernel's alignment."""
    if bias.stride(-1) == 1 and all(step % _BIAS_ALIGNMENT == 0 for step in bias.stride()[:-1]):
        return bias
    keys = bias.shape[-1]
    return F.pad(bias, (0, _BIAS_ALIGNMENT - keys % _BIAS_ALIGNMENT))[..., :keys]


def _only_cuda_casts(name: str) -> bool:
    """Return whether the installed PyTorch treats the operation in CUDA's autocast and leaves it alone in the CPU's."""
    registered = torch._C._dispatch_has_kernel_for_dispatch_key
    return registered(f"aten::{name}", "AutocastCUDA") and not registered(f"aten::{name}", "AutocastCPU")


def _castable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float64


def _cast_to_float32(operation: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map(lambda value: value.float() if _castable(value) else value, (args, kwargs))
        with torch.autocast("cpu", enabled=False):
            return operation(*args, **kwargs)

    return run


def _ask_for_float32(operation: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        asked = any(isinstance(value, torch.dtype) for value in (*args, *kwargs.values()))
        if _castable(args[0]) and not asked:
            kwargs["dtype"] = torch.float32
        with torch.autocast("cpu", enabled=False):
            return operation(*args, **kwargs)

    return run
