"""Products of BF16 operands by way of FP32: which are widened, and that they are those of PyTorch's own kernels."""

import pytest
import torch
from noted_operations import NotedOperations
from torch import nn

from baselines import dense
from bench.step.bf16_products import WidenedProducts, multiplies_bf16
from bench.step.train_step import TrainStep
from comera import TTLinear


def operands(*shapes, kind=torch.bfloat16):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(kind) for shape in shapes]


def into(a, b):
    return torch.mm(a, b, out=torch.empty(a.shape[0], b.shape[1], dtype=a.dtype))


PRODUCTS = {
    "mm": (torch.mm, [(5, 64), (64, 7)]),
    "mm into a tensor": (into, [(5, 64), (64, 7)]),
    "bmm": (torch.bmm, [(3, 5, 64), (3, 64, 7)]),
    "addmm": (torch.addmm, [(7,), (5, 64), (64, 7)]),
    "addmm with factors": (lambda *x: torch.addmm(*x, beta=0.5, alpha=2.0), [(7,), (5, 64), (64, 7)]),
    "baddbmm": (torch.baddbmm, [(3, 5, 7), (3, 5, 64), (3, 64, 7)]),
    "addmm in place": (lambda c, a, b: c.clone().addmm_(a, b), [(5, 7), (5, 64), (64, 7)]),
    "linear": (nn.functional.linear, [(5, 64), (7, 64), (7,)]),
    "matmul": (torch.matmul, [(2, 5, 64), (64, 7)]),
}


def types_of(ran):
    """The types of the operands of every product that really ran."""
    return {kind for each in ran.named("mm", "bmm", "addmm", "baddbmm") for _, kind in each.given}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_runs_in_fp32_and_is_the_exact_one_rounded_to_bf16(name):
    product, shapes = PRODUCTS[name]
    given = operands(*shapes)
    with NotedOperations() as ran, WidenedProducts():
        found = product(*given)
    assert types_of(ran) == {torch.float32}
    exact = product(*(one.double() for one in given))
    assert found.dtype == torch.bfloat16
    assert ((found.double() - exact).abs() <= 2**-8 * exact.abs() + 1e-5 * 64).all()
    torch.testing.assert_close(found, product(*given), rtol=2**-7, atol=1e-2)  # PyTorch's own


def step_of(widen_bf16, **toggles):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), TTLinear(64, 32, (8, 8), (4, 8), 8))

    def loss(model, batch):
        return (model(batch["x"]).float() - batch["y"]).square().mean()

    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    return TrainStep(
        model, dense.build(dense.Settings()), optimizer, loss, "bf16", "cpu", widen_bf16=widen_bf16, **toggles
    )


def test_a_step_has_the_losses_of_autocasts_own_products_and_says_what_ran():
    x, y = operands((48, 32), (48, 32), kind=torch.float32)
    ours, own = step_of(True), step_of(False)
    with NotedOperations() as ran:
        step_of(True)({"x": x, "y": y})
    assert types_of(ran) == {torch.float32}  # backward as well
    losses = [[float(step({"x": x, "y": y})) for _ in range(20)] for step in (ours, own)]
    assert losses[0] == pytest.approx(losses[1], rel=2e-3)
    assert losses[0][-1] < losses[0][0]
    assert (ours.arithmetic, own.arithmetic) == ("bf16, products computed in FP32 and rounded", "bf16")
    with ours.autocast():
        assert ours.model(x).dtype == torch.bfloat16
    assert torch.is_autocast_enabled("cpu") is False


def test_a_gpu_multiplies_bf16_itself():
    assert multiplies_bf16("cuda")
    assert isinstance(multiplies_bf16("cpu"), bool)
