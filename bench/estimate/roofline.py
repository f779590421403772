"""The least time of a linear layer's products on a device, by the precision that it multiplies and stores in.

A form says in how many bytes a layer reads and writes its activations and at which rate it multiplies. What is counted
is compulsory: input and weights read once, output written once; of a layer in two thin products also what lies between
them, which is as wide as the rank. Casts and the search for the largest magnitude count as fused into what is there
anyway, so that FP8 is given its best.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bench.estimate.devices import GPUS, Device
from bench.estimate.work import Bound

_DIGITS, _SHOWN = 9, 60  # of a number in a shape at most, and characters of a wrong shape that a sentence has

#: The devices that a table of rooflines is of, by name.
SHOWN = ("h100", "h200", "l4", "rtx3090", "rtx4090")


@dataclass(frozen=True)
class Form:
    """Bytes of an activation and of a weight in memory, and the precision of the products."""

    activation: float
    weight: float
    precision: str
    words: str


#: From the most exact to the least. A factor of four bytes per block of 128 entries is part of what is stored in FP8.
FORMS: Mapping[str, Form] = {
    "fp32": Form(4, 4, "fp32", "all in FP32"),
    "tf32": Form(4, 4, "tf32", "all in FP32, products in TF32"),
    "bf16": Form(2, 2, "bf16", "all in BF16"),
    "fp8": Form(4, 4, "fp8", "products in FP8, all else in FP32: the paper's FP8-mix"),
    "fp8, bf16": Form(2, 2, "fp8", "products in FP8, all else in BF16"),
    "fp8 stored": Form(1 + 4 / 128, 1, "fp8", "input and output kept in FP8 as well"),
}


@dataclass(frozen=True)
class RatedLayer:
    """One product of ``tokens`` rows, (T, N) to (T, M), or two thin ones through ``rank``."""

    tokens: int
    in_features: int
    out_features: int
    rank: int | None = None

    def __post_init__(self) -> None:
        for name in ("tokens", "in_features", "out_features", "rank"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; allowed: whole numbers from 1 up.")

    @property
    def flops(self) -> int:
        """FLOPs of the forward products.

        >>> RatedLayer(10, 8, 4).flops, RatedLayer(10, 8, 4, rank=2).flops
        (640, 480)
        """
        sides = self.in_features * self.out_features
        return 2 * self.tokens * (sides if self.rank is None else self.rank * (self.in_features + self.out_features))

    def bytes(self, form: Form) -> float:
        """Return the least bytes that the forward products read and write.

        >>> RatedLayer(10, 8, 4).bytes(FORMS["bf16"])
        304.0
        """
        ends = self.tokens * (self.in_features + self.out_features)
        if self.rank is None:
            return float(form.activation * ends + form.weight * self.in_features * self.out_features)
        between = 2 * self.tokens * self.rank  # written and read
        return form.activation * (ends + between) + form.weight * self.rank * (self.in_features + self.out_features)

    def bound(self, form: Form, device: Device) -> Bound | None:
        """Return the least time on a device; None where its tensor cores do not multiply so.

        What is stored in FP8 can be widened: without products in FP8 it is multiplied in BF16.

        >>> time = RatedLayer(16384, 768, 768, rank=30).bound(FORMS["fp8"], GPUS["h100"])
        >>> time.traffic_ms > 20 * time.operations_ms
        True
        """
        peak = device.peak(form.precision) or (device.peak("bf16") if form.activation < 2 else None)
        if peak is None:
            return None
        return Bound(1e3 * self.flops / peak, 1e3 * self.bytes(form) / device.bandwidth)


def rooflines(layer: RatedLayer, names: Iterable[str] = SHOWN) -> list[dict[str, object]]:
    """Return a row per form: its bytes in MiB, and per device the least times of operations and of traffic, in ms."""
    rows: list[dict[str, object]] = []
    for name, form in FORMS.items():
        bounds = {gpu: layer.bound(form, GPUS[gpu]) for gpu in names}
        gpus = {
            gpu: None if one is None else {"operations_ms": one.operations_ms, "traffic_ms": one.traffic_ms}
            for gpu, one in bounds.items()
        }
        rows.append({"form": name, "mib": layer.bytes(form) / 2**20, "gpus": gpus})
    return rows


def written(layer: RatedLayer, names: Iterable[str] = SHOWN) -> str:
    """Return the rooflines of a layer as text: MiB, and per device the least time in ms with what bounds it.

    >>> print(written(RatedLayer(10_000, 1024, 1024), ["h100", "rtx3090"]))
    10,000 x 1,024 to 1,024, dense
      form             MiB          h100       rtx3090
      fp32            82.1      0.313 op      0.589 op
      tf32            82.1      0.042 op      0.589 op
      bf16            41.1      0.021 op      0.295 op
      fp8             82.1     0.026 mem             -
      fp8, bf16       41.1     0.013 mem             -
      fp8 stored      21.1      0.011 op      0.295 op
    """
    names = list(names)
    through = "dense" if layer.rank is None else f"two thin products through {layer.rank}"
    title = f"{layer.tokens:,} x {layer.in_features:,} to {layer.out_features:,}, {through}"
    lines = [title, "".join([f"  {'form':<12}{'MiB':>8}", *(f"{name:>14}" for name in names)])]
    for name, form in FORMS.items():
        cells = [_cell(layer.bound(form, GPUS[gpu])) for gpu in names]
        lines.append("".join([f"  {name:<12}{layer.bytes(form) / 2**20:>8,.1f}", *(f"{cell:>14}" for cell in cells)]))
    return "\n".join(lines)


def _cell(bound: Bound | None) -> str:
    if bound is None:
        return "-"
    by = "op" if bound.operations_ms >= (bound.traffic_ms or 0.0) else "mem"
    return f"{bound.step_ms:.3f} {by}"


def layer_of(text: str, rank: int | None = None) -> RatedLayer:
    """Return a layer from its shape as a command has it.

    Raises ValueError: a shape that is not three whole numbers.

    >>> layer_of("10000x1024x4096")
    RatedLayer(tokens=10000, in_features=1024, out_features=4096, rank=None)
    """
    parts = text.split("x")
    if len(parts) != 3 or not all(part.isdecimal() and len(part) <= _DIGITS for part in parts):
        raise ValueError(
            f"shape is {text[:_SHOWN]!r}; give TOKENSxINxOUT in whole numbers from 1 to {10**_DIGITS - 1:,}, as in "
            "10000x1024x1024."
        )
    return RatedLayer(int(parts[0]), int(parts[1]), int(parts[2]), rank)
