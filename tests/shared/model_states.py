"""Models, states and kept tensors that several tests of the library make and compare."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

import comera


def truncated(model: nn.Module) -> nn.Module:
    """Cut a model: some ranks closed and cut, others not; thresholds of its own."""
    with torch.no_grad():
        for layer in comera.tensorized_layers(model):
            layer.diagonals.uniform_(0.5, 1.5)
            layer.diagonals[0] = 0.0
            layer.threshold = 0.02
    comera.truncate(model)
    return model.eval()


def assert_same(found: Any, wanted: Any) -> None:
    """Compare nested dicts, lists and tensors, entry by entry and in their order."""
    if isinstance(wanted, torch.Tensor):
        assert torch.equal(found, wanted)
    elif isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for key in wanted:
            assert_same(found[key], wanted[key])
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for each, other in zip(found, wanted, strict=True):
            assert_same(each, other)
    else:
        assert found == wanted


def assert_same_bits(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> None:
    """Compare tensors in pairs, to the bit."""
    assert len(one) == len(other)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def kept_tensors(forward: Callable[[], Any]) -> list[torch.Tensor]:
    """Return what autograd keeps for backward, as hooks around the call see it: a tensor for each storage."""
    found = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        found[tensor.untyped_storage()._cdata] = tensor.detach()
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        held = forward()
    del held
    return list(found.values())


def kept_bytes(forward: Callable[[], Any]) -> int:
    """Bytes of the storages that autograd keeps for backward."""
    return sum(tensor.untyped_storage().nbytes() for tensor in kept_tensors(forward))


def kept_numbers(forward: Callable[[], Any], but: Iterable[torch.Tensor] = ()) -> list[int]:
    """How many numbers each of these storages holds, those of some tensors left out."""
    left_out = {tensor.untyped_storage().data_ptr() for tensor in but}
    kept = [tensor for tensor in kept_tensors(forward) if tensor.untyped_storage().data_ptr() not in left_out]
    return [tensor.untyped_storage().nbytes() // tensor.element_size() for tensor in kept]
