"""Rank control in the log of Hugging Face's ``Trainer``. This module alone needs the package transformers."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from comera.loops.control import RankControl


class RankCallback(TrainerCallback):
    """Adds to each entry of the Trainer's log how large the cores are: S, S0, open ranks, parameters.

    Args:
        control: what :func:`comera.control_ranks` returned for the Trainer's optimizer.

    Example:
        >>> from transformers.trainer_callback import TrainerControl, TrainerState
        >>> from comera import RankPlan, TT, control_ranks, parameter_groups, tensorize
        >>> from torch import nn, optim
        >>> model = tensorize(nn.Sequential(nn.Linear(16, 16)), {"0": TT(ranks=2, order=2)})
        >>> optimizer = optim.AdamW(parameter_groups(model), lr=1e-3)
        >>> control = control_ranks(model, optimizer, RankPlan(late_steps=9, size_target=0.5))
        >>> logs = {"loss": 0.7}
        >>> RankCallback(control).on_log(None, TrainerState(), TrainerControl(), logs)
        >>> logs
        {'loss': 0.7, 'comera/size': 1.0, 'comera/ranks': 6, 'comera/parameters': 70, 'comera/size_target': 0.5}
    """

    def __init__(self, control: RankControl) -> None:
        self._control = control

    def on_log(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002
        logs: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        sizes = {f"comera/{name}": value for name, value in self._control.sizes().items()}
        if logs is not None:
            logs.update(sizes)
        if state.log_history:  # the entry is a copy of what was logged
            state.log_history[-1].update(sizes)
