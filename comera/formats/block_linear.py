"""The base of linear layers whose weight consists of blocks: everything but the product and the decomposition."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Literal, Protocol, TypeVar, get_args

import torch
from torch import nn

from comera.compatibility.arguments import check_switch
from comera.compatibility.dense_weight import weight_of
from comera.tensor_train import spectral_std

#: How blocks can be drawn; see :meth:`BlockLinear.reset_parameters`.
BlockInit = Literal["normal", "spectral", "orthogonal"]


class BlockShape(Protocol):
    """The sizes that every format of blocks has."""

    @property
    def in_features(self) -> int: ...
    @property
    def out_features(self) -> int: ...
    @property
    def core_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of the parameters in place of the dense weight, (k, inputs, outputs…), by their names."""

    @property
    def normal_std(self) -> float:
        """Standard deviation of entries of the cores with which the weight's mean square is 1/(N + M)."""


S = TypeVar("S", bound=BlockShape)


class BlockLinear(nn.Module, Generic[S]):
    """A linear layer of blocks, with the face of ``nn.Linear``.

    Args:
        shape: sizes of the format.
        bias: whether to add a bias of length M.
        init: how :meth:`reset_parameters` draws the cores.
        device, dtype: of the parameters.
    """

    stands_for: type[nn.Module] = nn.Linear  #: The class of the layer that it has replaced.
    recompute: bool = False  #: Whether what lies between products, if anything does, is formed anew in backward.
    bias: nn.Parameter | None

    def __init__(
        self,
        shape: S,
        bias: bool,
        init: BlockInit,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        check_switch("bias", bias)
        if init not in get_args(BlockInit):
            raise ValueError(f"init is {init!r}; allowed: {', '.join(get_args(BlockInit))}.")
        self.shape, self.init = shape, init
        self.in_features, self.out_features = shape.in_features, shape.out_features
        for name, sizes in shape.core_shapes.items():
            self.register_parameter(name, nn.Parameter(torch.empty(sizes, device=device, dtype=dtype)))
        self.bias = nn.Parameter(torch.empty(shape.out_features, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def to_dense(self) -> torch.Tensor:
        """Return the weight as ``nn.Linear.weight`` has it: (M, N)."""
        raise NotImplementedError

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the cores; zero bias.

        * ``"normal"``: the weight has the mean square 1/(N + M), as that of :class:`comera.TTLinear`.
        * ``"spectral"``: each core as a layer of its own with d inputs and e outputs has entries of standard deviation
          √(1/d)·min(1, √(e/d)) (Qiu et al., section 4, after the spectral condition of Yang et al., arXiv 2310.17813).
        * ``"orthogonal"``: each block of a core is orthogonal with the singular value √(e/d) (Yang et al.).
        """
        for core in self.core_parameters():
            matrices = core.flatten(2)  # a view
            _, inputs, outputs = matrices.shape
            if self.init == "spectral":
                matrices.normal_(std=spectral_std(inputs, outputs))
            elif self.init == "orthogonal":
                for matrix in matrices:
                    nn.init.orthogonal_(matrix, gain=math.sqrt(outputs / inputs))
            else:
                matrices.normal_(std=self.shape.normal_std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def rows_of(self, input: torch.Tensor, groups: int) -> torch.Tensor:
        """Return the input as rows of groups, (B, groups, N/groups).

        Raises:
            ValueError: an input of another width.
        """
        if input.shape[-1] != self.in_features:
            raise ValueError(
                f"input has {input.shape[-1]} features in its last dimension; expected {self.in_features}."
            )
        return input.reshape(-1, groups, self.in_features // groups)

    @property
    def weight(self) -> torch.Tensor:
        """The dense weight, formed anew by each operation on it, as that of :class:`comera.TTLinear`."""
        return weight_of(self.to_dense, (self.out_features, self.in_features), self.core_parameters())

    def core_parameters(self) -> tuple[nn.Parameter, ...]:
        """Return the parameters in place of the dense weight."""
        return tuple(map(self.get_parameter, self.matrix_parameters()))

    def share_cores(self, other: BlockLinear[S]) -> None:
        """Use the cores of another layer of the same blocks."""
        self.shape = other.shape
        for name in self.matrix_parameters():
            self.register_parameter(name, other.get_parameter(name))

    def matrix_parameters(self) -> tuple[str, ...]:
        """Name the cores, whose blocks :class:`comera.Muon` takes one by one."""
        return tuple(self.shape.core_shapes)

    def to_matrices(self, name: str, values: torch.Tensor) -> list[torch.Tensor]:  # noqa: ARG002
        """Return numbers in the shape of a core as blocks, (k, inputs, outputs)."""
        return [values.flatten(2)]

    def from_matrices(self, name: str, matrices: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the inverse of :meth:`to_matrices`."""
        [values] = matrices
        return values.reshape(self.get_parameter(name).shape)

    def dense_count(self) -> int:
        """Return the number of entries of the dense weight."""
        return self.in_features * self.out_features

    def parameter_count(self) -> int:
        """Return the number of trainable values: cores and bias."""
        return sum(parameter.numel() for parameter in self.parameters())

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *more: Any) -> None:
        """Load as any module does, except that cores of other blocks with as many entries raise a sentence."""
        errors = more[-1]
        for name in self.matrix_parameters():
            given, own = state_dict.get(prefix + name), self.get_parameter(name)
            if isinstance(given, torch.Tensor) and given.shape != own.shape:
                errors.append(
                    f"{prefix[:-1] or type(self).__name__} has {name} of shape {tuple(own.shape)}, and the state dict "
                    f"has one of shape {tuple(given.shape)}: other blocks or another rank."
                )
                return
        super()._load_from_state_dict(state_dict, prefix, *more)
