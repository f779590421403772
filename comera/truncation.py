"""Cutting closed ranks out of the cores, so that smaller ranks are smaller tensors.

Rank control closes a rank by bringing its diagonal entry below the threshold; the layer's function no longer depends
on it. Truncation then selects, on both sides of every bond, the indices that are alive (no re-orthogonalisation, so
that what survives is kept to the bit), in the parameters and in the optimizer's state alike. The released code only
masks: its cores keep their shapes and nothing is saved.
"""

from __future__ import annotations

import bisect
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import nn

from comera.compatibility.arguments import check_mapping, check_module, check_number, check_optimizer
from comera.compatibility.distributed import refuse_distributed
from comera.compatibility.optimizer_states import check_states, warn_of_uncut_states
from comera.layers import TensorTrainLayer
from comera.objective import ModelSize, early_stage_without_effect, late_stage_without_effect, tensorized_layers
from comera.rank_control import replace_data


class Cut(NamedTuple):
    """Inner ranks of a layer before and after its truncation; all 0 after it where the layer closed as a whole."""

    before: tuple[int, ...]
    after: tuple[int, ...]


def layers_by_cores(model: nn.Module) -> Iterable[list[TensorTrainLayer]]:
    """Return the tensorized layers, those that share their cores together."""
    shared: dict[torch.Tensor, list[TensorTrainLayer]] = {}
    for module in model.modules():
        if isinstance(module, TensorTrainLayer):
            shared.setdefault(module.packed_cores, []).append(module)
    return shared.values()


def refuse_distributed_layers(action: str, layers: Iterable[TensorTrainLayer], resizes: bool = True) -> None:
    """Refuse layers with distributed parameters, as :func:`comera.compatibility.distributed.refuse_distributed`."""
    sizes = {parameter: size for layer in layers for parameter, size in layer.chain_sizes().items()}
    refuse_distributed(action, sizes, resizes)


@torch.no_grad()
def truncate(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> dict[str, Cut]:
    """Cut every closed rank out of the tensorized layers of a model; its function does not change.

    Parameters stay the same objects with fewer entries, so optimizers and ties between layers hold; gradients are
    dropped. A layer with a bond that is closed as a whole loses all its cores: a linear layer then passes its bias,
    an embedding zeros.

    Args:
        model: any module.
        optimizer: whose state is to shrink along, so that the moments of surviving entries are kept: exactly where
            they have the parameter's shape, to the precision of 8 bits where they are stored in blocks
            (:mod:`comera.compatibility.optimizer_states`).

    Returns:
        The inner ranks before and after, by the name of each layer whose shape changed; empty if none did. After a
        change a captured graph must be taken again.

    Raises:
        ValueError: parameters that are sharded over processes, or that DistributedDataParallel manages, which is to be
            deleted before and built anew behind; an optimizer that holds none of the parameters to be cut, or keeps a
            state of theirs that cannot be cut, such as a factored or a flattened one. Nothing is changed then.

    Warns:
        UserWarning: if another optimizer holds parameters that were cut, or if a :class:`comera.LateStage`, or
            an :class:`comera.EarlyStage` of too few steps, has closed no rank of the model.

    Example:
        >>> from comera import TTLinear
        >>> layer = TTLinear(16, 16, (4, 4), (4, 4), ranks=(2, 2, 2))
        >>> _ = layer.diagonals.data[0].zero_()
        >>> truncate(nn.Sequential(layer)), layer.packed_cores.numel()
        ({'0': Cut(before=(2, 2, 2), after=(1, 2, 2))}, 36)
    """
    check_module(model)
    if optimizer is not None:
        check_optimizer(optimizer)
    if reason := late_stage_without_effect(model) or early_stage_without_effect(model):
        warnings.warn(reason, stacklevel=3)  # behind the decorator
    cut, before = _to_be_cut(model), ranks_of(model)
    if cut_closed(model, optimizer):
        warn_of_uncut_states("truncate", cut, optimizer)
    after = ranks_of(model)
    return {name: Cut(ranks, after[name]) for name, ranks in before.items() if after[name] != ranks}


@torch.no_grad()
def cut_closed(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> bool:
    """Do what :func:`truncate` does, without its warnings."""
    refuse_distributed_layers("truncate", tensorized_layers(model))
    if optimizer is not None:
        check_states("truncate", optimizer, _to_be_cut(model))
    changed = False
    for layers in layers_by_cores(model):
        before = layers[0].shape.ranks
        ranks = layers[0].cut(optimizer)
        if ranks != before:
            changed = True
            for each in layers:
                each.shape = each.shape.with_ranks(ranks)
    return changed


def _to_be_cut(model: nn.Module) -> list[nn.Parameter]:
    """Return the cores and the rank entries of all layers with a closed rank."""
    closed = [layer for layer in tensorized_layers(model) if layer.active_ranks() != layer.shape.ranks]
    return [parameter for layer in closed for parameter in (layer.packed_cores, layer.diagonals)]


@torch.no_grad()
def close_smallest(model: nn.Module, size_target: float, full: int | None = None) -> bool:
    """Close ranks in the order of their control entries' magnitude until S is at most ``size_target``.

    What the objective has not brought down in time is brought down here; the function of the model changes. As if the
    threshold were raised, for all layers alike, to the lowest that meets the target; entries up to it become zero.

    Args:
        model: a tensorized model.
        size_target: S0, the fraction of ``full`` to reach, above 0.
        full: core entries that count as 1; those at the present shapes if None.

    Returns:
        Whether anything was closed. Truncate at once, or the optimizer's momentum may open ranks again.

    Raises:
        ValueError: a model without tensorized layers, a target that is not above 0 or not finite, or parameters that
            are sharded over processes.

    Example:
        >>> from comera import TTLinear
        >>> layer = TTLinear(4, 4, (4,), (4,), ranks=4)
        >>> _ = layer.diagonals.data.copy_(torch.tensor([0.9, 0.2, 0.5, 0.7]))
        >>> close_smallest(layer, 0.5), layer.active_ranks()
        (True, (2,))
    """
    check_module(model)
    check_number("size_target", size_target, "a finite number above 0", lambda value: value > 0)
    size = ModelSize(model, full)
    if not size.layers:
        raise ValueError("the model has no tensorized layer, so there is no rank to close; call comera.tensorize.")
    refuse_distributed_layers("close_smallest", size.layers, resizes=False)
    if size.exact() <= size_target:
        return False
    diagonals = [layer.diagonals for layer in size.layers]
    entries = [diagonal.clone() for diagonal in diagonals]
    levels = torch.cat(entries).abs().unique().tolist()  # ascending

    def size_without(level: float) -> torch.Tensor:
        for diagonal, values in zip(diagonals, entries, strict=True):
            diagonal.copy_(torch.where(values.abs() > level, values, 0.0))
        return size.exact()

    reached = bisect.bisect_left(levels, True, key=lambda level: bool(size_without(level) <= size_target))
    size_without(levels[reached])
    return True


def ranks_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the inner ranks of every tensorized layer by its name; of layers that share their cores, the first.

    Example:
        >>> from comera import TT, tensorize
        >>> ranks_of(tensorize(nn.Sequential(nn.Linear(16, 16)), {"0": TT(ranks=2, order=2)}))
        {'0': (2, 2, 2)}
    """
    check_module(model)
    chosen = set(tensorized_layers(model))
    return {name: module.shape.ranks for name, module in model.named_modules() if module in chosen}


@torch.no_grad()
def set_ranks(model: nn.Module, ranks: Mapping[str, Sequence[int]]) -> None:
    """Give tensorized layers the shapes of a truncated model, so that its state dict can be loaded.

    The parameters stay the same objects; their new entries are zeros (diagonals: ones) until something is loaded.

    Args:
        model: a tensorized model.
        ranks: of the truncated one, as :func:`ranks_of` returns them.

    Raises:
        ValueError: a name that is no tensorized layer of the model, ranks that do not fit it, or parameters that
            cannot change their sizes here, as :func:`truncate` has it.

    Example:
        >>> from comera import TT, tensorize
        >>> model = tensorize(nn.Sequential(nn.Linear(16, 16)), {"0": TT(ranks=2, order=2)})
        >>> set_ranks(model, {"0": (1, 2, 1)})
        >>> ranks_of(model)
        {'0': (1, 2, 1)}
    """
    check_module(model)
    check_mapping("ranks", ranks, "ranks by the names of layers, as comera.ranks_of returns it")
    refuse_distributed_layers("set_ranks", tensorized_layers(model))
    modules = dict(model.named_modules())
    by_cores = {layers[0].packed_cores: layers for layers in layers_by_cores(model)}
    shapes = {}
    for name, wanted in ranks.items():
        layer = modules.get(name)
        if not isinstance(layer, TensorTrainLayer):
            raise ValueError(f"{name!r} is no tensorized layer of the model.")
        shapes[layer] = layer.shape.with_ranks(wanted)
    for layer, shape in shapes.items():  # all of them fit
        replace_data(layer.packed_cores, layer.packed_cores.data.new_zeros(shape.parameter_count))
        replace_data(layer.diagonals, layer.diagonals.data.new_ones(sum(shape.ranks)))
        for each in by_cores[layer.packed_cores]:
            each.shape = shape
