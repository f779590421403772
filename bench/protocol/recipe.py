"""Recipe of a training step: optimizer, rates, clipping; one for all arms of a comparison.

Matrices are the parameters that stand for the weights of a workload's targets, as
:func:`comera.loops.muon.matrix_parameters` names them: the weight of a dense layer, the cores or factors of another.
They have a rate of their own. Everything else, embeddings and output layer included, is AdamW's in every recipe.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from bench.protocol import Method
from comera.layers import TensorTrainLayer
from comera.loops.muon import Muon, matrix_parameters
from comera.protocol import Optimizer, Role


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The way a step updates a model.

    Args:
        optimizer: ``adamw``; or ``muon``, which is Muon for the matrices and AdamW for the rest
            (:class:`comera.Muon`); or ``own``, the method's, which has rates among its own settings.
        lr: rate of the matrices.
        lr_rest: of everything else but rank-control entries, whose rate is ``settings.comera.lr_ranks``.
        beta2: of AdamW; its beta1 is 0.9.
        momentum: of Muon.
        weight_decay: decoupled, of matrices and of all other parameters with two dimensions or more.
        clip: the norm to which the gradient of all parameters together is cut; None: it is left as it is.
    """

    optimizer: Optimizer
    lr: float | None = None
    lr_rest: float | None = None
    beta2: float = 0.95
    momentum: float = 0.95
    weight_decay: float = 0.0
    clip: float | None = 1.0

    def identity(self) -> dict[str, Any]:
        """Return the settings that decide a run, as cells hold them."""
        if self.optimizer == "own":
            return {"optimizer": "own", "clip": self.clip}
        values = asdict(self)
        if self.optimizer != "muon":
            del values["momentum"]
        return values


def recipe_unsupported(recipe: Recipe, method: Method, arm: str) -> str | None:
    """Explain why an arm cannot be trained by a recipe; None if it can.

    >>> from baselines import galore
    >>> recipe_unsupported(Recipe(optimizer="muon"), galore.build(galore.Settings()), "galore")
    'training.optimizer is muon, by which galore cannot be trained; allowed for it: own.'
    """
    if recipe.optimizer in method.optimizers:
        return None
    allowed = ", ".join(method.optimizers)
    return f"training.optimizer is {recipe.optimizer}, by which {arm} cannot be trained; allowed for it: {allowed}."


def adapted_targets(method: Method, adapted: nn.Module, targets: Mapping[str, Role]) -> Mapping[str, Role]:
    """Return the targets of an adapted model: those of the workload, or what a method says that changes the blocks."""
    targets_in: Callable[[nn.Module, Mapping[str, Role]], Mapping[str, Role]] | None
    targets_in = getattr(method, "targets_in", None)
    return targets if targets_in is None else targets_in(adapted, targets)


class Prescribed:
    """A method that adapts the model as another does, and is trained by a recipe.

    It has the form of :class:`bench.protocol.Method`, so that training, timing and predictions treat both alike.

    Attributes:
        clip: the norm to which a step cuts gradients, or None.
    """

    def __init__(self, method: Method, recipe: Recipe) -> None:
        self._method, self.recipe, self.clip = method, recipe, recipe.clip
        self._targets: tuple[str, ...] = ()
        if recipe.optimizer != "own":
            method.leave_optimizer_to_plan()

    def adapt(self, model: nn.Module, targets: Mapping[str, Role]) -> nn.Module:
        """Adapt the model, whose targets have the matrices."""
        adapted = self._method.adapt(model, targets)
        self._targets = tuple(adapted_targets(self._method, adapted, targets))
        return adapted

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Build the recipe's optimizer, or with ``own`` the method's."""
        recipe = self.recipe
        if recipe.optimizer == "own":
            return self._method.optimizer(model)
        assert recipe.lr is not None
        assert recipe.lr_rest is not None
        layers = [model.get_submodule(name) for name in self._targets]
        lr_ranks = float(getattr(getattr(self._method, "settings", None), "lr_ranks", 1e-3))
        betas, decay = (0.9, recipe.beta2), recipe.weight_decay
        if recipe.optimizer == "muon":
            rates = recipe.lr, lr_ranks, recipe.lr_rest
            return Muon(model, *rates, recipe.momentum, betas, weight_decay=decay, layers=layers)
        matrices = {layer.get_parameter(name) for layer in layers for name in matrix_parameters(layer)}
        return _adamw(model, matrices, recipe.lr, recipe.lr_rest, lr_ranks, betas, decay)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)


def _adamw(
    model: nn.Module,
    matrices: set[nn.Parameter],
    lr: float,
    lr_rest: float,
    lr_ranks: float,
    betas: tuple[float, float],
    decay: float,
) -> torch.optim.AdamW:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    entries = {module.diagonals for module in model.modules() if isinstance(module, TensorTrainLayer)}
    rest = [each for each in trained if each not in matrices and each not in entries]
    groups: list[dict[str, Any]] = [
        {"name": "matrices", "params": [each for each in trained if each in matrices], "lr": lr, "weight_decay": decay},
        {"name": "ranks", "params": [each for each in trained if each in entries], "lr": lr_ranks, "weight_decay": 0.0},
        {"name": "wide", "params": [each for each in rest if each.ndim > 1], "lr": lr_rest, "weight_decay": decay},
        {"name": "flat", "params": [each for each in rest if each.ndim < 2], "lr": lr_rest, "weight_decay": 0.0},
    ]
    on_cuda = any(parameter.is_cuda for parameter in trained)
    groups = [group for group in groups if group["params"]]
    optimizer = torch.optim.AdamW(groups, betas=betas, weight_decay=0.0, fused=True, capturable=on_cuda)
    optimizer._warned_capturable_if_run_uncaptured = True  # it costs nothing outside a capture
    return optimizer
