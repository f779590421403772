"""Recipe of a training step: optimizer, rates, clipping; one for all arms of a comparison.

Matrices are the parameters that stand for the weights of a workload's targets, as
:func:`comera.loops.muon.matrix_parameters` names them: the weight of a dense layer, the cores or factors of another.
They have a rate of their own. Everything else, embeddings and output layer included, is AdamW's in every recipe.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from bench.core.identity import LATER, identity
from bench.protocol import Method
from comera.layers import TensorTrainLayer
from comera.loops.muon import Muon, factor_count, join_matrices, matrix_parameters, split_matrices
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
        per_core: whether the AdamW rate of a core is lr·(D/d)/c, with D inputs of the layer, d of the core and c cores,
            instead of lr for all (the rule of Qiu et al., arXiv 2406.06248, after muP).
        dense_lr: rate of the matrices as long as the model is dense, before it is decomposed; None: ``lr``.
    """

    optimizer: Optimizer
    lr: float | None = None
    lr_rest: float | None = None
    beta2: float = 0.95
    momentum: float = 0.95
    weight_decay: float = 0.0
    clip: float | None = 1.0
    per_core: bool = field(default=False, metadata=LATER)
    dense_lr: float | None = field(default=None, metadata=LATER)

    def identity(self) -> dict[str, Any]:
        """Return the settings that decide a run, as cells hold them."""
        if self.optimizer == "own":
            return {"optimizer": "own", "clip": self.clip}
        values = identity(self)
        if self.optimizer != "muon":
            del values["momentum"]
        return values

    @property
    def of_dense(self) -> "Recipe":
        """The recipe of the dense model before it is decomposed."""
        return replace(self, lr=self.lr if self.dense_lr is None else self.dense_lr)


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
        self._targets = tuple(targets)
        return self._method.adapt(model, targets)

    def decompose(self, model: nn.Module, targets: Mapping[str, Role]) -> nn.Module:
        """Decompose a trained dense model, as the method does that can."""
        self._targets = tuple(targets)
        decomposed: nn.Module = self._method.decompose(model, targets)  # type: ignore[attr-defined]
        return decomposed

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
        matrices = {layer.get_parameter(name): (layer, name) for layer in layers for name in matrix_parameters(layer)}
        optimizer = _adamw(model, set(matrices), recipe.lr, recipe.lr_rest, lr_ranks, betas, decay)
        if recipe.per_core:
            rate_per_core(optimizer, matrices)
        return optimizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)


@torch.no_grad()
def per_core_factors(layer: nn.Module, name: str) -> torch.Tensor:
    """Return the factor of the rate of each entry of a parameter by the rule of :attr:`Recipe.per_core`.

    >>> from comera import BTTLinear
    >>> layer = BTTLinear(16, 16, 4, 4, rank=1)  # 16 inputs in cores of 4 and 4
    >>> per_core_factors(layer, "in_core").unique()
    tensor([2.])
    """
    parameter, inputs, count = layer.get_parameter(name), int(layer.in_features), factor_count(layer)  # type: ignore[arg-type]
    pieces = split_matrices(layer, name, torch.ones_like(parameter))
    return join_matrices(layer, name, [each * (inputs / max(each.shape[1], 1) / count) for each in pieces])


def rate_per_core(optimizer: torch.optim.Optimizer, matrices: Mapping[nn.Parameter, tuple[nn.Module, str]]) -> None:
    """Give every core of these parameters its own rate, by stretching what a step did to it."""
    before: dict[nn.Parameter, torch.Tensor] = {}
    factors = {parameter: per_core_factors(*owner) for parameter, owner in matrices.items()}

    def keep(*_: Any) -> None:
        before.update({parameter: parameter.detach().clone() for parameter in factors})

    @torch.no_grad()
    def stretch(*_: Any) -> None:
        for parameter, factor in factors.items():
            parameter.copy_(torch.addcmul(before[parameter], parameter - before[parameter], factor))
        before.clear()

    optimizer.register_step_pre_hook(keep)
    optimizer.register_step_post_hook(stretch)


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
