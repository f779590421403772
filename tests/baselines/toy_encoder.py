"""A small encoder-like model with every role of target in it, and a learnable problem for it."""

import importlib
from typing import Any

import torch
from torch import nn
from torch.nn import functional

TARGETS = {
    "word": "embedding",
    "block.mix": "attention",
    "block.up": "feed_forward",
    "block.down": "feed_forward",
    "hidden": "classifier",
}
LINEARS = [name for name, role in TARGETS.items() if role != "embedding"]


class ToyEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(12, 8, padding_idx=0)
        self.block = nn.ModuleDict({"mix": nn.Linear(8, 8), "up": nn.Linear(8, 12), "down": nn.Linear(12, 8)})
        self.norm = nn.LayerNorm(8)
        self.hidden = nn.Linear(8, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.word(tokens)  # (B, S, D)
        x = x + self.block["mix"](x)
        x = self.norm(x + self.block["down"](functional.gelu(self.block["up"](x))))
        return self.out(torch.tanh(self.hidden(x.mean(1))))  # (B, 3)


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """The class is the rest of the token sum by 3: learnable, and not at once."""
    return functional.cross_entropy(model(tokens), tokens.sum(1) % 3)


def batch(seed: int = 0) -> torch.Tensor:
    return torch.randint(1, 12, (16, 3), generator=torch.Generator().manual_seed(seed))


#: Every arm as module, variant and settings that fit the toy. A new rival needs a line here, and all laws run on it.
ARMS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "apollo_mini": ("apollo_mini", "", {"update_gap": 7, "scale": 8.0}),
    "basis": ("basis", "", {"lr_coefficients": 1e-2}),
    "btt": ("btt", "", {"rank": 2, "lr_cores": 1e-2}),
    "dense": ("dense", "", {}),
    "dense_sparse": ("dense", "sparse", {}),
    "dense_adamw8bit": ("dense", "adamw8bit", {}),
    "dense_row_wise": ("dense", "row_wise", {}),
    "galore": ("galore", "", {"rank": 4, "update_gap": 7, "lr_projected": 4e-2}),
    "galore_per_layer": ("galore", "per_layer", {"rank": 4, "update_gap": 7, "lr_projected": 4e-2}),
    "galore_8bit": ("galore", "8bit", {"rank": 4, "update_gap": 7, "lr_projected": 4e-2}),
    "grouped": ("grouped", "", {"groups": 2, "lr_cores": 1e-2}),
    "hashing": ("hashing", "", {"table_ratio": 2.0}),
    "lora": ("lora", "", {"rank": 4, "alpha": 8.0, "lr_adapters": 1e-2}),
    "lte": ("lte", "", {"rank": 4, "heads": 4, "alpha": 8.0, "merge_every": 3, "lr_adapters": 1e-2}),
    "lte_reset": (
        "lte",
        "",
        {"rank": 4, "heads": 4, "alpha": 8.0, "merge_every": 3, "reset": True, "lr_adapters": 1e-2},
    ),
    "low_rank": ("low_rank", "", {"rank": 4, "embedding_rank": 4, "lr_factors": 1e-2}),
    "low_rank_lean": ("low_rank", "lean", {"rank": 4, "embedding_rank": 4, "lr_factors": 1e-2}),
    "low_rank_linear": ("low_rank", "linear", {"rank": 4, "lr_factors": 1e-2}),
    "quotient_remainder": ("quotient_remainder", "", {"table_ratio": 2.0}),
}


def all_arms() -> dict:
    """Build the arms; the learning rate is 0.01 unless the line says otherwise."""
    arms = {}
    for label, (name, variant, settings) in ARMS.items():
        module = importlib.import_module(f"baselines.{name}")
        arms[label] = module.build(module.Settings(**{"lr": 1e-2, **settings}), variant)
    return arms


def train(arm, model: nn.Module, optimizer: torch.optim.Optimizer, tokens: torch.Tensor, steps: range) -> list[float]:
    """The step every arm runs: loss, backward, optimizer, hook."""
    losses = []
    for step in steps:
        optimizer.zero_grad()
        loss = arm.objective(loss_of(model, tokens), model)
        loss.backward()
        optimizer.step()
        arm.after_step(model, optimizer, step)
        losses.append(loss.item())
    return losses
