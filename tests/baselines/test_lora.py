"""LoRA by peft: who trains, and where it starts."""

import pytest
import torch
from torch import nn
from toy_encoder import LINEARS, TARGETS, ToyEncoder, batch, train

from baselines import lora


def adapted(**settings):
    torch.manual_seed(0)
    base = ToyEncoder()
    model = ToyEncoder()
    model.load_state_dict(base.state_dict())
    arm = lora.build(lora.Settings(**{"rank": 3, "alpha": 6.0, **settings}), "")
    return arm, base, arm.adapt(model, TARGETS)


def test_exactly_the_targets_weights_are_frozen():
    _, base, model = adapted()
    trainable = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    others = {name for name, _ in base.named_parameters() if name.rpartition(".")[0] not in LINEARS}
    biases = {f"{name}.base_layer.bias" for name in LINEARS}
    adapters = {f"{name}.lora_{half}.default.weight" for name in LINEARS for half in "AB"}
    assert trainable == others | biases | adapters
    frozen = {name for name, _ in model.named_parameters()} - trainable
    assert frozen == {f"{name}.base_layer.weight" for name in LINEARS}


def test_training_starts_from_the_dense_models_function():
    _, base, model = adapted()
    assert torch.equal(model(batch()), base(batch()))


def test_the_function_is_the_weight_plus_the_scaled_product():
    arm, base, model = adapted()
    train(arm, model, arm.optimizer(model), batch(), range(3))
    layer = model.hidden
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    assert torch.equal(layer.base_layer.weight, base.hidden.weight)
    assert b.abs().sum() > 0
    x = torch.randn(5, 8)
    expected = x @ (base.hidden.weight + 6.0 / 3 * b @ a).T + layer.base_layer.bias
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_adapters_have_the_weights_dtype_and_pefts_initialisation(dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(400, 8)).to(dtype)
    lora.build(lora.Settings(rank=50), "").adapt(model, {"0": "classifier"})
    a, b = model[0].lora_A["default"].weight, model[0].lora_B["default"].weight
    assert a.dtype == b.dtype == dtype
    assert not b.any()
    # Kaiming-uniform with a = √5: uniform within ±1/√N
    assert a.abs().max().item() == pytest.approx(400**-0.5, rel=0.01)
    assert a.float().std().item() == pytest.approx((3 * 400) ** -0.5, rel=0.05)


def test_rates_go_to_their_parameters():
    arm, _, model = adapted(lr_adapters=0.5, lr=0.25)
    adapters, rest = arm.optimizer(model).param_groups
    assert (adapters["lr"], rest["lr"]) == (0.5, 0.25)
    assert len(adapters["params"]) == 2 * len(LINEARS)
    assert adapters["fused"]
    assert rest["fused"]
