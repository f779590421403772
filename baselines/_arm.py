"""Base of all rivals: the arm with its default hooks, the checks of settings and targets, the optimizer, other shapes.

A target is a module named by the workload together with its role. Rivals act on the linear ones (``attention``,
``feed_forward``, ``classifier``); only a method that also compresses the word embedding uses ``embedding``.
"""

from __future__ import annotations

import abc
import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import nn

from comera.protocol import EMBEDDING_ROLE, LINEAR_ROLES, CaptureScope, CellView, Change, Optimizer, RareEvent, Stage

#: The number of a block in the name of a module: the only one.
_BLOCK = re.compile(r"\.\d+(\.|$)")

#: A target of the role ``embedding``.
Table = nn.Embedding | nn.EmbeddingBag


class TrainedArm(abc.ABC):
    """One rival in a comparison: the dense method unless a hook is overridden.

    Example:
        >>> from baselines import dense
        >>> model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
        >>> arm = dense.build(dense.Settings(), "")
        >>> model = arm.adapt(model, {"0": "classifier"})
        >>> optimizer = arm.optimizer(model)
        >>> arm.objective(model(torch.ones(1, 4)).sum(), model).backward()
        >>> optimizer.step()
        >>> arm.after_step(model, optimizer, step=0)
        'nothing'
        >>> arm.stored_size(model)  # (4·4 + 4 + 4·2 + 2) float32 numbers
        120
    """

    #: True if a stage of training may have a target size for this arm.
    shrinks: bool = False
    capture: CaptureScope = "whole_step"
    #: Reason why less than the whole step can be captured; empty if all of it can.
    capture_reason: str = ""
    #: The optimizers that it can be trained by; most arms are what they are by their own.
    optimizers: tuple[Optimizer, ...] = ("own",)

    def unsupported(self, cell: CellView) -> str | None:  # noqa: ARG002 (the protocol names it)
        """Explain why this arm cannot run ``cell``; None if it can."""
        return None

    def model_unsupported(self, model: nn.Module, targets: Mapping[str, str]) -> str | None:  # noqa: ARG002
        """Explain why this arm cannot train such a ``model``; None if it can. Most arms train any."""
        return None

    def adapt(self, model: nn.Module, targets: Mapping[str, str]) -> nn.Module:
        """Turn the dense ``model`` into the one this arm trains, in place, and return it.

        Raises:
            ValueError: when a target is not in the model, or is not the kind of module that its role asks for.
        """
        check_targets(model, targets)
        return model

    def leave_optimizer_to_plan(self) -> None:
        """Prepare for an optimizer that the training plan brings; called before anything else."""
        return  # rivals form their objective as they do otherwise

    @abc.abstractmethod
    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer of the adapted ``model``."""

    def objective(self, task_loss: torch.Tensor, model: nn.Module) -> torch.Tensor:  # noqa: ARG002
        """Return the loss to differentiate; rivals add nothing to the task's loss."""
        return task_loss

    def after_step(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> Change:  # noqa: ARG002
        """Act after optimizer step number ``step`` (from 0); return what changed in the model."""
        return "nothing"

    def stage_unsupported(self, stage: Stage) -> str | None:  # noqa: ARG002
        """Explain why this arm cannot train such a stage; None if it can. Rivals train every stage alike."""
        return None

    def begin_stage(self, stage: Stage, model: nn.Module, optimizer: torch.optim.Optimizer) -> Change:  # noqa: ARG002
        """Act before the first step of a stage; rivals train on."""
        return "nothing"

    def end_stage(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Change:  # noqa: ARG002
        """Act after the last step of a stage."""
        return "nothing"

    def use_task_loss(self, task_loss: Callable[[nn.Module], torch.Tensor]) -> None:
        """Take a function that forms the task loss of a batch."""
        del task_loss  # rivals have no use for it

    def sizes(self, model: nn.Module) -> dict[str, float]:  # noqa: ARG002
        """Return sizes that the arm controls; rivals control none."""
        return {}

    def factor_ranks(self, model: nn.Module) -> dict[str, int]:  # noqa: ARG002
        """Return ranks of factors that no training changes, by the layer's name; most arms have none."""
        return {}

    def rare_events(self) -> list[RareEvent]:
        """Return the work that is too rare to be seen in a median step."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """Return the arm's state for a checkpoint, beyond model and optimizer."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`; that of the rivals here is empty.

        Raises:
            ValueError: when ``state`` holds anything.
        """
        if state:
            raise ValueError(f"the state of {type(self).__name__} is always empty, but {sorted(state)} was given.")

    def stored_size(self, model: nn.Module) -> int:
        """Return the bytes that storing the trained model takes: all parameters and persistent buffers."""
        return stored_bytes(model.state_dict().values())


def check_count(field: str, value: object) -> None:
    """Raise ValueError unless ``value`` is a whole number from 1 up."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{field} is {value!r}; allowed are whole numbers from 1 up.")


def check_positive(field: str, value: object) -> None:
    """Raise ValueError unless ``value`` is a finite number above 0."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value <= 0:  # type: ignore[arg-type, operator]
        raise ValueError(f"{field} is {value!r}; allowed are finite numbers above 0.")


def check_ratio(field: str, value: float | None) -> None:
    """Raise ValueError unless ``value``, where it is given, is a finite number from 1 up."""
    if value is None:
        return
    check_positive(field, value)
    if value < 1:
        raise ValueError(f"{field} is {value!r}; allowed are finite numbers from 1 (dense) up.")


def check_flag(field: str, value: object) -> None:
    """Raise ValueError unless ``value`` is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{field} is {value!r}; allowed are True and False.")


def check_variant(method: str, variant: str, variants: tuple[str, ...]) -> None:
    """Raise ValueError unless ``variant`` is one of ``variants``."""
    if variant not in variants:
        allowed = ", ".join(repr(name) for name in variants)
        raise ValueError(f"{method}: variant is {variant!r}; allowed are: {allowed}.")


def check_targets(model: nn.Module, targets: Mapping[str, str]) -> None:
    """Raise ValueError unless every target is in ``model`` and is the kind of module that its role asks for."""
    modules = dict(model.named_modules(remove_duplicate=False))
    for name, role in targets.items():
        if role not in (*LINEAR_ROLES, EMBEDDING_ROLE):
            allowed = ", ".join((*LINEAR_ROLES, EMBEDDING_ROLE))
            raise ValueError(f"the role of target {name!r} is {role!r}; allowed are: {allowed}.")
        if not name or name not in modules:
            raise ValueError(f"target {name!r} is not in the model; name one of its submodules.")
        wanted = (nn.Embedding, nn.EmbeddingBag) if role == EMBEDDING_ROLE else (nn.Linear,)
        if not isinstance(modules[name], wanted):
            kind, allowed = type(modules[name]).__name__, " and ".join(f"nn.{one.__name__}" for one in wanted)
            raise ValueError(f"target {name!r} is a {kind}; its role {role!r} allows {allowed} only.")


def linear_targets(model: nn.Module, targets: Mapping[str, str]) -> dict[str, nn.Linear]:
    """Return the checked linear targets of ``model`` by name, in the order of ``targets``."""
    check_targets(model, targets)
    found = {name: model.get_submodule(name) for name, role in targets.items() if role in LINEAR_ROLES}
    return {name: module for name, module in found.items() if isinstance(module, nn.Linear)}


def embedding_targets(model: nn.Module, targets: Mapping[str, str]) -> dict[str, Table]:
    """Return the checked embedding targets of ``model`` by name, in the order of ``targets``."""
    check_targets(model, targets)
    found = {name: model.get_submodule(name) for name, role in targets.items() if role == EMBEDDING_ROLE}
    return {name: module for name, module in found.items() if isinstance(module, nn.Embedding | nn.EmbeddingBag)}


def replace_module(model: nn.Module, name: str, module: nn.Module) -> None:
    """Put ``module`` in the place of the submodule called ``name``, in the same mode (training or evaluation)."""
    parent_name, _, leaf = name.rpartition(".")
    module.train(model.get_submodule(name).training)
    setattr(model.get_submodule(parent_name), leaf, module)


def parameters_apart(model: nn.Module, apart: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """Return the trainable parameters of ``model`` other than those in ``apart``, each once."""
    left_out = {id(parameter) for parameter in apart}
    return [p for p in model.parameters() if p.requires_grad and id(p) not in left_out]


def fused_adamw(*groups: tuple[Iterable[nn.Parameter], float]) -> torch.optim.AdamW:
    """Return the optimizer of every arm: fused AdamW without weight decay, a group per ``(parameters, lr)``.

    Its step count lives on the device, so a step on a CUDA device can be captured in a graph.

    Example:
        >>> weight = nn.Parameter(torch.ones(1))
        >>> optimizer = fused_adamw(([weight], 0.1))
        >>> (3 * weight).sum().backward()
        >>> optimizer.step()  # Adam's first step has the length of the rate
        >>> round(weight.item(), 4)
        0.9
    """
    pairs = [(list(parameters), lr) for parameters, lr in groups]
    listed = [{"params": parameters, "lr": lr} for parameters, lr in pairs]
    on_cuda = any(parameter.is_cuda for parameters, _ in pairs for parameter in parameters)
    optimizer = torch.optim.AdamW(listed, weight_decay=0.0, fused=True, capturable=on_cuda)
    # Capturable and fused costs nothing outside a capture, so torch's advice against it would be noise.
    optimizer._warned_capturable_if_run_uncaptured = True
    return optimizer


class JoinedOptimizer(torch.optim.Optimizer):
    """Several optimizers, each with parameters of its own, as one.

    All of them work on the parameter groups and the state of this one, so schedulers, hooks, memory trackers and
    checkpoints see everything in one place. A step is a step of each, in order.

    Args:
        parts: the optimizers, freshly built.

    Raises:
        ValueError: when parts have a parameter in common (raised by torch), or a group is added later.

    Example:
        >>> one, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
        >>> joined = JoinedOptimizer(torch.optim.SGD([one], lr=0.5), fused_adamw(([other], 0.1)))
        >>> (one.sum() + other.sum()).backward()
        >>> joined.step()
        >>> one.tolist(), list(joined.state[other])
        ([0.5, 0.5], ['step', 'exp_avg', 'exp_avg_sq'])
    """

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self._complete = False
        self._parts = {part: len(part.param_groups) for part in parts}
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._share()
        self._complete = True

    def _share(self) -> None:
        """Let all parts work on this one's groups and state."""
        groups = iter(self.param_groups)
        for part, count in self._parts.items():
            part.param_groups, part.state = list(itertools.islice(groups, count)), self.state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse: every parameter is given when the optimizer is built."""
        if self._complete:
            raise ValueError(f"{type(self).__name__} takes all its parameters when it is built; add none later.")
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Step every part."""
        with torch.enable_grad():
            loss = closure() if closure is not None else None
        for part in self._parts:
            part.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore ``state_dict()``; training then continues as if it had not stopped.

        Raises:
            ValueError: when the parameter groups differ (raised by torch).
        """
        super().load_state_dict(state_dict)
        self._share()


def stored_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of ``tensors``; storage that several of them share counts once.

    Example:
        >>> table = torch.zeros(5, 2)
        >>> stored_bytes([table, table.t(), torch.zeros(3)])
        52
    """
    seen: dict[int, tuple[int, int]] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        _, used = seen.get(storage._cdata, (0, 0))
        seen[storage._cdata] = (storage.nbytes(), used + tensor.numel() * tensor.element_size())
    return sum(min(held, used) for held, used in seen.values())


class Narrowing(Protocol):
    """Protocol of a model that can say what it is like in another shape."""

    def narrowed(self, parameters: int, depth: float = 1, compression: float = 1, multiple: int = 1) -> nn.Module:
        """Return the model with about ``parameters`` parameters and ``depth`` times the blocks, newly drawn.

        Modules are named alike, and columns make up the size. It is that of the model whose matrices in blocks are then
        made ``compression`` times smaller; the features of those are multiples of ``multiple``.

        Raises:
            ValueError: none has so few, or comes within 2 %, or the depth gives no whole number of blocks; the sentence
                names the nearest.
        """


def cannot_narrow(arm: str, model: nn.Module) -> str | None:
    """Explain why an arm finds no other shape of a model; None if the model can say which there are."""
    if hasattr(model, "narrowed"):
        return None
    return f"{arm} needs a model that can be made narrower, as workload=text, pointer and teacher have."


def count(model: nn.Module) -> int:
    """Return the parameters of a model."""
    return sum(parameter.numel() for parameter in model.parameters())


def narrowed(model: Any, ratio: float, depth: float, compression: float = 1, multiple: int = 1) -> nn.Module:
    """Return a model in another shape, of ``ratio`` times fewer parameters; see :meth:`Narrowing.narrowed`."""
    found: nn.Module = model.narrowed(round(count(model) / ratio), depth, compression, multiple)
    return found.train(model.training)


def targets_at_depth(model: nn.Module, targets: Mapping[str, str]) -> dict[str, str]:
    """Return the targets of a model of another depth: those given, in as many blocks as it has."""
    roles = {_BLOCK.sub(".*.", name): role for name, role in targets.items()}
    places = {name: _BLOCK.sub(".*.", name) for name, _ in model.named_modules()}
    return {name: roles[place] for name, place in places.items() if place in roles}
