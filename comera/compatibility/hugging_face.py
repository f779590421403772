"""Classes of the package transformers that comera handles: by their names, so that it need not be installed.

``Conv1D`` is the linear layer of GPT-2, ``y = x · weight + bias`` with a weight of shape (N, M), the transpose of what
``nn.Linear`` keeps. Activations are modules of their own there.
"""

from __future__ import annotations

import torch
from torch import nn

CONV1D = "transformers.pytorch_utils.Conv1D"
PRETRAINED_MODEL = "transformers.modeling_utils.PreTrainedModel"

#: Functions that activation modules compute, up to rounding, as :data:`comera.functional.ACTIVATIONS` names it.
ACTIVATIONS = {
    "transformers.activations.GELUActivation": "gelu",
    "transformers.activations.GELUTanh": "gelu_tanh",
    "transformers.activations.NewGELUActivation": "gelu_tanh",
    "transformers.activations.SiLUActivation": "silu",
}


def class_name(kind: type) -> str:
    """Return the full name of a class.

    Example:
        >>> class_name(nn.Linear)
        'torch.nn.modules.linear.Linear'
    """
    return f"{kind.__module__}.{kind.__qualname__}"


def is_pretrained_model(module: nn.Module) -> bool:
    """Return whether a module is a model of transformers, with its own ``save_pretrained`` and ``from_pretrained``.

    Example:
        >>> is_pretrained_model(nn.Linear(2, 2))
        False
    """
    return any(class_name(kind) == PRETRAINED_MODEL for kind in type(module).__mro__)


def is_conv1d(module: nn.Module) -> bool:
    """Return whether a module is a ``Conv1D``, or of a class derived from it.

    Example:
        >>> is_conv1d(nn.Linear(2, 2))
        False
    """
    return any(class_name(kind) == CONV1D for kind in type(module).__mro__)


def is_linear(module: nn.Module) -> bool:
    """Return whether a module is an ``nn.Linear`` or a ``Conv1D``, or of a class derived from one of them.

    Example:
        >>> is_linear(nn.Linear(2, 2)), is_linear(nn.Embedding(2, 2))
        (True, False)
    """
    return isinstance(module, nn.Linear) or is_conv1d(module)


def linear_weight(module: nn.Module) -> torch.Tensor:
    """Return the weight of an ``nn.Linear`` or a ``Conv1D`` as the former has it: (M, N).

    Example:
        >>> linear_weight(nn.Linear(2, 3)).shape
        torch.Size([3, 2])
    """
    weight = module.weight
    assert isinstance(weight, torch.Tensor)
    return weight.t() if is_conv1d(module) else weight
