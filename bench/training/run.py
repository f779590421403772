"""Training run to the end of its stages; a stopped run continues where it was.

All that a run is, is a function of its cell: seeds fix initialisation, dropout and the order of the data, so the same
cell on the same processor gives the same bytes, and a run that was killed goes on from its last checkpoint as if it had
never stopped.
"""

import itertools
import math
import numbers
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from bench.core import checkpoint
from bench.core.cell import Cell
from bench.core.samples import in_unit, packed
from bench.distributed.exchange import Exchange, exchange_for
from bench.distributed.state import decided, gathered, is_first, rank, shard_as_parameters, unsharded, wait_for_all
from bench.distributed.step import ExchangedStep, rank_seed
from bench.errors import ConfigError
from bench.protocol import Batch, Evaluation, Metric, Stage, Workload
from bench.protocol.methods import build_for
from bench.step.bf16_products import multiplies_bf16
from bench.step.low_precision import adapted_model
from bench.step.timing import Diverged
from bench.step.train_step import TrainStep
from comera import ranks_of, set_ranks, tensorized_layers
from comera.low_precision.scaling import kernel_on

_CHECKPOINT_SECONDS = 60.0  # between checkpoints
_CHECKPOINT_SHARE = 30.0  # so many times what the last one took lie between them at least
_REPORT_SECONDS = 1.0  # seconds between reports of progress
_LOSS_CHECK_STEPS = 50  # on a device whose loss costs a synchronisation, it is looked at every so many steps
_SHORT = 8  # digits of a code's id in a message

Report = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Upkeep:
    """Folders and times of a run beside its cell; nothing here changes its result."""

    folder: Path  # of its checkpoint
    identity: str  # whose checkpoint that is
    code_id: str  # of the code that runs now, as git_commit
    git_commit: str = ""
    #: Folder of a run with the same first stages, if there is one; its last checkpoint saves doing them again.
    parent_folder: Path | None = None
    parent_identity: str = ""
    resume: bool = True  # whether to go on from a checkpoint
    checkpoint_steps: int = 0  # between checkpoints; 0 for about one a minute


def stages_of(cell: Cell) -> tuple[Stage, ...]:
    """Return the stages of a training cell."""
    return tuple(Stage(**stage) for stage in cell.training["stages"])


@dataclass
class _Position:
    """Position of a run, and the code that brought it there. A stage counts as begun once it has done a step."""

    stage: int = 0
    stage_steps: int = 0
    step: int = 0
    loss_sum: float = 0.0
    loss_steps: int = 0
    seconds: float = 0.0
    curve: list[dict[str, Any]] = field(default_factory=list)
    codes: list[dict[str, str]] = field(default_factory=list)  # that did a step; git_commit may be blank in older ones
    ended_by: str = ""  # id of the code that ended the last stage so far
    start: dict[str, float] = field(default_factory=dict)  # metrics before the first step, from trained weights


class TrainingRun:
    """One run from its beginning, or from its last checkpoint, to its end."""

    def __init__(self, cell: Cell, workload: Workload, upkeep: Upkeep, report: Report) -> None:
        held_on: Callable[[str], Workload] | None = getattr(workload, "held_on", None)
        self.workload = workload if held_on is None else held_on(cell.device)
        self.cell, self.upkeep, self.report = cell, upkeep, report
        self.staged = self.workload
        self.stages = stages_of(cell)
        self.total_steps = sum(stage.steps for stage in self.stages)
        self.at = _Position()
        self._schedule = cell.training.get("schedule")
        self._rise_and_fall = {name: value for name, value in (self._schedule or {}).items() if name != "over"}
        self._has_target = any(stage.target is not None for stage in self.stages)
        torch.manual_seed(cell.seed)
        self.method = build_for(cell)
        dense = workload.build()
        self.dense_mib = _mib(parameter.numel() for parameter in dense.parameters())
        restored = checkpoint.load(upkeep.folder, upkeep.identity) if upkeep.resume else None
        if restored is None and upkeep.parent_folder is not None:
            restored = checkpoint.load(upkeep.parent_folder, upkeep.parent_identity)
        self.model = adapted_model(self.method, dense, workload.targets(), cell.precision, kernel_on(cell.device))
        self.model = self.model.to(cell.device)
        self.ranks_before, self._factor_ranks = ranks_of(self.model), self.method.factor_ranks(self.model)
        own = restored["of_ranks"][rank()] if restored and "of_ranks" in restored else {}  # what ranks differ in
        if restored:
            set_ranks(self.model, restored["ranks"])
            self.model.load_state_dict(restored["model"])
        self.step = self._build_step()
        self.method.use_task_loss(self._first_loss)
        self._note_rates()
        if restored:
            self._take_up({**restored, **own})
        else:  # dropout's draws do not depend on how many numbers a method's cores took
            torch.manual_seed(rank_seed(cell.seed, rank()))
        self._checkpoint_due = time.monotonic() + _CHECKPOINT_SECONDS
        self._reported = self._begun = time.monotonic()
        self._from = (self.at.step, self.at.seconds)  # what an earlier process did took none of this one's time
        self._batches: Iterator[Batch] | None = None

    def _build_step(self) -> TrainStep:
        cell, loss = self.cell, self.workload.loss
        if cell.world_size > 1:
            exchange = exchange_for(cell, self.model)  # before the optimizer, which is to have shards
            return ExchangedStep(
                self.model,
                self.method,
                self.method.optimizer(self.model),
                loss,
                cell.precision,
                cell.device,
                checkpoint=cell.checkpoint,
                exchange=exchange,
                mean_loss=True,
            )
        toggles = (cell.precision, cell.device, cell.cuda_graph, cell.compile, bool(cell.training["static"]))
        return TrainStep(
            self.model,
            self.method,
            self.method.optimizer(self.model),
            loss,
            *toggles,
            cell.checkpoint,
            widen_bf16=not multiplies_bf16(cell.device),
        )

    def _note_rates(self) -> None:
        """Keep the rates from which a schedule counts."""
        for group in self.step.optimizer.param_groups if self._schedule else ():
            group["initial_lr"] = group["lr"]

    @property
    def _exchange(self) -> Exchange | None:
        return self.step.exchange if isinstance(self.step, ExchangedStep) else None

    def _state_fits(self) -> None:
        """Raise CheckpointError if a state's entries lie in another order than its parameter's, as of older code.

        Fused AdamW takes it in silence on a CPU.
        """
        for parameter, state in self.step.optimizer.state.items():
            for value in filter(torch.is_tensor, state.values()):
                alike = value.dim() > 1 and value.numel() == parameter.numel()
                if alike and value.shape != parameter.shape:
                    raise checkpoint.CheckpointError(
                        f"{self.upkeep.identity}: its checkpoint has the optimizer's state of older code, of shape "
                        f"{tuple(value.shape)} where {tuple(parameter.shape)} is needed; give resume=false."
                    )

    def _take_up(self, restored: Mapping[str, Any]) -> None:
        self.step.optimizer.load_state_dict(restored["optimizer"])
        self._state_fits()
        if self._exchange is not None:
            shard_as_parameters(self.step.optimizer)
            self._exchange.load_state_dict(restored["exchange"])
        self.method.load_state_dict(restored["method"])
        self.at = _Position(**restored["position"])
        self.at.codes = [{"code_id": c, "git_commit": ""} if isinstance(c, str) else c for c in self.at.codes]
        self.step.number = self.at.step
        torch.set_rng_state(restored["random"]["cpu"])
        if self.cell.device == "cuda":
            torch.cuda.set_rng_state(restored["random"]["cuda"])

    def run(self) -> None:
        """Train to the end of the last stage.

        Raises ConfigError: a metric of the workload is missing or no number. Diverged: the loss or a metric is no
        finite number any more; the message says where.
        """
        if self.at.step == 0 and getattr(self.workload, "start", None) is not None:
            with self.step.autocast():
                self.at.start = dict(self.workload.evaluate(self.model).metrics)
        while self.at.stage < len(self.stages):
            stage = self.stages[self.at.stage]
            staged = self.workload.in_stage(stage)
            if staged is not self.staged:  # its batches may have other shapes
                self.staged, self.step.loss, self._batches = staged, staged.loss, None
                self.step.invalidate("shapes")
            if self.at.stage_steps == 0:
                # A captured step would go on with the objective of the stage before.
                with self.step.changing():
                    change = self.method.begin_stage(stage, self.model, self.step.optimizer)
                self.step.invalidate(change)
            while self.at.stage_steps < stage.steps:
                self._train_step(stage)
                if self.at.step % self.curve_steps == 0 and self.at.stage_steps < stage.steps:
                    self._curve_point(stage)
                self._maybe_checkpoint(stage)
            self._loss_is_finite(stage)
            with self.step.changing():
                change = self.method.end_stage(self.model, self.step.optimizer)
            self.step.invalidate(change)
            self.at.ended_by = self.upkeep.code_id
            self._curve_point(stage)
            self.at.stage, self.at.stage_steps = self.at.stage + 1, 0
            self.save()

    @property
    def is_cut(self) -> bool:
        """Return whether ranks have been cut, so that steps are timed beside those at full ranks."""
        return ranks_of(self.model) != self.ranks_before

    @property
    def steps_per_epoch(self) -> int:
        return int(self.cell.training["steps_per_epoch"])

    @property
    def curve_steps(self) -> int:
        """Between points of the learning curve."""
        return int(self.cell.training.get("curve_steps", self.steps_per_epoch))

    def _next_batch(self) -> Batch:
        epoch, start = divmod(self.at.step, self.steps_per_epoch)
        if self._batches is None or start == 0:
            static = bool(self.cell.training["static"])
            ranks, seed = self.cell.world_size, self._order_seed(epoch)
            drawn = self.staged.batches("train", self.cell.batch_size, seed, static, start * ranks + rank())
            self._batches = itertools.islice(drawn, 0, None, ranks)
        batch = next(self._batches)
        if self.cell.cuda_graph:  # the captured step copies it into its own buffers
            return batch
        return {name: tensor.to(self.cell.device) for name, tensor in batch.items()}

    def _order_seed(self, epoch: int) -> int:
        """Return the seed of the order of an epoch, different for every epoch of every seed."""
        return self.cell.seed * 1_000_003 + epoch

    def _first_loss(self, model: nn.Module) -> torch.Tensor:
        """Return the task loss of the first training batch: the same whenever it is formed, also after a resumption."""
        static = bool(self.cell.training["static"])
        batch = next(self.staged.batches("train", self.cell.batch_size, self._order_seed(0), static))
        with self.step.autocast():
            return self.staged.loss(model, {name: tensor.to(self.cell.device) for name, tensor in batch.items()})

    def _train_step(self, stage: Stage) -> None:
        begun = time.perf_counter()
        if self._schedule:
            share = scheduled_share(*self._schedule_place(stage), **self._rise_and_fall)
            for group in self.step.optimizer.param_groups:
                if not (self._has_target and group.get("name") == "ranks"):  # these move at one rate until they close
                    self.step.set_rate(group, share * group["initial_lr"])
        batch = self._next_batch()
        self.step.settle(batch)
        loss = self.step(batch)
        at = self.at
        if all(code["code_id"] != self.upkeep.code_id for code in at.codes):
            at.codes.append({"code_id": self.upkeep.code_id, "git_commit": self.upkeep.git_commit})
        at.step, at.stage_steps, at.loss_steps = at.step + 1, at.stage_steps + 1, at.loss_steps + 1
        at.loss_sum = at.loss_sum + (loss.item() if self.cell.device == "cpu" else loss.double())  # type: ignore[assignment]
        if self.cell.device == "cpu" or at.step % _LOSS_CHECK_STEPS == 0:
            self._loss_is_finite(stage)
        at.seconds += time.perf_counter() - begun
        if time.monotonic() - self._reported > _REPORT_SECONDS:
            self._report("")

    def _schedule_place(self, stage: Stage) -> tuple[int, int]:
        """Return the step, and of how many, at which the schedule of rates is: of the stage, or of the whole run."""
        over_run = (self._schedule or {}).get("over") == "run"
        return (self.at.step, self.total_steps) if over_run else (self.at.stage_steps, stage.steps)

    def _loss_is_finite(self, stage: Stage) -> None:
        self._all_finite({"loss": float(self.at.loss_sum)}, stage)

    def _all_finite(self, values: Mapping[str, float], stage: Stage) -> None:
        for name, value in values.items():
            if not math.isfinite(value):
                where = f"epoch {self.at.step / self.steps_per_epoch:.2f}, {stage.name} stage"
                raise Diverged(f"the {name} is not finite at step {self.at.step} ({where})")

    def _curve_point(self, stage: Stage) -> None:
        if self._exchange is not None and not is_first():  # it evaluates for all, unless a forward pass takes all
            if self._exchange.sharded:
                with self.step.autocast():
                    self.staged.evaluate(self.model)
            self._exchange.rest()
            self.at.loss_sum, self.at.loss_steps = 0.0, 0
            return
        with self.step.autocast():
            evaluation = self.staged.evaluate(self.model)
        metric = checked_metric(evaluation, self.workload)
        metrics = {name: float(value) for name, value in evaluation.metrics.items()}
        # The last step's update may have gone too far.
        self._all_finite({f"validation {name} of {self.workload.name}": metrics[name] for name in metrics}, stage)
        values, groups = evaluation.per_example, evaluation.groups
        at = self.at
        row = {
            "epoch": at.step / self.steps_per_epoch,
            "step": at.step,
            "stage": stage.name,
            "train_loss": float(at.loss_sum) / at.loss_steps,
            "metrics": metrics,
            "validation_examples": evaluation.examples if values is None else len(values),
            **({} if values is None else {"per_example": packed(values)}),
            **({"groups": {name: packed(each) for name, each in groups.items()}} if groups else {}),
            **self.sizes(),
            "ranks": {name: list(ranks) for name, ranks in ranks_of(self.model).items()},
            "active_ranks": {name: list(layer.active_ranks()) for name, layer in self._tensorized().items()},
            "seconds": at.seconds,
        }
        if self._exchange is not None:
            self._exchange.rest()
        at.curve.append(row)
        at.loss_sum, at.loss_steps = 0.0, 0
        size = f", {row['size_fraction']:.1%} of the tensorized size left" if "size_fraction" in row else ""
        self._report(
            f"{stage.name} stage, {self._place}, epoch {row['epoch']:.2f}: {self._loss_text(row['train_loss'])}, "
            f"{metric.text} {metric.written(metrics[metric.name])}, {self._pace()}, "
            f"model {row['stored_mib']:.2f} MiB{size}"
        )

    def _tensorized(self) -> dict[str, Any]:
        modules = dict(self.model.named_modules())
        return {name: modules[name] for name in ranks_of(self.model)}

    def sizes(self) -> dict[str, Any]:
        """Return the sizes of the model as it is now."""
        layers = tensorized_layers(self.model)
        columns: dict[str, Any] = {
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "stored_mib": self.method.stored_size(self.model) / 2**20,
            **self.method.sizes(self.model),
        }
        return columns | ({"tensorized_mib": _mib(layer.packed_cores.numel() for layer in layers)} if layers else {})

    def _maybe_checkpoint(self, stage: Stage) -> None:
        every = self.upkeep.checkpoint_steps
        due = self.at.step % every == 0 if every else time.monotonic() >= self._checkpoint_due
        [due] = decided(due)
        if due:
            self._loss_is_finite(stage)
            self.save()

    def save(self) -> None:
        """Write a checkpoint now."""
        begun = time.monotonic()
        self.at.loss_sum = float(self.at.loss_sum)
        random = {"cpu": torch.get_rng_state()}
        if self.cell.device == "cuda":
            random["cuda"] = torch.cuda.get_rng_state()
        content = {
            "ranks": ranks_of(self.model),
            "model": dict(self.model.state_dict()),
            "optimizer": self.step.optimizer.state_dict(),
            "method": self.method.state_dict(),
            "position": vars(self.at),
            "random": random,
        }
        if self._exchange is not None:
            content = unsharded(content)
            own = {"random": content["random"], "exchange": self._exchange.state_dict()}
            content["of_ranks"] = gathered(own)
        if is_first():
            checkpoint.save(self.upkeep.folder, self.upkeep.identity, content)
        wait_for_all()
        took = time.monotonic() - begun
        self._checkpoint_due = begun + took + max(_CHECKPOINT_SECONDS, _CHECKPOINT_SHARE * took)

    def _report(self, text: str) -> None:
        self._reported = time.monotonic()
        loss = [self._loss_text(float(self.at.loss_sum) / self.at.loss_steps)] if self.at.loss_steps else []
        at = ", ".join([self._place, *loss, self._pace()])
        self.report({"step": self.at.step, "steps": self.total_steps, "at": at, "text": text})

    @property
    def _place(self) -> str:
        return f"step {self.at.step:,} of {self.total_steps:,}"

    def _loss_text(self, loss: float) -> str:
        return f"training loss {loss:.4g} {getattr(self.workload, 'loss_unit', '')}".rstrip()

    def _pace(self) -> str:
        """Return examples, or tokens where all have as many, per second of this process's steps, and the time left.

        The time left has evaluations and checkpoints in it.
        """
        steps, seconds = self.at.step - self._from[0], self.at.seconds - self._from[1]
        if not steps or not seconds:
            return "0 steps by this process"
        length = self.staged.sequence_length if self.cell.training["static"] else 1
        of = f"{self.workload.words.example}s" if length == 1 else "tokens"
        rate = steps * self.cell.batch_size * self.cell.world_size * length / seconds
        left = (time.monotonic() - self._begun) * (self.total_steps - self.at.step) / steps
        minutes, seconds_left = divmod(round(left), 60)
        number = f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
        return f"{number} {of}/s, {minutes:,} min {seconds_left:02d} s left in this training"

    def columns(self) -> dict[str, Any]:
        """Return the record's columns after the last step, and its samples."""
        last = self.at.curve[-1]
        layers = tensorized_layers(self.model)
        message = "; ".join(filter(None, (self._void(), self._several_codes())))
        return {
            "stage": self.stages[-1].name,
            "target_ratio": self.stages[-1].target,
            "target_mib": self.stages[-1].target_mib,
            "train_steps": self.at.step,
            "epochs": self.at.step / self.steps_per_epoch,
            "dense_mib": self.dense_mib,
            **{name: last[name] for name in ("train_loss", "validation_examples", "metrics")},
            **self.sizes(),
            "arithmetic": self.step.arithmetic,
            **({"dense_tensorized_mib": _mib(layer.dense_count() for layer in layers)} if layers else {}),
            **({"message": message} if message else {}),
            "samples": {
                "curve": self.at.curve,
                "ranks_before": {name: list(ranks) for name, ranks in self.ranks_before.items()},
                **({"factor_ranks": self._factor_ranks} if self._factor_ranks else {}),
                "trained_by": self.at.codes,
                **({"start": self.at.start} if self.at.start else {}),
            },
        }

    def _void(self) -> str:
        """Explain why the run shows nothing about its method, since it learned nothing; blank where it did."""
        metric = self.workload.metric
        if metric is None or metric.guess is None:
            return ""
        reached = self.at.curve[-1]["metrics"][metric.name]
        if (reached > metric.guess) if metric.higher_is_better else (reached < metric.guess):
            return ""
        return f"void: {metric.text} of {metric.written(reached)} is no better than guessing, {metric.guess:g}"

    def _several_codes(self) -> str:
        """Name the versions of the code and their shares of the run; blank if there was only one."""
        trained, now = [code["code_id"] for code in self.at.codes], self.upkeep.code_id
        others: dict[str, list[str]] = {}
        if self.at.ended_by and self.at.ended_by not in trained:
            others[self.at.ended_by] = ["ended", "evaluated"]
        if now not in trained:
            others.setdefault(now, []).extend(["predicted", "timed"] if self.is_cut else ["predicted"])
        if len(trained) == 1 and not others:
            return ""
        several = f"{len(trained)} versions of the code, one after another"
        parts = [f"trained by {several if len(trained) > 1 else f'code {trained[0][:_SHORT]}'}"]
        for code, did in others.items():
            what = " and ".join(filter(None, (", ".join(did[:-1]), did[-1])))
            parts.append(f"{what} by code {code[:_SHORT]}")
        return ", ".join(parts)


def scheduled_share(step: int, steps: int, warmup: float, final: float, decay: str = "linear") -> float:
    """Return the share of its rate that a step of a stage has: a linear rise in the first steps, then a fall.

    ``warmup`` is the share of the steps in which rates rise, ``final`` what is left of them at the last step; with
    ``decay="cosine"`` they fall along half a wave.

    >>> [round(scheduled_share(step, 10, warmup=0.2, final=0.5), 3) for step in (0, 1, 2, 9)]
    [0.5, 1.0, 0.938, 0.5]
    >>> [round(scheduled_share(step, 10, 0.2, 0.0, "cosine"), 3) for step in (1, 5, 9)]
    [1.0, 0.5, 0.0]
    """
    rising = max(round(warmup * steps), 1)
    if step < rising:
        return (step + 1) / rising
    fallen = (step + 1 - rising) / max(steps - rising, 1)
    if decay == "cosine":
        fallen = (1 - math.cos(math.pi * fallen)) / 2
    return 1 - (1 - final) * fallen


def checked_metric(evaluation: Evaluation, workload: Workload) -> Metric:
    """Return the metric that leads, once all metrics of an evaluation are known to be numbers and it is among them.

    Raises ConfigError: otherwise; the message names workload and metric.
    """
    metric = workload.metric
    if metric is None or metric.name not in evaluation.metrics:
        wanted, found = metric.name if metric else None, ", ".join(evaluation.metrics) or "none"
        raise ConfigError(f"workload={workload.name} leads with the metric {wanted!r}, but evaluate returns {found}.")
    for name, value in evaluation.metrics.items():
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise ConfigError(f"workload={workload.name} returns {value!r} as its metric {name!r}; allowed: numbers.")
    reached = float(evaluation.metrics[metric.name])
    if evaluation.per_example is not None and math.isfinite(reached):
        try:
            in_unit(np.asarray(evaluation.per_example), metric.unit, reached)
        except ValueError as error:
            raise ConfigError(f"workload={workload.name} returns {error} as its metric {metric.name!r}.") from None
    return metric


def _mib(counts: Iterator[int] | Any) -> float:
    """Return the MiB of so many FP32 numbers."""
    return sum(counts) * 4 / 2**20
