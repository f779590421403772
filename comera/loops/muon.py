"""Muon for matrices, cores and blocks, and AdamW for everything else, in one optimizer.

Muon (Jordan et al., 2024, kellerjordan.github.io/posts/muon) steps along the momentum with its singular values set to
about 1. Here the matrices are

* the weight of an ``nn.Linear``, or of a ``Conv1D`` of transformers, as it is; of a layer that computes its weight, as
  by ``parametrize``, none;
* each core of a :class:`comera.TTLinear`, as the factor it is in the product: (R'·n, R) on the input side, (R', m·R) on
  the output side, where R' and R are the ranks before and behind it and n or m its mode;
* each block of the two cores of a :class:`comera.BTTLinear`, and of a :class:`comera.GroupedLinear`;
* what any other module names in a method ``matrix_parameters()``: parameters whose product is its weight. They have the
  shape (outputs, inputs), as ``nn.Linear`` keeps its weight, unless the module turns them into matrices itself
  (:class:`MatrixLayer`).

With m the average of the gradient, g its Nesterov form, d inputs and e outputs of a matrix, and c the number of factors
that the weight is a product of::

    m ← μ·m + (1 - μ)·gradient,   g = (1 - μ)·gradient + μ·m
    matrix ← matrix - lr · √(e/d)/c · orthogonal(g)

so that a step changes the weight by about lr·√(M/N) in the spectral norm, however it is factored (the scale is that of
Yang et al., arXiv 2310.17813). ``orthogonal`` is five steps of Newton and Schulz; matrices of one shape go through them
together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim.adam import adam

from comera.compatibility.arguments import check_module, check_number, shown
from comera.compatibility.hugging_face import is_conv1d, is_linear
from comera.layers import TensorTrainLayer, TTLinear
from comera.modes import check_size
from comera.recomputing import blocks_of
from comera.tensor_train import pack_cores, unpack_cores

#: Coefficients of the iteration X ← a·X + (b·A + c·A²)·X with A = X·Xᵀ, from Jordan et al.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalized(matrices: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """Set the singular values of matrices to about 1: between 0.7 and 1.2 for all but the smallest.

    Args:
        matrices: (k, d, e), any number of one shape; zeros stay zeros.
        steps: of the iteration.

    Returns:
        A new tensor of the same shape and type. The products are formed in bfloat16 on CUDA, else in the matrices' own
        type, float32 at least.

    Example:
        >>> drawn = torch.randn(3, 8, 4, generator=torch.Generator().manual_seed(0))
        >>> values = torch.linalg.svdvals(orthogonalized(drawn))
        >>> bool(values.min() > 0.6 and values.max() < 1.3)
        True
    """
    a, b, c = COEFFICIENTS
    kind = torch.bfloat16 if matrices.is_cuda else torch.promote_types(matrices.dtype, torch.float32)
    x = matrices.to(kind)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-12)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + torch.baddbmm(gram, gram, gram, beta=b, alpha=c) @ x
    return (x.mT if tall else x).to(matrices.dtype)


class MatrixLayer(Protocol):
    """The methods by which any other module has its matrices taken by Muon; the first is enough."""

    def matrix_parameters(self) -> Iterable[str]: ...  # by name, those whose product is the weight
    def to_matrices(self, name: str, values: torch.Tensor) -> list[torch.Tensor]:
        """Return numbers in the shape of such a parameter as matrices, (k, inputs, outputs) each."""

    def from_matrices(self, name: str, matrices: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the inverse of :meth:`to_matrices`."""

    def step_scale(self) -> float | torch.Tensor | None:
        """Return what takes the place of √(e/d)/c in the next step; None: nothing does."""


def matrix_parameters(module: nn.Module) -> tuple[str, ...]:
    """Name the parameters of a module that Muon takes, its own and not those of submodules.

    Example:
        >>> matrix_parameters(nn.Linear(2, 3)), matrix_parameters(nn.LayerNorm(2))
        (('weight',), ())
    """
    if isinstance(module, TTLinear):
        return ("packed_cores",)
    named: Callable[[], Iterable[str]] | None = getattr(module, "matrix_parameters", None)
    if named is not None:
        return tuple(named())
    if not is_linear(module):
        return ()
    return ("weight",) if "weight" in dict(module.named_parameters(recurse=False)) else ()


def factor_count(module: nn.Module) -> int:
    """Return how many matrices the weight of a module is a product of."""
    if isinstance(module, TTLinear):
        return len(module.shape.core_shapes)
    return len(matrix_parameters(module))


def split_matrices(module: nn.Module, name: str, values: torch.Tensor) -> list[torch.Tensor]:
    """Split numbers in the shape of a parameter into its matrices, (k, inputs, outputs) each."""
    if isinstance(module, TTLinear):
        cores = unpack_cores(values, module.shape)
        sides = [core.flatten(0, 1) if i < module.shape.half else core.flatten(1) for i, core in enumerate(cores)]
        return [side.unsqueeze(0) for side in sides]
    if (to_matrices := getattr(module, "to_matrices", None)) is not None:
        return list(to_matrices(name, values))
    return [values.unsqueeze(0) if is_conv1d(module) else values.t().unsqueeze(0)]


def join_matrices(module: nn.Module, name: str, matrices: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the inverse of :func:`split_matrices`."""
    if isinstance(module, TTLinear):
        shapes = module.shape.core_shapes
        return pack_cores([each.reshape(shape) for each, shape in zip(matrices, shapes, strict=True)], module.shape)
    if (from_matrices := getattr(module, "from_matrices", None)) is not None:
        joined: torch.Tensor = from_matrices(name, matrices)
        return joined
    [values] = matrices
    return values[0] if is_conv1d(module) else values[0].t()


def _usual_scale(matrices: torch.Tensor) -> float:
    """Return √(e/d) of matrices (k, d, e); those beside a closed bond have no rows, and nothing that is scaled."""
    return math.sqrt(matrices.shape[2] / max(matrices.shape[1], 1))


def _own_scale(module: nn.Module) -> float | torch.Tensor | None:
    """Ask a module for its :meth:`MatrixLayer.step_scale`; None where it has none."""
    step_scale: Callable[[], float | torch.Tensor | None] | None = getattr(module, "step_scale", None)
    return None if step_scale is None else step_scale()


def _hidden_layers(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers within a model's blocks; of a model without blocks, all of them."""
    blocks = [*blocks_of(model)]
    for root in blocks or [model]:
        yield from root.modules()


class _PlainParameters(nn.Module):
    """Parameters without their model: those with two dimensions as matrices of layers, the others as they are."""

    class Matrix(nn.Module):
        """A weight as ``nn.Linear`` has it."""

        def __init__(self, weight: nn.Parameter) -> None:
            super().__init__()
            self.weight = weight

        def matrix_parameters(self) -> tuple[str, ...]:
            """Return the weight, for Muon."""
            return ("weight",)

    def __init__(self, parameters: object) -> None:
        super().__init__()
        if isinstance(parameters, torch.Tensor | str | Mapping) or not isinstance(parameters, Iterable):
            raise ValueError(f"model is {shown(parameters)}; it must be a torch.nn.Module or its parameters.")
        for number, given in enumerate(parameters):
            parameter = given[1] if isinstance(given, tuple) and len(given) == 2 else given  # named_parameters()
            if not isinstance(parameter, nn.Parameter):
                raise ValueError(f"an entry of the parameters is {shown(parameter)}; Muon takes a model or parameters.")
            if parameter.ndim == 2:
                self.add_module(str(number), self.Matrix(parameter))
            else:
                self.register_parameter(f"parameter_{number}", parameter)


class Muon(torch.optim.Optimizer):
    """Muon for the matrices of a model, AdamW for its other parameters.

    Groups are named ``matrices``, ``ranks`` (the rank-control entries of tensor trains) and ``dense``, empty ones left
    out. State is that of Adam for the last two and half of it, the momentum, for the matrices. The state dict comes
    back by ``load_state_dict``; :func:`comera.truncate` cuts the state with the cores. Under DistributedDataParallel,
    where gradients are averaged before the step, all ranks take the same step.

    Args:
        model: tensorized or not; give the model itself, not its wrapper. Or parameters, as other optimizers take them:
            those with two dimensions are then matrices as ``nn.Linear`` has them, tables included, and AdamW takes the
            others, among them the cores of tensor trains, which are vectors, and of blocks.
        lr: of the matrices. The scale is that of the spectral norm, so that it carries over from width to width.
        lr_ranks, lr_dense: of AdamW.
        momentum: μ.
        betas, eps: of AdamW.
        weight_decay: decoupled, of matrices and of parameters with two dimensions or more.
        layers: whose matrices Muon takes; None: those of the model's blocks, the entries of its ``nn.ModuleList``, so
            that embedding and output layer are AdamW's, as Jordan et al. advise; of a model without blocks, all.
        steps: of Newton and Schulz.

    Raises:
        ValueError: a rate, momentum or decay out of its range, or a model without a matrix for Muon, or with one that
            is sharded.

    Example:
        >>> from comera import BTT, tensorize
        >>> model = tensorize(nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16)), {"0": BTT(rank=2)})
        >>> optimizer = Muon(model, lr=0.02)
        >>> [(group["name"], len(group["params"]), group["lr"]) for group in optimizer.param_groups]
        [('matrices', 2, 0.02), ('dense', 3, 0.003)]
    """

    def __init__(
        self,
        model: nn.Module | Iterable[nn.Parameter],
        lr: float = 0.02,
        lr_ranks: float = 1e-3,
        lr_dense: float = 3e-3,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        layers: Iterable[nn.Module] | None = None,
        steps: int = 5,
    ) -> None:
        rates = {"lr": lr, "lr_ranks": lr_ranks, "lr_dense": lr_dense, "eps": eps, "weight_decay": weight_decay}
        for name, value in rates.items():
            check_number(name, value, "a finite number from 0 up", lambda number: number >= 0)
        if not isinstance(betas, Sequence) or isinstance(betas, str) or len(betas) != 2:
            raise ValueError(f"betas is {shown(betas)}; it must be two numbers from 0 to below 1.")
        for name, value in (("momentum", momentum), ("betas[0]", betas[0]), ("betas[1]", betas[1])):
            check_number(name, value, "from 0 to below 1", lambda number: 0 <= number < 1)
        check_size("steps", steps)
        if not isinstance(model, nn.Module):
            if layers is not None:
                raise ValueError("layers names layers of a model, and parameters were given; give the model.")
            model = _PlainParameters(model)
            layers = model.modules()
        elif layers is not None:
            layers = list(layers) if isinstance(layers, Iterable) and not isinstance(layers, str) else [layers]
            for each in layers:
                check_module(each, "an entry of layers")
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        known = set(trained)
        self._owners: dict[nn.Parameter, tuple[nn.Module, str]] = {}  # a layer, and the name there
        tables = {module.weight for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag)}
        for layer in _hidden_layers(model) if layers is None else layers:
            for name in matrix_parameters(layer):
                parameter = layer.get_parameter(name)
                if parameter in known and parameter not in tables:
                    self._owners.setdefault(parameter, (layer, name))
        if any(hasattr(parameter, "full_tensor") for parameter in self._owners):  # a DTensor
            raise ValueError(
                "the model's matrices are sharded (fully_shard), and Muon needs each one whole; use "
                "DistributedDataParallel, or torch.optim.AdamW."
            )
        if not self._owners:
            raise ValueError("the model has no trained matrix for Muon; give its layers, or use torch.optim.AdamW.")
        entries = {module.diagonals for module in model.modules() if isinstance(module, TensorTrainLayer)}
        ranks = [each for each in trained if each in entries]
        rest = [each for each in trained if each not in self._owners and each not in entries]
        groups: list[dict[str, Any]] = [
            {"name": "matrices", "params": [*self._owners], "lr": lr, "momentum": momentum, "steps": steps},
            {"name": "ranks", "params": ranks, "lr": lr_ranks, "weight_decay": 0.0},
            {"name": "dense", "params": rest},
        ]
        defaults = {"lr": lr_dense, "weight_decay": weight_decay, "betas": betas, "eps": eps}
        super().__init__([group for group in groups if group["params"]], defaults)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state with the layers, so that a copy of model and optimizer together keeps working."""
        return {**super().__getstate__(), "_owners": self._owners}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over a state; counts of steps go where their parameters are, as the fused kernel needs them."""
        super().__setstate__(state)
        for parameter, own in self.state.items():
            if "step" in own:
                own["step"] = own["step"].to(parameter.device)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if "momentum" in group:
                self._step_matrices(group)
            else:
                self._step_adam(group)
        return loss

    def _step_matrices(self, group: dict[str, Any]) -> None:
        parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
        pieces: list[list[torch.Tensor]] = []  # matrices of each parameter
        for parameter in parameters:
            state, gradient = self.state[parameter], parameter.grad
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            average = state["momentum_buffer"].lerp_(gradient, 1 - group["momentum"])
            pieces.append(split_matrices(*self._owners[parameter], gradient.lerp(average, group["momentum"])))
        self._orthogonalize(pieces, group["steps"])
        own_scales = {owner: _own_scale(owner) for owner, _ in self._owners.values()}
        for parameter, matrices in zip(parameters, pieces, strict=True):
            owner, name = self._owners[parameter]
            own, factors = own_scales[owner], factor_count(owner)
            scaled = [each * (_usual_scale(each) / factors if own is None else own) for each in matrices]
            if group["weight_decay"]:
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
            update, rate = join_matrices(owner, name, scaled), group["lr"]
            if isinstance(rate, torch.Tensor):  # as a number it would have to be fetched from the device
                parameter.addcmul_(update, rate, value=-1)
            else:
                parameter.add_(update, alpha=-rate)

    @staticmethod
    def _orthogonalize(pieces: list[list[torch.Tensor]], steps: int) -> None:
        """Orthogonalize all matrices in place of their lists, those of one shape in one call."""
        alike: dict[tuple[Any, ...], list[tuple[int, int]]] = {}
        for row, matrices in enumerate(pieces):
            for column, each in enumerate(matrices):
                if each.numel():
                    alike.setdefault((*each.shape[1:], each.dtype, each.device), []).append((row, column))
        for places in alike.values():
            given = [pieces[row][column] for row, column in places]
            done = orthogonalized(torch.cat(given), steps).split([each.shape[0] for each in given])
            for (row, column), each in zip(places, done, strict=True):
                pieces[row][column] = each

    def _step_adam(self, group: dict[str, Any]) -> None:
        flat = [each for each in group["params"] if each.grad is not None and each.ndim < 2]
        wide = [each for each in group["params"] if each.grad is not None and each.ndim >= 2]
        for parameters, decay in ((flat, 0.0), (wide, group["weight_decay"])):
            if not parameters:
                continue
            for parameter in parameters:
                if not self.state[parameter]:
                    self.state[parameter] |= {
                        "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                        "exp_avg": torch.zeros_like(parameter),
                        "exp_avg_sq": torch.zeros_like(parameter),
                    }
            states = [self.state[parameter] for parameter in parameters]
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            average, squares, steps = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq", "step"))
            adam(
                parameters,
                gradients,
                average,
                squares,
                [],
                steps,
                fused=True,
                amsgrad=False,
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                lr=group["lr"],
                weight_decay=decay,
                eps=group["eps"],
                maximize=False,
                decoupled_weight_decay=True,
            )
