"""Arithmetic of a step: the precisions, and models that multiply in FP8 or whose weights are BF16.

``fp8`` is what the paper calls FP8-mix: the products of the linear targets in FP8, forward and backward, all else in
FP32. Dense layers get theirs from torchao (``convert_to_float8_training``), tensorized and two-factor ones from
:mod:`comera.low_precision`. A device without FP8 products computes them emulated: operands are rounded to FP8, and
multiplied in FP32. What was done to a model is read off the model (:func:`arithmetic_of`) and recorded.
"""

import dataclasses
import functools
import warnings
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import nn

from baselines._quiet import quiet_import
from bench.protocol import Method, Role
from bench.protocol.recipe import adapted_targets
from comera.layers import DIAGONALS
from comera.low_precision import FP8, MULTIPLE, use_fp8
from comera.low_precision.scaling import Kernel
from comera.protocol import LINEAR_ROLES

#: In what arithmetic the forward and backward run; a property of the step, the same for every method.
Precision = Literal["fp32", "tf32", "bf16", "bf16_weights", "fp8"]
PRECISIONS: tuple[str, ...] = get_args(Precision)

#: Precisions in which measures of single products, or of errors beside float64, make sense.
PLAIN = ("fp32", "tf32", "bf16")

#: By which rate of a device products are bounded: a key of :attr:`bench.estimate.devices.Device.peak_flops`.
RATES = {name: "bf16" if name == "bf16_weights" else name for name in PRECISIONS}


def precision_unsupported(precision: str, device: str | torch.device) -> str | None:
    """Explain why ``device`` does not support ``precision``, one of :data:`PRECISIONS`; None if it does.

    >>> precision_unsupported("tf32", "cpu")
    'precision=tf32 needs a CUDA device, this one is cpu; use fp32 or bf16.'
    """
    kind = torch.device(device).type
    if precision not in PRECISIONS:
        raise ValueError(f"precision is {precision!r}; allowed: {', '.join(PRECISIONS)}.")
    if precision == "tf32" and kind != "cuda":
        return f"precision=tf32 needs a CUDA device, this one is {kind}; use fp32 or bf16."
    return None


def _linear_targets(model: nn.Module, targets: Mapping[str, Role]) -> dict[str, nn.Module]:
    modules = dict(model.named_modules(remove_duplicate=False))
    return {name: modules[name] for name, role in targets.items() if role in LINEAR_ROLES and name in modules}


def fp8_unsupported(precision: str, model: nn.Module, targets: Mapping[str, Role]) -> str | None:
    """Explain why an adapted model cannot multiply in FP8; None if it can, or in another precision. Shapes are enough.

    >>> fp8_unsupported("fp8", nn.Sequential(nn.Bilinear(16, 16, 16)), {"0": "feed_forward"})
    "precision=fp8 has no FP8 products for 0, which is torch's Bilinear; use fp32 or bf16."
    """
    if precision != "fp8":
        return None
    layers = _linear_targets(model, targets)
    if not layers:
        return f"precision={precision} needs linear layers among the targets, this model has none; use fp32 or bf16."
    for name, layer in layers.items():
        if type(layer) is not nn.Linear and not hasattr(type(layer), "fp8"):
            kind = f"{type(layer).__module__.partition('.')[0]}'s {type(layer).__name__}"
            return f"precision={precision} has no FP8 products for {name}, which is {kind}; use fp32 or bf16."
    return None


def adapted_model(
    method: Method, dense: nn.Module, targets: Mapping[str, Role], precision: str, kernel: Kernel
) -> nn.Module:
    """Return a dense model as a method trains it, in the arithmetic of a step, before its optimizer is built.

    Args:
        targets: of the workload.
        kernel: who multiplies in FP8, if anyone does: :func:`comera.low_precision.scaling.kernel_on` of the device.
    """
    model = method.adapt(dense, targets)
    if precision == "bf16_weights":
        to_bf16(model)
    elif precision == "fp8":
        to_fp8(model, adapted_targets(method, model, targets), kernel)
    return model


def to_bf16(model: nn.Module) -> None:
    """Hold all parameters in bfloat16, and so their gradients and optimizer states, but for rank-control entries.

    An entry moves by about its learning rate, which is less than bfloat16 resolves at 1.

    >>> model = nn.Linear(2, 2)
    >>> to_bf16(model)
    >>> model.weight.dtype
    torch.bfloat16
    """
    for name, parameter in model.named_parameters():
        if name.rpartition(".")[2] != DIAGONALS and parameter.is_floating_point():
            parameter.data = parameter.data.to(torch.bfloat16)


def to_fp8(model: nn.Module, targets: Mapping[str, Role], kernel: Kernel) -> None:
    """Have the linear targets of an adapted model multiply in FP8, in place; their parameters stay the same objects.

    A dense layer whose sizes are no multiples of 16 stays as it is.

    Args:
        kernel: ``"native"`` or ``"emulated"``.

    Raises:
        ValueError: see :func:`fp8_unsupported`.
    """
    if reason := fp8_unsupported("fp8", model, targets):
        raise ValueError(reason)
    layers = _linear_targets(model, targets)
    dense = {name for name, layer in layers.items() if type(layer) is nn.Linear}
    for name in layers.keys() - dense:
        use_fp8(layers[name], FP8(kernel=kernel))
    if dense:
        _convert_dense(model, dense, kernel)


def _convert_dense(model: nn.Module, names: set[str], kernel: Kernel) -> None:
    """Swap dense layers for torchao's."""
    torchao = _torchao()
    config = torchao.Float8LinearConfig.from_recipe_name("tensorwise")
    # Tokens are what the gradient of a weight is summed over; torchao pads them to a multiple of 16.
    config = dataclasses.replace(config, emulate=kernel == "emulated", pad_inner_dim=True)

    def chosen(module: nn.Module, name: str) -> bool:
        return name in names and not any(size % MULTIPLE for size in module.get_parameter("weight").shape)

    torchao.convert_to_float8_training(model, module_filter_fn=chosen, config=config)


@functools.cache
def _torchao() -> Any:
    """Return the part of torchao that converts models, without its notes on what it lacks on this machine."""
    with quiet_import(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torchao.float8
    return torchao.float8


def arithmetic_of(model: nn.Module, precision: str) -> str:
    """Describe how each part of a model multiplies, from its layers; for records.

    >>> from comera import TT, tensorize
    >>> model = tensorize(nn.Sequential(nn.Linear(64, 64)), {"0": TT(ranks=4)}, fp8=FP8(kernel="emulated"))
    >>> arithmetic_of(model, "fp8"), arithmetic_of(nn.Linear(2, 2), "bf16")
    ('fp8 emulated in 1 of 1 linear layers (comera.low_precision, tensor current)', 'bf16')
    """
    if precision != "fp8":
        return precision
    ways: Counter[tuple[str, str]] = Counter()
    for module in model.modules():
        own = getattr(module, "fp8", None)
        if type(module).__name__ == "Float8Linear":
            config: Any = module.config
            ways["emulated" if config.emulate else "native", "torchao, tensor current"] += 1
        elif isinstance(own, FP8):
            ways[own.kernel or "", "comera.low_precision, tensor current"] += 1
        elif isinstance(module, nn.Linear) or hasattr(type(module), "fp8"):
            ways["", ""] += 1
    linear = ways.total()
    parts = [f"fp8 {kind} in {ways[kind, by]} of {linear} linear layers ({by})" for kind, by in ways if by]
    return "; ".join(parts) or f"fp32 in all {linear} linear layers"
