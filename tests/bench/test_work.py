"""Work of a step: operations and bytes kept for backward, against hand counts."""

import gc

import pytest
import torch
from tiny import ModelWorkload, TinyMethod, TinyWorkload
from torch import nn
from torch.nn import functional as F

from bench.core.record import COLUMNS
from bench.estimate.memory import predict_memory
from bench.estimate.work import predict

B, N, M = 6, 10, 14
FLOAT = 4


def work_of(model, shape, device="cpu", method=None, precision="fp32"):
    return predict(ModelWorkload(model, shape), method or TinyMethod(), B, precision, device, 0).work


def product(m, k, n):
    return 2 * m * k * n


def test_a_linear_layer_that_sees_the_batch_needs_two_products():
    work = work_of(lambda: nn.Linear(N, M), (N,))
    assert work.flops_per_step == product(B, N, M) + product(M, B, N)  # the output, the weight's gradient
    assert work.saved_for_backward == FLOAT * B * N  # its input


def test_a_linear_layer_further_in_needs_three():
    work = work_of(lambda: nn.Sequential(nn.Linear(N, M), nn.GELU(), nn.Linear(M, 1)), (N,))
    assert work.flops_per_step == 2 * product(B, N, M) + 3 * product(B, M, 1)
    assert work.saved_for_backward == FLOAT * (B * N + 2 * B * M)  # input, before gelu, after gelu


class HalfDropped(nn.Module):
    """Of two branches the second does not reach the loss, as after a layer whose ranks have all been cut."""

    def __init__(self):
        super().__init__()
        self.kept = nn.Linear(N, 1)
        self.dropped = nn.Sequential(nn.Linear(N, M), nn.GELU(), nn.Linear(M, N))

    def forward(self, x):
        self.dropped(self.dropped(x))
        return self.kept(x)


def test_what_does_not_reach_the_loss_is_not_kept_and_metering_does_not_keep_it():
    """Nor may the answer depend on when the cyclic garbage collector runs."""
    gc.disable()
    try:
        prediction = predict(ModelWorkload(HalfDropped, (N,)), TinyMethod(), B, "fp32", "cpu", 0)
        unmetered = predict_memory(ModelWorkload(HalfDropped, (N,)), TinyMethod(), B, "fp32", "cpu", 0)
    finally:
        gc.enable()
    assert prediction.work.saved_for_backward == FLOAT * B * N
    assert prediction.memory == unmetered


class Attention(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.heads = heads
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):  # (B, T, heads * D)
        q = (self.scale * x).view(*x.shape[:2], self.heads, -1).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q, q)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_flash_attention_needs_two_products_forward_and_five_backward(device):
    T, H, D = 12, 3, 8
    work = work_of(lambda: Attention(H), (T, H * D), device=device)
    one = B * H * product(T, D, T)
    assert work.flops_per_step == 7 * one
    x = query = output = FLOAT * B * T * H * D
    logsumexp = FLOAT * B * H * (T if device == "cpu" else 32)  # CUDA's kernel rounds up to 32 queries
    random_state = 0 if device == "cpu" else 16
    assert work.saved_for_backward == x + query + output + logsumexp + random_state


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_an_encoder_against_a_hand_count_on_either_device(masked, precision):
    T, V, D, H, L = 16, 50, 32, 4, 2
    tokens = B * T
    linear = 4 * product(tokens, D, D) + 2 * product(tokens, D, 4 * D)
    attention = B * H * product(T, D // H, T)
    # The embedding only looks up, so the first block's query, key and value need three products like all others.
    expected = L * (3 * linear + 7 * attention) + 3 * product(B, D, 3)
    for device in ("cpu", "cuda"):
        work = predict(TinyWorkload(T, V, D, H, L, masked=masked), TinyMethod(), B, precision, device, 0).work
        assert work.flops_per_step == expected


def test_the_optimizers_products_count():
    class Projected(torch.optim.SGD):
        def step(self, closure=None):  # noqa: ARG002
            for group in self.param_groups:
                for p in group["params"]:
                    torch.mm(p.grad, p.detach().t())

    class Method(TinyMethod):
        def optimizer(self, model):
            return Projected(model.parameters(), lr=0.1)

    plain = work_of(lambda: nn.Linear(N, M, bias=False), (N,))
    projected = work_of(lambda: nn.Linear(N, M, bias=False), (N,), method=Method())
    assert projected.flops_per_step - plain.flops_per_step == product(M, N, M)


class Remembering(torch.autograd.Function):
    """Saves its input and one tensor of its own."""

    @staticmethod
    def forward(ctx, x, weight):
        middle = torch.cat([x, x], dim=1)
        ctx.save_for_backward(x, weight, middle)
        return x @ weight

    @staticmethod
    def backward(ctx, upstream):
        x, weight, _ = ctx.saved_tensors
        return upstream @ weight.t(), x.t() @ upstream


class Holder(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(N, M))
        self.function = forward

    def forward(self, x):
        return self.function(x, self.weight)


def test_what_a_custom_function_saves_counts_without_the_parameter():
    work = work_of(lambda: Holder(Remembering.apply), (N,))
    assert work.saved_for_backward == FLOAT * (B * N + 2 * B * N)


def test_a_saved_view_counts_with_all_that_it_keeps_alive_and_once():
    def forward(x, weight):
        wide = x.repeat(1, 4)
        return wide[:, :N] @ weight + wide[:, N : 2 * N] @ weight

    assert work_of(lambda: Holder(forward), (N,)).saved_for_backward == FLOAT * 4 * B * N


def test_a_part_of_the_graph_dropped_in_forward_is_not_kept():
    def forward(x, weight):
        (x.repeat(1, 3)[:, :N] @ weight).exp()  # nobody uses it
        return x @ weight

    assert work_of(lambda: Holder(forward), (N,)).saved_for_backward == FLOAT * B * N


def test_in_bf16_the_copies_of_weights_are_kept_too():
    work = work_of(lambda: nn.Sequential(nn.Linear(N, M), nn.Linear(M, 1)), (N,), precision="bf16")
    inputs = 2 * (B * N + B * M)
    weights_whose_input_needs_a_gradient = 2 * M
    assert work.saved_for_backward == inputs + weights_whose_input_needs_a_gradient


def test_a_prediction_speaks_in_the_records_columns():
    prediction = predict(TinyWorkload(), TinyMethod(), B, "fp32", "cuda", 0)
    columns = prediction.columns()
    assert set(columns) <= set(COLUMNS)
    parts = [value for name, value in columns.items() if name.startswith("predicted_")]
    assert len(parts) == 5
    assert sum(parts) == pytest.approx(columns["peak_memory_predicted_mib"])
    assert columns["parameters"] == sum(p.numel() for p in TinyWorkload().build().parameters())
    assert columns["stored_mib"] == columns["parameters"] * FLOAT / 2**20
