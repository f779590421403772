"""LoRA: linear weights are frozen, low-rank adapters beside them train.

Source: arXiv 2106.09685, run by the peft package. A linear target becomes y = x Wᵀ + bias + (alpha / rank) · x Aᵀ Bᵀ
with W (M, N) frozen, A (R, N) Kaiming-uniform and B (M, R) zero, so training starts from the dense model's function.
Embeddings, norms, biases and all other parameters train as in dense training, for every arm alike.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from baselines._arm import (
    TrainedArm,
    check_count,
    check_positive,
    check_variant,
    fused_adamw,
    linear_targets,
    parameters_apart,
    stored_bytes,
)
from baselines._quiet import quiet_import

VARIANTS = ("",)

_ADAPTER = "default"


@dataclass(frozen=True)
class Settings:
    """Hyperparameters of LoRA. The paper states none of them for its comparison.

    Args:
        rank: rank of the adapters. Ours: the rank of the LTE arm.
        alpha: adapters are scaled by ``alpha / rank``. Ours: twice the rank, a common choice.
        lr_adapters: rate of the adapters.
        lr: rate of all other trainable parameters.

    Raises:
        ValueError: when the rank is not a whole number from 1 up, or another number is not finite and above 0.
    """

    rank: int = 32
    alpha: float = 64.0
    lr_adapters: float = 1e-4
    lr: float = 5e-5

    def __post_init__(self) -> None:
        check_count("lora.rank", self.rank)
        check_positive("lora.alpha", self.alpha)
        check_positive("lora.lr_adapters", self.lr_adapters)
        check_positive("lora.lr", self.lr)


class LoRA(TrainedArm):
    """peft's LoRA on the linear targets, without dropout."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def adapt(self, model: nn.Module, targets: Mapping[str, str]) -> nn.Module:
        """Inject adapters into ``model``, whose forward keeps its signature, and freeze the weights beside them."""
        linears = linear_targets(model, targets)
        if not linears:
            return model
        frozen = {id(linear.weight) for linear in linears.values()}
        trainable = [p for p in model.parameters() if p.requires_grad and id(p) not in frozen]
        _inject(model, list(linears), self.settings)
        for parameter in trainable:  # peft has frozen all that is not an adapter
            parameter.requires_grad_(True)
        return model

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return fused AdamW over adapters and, at their own rate, all other trainable parameters."""
        adapters = [parameter for name, parameter in model.named_parameters() if _is_adapter(name)]
        return fused_adamw(
            (adapters, self.settings.lr_adapters),
            (parameters_apart(model, adapters), self.settings.lr),
        )

    def stored_size(self, model: nn.Module) -> int:
        """Return the bytes of the model with its adapters merged into the weights, which is the dense size."""
        return stored_bytes(tensor for name, tensor in model.state_dict().items() if not _is_adapter(name))


def _is_adapter(name: str) -> bool:
    parts = name.split(".")
    return "lora_A" in parts or "lora_B" in parts


def _inject(model: nn.Module, names: list[str], settings: Settings) -> None:
    """Let peft put adapters on exactly the linears called ``names``."""
    with quiet_import():
        import peft
        from peft.tuners.lora import LoraLayer
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    config = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # peft divides by the rank, fractions are fine
        lora_dropout=0.0,
        bias="none",
        target_modules="|".join(re.escape(name) for name in names),  # a pattern for the full name, not a suffix
    )
    # peft moves fresh adapters with Module.to, which fails on fake tensors. So they are made without storage, outside
    # a fake mode if there is one, and get it here: same initialisation, by peft's own function.
    with unset_fake_temporarily():
        peft.inject_adapter_in_model(config, model, adapter_name=_ADAPTER, low_cpu_mem_usage=True)
    for name in names:
        layer: Any = model.get_submodule(name)
        assert isinstance(layer, LoraLayer)
        layer.train(layer.get_base_layer().training)
        weight = layer.get_base_layer().weight
        for half in (layer.lora_A[_ADAPTER], layer.lora_B[_ADAPTER]):
            half.weight = nn.Parameter(torch.empty(half.weight.shape, dtype=weight.dtype, device=weight.device))
        layer.reset_lora_parameters(_ADAPTER, True)


def build(settings: Settings, variant: str = "") -> LoRA:
    """Return the LoRA arm.

    Args:
        settings: hyperparameters.
        variant: ``""``, the only one.

    Raises:
        ValueError: for an unknown variant.

    Example:
        >>> model = nn.Sequential(nn.Linear(6, 4))
        >>> arm = build(Settings(rank=2, alpha=4.0))
        >>> model = arm.adapt(model, {"0": "classifier"})
        >>> [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        ['0.base_layer.bias', '0.lora_A.default.weight', '0.lora_B.default.weight']
    """
    check_variant("lora", variant, VARIANTS)
    return LoRA(settings)
