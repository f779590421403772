"""The formats beside low rank: coefficients of a basis, block tensor trains, narrower dense models, bounded steps."""

import math

import pytest
import torch
from torch import nn

from baselines import basis, btt, dense, grouped, low_rank
from baselines.basis import BasisLinear
from baselines.low_rank import TwoFactorLinear
from bench.workloads.pointer.model import PointerModel, PointerSettings
from bench.workloads.teacher import Student, TeacherSettings
from bench.workloads.text.model import CausalLanguageModel, TextSettings
from comera import Muon
from comera.formats.block_linear import BlockLinear
from comera.loops.muon import join_matrices, orthogonalized, split_matrices
from comera.training import Settings as CoMERASettings
from comera.training import build as build_comera

SETTINGS = TextSettings(width=64, context=16)
TARGETS = {
    f"blocks.{number}.{name}": role
    for number in range(2)
    for name, role in [
        *((f"attention.{each}", "attention") for each in ("query", "key", "value", "output")),
        *((f"feed_forward.{each}", "feed_forward") for each in ("expand", "contract")),
    ]
}


def model():
    torch.manual_seed(0)
    return CausalLanguageModel(SETTINGS, 100)


def size(module):
    return sum(parameter.numel() for parameter in module.parameters())


ARMS = {
    "narrow": lambda ratio: dense.build(dense.Settings(ratio=ratio), "narrow"),
    "btt": lambda ratio: btt.build(btt.Settings(ratio=ratio)),
    "btt 1": lambda ratio: btt.build(btt.Settings(ratio=ratio, rank=1)),
    "btt 2": lambda ratio: btt.build(btt.Settings(ratio=ratio, rank=2)),
    "basis": lambda ratio: basis.build(basis.Settings(ratio=ratio)),
    "low_rank": lambda ratio: low_rank.build(low_rank.Settings(ratio=ratio), "spectral"),
    "comera": lambda ratio: build_comera(CoMERASettings(ratio=ratio), "spectral"),
}


@pytest.mark.parametrize("ratio", [2.0, 2.7])
@pytest.mark.parametrize("name", ARMS)
def test_all_formats_are_of_the_size_asked_for(name, ratio):
    arm = ARMS[name](ratio)
    with torch.device("meta"):
        assert arm.model_unsupported(model(), TARGETS) is None
    assert size(arm.adapt(model(), TARGETS)) == pytest.approx(size(model()) / ratio, rel=0.02)


@pytest.mark.parametrize("name", ARMS)
def test_a_ratio_out_of_reach_is_one_sentence(name):
    reason = ARMS[name](1e4).model_unsupported(model(), TARGETS)
    assert reason is not None
    assert "\n" not in reason
    assert ("out of reach" in reason) or reason.startswith("no model of 2 blocks has about")


@pytest.mark.parametrize("name", ARMS)
def test_branches_start_at_zero_and_can_leave_it(name):
    adapted = ARMS[name](2.0).adapt(model(), TARGETS)
    tokens = torch.randint(100, (2, 8))
    stream = adapted.tokens(tokens) + adapted.positions.weight[:8]
    assert torch.equal(adapted.blocks[0](stream), stream)
    nn.init.normal_(adapted.head.weight)
    optimizer = torch.optim.SGD(adapted.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(adapted(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
    for layer in (adapted.blocks[0].attention.output, adapted.blocks[1].feed_forward.contract):
        assert float(layer(torch.randn(3, layer.in_features if hasattr(layer, "in_features") else 64)).abs().sum()) > 0


@pytest.mark.parametrize("groups", [None, 2])
def test_grouped_layers_meet_a_ratio_by_one_number_of_groups(groups):
    dense, matrices = size(model()), sum(model().get_submodule(name).weight.numel() for name in TARGETS)
    ratio = dense / (dense - matrices / 2)
    arm = grouped.build(grouped.Settings(groups, ratio=ratio), "orthogonal")
    adapted = arm.adapt(model(), TARGETS)
    assert {adapted.get_submodule(name).shape.groups for name in TARGETS} == {2}
    assert size(adapted) == pytest.approx(dense / ratio)
    assert adapted.get_submodule("blocks.1.feed_forward.expand").init == "orthogonal"
    assert grouped.build(grouped.Settings()).adapt(model(), TARGETS).blocks[0].attention.key.shape.groups == 4


def test_grouped_layers_name_the_ratios_within_reach():
    reason = grouped.build(grouped.Settings(ratio=3.0)).model_unsupported(model(), TARGETS)
    assert reason.startswith(
        "ratio=3 is out of reach for grouped layers; ratios (groups) within reach: 1 (1), 1.773 (2), 2.889 (4), "
    )
    reason = grouped.build(grouped.Settings(groups=5)).model_unsupported(model(), TARGETS)
    assert reason == "groups is 5; it must divide in_features=64 and out_features=64, as 4 or 8 do."
    reason = grouped.build(grouped.Settings()).model_unsupported(model(), {})
    assert reason.startswith("grouped needs a linear layer among the targets")


_NO_BLOCKS = "of 2 blocks, which are no whole number of blocks; take"

_SHAPED = [
    (grouped.Settings, grouped.build, {"groups": 4}),
    (grouped.Settings, grouped.build, {"groups": 8}),
    (btt.Settings, btt.build, {}),
]


@pytest.mark.parametrize("depth", [0.5, 1.0, 1.5])
@pytest.mark.parametrize(("settings", "build", "more"), _SHAPED)
def test_structured_layers_have_the_depth_and_the_size(settings, build, more, depth):
    large = CausalLanguageModel(TextSettings(width=128, context=16), 100)
    arm = build(settings(ratio=2.9, depth=depth, **more))
    with torch.device("meta"):
        assert arm.model_unsupported(large, TARGETS) is None
    adapted = arm.adapt(large.eval(), TARGETS)
    assert not adapted.training
    assert size(adapted) == pytest.approx(size(large) / 2.9, rel=0.02)
    blocks = round(2 * depth)
    structured = [name for name, module in adapted.named_modules() if isinstance(module, BlockLinear)]
    assert len(adapted.blocks) == blocks
    assert list(arm.targets_in(adapted, TARGETS)) == structured
    assert len(structured) == 6 * blocks
    assert adapted.settings.width % more.get("groups", 8) == 0
    assert large.blocks[0].attention.key.in_features == 128  # left as it was


def test_structured_layers_of_other_workloads_have_a_depth():
    student = Student(TeacherSettings())
    for depth in (1 / 3, 2 / 3, 4 / 3):
        arm = grouped.build(grouped.Settings(ratio=3.81, depth=depth))
        adapted = arm.adapt(student, {f"hidden.{number}": "feed_forward" for number in range(3)})
        assert size(adapted) == pytest.approx(size(student) / 3.81, rel=0.02)
        assert all(layer.shape.groups == 4 for layer in adapted.hidden)
    pointer = PointerModel(PointerSettings(layers=4, width=64, heads=4, vocabulary=1000))
    inside = pointer.blocks.named_modules(prefix="blocks")
    matrices = {name: "attention" for name, layer in inside if isinstance(layer, nn.Linear)}
    arm = grouped.build(grouped.Settings(groups=4, ratio=2.0, depth=1.5))
    assert size(arm.adapt(pointer, matrices)) == pytest.approx(size(pointer) / 2.0, rel=0.02)


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        (
            {"ratio": 2.0, "depth": 0.75},
            "depth is 0.75 of 2 blocks, which are no whole number of blocks; take 0.5 or 1.",
        ),
        ({"ratio": 2.0, "depth": 1.0, "groups": 512}, "no width up to 128, twice the model's, is a multiple of 512."),
        ({"ratio": 1e4, "depth": 1.0, "groups": 4}, "no model of 2 blocks has about"),
    ],
)
def test_a_shape_that_no_structured_model_has_is_one_sentence(wanted, sentence):
    reason = grouped.build(grouped.Settings(**wanted)).model_unsupported(model(), TARGETS)
    assert reason.startswith(sentence)
    assert "\n" not in reason


def test_a_depth_needs_a_ratio_and_a_model_that_can():
    for settings, method in ((grouped.Settings, "grouped"), (btt.Settings, "btt")):
        with pytest.raises(ValueError, match=rf"^{method}\.depth is 0\.5 without a ratio, which gives the size; set"):
            settings(depth=0.5)
        with pytest.raises(ValueError, match=rf"^{method}\.depth is -1; allowed are finite numbers above 0\.$"):
            settings(depth=-1, ratio=2.0)
    plain = nn.Sequential(nn.Linear(4, 4))
    reason = btt.build(btt.Settings(ratio=2.0, depth=0.5)).model_unsupported(plain, {"0": "classifier"})
    assert reason.startswith("btt with a depth needs a model that can be made narrower, as workload=text, pointer")


def test_a_narrow_model_needs_a_ratio_and_a_model_that_can():
    assert (
        dense.build(dense.Settings(), "narrow")
        .model_unsupported(model(), TARGETS)
        .startswith("dense:narrow has no ratio; say how many times smaller")
    )
    plain = nn.Sequential(nn.Linear(4, 4))
    reason = dense.build(dense.Settings(ratio=2.0), "narrow").model_unsupported(plain, {"0": "classifier"})
    assert reason.startswith("dense:narrow needs a model that can be made narrower")
    reason = dense.build(dense.Settings(ratio=2.0)).model_unsupported(model(), TARGETS)
    assert reason == "settings.dense.ratio is 2, which is for dense:narrow and dense:small alone; leave it out."


@pytest.mark.parametrize(("depth", "blocks"), [(0.5, 1), (1.0, 2), (1.5, 3), (2.0, 4)])
@pytest.mark.parametrize("ratio", [2.0, 2.7])
def test_a_small_model_has_the_depth_and_the_size(depth, blocks, ratio):
    arm = dense.build(dense.Settings(ratio=ratio, depth=depth), "small")
    adapted = arm.adapt(model(), TARGETS)
    assert len(adapted.blocks) == blocks
    assert size(adapted) == pytest.approx(size(model()) / ratio, rel=0.02)
    if depth == 1:
        narrow = dense.build(dense.Settings(ratio=ratio), "narrow").adapt(model(), TARGETS)
        assert adapted.settings == narrow.settings


@pytest.mark.parametrize("student", [TeacherSettings(width=64, layers=4), PointerSettings(layers=4, width=64, heads=4)])
def test_other_workloads_have_small_models_as_well(student):
    large = Student(student) if isinstance(student, TeacherSettings) else PointerModel(student)
    small = dense.build(dense.Settings(ratio=2.0, depth=0.75), "small").adapt(large, {})
    assert small.settings.layers == 3
    assert size(small) == pytest.approx(size(large) / 2, rel=0.02)


@pytest.mark.parametrize(
    ("settings", "variant", "sentence"),
    [
        ({"ratio": 2.0}, "small", "dense:small has no depth; say how many times the blocks, as in"),
        ({"depth": 0.5}, "small", "dense:small has no ratio; say how many times smaller"),
        (
            {"ratio": 2.0, "depth": 0.75},
            "small",
            f"depth is 0.75 {_NO_BLOCKS} 0.5 or 1.",
        ),
        (
            {"ratio": 2.0, "depth": 0.1},
            "small",
            f"depth is 0.1 {_NO_BLOCKS} 0.5.",
        ),
        ({"ratio": 2.0, "depth": 0.5}, "narrow", "settings.dense.depth is 0.5, which is for dense:small alone"),
    ],
)
def test_a_shape_that_no_small_model_has_is_one_sentence(settings, variant, sentence):
    reason = dense.build(dense.Settings(**settings), variant).model_unsupported(model(), TARGETS)
    assert reason.startswith(sentence)


@pytest.mark.parametrize(("n", "m", "count"), [(6, 10, 60), (6, 10, 7), (12, 5, 30)])
def test_a_basis_is_orthonormal_and_coefficients_are_read_back(n, m, count):
    layer = BasisLinear(n, m, count, bias=False).double()
    layer.reset_parameters()
    x = torch.randn(4, n, dtype=torch.float64)
    torch.testing.assert_close(layer(x), x @ layer.to_dense().t())
    assert float(layer.to_dense().norm()) == pytest.approx(float(layer.coefficients.detach().norm()), rel=1e-6)
    same = BasisLinear(n, m, count, bias=False, seed=layer.seed)
    assert torch.equal(same.places, layer.places)
    other = BasisLinear(n, m, count, bias=False, seed=layer.seed + 1)
    assert not torch.equal(other.first, same.first)
    if count == n * m:  # all of it: any matrix can be met
        assert torch.linalg.matrix_rank(layer.to_dense()) == min(n, m)


def test_a_basis_orthogonalizes_as_the_whole_matrix_would_be():
    layer = BasisLinear(8, 12, 8 * 12, bias=False).double()
    layer.reset_parameters()
    gradient = torch.randn(layer.coefficients.shape, dtype=torch.float64)
    [matrix] = split_matrices(layer, "coefficients", gradient)
    joined = join_matrices(layer, "coefficients", [orthogonalized(matrix)])
    whole = layer.first @ matrix[0] @ layer.second
    expected = orthogonalized(whole[None])[0]
    found = layer.first @ layer._sparse(joined) @ layer.second
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("spectron", [False, True])
def test_steps_of_factors_are_the_formula(spectron):
    torch.manual_seed(1)
    layer = TwoFactorLinear(12, 20, rank=4, bias=False).double()
    layer.draw_spectral()
    layer.bounded_steps = spectron
    before = {name: parameter.detach().clone() for name, parameter in layer.named_parameters()}
    optimizer = Muon(layer, lr=0.3, momentum=0.0, layers=[layer])
    layer(torch.randn(7, 12, dtype=torch.float64)).square().sum().backward()
    optimizer.step()
    norms = [float(torch.linalg.matrix_norm(before[name], 2)) for name in ("first", "second")]
    bound = 1 / (sum(norms) + 1)
    scales = {"first": math.sqrt(4 / 12) / 2, "second": math.sqrt(20 / 4) / 2}
    for name, parameter in layer.named_parameters():
        gradient = parameter.grad.t() if name == "first" else parameter.grad
        along = orthogonalized(gradient[None])[0]
        expected = -0.3 * (bound if spectron else scales[name]) * (along.t() if name == "first" else along)
        torch.testing.assert_close(parameter.detach() - before[name], expected)


def test_spectron_bounds_the_product_where_the_rule_does_not():
    torch.manual_seed(0)
    layer = low_rank.build(low_rank.Settings(rank=4), "spectron").adapt(
        nn.Sequential(nn.Linear(16, 16)), {"0": "classifier"}
    )[0]
    with torch.no_grad():
        layer.first.mul_(100)
    before = (layer.first.t() @ layer.second).detach()
    optimizer = Muon(layer, lr=0.1, momentum=0.0, layers=[layer])
    layer(torch.randn(30, 16)).square().sum().backward()
    optimizer.step()
    change = torch.linalg.matrix_norm((layer.first.t() @ layer.second).detach() - before, 2)
    assert float(change) < 0.1 * 1.3  # singular values are set to about one
