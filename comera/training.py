"""CoMERA: tensor trains whose ranks close while they are trained.

The class here has the shape of ``bench.protocol.Method`` without importing it, so that the bench can compare it:
``adapt`` tensorizes the named weights, ``optimizer`` gives cores, rank-control entries and dense
parameters their own rates, ``objective`` is that of the stage training is in: the early one, or after ``begin_stage``
with a target the late one. At the end of a stage, and on a schedule if asked, closed ranks are cut out of the cores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

import torch
from torch import nn

from comera.adaptation.closing import LATE_VARIANTS, ORDERS, Closing, LateVariant, Order
from comera.adaptation.recompression import recompress
from comera.compatibility.arguments import check_module, check_number
from comera.formats.block_linear import BlockLinear
from comera.functional import check_fused
from comera.kernels import Fused
from comera.layers import TensorTrainLayer, TTLinear
from comera.lookup import VARIANTS as LOOKUPS
from comera.lookup import Variant
from comera.modes import check_whole
from comera.objective import (
    OBJECTIVE_VARIANTS,
    RANK_REACH,
    EarlyStage,
    LateStage,
    ObjectiveVariant,
    check_weight,
    exact_size,
    full_size,
    tensorized_layers,
)
from comera.protocol import LATER, OPTIMIZERS, CellView, Change, OutOfReach, RareEvent, Reason, Stage, has_values
from comera.rank_control import THRESHOLD
from comera.ratio.model import solve_model
from comera.ratio.rank_search import check_ratio
from comera.reachability import drop_unreachable
from comera.recomputing import Recompute
from comera.specs import TT, TTM
from comera.tensor_train import Init
from comera.tensorize import tensorize
from comera.truncation import cut_closed, refuse_distributed_layers

#: Variants that keep ranks instead of activations, for the paper's objective, with what they recompute.
LEAN: dict[str, Recompute] = {"lean": "outputs", "lean_block": "block"}

#: How the names of the variants begin whose linear layers start otherwise than published
#: (:meth:`comera.layers.TTLinear.reset_parameters`); the first also before one of :data:`LEAN`.
STARTS: tuple[Init, ...] = ("orthogonal", "spectral")

#: The variant that decomposes the weights of the model that it is given, as a fine-tune does.
WEIGHTS = "weights"

#: The objectives, the paper's first, the lean variants, these with another start, and :data:`WEIGHTS`.
VARIANTS = (*OBJECTIVE_VARIANTS, *LEAN, *STARTS, *(f"{STARTS[0]}_{name}" for name in LEAN), WEIGHTS)

#: The late stage that lowers ranks once, beside those of :data:`comera.adaptation.closing.LATE_VARIANTS`.
RECOMPRESS = "recompress"

#: The published rates, as keyword arguments of :func:`parameter_groups`.
PUBLISHED_RATES: dict[str, float] = {"lr_cores": 1e-4, "lr_ranks": 1e-3, "lr_dense": 5e-5}

#: How far, in multiples of the way from 1 to 0, rank entries may move by the rate that ``rank_steps`` gives.
_REACH = 3.0

#: Modes of the paper's word embedding, as in the released code; no rule of balance gives them.
PUBLISHED_TABLE_MODES: dict[tuple[int, int], tuple[tuple[int, ...], tuple[int, ...]]] = {
    (30522, 768): ((16, 20, 10, 10), (4, 4, 8, 6)),
}


@dataclass(frozen=True)
class Settings:
    """Hyperparameters of CoMERA.

    Args:
        ranks: cap on the TT ranks of linear layers, clipped per bond.
        table_ranks: cap on the TTM ranks of the embedding.
        order: modes per side of a TT layer.
        table_order: number of TTM cores.
        ratio: how many times smaller the whole model is to be; modes and ranks of every layer are then solved for
            (:func:`comera.solve_model`, which tries the orders given here first), and ``ranks``, ``table_ranks`` and
            the published modes do not apply. None: they do.
        lookup: ``optimized``, ``plain``, ``unique`` or ``order``, see :mod:`comera.lookup`.
        lr_cores, lr_ranks, lr_dense: AdamW rates of cores, rank-control entries and everything else; the published
            ones. Three times that on cores and the rest did as well on SST-2, but learned nothing on a pool of NLI data
            (recorded searches).
        threshold: a rank whose control entry is up to this magnitude counts as closed.
        gamma: weight γ of the size surrogate in the early stage.
        beta: weight β of the squared norm of the cores, in both stages.
        loss_target: target task loss L0 of the late stage; None: the present one at every step, so that size leads
            exactly as long as it exceeds S0.
        loss_weight, size_weight: weights w1 and w2 of the distances from the target loss and size.
        rho: weight ρ of loss plus surrogate beside the larger distance. 1 + w2/ρ prices size in loss while size leads,
            ρ/(w1 + ρ) while the loss does; see :class:`comera.LateStage`.
        recovery: share of the late stage that is kept to train on at the target. Where S still exceeds S0 when it
            begins, ranks are closed in the order of their control entries (an addition of ours, not in the paper).
        truncate_every: cut closed ranks out of the cores every so many steps; 0 cuts at the end of each stage only.
        merge_jointly: merge equally shaped layers in one batch.
        merge_tf32: merge cores in TF32 on CUDA where the halves are cast to half precision; else in FP32.
        fused: ``auto``, ``kernels`` or ``torch``, see :func:`comera.tensorize`.
        drop_unreachable: close layers whose output no longer reaches the loss (:func:`comera.drop_unreachable`) before
            the late stage's target is met, so that the size is spent on others, and at the end of each stage. Off,
            since the recorded trainings are without it.
        late: how the late stage comes to its target: ``paper`` by the published price of the size; ``saliency`` or
            ``magnitude`` along a planned curve, as :class:`comera.RankPlan` does by default; ``recompress`` at its
            first step, every layer alike (:func:`comera.recompress`). Published here, since the arm stands for the
            paper.
        may_close_layers: whether a layer may close as a whole in the late stage.
    """

    ranks: int = 30
    table_ranks: int = 32
    order: int = 3
    table_order: int = 4
    ratio: float | None = field(default=None, metadata=LATER)
    lookup: str = "optimized"
    threshold: float = THRESHOLD
    lr_cores: float = 1e-4
    lr_ranks: float = 1e-3
    lr_dense: float = 5e-5
    gamma: float = 0.01
    beta: float = 1e-6
    loss_target: float | None = None
    loss_weight: float = 10.0
    size_weight: float = 10.0
    rho: float = 1.0
    recovery: float = 0.25
    truncate_every: int = 0
    merge_jointly: bool = True
    drop_unreachable: bool = field(default=False, metadata=LATER)
    late: LateVariant | Literal["recompress"] = field(default="paper", metadata=LATER)
    may_close_layers: bool = field(default=True, metadata=LATER)
    fused: Fused = field(default="auto", metadata=LATER)
    merge_tf32: bool = field(default=True, metadata=LATER)

    def __post_init__(self) -> None:
        lowest_allowed = (("ranks", 1), ("table_ranks", 1), ("order", 1), ("table_order", 2), ("truncate_every", 0))
        for name, lowest in lowest_allowed:
            if check_whole(name, getattr(self, name)) < lowest:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {lowest}.")
        rates, weights = ("lr_cores", "lr_ranks", "lr_dense"), ("gamma", "beta", "loss_weight", "size_weight", "rho")
        for name in (*rates, *weights):
            check_weight(name, getattr(self, name))
        if self.loss_target is not None and not math.isfinite(self.loss_target):
            raise ValueError(f"loss_target is {self.loss_target}; it must be a finite number or None.")
        if self.ratio is not None:
            check_ratio(self.ratio)
        if not 0 <= self.threshold < 1:
            raise ValueError(f"threshold is {self.threshold}; it must be 0 or more, and below 1, where entries begin.")
        if not 0 <= self.recovery < 1:
            raise ValueError(f"recovery is {self.recovery}; it must be 0 or more, and below 1.")
        if self.late not in (*LATE_VARIANTS, RECOMPRESS):
            raise ValueError(f"late is {self.late!r}; allowed: {', '.join((*LATE_VARIANTS, RECOMPRESS))}.")
        check_fused(self.fused)
        if self.lookup not in LOOKUPS:
            raise ValueError(f"lookup is {self.lookup!r}; allowed: {', '.join(LOOKUPS)}.")


def parameter_groups(
    model: nn.Module,
    lr_cores: float | None = None,
    lr_ranks: float | None = None,
    lr_dense: float | None = None,
    rank_steps: int | None = None,
) -> list[dict[str, Any]]:
    """Return the parameters of a model in groups with learning rates of their own, for any torch optimizer.

    Cores and everything else take the rate and the weight decay of the optimizer, unless a rate is given. Rank-control
    entries have no weight decay, because decay would close them whatever they do for the loss. They have a rate of
    their own, because Adam moves an entry by about its rate per step and a closing entry goes from 1 to 0.

    Args:
        model: tensorized or not; cores of block tensor trains are among the cores.
        lr_cores, lr_dense: rates of cores and of everything else; None: the optimizer's.
        lr_ranks: rate of rank-control entries; None: 1e-3, the published one, or what ``rank_steps`` gives.
        rank_steps: steps of the stage in which priced ranks are to close. The rate is 3 / ``rank_steps``, at most the
            threshold of 0.01 below which an entry counts as closed.

    Returns:
        Groups named ``cores``, ``ranks`` and ``dense``, empty ones left out.

    Raises:
        ValueError: both ``lr_ranks`` and ``rank_steps``, or ``rank_steps`` below 1.

    Example:
        >>> from comera import TT, tensorize
        >>> model = tensorize(nn.Sequential(nn.Linear(16, 16)), {"0": TT(ranks=2, order=2)})
        >>> optimizer = torch.optim.AdamW(parameter_groups(model, lr_dense=1e-3), lr=3e-3)
        >>> [(group["name"], group["lr"], group["weight_decay"]) for group in optimizer.param_groups]
        [('cores', 0.003, 0.01), ('ranks', 0.001, 0.0), ('dense', 0.001, 0.01)]
    """
    check_module(model)
    for name, rate in (("lr_cores", lr_cores), ("lr_ranks", lr_ranks), ("lr_dense", lr_dense)):
        if rate is not None:
            check_number(name, rate, "0 or more, and finite", lambda value: value >= 0)
    if rank_steps is not None:
        if lr_ranks is not None:
            raise ValueError("lr_ranks and rank_steps both give the rate of the rank entries; give one of them.")
        if check_whole("rank_steps", rank_steps) < 1:
            raise ValueError(f"rank_steps is {rank_steps}; it must be 1 or more.")
        lr_ranks = min(_REACH / rank_steps, THRESHOLD)
    layers = tensorized_layers(model)
    blocks = {
        core for module in model.modules() if isinstance(module, BlockLinear) for core in module.core_parameters()
    }
    cores = [*(layer.packed_cores for layer in layers), *(core for core in model.parameters() if core in blocks)]
    ranks = [layer.diagonals for layer in layers]
    special = {id(parameter) for parameter in (*cores, *ranks)}
    dense = [parameter for parameter in model.parameters() if id(parameter) not in special]
    of_ranks = {"lr": PUBLISHED_RATES["lr_ranks"] if lr_ranks is None else lr_ranks, "weight_decay": 0.0}
    named: tuple[tuple[str, list[nn.Parameter], dict[str, float]], ...] = (
        ("cores", cores, {} if lr_cores is None else {"lr": lr_cores}),
        ("ranks", ranks, of_ranks),
        ("dense", dense, {} if lr_dense is None else {"lr": lr_dense}),
    )
    return [{"name": name, "params": parameters, **options} for name, parameters, options in named if parameters]


def late_stage_too_slow(lr_ranks: float, threshold: float, steps: int) -> str | None:
    """Explain why ``lr_ranks * steps`` is too small to close ranks in the late stage; None if it is not.

    Adam moves a rank entry by at most about its rate per step, so from 1 to the threshold takes about 1/rate steps.

    Example:
        >>> late_stage_too_slow(1e-3, 0.01, 2000) is None
        True
    """
    if lr_ranks > threshold:
        return (
            f"lr_ranks is {lr_ranks:g}, so rank entries step over the threshold of {threshold:g} "
            f"below which a rank is closed; it must be at most that for a late stage."
        )
    reach = lr_ranks * steps
    if reach >= RANK_REACH:
        return None
    return (
        f"lr_ranks is {lr_ranks:g} and the late stage has {steps} steps, so a rank entry moves "
        f"by {reach:.3g} at most and cannot be relied on to reach zero; lr_ranks times steps must be at least "
        f"{RANK_REACH:g}."
    )


@dataclass
class _Late:
    """A late stage: its target and first size as fractions of the full size, and its steps until the target."""

    target: float
    start: float
    steps: int
    done: int = 0
    met: bool = False


class CoMERA:
    """The arm ``comera``: every linear weight and the embedding in tensor-train form, with rank control."""

    capture = "whole_step"
    capture_reason = ""
    shrinks = True
    optimizers = OPTIMIZERS

    def __init__(
        self,
        settings: Settings,
        variant: ObjectiveVariant,
        recompute: Recompute = "none",
        init: Init | None = "normal",  # None: cores come from the weights
    ) -> None:
        self.settings = settings
        self.variant = variant
        self._recompute, self._init = recompute, init
        # beta=0.0: the optimizer adds the gradient of β‖G‖² (see :meth:`optimizer`).
        self._objective: EarlyStage | LateStage = EarlyStage(variant, settings.gamma, beta=0.0)
        self._beta = settings.beta if variant == "paper" else 0.0
        self._objective_beta = 0.0
        self._full: int | None = None
        self._late: _Late | None = None
        self._closing: Closing | None = None
        self._saved_saliency: list[list[float]] = []
        self._size_at_deadline: float | None = None
        self._task_loss: Callable[[nn.Module], torch.Tensor] | None = None

    def unsupported(self, cell: CellView) -> str | None:  # noqa: ARG002 - every cell suits this method
        return None

    def model_unsupported(self, model: nn.Module, targets: Mapping[str, str]) -> str | None:
        """Explain why the model cannot meet the settings' ratio, with the largest it can; None if it can.

        Args:
            model: the dense model; shapes are enough, so it may be on the ``meta`` device.
            targets: as for :meth:`adapt`.
        """
        try:
            self._plan(model, targets)
        except OutOfReach as reason:
            return Reason.of(reason)
        return None

    def adapt(self, model: nn.Module, targets: Mapping[str, str]) -> nn.Module:
        """Tensorize every target; the role ``embedding`` becomes a TTM, the others TT.

        Cores are drawn, or in the variant :data:`WEIGHTS` come from the weights, where the model has values.
        """
        plan = self._plan(model, targets)
        start: Literal["scratch", "weights"] = "weights" if self._init is None and has_values(model) else "scratch"
        jointly, fused = self.settings.merge_jointly, self.settings.fused
        model = tensorize(model, plan, start, merge_jointly=jointly, recompute=self._recompute, fused=fused)
        for module in model.modules():
            if isinstance(module, TensorTrainLayer):
                module.threshold = self.settings.threshold
            if isinstance(module, TTLinear):
                module.merge_tf32 = self.settings.merge_tf32
        self._full = full_size(tensorized_layers(model))
        return model

    def _plan(self, model: nn.Module, targets: Mapping[str, str]) -> dict[str, TT | TTM]:
        settings = self.settings
        lookup = next(known for known in get_args(Variant) if known == settings.lookup)
        init = self._init
        if settings.ratio is not None:
            solved = solve_model(model, targets, settings.ratio, settings.order, settings.table_order).plan
            return {
                name: replace(to, lookup=lookup) if isinstance(to, TTM) else replace(to, init=init)
                for name, to in solved.items()
            }
        plan: dict[str, TT | TTM] = {}
        for name, role in targets.items():
            if role == "embedding":
                embedding = model.get_submodule(name)
                size = (getattr(embedding, "num_embeddings", 0), getattr(embedding, "embedding_dim", 0))
                rows, columns = PUBLISHED_TABLE_MODES.get(size, (None, None))
                plan[name] = TTM(settings.table_ranks, settings.table_order, rows, columns, lookup)
            else:
                plan[name] = TT(settings.ranks, settings.order, init=init)
        return plan

    def leave_optimizer_to_plan(self) -> None:
        """Form the term β‖G‖² in the objective, since another optimizer adds nothing to gradients."""
        self._objective_beta = self._beta
        self._objective = EarlyStage(self.variant, self.settings.gamma, self._objective_beta)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return fused AdamW without weight decay, at three rates, for the objective with its term β‖G‖².

        The gradient of that term is 2β·G, which is what Adam's L2 penalty adds to the gradient inside its fused kernel:
        the same mathematics as the term itself, without a pass over the cores. (AdamW without weight decay is Adam.)
        """
        settings = self.settings
        groups = parameter_groups(model, settings.lr_cores, settings.lr_ranks, settings.lr_dense)
        for group in groups:
            group["weight_decay"] = 2 * self._beta if group["name"] == "cores" else 0.0
        return torch.optim.Adam(groups, fused=True)

    def objective(self, task_loss: torch.Tensor, model: nn.Module) -> torch.Tensor:
        return self._objective(task_loss, model)

    def stage_unsupported(self, stage: Stage) -> str | None:
        """Explain why a stage cannot reach its target; None if it can."""
        if (stage.target is None and stage.target_mib is None) or self.settings.late != "paper":
            return None
        return late_stage_too_slow(self.settings.lr_ranks, self.settings.threshold, stage.steps)

    def begin_stage(self, stage: Stage, model: nn.Module, optimizer: torch.optim.Optimizer) -> Change:  # noqa: ARG002
        """Switch to the objective of a stage: the late one if it has a target.

        Raises:
            ValueError: a target in MiB below what the model weighs without any core.
        """
        layers = tensorized_layers(model)
        full = max(self._full or full_size(layers), 1)
        self._late = self._size_at_deadline = None
        self._objective = EarlyStage(self.variant, self.settings.gamma, self._objective_beta, full=self._full)
        if stage.target_mib is None and stage.target is None:
            return "nothing"
        if self.settings.late != "paper":
            refuse_distributed_layers("closing ranks", layers, resizes=False)
        shapes_alone = any(layer.diagonals.is_meta for layer in layers)  # whether the target is in reach is all then
        start = 1.0 if shapes_alone else exact_size(layers) / full
        if stage.target_mib is not None:
            target = _size_target(stage.target_mib, model, layers, full)
        else:
            target = (stage.target or 1.0) * start
        self._late = _Late(target, start, stage.steps - math.floor(self.settings.recovery * stage.steps))
        self._begin_late()
        return "nothing"

    def _begin_late(self) -> None:
        """Take up the objective of the late stage: the published one until its target is met, else no price."""
        settings, late = self.settings, self._late
        assert late is not None
        if settings.late == "paper" and not late.met:
            weights = settings.loss_weight, settings.size_weight, settings.rho
            target = min(late.target, 1.0)
            self._objective = LateStage(
                target, self.variant, settings.loss_target, *weights, beta=self._objective_beta, full=self._full
            )
        else:
            self._objective = EarlyStage("paper", gamma=0.0, beta=self._objective_beta, full=self._full)

    def _closing_of(self, model: nn.Module) -> Closing:
        """Return what closes the model's entries, made at the first call."""
        if self._closing is None:
            order: Order = next((each for each in ORDERS if each == self.settings.late), "magnitude")
            self._closing = Closing(tensorized_layers(model), order, self.settings.may_close_layers)
            self._closing.load_state_dict({"saliency": self._saved_saliency})
            self._saved_saliency = []
        return self._closing

    def use_task_loss(self, task_loss: Callable[[nn.Module], torch.Tensor]) -> None:
        """Take the function by which layers are found that no longer reach the loss."""
        self._task_loss = task_loss

    def _drop_unreachable(self, model: nn.Module) -> bool:
        """Close layers that no longer reach the loss, if the settings ask for it; whether there were any."""
        if not self.settings.drop_unreachable:
            return False
        if self._task_loss is None:
            raise ValueError(
                "drop_unreachable needs the loss of a batch; give it by use_task_loss before a stage ends."
            )
        return bool(drop_unreachable(model, self._task_loss))

    def end_stage(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Change:
        """Cut closed ranks out of the cores and of the optimizer's state."""
        self._drop_unreachable(model)
        return "shapes" if cut_closed(model, optimizer) else "nothing"

    def after_step(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> Change:
        """Cut closed ranks when the schedule asks for it and when the target is met; close what the curve asks for."""
        if self._late is not None and self.settings.late == RECOMPRESS:
            return self._recompress(self._late, model, optimizer)
        closing, late, every = self._closing_of(model), self._late, self.settings.truncate_every
        if late is None or not late.met:
            closing.average()
        met = False
        change: Change = "nothing"
        if late is not None:
            late.done += 1
            if self.settings.late != "paper" or late.met:
                closing.hold()
            if not late.met:
                met = self._meet(late, closing, model, optimizer)
        if met or (every and (step + 1) % every == 0):
            closing.cut()
            change = "shapes" if cut_closed(model, optimizer) else "nothing"
        if met:
            assert late is not None
            late.met, change = True, "shapes"  # a captured graph has the former objective
            self._begin_late()
        if late is not None:
            closing.mark()
        return change

    def _recompress(self, late: _Late, model: nn.Module, optimizer: torch.optim.Optimizer) -> Change:
        """Lower all ranks to the target at the first step of a late stage; do nothing later."""
        if late.met:
            return "nothing"
        cut_closed(model, optimizer)
        recompress(model, max(late.start / late.target, 1.0), optimizer)
        late.met = True
        return "shapes"

    def _meet(self, late: _Late, closing: Closing, model: nn.Module, optimizer: torch.optim.Optimizer) -> bool:
        """Go on toward the late stage's target after a step; whether it is met."""
        full = self._full or full_size(closing.layers)
        if self.settings.late != "paper":
            return closing.follow(late.done, late.steps, late.start * full, late.target * full)
        assert isinstance(self._objective, LateStage)
        if not self.settings.may_close_layers:
            closing.keep_layers_open()
        at_deadline, size = late.done == late.steps, float(self._objective.size(model).exact())
        if not at_deadline and (size > late.target or self.settings.loss_target is not None):
            return False
        if at_deadline:
            closing.hold()
            self._drop_unreachable(model)
            closing.mark()  # what it has closed stays closed
            if size > late.target:
                self._size_at_deadline = size
        closing.settle(late.target * full, optimizer)
        return True

    def cuts_after(self, step: int) -> bool:
        """Return whether :meth:`after_step` may cut ranks at a step, so that differing replicas must meet before."""
        every, late = self.settings.truncate_every, self._late
        return (late is not None and not late.met) or bool(every and (step + 1) % every == 0)

    def sizes(self, model: nn.Module) -> dict[str, float]:
        """Return S and, in the late stage, S0 as fractions of the full size; S before ranks had to be closed."""
        layers = tensorized_layers(model)
        sizes = {"size_fraction": exact_size(layers) / max(self._full or full_size(layers), 1)}
        if self._late is not None:
            sizes["size_target"] = self._late.target
        if self._size_at_deadline is not None:
            sizes["size_at_deadline"] = self._size_at_deadline
        return sizes

    def factor_ranks(self, model: nn.Module) -> dict[str, int]:  # noqa: ARG002
        """Return None: training changes the ranks of tensor trains."""
        return {}

    def rare_events(self) -> list[RareEvent]:
        return []

    def state_dict(self) -> dict[str, Any]:
        """Return the full size, the late stage as far as it is, and the averages by which entries close."""
        return {
            "full": self._full,
            "late": asdict(self._late) if self._late else None,
            "size_at_deadline": self._size_at_deadline,
            "saliency": self._closing.state_dict()["saliency"] if self._closing else [],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`, before the next step.

        Raises:
            ValueError: a state of another kind.
        """
        expected = self.state_dict()
        if set(state) != set(expected):
            raise ValueError(f"CoMERA's state has {', '.join(expected)}; got {', '.join(state) or 'none'}.")
        self._full, self._size_at_deadline = state["full"], state["size_at_deadline"]
        self._late = _Late(**state["late"]) if state["late"] else None
        self._closing, self._saved_saliency = None, state["saliency"]
        self._objective = EarlyStage(self.variant, self.settings.gamma, self._objective_beta, full=self._full)
        if self._late is not None:
            self._begin_late()

    def stored_size(self, model: nn.Module) -> int:
        """Return the bytes of all parameters and buffers, rank-control entries included, shared ones once."""
        tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def _size_target(target_mib: float, model: nn.Module, layers: list[TensorTrainLayer], full: int) -> float:
    """Return S0 for a whole model of so many MiB in FP32, with the rank-control entries as they are now."""
    entries = target_mib * 2**20 / 4
    cores = sum(layer.packed_cores.numel() for layer in layers)
    ranks = sum(layer.diagonals.numel() for layer in layers)
    others = sum(parameter.numel() for parameter in model.parameters()) - cores
    if entries < others - ranks:
        smallest = math.ceil((others - ranks) * 400 / 2**20) / 100  # rounded up, so that it is within reach
        raise ValueError(
            f"target_mib is {target_mib:g}; what stays dense weighs {smallest:.2f} MiB, the smallest size within reach."
        )
    return min(max((entries - others) / full, 1 / full), 1.0)


def build(settings: Settings, variant: str) -> CoMERA:
    """Build CoMERA with these settings; ``variant`` is one of :data:`VARIANTS`, empty for the paper's own.

    Raises:
        ValueError: an unknown variant.
    """
    if variant and variant not in VARIANTS:
        raise ValueError(f"variant is {variant!r}; allowed: {', '.join(VARIANTS)}.")
    if variant == WEIGHTS:
        return CoMERA(settings, OBJECTIVE_VARIANTS[0], init=None)
    init: Init = next((start for start in STARTS if variant.startswith(start)), "normal")
    form = variant.removeprefix(init).removeprefix("_")
    objective: ObjectiveVariant = next((name for name in OBJECTIVE_VARIANTS if name == form), OBJECTIVE_VARIANTS[0])
    return CoMERA(settings, objective, LEAN.get(form, "none"), init)
