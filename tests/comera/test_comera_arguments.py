"""Wrong arguments of public functions give one sentence with the argument, and change nothing."""

import math

import pytest
import torch
from torch import nn

import comera

ODD = {
    "None": None,
    "a number": 3.5,
    "a negative number": -1,
    "a list": [1, "a"],
    "a string": "x",
    "an empty string": "",
    "a bool": True,
    "NaN": math.nan,
    "infinity": math.inf,
    "a tensor": torch.zeros(3),
    "a dictionary": {},
}
#: Odd values that some arguments allow.
NONE, NUMBER, NEGATIVE = {"None"}, {"a number"}, {"a negative number"}


def linear():
    return nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 4))


def tensorized():
    return comera.tensorize(linear(), {"0": comera.TT(ranks=2, order=2)})


def adam(model):
    return torch.optim.AdamW(model.parameters())


def loss_of(model):
    return model(torch.zeros(2, 16)).sum()


EARLY = comera.RankPlan(early_steps=1)
MODES = (4, 4)


def tensorize_with(**options):
    return comera.tensorize(linear(), {"0": comera.TT(order=2)}, **options)


def tensorize_as(spec):
    return comera.tensorize(nn.Sequential(nn.Linear(16, 16)), {"0": spec})


def tensorize_table(spec):
    return comera.tensorize(nn.Sequential(nn.Embedding(16, 16)), {"0": spec})


#: The call, what its error names, and the odd values that it takes.
CALLS = {
    "tensorize, model": (lambda odd: comera.tensorize(odd, {"*": comera.TT()}), "model", ()),
    "tensorize, plan": (lambda odd: comera.tensorize(linear(), odd), "plan", {"a dictionary"}),
    "tensorize, spec": (lambda odd: comera.tensorize(linear(), {"0": odd}), "plan pattern '0'", NONE),
    "tensorize, start": (lambda odd: tensorize_with(start=odd), "start", ()),
    "tensorize, recompute": (lambda odd: tensorize_with(recompute=odd), "recompute", ()),
    "tensorize, ratio": (lambda odd: comera.tensorize(nn.Linear(64, 64), "auto", ratio=odd), "ratio", NUMBER),
    "tensorize, merge_jointly": (lambda odd: tensorize_with(merge_jointly=odd), "merge_jointly", {"a bool"}),
    "tensorize, fp8": (lambda odd: tensorize_with(fp8=odd), "fp8", NONE),
    "TT, ranks": (lambda odd: tensorize_as(comera.TT(ranks=odd)), "ranks", ()),
    "TT, order": (lambda odd: tensorize_as(comera.TT(order=odd)), "order", ()),
    "TT, in_modes": (lambda odd: tensorize_as(comera.TT(in_modes=odd, out_modes=MODES)), "in_modes", ()),
    "TT, init": (lambda odd: tensorize_as(comera.TT(init=odd)), "init", NONE),
    "BTT, rank": (lambda odd: tensorize_as(comera.BTT(rank=odd)), "rank", NONE),
    "BTT, ratio": (lambda odd: tensorize_as(comera.BTT(ratio=odd)), "ratio", NONE | NUMBER),
    "BTT, in_blocks": (lambda odd: tensorize_as(comera.BTT(in_blocks=odd, out_blocks=4)), "in_blocks", ()),
    "BTT, init": (lambda odd: tensorize_as(comera.BTT(init=odd)), "init", ()),
    "Grouped, groups": (lambda odd: tensorize_as(comera.Grouped(groups=odd)), "groups", ()),
    "Grouped, init": (lambda odd: tensorize_as(comera.Grouped(init=odd)), "init", ()),
    "GroupedLinear, groups": (lambda odd: comera.GroupedLinear(16, 16, odd), "groups", ()),
    "TTM, ranks": (lambda odd: tensorize_table(comera.TTM(ranks=odd)), "ranks", ()),
    "TTM, order": (lambda odd: tensorize_table(comera.TTM(order=odd)), "order", ()),
    "TTM, row_modes": (lambda odd: tensorize_table(comera.TTM(row_modes=odd, column_modes=MODES)), "row_modes", ()),
    "TTLinear, in_features": (lambda odd: comera.TTLinear(odd, 16, MODES, MODES, 2), "in_features", ()),
    "TTLinear, in_modes": (lambda odd: comera.TTLinear(16, 16, odd, MODES, 2), "in_modes", ()),
    "TTLinear, bias": (lambda odd: comera.TTLinear(16, 16, MODES, MODES, 2, bias=odd), "bias", {"a bool"}),
    "TTLinear, ranks": (lambda odd: comera.TTLinear(16, 16, MODES, MODES, odd), "ranks", ()),
    "BTTLinear, in_features": (lambda odd: comera.BTTLinear(odd, 16), "in_features", ()),
    "BTTLinear, bias": (lambda odd: comera.BTTLinear(16, 16, bias=odd), "bias", {"a bool"}),
    "BTTLinear, rank": (lambda odd: comera.BTTLinear(16, 16, 4, 4, odd), "rank", ()),
    "TTMEmbedding, num_embeddings": (lambda odd: comera.TTMEmbedding(odd, 16, MODES, MODES, 2), "num_embeddings", ()),
    "TTMEmbedding, padding_idx": (
        lambda odd: comera.TTMEmbedding(16, 16, MODES, MODES, 2, padding_idx=odd),
        "padding_idx",
        NONE | NEGATIVE,
    ),
    "solve_modes, in_features": (lambda odd: comera.solve_modes(odd, 16, ratio=2), "in_features", ()),
    "solve_modes, ratio": (lambda odd: comera.solve_modes(64, 64, ratio=odd), "ratio", NUMBER),
    "solve_table_modes, num_embeddings": (
        lambda odd: comera.solve_table_modes(odd, 16, ratio=2),
        "num_embeddings",
        (),
    ),
    "solve_blocks, in_features": (lambda odd: comera.solve_blocks(odd, 16, ratio=2), "in_features", ()),
    "solve_blocks, ratio": (lambda odd: comera.solve_blocks(64, 64, ratio=odd), "ratio", NUMBER),
    "solve_blocks, rank": (lambda odd: comera.solve_blocks(64, 64, ratio=4, rank=odd), "rank", NONE),
    "solve_model, model": (lambda odd: comera.solve_model(odd, ["0"], 4), "model", ()),
    "solve_model, names": (lambda odd: comera.solve_model(linear(), odd, 4), "", ()),
    "solve_model, order": (lambda odd: comera.solve_model(linear(), ["0"], 4, order=odd), "order", ()),
    "solve_model, table_order": (
        lambda odd: comera.solve_model(linear(), ["0"], 4, table_order=odd),
        "table_order",
        (),
    ),
    "balanced_modes, dimension": (lambda odd: comera.balanced_modes(odd, 2), "dimension", ()),
    "padded_modes, order": (lambda odd: comera.padded_modes(16, odd), "order", ()),
    "summary, model": (comera.summary, "model", ()),
    "step_memory, model": (comera.step_memory, "model", ()),
    "summary, batch": (lambda odd: comera.summary(nn.Linear(3, 3), odd), "batch", NONE | {"a tensor"}),
    "step_memory, batch": (lambda odd: comera.step_memory(nn.Linear(3, 3), odd), "batch", NONE | {"a tensor"}),
    "full_size, layers": (comera.full_size, "layers", ()),
    "exact_size, layers": (comera.exact_size, "layers", ()),
    "TiedTTMLinear, embedding": (comera.TiedTTMLinear, "embedding", ()),
    "CapturedStep, step": (comera.CapturedStep, "step", ()),
    "CapturedStep, warm_up_steps": (
        lambda odd: comera.CapturedStep(loss_of, warm_up_steps=odd),
        "warm_up_steps",
        (),
    ),
    "truncate, model": (comera.truncate, "model", ()),
    "truncate, optimizer": (lambda odd: comera.truncate(tensorized(), odd), "optimizer", NONE),
    "recompress, model": (lambda odd: comera.recompress(odd, 2), "model", ()),
    "recompress, ratio": (lambda odd: comera.recompress(tensorized(), odd), "ratio", NUMBER),
    "close_smallest, model": (lambda odd: comera.close_smallest(odd, 0.5), "model", ()),
    "close_smallest, size_target": (lambda odd: comera.close_smallest(tensorized(), odd), "size_target", NUMBER),
    "drop_unreachable, model": (lambda odd: comera.drop_unreachable(odd, loss_of), "model", ()),
    "drop_unreachable, loss": (lambda odd: comera.drop_unreachable(tensorized(), odd), "loss", ()),
    "ranks_of, model": (comera.ranks_of, "model", ()),
    "set_ranks, model": (lambda odd: comera.set_ranks(odd, {}), "model", ()),
    "set_ranks, ranks": (lambda odd: comera.set_ranks(tensorized(), odd), "ranks", {"a dictionary"}),
    "set_ranks, a layer's": (lambda odd: comera.set_ranks(tensorized(), {"0": odd}), "ranks", ()),
    "save_pretrained, folder": (lambda odd: comera.save_pretrained(linear(), odd), "folder", {"a string"}),
    "load_pretrained, folder": (lambda odd: comera.load_pretrained(odd, linear()), "", ()),
    "to_dense_model, model": (comera.to_dense_model, "model", ()),
    "RankPlan, early_steps": (lambda odd: comera.RankPlan(early_steps=odd), "early_steps", ()),
    "RankPlan, size_target": (lambda odd: comera.RankPlan(late_steps=5, size_target=odd), "size_target", ()),
    "RankPlan, recovery": (lambda odd: comera.RankPlan(5, 5, 0.5, recovery=odd), "recovery", ()),
    "RankPlan, gamma": (lambda odd: comera.RankPlan(early_steps=5, gamma=odd), "gamma", NUMBER),
    "RankPlan, parameters": (lambda odd: comera.RankPlan(late_steps=5, parameters=odd), "parameters", ()),
    "RankPlan, variant": (lambda odd: comera.RankPlan(early_steps=5, variant=odd), "variant", ()),
    "RankPlan, may_close_layers": (
        lambda odd: comera.RankPlan(early_steps=5, may_close_layers=odd),
        "may_close_layers",
        {"a bool"},
    ),
    "control_ranks, model": (lambda odd: comera.control_ranks(odd, adam(linear()), EARLY), "model", ()),
    "control_ranks, optimizer": (lambda odd: comera.control_ranks(tensorized(), odd, EARLY), "optimizer", ()),
    "RankControl, model": (lambda odd: comera.RankControl(odd, adam(linear()), EARLY), "model", ()),
    "RankControl, optimizer": (lambda odd: comera.RankControl(tensorized(), odd, EARLY), "optimizer", ()),
    "RankControl, plan": (lambda odd: comera.RankControl(tensorized(), adam(linear()), odd), "plan", ()),
    "control_ranks, plan": (lambda odd: comera.control_ranks(tensorized(), adam(linear()), odd), "plan", ()),
    "EarlyStage, gamma": (lambda odd: comera.EarlyStage(gamma=odd), "gamma", NUMBER),
    "EarlyStage, full": (lambda odd: comera.EarlyStage(full=odd), "full", NONE),
    "EarlyStage, loss": (lambda odd: comera.EarlyStage()(odd, tensorized()), "task_loss", ()),
    "EarlyStage, model": (lambda odd: comera.EarlyStage()(torch.ones(()), odd), "model", ()),
    "LateStage, size_target": (comera.LateStage, "size_target", ()),
    "LateStage, loss": (lambda odd: comera.LateStage(0.5)(odd, tensorized()), "task_loss", ()),
    "LateStage, model": (lambda odd: comera.LateStage(0.5)(torch.ones(()), odd), "model", ()),
    "parameter_groups, model": (comera.parameter_groups, "model", ()),
    "parameter_groups, lr_cores": (
        lambda odd: comera.parameter_groups(linear(), lr_cores=odd),
        "lr_cores",
        NONE | NUMBER,
    ),
    "Muon, model": (comera.Muon, "", ()),
    "Muon, lr": (lambda odd: comera.Muon(linear(), lr=odd), "lr", NUMBER),
    "Muon, momentum": (lambda odd: comera.Muon(linear(), momentum=odd), "momentum", ()),
    "Muon, betas": (lambda odd: comera.Muon(linear(), betas=odd), "betas", ()),
    "Muon, layers": (lambda odd: comera.Muon(linear(), layers=odd), "layers", NONE),
    "Muon, steps": (lambda odd: comera.Muon(linear(), steps=odd), "steps", ()),
    "make_capturable, optimizer": (comera.make_capturable, "optimizer", ()),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_is_named_in_one_sentence(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call, named, allowed = CALLS[name]
    for what, odd in ODD.items():
        if what in allowed:
            call(odd)
            continue
        with pytest.raises(ValueError, match=r"\.$") as caught:
            call(odd)
        assert named in str(caught.value), what


def test_what_the_sentences_of_tensorize_name():
    with pytest.raises(ValueError, match=r"'0' fits no .* tensorized already"):
        comera.tensorize(tensorized(), {"0": comera.TT()})
    with pytest.raises(ValueError, match="Conv2d is not supported"):
        comera.tensorize(nn.Sequential(nn.Conv2d(3, 3, 3)), {"0": comera.TT()})
    model = linear()
    nn.init.constant_(model[0].weight, math.nan)
    for spec in (comera.TT(order=2), comera.BTT(), comera.Grouped()):
        with pytest.raises(ValueError, match=r"^0 has entries"):
            comera.tensorize(model, {"0": spec}, start="weights")
        with pytest.raises(ValueError, match=r"^0 is on the meta device"):
            comera.tensorize(linear().to("meta"), {"0": spec}, start="weights")
    assert not comera.tensorized_layers(model)


def test_refused_are_targets_and_ratios_that_nothing_can_meet(tmp_path):
    for call in (
        lambda: comera.close_smallest(tensorized(), 0),
        lambda: comera.close_smallest(linear(), 0.5),
        lambda: comera.BTT(ratio=0.5),
        lambda: comera.EarlyStage()(torch.ones(3), tensorized()),
        lambda: comera.TTLinear(16, 16, MODES, MODES, ranks=True),
    ):
        with pytest.raises(ValueError, match=r"\S"):
            call()
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ValueError, match="which is a file"):
        comera.save_pretrained(linear(), file)


@pytest.mark.parametrize(
    "call",
    [
        lambda order: comera.balanced_modes(768, order),
        lambda order: comera.padded_modes(768, order),
        lambda order: comera.solve_modes(768, 768, ratio=4, order=order),
        lambda order: comera.solve_table_modes(768, 768, ratio=4, order=order),
        lambda order: comera.solve_model(linear(), ["0"], 4, order=order),
        lambda order: tensorize_as(comera.TT(order=order)),
    ],
)
def test_more_modes_than_a_number_can_have_are_refused_at_once(call):
    with pytest.raises(ValueError, match=r"order is 1000000000000; it must be from [12] to 64"):
        call(10**12)  # it took minutes, or all memory


@pytest.mark.parametrize("given", [nn.Module.parameters, nn.Module.named_parameters])
def test_muon_takes_parameters_as_it_takes_their_model(given):
    models = []
    for by_model in (True, False):
        torch.manual_seed(0)
        model = linear()
        optimizer = comera.Muon(model if by_model else given(model), lr=0.1)
        assert [group["name"] for group in optimizer.param_groups] == ["matrices", "dense"]
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 16)).square().sum().backward()
            optimizer.step()
        models.append(model)
    assert all(map(torch.equal, models[0].parameters(), models[1].parameters()))
