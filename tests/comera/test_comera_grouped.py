"""Grouped layers: what they compute, how they are drawn, decomposed, saved, trained and put into models."""

import copy
import json
import math
import re

import pytest
import torch
import transformers
from model_states import kept_numbers
from noted_operations import NotedOperations
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode
from two_processes import FEATURES, in_two_processes, train

import comera
from comera import TT, Grouped, GroupedLinear
from comera.formats.grouped import GroupedShape
from comera.ratio.blocks import solve_groups

#: Rows from which on the products write by strides.
MANY = 64

#: In-features, out-features and groups; the last three have a number of groups that does not divide the outputs of one.
SHAPES = [(8, 8, 2), (16, 32, 4), (32, 16, 4), (6, 9, 1), (12, 12, 12), (12, 20, 4), (6, 9, 3), (10, 15, 5)]


def layer_of(shape, dtype=torch.float64, **options):
    torch.manual_seed(0)
    layer = GroupedLinear(*shape, dtype=dtype, **options)
    if layer.bias is not None:
        nn.init.normal_(layer.bias)
    return layer


def by_definition(layer):
    """The weight (M, N), output by output: the pieces of the groups in turn."""
    shape, piece = layer.shape, layer.shape.piece
    rows = [
        (group, start + number)
        for start in range(0, shape.out_size, piece)
        for group in range(shape.groups)
        for number in range(piece)
    ]
    if not layer.shape.shuffle:
        rows = [(group, number) for group in range(shape.groups) for number in range(shape.out_size)]
    weight = torch.zeros(shape.out_features, shape.in_features, dtype=layer.blocks.dtype)
    for row, (group, number) in enumerate(rows):
        weight[row, group * shape.in_size : (group + 1) * shape.in_size] = layer.blocks[group, :, number]
    return weight


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("leading", [(5,), (2, 3), (), (0,), (2, MANY)])
def test_output_and_gradients_are_those_of_the_dense_weight(shape, shuffle, bias, leading):
    layer = layer_of(shape, bias=bias, shuffle=shuffle)
    assert torch.equal(layer.to_dense(), by_definition(layer))
    x = torch.randn(*leading, shape[0], dtype=torch.float64, requires_grad=True)
    output = layer(x)
    wanted = nn.functional.linear(x, by_definition(layer), layer.bias)
    torch.testing.assert_close(output, wanted)
    way, tensors = torch.randn_like(output), [x, *layer.parameters()]
    found = torch.autograd.grad((output * way).sum(), tensors)
    expected = torch.autograd.grad((wanted * way).sum(), tensors)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("shape", "piece"), [((768, 768, 4), 48), ((16, 48, 4), 3), ((12, 20, 4), 1), ((8, 24, 2), 6), ((30, 90, 5), 3)]
)
def test_each_following_group_reads_every_group(shape, piece):
    layer = GroupedLinear(*shape, bias=False)
    assert layer.shape.piece == piece
    read = layer.to_dense().ne(0).unflatten(1, (shape[2], -1)).any(2)  # (M, G)
    following = read.unflatten(0, (shape[2], -1)).any(1)  # (groups of a following layer, G)
    assert bool(following.all())


@pytest.mark.parametrize("rows", [MANY - 1, MANY])
def test_derivatives_of_all_kinds_are_right(rows):
    layer = layer_of((8, 8, 2))
    samples = torch.randn(3, rows, 8, dtype=torch.float64)
    slope = torch.func.grad(lambda x: layer(x).square().sum())
    torch.testing.assert_close(torch.func.vmap(slope)(samples), torch.stack([slope(one) for one in samples]))
    tangent = torch.randn_like(samples[0])
    pushed = torch.func.jvp(layer, (samples[0],), (tangent,))[1]
    torch.testing.assert_close(pushed, tangent @ layer.to_dense().t())
    inputs = samples[0, :2].expand(rows // 2, 2, 8).reshape(-1, 8).clone().requires_grad_()
    [first] = torch.autograd.grad(layer(inputs).pow(3).sum(), inputs, create_graph=True)
    [second] = torch.autograd.grad(first.sum(), inputs)
    dense = inputs.detach().clone().requires_grad_()
    cubes = nn.functional.linear(dense, layer.to_dense(), layer.bias).pow(3).sum()
    [of_dense] = torch.autograd.grad(cubes, dense, create_graph=True)
    torch.testing.assert_close(second, torch.autograd.grad(of_dense.sum(), dense)[0])


@pytest.mark.parametrize(("shuffle", "copies"), [(True, 1), (False, 0)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_step_copies_at_most_once_each_way(shuffle, copies, bias):
    layer = layer_of((32, 64, 4), torch.float32, bias=bias, shuffle=shuffle)
    x, way = torch.randn(2, MANY, 32, requires_grad=True), torch.randn(2, MANY, 64)
    with NotedOperations() as forward:
        output = layer(x)
    with NotedOperations() as backward:
        output.backward(way)
    moved = [len(ran.named("clone", "copy", "_to_copy")) for ran in (forward, backward)]
    assert moved == [copies if not bias else 0, copies]  # the pass that adds a bias shuffles as well
    products = [*forward.named("bmm"), *backward.named("bmm")]
    assert len(products) == 3
    assert all(product.is_read_by_cublas() for product in products)  # or CUDA copies what it reads


@pytest.mark.parametrize("shape", SHAPES)
def test_sizes_on_paper_are_those_of_the_layer(shape):
    layer = layer_of(shape, torch.float32, bias=False)
    paper = layer.shape
    assert paper.parameter_count == layer.parameter_count() == layer.blocks.numel()
    assert paper.dense_count == layer.dense_count() == layer.to_dense().numel() == paper.parameter_count * paper.ratio
    with FlopCounterMode(display=False) as counter:
        layer(torch.randn(3, shape[0]))
    assert counter.get_total_flops() == 3 * paper.flops_per_row
    assert f"{paper.parameter_count:,}" in str(paper)
    x = torch.randn(MANY, shape[0])
    assert sum(kept_numbers(lambda: layer(x), layer.parameters())) <= x.numel()


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ((768, 3072, 5), "groups is 5; it must divide in_features=768 and out_features=3072, as 4 or 6 do."),
        ((12, 18, 100), "groups is 100; it must divide in_features=12 and out_features=18, as 6 does."),
        ((12, 18, 0), "groups is 0; it must be at least 1."),
    ],
)
def test_impossible_groups_are_one_sentence_with_the_nearest(sizes, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        GroupedLinear(*sizes)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        comera.tensorize(nn.Linear(*sizes[:2]), {"": Grouped(sizes[2])})


def test_groups_of_a_whole_model_divide_each_of_its_layers():
    model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 128))
    with pytest.raises(
        ValueError, match=r"^groups is 5; it must divide in_features=128 and out_features=512, as 4 or 8 do\.$"
    ):
        solve_groups(model, ["0", "2"], ratio=4.0, groups=5)


@pytest.mark.parametrize("make", [lambda: GroupedLinear(12, 18, 6, shuffle="no"), lambda: Grouped(6, shuffle="no")])
def test_a_shuffle_is_on_or_off(make):
    with pytest.raises(ValueError, match=r"^shuffle is 'no'; it must be True or False\.$"):
        make()


@pytest.mark.parametrize("init", ["normal", "spectral", "orthogonal"])
def test_starts_have_the_sizes_they_promise(init):
    torch.manual_seed(0)
    layer = GroupedLinear(256, 512, groups=4, init=init)
    assert torch.equal(layer.bias, torch.zeros(512))
    blocks = layer.blocks.detach()
    if init == "orthogonal":
        values = torch.linalg.svdvals(blocks)
        torch.testing.assert_close(values, torch.full_like(values, math.sqrt(2)), rtol=1e-4, atol=0)
    elif init == "spectral":
        assert blocks.std().item() == pytest.approx(1 / 8, rel=0.05)
    else:
        assert layer.to_dense().square().mean().item() == pytest.approx(1 / 768, rel=0.05)
    with pytest.raises(ValueError, match="init is 'odd'; allowed: normal, spectral, orthogonal"):
        GroupedLinear(8, 8, init="odd")


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_decomposed_weight_is_the_nearest_of_its_pattern(shuffle):
    """The entries within the pattern are kept, and those outside are zero in every grouped layer."""
    torch.manual_seed(0)
    linear = nn.Linear(12, 20, dtype=torch.float64)
    layer = GroupedLinear.from_dense(linear.weight, 4, linear.bias, shuffle)
    pattern = layer_of((12, 20, 4), shuffle=shuffle).to_dense().ne(0)
    assert torch.equal(layer.to_dense(), linear.weight * pattern)
    assert torch.equal(layer.bias, linear.bias)
    again = GroupedLinear.from_dense(layer.to_dense(), 4, shuffle=shuffle)
    assert torch.equal(again.blocks, layer.blocks)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_it_is_one_graph_of_the_same_function(dynamic):
    layer = layer_of((16, 32, 4), torch.float32)
    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for rows in (4, MANY):
        x = torch.randn(rows, 16)
        torch.testing.assert_close(compiled(x), layer(x))
    with torch.autocast("cpu", torch.bfloat16):
        assert compiled(x).dtype == layer(x).dtype == layer(x[:2]).dtype == torch.bfloat16
        layer(x).sum().backward()
    assert layer.blocks.grad.dtype == layer.bias.grad.dtype == torch.float32
    torch.compiler.reset()


class TestModels:
    def model(self):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(12, 20), nn.ReLU(inplace=True), nn.Linear(20, 12, bias=False), nn.Linear(12, 4))

    def test_layers_are_replaced_by_pattern(self):
        model = comera.tensorize(self.model(), {"3": TT(2, 1), "0": Grouped(2, shuffle=False), "2": Grouped()})
        assert [type(layer).__name__ for layer in model] == ["GroupedLinear", "ReLU", "GroupedLinear", "TTLinear"]
        assert model[0].shape == GroupedShape(12, 20, 2, shuffle=False)
        assert (model[2].shape, model[2].bias) == (GroupedShape(20, 12, 4), None)
        assert "4 x 5 → 4 x 3" in str(comera.summary(model))
        groups = comera.parameter_groups(model)
        assert {id(each) for each in groups[0]["params"]} >= {id(model[0].blocks), id(model[2].blocks)}
        x = torch.randn(3, 12)
        torch.testing.assert_close(comera.to_dense_model(model)(x), model(x))

    def test_weights_are_decomposed(self):
        dense = self.model()
        model = comera.tensorize(copy.deepcopy(dense), {"0": Grouped(1)}, start="weights")
        x = torch.randn(3, 12)
        torch.testing.assert_close(model(x), dense(x))
        with pytest.raises(ValueError, match="leave init out"):
            comera.tensorize(dense, {"0": Grouped(init="spectral")}, start="weights")

    def test_shared_weights_stay_shared(self):
        dense = nn.Sequential(nn.Linear(12, 12), nn.Linear(12, 12))
        dense[1].weight = dense[0].weight
        model = comera.tensorize(dense, {"*": Grouped()})
        assert model[0].blocks is model[1].blocks
        assert model[0].bias is not model[1].bias
        again = comera.to_dense_model(model)
        assert again[0].weight is again[1].weight

    @pytest.mark.parametrize("shuffle", [True, False])
    def test_a_saved_model_comes_back(self, tmp_path, shuffle):
        model = comera.tensorize(self.model(), {"0": Grouped(2, shuffle), "2": Grouped(4, shuffle)})
        comera.save_pretrained(model, tmp_path)
        again = comera.load_pretrained(tmp_path, self.model())
        x = torch.randn(3, 12)
        assert torch.equal(again(x), model(x))
        described = json.loads((tmp_path / "comera.json").read_text())["layers"]["0"]
        assert described == {"groups": 2, "shuffle": shuffle}
        other = comera.tensorize(self.model(), {"0": Grouped(4), "2": Grouped(4)})
        with pytest.raises(RuntimeError, match=r"0 has blocks of shape .*: other blocks"):
            other.load_state_dict(model.state_dict())

    def test_transformers_saves_and_loads_it(self, tmp_path):
        sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 9}
        config = transformers.BertConfig(**sizes, num_attention_heads=2, max_position_embeddings=4)
        model = comera.tensorize(transformers.BertModel(config).eval(), {"encoder.*": Grouped(2)})
        model.save_pretrained(tmp_path)
        again = transformers.BertModel.from_pretrained(tmp_path)
        tokens = torch.tensor([[1, 2, 3]])
        assert torch.equal(again(tokens).last_hidden_state, model(tokens).last_hidden_state)


def test_muon_steps_block_by_block():
    torch.manual_seed(0)
    model = nn.Sequential(GroupedLinear(8, 16, groups=2, bias=False)).double()
    before = model[0].blocks.detach().clone()
    model(torch.randn(5, 8, dtype=torch.float64)).square().sum().backward()
    comera.Muon(model, lr=0.1, momentum=0.0).step()
    for number, gradient in enumerate(model[0].blocks.grad):
        alone = nn.Linear(4, 8, bias=False).double()
        alone.weight.data, alone.weight.grad = before[number].t().contiguous(), gradient.t().contiguous()
        comera.Muon(alone, lr=0.1, momentum=0.0).step()
        torch.testing.assert_close(model[0].blocks[number], alone.weight.t())


def of_groups():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 24), nn.Tanh(), nn.Linear(24, FEATURES)).double()
    return comera.tensorize(model, {"*": Grouped(2)}, recompute="outputs")


def distributed_groups(rank, how="sharded"):
    model = of_groups()
    if how == "sharded":
        mesh = init_device_mesh("cpu", (2,))
        for layer in (model[0], model[2], model):
            fully_shard(layer, mesh=mesh)
    elif how == "replicated":
        model = DistributedDataParallel(model)
    losses = train(model, rank, 1 if how == "alone" else 2)
    return losses, model(torch.ones(1, FEATURES, dtype=torch.float64)).detach()


def replicated_groups(rank):
    return distributed_groups(rank, "replicated")


@pytest.mark.slow
@pytest.mark.parametrize("run", [distributed_groups, replicated_groups])
def test_distributed_groups_train_as_in_one_process(run):
    one, two = in_two_processes(run)
    losses, output = distributed_groups(0, "alone")
    torch.testing.assert_close(torch.tensor([*map(sum, zip(one[0], two[0], strict=True))]) / 2, torch.tensor(losses))
    torch.testing.assert_close(one[1], output)
    torch.testing.assert_close(two[1], output)


@pytest.mark.parametrize("rows", [3, MANY])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shuffle", [True, False])
def test_what_follows_may_write_into_the_output(rows, bias, shuffle):
    layer, x = layer_of((12, 20, 4), bias=bias, shuffle=shuffle), torch.randn(rows, 12, dtype=torch.float64)
    dense = torch.relu(x @ layer.to_dense().t() + (0 if layer.bias is None else layer.bias))
    output = torch.relu_(layer(x))
    torch.testing.assert_close(output, dense)
    gradients = [torch.autograd.grad(each.square().sum(), layer.blocks)[0] for each in (output, dense)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("rows", [3, 300])
def test_shapes_alone_are_enough_for_an_output(rows):
    for layer in (GroupedLinear(12, 20, 4, device="meta"), comera.BTTLinear(12, 20, device="meta")):
        assert layer(torch.empty(rows, 12, device="meta")).shape == (rows, 20)


def test_an_output_layer_of_blocks_is_resized_by_no_one():
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        tie_word_embeddings=False,
    )
    model = comera.tensorize(transformers.LlamaForCausalLM(config), {"lm_head": Grouped(4)})
    with pytest.raises(ValueError, match=r"lm_head has blocks of exactly 32 features; 40 are given"):
        model.resize_token_embeddings(40)
    assert model.get_input_embeddings().weight.shape == (32, 16)
