"""Dense training under fused AdamW, the yardstick of every comparison.

The variants train the embedding tables among the targets with sparse gradients (``nn.Embedding.sparse``), which hold
the rows that a batch looked up instead of the whole table, and update those rows alone:

* ``sparse``: by torch's SparseAdam, whose two moments have the table's size;
* ``row_wise``: by row-wise Adagrad, which keeps one number per row;
* ``sgd``: by plain gradient descent, as all other parameters too, which keeps nothing: DLRM's own first choice.

The variant ``adamw8bit`` trains everything densely with AdamW's moments in 8 bits, by bitsandbytes
(:mod:`baselines._eight_bit`), as a user short of memory would.

The variant ``narrow`` is a dense model of the size of a compressed one: the same model with fewer columns everywhere.
A claim of compression needs it as its rival. It takes a model that can say what it is like narrower
(:class:`baselines._arm.Narrowing`), as those of the workloads text and teacher do.

The variant ``small`` is that rival in another shape: the blocks times ``depth``, and the columns that give the size.

The variant ``pruned`` starts as the dense model and loses whole attention heads and inner columns in a late stage
(:mod:`baselines._pruning`), as a user without tensor trains would make it smaller.

The first three are the strongest uncompressed tables. All other parameters stay under fused AdamW, but for ``sgd``. A
row that no batch looks up keeps its value; under AdamW it would move on by its old moments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from baselines._arm import (
    JoinedOptimizer,
    TrainedArm,
    cannot_narrow,
    check_positive,
    check_ratio,
    check_targets,
    check_variant,
    embedding_targets,
    fused_adamw,
    narrowed,
    parameters_apart,
    targets_at_depth,
)
from baselines._eight_bit import EightBitWithFusedAdamW
from baselines._pruning import Pruning, parts_of, resize_as_loaded
from comera.protocol import LATER, OPTIMIZERS, CaptureScope, Change, Optimizer, Stage

NARROW, SMALL, EIGHT_BIT, PRUNED = "narrow", "small", "adamw8bit", "pruned"

VARIANTS = ("", "sparse", "row_wise", "sgd", NARROW, SMALL, EIGHT_BIT, PRUNED)

#: The share of a late stage that is kept to train on at the target, where no setting says so.
_RECOVERY = 0.25

#: The variants that a job's ratio is meant for.
RATIO_VARIANTS = (NARROW, SMALL)


@dataclass(frozen=True)
class Settings:
    """Hyperparameters of dense training.

    Args:
        lr: constant rate of AdamW; the rate that the paper's code gives dense parameters.
        lr_tables: rate of tables with sparse gradients, whose optimizers need other ones. None: as ``lr``.
        ratio: how many times fewer parameters the variants ``narrow`` and ``small`` have than the model, which they
            need; the others have no use for it.
        depth: how many times the blocks of the model the variant ``small`` has, which it needs; such as 0.5, 0.75 or
            1.5.
        recovery: share of the late stage in which the variant ``pruned`` trains on at its target; None: a quarter.

    Raises:
        ValueError: when a rate is not a finite number above 0, a ratio is below 1, or a share is not between 0 and 1.
    """

    lr: float = 5e-5
    lr_tables: float | None = field(default=None, metadata=LATER)
    ratio: float | None = field(default=None, metadata=LATER)
    depth: float | None = field(default=None, metadata=LATER)
    recovery: float | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        check_positive("dense.lr", self.lr)
        if self.lr_tables is not None:
            check_positive("dense.lr_tables", self.lr_tables)
        check_ratio("dense.ratio", self.ratio)
        if self.depth is not None:
            check_positive("dense.depth", self.depth)
        if self.recovery is not None:
            check_positive("dense.recovery", self.recovery)
            if self.recovery >= 1:
                raise ValueError(f"dense.recovery is {self.recovery:g}; allowed are numbers above 0 and below 1.")


class RowWiseAdagrad(torch.optim.Optimizer):
    """Adagrad with one number of state per row of a table, for sparse gradients.

    With g the gradient (D,) of a row, summed over all places that looked it up, and s the row's state, from 0 on:
    ``s += mean(g²)``, then ``row -= lr · g / (√s + eps)``. Rows without a gradient are neither read nor written.
    Source: the row-wise Adagrad of DLRM's tables, arXiv 2104.05158, and facebookresearch/dlrm, optim/rwsadagrad.py.

    Args:
        tables: weights, each (V, D), or parameter groups of them.
        lr: rate.
        eps: what keeps the division finite.

    Raises:
        ValueError: in a step, when a gradient is not sparse.

    Example:
        >>> table = nn.Embedding.from_pretrained(torch.ones(3, 2), freeze=False, sparse=True)
        >>> optimizer = RowWiseAdagrad(table.parameters(), lr=0.5)
        >>> table(torch.tensor([2, 2])).sum().backward()  # the gradient of the row is (2, 2), its state 4
        >>> optimizer.step()
        >>> torch.stack([table.weight[:, 0], optimizer.state[table.weight]["sum"]])
        tensor([[1.0000, 1.0000, 0.5000],
                [0.0000, 0.0000, 4.0000]], grad_fn=<StackBackward0>)
    """

    def __init__(self, tables: Iterable[Any], lr: float, eps: float = 1e-8) -> None:
        super().__init__(tables, {"lr": lr, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update the rows that have a gradient."""
        with torch.enable_grad():
            loss = closure() if closure is not None else None
        for group in self.param_groups:
            for table in group["params"]:
                if table.grad is not None:
                    self._update(table, table.grad, group["lr"], group["eps"])
        return loss

    def _update(self, table_VD: torch.Tensor, gradient: torch.Tensor, lr: float, eps: float) -> None:
        if not gradient.is_sparse:
            raise ValueError(
                f"the gradient of a table of shape {tuple(table_VD.shape)} is dense; "
                "row-wise Adagrad takes sparse ones, as nn.Embedding(sparse=True) gives."
            )
        gradient = gradient.coalesce()
        rows_U, gradient_UD = gradient._indices()[0], gradient._values()
        state = self.state[table_VD]
        if not state:
            state["sum"] = table_VD.new_zeros(table_VD.shape[0])
        lengths_U = torch.linalg.vector_norm(gradient_UD, dim=1)
        sums_U = state["sum"].index_select(0, rows_U).addcmul_(lengths_U, lengths_U, value=1 / table_VD.shape[1])
        state["sum"].index_copy_(0, rows_U, sums_U)
        step_UD = gradient_UD / sums_U.sqrt_().add_(eps).unsqueeze(1)
        # Adding a sparse tensor runs over rows in parallel; index_add_ takes many times as long on a CPU.
        step = torch.sparse_coo_tensor(
            gradient._indices(), step_UD, table_VD.shape, check_invariants=False, is_coalesced=True
        )
        table_VD.add_(step, alpha=-lr)


class Dense(TrainedArm):
    """Dense training with fused AdamW and no weight decay."""

    optimizers: tuple[Optimizer, ...] = OPTIMIZERS
    variant = ""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def model_unsupported(self, model: nn.Module, targets: Mapping[str, str]) -> str | None:  # noqa: ARG002
        """Explain why the settings do not suit the variant; None if they do."""
        for name, variants in (("ratio", RATIO_VARIANTS), ("depth", (SMALL,)), ("recovery", (PRUNED,))):
            if (given := getattr(self.settings, name)) is not None and self.variant not in variants:
                allowed = " and ".join(f"dense:{variant}" for variant in variants)
                return f"settings.dense.{name} is {given:g}, which is for {allowed} alone; leave it out."
        return None

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return fused AdamW over every trainable parameter."""
        return fused_adamw((parameters_apart(model, ()), self.settings.lr))


class EightBit(Dense):
    """Dense training under AdamW with moments of 8 bits."""

    optimizers = ("own",)
    capture: CaptureScope = "forward_backward"
    capture_reason = (
        "bitsandbytes is given the number of the step by Python: a captured optimizer step would repeat that of the "
        "step that was captured."
    )

    def optimizer(self, model: nn.Module) -> EightBitWithFusedAdamW:
        """Build AdamW with moments of 8 bits; parameters below 4,096 entries have moments of 32 bits."""
        return EightBitWithFusedAdamW(parameters_apart(model, ()), self.settings.lr)


class Narrow(Dense):
    """Dense training of a model with fewer parameters, of as many blocks (``narrow``) or of others (``small``)."""

    def __init__(self, settings: Settings, variant: str) -> None:
        super().__init__(settings)
        self.variant = variant

    def model_unsupported(self, model: nn.Module, targets: Mapping[str, str]) -> str | None:
        """Explain why there is no model of the wanted size and shape; None if there is one. Shapes suffice."""
        if reason := super().model_unsupported(model, targets):
            return reason
        if reason := cannot_narrow(f"dense:{self.variant}", model):
            return reason
        if self.settings.ratio is None:
            return f"dense:{self.variant} has no ratio; say how many times smaller it is to be, as in ratio=4."
        if self.variant == SMALL and self.settings.depth is None:
            return f"dense:{SMALL} has no depth; say how many times the blocks, as in settings.dense.depth=0.75."
        try:
            with torch.device("meta"):
                self._narrowed(model)
        except ValueError as reason:
            return str(reason)
        return None

    def adapt(self, model: nn.Module, targets: Mapping[str, str]) -> nn.Module:
        """Return the narrower model; ``model`` is left as it is.

        Raises:
            ValueError: there is none of that size.
        """
        if reason := self.model_unsupported(model, targets):
            raise ValueError(reason)
        narrow = self._narrowed(model)
        check_targets(narrow, self.targets_in(narrow, targets))
        return narrow

    def targets_in(self, model: nn.Module, targets: Mapping[str, str]) -> dict[str, str]:
        """Return the targets of an adapted model: those given, in as many blocks as it has."""
        return targets_at_depth(model, targets) if self.variant == SMALL else dict(targets)

    def _narrowed(self, model: nn.Module) -> nn.Module:
        return narrowed(model, self.settings.ratio or 1.0, self.settings.depth or 1.0)


class Pruned(Dense):
    """Dense training whose late stage takes out heads and inner columns until a share of their weights is left.

    Args:
        settings: hyperparameters; ``recovery`` is the share of the late stage that trains on at the target.
    """

    shrinks = True
    variant = PRUNED

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._targets: Mapping[str, str] = {}
        self._late: dict[str, float] | None = None
        self._pruning: Pruning | None = None
        self._saved: dict[str, Any] | None = None

    def model_unsupported(self, model: nn.Module, targets: Mapping[str, str]) -> str | None:
        """Explain why nothing of the model can be taken out; None if something can."""
        if reason := super().model_unsupported(model, targets):
            return reason
        if parts_of(model, targets):
            return None
        return f"dense:{PRUNED} needs heads or inner columns, as models of workload=text, encoder and pointer have."

    def adapt(self, model: nn.Module, targets: Mapping[str, str]) -> nn.Module:
        """Leave the model as it is, but for what reads a pruned one from a file."""
        check_targets(model, targets)
        self._targets = dict(targets)
        for one in parts_of(model, targets):
            one.owner.register_load_state_dict_pre_hook(resize_as_loaded)
        return model

    def begin_stage(self, stage: Stage, model: nn.Module, optimizer: torch.optim.Optimizer) -> Change:  # noqa: ARG002
        """Take up the curve of a stage with a target.

        Raises:
            ValueError: a target below what one head and one column of each sub-layer weigh.
        """
        pruning = self._pruning_of(model)
        self._late = None
        if stage.target is None:
            return "nothing"
        if stage.target * pruning.size < pruning.least:
            raise ValueError(
                f"target is {stage.target:g}; one head and one column of each sub-layer weigh "
                f"{pruning.least / pruning.size:.4f} of it, the smallest share within reach."
            )
        recovery = _RECOVERY if self.settings.recovery is None else self.settings.recovery
        steps = stage.steps - math.floor(recovery * stage.steps)
        self._late = {"start": pruning.size, "target": stage.target * pruning.size, "steps": steps, "done": 0}
        return "nothing"

    def after_step(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> Change:  # noqa: ARG002
        """Take the gradients into the averages until the target is met; in a late stage, close what the curve asks."""
        pruning, late = self._pruning_of(model), self._late
        if late is None or late["done"] < late["steps"]:
            pruning.average()
        if late is not None:
            late["done"] += 1
            pruning.follow(int(late["done"]), int(late["steps"]), late["start"], late["target"])
        return "values"

    def end_stage(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Change:
        """Take what has closed out of the weights."""
        return "shapes" if self._late is not None and self._pruning_of(model).cut(optimizer) else "nothing"

    def sizes(self, model: nn.Module) -> dict[str, float]:
        """Return the share of the weights that is left and, in a late stage, its target."""
        pruning = self._pruning_of(model)
        sizes = {"size_fraction": pruning.size / pruning.full}
        return sizes if self._late is None else {**sizes, "size_target": self._late["target"] / pruning.full}

    def _pruning_of(self, model: nn.Module) -> Pruning:
        """Return what can go from the model, made at the first call."""
        if self._pruning is None:
            self._pruning = Pruning(parts_of(model, self._targets))
            if self._saved is not None:
                self._pruning.load_state_dict(self._saved)
                self._saved = None
        return self._pruning

    def state_dict(self) -> dict[str, Any]:
        """Return the late stage as far as it is, and what has closed."""
        return {
            "late": self._late and dict(self._late),
            "pruning": self._pruning.state_dict() if self._pruning else self._saved,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`, before the next step."""
        self._late, self._saved, self._pruning = state["late"] and dict(state["late"]), state["pruning"], None


class SparseTables(Dense):
    """Dense training whose embedding tables have sparse gradients and an optimizer for them."""

    optimizers = ("own",)
    capture: CaptureScope = "none"
    capture_reason = (
        "how many rows of a table have a gradient hangs on the batch, and a captured step has fixed shapes."
    )

    def __init__(self, settings: Settings, variant: str) -> None:
        super().__init__(settings)
        self.variant = variant
        self._names: list[str] = []

    def model_unsupported(self, model: nn.Module, targets: Mapping[str, str]) -> str | None:
        """Explain why no table of ``model`` can have sparse gradients; None if one can. Shapes are enough."""
        if reason := super().model_unsupported(model, targets):
            return reason
        tables = embedding_targets(model, targets)
        if not tables:
            return f"dense:{self.variant} needs an embedding among the targets, this model has none; use dense."
        for name, table in tables.items():
            shared = [
                other
                for other, weight in model.named_parameters(remove_duplicate=False)
                if weight is table.weight and other != f"{name}.weight"
            ]
            if shared:
                return (
                    f"dense:{self.variant} needs a table of its own for {name}, which shares its weight with "
                    f"{shared[0]}, so that its gradient is dense; use dense."
                )
        return None

    def adapt(self, model: nn.Module, targets: Mapping[str, str]) -> nn.Module:
        """Have every embedding among the targets give sparse gradients; nothing else changes.

        Raises:
            ValueError: also when there is none, or one shares its weight with another module.
        """
        if reason := self.model_unsupported(model, targets):
            raise ValueError(reason)
        tables = embedding_targets(model, targets)
        for table in tables.values():
            table.sparse = True
        self._names = [f"{name}.weight" for name in tables]
        return model

    def optimizer(self, model: nn.Module) -> JoinedOptimizer:
        """Return the optimizer of the tables, joined with that of every other trainable parameter."""
        tables = [weight for weight in map(model.get_parameter, self._names) if weight.requires_grad]
        others, lr = parameters_apart(model, tables), self.settings.lr
        lr_tables = self.settings.lr_tables or lr
        if self.variant == "sgd":
            rest = torch.optim.SGD([{"params": others}], lr=lr, fused=True)  # a group, since it may be empty
            return JoinedOptimizer(torch.optim.SGD([{"params": tables}], lr=lr_tables), rest)
        kind = RowWiseAdagrad if self.variant == "row_wise" else torch.optim.SparseAdam
        return JoinedOptimizer(kind([{"params": tables}], lr=lr_tables), fused_adamw((others, lr)))


def build(settings: Settings, variant: str = "") -> Dense:
    """Return the dense arm.

    Args:
        settings: hyperparameters.
        variant: ``""``; ``"sparse"``, ``"row_wise"`` or ``"sgd"`` for tables with sparse gradients; ``"narrow"``,
            ``"small"``, ``"adamw8bit"`` or ``"pruned"``; see the module.

    Raises:
        ValueError: for an unknown variant.

    Example:
        >>> model = nn.Sequential(nn.Embedding(9, 3), nn.Linear(3, 1))
        >>> arm = build(Settings(lr=0.1), "row_wise")
        >>> optimizer = arm.optimizer(arm.adapt(model, {"0": "embedding"}))
        >>> [(group["lr"], len(group["params"])) for group in optimizer.param_groups]
        [(0.1, 1), (0.1, 2)]
    """
    check_variant("dense", variant, VARIANTS)
    if variant in RATIO_VARIANTS:
        return Narrow(settings, variant)
    if variant in (EIGHT_BIT, PRUNED):
        return {EIGHT_BIT: EightBit, PRUNED: Pruned}[variant](settings)
    return SparseTables(settings, variant) if variant else Dense(settings)
