"""The smallest workload and method with all parts: attention, dropout, layer_norm, embedding; fused AdamW."""

from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.first, self.second = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        shape = (*x.shape[:2], self.heads, -1)
        q, k, v = (linear(x).view(shape).transpose(1, 2) for linear in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(x.shape)
        x = self.norm_1(x + self.dropout(self.output(mixed)))
        return self.norm_2(x + self.dropout(self.second(F.gelu(self.first(x)))))


class Encoder(nn.Module):
    def __init__(self, rows: int, width: int, heads: int, blocks: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(rows, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(blocks))
        self.classes = nn.Linear(width, 3)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, mask)
        return self.classes(x[:, 0])


class TinyWorkload:
    """Tokens whose first one tells the label."""

    examples_per_epoch = 640

    def __init__(self, length=16, rows=50, width=32, heads=4, blocks=2, dropout=0.1, masked=True):
        self.length, self.rows, self.masked = length, rows, masked
        self.sizes = (rows, width, heads, blocks, dropout)

    def build(self):
        return Encoder(*self.sizes)

    def targets(self):
        roles = dict.fromkeys(("query", "key", "value", "output"), "attention")
        roles |= dict.fromkeys(("first", "second"), "feed_forward")
        blocks = self.sizes[3]
        return {"embedding": "embedding"} | {
            f"blocks.{i}.{n}": role for i in range(blocks) for n, role in roles.items()
        }

    def batches(self, split, batch_size, seed, static):  # noqa: ARG002
        random = torch.Generator().manual_seed(seed)
        while True:
            tokens = torch.randint(0, self.rows, (batch_size, self.length), generator=random)
            batch = {"tokens": tokens, "labels": tokens[:, 0] % 3}
            if self.masked:
                batch["mask"] = torch.ones(batch_size, self.length, dtype=torch.bool)
            yield batch

    def loss(self, model, batch):
        mask = batch["mask"][:, None, None, :] if self.masked else None
        return F.cross_entropy(model(batch["tokens"], mask), batch["labels"])

    def evaluate(self, model):  # noqa: ARG002
        return {}


class ModelWorkload(TinyWorkload):
    """Any model on one float input ``x``; the loss is the mean of its output."""

    def __init__(self, model, shape):
        self.model, self.shape = model, shape

    def build(self):
        return self.model()

    def targets(self):
        return {}

    def batches(self, split, batch_size, seed, static):  # noqa: ARG002
        while True:
            yield {"x": torch.zeros(batch_size, *self.shape)}

    def loss(self, model, batch):
        return model(batch["x"]).mean()


class TinyMethod:
    """Dense training with fused AdamW; it counts its hooks' calls."""

    capture, capture_reason = "whole_step", ""

    def __init__(self, lr=1e-3, events=()):
        self.lr, self.events, self.after_steps = lr, list(events), []

    def unsupported(self, cell):  # noqa: ARG002
        return None

    def adapt(self, model, targets):  # noqa: ARG002
        return model

    def optimizer(self, model):
        return torch.optim.AdamW(model.parameters(), lr=self.lr, fused=True)

    def objective(self, task_loss, model):  # noqa: ARG002
        return task_loss

    def after_step(self, model, optimizer, step):  # noqa: ARG002
        self.after_steps.append(step)
        return "nothing"

    def rare_events(self):
        return self.events

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass

    def stored_size(self, model):
        return sum(p.numel() * p.element_size() for p in model.parameters())


def rare_event(run, period_steps, offset_steps):
    return SimpleNamespace(name="rare", run=run, period_steps=period_steps, offset_steps=offset_steps)
