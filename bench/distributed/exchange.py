"""Exchange of gradients between ranks: PyTorch's own engines, in one form.

==============  ========================================================================================================
``ddp``         DistributedDataParallel, gradients as they are
``powersgd_4``  with ``powerSGD_hook`` at rank 4, from the third step on, with error feedback and warm start
``fsdp2``       ``fully_shard`` of every block and of the whole; cores of tensor trains and their rank entries stay
                whole and are all-reduced, since the first dimension of a core is 1 or a rank
==============  ========================================================================================================
"""

import contextlib
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import distributed, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from bench.core.cell import Cell
from bench.distributed.traffic import gradient_bytes
from bench.estimate.communication import powersgd_rank, sent_bytes
from bench.estimate.parameters import parameters_of
from comera import tensorized_layers
from comera.recomputing import blocks_of

#: State that PowerSGD keeps between steps, by bucket. Its random numbers are drawn at the first compressed step alone.
_KEPT = ("error_dict", "p_memory_dict", "q_memory_dict")


class NotExchanged(RuntimeError):
    """Error for a model whose gradients this exchange does not support; the message is one sentence."""

    status = "unsupported"  # of the cell's record


class Exchange:
    """Exchange of one model's gradients; the base class exchanges nothing."""

    warm_up_steps = 1  # after which every step is like the later ones
    has_local_steps = True  # whether :meth:`local` is there
    sharded = False  # whether a forward pass takes all ranks
    settled = True  # whether all steps to come send the same

    def __init__(self, model: nn.Module, name: str) -> None:
        self.model, self.name = model, name
        self.ranks = distributed.get_world_size()

    def module(self) -> nn.Module:
        """Return the module whose forward is called."""
        return self.model

    def local(self) -> AbstractContextManager[object]:
        """Run steps without exchange within the block."""
        return contextlib.nullcontext()

    def after_backward(self) -> None:
        """Act between backward and the optimizer's step."""

    def rest(self) -> None:
        """Act on all ranks after one did work between steps that others did not."""

    def rebuild(self) -> None:
        """Take up a model whose parameters have other shapes now."""

    def settle(self) -> None:
        """Act after a first forward and backward, whose gradients are not used."""

    def sent_bytes(self) -> float:
        """Return the bytes that each rank sends per step, on paper."""
        return sent_bytes(parameters_of(self.model), self.name, self.ranks)

    def memory_bytes(self) -> int:
        """Return the bytes kept between steps."""
        return 0

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this rank's exchange for a checkpoint: tensors and JSON values."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up :meth:`state_dict`."""


class Buckets(Exchange):
    """DistributedDataParallel with a communication hook. Gradients are views of its buckets."""

    def __init__(self, model: nn.Module, exchange: str) -> None:
        super().__init__(model, exchange)
        self._power_rank = powersgd_rank(exchange)
        self.warm_up_steps = 4 if self._power_rank else 3  # buckets are laid out anew at the second
        self._resumed: Mapping[str, Any] | None = None
        self._wrap()

    def _wrap(self) -> None:
        self.settled = False
        # Ranks are seeded alike, so that there is nothing to send for them to begin alike.
        self._wrapper = DistributedDataParallel(self.model, gradient_as_bucket_view=True, init_sync=False)
        self._power: PowerSGDState | None = None
        if self._power_rank:
            self._power = PowerSGDState(None, self._power_rank, start_powerSGD_iter=2)
            waits = distributed.get_backend() == "gloo"
            self._wrapper.register_comm_hook(self._power, _power_sgd_in_order if waits else powerSGD_hook)
        else:
            self._wrapper.register_comm_hook(None, allreduce_hook)

    def module(self) -> nn.Module:
        return self._wrapper

    def local(self) -> AbstractContextManager[object]:
        return self._wrapper.no_sync()

    def rebuild(self) -> None:
        del self._wrapper
        self._wrap()

    def settle(self) -> None:
        self.settled = True
        if self._power is None:
            return
        self._power.iter = 0
        if self._resumed is not None:
            self._power.iter = self._resumed["iter"]
            for name in _KEPT:
                setattr(self._power, name, dict(self._resumed[name]))
            self._resumed = None

    def state_dict(self) -> dict[str, Any]:
        if self._power is None:
            return {}
        return {"iter": self._power.iter, **{name: dict(getattr(self._power, name)) for name in _KEPT}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._resumed = state or None

    def memory_bytes(self) -> int:
        return gradient_bytes(self.model.parameters()) + sum(tensor.nbytes for tensor in _held(self._power))


def _power_sgd_in_order(state: PowerSGDState, bucket: distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Run ``powerSGD_hook``, one bucket after another.

    The hook starts its second and third all-reduce when the one before is done. With gloo that is on several threads,
    so that those of two buckets would start in another order on one rank than on the other, and be taken for one
    another; NCCL has one queue for all.
    """
    future = powerSGD_hook(state, bucket)
    future.wait()
    return future


def _held(power: PowerSGDState | None) -> list[torch.Tensor]:
    """Return the tensors of PowerSGD: errors of each bucket, and both factors."""
    kept = () if power is None else [getattr(power, name) for name in _KEPT]
    return [tensor for by_bucket in kept for tensor in by_bucket.values()]


class Shards(Exchange):
    """FSDP2: dense parameters, their gradients and optimizer state in shards; tensor trains whole on every rank."""

    has_local_steps = False
    sharded = True

    def __init__(self, model: nn.Module, device: str) -> None:
        from torch.distributed.fsdp import fully_shard  # takes long to import

        super().__init__(model, "fsdp2")
        layers = tensorized_layers(model)
        self._whole = {parameter for layer in layers for parameter in (layer.packed_cores, layer.diagonals)}
        mesh = init_device_mesh(device, (self.ranks,))
        for block in blocks_of(model):
            fully_shard(block, mesh=mesh, ignored_params=self._whole)
        fully_shard(model, mesh=mesh, ignored_params=self._whole)

    def rest(self) -> None:
        self.model.reshard()  # type: ignore[operator]  # reading its state does so as well

    def after_backward(self) -> None:
        gradients = [parameter.grad for parameter in _trained(self.model) if parameter in self._whole]
        average([gradient for gradient in gradients if gradient is not None], self.ranks)


def check_optimizer(exchange: Exchange) -> None:
    """Raise NotExchanged if the optimizer of a model uses gradients before they are exchanged."""
    hooked = any(parameter._post_accumulate_grad_hooks for parameter in _trained(exchange.model))
    if hooked:
        raise NotExchanged(
            "Its optimizer steps inside backward, before gradients are averaged; use a variant that does not."
        )


def _trained(model: nn.Module) -> Iterable[nn.Parameter]:
    return (parameter for parameter in model.parameters() if parameter.requires_grad)


def average(tensors: list[torch.Tensor], ranks: int) -> None:
    """Put the mean over all ranks in the place of each tensor, by one all-reduce per type of number."""
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        alike = [tensor for tensor in tensors if tensor.dtype == dtype]
        flat = _flatten_dense_tensors(alike)
        flat.div_(ranks)
        distributed.all_reduce(flat)
        for tensor, mean in zip(alike, _unflatten_dense_tensors(flat, alike), strict=True):
            tensor.copy_(mean)


def exchange_for(cell: Cell, model: nn.Module) -> Exchange:
    """Return the exchange of a cell for its model, before there is an optimizer. Raises NotExchanged."""
    if cell.exchange == "fsdp2":
        return Shards(model, cell.device)
    return Buckets(model, cell.exchange)
