"""The parameters of a model, as the model of communication takes them (:mod:`bench.estimate.communication`)."""

from torch import nn

from bench.estimate.communication import Kind, Tensor
from comera.layers import TensorTrainLayer
from comera.recomputing import blocks_of


def parameters_of(model: nn.Module) -> tuple[Tensor, ...]:
    """Return the parameters of a model, trained or frozen, in its order, each once; sharded ones in their whole shape.

    Example:
        >>> table, matrix, bias = parameters_of(nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2)))
        >>> table
        Tensor(shape=(9, 4), kind='table', in_block=False, trained=True, width=4)
        >>> matrix.kind, bias.kind
        ('matrix', 'vector')
    """
    kinds: dict[int, Kind] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if isinstance(module, TensorTrainLayer) and name != "bias":
                kinds[id(parameter)] = "core"  # all cores of a layer, packed into one vector, and their diagonals
            elif isinstance(module, nn.Embedding | nn.EmbeddingBag):
                kinds[id(parameter)] = "table"
            else:
                kinds.setdefault(id(parameter), "matrix" if parameter.ndim > 1 else "vector")
    in_blocks = {id(parameter) for block in blocks_of(model) for parameter in block.parameters()}
    return tuple(
        Tensor(
            shape=tuple(parameter.shape),
            kind=kinds[id(parameter)],
            in_block=id(parameter) in in_blocks,
            trained=parameter.requires_grad,
            width=parameter.element_size(),
        )
        for parameter in model.parameters()
    )
