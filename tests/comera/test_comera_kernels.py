"""The kernels against float64: on a GPU, and in Triton's interpreter.

For the latter ``TRITON_INTERPRET=1`` has to be set before triton is imported, which
``test_comera_kernels_without_a_gpu.py`` does in a process of its own.
"""

import os

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from comera import TTLinear, kernels
from comera.functional import ACTIVATIONS, tt_feed_forward
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
    made, original = [], kernels.hidden
    monkeypatch.setattr(kernels, "hidden", lambda *given: made.append("hidden") or original(*given))
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


@pytest.mark.skipif(INTERPRETED, reason="the interpreter times nothing")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_sizes_of_the_encoder(dtype):
    assert_hidden_is_right("gelu", hidden_inputs(4096, 3072, 30, 30, dtype=dtype), TOLERANCES[dtype])
