"""Other numbers of rows for tensorized tables, within the rows that their modes have room for.

A TTM has as many rows as its row modes multiply to; what is above the vocabulary are padded rows. A vocabulary that
grows takes these. No core changes: the new rows are what the cores give for their numbers.
"""

from __future__ import annotations

from torch import nn
from torch.nn import functional as F

from comera.formats.block_linear import BlockLinear
from comera.layers import TiedTTMLinear, TTLinear, TTMEmbedding
from comera.tensor_train import TTMShape
from comera.truncation import layers_by_cores


def resize_rows(model: nn.Module, table: nn.Module, head: nn.Module | None, rows: int) -> None:
    """Give a tensorized table, what shares its cores, and output layers tied to it another number of rows.

    The bias of a tied output layer gets zeros. A dense table and a dense output layer are left to who resizes them.

    Args:
        model: which holds the table.
        table: the input embedding, tensorized or dense.
        head: the output layer, tied, tensorized, dense or None.
        rows: V, from 1 to what the row modes multiply to. Indices from ``rows`` on are then outside of the table.

    Raises:
        ValueError: fewer rows than 1, more than the row modes have room for, or a tensorized output layer of its own
            with another number of features, whose modes multiply to exactly that. Nothing is changed then.

    Example:
        >>> import torch
        >>> model = nn.Sequential(TTMEmbedding(30, 8, (6, 6), (2, 4), ranks=2))
        >>> resize_rows(model, model[0], None, 36)
        >>> model(torch.tensor([35])).shape
        torch.Size([1, 8])
    """
    names = {module: name for name, module in model.named_modules()}
    another_way = (
        "comera.to_dense_model(model) has layers that can be resized; resize that model, then tensorize it again with "
        'start="weights".'
    )
    if rows < 1:
        raise ValueError(f"{rows} rows are given to an embedding; it needs 1 or more.")
    if isinstance(table, TTMEmbedding) and rows > table.shape.padded_rows:
        raise ValueError(
            f"{names.get(table, 'the table')} has row_modes={table.shape.row_modes}, room for "
            f"{table.shape.padded_rows} rows; {rows} are given. {another_way}"
        )
    if isinstance(head, BlockLinear) and rows != head.out_features:
        raise ValueError(
            f"{names.get(head, 'the output layer')} has blocks of exactly {head.out_features} features; {rows} are "
            f"given. {another_way}"
        )
    if isinstance(head, TTLinear) and rows != head.out_features:
        raise ValueError(
            f"{names.get(head, 'the output layer')} has out_modes={head.shape.out_modes}, which multiply to exactly "
            f"{head.out_features} features; {rows} are given. {another_way}"
        )
    if not isinstance(table, TTMEmbedding):
        return
    sharing = next(layers for layers in layers_by_cores(model) if layers[0].packed_cores is table.packed_cores)
    for layer in sharing:
        assert isinstance(layer, TTMEmbedding)
        shape = layer.shape
        layer.shape = TTMShape(rows, shape.embedding_dim, shape.row_modes, shape.column_modes, shape.ranks)
        layer.num_embeddings = rows
        if layer.padding_idx is not None and layer.padding_idx >= rows:
            layer.padding_idx = None
    for tied in model.modules():
        if isinstance(tied, TiedTTMLinear) and tied.embedding in sharing and tied.bias is not None:
            tied.bias.grad, tied.bias.data = None, F.pad(tied.bias.data, (0, rows - len(tied.bias)))
