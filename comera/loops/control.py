"""Rank control without a change of the loss: its gradients are added by hooks of the optimizer's step.

What rank control adds to the task loss L depends on the parameters alone, so its gradient needs no part in the backward
pass of the loop. The objectives of :mod:`comera.objective` stay the only place of the mathematics: one of them is
called with a number in place of L, and differentiated by that number and by the parameters. By the chain rule

    gradient of the objective = ∂objective/∂L · gradient of L + ∂objective/∂parameters

where the first factor is 1 in the early stage and ρ or w1 + ρ in the published late one, by whether size leads. There
the whole is divided by it, so that a norm to which the loop has clipped the gradient of the task stays that norm. In
the early stage the sums are those that autograd forms for the whole objective, to the bit, unless the task loss reaches
a chain by several ways, whose contributions autograd then adds in another order.

The late stage follows a planned curve by default (:mod:`comera.adaptation.closing`), which adds no gradient.

Around a step of the optimizer:

* before it, gradients of the loop have been accumulated, unscaled (or are scaled, with ``optimizer.grad_scale`` saying
  by what, as torch's fused optimizers have it) and clipped. Clipping is therefore of the task's gradient alone.
  Where a closure is given, as by Lightning, the gradients are there once it has run.
* after it, steps are counted, ranks are cut out of the cores and of the optimizer's state when the plan says so.

A step that a ``GradScaler`` leaves out is none, nor is one by which a tool fills an optimizer's state before it saves
or loads it (:mod:`comera.loops.dummy_step`). The state of the plan is in the optimizer's state dict, the ranks are in
the model's, so that both resume in whatever way the loop saves and loads them. It is there twice: beside the state, and
in the first parameter group, which is all that ``torch.distributed.checkpoint`` and bitsandbytes save and load.
"""

from __future__ import annotations

import inspect
import itertools
import math
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from comera.adaptation.closing import LATE_VARIANTS, LEAST, Closing, LateVariant, Order, least_size
from comera.compatibility.arguments import check_module, check_number, check_optimizer, check_switch
from comera.compatibility.optimizer_states import check_states, unwrapped
from comera.layers import RANKS, TensorTrainLayer
from comera.loops.dummy_step import FilledStates, is_dummy_step
from comera.modes import check_whole
from comera.objective import EarlyStage, LateStage, ModelSize, exact_size, full_size, tensorized_layers
from comera.training import late_stage_too_slow
from comera.truncation import cut_closed, ranks_of, refuse_distributed_layers, set_ranks

#: Where the state of a plan is in an optimizer's state dict.
STATE = "comera"


@dataclass(frozen=True)
class RankPlan:
    """Schedule of the ranks during training, counted in steps of the optimizer.

    First ``free_steps`` without any control; then an early stage, which pulls rank entries down by their price (paper,
    section 3.2) and cuts the closed ones at its end; then a late stage that brings the cores to a target. After it
    training goes on at that size, and no rank opens or closes. Where a stage prices rank entries, their group keeps its
    rate, whatever a schedule does.

    The late stage closes entries along a cubic curve, by saliency: to first order, by how much the loss changes without
    an entry (:mod:`comera.adaptation.closing`). The published late stage (``variant="paper"``) prices the size until
    its target is met; on small models it closed whole layers, since all its entries fall alike.

    Args:
        early_steps: length of the early stage, 0 or more.
        late_steps: length of the late stage; together with a target.
        size_target: the size of the cores to reach, as a fraction, above 0 and at most 1.
        recovery: the share of the late stage that is left to train on at the target.
        truncate_every: cut closed ranks every so many steps as well; 0: at the ends of stages and at the target only.
        gamma, beta, loss_weight, size_weight, rho: weights of the terms, as of :class:`comera.EarlyStage` and, for
            ``variant="paper"``, :class:`comera.LateStage`.
        free_steps: steps before any control, 0 or more.
        parameters: core entries of all tensorized layers to reach, instead of ``size_target``.
        of: what ``size_target`` is a fraction of: ``"present"``, the size when the late stage begins, or ``"start"``,
            the size when :func:`comera.control_ranks` is called.
        variant: how the late stage chooses what closes: ``"saliency"``, ``"saliency_per_parameter"`` that it frees,
            ``"magnitude"`` of entries, or ``"paper"``.
        may_close_layers: whether a layer may close as a whole; it then passes its bias alone.

    Raises:
        ValueError: a number outside what is allowed, a late stage without a target or with two, or a plan without a
            step.

    Example:
        >>> RankPlan(free_steps=1000, late_steps=4000, size_target=0.5).deadline
        3400
    """

    early_steps: int = 0
    late_steps: int = 0
    size_target: float | None = None
    recovery: float = 0.4
    truncate_every: int = 0
    gamma: float = 0.01
    beta: float = 1e-6
    loss_weight: float = 10.0
    size_weight: float = 10.0
    rho: float = 1.0
    free_steps: int = 0
    parameters: int | None = None
    of: Literal["present", "start"] = "present"
    variant: LateVariant = "saliency"
    may_close_layers: bool = True

    def __post_init__(self) -> None:
        for name in ("early_steps", "late_steps", "truncate_every", "free_steps"):
            if check_whole(name, getattr(self, name)) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 0 or more.")
        if self.size_target is not None and self.parameters is not None:
            raise ValueError("size_target and parameters are two targets of one late stage; give one of them.")
        if self.parameters is not None and check_whole("parameters", self.parameters) < 1:
            raise ValueError(f"parameters is {self.parameters}; it must be 1 or more.")
        if self.has_target != (self.late_steps > 0):
            raise ValueError("late_steps and a target, size_target or parameters, go together: give both or neither.")
        if not self.early_steps + self.late_steps:
            raise ValueError("early_steps and late_steps are 0, so the plan has no step; give one of them a length.")
        check_number("recovery", self.recovery, "0 or more, and below 1", lambda value: 0 <= value < 1)
        check_switch("may_close_layers", self.may_close_layers)
        for name, value, allowed in (
            ("of", self.of, ("present", "start")),
            ("variant", self.variant, LATE_VARIANTS),
        ):
            if value not in allowed:
                raise ValueError(f"{name} is {value!r}; allowed: {', '.join(allowed)}.")
        self.early()
        self.late(1.0 if self.size_target is None else self.size_target)

    @property
    def has_target(self) -> bool:
        """True for a plan with a late stage."""
        return self.size_target is not None or self.parameters is not None

    @property
    def late_begins(self) -> int:
        """The number of steps before the late stage."""
        return self.free_steps + self.early_steps

    @property
    def steps(self) -> int:
        """All steps of the plan."""
        return self.late_begins + self.late_steps

    @property
    def deadline(self) -> int | None:
        """The step after which the target is met, if there is one."""
        return self.steps - math.floor(self.recovery * self.late_steps) if self.has_target else None

    @property
    def order(self) -> Order:
        """The order in which the late stage closes entries by itself."""
        return "magnitude" if self.variant == "paper" else self.variant

    def early(self, full: int | None = None) -> EarlyStage:
        """Return the objective of the early stage, with the core entries that count as 1."""
        return EarlyStage(gamma=self.gamma, beta=self.beta, full=full)

    def late(self, size_target: float, full: int | None = None) -> LateStage:
        """Return the objective of the late stage, with S0 as a fraction of ``full``."""
        weights = self.loss_weight, self.size_weight, self.rho, self.beta
        return LateStage(size_target, "paper", None, *weights, full)


class RankControl:
    """Rank control of a model by the steps of its optimizer; made by :func:`control_ranks`.

    Attributes:
        plan: what is done.
        step: steps of the optimizer so far.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, plan: RankPlan) -> None:
        _check_kinds(model, optimizer, plan)
        self.plan, self.step = plan, 0
        self._model, self._optimizer = model, optimizer
        self._layers = tensorized_layers(model)
        self._full = full_size(self._layers)
        self._size_target: float | None = None
        self._size_at_deadline: float | None = None
        self._late_start = 1.0  # the size when the late stage began
        self._met = False  # whether the late stage has met its target
        self._closing = Closing(self._layers, plan.order, plan.may_close_layers)
        self._checked = self._states_checked = False
        self._is_dummy, self._filled = False, FilledStates()
        self._objective: EarlyStage | LateStage | None = None
        self._rank_rates = {
            group["params"][0]: group.get("initial_lr", group["lr"]) for group in self._rank_groups(optimizer)
        }
        self._scheduled: list[tuple[dict[str, Any], Any]] = []  # groups with the rates that they get back after a step
        self._begin()
        for group in optimizer.param_groups:
            group.pop(STATE, None)  # of another run's control
        # A compiled step breaks its graph there: stages, cuts and checks of states are decided by plain Python.
        self._handles = [
            optimizer.register_step_pre_hook(torch.compiler.disable(self._before_step)),
            optimizer.register_step_post_hook(torch.compiler.disable(self._after_step)),
            optimizer.register_state_dict_post_hook(self._save),
            optimizer.register_load_state_dict_pre_hook(self._load),
            model.register_state_dict_post_hook(_save_ranks),
            model.register_load_state_dict_pre_hook(_load_ranks),
        ]

    @property
    def stage(self) -> str:
        """``"free"``, ``"early"``, ``"late"`` or ``"over"``."""
        if self.step >= self.plan.steps:
            return "over"
        if self.step < self.plan.free_steps:
            return "free"
        return "early" if self.step < self.plan.late_begins else "late"

    def sizes(self) -> dict[str, float]:
        """Return S, S0 and closed S as fractions of the full size, open ranks, and parameters of the model.

        S0 and the S at which ranks had to be closed are there once they exist.
        """
        ranks = sum(sum(layer.active_ranks()) for layer in self._layers)
        parameters = sum(parameter.numel() for parameter in self._model.parameters())
        sizes = {"size": exact_size(self._layers) / max(self._full, 1), "ranks": ranks, "parameters": parameters}
        optional = {"size_target": self._size_target, "size_at_deadline": self._size_at_deadline}
        return sizes | {name: value for name, value in optional.items() if value is not None}

    def remove(self) -> None:
        """Leave optimizer and model to themselves; what has been cut stays cut."""
        for handle in self._handles:
            handle.remove()

    def _begin(self) -> None:
        """Take up the objective of the present stage."""
        plan, full = self.plan, max(self._full, 1)
        self._objective = None
        if self.stage == "early":
            self._objective = plan.early(self._full)
        elif self.stage == "late":
            if self._size_target is None:
                self._late_start = exact_size(self._layers) / full
                if plan.parameters is not None:
                    self._size_target = plan.parameters / full
                else:
                    assert plan.size_target is not None
                    self._size_target = plan.size_target * (self._late_start if plan.of == "present" else 1.0)
            if plan.variant == "paper" and self._size_target and not self._met:  # 0 where nothing is left
                self._objective = plan.late(min(self._size_target, 1.0), self._full)

    @property
    def _holds(self) -> bool:
        """True while a step alone may neither open nor close an entry."""
        if not self.plan.has_target or self.stage in ("free", "early"):
            return False
        return self.plan.variant != "paper" or self._met

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Add the gradients; behind a closure, whose task it is to form them, where there is one."""
        self._take_up(optimizer)
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)  # args[0] is the optimizer
        if closure is None:
            self._add_gradients()
            return None

        def with_gradients() -> Any:
            loss = closure()
            self._add_gradients()
            return loss

        if "closure" in kwargs:
            return args, {**kwargs, "closure": with_gradients}
        return (args[0], with_gradients, *args[2:]), kwargs

    def _add_gradients(self) -> None:
        if not self._checked:  # a wrapper may have come after the optimizer
            refuse_distributed_layers("control_ranks", self._layers)
            self._checked = True
        self._is_dummy = is_dummy_step(self._optimizer)
        if self._is_dummy:
            self._filled.before(self._optimizer)
            return
        self._filled.empty(self._optimizer)
        scale = getattr(self._optimizer, "grad_scale", None)
        if self.plan.has_target and not self._met:
            self._closing.average(1.0 if scale is None else scale)
        self._closing.mark()
        if self._objective is None:
            return
        for group in self._rank_groups(self._optimizer):  # a schedule would leave entries between open and closed
            self._scheduled.append((group, group["lr"]))
            group["lr"] = self._rank_rates.get(group["params"][0], group["lr"])
        parameters = _trained(self._layers)
        with torch.enable_grad():
            loss = torch.zeros((), device=parameters[0].device, dtype=parameters[0].dtype, requires_grad=True)
            objective = self._objective(loss, self._model)
            weight, *slopes = torch.autograd.grad(objective, [loss, *parameters], allow_unused=True)
        for parameter, slope in zip(parameters, slopes, strict=True):
            if slope is None:
                continue
            slope = slope / weight
            if scale is not None:
                slope = slope * scale.to(slope.device)
            parameter.grad = slope if parameter.grad is None else parameter.grad.add_(slope)

    def _rank_groups(self, optimizer: Optimizer) -> list[dict[str, Any]]:
        """Return the groups that hold rank entries alone."""
        entries = {layer.diagonals for layer in self._layers}
        return [group for group in optimizer.param_groups if group["params"] and entries.issuperset(group["params"])]

    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        """Count the step, and cut ranks where the plan says so."""
        while self._scheduled:
            group, rate = self._scheduled.pop()
            group["lr"] = rate
        if self._is_dummy:
            self._filled.after(optimizer)
            return
        if not self._states_checked:  # before the first step there are none
            _check_states(optimizer, self._layers)
            self._states_checked = True
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is not None and float(found_inf):
            return
        plan, was = self.plan, self.stage
        holds = self._holds
        self.step += 1
        if holds:
            self._closing.hold()
        if was == "over":
            return
        met = False
        if was == "late" and not self._met:
            met = self._meet_by_price() if plan.variant == "paper" else self._follow_curve()
        due = bool(plan.truncate_every) and self.step % plan.truncate_every == 0
        if met or due or was != self.stage:
            self._closing.cut()
            cut_closed(self._model, optimizer)
        if met:
            self._met = True
            self._begin()
            self._warn_of_size()
        if was != self.stage:
            self._begin()

    def _follow_curve(self) -> bool:
        """Close what the curve asks for; whether its end is reached."""
        assert self._size_target is not None
        assert self.plan.deadline is not None
        begun = self.plan.late_begins
        sizes = self._late_start * self._full, self._size_target * self._full
        return self._closing.follow(self.step - begun, self.plan.deadline - begun, *sizes)

    def _meet_by_price(self) -> bool:
        """Look whether the published objective has met the target; at the deadline, close what is still above it."""
        target = self._size_target or 0.0
        if not self.plan.may_close_layers:
            self._closing.keep_layers_open()
        size = float(ModelSize(self._model, self._full).exact())
        if size > target:
            if self.step != self.plan.deadline:
                return False
            self._size_at_deadline = size
        self._closing.settle(target * self._full, self._optimizer)
        return True

    def _warn_of_size(self) -> None:
        """Warn where the size is not that of the plan."""
        target, size = self._size_target or 0.0, exact_size(self._layers) / max(self._full, 1)
        if not LEAST * target <= size <= target * (1 + 1e-9):
            warnings.warn(
                f"the late stage ends at {size:.4g} of the size at the start, and its target is {target:.4g}: "
                f"the cores have {exact_size(self._layers):,} entries left; ranks are whole numbers, so give a target "
                "that they can reach.",
                stacklevel=5,  # behind the hook, the wrapper that keeps it out of graphs, and the optimizer's own
            )

    def _save(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        self._take_up(optimizer)
        state_dict[STATE] = {
            "plan": asdict(self.plan),
            "step": self.step,
            "full": self._full,
            "size_target": self._size_target,
            "size_at_deadline": self._size_at_deadline,
            "late_start": self._late_start,
            "met": self._met,
            **self._closing.state_dict(),
            "ranks": {name: list(ranks) for name, ranks in ranks_of(self._model).items()},
        }
        state_dict["param_groups"][0][STATE] = state_dict[STATE]  # the groups are copies

    def _load(self, _: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        groups = [dict(group) for group in state_dict["param_groups"]]
        in_group = [group.pop(STATE, None) for group in groups]
        state = state_dict.get(STATE, next(filter(None, in_group), None))
        if state is None:
            raise ValueError(
                "the optimizer's state dict has no state of rank control; it was saved without comera.control_ranks, "
                "and can be loaded before it is called."
            )
        self._load_state(state)
        return {**state_dict, "param_groups": groups}

    def _take_up(self, optimizer: Optimizer) -> None:
        """Load the plan's state from a group, where an optimizer that calls no hooks has loaded it."""
        for group in optimizer.param_groups:
            if STATE in group:
                self._load_state(group.pop(STATE))

    def _load_state(self, state: Any) -> None:
        known = ("plan", "step", "full", "size_target", "size_at_deadline", "late_start", "met", "saliency", "ranks")
        if not isinstance(state, dict) or any(name not in state for name in known):
            raise ValueError(f"the state of rank control in the optimizer's state dict is damaged; it has {known}.")
        for name, ranks in ranks_of(self._model).items():
            if list(ranks) != list(state["ranks"].get(name, ())):
                raise ValueError(
                    f"{name or 'the model'} has ranks {list(ranks)}, and the optimizer's state dict was saved with "
                    f"{state['ranks'].get(name, 'none')}; load the state dict of the model first."
                )
        self.step, self._full = state["step"], state["full"]
        self._size_target, self._size_at_deadline = state["size_target"], state["size_at_deadline"]
        self._late_start, self._met = state["late_start"], state["met"]
        self._closing.load_state_dict(state)
        self._begin()


def control_ranks(model: nn.Module, optimizer: Optimizer, plan: RankPlan) -> RankControl:
    """Have an optimizer control the ranks of a tensorized model, for any loop and any loss.

    From here on each step of the optimizer is one of the plan. In the early stage it is as if the loss had been that of
    :class:`comera.EarlyStage`; in the late one entries close along the plan's curve, and :func:`comera.truncate` cuts
    them at the target and at the end of each stage.

    Args:
        model: a tensorized model.
        optimizer: one that holds its cores and rank entries, such as of :func:`comera.parameter_groups`; or a wrapper
            of accelerate around it.
        plan: the stages.

    Returns:
        The control, which tells where it is; it need not be kept.

    Raises:
        ValueError: a target above the present size, or below what is left when all that may close is closed; a model
            without a tensorized layer that is trained, one in half precision, a plan that is none, an
            optimizer that does not hold all cores and rank entries or is under control already. From a step: parameters
            that are sharded over processes or managed by DistributedDataParallel. From loading a state dict: one
            without the plan's state, or of other ranks than the model has.

    Warns:
        UserWarning: if rank entries move too slowly, or too fast, to close in a stage that prices them; from the step
            that ends the late stage, if its size is below 0.95 of the target or above it.

    Example:
        >>> from comera import TT, parameter_groups, tensorize
        >>> model = tensorize(nn.Sequential(nn.Linear(16, 16)), {"0": TT(ranks=2, order=2)})
        >>> optimizer = torch.optim.AdamW(parameter_groups(model), weight_decay=0.0)
        >>> control = control_ranks(model, optimizer, RankPlan(late_steps=2, size_target=0.5, recovery=0.0))
        >>> for _ in range(2):
        ...     model(torch.ones(1, 16)).sum().backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        >>> control.step, control.stage
        (2, 'over')
    """
    _check_kinds(model, optimizer, plan)
    optimizer = unwrapped(optimizer)
    layers = tensorized_layers(model)
    if not layers:
        raise ValueError("the model has no tensorized layer, so there is no rank to control; call comera.tensorize.")
    if not any(layer.diagonals.requires_grad for layer in layers):
        raise ValueError("all rank entries of the model are frozen, so there is no rank to control.")
    plan.early().size(model)
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    missing = sum(id(parameter) not in held for parameter in _trained(layers))
    if missing:
        raise ValueError(
            f"the optimizer lacks {missing} of the {len(_trained(layers))} parameters with cores and rank entries; "
            "make it after comera.tensorize, of comera.parameter_groups(model)."
        )
    hooks = map(inspect.unwrap, optimizer._optimizer_step_pre_hooks.values())
    present = (getattr(hook, "__self__", None) for hook in hooks)
    if any(isinstance(owner, RankControl) for owner in present):
        raise ValueError("the optimizer is under rank control already; call remove() of that one first.")
    _check_states(optimizer, layers)
    _check_target(layers, plan)
    _warn_of_rates(layers, optimizer, plan)
    return RankControl(model, optimizer, plan)


def _check_kinds(model: object, optimizer: object, plan: object) -> None:
    if not isinstance(plan, RankPlan):
        raise ValueError(f"plan is a {type(plan).__name__}; give a comera.RankPlan.")
    check_module(model)
    check_optimizer(optimizer)


def _trained(layers: Iterable[TensorTrainLayer]) -> list[nn.Parameter]:
    """Return the cores and the rank entries that are not frozen."""
    parameters = itertools.chain.from_iterable((layer.diagonals, layer.packed_cores) for layer in layers)
    return [parameter for parameter in parameters if parameter.requires_grad]


def _check_states(optimizer: Optimizer, layers: Iterable[TensorTrainLayer]) -> None:
    """Raise ValueError if the optimizer's state could not be cut along with the ranks."""
    instead = "use one whose states have the shapes of its parameters, such as torch.optim.AdamW"
    check_states("control_ranks", optimizer, _trained(layers), instead)


def _check_target(layers: list[TensorTrainLayer], plan: RankPlan) -> None:
    """Raise ValueError over a target that the present cores cannot reach."""
    if not plan.has_target:
        return
    present, least = exact_size(layers), least_size(layers, plan.may_close_layers)
    if plan.parameters is not None:
        name, wanted = f"parameters is {plan.parameters:,}", float(plan.parameters)
    else:
        name, wanted = f"size_target is {plan.size_target:g}", (plan.size_target or 0.0) * full_size(layers)
    if wanted > full_size(layers) or (plan.parameters is not None and wanted > present):
        raise ValueError(f"{name}, and the cores have {present:,} open entries; give a smaller target.")
    if wanted < least:
        raise ValueError(
            f"{name}, and with may_close_layers=False at least {least:,} of {full_size(layers):,} core entries remain; "
            "give a larger target, or allow layers to close."
        )


def _warn_of_rates(layers: Iterable[TensorTrainLayer], optimizer: Optimizer, plan: RankPlan) -> None:
    """Warn where the rank entries cannot cross from 1 to the threshold within a stage that prices them."""
    if plan.has_target:
        steps, behind = plan.late_steps, "What is open at the deadline is closed then."
    else:
        steps, behind = plan.early_steps, "No rank closes then."
    if (plan.has_target and plan.variant != "paper") or (not plan.has_target and not plan.gamma):
        return
    entries = {id(layer.diagonals): layer.threshold for layer in layers}
    for group in optimizer.param_groups:
        thresholds = [entries[id(each)] for each in group["params"] if id(each) in entries]
        if not thresholds:
            continue
        rate = float(group.get("initial_lr", group["lr"]))  # a scheduler may have begun
        if reason := late_stage_too_slow(rate, min(thresholds), steps):
            reason = reason if plan.has_target else reason.replace("late stage", "early stage")
            warnings.warn(f"{reason} {behind}", stacklevel=3)
            return


def _save_ranks(model: nn.Module, state_dict: dict[str, Any], prefix: str, _: Any) -> None:
    ranks = [rank for ranks in ranks_of(model).values() for rank in ranks]
    if ranks:  # else it has been made dense
        state_dict[prefix + RANKS] = torch.tensor(ranks, dtype=torch.long)


def _load_ranks(model: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Give the model the ranks that are saved with its parameters, before they are loaded.

    Raises:
        ValueError: ranks that do not fit the model, or the cores that come with them; nothing is changed then.
    """
    saved = state_dict.pop(prefix + RANKS, None)
    if saved is None:
        return
    modules = dict(model.named_modules())
    names, left = ranks_of(model), saved.tolist()
    if len(left) != sum(map(len, names.values())):
        raise ValueError(
            f"the state dict has {len(left)} ranks, and the model has {sum(map(len, names.values()))} bonds; it was "
            "saved from a model that was tensorized otherwise."
        )
    under: dict[nn.Parameter, list[str]] = {}  # a state dict may hold cores that are shared under one of their names
    for name, parameter in model.named_parameters(remove_duplicate=False):
        under.setdefault(parameter, []).append(prefix + name)
    wanted: dict[str, list[int]] = {}
    for name, ranks in names.items():
        wanted[name], left = left[: len(ranks)], left[len(ranks) :]
        layer = modules[name]
        assert isinstance(layer, TensorTrainLayer)
        size = layer.shape.with_ranks(wanted[name]).parameter_count
        if size not in {state_dict[key].numel() for key in under[layer.packed_cores] if key in state_dict}:
            raise ValueError(f"the state dict has no cores of {name or 'the model'} with the ranks that it names.")
    set_ranks(model, wanted)
