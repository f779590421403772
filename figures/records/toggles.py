"""What a step runs with: precision, torch.compile and CUDA Graph."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bench.core.record import Record

_PRECISIONS = ("fp32", "tf32", "bf16", "fp8")


@dataclass(frozen=True)
class Toggles:
    """What a step runs with.

    >>> Toggles("bf16", compile=True).names
    ('bf16', 'compile')
    """

    precision: str = "fp32"
    compile: bool = False
    cuda_graph: bool = False

    @classmethod
    def of(cls, record: Record) -> Toggles:
        """Those of a record."""
        return cls(record.precision, record.compile, record.cuda_graph)

    @property
    def names(self) -> tuple[str, ...]:
        """Those that are on, in the order in which a row names them."""
        precision = () if self.precision == "fp32" else (self.precision,)
        return (*precision, *(("compile",) if self.compile else ()), *(("CUDA Graph",) if self.cuda_graph else ()))

    @property
    def text(self) -> str:
        """Those that are on, or the precision where none is."""
        return ", ".join(self.names) or self.precision

    @property
    def without_last(self) -> Toggles | None:
        """The same with the one named last off; None where all are."""
        if self.cuda_graph:
            return replace(self, cuda_graph=False)
        if self.compile:
            return replace(self, compile=False)
        return None if self.precision == "fp32" else Toggles()

    @property
    def rank(self) -> tuple[int, str, bool, bool]:
        """Plain steps first."""
        place = _PRECISIONS.index(self.precision) if self.precision in _PRECISIONS else len(_PRECISIONS)
        return place, self.precision, self.compile, self.cuda_graph


#: Steps in FP32 and nothing else; and those that claims on time are about.
PLAIN, CAPTURED = Toggles(), Toggles(cuda_graph=True)
