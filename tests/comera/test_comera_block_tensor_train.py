"""Block tensor trains: what they compute, how they are sized, drawn, decomposed, saved, and put into models."""

import copy
import json
import math
import re

import pytest
import torch
import transformers
from model_states import kept_numbers
from noted_operations import NotedOperations
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.flop_counter import FlopCounterMode
from two_processes import FEATURES, in_two_processes, train

import comera
from comera import BTT, TT, BTTLinear, BTTShape, solve_blocks
from comera.contraction import MACHINES
from comera.formats import block_candidates
from comera.formats.batched_product import batched_product
from comera.formats.block_shapes import balanced_blocks

#: Rows from which on the products write by strides.
MANY = 256

SHAPES = [(6, 4, 2, 2, 1), (12, 18, 3, 2, 3), (8, 8, 8, 1, 1), (8, 8, 1, 8, 1), (7, 5, 1, 1, 4), (1, 6, 1, 3, 1)]


def layer_of(shape, dtype=torch.float64, **options):
    torch.manual_seed(0)
    in_features, out_features, in_blocks, out_blocks, rank = shape
    layer = BTTLinear(in_features, out_features, in_blocks, out_blocks, rank, dtype=dtype, **options)
    if layer.bias is not None:
        nn.init.normal_(layer.bias)
    return layer


def by_definition(layer):
    """The weight (M, N), block by block."""
    shape = layer.shape
    weight = torch.zeros(shape.out_features, shape.in_features, dtype=layer.in_core.dtype)
    n, m, r = shape.in_size, shape.out_size, shape.rank
    for j in range(shape.in_blocks):
        for i in range(shape.out_blocks):
            left, right = layer.in_core[j, :, :, i], layer.out_core[i, j * r : (j + 1) * r]
            weight[i * m : (i + 1) * m, j * n : (j + 1) * n] = (left @ right).t()
    return weight


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("leading", [(5,), (2, 3), (), (0,), (2, MANY)])
def test_output_and_gradients_are_those_of_the_dense_weight(shape, bias, leading):
    layer = layer_of(shape, bias=bias)
    weight = by_definition(layer).detach()
    assert torch.allclose(layer.to_dense(), weight)
    x = torch.randn(*leading, shape[0], dtype=torch.float64, requires_grad=True)
    dense_x = x.detach().clone().requires_grad_()
    output = layer(x)
    wanted = nn.functional.linear(dense_x, by_definition(layer), layer.bias)
    assert output.shape == wanted.shape
    assert torch.allclose(output, wanted)
    way = torch.randn_like(output)
    found = torch.autograd.grad((output * way).sum(), [x, *layer.parameters()])
    expected = torch.autograd.grad((wanted * way).sum(), [dense_x, *layer.parameters()])
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other)


@pytest.mark.parametrize("sizes", [(7, 13, 2), (22, 26, 1)])
def test_sizes_with_few_divisors_are_warned_of(sizes):
    with pytest.warns(
        UserWarning, match=r"sizes have few divisors, so that its weight has at most rank (\d+)"
    ) as found:
        layer = BTTLinear(*sizes[:2], rank=sizes[2])
    assert torch.linalg.matrix_rank(layer.to_dense()) == layer.shape.rank_limit
    assert f"at most rank {layer.shape.rank_limit};" in str(found[0].message)


@pytest.mark.parametrize(
    "sizes", [(7, 5, 1, 1, 4), (7, 13, None, None, 7), (12, 18, None, None, 2), (512, 7, None, None, 2)]
)
def test_other_sizes_and_chosen_blocks_are_not(sizes, recwarn):
    BTTLinear(*sizes)
    assert not recwarn.list


# Torch forms a dense weight of blocks of rank 1 entry by entry, which its counter leaves out.
@pytest.mark.parametrize(
    ("shape", "number"), [(shape, number) for shape in SHAPES for number in (0, 1) if number == 0 or shape[-1] > 1]
)
def test_a_plan_counts_the_products_of_its_layer(shape, number):
    layer, plain = layer_of(shape, torch.float32), layer_of(shape, torch.float32)
    plan = block_candidates(layer.shape, tokens=MANY)[number]
    layer.contraction = plan.name
    x = torch.randn(MANY, shape[0], requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        output = layer(x)
    assert counter.get_total_flops() == plan.forward_flops
    assert torch.allclose(output, plain(x), atol=1e-5)
    way = torch.randn_like(output)
    with FlopCounterMode(display=False) as counter:
        found = torch.autograd.grad((output * way).sum(), [x, *layer.parameters()])
    assert counter.get_total_flops() == plan.flops - plan.forward_flops
    for one, other in zip(found, torch.autograd.grad((plain(x) * way).sum(), [x, *plain.parameters()]), strict=True):
        assert torch.allclose(one, other, atol=1e-4)


def test_what_a_plan_keeps_is_what_autograd_keeps():
    layer = layer_of((12, 18, 3, 2, 3), torch.float32)
    for plan in block_candidates(layer.shape, tokens=MANY):
        layer.contraction = plan.name
        kept = kept_numbers(lambda: layer(torch.randn(MANY, 12, requires_grad=True)), layer.parameters())
        copies = 0 if plan.name == "blocks" else layer.shape.parameter_count  # of cores, in another layout
        assert plan.saved <= sum(kept) <= plan.saved + copies


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(24, 30, 4, 5, 2), (64, 64, 8, 8, 1), (64, 32, 4, 8, 4)])
def test_no_step_copies_a_tensor(shape, bias):
    layer = layer_of(shape, torch.float32, bias=bias)
    x, way = torch.randn(2, MANY, shape[0], requires_grad=True), torch.randn(2, MANY, shape[1])
    with NotedOperations() as ran:
        layer(x).backward(way)
    assert not ran.named("clone", "copy", "_to_copy")
    products = ran.named("bmm")
    assert len(products) == 6
    assert all(product.is_read_by_cublas() for product in products)  # or it copies what it reads


def test_few_rows_take_plain_products(monkeypatch):
    layer, asked = layer_of(SHAPES[1], torch.float32), []

    def product(*operands):
        asked.append(1)
        return batched_product(*operands)

    monkeypatch.setattr("comera.formats.block_tensor_train.batched_product", product)
    layer(torch.randn(MANY - 1, 12))
    assert asked == []
    layer(torch.randn(MANY, 12))
    assert asked == [1, 1]


def test_auto_follows_the_plan(monkeypatch):
    layer = layer_of((12, 18, 3, 2, 3), torch.float32)
    layer.contraction, asked = "auto", []

    def plan(shape, tokens, machine, element_bytes):
        asked.append((tokens, machine, element_bytes))
        return block_candidates(shape, tokens)[1]

    monkeypatch.setattr("comera.formats.block_tensor_train.plan_blocks", plan)
    with FlopCounterMode(display=False) as counter:
        layer(torch.randn(2, 3, 12))
    assert asked == [(6, MACHINES["cpu"], 4)]
    assert counter.get_total_flops() == block_candidates(layer.shape, 6)[1].forward_flops


@pytest.mark.parametrize("shape", SHAPES)
def test_sizes_on_paper_are_those_of_the_layer(shape):
    layer = layer_of(shape, torch.float32, bias=False)
    paper = layer.shape
    assert paper.parameter_count == layer.parameter_count() == sum(core.numel() for core in layer.core_parameters())
    assert paper.dense_count == layer.dense_count() == layer.to_dense().numel()
    assert paper.ratio == paper.dense_count / paper.parameter_count
    with FlopCounterMode(display=False) as counter:
        layer(torch.randn(3, shape[0]))
    assert counter.get_total_flops() == 3 * paper.flops_per_row
    assert paper.middle_size == shape[2] * shape[3] * shape[4]
    assert f"{paper.parameter_count:,}" in str(paper)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("in_blocks", 5),
        ("out_blocks", 19),
        ("rank", 5),
        ("rank", 0),
        ("rank", 1.5),
        ("in_features", 0),
        ("init", "odd"),
    ],
)
def test_a_wrong_size_is_named(field, value):
    sizes = {"in_features": 12, "out_features": 18, "in_blocks": 3, "out_blocks": 2, "rank": 1} | {field: value}
    with pytest.raises(ValueError, match=field):
        BTTLinear(**sizes)


def test_an_input_of_another_width_is_refused():
    with pytest.raises(ValueError, match="input has 3 features in its last dimension; expected 6"):
        layer_of(SHAPES[0], torch.float32)(torch.zeros(2, 3))


@pytest.mark.parametrize("sizes", [(128, 96), (60, 84), (64, 64)])
@pytest.mark.parametrize("ratio", [2, 4, 8, 14])
@pytest.mark.parametrize("rank", [None, 1, 2])
def test_a_solved_shape_is_the_best_of_all(sizes, ratio, rank):
    """Near the size, of the highest possible rank, of the fewest blocks: by trying every shape."""
    everything = [
        BTTShape(*sizes, j, i, r)
        for j in range(1, sizes[0] + 1)
        for i in range(1, sizes[1] + 1)
        if not sizes[0] % j and not sizes[1] % i
        for r in ([rank] if rank else range(1, min(sizes[0] // j, sizes[1] // i) + 1))
        if r <= min(sizes[0] // j, sizes[1] // i)
    ]

    def error(shape):
        return max(abs(math.log(shape.ratio / ratio)), math.log(1.02))

    found = solve_blocks(*sizes, ratio, rank)
    assert rank in (None, found.rank)
    assert error(found) == pytest.approx(min(map(error, everything)))
    near = [each for each in everything if error(each) <= error(found) + 1e-9]
    assert found.rank_limit == max(each.rank_limit for each in near)
    full = [each.in_blocks * each.out_blocks for each in near if each.rank_limit == found.rank_limit]
    assert found.in_blocks * found.out_blocks == min(full)


@pytest.mark.parametrize("ratio", [2, 4, 8])
@pytest.mark.parametrize("width", [512, 2048])
def test_a_square_has_twice_as_many_blocks_a_side_as_its_ratio(width, ratio):
    shape = solve_blocks(width, width, ratio)
    assert (shape.in_blocks, shape.out_blocks, shape.middle_size) == (2 * ratio, 2 * ratio, width)


def test_blocks_and_rank_are_wishes():
    assert solve_blocks(128, 128, 4, rank=1) == BTTShape(128, 128, 16, 16, 1)
    assert solve_blocks(128, 128, 4, blocks=(4, 4)) == BTTShape(128, 128, 4, 4, 4)
    assert comera.tensorize(nn.Linear(128, 128), {"": BTT(None, 4, 4, ratio=4)}).shape.rank == 4
    with pytest.raises(ValueError, match=r"out of reach .* with blocks=\(1, 1\); the nearest is 64"):
        solve_blocks(128, 128, 1000, blocks=(1, 1))
    with pytest.raises(ValueError, match=r"in_blocks is 5; it must divide in_features=128, as 4 or 8 do\."):
        solve_blocks(128, 128, 4, blocks=(5, 5))


class TestOlderStates:
    """Version 0.2.0 kept the first core as (J, n, I·r); state, input and output are of its own."""

    STATE = (
        ("in_core", (2, 2, 6), "1 3 5 1 6 7 1 6 -8 7 7 1 2 -7 -7 -8 2 1 -1 4 -4 -1 -2 -7"),
        ("out_core", (3, 4, 2), "-1 -4 0 7 -1 -4 7 7 5 -4 -8 1 4 -6 4 -8 5 3 4 4 5 -6 1 4"),
    )
    OUTPUT = (-40.0, 50.0, -435.0, 505.0, 101.0, 8.0)

    def state(self):
        return {name: torch.tensor([*map(float, text.split())]).view(shape) for name, shape, text in self.STATE}

    def output(self, layer):
        return tuple(layer(torch.tensor([1.0, 2.0, 3.0, 4.0])).tolist())

    def test_a_state_dict_is_converted(self):
        layer = BTTLinear(4, 6, 2, 3, 2, bias=False)
        layer.load_state_dict(self.state())
        assert self.output(layer) == self.OUTPUT
        again = BTTLinear(4, 6, 2, 3, 2, bias=False)
        again.load_state_dict(layer.state_dict())
        assert self.output(again) == self.OUTPUT

    def test_a_saved_folder_is_converted(self, tmp_path):
        described = {"in_blocks": 2, "out_blocks": 3, "rank": 2}
        text = json.dumps({"format": 1, "comera": "0.2.0", "torch": "2.13.0", "layers": {"0": described}})
        (tmp_path / "comera.json").write_text(text)
        save_file({f"0.{name}": tensor for name, tensor in self.state().items()}, tmp_path / "model.safetensors")
        model = comera.load_pretrained(tmp_path, nn.Sequential(nn.Linear(4, 6, bias=False)))
        assert self.output(model) == self.OUTPUT

    def test_a_folder_of_transformers_is_converted(self, tmp_path):
        sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 9}
        config = transformers.BertConfig(**sizes, num_attention_heads=2, max_position_embeddings=4)
        name, model = "encoder.layer.0.intermediate.dense", transformers.BertModel(config).eval()
        comera.tensorize(model, {name: BTT(2)}).save_pretrained(tmp_path)
        saved, file = load_file(tmp_path / "model.safetensors"), tmp_path / "model.safetensors"
        saved[f"{name}.in_core"] = saved[f"{name}.in_core"].transpose(2, 3).flatten(2).contiguous()
        save_file(saved, file, {"format": "pt"})
        tokens = torch.tensor([[1, 2, 3]])
        again = transformers.BertModel.from_pretrained(tmp_path)
        torch.testing.assert_close(again(tokens).last_hidden_state, model(tokens).last_hidden_state)
        again.save_pretrained(tmp_path)
        assert load_file(file)[f"{name}.in_core"].ndim == 4


@pytest.mark.parametrize("init", ["normal", "spectral", "orthogonal"])
def test_starts_have_the_sizes_they_promise(init):
    torch.manual_seed(0)
    layer = BTTLinear(256, 512, rank=2, init=init)
    assert torch.equal(layer.bias, torch.zeros(512))
    for core in (layer.in_core.flatten(2), layer.out_core):
        _, inputs, outputs = core.shape
        if init == "orthogonal":
            values = torch.linalg.svdvals(core.detach())
            assert torch.allclose(values, torch.full_like(values, math.sqrt(outputs / inputs)), rtol=1e-4)
        elif init == "spectral":
            assert core.std().item() == pytest.approx(inputs**-0.5 * min(1, (outputs / inputs) ** 0.5), rel=0.05)
    if init == "normal":
        assert layer.to_dense().var().item() == pytest.approx(1 / 768, rel=0.1)


@pytest.mark.parametrize("shape", [(12, 18, 3, 2, 1), (12, 18, 3, 2, 2), (12, 18, 3, 2, 4)])
def test_a_decomposed_weight_is_the_nearest_of_its_blocks(shape):
    """No block tensor train is nearer than the best of each block, by the theorem of Eckart and Young."""
    torch.manual_seed(0)
    linear = nn.Linear(12, 18, dtype=torch.float64)
    layer = BTTLinear.from_dense(linear.weight, *shape[2:4], shape[4], linear.bias)
    assert torch.equal(layer.bias, linear.bias)
    blocks = linear.weight.detach().reshape(2, 9, 3, 4).transpose(1, 2)
    left_out = torch.linalg.svdvals(blocks)[..., shape[4] :].square().sum().sqrt()
    assert (layer.to_dense() - linear.weight).norm().item() == pytest.approx(left_out.item(), abs=1e-10)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_it_is_one_graph_of_the_same_function(dynamic):
    layer = layer_of(SHAPES[1], torch.float32)
    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for rows in (4, MANY):
        x = torch.randn(rows, 12)
        assert torch.allclose(compiled(x), layer(x), atol=1e-6)
    with torch.autocast("cpu", torch.bfloat16):
        assert compiled(x).dtype == layer(x).dtype == torch.bfloat16
    torch.compiler.reset()


class TestModels:
    def model(self):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(12, 18), nn.ReLU(), nn.Linear(18, 12, bias=False), nn.Linear(12, 4))

    def test_layers_are_replaced_by_pattern(self):
        model = comera.tensorize(self.model(), {"3": TT(2, 1), "0": BTT(1, 3, 2), "2": BTT(ratio=2)})
        assert [type(layer).__name__ for layer in model] == ["BTTLinear", "ReLU", "BTTLinear", "TTLinear"]
        assert (model[0].shape.in_blocks, model[0].shape.out_blocks, model[0].shape.rank) == (3, 2, 1)
        assert model[2].bias is None
        assert model[2].shape == solve_blocks(18, 12, 2)
        assert comera.tensorize(self.model(), {"0": BTT()})[0].shape == balanced_blocks(12, 18, 2)

    def test_weights_are_decomposed(self):
        dense = self.model()
        model = comera.tensorize(copy.deepcopy(dense), {"0": BTT(4, 3, 2)}, start="weights")
        x = torch.randn(3, 12)
        assert torch.allclose(model(x), dense(x), atol=1e-5)
        with pytest.raises(ValueError, match="leave init out"):
            comera.tensorize(dense, {"0": BTT(init="spectral")}, start="weights")

    def test_shared_weights_stay_shared(self):
        dense = nn.Sequential(nn.Linear(12, 12), nn.Linear(12, 12))
        dense[1].weight = dense[0].weight
        model = comera.tensorize(copy.deepcopy(dense), {"*": BTT()})
        assert model[0].in_core is model[1].in_core
        assert model[0].bias is not model[1].bias
        again = comera.to_dense_model(model)
        assert again[0].weight is again[1].weight
        with pytest.raises(ValueError, match="1 shares its weight with a layer that the plan gives another format"):
            comera.tensorize(dense, {"0": BTT(), "1": TT(2, 1)})
        assert type(dense[0]) is nn.Linear


@pytest.mark.parametrize("recompute", ["outputs", "block"])
def test_recomputing_keeps_the_input_alone_and_gives_the_same(recompute):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(24, 36), torch.nn.GELU(), torch.nn.Linear(36, 24))
    plain = comera.tensorize(copy.deepcopy(model), {"*": BTT(rank=2)})
    lean = comera.tensorize(model, {"*": BTT(rank=2)}, recompute=recompute)
    lean.load_state_dict(plain.state_dict())
    x = torch.randn(MANY, 24)
    for each in (plain, lean):
        each(x).square().sum().backward()
    for ours, theirs in zip(lean.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    alone = BTTLinear(24, 36, rank=2)
    before = sum(kept_numbers(lambda: alone(x), alone.parameters()))
    alone.recompute = True
    assert sum(kept_numbers(lambda: alone(x), alone.parameters())) <= x.numel() < before


def of_blocks():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 24), nn.Tanh(), nn.Linear(24, FEATURES)).double()
    return comera.tensorize(model, {"*": BTT(rank=2)}, recompute="outputs")


def sharded_blocks(rank, shards=True):
    model = of_blocks()
    if shards:
        mesh = init_device_mesh("cpu", (2,))
        for layer in (model[0], model[2], model):
            fully_shard(layer, mesh=mesh)
        with pytest.raises(ValueError, match="sharded \\(fully_shard\\), and Muon needs each one whole"):
            comera.Muon(model)
    losses = train(model, rank, 2 if shards else 1)
    return losses, model(torch.ones(1, FEATURES, dtype=torch.float64)).detach()


@pytest.mark.slow
def test_sharded_blocks_train_as_in_one_process():
    one, two = in_two_processes(sharded_blocks)
    losses, output = sharded_blocks(0, shards=False)
    torch.testing.assert_close(torch.tensor([*map(sum, zip(one[0], two[0], strict=True))]) / 2, torch.tensor(losses))
    torch.testing.assert_close(one[1], output)
    torch.testing.assert_close(two[1], output)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"blocks": 4}, "blocks is 4; it must be two whole numbers, the input and the output groups."),
        ({"blocks": (4, 4, 4)}, "blocks is (4, 4, 4); it must be two whole numbers, the input and the output groups."),
        ({"ratio": 1e308}, "ratio=1e+308 is out of reach of a block tensor train 128 → 128; the nearest is 64."),
        (
            {"ratio": 5e-324},
            "ratio=4.94066e-324 is out of reach of a block tensor train 128 → 128; the nearest is 0.5.",
        ),
    ],
)
def test_wrong_wishes_are_one_sentence(options, sentence):
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        comera.solve_blocks(128, 128, **({"ratio": 4} | options))


def test_blocks_may_be_a_list():
    assert comera.solve_blocks(128, 128, 4, blocks=[8, 8]) == comera.solve_blocks(128, 128, 4)


def test_a_solved_shape_far_from_full_rank_is_warned_of(recwarn):
    comera.tensorize(nn.Sequential(nn.Linear(128, 128)), {"0": comera.BTT(ratio=4)})
    assert not recwarn.list
    with pytest.warns(UserWarning, match=r"BTTLinear 134 → 134 has 2 x 1 blocks.* at most rank 22"):
        comera.tensorize(nn.Sequential(nn.Linear(134, 134)), {"0": comera.BTT(ratio=4)})
