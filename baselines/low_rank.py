"""Plain factors: two thin matrices in place of each weight.

A linear target becomes y = (x A) B + bias with A (N, R) and B (R, M); in the whole-model variant the word embedding
becomes a table (V, R) followed by a linear map (R, D). Both train from scratch. The factors start as CoMERA's cores do
for two cores (METHOD: N(0, 1) / √R · √s, the last without 1/√R), so that the entries of the product have variance s²,
with s² = 1 / (N + M) for linear layers and 1 for the embedding. Biases start from the dense model's.

In the variants ``orthogonal`` and ``spectral``, which CoMERA has as well, the factors of a linear layer start
otherwise: as orthogonal rows of one length, with the norm that the product has on average by the rule above; or each
drawn as a layer of its own would be, with d inputs and e outputs by the standard deviation √(1/d)·min(1, √(e/d)) (the
spectral condition, Yang et al., arXiv 2310.17813).

The variant ``weights`` takes the largest singular values of the weights that the model has, halved between both
factors: no product of that rank is nearer to them.

The variant ``spectron`` is the rival's strongest published form under Muon, with the spectral start: a step of the rate
lr goes along the orthogonalized momentum of each factor by lr/(‖A‖₂ + ‖B‖₂ + 1), so that the change of the product is
bounded in the spectral norm ("Stabilizing Native Low-Rank LLM Pretraining", arXiv 2602.12429).

The variants ``lean`` and ``lean_block`` keep ranks instead of activations by the same rule as CoMERA's
(:mod:`comera.recomputing`), which serves thin products of any kind; only their feed-forward is not one function.

The ranks are given, or follow from a wanted compression ratio of the whole model (:func:`ranks_for_ratio`), which gives
a rival of CoMERA's size. Or they are the middle ranks that CoMERA has at such a ratio: that rival is larger, since a
tensor train shares parameters that two factors do not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from baselines._arm import (
    Table,
    TrainedArm,
    check_count,
    check_positive,
    check_ratio,
    check_variant,
    embedding_targets,
    fused_adamw,
    linear_targets,
    parameters_apart,
    replace_module,
)
from comera.compatibility.dense_weight import weight_of
from comera.low_precision.products import FP8, thin_linear
from comera.protocol import LATER, OPTIMIZERS, OutOfReach, Reason, has_values, scale_of, starts_at_zero
from comera.ratio.model import solve_model
from comera.recomputing import Recompute, keep_ranks
from comera.tensor_train import spectral_std

#: Variants of the whole model that keep ranks instead of activations, with what they recompute.
LEAN: dict[str, Recompute] = {"lean": "outputs", "lean_block": "block"}

ORTHOGONAL, SPECTRAL, SPECTRON, WEIGHTS = "orthogonal", "spectral", "spectron", "weights"

VARIANTS = ("", "linear", *LEAN, ORTHOGONAL, SPECTRAL, SPECTRON, WEIGHTS)


#: How far the parameters of the whole model may be from those that a ratio asks for.
TOLERANCE = 0.02


@dataclass(frozen=True)
class Settings:
    """Hyperparameters of the two-factor arm.

    Args:
        rank: middle rank of linear layers, clipped at min(N, M) (CoMERA's middle rank: 30).
        embedding_rank: rank of the embedding, clipped at min(V, D) (CoMERA's: 32).
        ratio: how many times smaller the whole model is to be; the ranks of all factored layers then follow from it,
            and ``rank`` and ``embedding_rank`` do not apply. None: they do.
        ranks_of_ratio: take the middle ranks that CoMERA has where the whole model is that many times smaller, which
            is what its layers multiply; ``rank`` and ``embedding_rank`` do not apply. None: they do.
        lr_factors: rate of the factors, that of CoMERA's cores.
        lr: rate of all other parameters.

    Raises:
        ValueError: when a rank is not a whole number from 1 up, a ratio below 1, both ratios are given, or a rate is
            not finite and above 0.
    """

    rank: int = 30
    embedding_rank: int = 32
    ratio: float | None = field(default=None, metadata=LATER)
    lr_factors: float = 1e-4
    lr: float = 5e-5
    ranks_of_ratio: float | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        check_count("low_rank.rank", self.rank)
        check_count("low_rank.embedding_rank", self.embedding_rank)
        for name in ("ratio", "ranks_of_ratio"):
            check_ratio(f"low_rank.{name}", getattr(self, name))
        if self.ratio is not None and self.ranks_of_ratio is not None:
            raise ValueError(
                f"low_rank.ratio is {self.ratio!r} and low_rank.ranks_of_ratio {self.ranks_of_ratio!r}; give one."
            )
        check_positive("low_rank.lr_factors", self.lr_factors)
        check_positive("low_rank.lr", self.lr)


class TwoFactorLinear(nn.Module):
    """A linear map of rank R: y = (x A) B + bias.

    Memory is laid out as in CoMERA's layers, which is faster on a CPU than two ``nn.Linear``: x A comes out transposed,
    so that the rank, not the tokens, is the short side of a product's rows, and the bias is added inside the second
    product.

    Args:
        in_features: N.
        out_features: M.
        rank: R, from 1 to min(N, M).
        bias: whether there is a bias (M,).
        dtype: of all parameters.
        device: of all parameters.

    Shapes:
        input (..., N), output (..., M); ``first`` (R, N) is Aᵀ, ``second`` (R, M) is B, ``bias`` (M,) or None.

    Example:
        >>> layer = TwoFactorLinear(8, 6, rank=2)
        >>> layer(torch.ones(5, 3, 8)).shape
        torch.Size([5, 3, 6])
        >>> sum(parameter.numel() for parameter in layer.parameters())  # 8·2 + 2·6 + 6
        34
    """

    #: How the two products are formed in FP8, or None; see :func:`comera.low_precision.use_fp8`.
    fp8: FP8 | None = None
    #: True if Muon's steps are bounded by the factors' norms, as Spectron's are.
    bounded_steps: bool = False

    def __init__(
        self,
        in_features: int,
        out_features: int,
        rank: int,
        bias: bool = True,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.first = nn.Parameter(torch.empty(rank, in_features, dtype=dtype, device=device))
        self.second = nn.Parameter(torch.empty(rank, out_features, dtype=dtype, device=device))
        self.bias = nn.Parameter(torch.zeros(out_features, dtype=dtype, device=device)) if bias else None
        _init_factors(self.first, self.second, rank, variance=1.0 / (in_features + out_features))

    @classmethod
    def like(cls, linear: nn.Linear, rank: int) -> TwoFactorLinear:
        """Make fresh factors that replace ``linear``, whose bias is kept; the rank is clipped at min(N, M)."""
        sizes = linear.in_features, linear.out_features
        weight, bias = linear.weight, linear.bias
        layer = cls(*sizes, min(rank, *sizes), bias is not None, dtype=weight.dtype, device=weight.device)
        layer.bias = bias
        return layer

    @property
    def weight(self) -> torch.Tensor:
        """The dense weight (M, N), formed anew by each operation on it, as that of :class:`comera.TTLinear`."""
        shape = self.out_features, self.in_features
        return weight_of(lambda: self.second.t() @ self.first, shape, (self.first, self.second))

    @torch.no_grad()
    def draw_spectral(self) -> None:
        """Draw each factor anew as a layer of its own by :func:`comera.tensor_train.spectral_std`."""
        (rank, n), m = self.first.shape, self.second.shape[1]
        self.first.normal_(std=spectral_std(n, rank))
        self.second.normal_(std=spectral_std(rank, m))

    def matrix_parameters(self) -> tuple[str, ...]:
        """Return the two factors, for :class:`comera.Muon`."""
        return "first", "second"

    def to_matrices(self, name: str, values: torch.Tensor) -> list[torch.Tensor]:
        """Return numbers in the shape of a factor as the matrix of its product: (1, N, R) or (1, R, M)."""
        return [(values.t() if name == "first" else values).unsqueeze(0)]

    def from_matrices(self, name: str, matrices: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the inverse of :meth:`to_matrices`."""
        [[matrix]] = matrices
        return matrix.t() if name == "first" else matrix

    def step_scale(self) -> float | torch.Tensor | None:
        """Return 1/(‖A‖₂ + ‖B‖₂ + 1), the factor of Muon's rate where steps are bounded; else None."""
        if not self.bounded_steps:
            return None
        grams = (factor.detach() @ factor.detach().t() for factor in (self.first, self.second))  # (R, R)
        return 1 / (1 + sum(torch.linalg.eigvalsh(gram)[-1].clamp_min(0).sqrt() for gram in grams))

    @torch.no_grad()
    def draw_orthogonal(self) -> None:
        """Draw the factors anew, with orthogonal rows of one length; their product has the norm √(N·M/(N + M))."""
        (rank, n), m = self.first.shape, self.second.shape[1]
        length = (n * m / (n + m) / rank) ** 0.25
        self.first.copy_(length * nn.init.orthogonal_(torch.empty(n, rank, device=self.first.device)).t())
        self.second.copy_(length * nn.init.orthogonal_(torch.empty(rank, m, device=self.second.device)))

    @torch.no_grad()
    def decompose(self, weight: torch.Tensor) -> None:
        """Let the product be the nearest of its rank to ``weight`` (M, N); both factors have equal singular values.

        Rows without one are orthonormal in the first factor, since two factors of zeros would never move.
        """
        left, values, right = torch.linalg.svd(weight, full_matrices=False)  # (M, K), (K,), (K, N)
        none = values <= torch.finfo(values.dtype).eps * values[0]
        lengths = torch.where(none, 1, values.sqrt()).unsqueeze(1)
        rank = len(self.first)
        self.first.copy_((lengths * right)[:rank])
        self.second.copy_((values.unsqueeze(1) / lengths * left.t())[:rank])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (..., N) to (..., M)."""
        if self.fp8 is not None:
            return thin_linear(x, self.first, self.second, self.bias, self.fp8)
        rows = torch.mm(self.first, x.reshape(-1, x.shape[-1]).t()).t()
        y = torch.mm(rows, self.second) if self.bias is None else torch.addmm(self.bias, rows, self.second)
        return y.view(*x.shape[:-1], y.shape[1])


class TwoFactorEmbedding(nn.Module):
    """An embedding table of rank R: a table (V, R), then a linear map to D columns without bias.

    In the place of an ``nn.EmbeddingBag`` the first table pools, since what follows is linear.

    Args:
        num_embeddings: V.
        embedding_dim: D.
        rank: R, from 1 to min(V, D).
        padding_idx: row that is zero and stays so, as in ``nn.Embedding``.
        bag: the ``nn.EmbeddingBag`` whose pooling to take over.
        dtype: of all parameters.
        device: of all parameters.

    Shapes:
        input (...) of indices, output (..., D); ``first.weight`` (V, R), ``second`` (R, D).

    Example:
        >>> table = TwoFactorEmbedding(10, 4, rank=2, padding_idx=0)
        >>> table(torch.tensor([[0, 3]])).shape
        torch.Size([1, 2, 4])
        >>> table(torch.tensor(0)).abs().sum().item()
        0.0
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        rank: int,
        padding_idx: int | None = None,
        bag: nn.EmbeddingBag | None = None,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        common: dict[str, Any] = {"padding_idx": padding_idx, "dtype": dtype, "device": device}
        self.first: Table = nn.Embedding(num_embeddings, rank, **common)
        if bag is not None:
            own: dict[str, Any] = {"mode": bag.mode, "include_last_offset": bag.include_last_offset}
            self.first = nn.EmbeddingBag(num_embeddings, rank, **own, **common)
        self.second = nn.Parameter(torch.empty(rank, embedding_dim, dtype=dtype, device=device))
        _init_factors(self.first.weight, self.second, rank, variance=1.0)
        if self.first.padding_idx is not None:
            with torch.no_grad():
                self.first.weight[self.first.padding_idx].zero_()

    @classmethod
    def like(cls, embedding: Table, rank: int) -> TwoFactorEmbedding:
        """Make fresh factors that replace ``embedding``; the rank is clipped at min(V, D).

        Their product has the mean square of the embedding's entries, as CoMERA's tables have.

        Raises:
            ValueError: when the embedding limits its norms, which factors cannot.
        """
        if embedding.max_norm is not None:
            raise ValueError(f"low_rank: max_norm of the embedding is {embedding.max_norm}; allowed is None.")
        sizes = embedding.num_embeddings, embedding.embedding_dim
        weight = embedding.weight
        bag = embedding if isinstance(embedding, nn.EmbeddingBag) else None
        place: dict[str, Any] = {"dtype": weight.dtype, "device": weight.device}
        table = cls(*sizes, min(rank, *sizes), embedding.padding_idx, bag, **place)
        with torch.no_grad():
            for factor in table.parameters():
                factor.mul_(scale_of(weight) ** 0.5)
        return table

    def forward(self, indices: torch.Tensor, *bags: Any, **options: Any) -> torch.Tensor:
        """Look up (...) indices, giving (..., D); a bag takes the other arguments of ``nn.EmbeddingBag`` as well."""
        return self.first(indices, *bags, **options) @ self.second


@torch.no_grad()
def _init_factors(first: torch.Tensor, second: torch.Tensor, rank: int, variance: float) -> None:
    """Fill the factors so that entries of their product, a sum of ``rank`` terms, have the given variance."""
    root = variance**0.25
    first.normal_(std=root / rank**0.5)
    second.normal_(std=root)


class LowRank(TrainedArm):
    """Two-factor layers on the linear targets and, in the whole-model variant, on the embedding."""

    def __init__(self, settings: Settings, variant: str) -> None:
        self.settings = settings
        self.variant = variant
        self.optimizers = ("muon",) if variant == SPECTRON else OPTIMIZERS

    def model_unsupported(self, model: nn.Module, targets: Mapping[str, str]) -> str | None:
        """Explain why the ratio of the settings cannot be met, with the largest that can; None if it can.

        Args:
            model: the dense model; shapes are enough, so it may be on the ``meta`` device.
            targets: as for :meth:`adapt`.
        """
        try:
            self._ranks(model, *self._layers(model, targets))
        except OutOfReach as reason:
            return Reason.of(reason)
        return None

    def adapt(self, model: nn.Module, targets: Mapping[str, str]) -> nn.Module:
        """Replace the targets in ``model`` by two-factor layers, fresh ones or in :data:`WEIGHTS` decomposed ones."""
        decomposes = self.variant == WEIGHTS and has_values(model)
        linears, embeddings = self._layers(model, targets)
        ranks = self._ranks(model, linears, embeddings)
        for name, linear in linears.items():
            layer = TwoFactorLinear.like(linear, ranks[name])
            layer.bounded_steps = self.variant == SPECTRON
            if self.variant == ORTHOGONAL:
                layer.draw_orthogonal()
            elif self.variant in (SPECTRAL, SPECTRON):
                layer.draw_spectral()
            if decomposes:
                layer.decompose(linear.weight)
            elif starts_at_zero(linear):
                nn.init.zeros_(layer.second)
            replace_module(model, name, layer)
        for name, embedding in embeddings.items():
            replace_module(model, name, TwoFactorEmbedding.like(embedding, ranks[name]))
        keep_ranks(model, LEAN.get(self.variant, "none"))
        return model

    def _layers(self, model: nn.Module, targets: Mapping[str, str]) -> tuple[dict[str, nn.Linear], dict[str, Table]]:
        """Return the linear layers and the embeddings that this variant factorises."""
        linears = linear_targets(model, targets)
        return linears, {} if self.variant == "linear" else embedding_targets(model, targets)

    def _ranks(
        self, model: nn.Module, linears: Mapping[str, nn.Linear], embeddings: Mapping[str, Table]
    ) -> dict[str, int]:
        if self.settings.ratio is not None:
            return ranks_for_ratio(model, {**linears, **embeddings}, self.settings.ratio)
        if self.settings.ranks_of_ratio is not None:
            solved = solve_model(model, [*linears, *embeddings], self.settings.ranks_of_ratio).layers
            return {name: solved[name].middle_rank for name in (*linears, *embeddings)}
        return {**dict.fromkeys(linears, self.settings.rank), **dict.fromkeys(embeddings, self.settings.embedding_rank)}

    def factor_ranks(self, model: nn.Module) -> dict[str, int]:
        """Return the rank of each pair of factors, by the layer's name."""
        kinds = TwoFactorLinear | TwoFactorEmbedding
        return {name: module.second.shape[0] for name, module in model.named_modules() if isinstance(module, kinds)}

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return fused AdamW over factors and, at their own rate, all other parameters."""
        factors: list[nn.Parameter] = []
        for module in model.modules():
            if isinstance(module, TwoFactorLinear):
                factors += [module.first, module.second]
            elif isinstance(module, TwoFactorEmbedding):
                factors += [module.first.get_parameter("weight"), module.second]
        return fused_adamw(
            (factors, self.settings.lr_factors),
            (parameters_apart(model, factors), self.settings.lr),
        )


def build(settings: Settings, variant: str = "") -> LowRank:
    """Return the two-factor arm.

    Args:
        settings: hyperparameters.
        variant: ``""`` for the whole model, the word embedding included, ``"linear"`` for linear targets only, one of
            :data:`LEAN`, ``"orthogonal"``, ``"spectral"``, ``"spectron"`` or ``"weights"``.

    Raises:
        ValueError: for an unknown variant.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 6))
        >>> model = build(Settings(rank=2), "linear").adapt(model, {"0": "feed_forward"})
        >>> model[0].first.shape, model[0].second.shape
        (torch.Size([2, 8]), torch.Size([2, 6]))
    """
    check_variant("low_rank", variant, VARIANTS)
    return LowRank(settings, variant)


def ranks_for_ratio(model: nn.Module, layers: Mapping[str, nn.Linear | Table], ratio: float) -> dict[str, int]:
    """Return the ranks at which the whole model is ``ratio`` times smaller.

    A layer (N, M) of rank R holds R·(N + M) parameters, which is coarse: one rank more in all 768 × 768 layers of the
    encoder is 4 % of the model at ratio 64. So layers of one shape may differ by one rank, as in an apportionment of
    seats by largest remainder.

    Every layer gets the same ratio of its own, as far as ranks from 1 to min(N, M) allow. The real rank that this takes
    is rounded down, and what is left of the model's parameters goes in steps of one rank to the layers with the largest
    remainders, as far as it reaches, or one layer beyond where that is nearer.

    Args:
        model: the dense model; shapes are enough, so it may be on the ``meta`` device.
        layers: by name, the layers of ``model`` to factorise.
        ratio: wanted parameters of ``model`` over those of the factorised one, met within 2 %.

    Raises:
        OutOfReach: a ValueError; the sentence names the largest or smallest ratio within reach, or the nearest found.

    Example:
        >>> model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 256), nn.Linear(256, 4))
        >>> ranks_for_ratio(model, {"0": model[0], "1": model[1]}, ratio=3)
        {'0': 9, '1': 15}
    """
    dense = sum(parameter.numel() for parameter in model.parameters())
    kept = dense - sum({id(layer.weight): layer.weight.numel() for layer in layers.values()}.values())
    shapes = {name: tuple(layer.weight.shape) for name, layer in layers.items()}
    costs = {name: sum(shape) for name, shape in shapes.items()}  # parameters per rank
    real = _equal_ratio(shapes, dense / ratio - kept)
    ranks = {name: int(rank) for name, rank in real.items()}
    rest = dense / ratio - kept - sum(rank * costs[name] for name, rank in ranks.items())
    candidates = [name for name in real if ranks[name] < min(shapes[name])]
    candidates.sort(key=lambda name: ranks[name] - real[name])  # the largest remainder first
    firsts = {costs[name]: [name] for name in reversed(candidates)}  # per cost the largest remainder
    filled = [_fill(first, candidates, costs, rest) for first in ([], *firsts.values())]
    for name in min(filled, key=lambda found: found[0])[1]:
        ranks[name] += 1
    total = kept + sum(rank * costs[name] for name, rank in ranks.items())
    if abs(total - dense / ratio) > TOLERANCE * dense / ratio:
        raise _out_of_reach(ratio, dense, kept, shapes, dense / total)
    return ranks


def _equal_ratio(shapes: Mapping[str, tuple[int, ...]], budget: float) -> dict[str, float]:
    """Return the real ranks, within each layer's limits, at one ratio for all layers and ``budget`` parameters."""

    def at(ratio: float) -> dict[str, float]:
        wanted = {name: math.prod(shape) / (ratio * sum(shape)) for name, shape in shapes.items()}
        return {name: min(max(rank, 1.0), *shapes[name]) for name, rank in wanted.items()}

    # Between a ratio at which every rank is the largest one and one at which it is 1.
    low, high = 0.25, max((float(math.prod(shape)) for shape in shapes.values()), default=1.0)
    for _ in range(100):
        middle = math.sqrt(low * high)
        if sum(rank * sum(shapes[name]) for name, rank in at(middle).items()) < budget:
            high = middle
        else:
            low = middle
    return at(high)


def _fill(first: list[str], names: Sequence[str], costs: Mapping[str, int], rest: float) -> tuple[float, list[str]]:
    """Choose the ranks to raise for ``rest`` more parameters, always ``first``; return the error and their names."""
    raised, rest = list(first), rest - sum(costs[name] for name in first)
    for name in names:
        if name not in first and costs[name] <= rest:
            raised.append(name)
            rest -= costs[name]
    return abs(rest), raised


def _out_of_reach(
    ratio: float, dense: int, kept: int, shapes: Mapping[str, tuple[int, ...]], nearest: float
) -> OutOfReach:
    start = f"ratio={ratio:g} is out of reach for two-factor layers"
    largest = dense / (kept + sum(sum(shape) for shape in shapes.values()))
    smallest = dense / (kept + sum(sum(shape) * min(shape) for shape in shapes.values()))
    if ratio > largest:
        left = f"{kept:,} of the model's {dense:,} parameters are not factorised"
        words = f"{start}, since {left}; the largest within reach is {largest:.6g}, with all ranks 1."
        return OutOfReach(words, largest=largest)
    if ratio < smallest:
        words = f"{start}; the smallest within reach is {smallest:.6g}, with the largest ranks."
        return OutOfReach(words, smallest=smallest)
    return OutOfReach(f"{start} within {TOLERANCE:.0%}; the nearest found is {nearest:.6g}.")
