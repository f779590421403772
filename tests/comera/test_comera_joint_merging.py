"""Merging equal layers in one batch changes speed and nothing else."""

import pytest
import torch
from drawn_chains import assert_all_close
from noted_operations import NotedOperations
from torch import nn

from comera import TT, TTLinear, tensorize
from comera.contraction import joint_merging
from comera.contraction.merging import merge_cores, merge_with_entries


class Net(nn.Module):
    """Layers of several shapes; one runs twice, one only when asked, two may share their weight."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.twice = nn.Linear(6, 6)
        self.wide = nn.Linear(6, 12)
        self.narrow = nn.Linear(12, 6, bias=False)
        self.tied = nn.Linear(6, 6)
        if tied:
            self.tied.weight = self.first.weight
        self.extra = nn.Linear(6, 6)
        self.head = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor, extra: bool = True) -> torch.Tensor:
        x = torch.tanh(self.twice(torch.tanh(self.twice(self.first(x)))))
        x = torch.tanh(self.tied(self.narrow(torch.tanh(self.wide(x)))))
        if extra:
            x = self.extra(x)
        return self.head(x)


LAYERS = "[!h]*"  # all but the head


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def pair(request):
    """The same model with and without joint merging; random diagonals, some of them dead."""
    together = tensorize(Net(request.param).double(), {LAYERS: TT(ranks=3, order=2)})
    alone = tensorize(Net(request.param).double(), {LAYERS: TT(ranks=3, order=2)}, merge_jointly=False)
    with torch.no_grad():
        for layer in together.modules():
            if isinstance(layer, TTLinear):
                layer.diagonals.uniform_(0.5, 1.5)
                layer.diagonals[1] = 0.003
    alone.load_state_dict(together.state_dict())
    return together, alone


def run(model, *arguments):
    model.zero_grad()
    y = model(torch.randn(5, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64), *arguments)
    y.square().sum().backward()
    return [
        y.detach(),
        *(torch.zeros_like(p) if p.grad is None else p.grad.detach().clone() for p in model.parameters()),
    ]


@pytest.mark.parametrize("extra", [True, False])
def test_outputs_and_gradients_are_those_of_separate_merging(extra, pair):
    together, alone = pair
    assert_all_close(run(together, extra), run(alone, extra))
    assert_all_close(run(together, extra), run(alone, extra))  # and once more on the same model
    assert not joint_merging._calls.open


class Chain(nn.Module):
    """A layer of few ranks and one of many, in either order; the second may read fewer tokens."""

    def __init__(self, names: list[str], last: bool) -> None:
        super().__init__()
        self.names, self.last = names, last
        self.few, self.many = nn.Linear(768, 768), nn.Linear(768, 768)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = (getattr(self, name) for name in self.names)
        x = torch.tanh(first(x))
        return second(x[-1:] if self.last else x)


@pytest.mark.parametrize("names", [["few", "many"], ["many", "few"]])
@pytest.mark.parametrize(
    ("tokens", "last", "merged"), [(1, False, {"few"}), (128, False, {"few", "many"}), (128, True, {"few", "many"})]
)
def test_layers_whose_own_plan_is_cheaper_for_a_call_s_tokens_are_left_out(monkeypatch, names, tokens, last, merged):
    model = tensorize(Chain(names, last).double(), {"few": TT(ranks=30), "many": TT(ranks=150)})
    alone = tensorize(Chain(names, last).double(), {"few": TT(ranks=30), "many": TT(ranks=150)}, merge_jointly=False)
    alone.load_state_dict(model.state_dict())
    seen, merge = [], joint_merging._merge_jointly
    monkeypatch.setattr(joint_merging, "_merge_jointly", lambda layers: merge(seen.append([*layers]) or seen[-1]))
    results = []
    for each in (model, alone):
        x = torch.linspace(-1, 1, tokens * 768, dtype=torch.float64).view(tokens, 768).requires_grad_()
        y = each(x)
        results.append([y, *torch.autograd.grad(y.square().sum(), [x, *each.parameters()])])
    assert_all_close(*results)
    assert [{name for name in names if getattr(model, name) in layers} for layers in seen] == [merged]


def test_equally_shaped_halves_left_or_right_are_merged_by_one_product():
    layers = [TTLinear(6, 6, (3, 2), (2, 3), (2, 2, 2)) for _ in range(3)]
    layers.append(TTLinear(6, 10, (3, 2), (2, 5), (2, 2, 2)))
    with NotedOperations() as ran, torch.no_grad():
        merge_cores(
            [layer.packed_cores for layer in layers],
            [layer.diagonals for layer in layers],
            [layer.shape for layer in layers],
        )
    assert sorted(each.given[0][0][0] for each in ran.named("bmm")) == [
        1,
        7,
    ]  # the last layer's right half; its left one and both of the other three


def test_layers_are_merged_in_the_order_of_the_model_in_every_run(monkeypatch):
    """Their sums, the memory's peak and which halves share a product hang on the order; hashes of objects differ."""

    class Each(nn.ModuleList):
        def forward(self, x):
            return [layer(x) for layer in self]

    widths = range(2, 14)
    model = tensorize(Each(nn.Linear(6, 2 * width) for width in widths), {"*": TT(ranks=2, order=2)})
    orders = []
    monkeypatch.setattr(
        joint_merging,
        "merge_with_entries",
        lambda cores, entries, shapes, *settings: (
            orders.append([shape.out_features for shape in shapes])
            or merge_with_entries(cores, entries, shapes, *settings)
        ),
    )
    model(torch.ones(1, 6))
    assert orders == [[2 * width for width in widths]]


def test_without_gradients_in_evaluation_and_after_a_step(pair):
    together, alone = pair
    for model in (together, alone):
        model.eval()
    x = torch.randn(4, 6, dtype=torch.float64)
    with torch.no_grad():
        assert_all_close([together(x)], [alone(x)])
    with torch.inference_mode():
        assert_all_close([together(x)], [alone(x)])
    for model in (together, alone):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run(model)
        optimizer.step()
    assert_all_close([together(x)], [alone(x)])


@pytest.mark.parametrize("first", [torch.no_grad, torch.inference_mode])
def test_training_after_a_first_pass_without_gradients(first, pair):
    together, alone = pair
    with first():
        together(torch.zeros(1, 6, dtype=torch.float64))
    assert_all_close(run(together), run(alone))
    torch.optim.AdamW(together.parameters(), fused=True).step()


def test_an_optimizer_made_before_the_first_pass_moves_the_parameters_in_use(pair):
    models = pair
    optimizers = [torch.optim.AdamW(model.parameters(), lr=0.1) for model in models]
    held = list(models[0].parameters())
    for _ in range(3):
        for model, optimizer in zip(models, optimizers, strict=True):
            run(model)
            optimizer.step()
    assert_all_close(held, list(models[1].parameters()))
    assert all(one is other for one, other in zip(held, models[0].parameters(), strict=True))


def test_a_change_of_one_layers_parameters_reaches_no_other(pair):
    together, _ = pair
    run(together)
    before = {name: parameter.detach().clone() for name, parameter in together.named_parameters()}
    with torch.no_grad():
        together.twice.packed_cores.fill_(7)
    for name, parameter in together.named_parameters():
        assert torch.equal(parameter, before[name]) == (name != "twice.packed_cores")


@pytest.mark.parametrize("frozen", ["first", "twice"])
def test_frozen_layers_stay_as_they_are(frozen, pair):
    together, alone = pair
    for model in (together, alone):
        getattr(model, frozen).requires_grad_(False)
    assert_all_close(run(together), run(alone))
    assert all(parameter.grad is None for parameter in getattr(together, frozen).parameters())
