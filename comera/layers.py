"""Layers that read like torch.nn: ``TTLinear``, ``TTMEmbedding``, ``TTMEmbeddingBag``.

A layer keeps all its cores in one parameter and all its rank-control entries in another. An optimizer then has two
tensors instead of eleven, which matters: a tensorized model is small, and its step is made of overhead. ``cores()``
gives the cores as views in their usual shapes.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import nn
from torch.nn import functional as F

from comera.compatibility.arguments import check_switch, shown
from comera.compatibility.autocast import autocast_type, without_autocast
from comera.compatibility.dense_weight import weight_of
from comera.compatibility.distributed import refuse_distributed, whole
from comera.compatibility.optimizer_states import check_states, warn_of_uncut_states
from comera.contraction.joint_merging import compiled_halves, jointly_merged, jointly_merged_halves
from comera.contraction.merging import merge_cores, two_half_linear
from comera.contraction.planned import tt_linear
from comera.contraction.plans import element_bytes_of, machine_of, plan_contraction
from comera.lookup import BAG_MODES, VARIANTS, BagMode, Variant, ttm_bags, ttm_rows
from comera.low_precision.products import FP8, thin_linear
from comera.modes import check_size, check_whole
from comera.protocol import scale_of
from comera.rank_control import THRESHOLD, active_ranks, cut_closed_ranks, effective_diagonals
from comera.tensor_train import (
    Init,
    TTMShape,
    TTShape,
    check_init,
    draw_orthogonal,
    draw_spectral,
    pack_cores,
    tt_from_matrix,
    tt_to_matrix,
    ttm_from_matrix,
    ttm_to_matrix,
    unpack_cores,
)

#: The registered name of ``diagonals``. Weight decay would close ranks whatever they do for the loss, and the rules
#: that choose what to decay go by names and by dimensions: all of them pass over a vector with ``bias`` in its name.
DIAGONALS = "diagonals_bias"

#: The key of the ranks of all layers, one after another, in the state dict of a model under rank control.
RANKS = "comera_ranks"


class TensorTrainLayer(nn.Module):
    """Base class of TT and TTM layers: packed cores, rank control, counting, truncation."""

    shape: TTShape | TTMShape
    packed_cores: nn.Parameter

    def _register_chain(
        self, shape: TTShape | TTMShape, device: torch.device | str | None, dtype: torch.dtype | None
    ) -> None:
        self.shape = shape
        self.threshold = THRESHOLD
        self.packed_cores = nn.Parameter(torch.empty(shape.parameter_count, device=device, dtype=dtype))
        self.register_parameter(DIAGONALS, nn.Parameter(torch.ones(sum(shape.ranks), device=device, dtype=dtype)))

    @property
    def threshold(self) -> float:
        """The magnitude up to which a rank-control entry counts as zero."""
        threshold: float = self.__dict__["threshold"]
        if torch.compiler.is_compiling():  # with dynamic=True a number is an input of the graph, and breaks functions
            from torch.fx.experimental.symbolic_shapes import guard_scalar  # of autograd; here it is a constant

            return float(guard_scalar(threshold))
        return threshold

    @threshold.setter
    def threshold(self, value: float) -> None:
        self.__dict__["threshold"] = value

    @property
    def diagonals(self) -> nn.Parameter:
        """The rank-control entries of all inner bonds, bond after bond."""
        return getattr(self, DIAGONALS)

    def share_cores(self, other: TensorTrainLayer) -> None:
        """Use the cores and the rank-control entries of another layer of the same modes."""
        self.shape, self.packed_cores = other.shape, other.packed_cores
        self.register_parameter(DIAGONALS, other.diagonals)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Save as any module does, with the ranks in the metadata, since other ranks may have as many entries."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        getattr(destination, "_metadata", {}).get(prefix[:-1], {})["ranks"] = self.shape.ranks

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, metadata: dict[str, Any], strict: bool, *lists: Any
    ) -> None:
        """Load as any module does, but accept the diagonals' former name and describe errors in sentences.

        A state dict that was saved under rank control also has the ranks. A model under control takes them up; any
        other has had them by :func:`comera.set_ranks`, so that they are no unexpected key.
        """
        unexpected = lists[-2]
        unexpected[:] = [key for key in unexpected if key.rpartition(".")[2] != RANKS]
        if f"{prefix}diagonals" in state_dict:
            state_dict[prefix + DIAGONALS] = state_dict.pop(f"{prefix}diagonals")
        given, errors = state_dict.get(f"{prefix}packed_cores"), lists[-1]
        ranks = tuple(metadata.get("ranks", self.shape.ranks))
        if given is None and f"{prefix}weight" in state_dict:
            warnings.warn(
                f"{prefix[:-1] or type(self).__name__} has cores, and the state dict has a dense weight for it, which "
                'is not loaded; load it into the dense model, before comera.tensorize(model, plan, start="weights").',
                stacklevel=2,
            )
        if isinstance(given, torch.Tensor) and (given.shape != self.packed_cores.shape or ranks != self.shape.ranks):
            errors.append(
                f"{prefix[:-1] or type(self).__name__} has ranks {self.shape.ranks}, and the state dict has cores of "
                "other ranks; comera.set_ranks gives a model the ranks that comera.ranks_of found in the saved one."
            )
            return
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, *lists)

    def _init_chain(self, scale: float) -> None:
        """Draw cores as N(0, 1) / sqrt(R[i]) · scale^(1/cores), so that entries of the whole have variance scale²."""
        with torch.no_grad():
            cores = unpack_cores(self.packed_cores, self.shape)
            for core in cores:
                core.normal_(0.0, scale ** (1 / len(cores)) / math.sqrt(max(core.shape[-1], 1)))
            self.diagonals.fill_(1.0)

    def _load_chain(self, cores: Sequence[torch.Tensor]) -> None:
        with torch.no_grad():
            self.packed_cores.copy_(pack_cores(cores, self.shape))
            self.diagonals.fill_(1.0)

    def cores(self) -> list[torch.Tensor]:
        """Return the cores as views of ``packed_cores``: (R[i-1], mode, R[i]) for TT, (R[i-1], v, c, R[i]) for TTM."""
        return unpack_cores(self.packed_cores, self.shape)

    def _scaled_cores(self) -> list[torch.Tensor]:
        """Return the cores, each inner diagonal multiplied into the core behind it."""
        cores = unpack_cores(self._packed, self.shape)
        bonds = effective_diagonals(self.diagonals, self.threshold).split(self.shape.ranks)
        scaled = [bond.view(-1, *[1] * (core.dim() - 1)) * core for bond, core in zip(bonds, cores[1:], strict=True)]
        return [cores[0], *scaled]

    @property
    def _packed(self) -> torch.Tensor:
        """The cores in the type of the rank-control entries, which stay in float32 where cores are in bfloat16."""
        return self.packed_cores.to(self.diagonals.dtype)

    def core_parameters(self) -> tuple[nn.Parameter, nn.Parameter]:
        """Return the parameters in place of the dense weight."""
        return self.packed_cores, self.diagonals

    def chain_sizes(self) -> dict[torch.Tensor, int]:
        """Return the parameters that truncation cuts, and the entries each has at the present ranks."""
        return {self.packed_cores: self.shape.parameter_count, self.diagonals: sum(self.shape.ranks)}

    def mode_sizes(self) -> tuple[int, ...]:
        """Return the entries of a core per pair of ranks: n_i for TT, v_i·c_i for TTM."""
        return tuple(math.prod(core_shape[1:-1]) for core_shape in self.shape.core_shapes)

    def active_ranks(self) -> tuple[int, ...]:
        """Return the number of rank-control entries above the threshold, per inner bond."""
        return active_ranks(whole(self.diagonals.detach()), self.shape.ranks, self.threshold)

    def dense_count(self) -> int:
        """Return the number of entries of the dense weight."""
        return math.prod(self._dense_shape())

    def parameter_count(self) -> int:
        """Return the number of trainable values: cores, rank-control entries and bias."""
        return sum(parameter.numel() for parameter in self.parameters())

    def to_dense(self) -> torch.Tensor:
        """Return the dense weight, in the shape of the layer that this one replaces."""
        raise NotImplementedError

    @property
    def weight(self) -> torch.Tensor:
        """The dense weight, formed anew by each operation on it: right, not fast, and not to be written to.

        For code that reads a layer's weight instead of calling the layer, as ``nn.MultiheadAttention`` does with its
        output projection, and models with a tied output layer. Its shape, type and device cost nothing. What would
        write to it, as ``nn.init.zeros_(layer.weight)``, raises RuntimeError.
        """
        return weight_of(self.to_dense, self._dense_shape(), (self.packed_cores, self.diagonals))

    def _dense_shape(self) -> tuple[int, int]:
        """Return the shape of :meth:`to_dense`."""
        raise NotImplementedError

    def truncate(self, optimizer: torch.optim.Optimizer | None = None) -> tuple[int, ...]:
        """Cut the ranks that rank control has closed out of the cores; the layer's function does not change.

        Where other layers share the cores, use :func:`comera.truncate` on the model.

        Args:
            optimizer: whose state is cut like the parameters.

        Returns:
            The new inner ranks.

        Raises:
            ValueError: parameters that are sharded over processes, or managed by DistributedDataParallel, or whose
                state the optimizer lacks or keeps in a form that cannot be cut.
        """
        refuse_distributed("truncate", self.chain_sizes())
        cut = [] if self.active_ranks() == self.shape.ranks else [self.packed_cores, self.diagonals]
        if optimizer is not None:
            check_states("truncate", optimizer, cut)
        ranks = self.cut(optimizer)
        warn_of_uncut_states("truncate", cut, optimizer)
        return ranks

    def cut(self, optimizer: torch.optim.Optimizer | None) -> tuple[int, ...]:
        """Truncate, once it is certain that the parameters may change their sizes; see :meth:`truncate`."""
        ranks = cut_closed_ranks(self.packed_cores, self.diagonals, self.shape, self.threshold, optimizer)
        if ranks != self.shape.ranks:
            self.shape = self.shape.with_ranks(ranks)
        return ranks


class TTLinear(TensorTrainLayer):
    """A linear layer whose weight is a tensor train with rank control (paper, section 3).

    Args:
        in_features, out_features: N and M, as in ``nn.Linear``.
        in_modes, out_modes: the same number of modes each, multiplying to N and M; any number from 1 up, so that the
            number of cores is even.
        ranks: one rank per inner bond, or one integer, a cap that is clipped to each bond's limit.
        bias: whether to add a bias of length M.
        device, dtype: of the parameters.
        init: how :meth:`reset_parameters` draws the cores, ``"normal"``, ``"orthogonal"`` or ``"spectral"``.

    Shape:
        (…, N) to (…, M), any leading dimensions.

    Raises:
        ValueError: modes that miss the dimension (the sentence offers some that fit), unequal numbers of modes, a rank
            beyond its bond, another ``init``.

    Example:
        >>> layer = TTLinear(768, 768, (12, 8, 8), (8, 8, 12), ranks=30)
        >>> layer(torch.zeros(2, 5, 768)).shape
        torch.Size([2, 5, 768])
        >>> layer.shape.parameter_count, layer.active_ranks()
        (20448, (12, 30, 30, 30, 12))
    """

    shape: TTShape
    stands_for: type[nn.Module] = nn.Linear  #: The class of the layer that it has replaced.

    #: How the two products are formed in FP8, or None; see :func:`comera.low_precision.use_fp8`.
    fp8: FP8 | None = None
    #: Whether halves that are cast to half precision are merged in TF32 on CUDA.
    merge_tf32: bool = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        in_modes: Sequence[int],
        out_modes: Sequence[int],
        ranks: int | Sequence[int],
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        init: Init = "normal",
    ) -> None:
        super().__init__()
        self.init = check_init(init)
        check_switch("bias", bias)
        self.in_features, self.out_features = in_features, out_features
        self._register_chain(TTShape(in_features, out_features, in_modes, out_modes, ranks), device, dtype)
        self.bias = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the cores so that weight entries have variance 1/(N + M); zero bias; diagonals of ones.

        With ``init="orthogonal"`` (not in the paper) the merged halves, (N, R) and (R, M), have orthogonal columns and
        rows of one length, so that all singular values of the weight start equal; its Frobenius norm is what it is on
        average with ``"normal"``. With ``init="spectral"`` (nor in the paper) each core is drawn as a layer of its own
        would be (:func:`comera.tensor_train.draw_spectral`).
        """
        if self.packed_cores.is_meta:  # without values to draw, which would take most of the time of building a layer
            return
        scale = math.sqrt(1 / (self.in_features + self.out_features))
        if self.init == "orthogonal":
            with torch.no_grad():
                draw_orthogonal(self.cores(), scale * math.sqrt(self.in_features * self.out_features))
                self.diagonals.fill_(1.0)
        elif self.init == "spectral":
            with torch.no_grad():
                draw_spectral(self.cores())
                self.diagonals.fill_(1.0)
        else:
            self._init_chain(scale)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    @classmethod
    def from_dense(
        cls,
        weight: torch.Tensor,
        in_modes: Sequence[int],
        out_modes: Sequence[int],
        ranks: int | Sequence[int],
        bias: torch.Tensor | None = None,
    ) -> Self:
        """Decompose a weight of shape (M, N), as ``nn.Linear`` keeps it, by TT-SVD.

        Example:
            >>> linear = nn.Linear(4, 6)
            >>> layer = TTLinear.from_dense(linear.weight, (2, 2), (2, 3), ranks=4, bias=linear.bias)
            >>> torch.allclose(layer.to_dense(), linear.weight, atol=1e-5)
            True
        """
        out_features, in_features = weight.shape
        layer = cls(
            in_features, out_features, in_modes, out_modes, ranks, bias is not None, weight.device, weight.dtype
        )
        with torch.no_grad():
            layer._load_chain(tt_from_matrix(weight.detach().t(), layer.shape).cores)
            if bias is not None and layer.bias is not None:
                layer.bias.copy_(bias)
        return layer

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if input.shape[-1] != self.in_features:
            raise ValueError(
                f"input has {input.shape[-1]} features in its last dimension; expected {self.in_features}."
            )
        if not self.shape.parameter_count and self.bias is not None:
            return self._bias_alone(input, self.bias)
        if self.fp8 is not None:
            with without_autocast(input.device.type):  # halves are rounded once, to FP8
                left_RN, right_RM = self.halves()
            return thin_linear(input, left_RN, right_RM, self.bias, self.fp8)
        if torch.compiler.is_compiling():  # one code for any number of tokens
            if halves := compiled_halves(self):
                return two_half_linear(input, *halves, self.bias)
            [halves] = merge_cores([self.packed_cores], [self.diagonals], [self.shape], self.threshold, self.merge_tf32)
            return two_half_linear(input, *halves, self.bias)
        if joint := jointly_merged(self, input):
            halves, bias, product = joint
            return two_half_linear(input, *halves, bias, product)
        tokens = max(input.numel() // self.in_features, 1)
        plan = plan_contraction(self.shape, tokens, machine_of(input), element_bytes_of(input))
        return tt_linear(input, self._packed, self.diagonals, plan, self.bias, self.threshold, self.merge_tf32)

    def halves(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the merged halves: those of the call of a root that the layer runs in, else its own."""
        halves = compiled_halves(self) if torch.compiler.is_compiling() else jointly_merged_halves(self)
        if halves is None:
            [halves] = merge_cores([self.packed_cores], [self.diagonals], [self.shape], self.threshold, self.merge_tf32)
        return halves

    def _dense_shape(self) -> tuple[int, int]:
        return self.out_features, self.in_features

    @staticmethod
    def _bias_alone(input: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """Return the output of a layer without ranks: nothing is multiplied or saved for backward.

        The rows are written out: attention is several times slower on a bias that is only expanded over the tokens.
        """
        device = input.device.type
        kind = autocast_type(device) or bias.dtype
        return bias.to(kind).expand(*input.shape[:-1], bias.shape[0]).contiguous()

    def to_dense(self) -> torch.Tensor:
        """Return the weight as ``nn.Linear.weight`` has it: (M, N)."""
        return tt_to_matrix(self._scaled_cores()).t().to(self.packed_cores.dtype)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, in_modes={self.shape.in_modes}, "
            f"out_modes={self.shape.out_modes}, ranks={self.shape.ranks}, bias={self.bias is not None}"
        )


class TTMEmbedding(TensorTrainLayer):
    """An embedding whose table is a TTM with rank control (paper, section 3).

    Args:
        num_embeddings, embedding_dim: V and D, as in ``nn.Embedding``.
        row_modes: at least two modes with a product of V or more (rows are padded).
        column_modes: as many modes, multiplying to D.
        ranks: one rank per inner bond, or one integer, a cap that is clipped to each bond's limit.
        padding_idx: this index yields zeros and gets no gradient.
        lookup: ``"optimized"``, ``"plain"``, ``"unique"`` or ``"order"``, see :mod:`comera.lookup`.
        device, dtype: of the parameters.

    Shape:
        integers (…) from 0 to V - 1 to (…, D). Others raise IndexError on the CPU; on CUDA, where a check would wait
        for the device, they give rows without meaning.

    Raises:
        ValueError: modes that do not reach V or miss D, a rank beyond its bond, an unknown look-up.

    Example:
        >>> table = TTMEmbedding(30522, 768, (16, 20, 10, 10), (4, 4, 8, 6), ranks=32)
        >>> table(torch.tensor([[1, 2, 30521]])).shape
        torch.Size([1, 3, 768])
        >>> table.shape.parameter_count
        167808
    """

    shape: TTMShape

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        row_modes: Sequence[int],
        column_modes: Sequence[int],
        ranks: int | Sequence[int],
        padding_idx: int | None = None,
        lookup: Variant = "optimized",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if lookup not in VARIANTS:
            raise ValueError(f"lookup is {lookup!r}; allowed: {', '.join(VARIANTS)}.")
        num_embeddings = check_size("num_embeddings", num_embeddings)
        if padding_idx is not None:
            padding_idx = check_whole("padding_idx", padding_idx)
            if not -num_embeddings <= padding_idx < num_embeddings:
                raise ValueError(f"padding_idx is {padding_idx}; it must lie within num_embeddings={num_embeddings}.")
            padding_idx %= num_embeddings
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx, self.lookup = padding_idx, lookup
        self._register_chain(TTMShape(num_embeddings, embedding_dim, row_modes, column_modes, ranks), device, dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the cores so that table entries have unit variance, as ``nn.Embedding`` does; diagonals of ones."""
        if not self.packed_cores.is_meta:
            self._init_chain(1.0)

    @torch.no_grad()
    def scale_like(self, weight: torch.Tensor) -> None:
        """Scale freshly drawn cores so that table entries have the mean square of a dense table's.

        A model is made for the scale of its tables: DLRM draws that of V rows from ±1/√V and multiplies rows with each
        other, BERT adds word and position.

        Example:
            >>> table = TTMEmbedding(10_000, 64, (10, 10, 10, 10), (2, 2, 4, 4), ranks=32)
            >>> table.scale_like(torch.full((10_000, 64), 0.02))
            >>> 0.01 < table.to_dense().std() < 0.04
            tensor(True)
        """
        self.packed_cores.mul_(scale_of(weight) ** (1 / len(self.cores())))

    @classmethod
    def from_dense(
        cls,
        weight: torch.Tensor,
        row_modes: Sequence[int],
        column_modes: Sequence[int],
        ranks: int | Sequence[int],
        padding_idx: int | None = None,
        lookup: Variant = "optimized",
        **options: Any,
    ) -> Self:
        """Decompose a table of shape (V, D) by TT-SVD; padded rows are zero. ``options`` are further ones of a class.

        Example:
            >>> table = torch.randn(6, 4)
            >>> layer = TTMEmbedding.from_dense(table, (2, 3), (2, 2), ranks=4)
            >>> torch.allclose(layer.to_dense(), table, atol=1e-5)
            True
        """
        rows, columns = weight.shape
        options |= {"padding_idx": padding_idx, "lookup": lookup, "device": weight.device, "dtype": weight.dtype}
        layer = cls(rows, columns, row_modes, column_modes, ranks, **options)
        layer._load_chain(ttm_from_matrix(weight.detach(), layer.shape).cores)
        return layer

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return ttm_rows(input, self._packed, self.diagonals, self.shape, self.padding_idx, self.lookup, self.threshold)

    def _dense_shape(self) -> tuple[int, int]:
        return self.num_embeddings, self.embedding_dim

    def to_dense(self) -> torch.Tensor:
        """Return the table as ``nn.Embedding.weight`` has it: (V, D)."""
        table = ttm_to_matrix(self._scaled_cores())[: self.num_embeddings]
        if self.padding_idx is not None:
            keep = torch.arange(self.num_embeddings, device=table.device) != self.padding_idx
            table = table * keep.unsqueeze(1)
        return table.to(self.packed_cores.dtype)

    def extra_repr(self) -> str:
        padding = f", padding_idx={self.padding_idx}" if self.padding_idx is not None else ""
        return (
            f"{self.num_embeddings}, {self.embedding_dim}, row_modes={self.shape.row_modes}, "
            f"column_modes={self.shape.column_modes}, ranks={self.shape.ranks}{padding}, lookup={self.lookup!r}"
        )


class TTMEmbeddingBag(TTMEmbedding):
    """Sums or means of rows of a TTM table, bag by bag, as ``nn.EmbeddingBag`` forms them.

    Rows are formed once each, or slices are summed before the last product where that costs less
    (:mod:`comera.lookup.bags`); the table never is, nor one row per index. Kept for backward are numbers of the items
    and the merged halves; with ``per_sample_weights`` that require a gradient, also the distinct rows.

    Args:
        num_embeddings, embedding_dim, row_modes, column_modes, ranks: as for :class:`TTMEmbedding`.
        mode: ``"sum"`` or ``"mean"``. There is no ``"max"``, which is not linear in the rows.
        include_last_offset: whether ``offsets`` also say where the last bag ends, which is T.
        padding_idx: items with this index do not count, in means neither.
        lookup, device, dtype: as for :class:`TTMEmbedding`.

    Shape:
        ``input`` (B, N), bags of one length, or (T,) with ``offsets`` (B,) where each bag begins;
        ``per_sample_weights``, with ``mode="sum"`` only, as ``input``. Result (B, D); an empty bag gives zeros.

    Raises:
        ValueError: as for :class:`TTMEmbedding`, and an unknown mode; when called, an input of other dimensions, one
            that lacks offsets or has them in vain, weights of another shape or with means.
        IndexError: when called, an index outside the table, or offsets that do not ascend from 0 within T (on the
            CPU).

    Example:
        >>> bag = TTMEmbeddingBag(10_131_227, 32, (57, 57, 56, 56), (2, 2, 2, 4), ranks=16, mode="sum")
        >>> bag(torch.tensor([4, 10_131_226, 4]), offsets=torch.tensor([0, 2])).shape
        torch.Size([2, 32])
        >>> bag.shape.parameter_count
        63264
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        row_modes: Sequence[int],
        column_modes: Sequence[int],
        ranks: int | Sequence[int],
        mode: BagMode = "mean",
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        lookup: Variant = "optimized",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if mode not in BAG_MODES:
            reason = "; a maximum is not linear in the rows" if mode == "max" else ""
            raise ValueError(f"mode is {mode!r}; allowed: {', '.join(BAG_MODES)}{reason}.")
        super().__init__(
            num_embeddings, embedding_dim, row_modes, column_modes, ranks, padding_idx, lookup, device, dtype
        )
        self.mode, self.include_last_offset = mode, include_last_offset

    def forward(
        self,
        input: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        bounds = self._bounds(input, offsets)
        if per_sample_weights is not None:
            if per_sample_weights.shape != input.shape:
                given, wanted = tuple(per_sample_weights.shape), tuple(input.shape)
                raise ValueError(f"per_sample_weights have shape {given}; expected {wanted}, that of the input.")
            if self.mode != "sum":
                raise ValueError(f'per_sample_weights go with mode="sum"; the mode of this layer is {self.mode!r}.')
            per_sample_weights = per_sample_weights.reshape(-1)
        return ttm_bags(
            input,
            bounds,
            self._packed,
            self.diagonals,
            self.shape,
            self.mode,
            self.padding_idx,
            self.lookup,
            self.threshold,
            per_sample_weights,
        )

    def _bounds(self, input: torch.Tensor, offsets: torch.Tensor | None) -> torch.Tensor:
        """Return the start of each bag, and the end of the last one."""
        if input.dim() == 2:
            if offsets is not None:
                raise ValueError("offsets go with an input of one dimension; rows of one with two are bags already.")
            bags = input.shape[0]  # len() would fix the number in an export
            return torch.arange(bags + 1, device=input.device) * input.shape[1]
        if input.dim() != 1:
            raise ValueError(f"input has {input.dim()} dimensions; expected 1 with offsets, or 2.")
        if offsets is None or offsets.dim() != 1:
            given = "none" if offsets is None else f"some of {offsets.dim()} dimensions"
            raise ValueError(f"an input of one dimension needs offsets of one dimension; got {given}.")
        if self.include_last_offset:
            if not len(offsets):
                raise ValueError("offsets are empty; with include_last_offset they hold at least where the last ends.")
            return offsets
        return torch.cat([offsets, offsets.new_full((1,), input.shape[0])])

    def extra_repr(self) -> str:
        last = ", include_last_offset=True" if self.include_last_offset else ""
        return f"{super().extra_repr()}, mode={self.mode!r}{last}"


class TiedTTMLinear(nn.Module):
    """A linear layer whose weight is the table of a :class:`TTMEmbedding`: the output layer of a language model.

    The table is formed for each forward pass; the tie, not the cost, is the point.

    Raises:
        ValueError: an embedding that is no :class:`TTMEmbedding`, or a bias that is no parameter.

    Example:
        >>> table = TTMEmbedding(12, 6, (3, 4), (2, 3), ranks=2)
        >>> TiedTTMLinear(table)(torch.zeros(5, 6)).shape
        torch.Size([5, 12])
    """

    def __init__(self, embedding: TTMEmbedding, bias: nn.Parameter | None = None) -> None:
        super().__init__()
        if not isinstance(embedding, TTMEmbedding):
            raise ValueError(f"embedding is {shown(embedding)}; it must be a comera.TTMEmbedding.")
        if not (bias is None or isinstance(bias, nn.Parameter)):
            raise ValueError(f"bias is {shown(bias)}; it must be a torch.nn.Parameter or None.")
        self.embedding = embedding
        self.bias = bias

    @property
    def weight(self) -> torch.Tensor:
        """The table, as :attr:`TTMEmbedding.weight` is it."""
        return self.embedding.weight

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if self.embedding.packed_cores.is_meta and not input.is_meta:  # torch would multiply with anything
            raise RuntimeError(
                "the table of a tied output layer is offloaded while the layer runs; offload with "
                'preload_module_classes=["TiedTTMLinear"], which loads the table for it.'
            )
        return F.linear(input, self.embedding.to_dense(), self.bias)
