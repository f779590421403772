"""Train steps of every method on the tiny workload, without dropout."""

import torch
from tiny import TinyWorkload

from bench.protocol.methods import build, checked_settings
from bench.step.train_step import TrainStep

#: Methods with what they do now and then falling due within ten steps.
ARMS = {
    "dense": ("dense", "", {"lr": 1e-3}),
    "comera": ("comera", "", {"ranks": 4, "table_ranks": 4, "lr_cores": 1e-3}),
    "lora": ("lora", "", {"rank": 4, "lr_adapters": 1e-3}),
    "low_rank": ("low_rank", "", {"rank": 4, "embedding_rank": 4, "lr_factors": 1e-3}),
    "galore": ("galore", "", {"rank": 4, "update_gap": 4, "lr_projected": 4e-3}),
    "lte": ("lte", "", {"rank": 4, "heads": 4, "merge_every": 4, "lr_adapters": 1e-3}),
    "lte, reset": ("lte", "", {"rank": 4, "heads": 4, "merge_every": 4, "reset": True}),
}

#: Rank-control entries fall to zero within three steps and are cut after the fourth and the eighth.
CUT = ("comera", "", {"ranks": 4, "table_ranks": 4, "lr_ranks": 0.33, "threshold": 0.2, "truncate_every": 4})


def a_step(arm, device="cpu", label=None, **toggles):
    """The step of an arm on ``device``, which it takes to be ``label``."""
    torch.manual_seed(0)
    name, variant, settings = arm
    workload, method = TinyWorkload(blocks=1, dropout=0.0), build(name, variant, checked_settings(name, settings))
    model = method.adapt(workload.build(), workload.targets()).to(device)
    optimizer = method.optimizer(model)
    return TrainStep(model, method, optimizer, workload.loss, "fp32", label or device, **toggles)


def batches(count, device="cpu"):
    source = TinyWorkload().batches("train", 8, 0, True)
    return [{name: tensor.to(device) for name, tensor in next(source).items()} for _ in range(count)]
