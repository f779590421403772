"""Block tensor trains: what they compute, how they are sized, drawn, decomposed, saved, and put into models."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.flop_counter import FlopCounterMode
from two_processes import FEATURES, in_two_processes, train

import comera
from comera import BTT, TT, BTTLinear, BTTShape, OutOfReach, solve_blocks
from comera.contraction import Machine
from comera.formats import block_candidates, plan_blocks
from comera.formats.block_shapes import RANKS, balanced_blocks

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
            left, right = layer.in_core[j, :, i * r : (i + 1) * r], layer.out_core[i, j * r : (j + 1) * r]
            weight[i * m : (i + 1) * m, j * n : (j + 1) * n] = (left @ right).t()
    return weight


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("leading", [(5,), (2, 3), (), (0,)])
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


# Torch forms a dense weight of blocks of rank 1 entry by entry, which its counter leaves out.
@pytest.mark.parametrize(
    ("shape", "number"), [(shape, number) for shape in SHAPES for number in (0, 1) if number == 0 or shape[-1] > 1]
)
def test_a_plan_counts_the_products_of_its_layer(shape, number):
    layer, plain = layer_of(shape, torch.float32), layer_of(shape, torch.float32)
    plan = block_candidates(layer.shape, tokens=7)[number]
    layer.contraction = plan.name
    x = torch.randn(7, shape[0], requires_grad=True)
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
    own = {parameter.data_ptr() for parameter in layer.parameters()}
    for plan in block_candidates(layer.shape, tokens=7):
        kept = {}

        def pack(tensor, kept=kept):
            if tensor.untyped_storage().data_ptr() not in own:
                kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes() // 4
            return tensor

        layer.contraction = plan.name
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            layer(torch.randn(7, 12, requires_grad=True))
        copies = 0 if plan.name == "blocks" else layer.shape.parameter_count  # of cores, in another layout
        assert plan.saved <= sum(kept.values()) <= plan.saved + copies


@pytest.mark.parametrize(("machine", "tokens", "name"), [("cpu", 4096, "blocks"), ("slow blocks", 10**6, "dense")])
def test_the_plan_of_least_time_is_taken(machine, tokens, name):
    shape = BTTShape(768, 768, 24, 24, rank=2)
    if machine == "slow blocks":
        machine = Machine(machine, 1e12, 1e15, 0.0, thin=200.0)
    plan = plan_blocks(shape, tokens, machine)
    assert plan.name == name
    assert plan.seconds(machine) == min(each.seconds(machine) for each in block_candidates(shape, tokens))
    card = str(plan)
    assert f"total {plan.flops:,} FLOPs" in card
    assert all(f"{product.flops:,}" in card for product in (*plan.products, *plan.backward))


def test_auto_follows_the_plan(monkeypatch):
    layer = layer_of((12, 18, 3, 2, 3), torch.float32)
    layer.contraction, asked = "auto", []

    def plan(shape, tokens, machine, element_bytes):
        asked.append((tokens, machine, element_bytes))
        return block_candidates(shape, tokens)[1]

    monkeypatch.setattr("comera.formats.block_tensor_train.plan_blocks", plan)
    with FlopCounterMode(display=False) as counter:
        layer(torch.randn(2, 3, 12))
    assert asked == [(6, "cpu", 4)]
    assert counter.get_total_flops() == block_candidates(layer.shape, 6)[1].forward_flops


def test_wrong_plans_are_one_sentence():
    layer = layer_of(SHAPES[0], torch.float32)
    layer.contraction = "denze"
    with pytest.raises(ValueError, match=r"^contraction is 'denze'.*dense.*\.$"):
        layer(torch.randn(2, 6))
    with pytest.raises(ValueError, match=r"^tokens is 0"):
        plan_blocks(layer.shape, 0)
    with pytest.raises(ValueError, match=r"^machine is 'tpu'"):
        plan_blocks(layer.shape, 1, "tpu")


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
    ("change", "field"),
    [
        ({"in_blocks": 5}, "in_blocks is 5; it must divide in_features=12, as 4 or 6 do"),
        ({"out_blocks": 19}, "out_blocks is 19; it must divide out_features=18, as 18 do"),
        ({"rank": 5}, "rank is 5; a block of 4 by 9 allows at most 4"),
        ({"rank": 0}, "rank is 0"),
        ({"in_features": 0}, "in_features is 0"),
        ({"rank": 1.5}, "rank is 1.5"),
        ({"in_blocks": None}, "go together"),
        ({"init": "odd"}, "init is 'odd'; allowed: normal, spectral, orthogonal"),
    ],
)
def test_wrong_sizes_are_one_sentence(change, field):
    sizes = {"in_features": 12, "out_features": 18, "in_blocks": 3, "out_blocks": 2, "rank": 1} | change
    with pytest.raises(ValueError, match=field):
        BTTLinear(**sizes)


def test_an_input_of_another_width_is_refused():
    with pytest.raises(ValueError, match="input has 3 features in its last dimension; expected 6"):
        layer_of(SHAPES[0], torch.float32)(torch.zeros(2, 3))


@pytest.mark.parametrize("sizes", [(128, 128), (128, 512), (768, 3072), (768, 768), (60, 84)])
@pytest.mark.parametrize("ratio", [2, 4, 8])
def test_a_solved_shape_has_the_wanted_size_or_the_nearest_there_is(sizes, ratio):
    shape = solve_blocks(*sizes, ratio)
    everything = (
        [
            BTTShape(*sizes, j, i, r)
            for r in RANKS
            for j in range(1, sizes[0] + 1)
            for i in range(1, sizes[1] + 1)
            if not sizes[0] % j and not sizes[1] % i and r <= min(sizes[0] // j, sizes[1] // i)
        ]
        if max(sizes) <= 128
        else [shape]
    )
    nearest = min(abs(math.log(each.ratio / ratio)) for each in everything)
    assert abs(math.log(shape.ratio / ratio)) <= max(nearest, math.log(1.02)) + 1e-9
    for rank in (1, 2):
        assert solve_blocks(*sizes, ratio, rank).rank == rank


def test_the_prototypes_blocks_are_found():
    found = [solve_blocks(*sizes, 4) for sizes in [(128, 128), (128, 512), (512, 128), (256, 256)]]
    assert [(s.in_size, s.in_blocks, s.out_blocks, s.out_size, s.rank) for s in found] == [
        (16, 8, 8, 16, 2),
        (16, 8, 32, 16, 2),
        (16, 32, 8, 16, 2),
        (16, 16, 16, 16, 2),
    ]


def test_ratios_out_of_reach_name_the_nearest():
    with pytest.raises(OutOfReach, match=r"ratio=50 is out of reach .* the nearest is"):
        solve_blocks(64, 64, 50)
    with pytest.raises(OutOfReach, match=r"of rank 2; the nearest is 1\.75"):
        solve_blocks(7, 7, 3, rank=2)
    with pytest.raises(OutOfReach, match="rank is 9; no block"):
        solve_blocks(8, 8, 2, rank=9)
    for ratio in (0, -1, math.nan, math.inf, "4"):
        with pytest.raises(ValueError, match="ratio is"):
            solve_blocks(64, 64, ratio)


@pytest.mark.parametrize("init", ["normal", "spectral", "orthogonal"])
def test_starts_have_the_sizes_they_promise(init):
    torch.manual_seed(0)
    layer = BTTLinear(256, 512, rank=2, init=init)
    assert torch.equal(layer.bias, torch.zeros(512))
    for core in layer.core_parameters():
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


def test_a_decomposition_of_what_is_one_gives_it_back():
    layer = layer_of(SHAPES[1])
    again = BTTLinear.from_dense(layer.to_dense(), 3, 2, 3)
    assert torch.allclose(again.to_dense(), layer.to_dense())


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_it_is_one_graph_of_the_same_function(dynamic):
    layer = layer_of(SHAPES[1], torch.float32)
    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for rows in (4, 7):
        x = torch.randn(rows, 12)
        assert torch.allclose(compiled(x), layer(x), atol=1e-6)
    torch.compiler.reset()


def test_exported_it_takes_any_number_of_rows():
    layer = layer_of(SHAPES[1], torch.float32)
    rows = torch.export.Dim("rows", min=2)
    exported = torch.export.export(layer, (torch.randn(4, 12),), dynamic_shapes=({0: rows},)).module()
    x = torch.randn(9, 12)
    assert torch.allclose(exported(x), layer(x), atol=1e-6)


def test_autocast_multiplies_in_bfloat16():
    layer = layer_of(SHAPES[1], torch.float32)
    x = torch.randn(5, 12)
    with torch.autocast("cpu", torch.bfloat16):
        output = layer(x)
    assert output.dtype == torch.bfloat16
    assert torch.allclose(output.float(), layer(x), atol=0.1)
    output.float().sum().backward()
    assert layer.in_core.grad.dtype == torch.float32


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

    def test_frozen_stays_frozen_and_conv1d_is_replaced(self):
        from transformers.pytorch_utils import Conv1D

        dense = nn.Sequential(nn.Linear(12, 18), Conv1D(12, 18))
        dense[0].weight.requires_grad_(False)
        x = torch.randn(3, 12)
        wanted = dense(x)
        model = comera.tensorize(dense, {"0": BTT(4, 3, 2), "1": BTT(4, 2, 3)}, start="weights")
        assert not any(core.requires_grad for core in model[0].core_parameters())
        assert model[0].bias.requires_grad
        assert torch.allclose(model(x), wanted, atol=1e-5)
        again = comera.to_dense_model(model)
        assert type(again[1]) is Conv1D
        assert torch.allclose(again(x), wanted, atol=1e-5)

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

    @pytest.mark.parametrize(
        ("spec", "said"),
        [
            (BTT(2, 5, 2), "in_blocks is 5"),
            (BTT(ratio=100), "out of reach"),
            (BTT(0), "rank is 0"),
            (BTT(1, 3, 2, ratio=2), "give ratio, or in_blocks and out_blocks"),
        ],
    )
    def test_a_plan_that_cannot_be_had_leaves_the_model(self, spec, said):
        model = self.model()
        with pytest.raises(ValueError, match=said):
            comera.tensorize(model, {"0": spec})
        assert type(model[0]) is nn.Linear
        with pytest.raises(ValueError, match="BTT"):
            comera.tensorize(nn.Sequential(nn.Embedding(9, 4)), {"0": BTT()})

    def test_cores_have_the_rate_of_cores(self):
        model = comera.tensorize(self.model(), {"0": BTT(), "2": TT(2, 1)})
        groups = {group["name"]: group["params"] for group in comera.parameter_groups(model)}
        assert {id(core) for core in groups["cores"]} == {
            id(model[0].in_core),
            id(model[0].out_core),
            id(model[2].packed_cores),
        }
        assert sum(map(len, groups.values())) == len([*model.parameters()])

    def test_the_summary_lists_blocks(self):
        model = comera.tensorize(self.model(), {"0": BTT(2, 3, 2), "2": TT(2, 1)})
        found = comera.summary(model)
        assert [row.names for row in found.rows] == [("0",), ("2",)]
        assert (found.rows[0].modes, found.rows[0].ranks) == ("3 x 4 → 2 x 9", (2,))
        assert found.rows[0].entries == model[0].shape.parameter_count
        assert found.dense_parameters == sum(parameter.numel() for parameter in self.model().parameters())

    def test_a_saved_model_comes_back(self, tmp_path):
        model = comera.tensorize(self.model(), {"0": BTT(2, 3, 2), "2": TT(2, 1)})
        comera.save_pretrained(model, tmp_path)
        again = comera.load_pretrained(tmp_path, self.model())
        assert again[0].shape == model[0].shape
        x = torch.randn(3, 12)
        assert torch.equal(again(x), model(x))
        present = comera.tensorize(self.model(), {"0": BTT(2, 3, 2), "2": TT(2, 1)})
        assert torch.equal(comera.load_pretrained(tmp_path, present)(x), model(x))
        other = comera.tensorize(self.model(), {"0": BTT(1, 3, 2), "2": TT(2, 1)})
        with pytest.raises(ValueError, match="0 has rank=1, and the saved layer has 2"):
            comera.load_pretrained(tmp_path, other)

    def test_a_state_of_other_blocks_is_refused_by_name(self):
        one, other = (comera.tensorize(self.model(), {"0": BTT(2, *blocks)}) for blocks in ((3, 2), (2, 3)))
        with pytest.raises(RuntimeError, match="0 has in_core of shape"):
            one.load_state_dict(other.state_dict())

    def test_hugging_face_loads_it_by_the_plain_class(self, tmp_path):
        transformers = pytest.importorskip("transformers")
        config = transformers.LlamaConfig(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=60
        )
        model = comera.tensorize(transformers.LlamaForCausalLM(config).eval(), {"*_proj": BTT(2)})
        model.save_pretrained(tmp_path)
        again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
        assert type(again.model.layers[0].mlp.up_proj) is BTTLinear
        tokens = torch.arange(8).view(1, 8)
        assert torch.allclose(again(tokens).logits, model(tokens).logits, atol=1e-6)

    def test_attention_that_reads_weights_gets_them(self):
        attention = nn.MultiheadAttention(12, 3, batch_first=True)
        model = comera.tensorize(nn.ModuleDict({"attention": attention}), {"*": BTT(2, 3, 2)}, start="scratch")
        x = torch.randn(2, 5, 12)
        assert model["attention"](x, x, x)[0].shape == x.shape
        layer = model["attention"].out_proj
        assert type(layer) is BTTLinear
        assert torch.equal(layer.weight @ torch.eye(12), layer.to_dense())
        with pytest.raises(RuntimeError, match="no effect on the weight"):
            nn.init.zeros_(layer.weight)

    def test_it_learns(self):
        torch.manual_seed(0)
        teacher, student = nn.Linear(16, 16), BTTLinear(16, 16, rank=2)
        optimizer = torch.optim.AdamW(student.parameters(), lr=1e-2, weight_decay=0.0)
        x = torch.randn(256, 16)
        with torch.no_grad():
            wanted = teacher(x)
        losses = []
        for _ in range(300):
            optimizer.zero_grad()
            loss = (student(x) - wanted).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0] / 3


def kept_elements(layer, x):
    """Numbers that a forward keeps for backward, parameters aside."""
    kept = []
    parameters = {parameter.data_ptr() for parameter in layer.parameters()}

    def pack(tensor):
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        layer(x)
    storages = {tensor.untyped_storage().data_ptr(): tensor.numel() for tensor in kept}
    return sum(size for place, size in storages.items() if place not in parameters)


@pytest.mark.parametrize("recompute", ["outputs", "block"])
def test_recomputing_keeps_the_input_alone_and_gives_the_same(recompute):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(24, 36), torch.nn.GELU(), torch.nn.Linear(36, 24))
    plain = comera.tensorize(copy.deepcopy(model), {"*": BTT(rank=2)})
    lean = comera.tensorize(model, {"*": BTT(rank=2)}, recompute=recompute)
    lean.load_state_dict(plain.state_dict())
    x = torch.randn(40, 24)
    for each in (plain, lean):
        each(x).square().sum().backward()
    for ours, theirs in zip(lean.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    alone = BTTLinear(24, 36, rank=2)
    before = kept_elements(alone, x)
    alone.recompute = True
    assert kept_elements(alone, x) <= x.numel() < before


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
