"""The spectral start of tensor trains, layers that start at zero, and blocks for the ratio of a whole model."""

import pytest
import torch
from torch import nn

import comera
from comera import BTT, TT, Grouped, TTLinear
from comera.protocol import OutOfReach, starts_at_zero
from comera.ratio.blocks import solve_block_model


def test_cores_start_as_layers_of_their_own():
    torch.manual_seed(0)
    layer = TTLinear(512, 512, (8, 8, 8), (8, 8, 8), 40, init="spectral")
    for number, core in enumerate(layer.cores()):
        before, mode, after = core.shape
        d, e = (before * mode, after) if number < 3 else (before, mode * after)
        expected = (1 / d) ** 0.5 * min(1.0, (e / d) ** 0.5)
        assert float(core.std()) == pytest.approx(expected, rel=0.15), number
    assert torch.equal(layer.diagonals, torch.ones_like(layer.diagonals))
    assert float(torch.linalg.matrix_norm(layer.to_dense(), 2)) < 40


@pytest.mark.parametrize("spec", [TT(ranks=6, order=2), TT(ranks=6, order=2, init="spectral"), BTT(rank=2), Grouped()])
def test_a_marked_layer_starts_at_zero_and_leaves_it(spec):
    model = nn.Sequential(nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False))
    model[1].starts_at_zero = True
    assert starts_at_zero(model[1])
    comera.tensorize(model, {"*": spec})
    x = torch.randn(3, 16)
    assert float(model[0](x).abs().sum()) > 0
    assert torch.equal(model[1](x), torch.zeros(3, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (model(x) - 1).square().sum().backward()
    optimizer.step()
    assert float(model[1](x).abs().sum()) > 0


def two_blocks():
    return nn.Sequential(nn.Linear(128, 512), nn.Linear(512, 128), nn.Linear(128, 10))


@pytest.mark.parametrize("ratio", [2.0, 3.0, 4.0, 6.0, 10.0])
@pytest.mark.parametrize("rank", [None, 1, 2])
def test_a_model_of_blocks_has_the_ratio(ratio, rank):
    model = two_blocks()
    dense = sum(parameter.numel() for parameter in model.parameters())
    try:
        shapes = solve_block_model(model, ["0", "1"], ratio, rank)
    except OutOfReach as reason:  # blocks of powers of two are coarse: then the nearest is named, and is not near
        nearest = float(str(reason).rpartition(" ")[2].rstrip("."))
        assert 0.02 < abs(nearest / ratio - 1) < 0.15
        assert rank is not None
        return
    kept = dense - sum(model[number].weight.numel() for number in (0, 1))
    found = kept + sum(shape.parameter_count for shape in shapes.values())
    assert found == pytest.approx(dense / ratio, rel=0.02)
    assert rank is None or {shape.rank for shape in shapes.values()} == {rank}
