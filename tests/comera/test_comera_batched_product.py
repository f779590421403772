"""Batched products: torch's results, gradients in the operands' memory order, and every transform that bmm allows."""

import pytest
import torch

from comera.formats.batched_product import ROW_BY_ROW, ROWS_OUTSIDE, batched_product

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # of gradcheck

G, A, K, C = 3, 4, 5, 2


#: Memory orders of operands, and how to lay them out; the last is that of features in groups, with rows last.
ORDERS = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (2, 0, 1)]


def lying(rows, columns, order):
    """Return matrices (G, rows, columns) in a memory order."""
    sizes = (G, rows, columns)
    drawn = torch.randn([sizes[each] for each in order], dtype=torch.float64)
    return drawn.permute([order.index(each) for each in range(3)]).requires_grad_()


@pytest.fixture(params=[(left, right) for left in ORDERS for right in ORDERS[:3]], ids=str)
def operands(request):
    torch.manual_seed(0)
    left, right = request.param
    return lying(A, K, left), lying(K, C, right), lying(1, C, ROW_BY_ROW)


def test_product_and_gradients_are_torchs_and_lie_as_the_operands(operands):
    left, right, bias = operands
    wanted = torch.baddbmm(bias, left, right)
    way = torch.randn_like(wanted)
    expected = torch.autograd.grad((wanted * way).sum(), operands)
    product = batched_product(*operands)
    torch.testing.assert_close(product, wanted)
    for found, same, operand in zip(
        torch.autograd.grad((product * way).sum(), operands), expected, operands, strict=True
    ):
        torch.testing.assert_close(found, same)
        assert found.stride() == operand.stride()
    outside = batched_product(left, right, order=ROWS_OUTSIDE)
    torch.testing.assert_close(outside, torch.bmm(left, right))
    assert outside.transpose(0, 1).is_contiguous()


def test_results_in_bfloat16_on_a_cpu_are_written_along_their_rows(operands, monkeypatch):
    """Column by column, PyTorch 2.13 multiplies them by a plain loop."""
    operands = [operand.detach().bfloat16().requires_grad_() for operand in operands]
    written = []

    def multiply(left, right, *, out, bmm=torch.bmm):
        written.append(out.stride(2))
        return bmm(left, right, out=out)

    monkeypatch.setattr(torch, "bmm", multiply)
    torch.autograd.grad(batched_product(*operands).sum(), operands)
    assert written == [1, 1, 1]


def test_second_and_forward_derivatives_are_right(operands):
    assert torch.autograd.gradcheck(batched_product, operands, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(batched_product, operands)


def test_it_is_mapped_over_samples(operands):
    left, right, bias = operands
    samples = torch.stack([left, 2 * left])
    torch.testing.assert_close(
        torch.func.vmap(batched_product, (0, None, None))(samples, right, bias),
        torch.stack([torch.baddbmm(bias, one, right) for one in samples]),
    )
    slope = torch.func.grad(lambda left: batched_product(left, right, bias).square().sum())
    torch.testing.assert_close(torch.func.vmap(slope)(samples), torch.stack([slope(one) for one in samples]))


def test_autocast_multiplies_in_its_type_both_ways(operands):
    floats = [operand.detach().float().requires_grad_() for operand in operands]
    with torch.autocast("cpu", torch.bfloat16):
        product = batched_product(*floats)
        assert batched_product(*operands).dtype == torch.float64  # which autocast leaves as it is
    assert product.dtype == torch.bfloat16
    gradients = torch.autograd.grad(product.float().sum(), floats)
    exact = torch.autograd.grad(torch.baddbmm(floats[2], floats[0], floats[1]).sum(), floats)
    for found, same in zip(gradients, exact, strict=True):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, same, atol=0.05, rtol=0.02)
