"""Truncation cuts parameters and optimizer states alike, and training goes on as if the ranks had only been masked."""

import copy

import pytest
import torch
from drawn_chains import SEEDS, assert_all_close
from drawn_models import SHAPES, model_of
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

from comera import TT, TTM, TTLinear, exact_size, full_size, ranks_of, set_ranks, tensorize, tensorized_layers, truncate
from comera.rank_control import alive_entries, select_ranks

ADAMS = {
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    "fused Adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3, fused=True),
    "AMSGrad": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, amsgrad=True, foreach=True),
    "SGD with momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9),
    "plain SGD": lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
}


def outputs(model):
    """Every layer's answer to inputs of its own."""
    source = torch.Generator().manual_seed(1)
    found = []
    for layer in model:
        if isinstance(layer, TTLinear):
            found.append(layer(torch.randn(3, layer.in_features, generator=source, dtype=torch.float64)))
        else:
            found.append(layer(torch.arange(layer.num_embeddings)))
    return found


def train_step(model, optimizer):
    optimizer.zero_grad()
    sum(y.square().mean() for y in outputs(model)).backward()
    optimizer.step()


def cores_of(values, layer):
    """A vector laid out as the packed cores of a layer, as cores."""
    other = copy.deepcopy(layer)
    other.packed_cores.data = values
    return [core.detach() for core in other.cores()]


@given(SHAPES, SEEDS, st.sampled_from(sorted(ADAMS)))
def test_states_of_what_survives_are_kept_exactly(shapes, seed, kind):
    model = model_of(shapes, seed)
    assume(any(layer.packed_cores.requires_grad and layer.packed_cores.numel() for layer in model))
    optimizer = ADAMS[kind](model.parameters())
    train_step(model, optimizer)
    before = copy.deepcopy(model)
    states = {id(parameter): copy.deepcopy(dict(optimizer.state[parameter])) for parameter in model.parameters()}
    answers = [y.detach() for y in outputs(model)]
    parameters = list(model.parameters())
    foretold = exact_size(list(model))
    changed = bool(truncate(model, optimizer))
    assert changed == (full_size(list(model)) != full_size(list(before)) or ranks_of(model) != ranks_of(before))
    assert full_size(list(model)) == foretold
    assert all(now is then for now, then in zip(model.parameters(), parameters, strict=True))
    assert_all_close(outputs(model), answers)
    for layer, former in zip(model, before, strict=True):
        kept = alive_entries(former.diagonals.detach(), former.shape.ranks)
        if not all(len(indices) for indices in kept):
            kept = [indices[:0] for indices in kept]
        for name, now in optimizer.state[layer.packed_cores].items():
            then = states[id(layer.packed_cores)][name]
            if not isinstance(now, torch.Tensor) or now.dim() == 0:
                assert now == then
                continue
            wanted = select_ranks(cores_of(then, former), kept)
            for one, other in zip(cores_of(now, layer), wanted, strict=True):
                assert torch.equal(one, other)
        for name, now in optimizer.state[layer.diagonals].items():
            then = states[id(layer.diagonals)][name]
            if isinstance(now, torch.Tensor) and now.dim():
                bonds = then.split(former.shape.ranks)
                wanted = [bond[indices] for bond, indices in zip(bonds, kept, strict=True)]
                assert torch.equal(now, torch.cat(wanted) if wanted else now[:0])


def tied_model():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)).double()
    model[2].weight = model[0].weight
    return tensorize(model, {"*": TT(ranks=3, order=2)})


def test_layers_that_share_cores_stay_tied():
    model = tied_model()
    with torch.no_grad():
        model[0].diagonals[0] = 0.0
    x = torch.randn(4, 8, dtype=torch.float64)
    before = model(x).detach()
    assert truncate(model)
    assert model[2].packed_cores is model[0].packed_cores
    assert model[2].shape == model[0].shape
    assert ranks_of(model) == {"0": model[0].shape.ranks, "1": (3, 3, 3)}
    assert_all_close([model(x).detach()], [before])


def test_nothing_closed_means_nothing_touched():
    model = tied_model()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    model(torch.ones(2, 8, dtype=torch.float64)).sum().backward()
    optimizer.step()
    before = copy.deepcopy(optimizer.state_dict())
    assert not truncate(model, optimizer)
    torch.testing.assert_close(optimizer.state_dict(), before, rtol=0, atol=0)


def test_a_state_dict_loads_into_a_truncated_model(tmp_path):
    def built():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(12, 8), nn.Linear(8, 8))
        return tensorize(model, {"0": TTM(ranks=3, order=2), "1": TT(ranks=3, order=2)})

    model = built()
    with torch.no_grad():
        model[0].diagonals[0] = model[1].diagonals[4] = 0.0
    truncate(model)
    torch.save({"ranks": ranks_of(model), "model": model.state_dict()}, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=True)
    other = built()
    with pytest.raises(
        RuntimeError, match=r"0 has ranks \(3,\), and the state dict has cores of other ranks; .*set_rank"
    ):
        other.load_state_dict(loaded["model"])
    other = built()
    set_ranks(other, loaded["ranks"])
    other.load_state_dict(loaded["model"])
    rows = torch.arange(12)
    assert torch.equal(other(rows), model(rows))


def test_a_state_dict_of_former_names_loads():
    model, other = tied_model(), tied_model()
    former = {name.replace("diagonals_bias", "diagonals"): value for name, value in model.state_dict().items()}
    assert set(former) & set(model.state_dict()) != set(former)
    with torch.no_grad():
        model[1].diagonals[0] = 0.5  # of which the former dict has the views
    other.load_state_dict(former)
    assert torch.equal(other[1].diagonals, model[1].diagonals)
    x = torch.ones(2, 8, dtype=torch.float64)
    assert torch.equal(other(x), model(x))


@pytest.mark.parametrize("jointly", [True, False])
def test_truncation_between_steps_of_a_plain_loop_that_still_holds_its_loss(jointly):
    model = tensorize(
        nn.Sequential(nn.Embedding(12, 8), nn.Linear(8, 8)),
        {"0": TTM(ranks=3, order=2), "1": TT(ranks=3, order=2)},
        merge_jointly=jointly,
    )
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    for _ in range(3):
        loss = model(torch.tensor([1, 5, 5])).square().sum()  # the former loss and its graph live until here
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for layer in tensorized_layers(model):
                layer.diagonals[:1] = 0.0
        assert truncate(model, optimizer)
    assert ranks_of(model) == {"0": (0,), "1": (0, 0, 0)}
