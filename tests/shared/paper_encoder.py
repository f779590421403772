"""The paper's encoder without its numbers."""

import torch
from torch import nn

from bench.workloads.encoder import EncoderClassifier, EncoderSettings

#: Parameters of the dense model, and of what no method acts on: positions, segments, norms, biases, class scores.
DENSE, STAYS_DENSE = 66_957_315, 459_267


def paper_encoder() -> tuple[nn.Module, dict[str, str]]:
    """The model on the device ``meta``, and what methods act on, by role."""
    with torch.device("meta"):
        model = EncoderClassifier(EncoderSettings())
    roles = {name: name.split(".")[-2] for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    del roles["classifier.classes"]
    return model, {"embeddings.word": "embedding", **roles}
