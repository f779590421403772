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
from comera.functional import ACTIVATIONS, fuse_feed_forwards, tt_feed_forward
from comera.kernels.configurations import Configuration
from comera.kernels.norms import fuse_norms

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
        monkeypatch.setattr(launch, "candidates", lambda *_: [Configuration(block_m, block_n, 4, 2)])

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


def test_gelu_by_one_exponential_is_within_the_error_of_its_formula():
    """Abramowitz and Stegun 7.1.26 errs by 1.5e-7 in erf, thus by half of that in Φ."""
    x = torch.linspace(-6, 6, 61, dtype=torch.float64)
    given = [torch.ones(1, 1), x[None, :], None, torch.eye(61)]
    inputs = [None if one is None else one.float().to(DEVICE).requires_grad_() for one in given]
    found = kernels.hidden("gelu", *inputs)
    slopes = torch.autograd.grad(found.sum(), inputs[1])[0]
    exact = x.clone().requires_grad_()
    wanted = F.gelu(exact)
    bound = 7.5e-8 * x.abs() + 6e-7 * x.abs().clamp(min=1)  # of the formula, and of FP32
    assert ((found.detach().cpu().double()[:, 0] - wanted.detach()).abs() <= bound).all()
    assert ((slopes.cpu().double()[0] - torch.autograd.grad(wanted.sum(), exact)[0]).abs() <= bound).all()


def norm_inputs(T, M, dtype=torch.float32, residual=torch.float32):
    norm = nn.LayerNorm(M, device=DEVICE)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    [y], [r] = drawn((T, M), dtype=dtype), drawn((T, M), dtype=residual)
    return norm, [r, y, norm.weight, norm.bias]


def plain_norm(residual, y, weight, bias, factors=1.0):
    return F.layer_norm(residual + y * factors, weight.shape, weight, bias)


@pytest.mark.parametrize(("T", "M"), [(0, 8), (1, 1), (5, 24), (17, 33), (3, 768)])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_the_end_of_a_sub_layer(T, M, dtype):
    norm, inputs = norm_inputs(T, M, dtype)
    exact = exactly(inputs)
    found = kernels.add_norm(*inputs[:2], norm, 0.0, torch.float32)
    tolerance = max(TOLERANCES[dtype], 1e-4 if M > 1 else 1e-2)
    assert_near(with_gradients(found, inputs), with_gradients(plain_norm(*exact), exact), tolerance)
    for one in (0, 1):
        assert torch.autograd.grad(kernels.add_norm(*inputs[:2], norm, 0.0, dtype).sum(), inputs[one])[0].dtype == (
            inputs[one].dtype
        )


@pytest.mark.parametrize("M", [24, 33])
@pytest.mark.parametrize("p", [0.25, 1.0])
def test_dropout_keeps_a_share_and_backward_has_the_mask_of_forward(M, p):
    norm, inputs = norm_inputs(400, M)
    residual, y = inputs[:2]
    torch.manual_seed(0)
    found = kernels.add_norm(residual, y, norm, p, torch.float32)
    bits = next(saved for saved in found.grad_fn.next_functions[0][0].saved_tensors if saved.dtype == torch.uint8)
    kept = (bits.cpu()[:, :, None] >> torch.arange(8) & 1).flatten(1)[:, :M].double()
    assert kept.mean().item() == pytest.approx(1 - p, abs=4 * (p * (1 - p) / kept.numel()) ** 0.5)
    assert (kept.mean(0) - (1 - p)).abs().max() <= 5 * (p * (1 - p) / 400) ** 0.5
    exact, factors = exactly(inputs), kept / (1 - p) if p < 1 else kept
    wanted = plain_norm(*exact, factors)
    assert_near(with_gradients(found, inputs), with_gradients(wanted, exact), 1e-4)
    torch.manual_seed(1)
    if p < 1:
        assert not torch.equal(found, kernels.add_norm(residual, y, norm, p, torch.float32))


@pytest.mark.skipif(INTERPRETED, reason="is about a device")
def test_a_captured_step_draws_another_mask_in_each_replay():
    norm, inputs = norm_inputs(64, 64)
    call = lambda: with_gradients(kernels.add_norm(*inputs[:2], norm, 0.5, torch.float32), inputs)  # noqa: E731
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call()
    replays = []
    for _ in range(2):
        graph.replay()
        replays.append(found[0].clone())
    assert not torch.equal(*replays)


class Block(nn.Module):
    """An encoder block without attention."""

    def __init__(self, p=0.0):
        super().__init__()
        self.first, self.second, self.norm, self.dropout = *layers(), nn.LayerNorm(24), nn.Dropout(p)
        self.feed_forward = nn.Sequential(self.first, nn.GELU(), self.second)
        self.to(DEVICE)

    def forward(self, x):
        return self.norm(x + self.dropout(self.feed_forward(x)))


@pytest.mark.parametrize("autocast", [False, True])
def test_a_block_takes_the_kernels_and_computes_what_it_did(served_calls, autocast):
    block = Block()
    [x] = drawn((2, 30, 24))
    tensors = (x, *block.parameters())
    with torch.autocast(DEVICE, torch.bfloat16, enabled=autocast):
        plain = block(x)
        assert fuse_norms(block, "kernels") == [""]
        assert fuse_feed_forwards(block, "kernels", keep_ranks=False) == ["feed_forward"]
        found = block(x)
    assert served_calls == ["hidden", "add_norm"]
    assert found.dtype == plain.dtype
    for one, other in zip(with_gradients(found, tensors), with_gradients(plain, tensors), strict=True):
        assert one.dtype == other.dtype
        assert (one - other).norm() <= (3e-2 if autocast else 1e-4) * other.norm()


@pytest.mark.parametrize("way", ["torch", "evaluated", "hooked"])
def test_a_block_runs_as_written_where_it_has_to(served_calls, way):
    block = Block(p=0.5)
    fuse_norms(block, "torch" if way == "torch" else "kernels")
    if way == "hooked":
        block.norm.register_forward_hook(lambda *_: None)
    [x] = drawn((2, 30, 24))
    with torch.set_grad_enabled(way != "evaluated"):
        block(x)
    assert served_calls == []


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
        monkeypatch.setattr(kernels, name, lambda *given, n=name, original=original: made.append(n) or original(*given))
    return made


@pytest.mark.parametrize("autocast", [False, True])
def test_the_feed_forward_takes_the_kernels(served_calls, autocast):
    first, second = layers()
    [x] = drawn((2, 30, 24))
    tensors = (x, *first.parameters(), *second.parameters())
    with torch.autocast(DEVICE, torch.bfloat16, enabled=autocast):
        found = tt_feed_forward(x, first, second, fused="kernels")
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
