"""Arms, precisions and toggles: their names in records, and their order on pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.core.record import Record

#: The arm that claims are about, the method of two plain factors, and what everything is compared with.
COMERA, LOW_RANK, DENSE = "comera", "low_rank", "dense"

#: Two-factor arms: solved for CoMERA's parameters; with CoMERA's middle ranks, and so with more parameters.
SIZE_RIVAL, RANK_RIVAL = f"{LOW_RANK}@size", f"{LOW_RANK}@rank"

#: Arms in drawing order; others follow them.
ARMS = (COMERA, SIZE_RIVAL, RANK_RIVAL, f"{RANK_RIVAL}:linear", "lora", "lte", "galore", DENSE)

#: Precisions from the most exact to the least.
PRECISIONS = ("fp32", "tf32", "bf16", "bf16_weights", "fp8")


def by_arm(arm: str) -> tuple[int, str]:
    """Return the place of an arm in drawing order, as a key for sorting."""
    return ARMS.index(arm) if arm in ARMS else len(ARMS), arm


def by_precision(precision: str) -> int:
    """Return the place of a precision, as a key for sorting."""
    return PRECISIONS.index(precision) if precision in PRECISIONS else len(PRECISIONS)


@dataclass(frozen=True)
class Toggles:
    """Precision, compilation and capture of a step.

    >>> Toggles("bf16", compile=True).names
    ('bf16', 'compile')
    """

    precision: str = "fp32"
    compile: bool = False
    cuda_graph: bool = False

    @classmethod
    def of(cls, record: Record) -> Toggles:
        """Return the toggles of a record."""
        return cls(record.precision, record.compile, record.cuda_graph)

    @property
    def names(self) -> tuple[str, ...]:
        """Return what differs from a plain step in FP32, in words."""
        precision = () if self.precision == "fp32" else (self.precision,)
        return (*precision, *["compile"] * self.compile, *["CUDA Graph"] * self.cuda_graph)

    @property
    def text(self) -> str:
        """Return those that are on, or the precision where none is."""
        return ", ".join(self.names) or self.precision

    @property
    def page(self) -> dict[str, Any]:
        """Return the fields of a page of steps with these toggles."""
        return {"toggles": self, "place": self.text, "suffix": self.names}

    @property
    def rank(self) -> tuple[int, str, bool, bool]:
        """Return the place among others, as a key for sorting."""
        return by_precision(self.precision), self.precision, self.compile, self.cuda_graph


#: Steps in FP32 and nothing else; and those that claims on time are about.
PLAIN, CAPTURED = Toggles(), Toggles(cuda_graph=True)
