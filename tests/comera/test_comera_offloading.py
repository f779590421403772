"""Parameters that are brought to the device only while their layer runs."""

import copy

import pytest
import torch
from accelerate import cpu_offload
from torch import nn

from comera import TT, TTM, tensorize


@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_offloaded_layers_answer_as_before(bias):
    layers = [nn.Embedding(12, 16), nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 12, bias=bias)]
    layers[3].weight = layers[0].weight
    plan = {"0": TTM(ranks=4, order=2), "[12]": TT(ranks=4, order=2)}
    model = tensorize(nn.Sequential(*layers), plan)
    indices = torch.randint(0, 12, (5,))
    wanted = model(indices)
    preloaded = cpu_offload(copy.deepcopy(model), "cpu", preload_module_classes=["TiedTTMLinear"])
    assert preloaded[1].packed_cores.is_meta
    assert torch.equal(preloaded(indices), wanted)
    with pytest.raises(RuntimeError, match=r"the table of a tied output layer is offloaded while the layer runs; "):
        cpu_offload(copy.deepcopy(model), "cpu")(indices)
