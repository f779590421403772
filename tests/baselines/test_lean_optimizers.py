"""Optimizers of the dense model that hold less than AdamW: APOLLO-Mini, and AdamW with moments of 8 bits."""

import copy

import torch
from torch import nn

from baselines import apollo_mini, dense
from baselines._arm import fused_adamw
from baselines.apollo_mini import ApolloMini, Settings


def stepped(weight, optimizer, gradients):
    for gradient in gradients:
        weight.grad = gradient.clone()
        optimizer.step()
    return weight.detach()


def gradients(shape, count=5):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for _ in range(count)]


def by_the_paper(weight, grads, settings, draw):
    """Algorithm 1 of the paper for a matrix (m, n), m <= n, one scale per matrix, as a plain loop in float64."""
    weight, mean, square, last = weight.double(), 0.0, 0.0, None
    for number, gradient in enumerate(grads):
        gradient = gradient.double()
        projected = draw(number) @ gradient
        mean, square = 0.9 * mean + 0.1 * projected, 0.999 * square + 0.001 * projected**2
        direction = (mean / (1 - 0.9 ** (number + 1))) / ((square / (1 - 0.999 ** (number + 1))).sqrt() + settings.eps)
        update = settings.scale**0.5 * direction.norm() / projected.norm() * gradient
        if last is not None and update.norm() > settings.growth * last:
            update *= settings.growth * last / update.norm()
        last = update.norm()
        weight = weight - settings.lr * update
    return weight


def test_apollo_mini_is_the_paper_s_algorithm():
    settings = Settings(lr=0.01, scale=16.0, update_gap=2)
    start, grads = (
        torch.ones(4, 6),
        [scale * each for scale, each in zip((1, 1, 5, 1, 9), gradients((4, 6)), strict=True)],
    )

    def draw(number):
        generator = torch.Generator().manual_seed(number // 2 * apollo_mini._SEEDS)
        return torch.randn(4, generator=generator).double()

    weight = nn.Parameter(start.clone())
    found = stepped(weight, ApolloMini([weight], settings), grads)
    expected = by_the_paper(start, grads, settings, draw)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


def test_apollo_mini_holds_two_vectors_along_the_longer_side():
    model = nn.Sequential(nn.Linear(64, 32))
    arm = apollo_mini.build(Settings())
    optimizer = arm.optimizer(arm.adapt(model, {"0": "feed_forward"}))
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    state = optimizer.state[model[0].weight]
    assert sum(value.numel() for value in state.values() if isinstance(value, torch.Tensor)) == 2 * 64 + 1


def test_moments_of_8_bits_train_as_adamw_does():
    grads, start = gradients((64, 128), 20), torch.zeros(64, 128)
    weights = [nn.Parameter(start.clone()) for _ in range(2)]
    arm = dense.build(dense.Settings(lr=0.01), "adamw8bit")
    full = stepped(weights[0], fused_adamw(([weights[0]], 0.01)), grads)
    model = nn.ParameterList([weights[1]])
    optimizer = arm.optimizer(model)
    rounded = stepped(weights[1], optimizer, grads)
    assert (rounded - full).norm() < 0.05 * full.norm()
    state = optimizer.state[weights[1]]
    held = sum(value.nbytes for value in state.values() if isinstance(value, torch.Tensor))
    assert held < 0.26 * 2 * 4 * full.numel()  # a quarter, and a scale per 256 entries


def test_moments_of_8_bits_go_on_from_a_saved_state_bit_for_bit():
    grads = gradients((64, 128), 6)

    def fresh():
        weight = nn.Parameter(torch.zeros(64, 128))
        return weight, dense.build(dense.Settings(lr=0.01), "adamw8bit").optimizer(nn.ParameterList([weight]))

    weight, optimizer = fresh()
    stepped(weight, optimizer, grads[:3])
    saved, held = weight.detach().clone(), copy.deepcopy(optimizer.state_dict())
    undisturbed = stepped(weight, optimizer, grads[3:]).clone()
    again, optimizer = fresh()
    again.data.copy_(saved)
    optimizer.load_state_dict(held)
    assert torch.equal(stepped(again, optimizer, grads[3:]), undisturbed)


def test_small_parameters_keep_moments_of_32_bits():
    model = nn.Sequential(nn.Linear(8, 8))
    optimizer = dense.build(dense.Settings(), "adamw8bit").optimizer(model)
    model(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    assert optimizer.state[model[0].weight]["exp_avg"].dtype == torch.float32
