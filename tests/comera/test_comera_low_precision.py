"""FP8 products: native beside emulated beside float64, scales, padding, and what is refused."""

import copy

import pytest
import torch
from torch import nn

import comera
from comera.low_precision import FORWARD, FP8, GRADIENTS, product, quantize, scaled_product
from comera.low_precision.scaling import padded
from comera.recomputing import keep_ranks

#: Tokens, what is summed over, columns: odd ones, ranks that are no multiples of 16, a single token.
SHAPES = [(64, 768, 30), (50, 30, 96), (1, 17, 5), (128, 256, 512)]

#: Half a unit in the last place of e4m3 and of e5m2.
U, U_GRADIENT = 2.0**-4, 2.0**-3


def operands(shape, seed=0):
    torch.manual_seed(seed)
    T, K, M = shape
    return torch.randn(T, K), torch.randn(M, K)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("types", [(FORWARD, FORWARD), (GRADIENTS, FORWARD)])
@pytest.mark.parametrize("out", [torch.float32, torch.bfloat16])
def test_native_and_emulated_products_agree(shape, types, out):
    a, b = operands(shape)
    left, right = (quantize(padded(x), kind) for x, kind in zip((a, b), types, strict=True))
    native, emulated = (scaled_product(left, right, out, kernel) for kernel in ("native", "emulated"))
    sums = left.dequantized().abs() @ right.dequantized().abs().t()
    apart = (native.double() - emulated.double()).abs()
    ulp = torch.finfo(out).eps * native.double().abs()
    assert (apart <= torch.maximum(ulp, 1e-5 * sums.double())).all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("fp8", [FP8(), FP8(kernel="native")], ids=str)
def test_products_and_gradients_lie_within_the_bound_of_the_format(shape, fp8):
    a, b = (x.requires_grad_() for x in operands(shape))
    gradient = torch.randn(shape[0], shape[2])
    y = product(a, b, fp8)
    y.backward(gradient)
    exact_a, exact_b, exact_g = (x.detach().double() for x in (a, b, gradient))
    cases = [  # what is computed, its two operands, and what roundings can add up to
        (y, exact_a, exact_b.t(), (1 + U) ** 2 - 1),
        (a.grad, exact_g, exact_b, (1 + U) * (1 + U_GRADIENT) - 1),
        (b.grad, exact_g.t(), exact_a, (1 + U) * (1 + U_GRADIENT) - 1),
    ]
    for found, left, right, bound in cases:
        sums = left.abs() @ right.abs()
        subnormal = (
            2.0**-10 / 448 * (left.abs().max() * right.abs().sum(0) + right.abs().max() * left.abs().sum(1)[:, None])
        )
        assert found.shape == sums.shape
        assert ((found.detach().double() - left @ right).abs() <= bound * sums + 4 * subnormal + 1e-5 * sums).all()
    assert float((y.detach().double() - exact_a @ exact_b.t()).norm()) > 0  # it has been rounded


def test_rounding_is_exact_where_the_format_is():
    a, b = torch.tensor([[1.0, 0.5, -448.0]]), torch.tensor([[2.0, 448.0, 1.0]])
    assert product(a, b, FP8()).item() == 2 + 224 - 448


def test_zeros_and_tiny_numbers_give_no_nan():
    for scale in (0.0, 1e-45, 1e-38):
        y = product(torch.full((4, 16), scale), torch.ones(3, 16), FP8())
        assert y.isfinite().all()


def test_infinity_shows():
    assert product(torch.full((1, 16), torch.inf), torch.eye(16), FP8()).isnan().all()


def feed_forward():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256))


def gradients_of(model, x):
    loss = model(x).square().mean()
    model.zero_grad()
    loss.backward()
    return float(loss.detach()), torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("autocast", [False, True])
def test_tensorized_layers_multiply_in_fp8_by_an_argument(autocast):
    x = torch.randn(3, 50, 256)
    plain = comera.tensorize(feed_forward(), {"*": comera.TT(ranks=30, init="normal")})
    eight = comera.tensorize(feed_forward(), {"*": comera.TT(ranks=30, init="normal")}, fp8=FP8(), recompute="outputs")
    eight.load_state_dict(plain.state_dict())
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        (loss, exact), (other, found) = gradients_of(plain, x), gradients_of(eight, x)
    assert 1e-6 < abs(other - loss) / loss < 0.05
    assert 1e-3 < float((found - exact).norm() / exact.norm()) < 0.15


def test_recomputed_products_have_the_bits_of_forward():
    x = torch.randn(64, 256)
    plain = comera.tensorize(feed_forward(), {"*": comera.TT(ranks=16)}, fp8=FP8())
    lean = copy.deepcopy(plain)
    keep_ranks(lean, "outputs")
    (loss, exact), (other, found) = gradients_of(plain, x), gradients_of(lean, x)
    assert loss == other
    assert torch.equal(exact, found)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(256, 256) for _ in range(4))
        self.norm = nn.LayerNorm(256)

    def forward(self, x):
        heads = [layer(x).unflatten(-1, (4, 64)).transpose(1, 2) for layer in (self.query, self.key, self.value)]
        mixed = nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
        return self.norm(x + self.output(mixed))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(256, 256)
        self.blocks = nn.ModuleList([Attention(), Attention()])

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


def encoder():
    torch.manual_seed(0)
    return comera.tensorize(Encoder(), {"blocks.*": comera.TT(ranks=16)})


def test_cores_in_bf16_are_merged_in_the_type_of_their_rank_entries():
    model = encoder()
    exact = model(torch.ones(2, 3, 256))
    for name, parameter in model.named_parameters():
        if "diagonals" not in name:
            parameter.data = parameter.data.bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        found = model(torch.ones(2, 3, 256))
    found.float().sum().backward()
    layer = model.blocks[0].query
    assert (layer.packed_cores.grad.dtype, layer.diagonals.grad.dtype) == (torch.bfloat16, torch.float32)
    assert ((found.float() - exact).norm() / exact.norm()).item() < 0.05
    assert layer.to_dense().dtype == torch.bfloat16
