"""torch.export of each layer, with any number of rows, items and bags."""

import pytest
import torch
from torch.export import Dim

import comera
from comera.lookup import VARIANTS

FEW, MANY = (100, (10, 10)), (10_000, (100, 100))  # rows, and their modes: more or fewer than a batch looks up


def table(kind, size, **options):
    rows, modes = size
    return kind(rows, 8, modes, (2, 4), ranks=4, padding_idx=3, **options)


def linear_inputs(count):
    return (torch.randn(count, 5, 16),)


def rows_of(count):
    return (torch.randint(0, 100, (count, 5)),)


def bags_of(count):
    return torch.randint(0, 100, (3 * count,)), torch.arange(count)


def weighed(count):
    return torch.randint(0, 100, (count, 5)), None, torch.rand(count, 5)


B, T = Dim("B"), Dim("T")
LAYERS = {
    "tensor train": (lambda: comera.TTLinear(16, 16, (4, 4), (4, 4), ranks=4), linear_inputs, ({0: B},)),
    "blocks": (lambda: comera.BTTLinear(16, 16, 4, 4, rank=2), linear_inputs, ({0: B},)),
    "groups": (lambda: comera.GroupedLinear(16, 16, 4), linear_inputs, ({0: B},)),
    "tied": (
        lambda: comera.TiedTTMLinear(comera.TTMEmbedding(100, 16, (10, 10), (4, 4), ranks=4)),
        linear_inputs,
        ({0: B},),
    ),
}
for variant in VARIANTS:
    for size in (FEW, MANY):
        of = {"size": size, "lookup": variant}
        LAYERS[f"table of {size[0]}, {variant}"] = (
            lambda of=of: table(comera.TTMEmbedding, **of),
            rows_of,
            ({0: B},),
        )
        LAYERS[f"bags of {size[0]}, {variant}"] = (
            lambda of=of: table(comera.TTMEmbeddingBag, **of),
            bags_of,
            ({0: T}, {0: B}),
        )
LAYERS["bags of one length"] = (lambda: table(comera.TTMEmbeddingBag, FEW), rows_of, ({0: B},))
LAYERS["weighed bags"] = (lambda: table(comera.TTMEmbeddingBag, FEW, mode="sum"), weighed, ({0: B}, None, {0: B}))


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_exported_for_any_batch(name):
    make, inputs, shapes = LAYERS[name]
    torch.manual_seed(0)
    layer = make().eval()
    module = torch.export.export(layer, inputs(4), dynamic_shapes=shapes).module()
    for count in (2, 9, 300):
        given = inputs(count)
        torch.testing.assert_close(module(*given), layer(*given), rtol=1e-4, atol=1e-5)
