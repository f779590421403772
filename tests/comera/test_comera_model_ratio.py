"""A whole model of a wanted ratio: what stays dense is counted, equal shapes are solved alike, the method uses it."""

import copy
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paper_encoder import DENSE, STAYS_DENSE, paper_encoder
from torch import nn

from comera import OutOfReach, TTLinear, TTMEmbedding, solve_model, tensorize
from comera.modes import check_ranks
from comera.training import Settings, build

WIDTHS = st.sampled_from([8, 12, 16, 24, 30, 36, 48, 64, 97])


def size_of(model):
    return sum(parameter.numel() for parameter in model.parameters())


@st.composite
def models(draw):
    """An embedding and a few linear layers, of which some share a shape, and a head that stays dense."""
    width, hidden = draw(WIDTHS), draw(WIDTHS)
    layers = [nn.Embedding(draw(st.integers(20, 2000)), width)]
    for _ in range(draw(st.integers(1, 3))):
        layers += [nn.Linear(width, hidden, bias=draw(st.booleans())), nn.Linear(hidden, width)]
    with torch.device("meta"):
        return nn.Sequential(*layers, nn.Linear(width, 3))


def targets_of(model):
    return [str(place) for place in range(len(model) - 1)]


@settings(max_examples=60)
@given(models(), st.floats(1, 60))
def test_the_tensorized_model_has_the_size_the_solution_says(model, ratio):
    dense = size_of(model)
    try:
        solution = solve_model(model, targets_of(model), ratio)
    except OutOfReach:
        return
    tensorized = tensorize(copy.deepcopy(model), solution.plan)
    assert size_of(tensorized) == solution.parameter_count
    assert abs(solution.parameter_count - dense / ratio) <= 0.02 * dense / ratio
    assert solution.ratio == dense / solution.parameter_count
    assert list(solution.layers) == targets_of(model)
    assert sum(solution.weights.values()) == len(model) - 1
    layers = [layer for layer in tensorized.modules() if isinstance(layer, TTLinear | TTMEmbedding)]
    assert solution.stays_dense == size_of(tensorized) - sum(
        layer.packed_cores.numel() + layer.diagonals.numel() for layer in layers
    )
    alike = {}
    for layer in layers[1:]:
        check_ranks(layer.shape.ranks, layer.shape.in_modes + layer.shape.out_modes)
        assert alike.setdefault((layer.in_features, layer.out_features), layer.shape) == layer.shape


@pytest.mark.parametrize("ratio", [1, 1.5, 2, 4, 8, 16, 32, 64, 100, 145])
def test_the_encoder_is_solved_at_every_ratio_of_the_sweep(ratio):
    model, names = paper_encoder()
    start = time.perf_counter()
    solution = solve_model(model, names, ratio)
    assert time.perf_counter() - start < 1
    assert len(solution.layers) == 38
    assert len(solution.weights) == 4
    assert (solution.dense_count, solution.stays_dense) == (DENSE, STAYS_DENSE)
    assert abs(solution.ratio / ratio - 1) < 0.02
    if ratio < 145:  # where all bonds have room, all layers have one ratio
        ratios = [layer.ratio for layer in solution.layers.values()]
        assert max(ratios) < 1.04 * min(ratios)
    assert size_of(tensorize(model, solution.plan)) == solution.parameter_count


def test_a_ratio_beyond_what_stays_dense_names_the_largest():
    with pytest.raises(OutOfReach, match=r"ratio=150 .* 459,267 of its 66,957,315 .* 145\.073"):
        solve_model(*paper_encoder(), ratio=150)


def test_shared_weights_count_once_and_follow():
    model = nn.Sequential(nn.Embedding(100, 24), nn.Linear(24, 24), nn.Linear(24, 24), nn.Linear(24, 100))
    model[3].weight = model[0].weight
    model[2].weight = model[1].weight
    solution = solve_model(model, ["*"], 4)
    assert list(solution.layers) == ["0", "1", "2"]
    assert sorted(solution.weights.values()) == [1, 1]
    assert solution.stays_dense == 24 + 24 + 100
    assert size_of(tensorize(model, solution.plan)) == solution.parameter_count


def test_the_method_takes_the_ratio_instead_of_ranks():
    model, targets = paper_encoder()
    method = build(Settings(ranks=3, table_ranks=3, ratio=20.0, lookup="plain"), "")
    assert method.model_unsupported(model, targets) is None
    model = method.adapt(model, targets)
    assert abs(DENSE / size_of(model) / 20 - 1) < 0.02
    assert model.embeddings.word.lookup == "plain"
