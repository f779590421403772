"""torch.func takes tensorized layers apart: per-sample gradients, and many models at once."""

import pytest
import torch
from drawn_chains import assert_all_close
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

from comera import TT, TTM, tensorize

VOCABULARY = 12


def build(lookup="optimized"):
    model = nn.Sequential(nn.Embedding(VOCABULARY, 8, padding_idx=3), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
    plan = {"0": TTM(ranks=3, order=2, lookup=lookup), "1": TT(ranks=3, order=2)}
    return tensorize(model.double(), plan)


def loss_of(model, parameters, indices):
    return functional_call(model, parameters, (indices,)).square().sum()


@pytest.mark.parametrize("tokens", [5, 300])  # few and many, for which layers contract in different ways
@pytest.mark.parametrize("lookup", ["optimized", "order"])
def test_per_sample_gradients_are_those_of_each_sample_on_its_own(lookup, tokens):
    model = build(lookup)
    parameters = dict(model.named_parameters())
    indices = torch.randint(VOCABULARY, (3, tokens))
    found = vmap(grad(lambda values, row: loss_of(model, values, row)), in_dims=(None, 0))(parameters, indices)
    for place, row in enumerate(indices):
        wanted = torch.autograd.grad(loss_of(model, parameters, row), list(parameters.values()))
        assert_all_close([found[name][place] for name in parameters], wanted)


def test_models_of_one_shape_run_as_one():
    models = [build() for _ in range(3)]
    parameters, buffers = stack_module_state(models)
    indices = torch.randint(VOCABULARY, (6,))
    together = vmap(lambda values, kept: functional_call(models[0], (values, kept), (indices,)))(parameters, buffers)
    assert_all_close(list(together), [model(indices) for model in models])


def test_a_weight_that_a_model_reads_has_its_gradient_there():
    attention = nn.MultiheadAttention(8, 2).double()
    tensorize(attention, {"out_proj": TT(ranks=3, order=2)})
    parameters, x = dict(attention.named_parameters()), torch.randn(3, 4, 8, dtype=torch.float64)

    def loss(values, x):
        return functional_call(attention, values, (x, x, x))[0].square().sum()

    found = vmap(grad(loss), in_dims=(None, 0))(parameters, x.unsqueeze(2))
    for place, sample in enumerate(x.unsqueeze(2)):
        wanted = torch.autograd.grad(loss(parameters, sample), list(parameters.values()))
        assert_all_close([found[name][place] for name in parameters], wanted)
