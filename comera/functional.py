"""Compositions of tensorized layers that keep activations at the size of the ranks.

Between the two layers of a feed-forward lie the widest activations of a model, and autograd keeps two of them: what the
first layer put out, and what the activation made of it. Both follow from ``z``, the activations at the middle rank of
the first layer, by one thin product. So ``z`` is kept, and they are formed again in backward, in tiles of tokens that
fit a CPU's cache; no activation of full width is ever kept, and on a CPU none is formed for all tokens. On a GPU that
:mod:`comera.kernels` serves, the tiles are those of a kernel and never leave the chip, and dropout, residual and
LayerNorm behind a sub-layer are one kernel too.

Shape suffixes: ``T`` tokens, ``N`` in-features, ``H`` hidden features, ``M`` out-features, ``P`` and ``Q`` the middle
ranks of the two layers.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.module import _has_any_global_hook

from comera import kernels
from comera.compatibility.autocast import autocast_type, without_autocast
from comera.compatibility.hugging_face import ACTIVATIONS as ACTIVATIONS_OF_HUGGING_FACE
from comera.compatibility.hugging_face import class_name
from comera.contraction.merging import two_half_linear
from comera.dropout import acts_as_on_cuda
from comera.kernels import Fused
from comera.kernels.choice import fastest
from comera.layers import TTLinear
from comera.recomputing import StandIn, runs_as_written
from comera.tracing import traced

if TYPE_CHECKING:
    from torch.fx import Node

#: Bytes of a tile's hidden features on a CPU: tiles of 256 tokens at a width of 3,072 in FP32, the fastest of 64 to
#: 4,096 with a second-level cache of 2 MiB. On CUDA four times that: the peak of the paper's encoder in its lean
#: forms is, at batch 32, still that of smaller tiles. And the most tiles there are, so that their operations stay few
#: beside their size.
_TILE_BYTES, _TILE_BYTES_CUDA, _TILES = 3 * 2**20, 12 * 2**20, 64


@dataclass(frozen=True)
class _Activation:
    forward: Callable[[torch.Tensor], torch.Tensor]
    backward: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # of the gradient and the input


_aten = torch.ops.aten

_ACTIVATIONS = {
    "gelu": _Activation(F.gelu, _aten.gelu_backward),
    "gelu_tanh": _Activation(
        lambda x: F.gelu(x, approximate="tanh"), lambda g, x: _aten.gelu_backward(g, x, approximate="tanh")
    ),
    "relu": _Activation(F.relu, lambda g, x: _aten.threshold_backward(g, x, 0)),
    "silu": _Activation(F.silu, _aten.silu_backward),
}

ACTIVATIONS = tuple(_ACTIVATIONS)


def tt_feed_forward(
    x: torch.Tensor,
    first: TTLinear,
    second: TTLinear,
    activation: str = "gelu",
    tokens_per_tile: int | None = None,
    fused: Fused = "auto",
) -> torch.Tensor:
    """Compute ``second(activation(first(x)))``, (…, N) to (…, M); keeps ``x`` and two rank-wide activations.

    What it computes and its gradients are those of the layers one after another, up to rounding. Backward computes the
    hidden features once more: 2·T·P·H of about 12·T·(P·(N + H) + Q·(H + M)) operations. Where a layer has no ranks, or
    under ``torch.func``, the compiler or an export, the layers run one after another.

    Args:
        x: (…, N), any leading dimensions.
        first, second: the layers, (N, H) and (H, M). Forward hooks of theirs do not run.
        activation: ``"gelu"``, ``"gelu_tanh"``, ``"relu"`` or ``"silu"``.
        tokens_per_tile: tokens whose hidden features are formed at a time; None for as many as fit a CPU's cache, for
            12 MiB of them on CUDA, or for the kernels of a GPU.
        fused: ``"kernels"`` takes the kernels wherever they can run, ``"torch"`` nowhere; ``"auto"`` times both at the
            first call with a shape on a device and takes the faster. Within the capture of a CUDA graph nothing is
            timed: there 16-bit products take the kernels, and FP32 products take torch's.

    Raises:
        ValueError: an unknown activation or ``fused``, layers that do not follow one another, features that are not N,
            or fewer tokens per tile than 1.

    Example:
        >>> first, second = TTLinear(8, 32, (2, 4), (8, 4), 3), TTLinear(32, 8, (8, 4), (4, 2), 3)
        >>> x = torch.randn(2, 5, 8)
        >>> torch.allclose(tt_feed_forward(x, first, second), second(F.gelu(first(x))), atol=1e-6)
        True
    """
    if activation not in _ACTIVATIONS:
        raise ValueError(f"activation is {activation!r}; allowed: {', '.join(ACTIVATIONS)}.")
    if first.out_features != second.in_features:
        raise ValueError(f"first puts out {first.out_features} features, second takes {second.in_features}.")
    if tokens_per_tile is not None and tokens_per_tile < 1:
        raise ValueError(f"tokens_per_tile is {tokens_per_tile}; allowed: whole numbers from 1 up, or None.")
    if x.shape[-1] != first.in_features:
        raise ValueError(f"x has {x.shape[-1]} features in its last dimension; expected {first.in_features}.")
    check_fused(fused)
    if _one_after_another(first, second):
        return second(_ACTIVATIONS[activation].forward(first(x)))
    by_kernels = tokens_per_tile is None and _kernels_pay(fused, activation, x, first, second, keep_ranks=True)
    with _operands(_type_of_products(x), x, first, second) as tensors:
        if by_kernels:
            return _by_kernels(activation, *tensors)
        return _by_tiles(activation, tokens_per_tile, *tensors)


def _kernels_pay(
    fused: Fused, activation: str, x: torch.Tensor, first: TTLinear, second: TTLinear, keep_ranks: bool
) -> bool:
    """Return whether a feed-forward runs by kernels, and not by tiles that keep ranks, or by the layers."""
    kind, ranks = _type_of_products(x), _middle_ranks(first, second)
    if fused == "torch" or not kernels.hidden_served(x, kind, *ranks):
        return False
    if fused == "kernels":
        return True
    tiles, layers = partial(_by_tiles, activation, None), partial(_by_layers, activation)
    ways = {"kernels": partial(_by_kernels, activation), "torch": tiles if keep_ranks else layers}
    sizes = (x.numel().bit_length(), first.in_features, first.out_features, second.out_features, *ranks)

    def prepare() -> list[torch.Tensor | None]:
        with _operands(kind, x, first, second) as tensors:
            return tensors

    return fastest((activation, kind, sizes, keep_ranks), x.device, ways, prepare, _untimed(kind)) == "kernels"


def _untimed(kind: torch.dtype) -> str:
    """Return the way that numbers of a type take before anything is timed."""
    return "torch" if kind == torch.float32 else "kernels"


def check_fused(fused: str) -> None:
    """Raise ValueError over an unknown value."""
    if fused not in get_args(Fused):
        raise ValueError(f"fused is {fused!r}; allowed: {', '.join(get_args(Fused))}.")


def _one_after_another(first: TTLinear, second: TTLinear) -> bool:
    """Return whether the layers have to run as they are."""
    if first.fp8 is not None or second.fp8 is not None:
        return True
    without_ranks = not first.shape.parameter_count or not second.shape.parameter_count
    return without_ranks or torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def _middle_ranks(*layers: TTLinear) -> list[int]:
    return [layer.shape.ranks[layer.shape.half - 1] for layer in layers]


def _type_of_products(x: torch.Tensor) -> torch.dtype:
    return autocast_type(x.device.type) or x.dtype


@contextlib.contextmanager
def _operands(kind: torch.dtype, x: torch.Tensor, first: TTLinear, second: TTLinear) -> Iterator[list[Any]]:
    """Return ``x``, halves and biases in the type of their products; within the block autocast is off."""
    halves = [half for layer in (first, second) for half in layer.halves()]
    with without_autocast(x.device.type):
        yield [None if tensor is None else tensor.to(kind) for tensor in (x, *halves, first.bias, second.bias)]


def _by_kernels(
    activation: str,
    x: torch.Tensor,
    left1_PN: torch.Tensor,
    right1_PH: torch.Tensor,
    left2_QH: torch.Tensor,
    right2_QM: torch.Tensor,
    bias1_H: torch.Tensor | None,
    bias2_M: torch.Tensor | None,
) -> torch.Tensor:
    z1_PT = torch.mm(left1_PN, x.reshape(-1, x.shape[-1]).t())
    z2_QT = kernels.hidden(activation, z1_PT, right1_PH, bias1_H, left2_QH)
    return _affine(z2_QT.t(), right2_QM, bias2_M).view(*x.shape[:-1], right2_QM.shape[1])


def _by_tiles(
    activation: str,
    tokens_per_tile: int | None,
    x: torch.Tensor,
    left1_PN: torch.Tensor,
    right1_PH: torch.Tensor,
    left2_QH: torch.Tensor,
    right2_QM: torch.Tensor,
    bias1_H: torch.Tensor | None,
    bias2_M: torch.Tensor | None,
) -> torch.Tensor:
    size = tokens_per_tile or _tile_size(x, right1_PH.shape[1])
    z2_QT = _HiddenRanks.apply(activation, size, x, left1_PN, right1_PH, left2_QH, bias1_H)
    # Outside the function, so that recomputation of outputs has the operation that makes this one.
    return _affine(z2_QT.t(), right2_QM, bias2_M).view(*x.shape[:-1], right2_QM.shape[1])


def _by_layers(
    activation: str,
    x: torch.Tensor,
    left1_PN: torch.Tensor,
    right1_PH: torch.Tensor,
    left2_QH: torch.Tensor,
    right2_QM: torch.Tensor,
    bias1_H: torch.Tensor | None,
    bias2_M: torch.Tensor | None,
) -> torch.Tensor:
    hidden = _ACTIVATIONS[activation].forward(two_half_linear(x, left1_PN, right1_PH, bias1_H))
    return two_half_linear(hidden, left2_QH, right2_QM, bias2_M)


def _tile_size(x: torch.Tensor, hidden_features: int) -> int:
    """Return the tokens of a tile."""
    tile_bytes = _TILE_BYTES_CUDA if x.is_cuda or acts_as_on_cuda() else _TILE_BYTES
    return max(tile_bytes // (hidden_features * x.dtype.itemsize), -(-x.shape[:-1].numel() // _TILES), 1)


def _tiles(tokens: int, size: int) -> Iterator[slice]:
    return (slice(start, start + size) for start in range(0, tokens, size))


def _affine(z: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return torch.mm(z, matrix) if bias is None else torch.addmm(bias, z, matrix)


class _HiddenRanks(torch.autograd.Function):
    """z of the second layer, (Q, T), rank first in memory as in merging. Kept: the input, z of the first, halves."""

    @staticmethod
    def forward(
        ctx: Any,
        activation: str,
        tokens_per_tile: int,
        x: torch.Tensor,
        left1_PN: torch.Tensor,
        right1_PH: torch.Tensor,
        left2_QH: torch.Tensor,
        bias1_H: torch.Tensor | None,
    ) -> torch.Tensor:
        x_TN = x.reshape(-1, x.shape[-1])
        act = _ACTIVATIONS[activation].forward
        z1_TP = torch.mm(left1_PN, x_TN.t()).t()
        z2_QT = x_TN.new_empty(len(left2_QH), len(x_TN))
        for tile in _tiles(len(x_TN), tokens_per_tile):
            z2_QT[:, tile] = torch.mm(left2_QH, act(_affine(z1_TP[tile], right1_PH, bias1_H)).t())
        ctx.activation, ctx.tokens_per_tile = activation, tokens_per_tile
        ctx.save_for_backward(x, z1_TP, left1_PN, right1_PH, left2_QH, bias1_H)
        return z2_QT

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dz2_QT: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, z1_TP, left1_PN, right1_PH, left2_QH, bias1_H = ctx.saved_tensors
        x_TN, act = x.reshape(-1, x.shape[-1]), _ACTIVATIONS[ctx.activation]
        dz1_PT = x_TN.new_empty(len(left1_PN), len(x_TN))
        dright1_PH, dleft2_QH = torch.zeros_like(right1_PH), torch.zeros_like(left2_QH)
        dbias1_H = None if bias1_H is None else torch.zeros_like(bias1_H)
        for tile in _tiles(len(x_TN), ctx.tokens_per_tile):
            pre_TH, dz2_TQ = _affine(z1_TP[tile], right1_PH, bias1_H), dz2_QT[:, tile].t()
            dleft2_QH.addmm_(dz2_TQ.t(), act.forward(pre_TH))
            dpre_TH = act.backward(torch.mm(dz2_TQ, left2_QH), pre_TH)
            dright1_PH.addmm_(z1_TP[tile].t(), dpre_TH)
            if dbias1_H is not None:
                dbias1_H += dpre_TH.sum(0)
            dz1_PT[:, tile] = torch.mm(right1_PH, dpre_TH.t())
        dx = torch.mm(dz1_PT.t(), left1_PN).view(x.shape) if ctx.needs_input_grad[2] else None
        return None, None, dx, torch.mm(dz1_PT, x_TN), dright1_PH, dleft2_QH, dbias1_H


class FusedFeedForward(StandIn):
    """The forward of a module that is two TT layers with an activation between them, and maybe dropout behind.

    Args:
        first, second: names of the layers.
        activation: one of :data:`ACTIVATIONS`, or the name of the module that computes it.
        last: the name of the dropout, empty if there is none.
        fused: as :func:`tt_feed_forward` takes it.
        keep_ranks: whether the hidden features are formed in tiles where no kernel forms them; if not, the module then
            runs as it is written.
    """

    def __init__(
        self,
        module: nn.Module,
        first: str,
        activation: str,
        second: str,
        last: str = "",
        *,
        fused: Fused = "auto",
        keep_ranks: bool = True,
    ) -> None:
        super().__init__(module)
        self._first, self._activation, self._second, self._last = first, activation, second, last
        self._fused, self._keep_ranks = fused, keep_ranks

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._keep_ranks and torch.compiler.is_compiling():
            return self._run(*args, **kwargs)
        children = self._module._modules
        first, second, between = (children.get(name) for name in (self._first, self._second, self._activation))
        activation = self._activation if between is None else _activation_of(between)
        plain_calls = not _has_any_global_hook() and all(
            child is None or runs_as_written(child) for child in (first, second, between)
        )
        values = [*args, *kwargs.values()]
        if plain_calls and activation and len(values) == 1 and type(first) is type(second) is TTLinear:
            if self._keep_ranks:
                output = tt_feed_forward(values[0], first, second, activation, fused=self._fused)
            elif _one_after_another(first, second) or not _kernels_pay(
                self._fused, activation, values[0], first, second, keep_ranks=False
            ):
                return self._run(*args, **kwargs)
            else:
                output = tt_feed_forward(values[0], first, second, activation, fused="kernels")
            return children[self._last](output) if self._last else output  # type: ignore[misc]
        return self._run(*args, **kwargs)


def fuse_feed_forwards(model: nn.Module, fused: Fused = "auto", keep_ranks: bool = True) -> list[str]:
    """Have every module of ``model`` that is a feed-forward of two TT layers run as :func:`tt_feed_forward`.

    A module is one if its forward is nothing but a TT layer, an activation that is known, and a TT layer, with dropout
    behind it or without, whether it is an ``nn.Sequential`` or a class of its own, as in GPT-2. Where the layers have
    got hooks or another forward when the module is called, as from a wrapper that gathers sharded parameters, they run
    one after another.

    Args:
        fused: as :func:`tt_feed_forward` takes it.
        keep_ranks: if false, modules run as they are written where no kernel forms their hidden features.

    Returns:
        The names of these modules.

    Example:
        >>> from comera import TT, tensorize
        >>> model = tensorize(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)), {"*": TT(ranks=4)})
        >>> fuse_feed_forwards(model)
        ['']
    """
    found = []
    for name, module in model.named_modules():
        if sum(isinstance(child, TTLinear) for child in module.children()) == 2 and (parts := _feed_forward_in(module)):
            module.forward = FusedFeedForward(module, *parts, fused=fused, keep_ranks=keep_ranks)
            found.append(name)
    return found


def _feed_forward_in(module: nn.Module) -> tuple[str, ...] | None:
    """Return first layer, activation, second layer and any dropout, if the module is nothing more."""
    was, found = module.training, set()
    try:
        for module.training in (True, False):
            found.add(_traced_feed_forward(module))
    finally:
        module.training = was
    return found.pop() if len(found) == 1 else None


def _traced_feed_forward(module: nn.Module) -> tuple[str, ...] | None:
    nodes = traced(module)
    chain = all(node.all_input_nodes == [before] for before, node in itertools.pairwise(nodes))
    if not chain or len(nodes) not in (5, 6) or nodes[0].op != "placeholder":
        return None
    first, between, second, *last = nodes[1:-1]
    children = [module._modules.get(str(node.target)) for node in (first, second) if node.op == "call_module"]
    activation = _known_activation(between, module)
    if activation is None or [type(child) for child in children] != [TTLinear, TTLinear]:
        return None
    if any(node.op != "call_module" or type(module._modules.get(str(node.target))) is not nn.Dropout for node in last):
        return None
    return str(first.target), activation, str(second.target), *(str(node.target) for node in last)


def _activation_of(module: nn.Module) -> str | None:
    """Return the name of an activation that a module computes."""
    if type(module) is nn.GELU:
        return "gelu" if module.approximate == "none" else "gelu_tanh"
    named = ACTIVATIONS_OF_HUGGING_FACE.get(class_name(type(module)))
    return {nn.ReLU: "relu", nn.SiLU: "silu"}.get(type(module), named)


def _known_activation(node: Node, module: nn.Module) -> str | None:
    """Return one of :data:`ACTIVATIONS`, or the name of the child that computes one."""
    if node.op == "call_module":
        child = module._modules.get(str(node.target))
        return None if child is None or _activation_of(child) is None else str(node.target)
    options = [*node.args[1:], *node.kwargs.items()]
    if node.target is F.gelu and options == [("approximate", "tanh")]:
        return "gelu_tanh"
    known: dict[Any, str] = {F.gelu: "gelu", F.relu: "relu", torch.relu: "relu", F.silu: "silu"}
    return known.get(node.target) if not options or options in ([False], [("inplace", False)]) else None
