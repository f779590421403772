"""The ways to train a model that are compared, and what is known of each before anything is predicted.

An arm is written as in ``python -m bench predict``: ``method[:variant][+checkpoint]``; ``muon`` is the dense model
under :class:`comera.Muon`. Structured arms have a ratio: how many times smaller the matrices of the blocks are. The
smaller dense models have the size of these.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from bench.advise.model import AdvisedModel
from bench.core.cell import CHECKPOINTED, Arm
from bench.errors import ConfigError
from bench.protocol import Method
from bench.protocol.methods import available, build, checked_settings, default_settings, parse_arm
from bench.protocol.recipe import Prescribed, Recipe

MUON = "muon"

#: Dense models with as many parameters as formats leave: with fewer columns, or with fewer blocks and other columns.
NARROW, SMALL = "dense:narrow", "dense:small"

#: Every arm of the table, in its order.
ARMS = (
    *("dense", "dense+checkpoint", "dense:adamw8bit", "dense:adamw8bit+checkpoint"),
    *("muon", "galore:8bit_per_layer", "apollo_mini", "lora"),
    *("dense:narrow", "dense:small", "grouped", "low_rank@size", "btt", "comera", "comera:lean"),
)

#: How many times smaller the matrices are that are asked for unless others are.
RATIOS = (2.0, 4.0, 8.0)

#: The rates change neither memory nor work; no gradient is clipped, as in every other arm.
_MUON = Recipe(optimizer="muon", lr=0.02, lr_rest=3e-4, clip=None)


class Kind(IntEnum):
    """Kinds of change to dense training under AdamW, from none to another model."""

    EXACT = 0  # nothing but when activations are computed
    EIGHT_BIT = 1  # how AdamW's moments are stored
    OPTIMIZER = 2  # the optimizer
    STRUCTURED = 3  # the model: another function, with fewer parameters
    FINE_TUNING = 4  # what is trained: frozen weights must come from a trained model


@dataclass(frozen=True)
class AdvisedArm:
    """An arm, ready to be predicted."""

    name: str  # as the command takes it
    ratio: float | None = None  # how many times smaller its matrices are; None for arms that keep them

    def __str__(self) -> str:
        return self.name if self.ratio is None else f"{self.name}, 1/{self.ratio:g}"

    @property
    def parsed(self) -> Arm:
        """The name by its parts; its method may be :data:`MUON`."""
        return Arm.parse(self.name)

    @property
    def checkpoint(self) -> bool:
        """Checkpointing of the blocks: on or off."""
        return self.parsed.checkpoint

    @property
    def base(self) -> str:
        """The name without checkpointing."""
        return str(replace(self.parsed, checkpoint=False))

    @property
    def kind(self) -> Kind:
        """Kind of change to dense training."""
        if self.ratio is not None:
            return Kind.STRUCTURED
        kinds = {"dense": Kind.EXACT, "dense:adamw8bit": Kind.EIGHT_BIT, "lora": Kind.FINE_TUNING}
        return kinds.get(self.base, Kind.OPTIMIZER)

    def models(self, model: AdvisedModel) -> list[AdvisedModel]:
        """Return the model that the arm trains, in each shape that it may have.

        It is the given one, but for ``dense:narrow`` and ``dense:small``; the latter may have several shapes. Raises
        ValueError: the model has no such form.
        """
        if self.base == SMALL and self.ratio:
            return model.smaller(self.ratio)
        return [model.narrowed(self.ratio) if self.base == NARROW and self.ratio else model]

    def method(self, model: AdvisedModel) -> Method:
        """Build the method afresh, for a model of any depth.

        Raises ValueError: this model cannot have the arm, such as at this ratio.
        """
        if self.base == MUON:
            return Prescribed(build("dense", "", default_settings("dense")), _MUON)
        if self.base in (NARROW, SMALL):  # the model itself is smaller
            return build("dense", "", default_settings("dense"))
        arm = parse_arm(self.base)
        field = "ranks_of_ratio" if arm.match == "rank" else "ratio"
        values = {} if self.ratio is None else {field: model.whole_ratio(self.ratio)}
        return build(arm.method, arm.variant, checked_settings(arm.method, values))


def arms_of(names: Sequence[str], ratios: Sequence[float]) -> list[AdvisedArm]:
    """Return the arms of these names, structured ones at each ratio.

    Raises ConfigError: an unknown arm, or one given twice.

    >>> [str(arm) for arm in arms_of(["dense+checkpoint", "btt"], [2, 4])]
    ['dense+checkpoint', 'btt, 1/2', 'btt, 1/4']
    """
    arms: list[AdvisedArm] = []
    for name in names:
        arm = AdvisedArm(name)
        structured = False
        if arm.base != MUON:
            method = arm.parsed.method
            if method not in available():
                allowed = ", ".join((*available(), MUON))
                raise ConfigError(f"arms has {name!r}; allowed: {allowed}, with :variant and {CHECKPOINTED}.")
            parse_arm(name)
            structured = arm.base in (NARROW, SMALL) or (method != "dense" and "ratio" in default_settings(method))
        if names.count(name) > 1:
            raise ConfigError(f"arms has {name!r} twice; give each arm once.")
        arms += [AdvisedArm(name, ratio) for ratio in ratios] if structured else [arm]
    return arms
