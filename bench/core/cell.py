"""A cell: one point of an experiment's grid, fully resolved, and its identity."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from bench.core.identity import LATER, identity
from bench.errors import ConfigError

#: Measures whose name in identities is an older one than that in records.
_MEASURES_IN_IDENTITIES = {"allocator_peak": "witness"}

#: First line of what identities are hashes of. With another, every record measured so far is one of an unknown cell.
_IDENTITY = "1"

#: Suffix of an arm's name if blocks are checkpointed: ``dense+checkpoint``.
CHECKPOINTED = "+checkpoint"

#: The ways in which gradients travel between ranks (:mod:`bench.distributed.exchange`), the usual one first. Others
#: follow an arm's name: ``dense+powersgd_4``.
EXCHANGES = ("ddp", "powersgd_4", "fsdp2")


#: Properties that a factored rival may share with CoMERA, the suffix of its arm: ``low_rank@size``.
MATCHES = ("size", "rank")

#: CoMERA's caps on the ranks of linear layers and of tables, which two-factor layers of equal rank have as well.
COMERA_RANKS = (30, 32)

#: An arm's name.
_ARM = re.compile(r"([^@:+]*)(?:@([^@:+]+))?(?::([^+]+))?(\+checkpoint)?(?:\+([^+]+))?")


@dataclass(frozen=True)
class Arm:
    """A method in one of its forms; its name is ``method[@match][:variant][+checkpoint][+exchange]``.

    Args:
        method: name of the method.
        variant: its variant; the default one is empty.
        checkpoint: whether the blocks of its model are checkpointed.
        exchange: how its gradients travel between ranks; empty where the name leaves it open.
        match: ``size`` or ``rank`` of CoMERA that it has, else empty.

    >>> str(Arm("low_rank", "linear", match="rank")), str(Arm("dense", checkpoint=True, exchange="powersgd_4"))
    ('low_rank@rank:linear', 'dense+checkpoint+powersgd_4')
    """

    method: str
    variant: str = ""
    checkpoint: bool = False
    exchange: str = ""
    match: str = ""

    @classmethod
    def parse(cls, name: str) -> Self:
        """Return the arm of a name, whether or not there is such a method; raises ConfigError for any other text.

        >>> Arm.parse("low_rank@size:lean+checkpoint")
        Arm(method='low_rank', variant='lean', checkpoint=True, exchange='', match='size')
        """
        found = _ARM.fullmatch(name)
        if found is None:
            form = "METHOD[@MATCH][:VARIANT][+checkpoint][+EXCHANGE]"
            raise ConfigError(f"method is {name!r}; allowed: {form}.")
        method, match, variant, checkpoint, exchange = found.groups(default="")
        return cls(method, variant, bool(checkpoint), exchange, match)

    def __str__(self) -> str:
        matched = f"{self.method}@{self.match}" if self.match else self.method
        formed = f"{matched}:{self.variant}" if self.variant else matched
        travels = f"+{self.exchange}" if self.exchange not in ("", EXCHANGES[0]) else ""
        return f"{formed}{CHECKPOINTED if self.checkpoint else ''}{travels}"


def match_of(method: str, settings: Mapping[str, Any]) -> str:
    """Return the size that a two-factor arm shares with CoMERA by its settings, one of :data:`MATCHES`, or nothing.

    Whether two records really are of one size is told by their parameters alone (``figures``), never by this name.

    >>> match_of("low_rank", {"rank": 30, "embedding_rank": 32}), match_of("low_rank", {"rank": 30, "ratio": 44.9})
    ('rank', 'size')
    >>> match_of("low_rank", {"rank": 16, "embedding_rank": 32}), match_of("comera", {"ratio": 8.0})
    ('', '')
    """
    if method != "low_rank":
        return ""
    if settings.get("ratio") is not None:
        return "size"
    ranks = settings.get("rank"), settings.get("embedding_rank")
    return "rank" if settings.get("ranks_of_ratio") is not None or ranks == COMERA_RANKS else ""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One measurement to be made. Two cells with equal fields (and equal data) are the same measurement."""

    experiment: str
    workload: str
    dataset: str
    method: str
    variant: str
    measure: str
    device: str  # "cpu" | "cuda": where it runs, or for which device it is predicted
    batch_size: int
    precision: str
    cuda_graph: bool
    compile: bool
    checkpoint: bool = field(default=False, metadata=LATER)  # each block of the model through torch.utils.checkpoint
    seed: int
    ratio: float | None
    method_settings: dict[str, Any]
    workload_settings: dict[str, Any]
    timing_settings: dict[str, Any]
    #: For measure "train": the stages (as :class:`bench.protocol.Stage`), steps per epoch, whether shapes are static.
    training: dict[str, Any] = field(default_factory=dict, metadata=LATER)
    world_size: int = field(default=1, metadata=LATER)  # ranks, each with a batch of ``batch_size``
    exchange: str = field(default="", metadata=LATER)  # one of :data:`EXCHANGES` where there are several ranks
    link_mbit: float | None = field(default=None, metadata=LATER)  # limit of the link between ranks, in older records

    @property
    def arm(self) -> str:
        """The method with what it shares with CoMERA, its variant, checkpointing and exchange where not the default."""
        match = match_of(self.method, self.method_settings)
        return str(Arm(self.method, self.variant, self.checkpoint, self.exchange, match))

    @property
    def backend(self) -> str:
        """Backend of the exchange between ranks; empty for a single one."""
        return "" if self.world_size == 1 else "nccl" if self.device == "cuda" else "gloo"

    @property
    def sequence_length(self) -> int:
        """Tokens of an example; 1 where the workload's settings have none."""
        settings = self.workload_settings
        return int(settings.get("sequence_length", settings.get("context", 1)))

    def to_json(self) -> str:
        """Return the cell as canonical JSON: sorted keys, no spaces, no later field at its default."""
        fields = {**identity(self), "sequence_length": self.sequence_length}
        return json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the inverse of :meth:`to_json`."""
        fields = json.loads(text)
        fields.pop("sequence_length", None)  # it lies in the workload's settings
        return cls(**fields)

    def cell_id(self, data_hash: str) -> str:
        """Return the identity of the measurement: a hash of the resolved cell and the data.

        It depends neither on the schema of records nor on how a measure has been renamed, so that columns can be added
        and names improved while records stay those of their cells.
        """
        named = dataclasses.replace(self, measure=_MEASURES_IN_IDENTITIES.get(self.measure, self.measure))
        return hashlib.sha256(f"{_IDENTITY}\n{data_hash}\n{named.to_json()}".encode()).hexdigest()[:16]
