"""Optimizer states, cut along with the parameters they belong to.

Truncation keeps some of a parameter's n entries. What happens to each entry of the parameter's state:

=====================================================  =========================================================
number, text, None, tensor with at most one entry      kept
tensor of the parameter's shape                        cut like the parameter
bitsandbytes, 8 bit: ``state1``, ``absmax1`` and so    decoded, cut, encoded in blocks of the same length
on, and the two stacked moments of AdEMAMix
torchao's low-bit tensors                              decoded, cut, stored as the optimizer stores a parameter of
                                                       the new size: encoded, or plain if blocks do not fit it
list, tuple or dict                                    its items, by these rules
anything else: factored, flattened, block-wise         :func:`check_states` raises ValueError
=====================================================  =========================================================

A state that spans several parameters cannot be cut either: a tensor as long as all parameters of a group together, a
tensor in a parameter group, or one of the classes in :data:`REFUSED`.
"""

from __future__ import annotations

import gc
import math
import warnings
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map

from comera.compatibility.living import living

#: Optimizers whose state is in no parameter's shape, by the names of their classes, and what they keep instead.
REFUSED = {
    "ZeroRedundancyOptimizer": "the states of its parameters on several processes",
    "LBFGS": "a history of steps over all parameters in one vector",
    "CPUOffloadOptimizer": "copies of its parameters on the CPU",
}

#: Lengths of the blocks in which bitsandbytes scales a state, of its present release first.
BLOCK_LENGTHS = (256, 2048, 4096, 1024, 512, 128, 64)

#: Gives an entry of a state as it is after a cut, from the places of the parameter's entries that are kept.
Cut = Callable[[torch.Tensor], Any]


def unwrapped(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer inside the wrappers of accelerate.

    Example:
        >>> optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(2))])
        >>> unwrapped(optimizer) is optimizer
        True
    """
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    return optimizer


def check_states(
    action: str,
    optimizer: Optimizer,
    parameters: Collection[nn.Parameter],
    instead: str = "call comera.truncate(model) without an optimizer and build a new one",
) -> None:
    """Raise ValueError if an optimizer holds none of the parameters, or a state of theirs that cannot be cut.

    Args:
        action: the function that would cut it, for the sentence.
        optimizer: its state is examined; an optimizer before its first step has none and passes.
        parameters: to be cut; those that are not trained need not be held.
        instead: what the caller can do, for the sentence.

    Example:
        >>> weight = nn.Parameter(torch.zeros(4))
        >>> optimizer = torch.optim.Adam([weight])
        >>> optimizer.state[weight]["rows"] = torch.zeros(2)
        >>> check_states("truncate", optimizer, [weight])
        Traceback (most recent call last):
        ...
        ValueError: truncate cannot cut the state 'rows' that Adam keeps for a parameter of 4 entries: a tensor of \
shape (2,); call comera.truncate(model) without an optimizer and build a new one.
    """
    optimizer = unwrapped(optimizer)
    if uncuttable := _uncuttable(optimizer, parameters):
        raise ValueError(f"{action} cannot cut {uncuttable}; {instead}.")
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if trained and set(trained).isdisjoint(held_by(optimizer)):
        raise ValueError(
            f"{action} needs an optimizer of the model, and {type(optimizer).__name__} holds none of the "
            f"{len(trained)} parameters to be cut; build it after comera.tensorize, of comera.parameter_groups(model)."
        )


def _uncuttable(optimizer: Optimizer, parameters: Collection[nn.Parameter]) -> str | None:
    """Name the part of an optimizer's state that cannot be cut, if there is one."""
    name = type(optimizer).__name__
    for kind in type(optimizer).__mro__:
        if kind.__name__ in REFUSED:
            return f"the state of {name}, which keeps {REFUSED[kind.__name__]}"
    if spanning := next(_spanning(optimizer, parameters), None):
        return f"the state {spanning!r} that {name} keeps for several parameters together"
    for parameter in parameters:
        try:
            _cuts(optimizer, parameter)
        except _UncuttableError as error:
            size = f"a parameter of {parameter.numel()} entries"
            return f"the state {error.entry!r} that {name} keeps for {size}: {error}"
    return None


def cut_state(optimizer: Optimizer, parameter: nn.Parameter, places: torch.Tensor) -> None:
    """Keep of a parameter's state what belongs to the entries at ``places``; the parameter is not cut yet.

    Example:
        >>> weight = nn.Parameter(torch.zeros(3))
        >>> optimizer = torch.optim.SGD([weight], momentum=0.9)
        >>> optimizer.state[weight]["momentum_buffer"] = torch.tensor([1.0, 2.0, 3.0])
        >>> cut_state(optimizer, weight, torch.tensor([0, 2]))
        >>> optimizer.state[weight]["momentum_buffer"]
        tensor([1., 3.])
    """
    optimizer = unwrapped(optimizer)
    cuts = _cuts(optimizer, parameter)
    if cuts:
        optimizer.state[parameter].update({entry: cut(places) for entry, cut in cuts.items()})


def holders(parameters: Iterable[torch.Tensor]) -> list[Optimizer]:
    """Find the optimizers of this process that hold one of the parameters.

    Example:
        >>> weight = nn.Parameter(torch.zeros(2))
        >>> optimizer = torch.optim.SGD([weight])
        >>> holders([weight]) == [optimizer], holders([torch.zeros(2)])
        (True, [])
    """
    wanted = set(parameters)
    if not wanted:
        return []
    found = [weakref.ref(each) for each in living([Optimizer]) if not wanted.isdisjoint(held_by(each))]
    if found:
        gc.collect()  # a deleted optimizer may have been part of a cycle
    return [optimizer for each in found if (optimizer := each()) is not None]


def warn_of_uncut_states(action: str, cut: Iterable[torch.Tensor], optimizer: Optimizer | None) -> None:
    """Warn of optimizers other than the given one that hold parameters which were cut.

    Args:
        action: the function that cut them, for the sentence.
        cut: the parameters.
        optimizer: whose state was cut along.
    """
    own = [] if optimizer is None else held_by(unwrapped(optimizer))
    if others := holders(set(cut).difference(own)):
        names = ", ".join(sorted({type(each).__name__ for each in others}))
        warnings.warn(
            f"{action} has cut parameters that {names} holds, and not its state, so that its next step may fail; give "
            f"the optimizer in use to {action}, or drop it and build a new one.",
            stacklevel=4,  # behind the caller's decorator
        )


def held_by(optimizer: Optimizer) -> list[torch.Tensor]:
    """Return the parameters of all groups of an optimizer.

    Example:
        >>> len(held_by(torch.optim.SGD(nn.Linear(2, 2).parameters())))
        2
    """
    groups = vars(optimizer).get("param_groups", ())  # without it: an optimizer that is being built
    return [parameter for group in groups for parameter in group["params"]]


class _UncuttableError(Exception):
    """An entry of a state that no rule covers; the message is what the entry is."""

    def __init__(self, entry: str, what: str) -> None:
        super().__init__(what)
        self.entry = entry


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _spanning(optimizer: Optimizer, parameters: Collection[nn.Parameter]) -> Iterator[str]:
    """Yield the names of state that an optimizer shares between parameters, possibly one of ``parameters``."""
    own = set(parameters)
    groups = [group for group in optimizer.param_groups if own & set(group["params"])]
    lengths = {sum(parameter.numel() for parameter in group["params"]) for group in groups}
    lengths.add(sum(parameter.numel() for parameter in held_by(optimizer)))
    for group in groups:
        yield from (name for name, value in group.items() if name != "params" and _many(value))
    for key, state in optimizer.state.items():
        if key in own:
            continue
        if not isinstance(key, torch.Tensor):
            if _many(state):
                yield str(key)
        elif isinstance(state, dict) and not _is_bitsandbytes(optimizer):  # its table of codes may be as long
            for name, value in state.items():
                if any(each.shape[-1:].numel() in lengths and each.numel() > key.numel() for each in _tensors(value)):
                    yield name


def _is_bitsandbytes(optimizer: Optimizer) -> bool:
    return any(kind.__module__.startswith("bitsandbytes.") for kind in type(optimizer).__mro__)


def _many(value: Any) -> bool:
    """Return whether a value holds a tensor of more than one entry."""
    return any(tensor.numel() > 1 for tensor in _tensors(value))


def _cuts(optimizer: Optimizer, parameter: nn.Parameter) -> dict[str, Cut]:
    """Return the cut of each entry of a parameter's state; raises :class:`_UncuttableError` without a rule."""
    state = optimizer.state.get(parameter) or {}
    cuts: dict[str, Cut] = {}
    if _is_bitsandbytes(optimizer):
        cuts = _bitsandbytes_cuts(state, parameter)

    def cut_of(entry: str, value: Any) -> Cut:
        tree_map(lambda leaf: _leaf_cut(optimizer, parameter, entry, leaf), value)  # raises before anything is cut
        return lambda places: tree_map(lambda leaf: _leaf_cut(optimizer, parameter, entry, leaf)(places), value)

    return cuts | {entry: cut_of(entry, value) for entry, value in state.items() if entry not in cuts}


def _leaf_cut(optimizer: Optimizer, parameter: nn.Parameter, entry: str, value: Any) -> Cut:
    """Return how to cut a value of a state that is not a container."""
    if not isinstance(value, torch.Tensor):
        if value is None or isinstance(value, bool | int | float | complex | str):
            return lambda _: value
        raise _UncuttableError(entry, f"a {type(value).__name__}")
    if type(value).__module__.startswith("torchao.") and hasattr(optimizer, "_new_buffer"):
        return lambda places: _recoded_by_torchao(optimizer, parameter, value, places)
    if type(value) not in (torch.Tensor, nn.Parameter) or value.layout != torch.strided:
        raise _UncuttableError(entry, f"a {type(value).__name__} of layout {value.layout}")
    if getattr(value, "is_paged", False):
        raise _UncuttableError(entry, "paged memory")
    if value.shape == parameter.shape:
        return lambda places: value[places.to(value.device)]
    if value.numel() <= 1:
        return lambda _: value
    raise _UncuttableError(entry, f"a tensor of shape {tuple(value.shape)}")


def _recoded_by_torchao(optimizer: Any, parameter: nn.Parameter, value: Any, places: torch.Tensor) -> torch.Tensor:
    """Return a state of torchao's low-bit optimizers, kept as they would keep it for a parameter of the new size."""
    entries = value.dequantize()[places]
    buffer: torch.Tensor = optimizer._new_buffer(
        parameter.detach().new_empty(len(places)), getattr(value, "signed", True)
    )
    return buffer.copy_(entries)


def _bitsandbytes_cuts(state: dict[str, Any], parameter: nn.Parameter) -> dict[str, Cut]:
    """Return how to cut states of bitsandbytes that are stacked, or that hold codes with a scale per block."""
    cuts: dict[str, Cut] = {}
    for number in ("1", "2"):
        names = [f"{name}{number}" for name in ("state", "qmap", "absmax")]
        values, table, scales = (state.get(name) for name in names)
        if values is None or values.shape[-1:] != parameter.shape or getattr(values, "is_paged", False):
            continue  # the common rules decide
        if table is None or scales is None:
            cuts[names[0]] = partial(_stacked, values)
            continue
        fits = (length for length in BLOCK_LENGTHS if math.ceil(parameter.numel() / length) == scales.shape[-1])
        length = next(fits, None)
        if length is None:
            raise _UncuttableError(names[2], f"{scales.shape[-1]} scales, in blocks of no known length")
        parts = (partial(_blocks, values, table, scales, length, part=part) for part in range(3))
        cuts |= zip(names, parts, strict=True)
    return cuts


def _stacked(values: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return values[..., places]


def _blocks(
    codes: torch.Tensor, table: torch.Tensor, scales: torch.Tensor, length: int, places: torch.Tensor, part: int
) -> torch.Tensor:
    """Return codes, their table or their scales after a cut."""
    kept = _decoded(codes, table, scales, length)[..., places]
    encoded, lesser = _encoded(kept, table, length)
    return (encoded, table, lesser)[part]


def _decoded(codes: torch.Tensor, table: torch.Tensor, scales: torch.Tensor, length: int) -> torch.Tensor:
    """Return the decoded numbers: entries of a table, times a scale per block of codes."""
    return table[codes.int()] * scales.repeat_interleave(length, dim=-1)[..., : codes.shape[-1]]


def _encoded(numbers: torch.Tensor, table: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the codes of the nearest entries of an ascending table, and a scale per block that keeps its extremes.

    The signed table of bitsandbytes ends at -0.993 and 1, the other one at 0 and 1.
    """
    count = math.ceil(numbers.shape[-1] / length)
    padded = F.pad(numbers, (0, count * length - numbers.shape[-1]))
    blocks = padded.reshape(*numbers.shape[:-1], count, length)
    scales = blocks.amax(-1).clamp(min=0) / table[-1]
    if table[0] < 0:
        scales = scales.maximum(blocks.amin(-1) / table[0])
    relative = blocks / torch.where(scales > 0, scales, 1.0).unsqueeze(-1)
    codes = torch.bucketize(relative, (table[1:] + table[:-1]) / 2).to(torch.uint8)
    return codes.reshape(padded.shape)[..., : numbers.shape[-1]].contiguous(), scales
