"""The kernels against float64: on a GPU, and in Triton's interpreter.

For the latter ``TRITON_INTERPRET=1`` has to be set before triton is imported, which
``test_comera_kernels_without_a_gpu.py`` does in a process of its own.
"""

import os

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from comera import TTLinear, kernels
from comera.functional import ACTIVATIONS, tt_feed_forward, tt_feed_forward_add_norm
from comera.kernels.configurations import Configuration

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"

pytestmark = (
    []
    if INTERPRETED
    else [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
)

PLAIN = {"gelu": F.gelu, "gelu_tanh": nn.GELU("tanh"), "relu": F.relu, "silu": F.silu}
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


@pytest.fixture(autouse=True)
def served(monkeypatch):
    monkeypatch.setattr(kernels, "interpreted", INTERPRETED)
    if INTERPRETED:
        _multiply_bfloat16(monkeypatch)


def _multiply_bfloat16(monkeypatch):
    """Triton's interpreter would multiply the bits of bfloat16 numbers as integers; their values are FP32 ones."""
    import triton.language as tl
    from triton.runtime import interpreter

    original = interpreter.InterpreterBuilder.create_dot

    def create_dot(builder, a, b, *others):
        if a.dtype.scalar == tl.bfloat16:
            a, b = (builder.cast_impl(one, tl.float32) for one in (a, b))
        return original(builder, a, b, *others)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)


@pytest.fixture
def tile(monkeypatch):
    """Has all kernels run on one configuration."""
    from comera.kernels import launch

    def choose(block_m, block_n):
        launch._tuner.cache_clear()
        monkeypatch.setattr(launch, "allowed", lambda *_: [Configuration(block_m, block_n, 4, 2)])

    yield choose
    launch._tuner.cache_clear()


def drawn(*shapes, dtype=torch.float32, scale=1.0):
    return [(scale * torch.randn(shape)).to(DEVICE, dtype).requires_grad_() for shape in shapes]


def exactly(tensors):
    """The same numbers in float64 on the CPU."""
    return [None if one is None else one.detach().double().cpu().requires_grad_() for one in tensors]


def with_gradients(y, inputs):
    """The output and the gradients of all inputs that are there, for output gradients that differ in every entry."""
    weights = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view(y.shape).to(y.device, y.dtype)
    wanted = [one for one in inputs if one is not None]
    return [y, *torch.autograd.grad(y, wanted, weights)]


def assert_near(found, exact, tolerance):
    """Each within a share of the largest entry of the exact one, and of 1."""
    for one, true in zip(found, exact, strict=True):
        assert one.shape == true.shape
        if true.numel():
            error, largest = (float(numbers.detach().abs().amax()) for numbers in (one.double().cpu() - true, true))
            assert error <= tolerance * max(1.0, largest)


def hidden_inputs(T, H, P, Q, bias=True, dtype=torch.float32):
    inputs = drawn((P, T), (P, H), (H,), (Q, H), dtype=dtype, scale=P**-0.5)
    return inputs if bias else [*inputs[:2], None, inputs[3]]


def plain_hidden(activation, z1_PT, right1_PH, bias1_H, left2_QH):
    pre_TH = z1_PT.t() @ right1_PH + (0 if bias1_H is None else bias1_H)
    return left2_QH @ PLAIN[activation](pre_TH).t()


def assert_hidden_is_right(activation, inputs, tolerance):
    exact = exactly(inputs)
    assert_near(
        with_gradients(kernels.hidden(activation, *inputs), inputs),
        with_gradients(plain_hidden(activation, *exact), exact),
        tolerance,
    )


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_hidden_features(activation, bias):
    assert_hidden_is_right(activation, hidden_inputs(37, 50, 5, 7, bias), TOLERANCES[torch.float32])


@pytest.mark.parametrize(
    ("T", "H", "P", "Q"), [(0, 20, 3, 3), (1, 1, 1, 1), (64, 32, 32, 32), (17, 40, 33, 3), (16, 48, 2, 64)]
)
def test_odd_sizes(T, H, P, Q):
    assert_hidden_is_right("gelu", hidden_inputs(T, H, P, Q), TOLERANCES[torch.float32])


@pytest.mark.parametrize(("dtype", "rank"), [(torch.bfloat16, 30), (torch.float16, 30), (torch.bfloat16, 100)])
def test_half_precision(dtype, rank):
    assert_hidden_is_right("gelu", hidden_inputs(70, 90, rank, 20, dtype=dtype), TOLERANCES[dtype])


@pytest.mark.parametrize(("block_m", "block_n"), [(16, 64), (64, 16), (128, 128)])
def test_every_tile_gives_the_same(tile, block_m, block_n):
    tile(block_m, block_n)
    assert_hidden_is_right("silu", hidden_inputs(150, 140, 8, 8, dtype=torch.float16), TOLERANCES[torch.float16])


def norm_inputs(T, M, Q, dtype=torch.float32, residual_dtype=torch.float32, mean=0.0, bias=True):
    thin = drawn((Q, T), (Q, M), (M,), dtype=dtype, scale=Q**-0.5)
    [residual] = drawn((T, M), dtype=residual_dtype)
    norm = nn.LayerNorm(M).to(DEVICE)
    with torch.no_grad():
        residual += mean
        norm.weight.uniform_(0.5, 1.5)
        norm.bias.normal_()
    return [*(thin if bias else (*thin[:2], None)), residual, norm.weight, norm.bias], norm


def plain_norm(eps, factors, z2_QT, right2_QM, bias2_M, residual_TM, weight_M, shift_M):
    y_TM = (z2_QT.t() @ right2_QM + (0 if bias2_M is None else bias2_M)) * factors
    return F.layer_norm(residual_TM + y_TM, (len(weight_M),), weight_M, shift_M, eps)


@pytest.mark.parametrize(
    ("T", "M", "Q", "change"),
    [
        (37, 50, 5, {}),
        (20, 100, 20, {"bias": False}),
        (1, 1, 1, {}),
        (0, 8, 3, {}),
        (40, 70, 6, {"mean": 1000.0}),
        (40, 70, 6, {"dtype": torch.bfloat16}),
        (20, 40, 100, {"dtype": torch.bfloat16}),
        (40, 70, 6, {"dtype": torch.float16, "residual_dtype": torch.float16}),
    ],
)
def test_epilogue(T, M, Q, change):
    inputs, norm = norm_inputs(T, M, Q, **change)
    found = kernels.add_norm(*inputs[:4], norm, 0.0, inputs[3].dtype)
    exact = exactly(inputs)
    tolerance = TOLERANCES[change.get("dtype", torch.float32)]
    if "mean" in change:
        tolerance = 1e-3  # FP32 numbers near 1000 lie 6e-5 apart, their squares 6e-2
    assert_near(with_gradients(found, inputs), with_gradients(plain_norm(norm.eps, 1, *exact), exact), tolerance)


def philox(seed, counters):
    """Philox4x32-10 (Salmon and others, 2011) of counters (…, 4): bits (…, 4)."""
    c0, c1, c2, c3 = (counters[..., place].astype(np.uint64) for place in range(4))
    k0, k1, low = seed & 0xFFFFFFFF, seed >> 32, np.uint64(0xFFFFFFFF)
    for _ in range(10):
        a, b = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (
            (b >> np.uint64(32)) ^ c1 ^ np.uint64(k0),
            b & low,
            (a >> np.uint64(32)) ^ c3 ^ np.uint64(k1),
            a & low,
        )
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], -1)


def dropout_factors(seed, T, M, p):
    groups = -(-M // 4)
    counters = np.zeros((T, groups, 4), np.int64)
    counters[..., 0], counters[..., 1] = np.arange(groups), np.arange(T)[:, None]
    bits = philox(seed, counters).reshape(T, 4 * groups)[:, :M]
    return torch.from_numpy((bits >> np.uint64(8)) * 2.0**-24 >= p) / (1 - p)


def test_the_reference_for_dropout_is_philox():
    assert [f"{word:08x}" for word in philox(0, np.zeros(4, np.int64))] == [
        "6627e8d5",
        "e169c58d",
        "bc57ac4c",
        "9b00dbd8",
    ]


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_dropout_draws_from_philox_and_backward_replays_its_mask(p):
    inputs, norm = norm_inputs(40, 70, 6)
    torch.manual_seed(5)
    seed = torch.empty(1, dtype=torch.int64, device=DEVICE).random_().item()
    torch.manual_seed(5)
    found = kernels.add_norm(*inputs[:4], norm, p, torch.float32)
    exact = exactly(inputs)
    wanted = plain_norm(norm.eps, dropout_factors(seed, 40, 70, p), *exact)
    assert_near(with_gradients(found, inputs), with_gradients(wanted, exact), TOLERANCES[torch.float32])
    assert not torch.equal(found, kernels.add_norm(*inputs[:4], norm, p, torch.float32))


def layers(dtype=torch.float32):
    first = TTLinear(24, 40, (4, 6), (8, 5), 3, device=DEVICE, dtype=dtype)
    second = TTLinear(40, 24, (8, 5), (4, 6), 3, device=DEVICE, dtype=dtype)
    for layer in (first, second):
        nn.init.normal_(layer.packed_cores)
        nn.init.normal_(layer.bias)
    return first, second


@pytest.fixture
def served_calls(monkeypatch):
    """The operations that the kernels were asked for."""
    made = []
    for name in ("hidden", "add_norm"):
        original = getattr(kernels, name)
        monkeypatch.setattr(
            kernels, name, lambda *given, name=name, original=original: made.append(name) or original(*given)
        )
    return made


@pytest.mark.parametrize("autocast", [False, True])
def test_the_feed_forward_takes_the_kernels(served_calls, autocast):
    first, second = layers()
    [x] = drawn((2, 30, 24))
    tensors = (x, *first.parameters(), *second.parameters())
    with torch.autocast(DEVICE, torch.bfloat16, enabled=autocast):
        found = tt_feed_forward(x, first, second)
        assert served_calls == ["hidden"]
        tiled = tt_feed_forward(x, first, second, tokens_per_tile=16)
    assert served_calls == ["hidden"]
    assert found.dtype == tiled.dtype
    for one, other in zip(with_gradients(found, tensors), with_gradients(tiled, tensors), strict=True):
        assert one.dtype == other.dtype
        assert (one - other).norm() <= (2e-2 if autocast else 1e-5) * other.norm()


@pytest.mark.parametrize("autocast", [False, True])
def test_the_end_of_a_block_takes_the_kernels(served_calls, autocast):
    first, second = layers()
    norm = nn.LayerNorm(24, device=DEVICE)
    [x] = drawn((2, 30, 24))
    tensors = (x, *first.parameters(), *second.parameters(), *norm.parameters())
    with torch.autocast(DEVICE, torch.bfloat16, enabled=autocast):
        found = tt_feed_forward_add_norm(x, first, second, norm)
        assert served_calls == ["hidden", "add_norm"]
        plain = norm(x + second(F.gelu(first(x))))
    assert found.dtype == plain.dtype
    for one, other in zip(with_gradients(found, tensors), with_gradients(plain, tensors), strict=True):
        assert one.dtype == other.dtype
        assert (one - other).norm() <= (3e-2 if autocast else 1e-5) * other.norm()


@pytest.mark.skipif(INTERPRETED, reason="is about a device")
def test_a_captured_step_draws_another_mask_in_each_replay():
    inputs, norm = norm_inputs(64, 64, 8)
    call = lambda: with_gradients(kernels.add_norm(*inputs[:4], norm, 0.5, torch.float32), inputs)  # noqa: E731
    call()  # chooses configurations
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call()
    replays = []
    for _ in range(2):
        graph.replay()
        replays.append(found[0].clone())
    assert not torch.equal(*replays)


@pytest.mark.skipif(INTERPRETED, reason="the interpreter times nothing")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_sizes_of_the_encoder(dtype):
    assert_hidden_is_right("gelu", hidden_inputs(4096, 3072, 30, 30, dtype=dtype), TOLERANCES[dtype])
    inputs, norm = norm_inputs(4096, 768, 30, dtype=dtype)
    found, exact = kernels.add_norm(*inputs[:4], norm, 0.0, torch.float32), exactly(inputs)
    wanted = with_gradients(plain_norm(norm.eps, 1, *exact), exact)
    assert_near(with_gradients(found, inputs), wanted, TOLERANCES[dtype])
