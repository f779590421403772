"""Adam's moments in 8 bits, by the update of bitsandbytes, also for gradients that GaLore projects.

Source: Dettmers et al., 8-bit Optimizers via Block-wise Quantization (arXiv 2110.02861). Each moment is a byte per
number and a scale per block of 256. The package's own optimizer classes are not used: GaLore's waits for a GPU in every
step and holds a copy of each weight, and neither lets an update be made within backward.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from baselines._arm import JoinedOptimizer, fused_adamw
from baselines._quiet import quiet_import

#: Entries that share a scale.
_BLOCK = 256

#: Parameters with fewer entries keep moments of 32 bits, as in bitsandbytes.
LEAST = 4096

#: Entries of a parameter's state that torch's loader would turn into the parameter's type.
BYTES = ("state1", "state2")


class EightBitAdamW(torch.optim.Optimizer):
    """AdamW without weight decay, with moments of 8 bits.

    The state of a parameter holds ``state1`` and ``state2`` (bytes, as many as its gradient has entries), ``absmax1``
    and ``absmax2`` (a scale per 256 of them) and ``step``. Where it also has a ``projector``, gradients are projected
    before the update, which is projected back (GaLore).

    Args:
        groups: parameter groups with ``params``, ``lr`` and ``eps``, and whatever else is to stand in them.

    Example:
        >>> weight = nn.Parameter(torch.ones(64, 64))
        >>> optimizer = EightBitAdamW([{"params": [weight], "lr": 0.1, "eps": 1e-8}])
        >>> weight.sum().backward()
        >>> optimizer.step()
        >>> round(weight[0, 0].item(), 3), optimizer.state[weight]["state1"].dtype
        (0.9, torch.uint8)
    """

    def __init__(self, groups: Iterable[Mapping[str, Any]]) -> None:
        super().__init__([dict(group) for group in groups], {"betas": (0.9, 0.999)})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        with torch.enable_grad():
            loss = closure() if closure is not None else None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, self.state[parameter], group)
        return loss

    def _update(
        self, parameter: nn.Parameter, gradient: torch.Tensor, state: dict[str, Any], group: Mapping[str, Any]
    ) -> None:
        step, projector = state.setdefault("step", 0), state.get("projector")
        gradient = (projector.project(gradient, step) if projector else gradient).contiguous()
        if "state1" not in state:
            scales = gradient.new_zeros(-(-gradient.numel() // _BLOCK), dtype=torch.float32)
            for number in "12":
                state[f"state{number}"] = torch.zeros_like(gradient, dtype=torch.uint8)
                state[f"absmax{number}"] = scales.clone()
        state["step"] = step + 1
        moved = torch.zeros_like(gradient) if projector else parameter
        signed, unsigned = self._codes_on(gradient.device)
        beta1, beta2 = group["betas"]
        torch.ops.bitsandbytes.optimizer_update_8bit_blockwise(
            "adam",
            gradient,
            moved,
            state["state1"],
            state["state2"],
            beta1,
            beta2,
            0.0,
            0.0,
            group["eps"],
            step + 1,
            group["lr"],
            signed,
            unsigned,
            state["absmax1"],
            state["absmax2"],
            0.0,
            1.0,
            False,
        )
        if projector:
            parameter.add_(projector.project_back(moved))

    def _codes_on(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the two codes on a device, made once: each step needs them for every parameter."""
        codes = self.__dict__.setdefault("_codes", {})
        if device not in codes:
            signed, unsigned = _codes()
            codes[device] = torch.tensor(signed, device=device), torch.tensor(unsigned, device=device)
        return codes[device]


class EightBitWithFusedAdamW(JoinedOptimizer):
    """AdamW without weight decay, with moments of 8 bits for all but small parameters, which torch's fused AdamW has.

    Args:
        parameters: all that train.
        lr: rate.
        eps: Adam's epsilon.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, eps: float = 1e-8) -> None:
        listed = list(parameters)
        large = [parameter for parameter in listed if parameter.numel() >= LEAST]
        small = [parameter for parameter in listed if parameter.numel() < LEAST]
        parts: list[torch.optim.Optimizer] = [EightBitAdamW([{"params": large, "lr": lr, "eps": eps}])] if large else []
        super().__init__(*parts, *([fused_adamw((small, lr))] if small else []))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore ``state_dict()``; training then goes on as if it had never stopped.

        Raises:
            ValueError: when the parameter groups differ (raised by torch).
        """
        plain = {
            index: {key: value for key, value in state.items() if key not in BYTES}
            for index, state in state_dict["state"].items()
        }
        super().load_state_dict({**state_dict, "state": plain})
        restore_bytes(self, state_dict)


def restore_bytes(optimizer: torch.optim.Optimizer, state_dict: Mapping[str, Any]) -> None:
    """Give an optimizer the moments of 8 bits of its own ``state_dict()``, around torch's loader; see :data:`BYTES`."""
    for old, new in zip(state_dict["param_groups"], optimizer.param_groups, strict=True):
        for index, parameter in zip(old["params"], new["params"], strict=True):
            stored = state_dict["state"].get(index, {})
            moments = {key: stored[key].to(parameter.device, copy=True) for key in BYTES if key in stored}
            optimizer.state[parameter].update(moments)


@functools.cache
def _codes() -> tuple[list[float], list[float]]:
    """Return the 256 values that a byte stands for, with and without a sign."""
    with quiet_import(), unset_fake_temporarily():
        from bitsandbytes.functional import create_dynamic_map

        return create_dynamic_map(signed=True).tolist(), create_dynamic_map(signed=False).tolist()
