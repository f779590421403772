"""CUDA's choice of operations on CPU tensors: what they keep for backward, and that they go away again."""

import math

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from bench.estimate.cuda_operations import cuda_operations, use_cuda_defaults

B, H, T, D = 3, 4, 20, 16  # batch, heads, tokens (no multiple of the kernel's 32), head width


def saved_by(function, *inputs):
    """Storages kept for backward by ``function``, as {(type, bytes)} per storage, in order of saving."""
    storages = {}

    def on_save(tensor):
        storages[id(tensor.untyped_storage())] = (tensor.dtype, tensor.untyped_storage().nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(on_save, lambda tensor: tensor):
        output = function(*inputs)
    return output, list(storages.values())


def heads(dtype=torch.float32, width=D, tokens=T):
    """Query, key and value as a model makes them: (batch, heads, tokens, width) views of (batch, tokens, …)."""
    return [torch.zeros(B, tokens, H, width, dtype=dtype, requires_grad=True).transpose(1, 2) for _ in range(3)]


def gradient_name(tensor):
    return tensor.grad_fn.name().removesuffix("0")


def test_a_dropout_mask_takes_one_byte_per_element_where_the_cpu_takes_four():
    x = torch.ones(7, 11, requires_grad=True)
    on_cpu = saved_by(F.dropout, x)[1]
    with cuda_operations():
        output, on_cuda = saved_by(F.dropout, x)
        output.sum().backward()
    assert on_cpu == [(torch.float32, 4 * 77)]
    assert on_cuda == [(torch.bool, 77)]
    assert set(x.grad.unique().tolist()) <= {0.0, 2.0}


ONE = B * H * T * D  # elements of query, key, value or output


@pytest.mark.parametrize("dropout_p", [0.0, 0.1])
def test_float32_attention_keeps_query_key_value_output_logsumexp(dropout_p):
    with FakeTensorMode(), cuda_operations():
        q, k, v = heads()
        output, kept = saved_by(lambda: F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p))
        output.sum().backward()
    assert gradient_name(output) == "ScaledDotProductEfficientAttentionBackward"
    logsumexp = 4 * B * H * 32 * math.ceil(T / 32)
    state_of_random_numbers = [8, 8]
    assert sorted(size for _, size in kept) == sorted([4 * ONE] * 4 + [logsumexp] + state_of_random_numbers)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_boolean_mask_becomes_a_bias_in_the_querys_type_kept_once(dtype):
    with FakeTensorMode(), cuda_operations():
        q, k, v = heads(dtype)
        mask = torch.ones(B, 1, 1, T, dtype=torch.bool)
        output, kept = saved_by(lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask))
        output.sum().backward()
    assert gradient_name(output) == "ScaledDotProductEfficientAttentionBackward"
    aligned_tokens = 24  # T = 20 rounded up to a multiple of 8; broadcast over heads and queries costs nothing
    bias = dtype.itemsize * B * aligned_tokens
    sizes = [dtype.itemsize * ONE] * 4 + [4 * B * H * 32, bias, 8, 8]
    assert sorted(size for _, size in kept) == sorted(sizes)
    assert (torch.bool, B * T) not in kept


def test_half_precision_attention_without_a_mask_is_flash_attention():
    with FakeTensorMode(), cuda_operations():
        q, k, v = heads(torch.bfloat16)
        output, kept = saved_by(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
        output.sum().backward()
    assert gradient_name(output) == "ScaledDotProductFlashAttentionBackward"
    logsumexp = 4 * B * H * T
    large = [size for _, size in kept if size > 16]
    assert sorted(large) == sorted([2 * ONE] * 4 + [logsumexp])
    assert output.shape == (B, H, T, D)


def test_autocast_casts_as_cuda_does():
    x = torch.ones(4, 8)
    weight = torch.ones(8, 8, requires_grad=True)
    cases = {
        "linear": lambda: F.linear(x, weight),
        "gelu": lambda: F.gelu(F.linear(x, weight)),
        "layer_norm": lambda: F.layer_norm(F.linear(x, weight), (8,)),
        "softmax": lambda: F.softmax(F.linear(x, weight), -1),
        "softmax asked for bf16": lambda: F.softmax(F.linear(x, weight), -1, dtype=torch.bfloat16),
        "sum": lambda: F.linear(x, weight).sum(),
        "cross_entropy": lambda: F.cross_entropy(F.linear(x, weight), torch.zeros(4, dtype=torch.long)),
    }
    with cuda_operations(), torch.autocast("cpu", dtype=torch.bfloat16):
        types = {name: case().dtype for name, case in cases.items()}
    half = {"linear", "gelu", "softmax asked for bf16"}
    assert types == {name: torch.bfloat16 if name in half else torch.float32 for name in cases}


def test_the_cpus_own_operations_come_back():
    x = torch.ones(4, requires_grad=True)

    def enter_and_fail():
        with cuda_operations():
            raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        enter_and_fail()
    for _ in range(2):
        assert gradient_name(F.dropout(x, 0.1)) == "MulBackward"
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert F.layer_norm(x.bfloat16(), (4,)).dtype == torch.bfloat16
        with cuda_operations():
            assert gradient_name(F.dropout(x, 0.1)) == "NativeDropoutBackward"


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, True), ({"foreach": False}, False), ({"fused": True}, None), ({"lr": torch.tensor(0.1)}, None)],
)
def test_an_optimizer_left_to_itself_takes_the_form_that_cuda_would(options, expected):
    optimizer = torch.optim.AdamW([nn.Parameter(torch.ones(2))], **options)
    use_cuda_defaults(optimizer)
    assert optimizer.param_groups[0]["foreach"] is expected
