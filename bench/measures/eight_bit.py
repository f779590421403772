"""GaLore's 8-bit optimizer against GaLore in float64: ``python -m bench.measures.eight_bit DEVICE`` prints the error.

A program of its own: bitsandbytes, whose kernels the optimizer is made of, looks for a device when it is imported, and
in the bench's other processes it is to find none (:mod:`bench.runner.preload`).
"""

import sys

import torch

from baselines.galore import Settings, _package
from bench.measures.check import relative_error

_STEPS, _RANK, _SHAPE = 8, 32, (256, 384)


def error_on(device: str) -> float:
    """Return the relative error of a weight's movement after some steps with given gradients."""
    torch.manual_seed(0)
    settings = Settings(rank=_RANK)
    start = torch.randn(_SHAPE)
    signal = torch.randn(_SHAPE[0], _RANK) @ torch.randn(_RANK, _SHAPE[1])  # of the rank that is projected on
    gradients = [signal + 0.1 * torch.randn(_SHAPE) for _ in range(_STEPS)]
    moved = []
    for eight_bit in (True, False):
        weight = torch.nn.Parameter(start.to(device) if eight_bit else start.double())
        group = {"params": [weight], "rank": _RANK, "update_proj_gap": settings.update_gap, "scale": settings.scale}
        common = {"params": [{**group, "proj_type": "std"}], "lr": settings.lr_projected, "weight_decay": 0.0}
        if eight_bit:
            optimizer = _package().GaLoreAdamW8bit(**common)
        else:
            optimizer = _package().GaLoreAdamW(**common, eps=settings.eps, no_deprecation_warning=True)
        for gradient in gradients:
            weight.grad = gradient.to(weight)
            optimizer.step()
        moved.append(weight.detach().cpu().double() - start.double())
    return relative_error(moved[:1], moved[1:])


if __name__ == "__main__":
    print(error_on(sys.argv[1]))
