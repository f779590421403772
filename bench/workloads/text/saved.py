"""A trained model of text on disk: written with its settings, read again, and continuing a prompt."""

import dataclasses
import json
from pathlib import Path

import torch

from bench.core.files import write_whole
from bench.core.reading import loads, read_regular
from bench.errors import ConfigError
from bench.workloads.text.corpus import codec_of
from bench.workloads.text.model import CausalLanguageModel, TextSettings
from comera import load_pretrained, save_pretrained

SETTINGS = "text.json"


def save(model: CausalLanguageModel, folder: Path) -> None:
    """Write a model by :func:`comera.save_pretrained`, with its settings beside it."""
    save_pretrained(model, folder)
    settings = dataclasses.asdict(model.settings)
    if (tokenizer := Path(model.settings.tokens).expanduser()).is_file():
        settings["tokens"] = str(tokenizer.resolve())
    content = {"settings": settings, "vocabulary": model.vocabulary}
    write_whole({folder / SETTINGS: (json.dumps(content, indent=1) + "\n").encode()})


def load(folder: str | Path) -> CausalLanguageModel:
    """Return the model that :func:`save` wrote, for evaluation.

    Raises ConfigError: the folder has no such model. ValueError: as :func:`comera.load_pretrained`.
    """
    try:
        content = loads(read_regular(Path(folder) / SETTINGS).decode())
        model = CausalLanguageModel(TextSettings(**content["settings"]), content["vocabulary"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{folder} holds no model of text ({error}); name a folder that a training printed."
        ) from None
    load_pretrained(folder, model)
    return model.eval()


@torch.no_grad()
def continued(model: CausalLanguageModel, prompt: str, tokens: int = 200, seed: int = 0) -> str:
    """Return a prompt with so many further tokens, each drawn from what the model predicts.

    Raises ValueError: the prompt has no token.
    """
    codec = codec_of(model.settings.tokens)
    ids = codec.encode(prompt).tolist()
    if not ids:
        raise ValueError("prompt is empty; give at least one token.")
    generator = torch.Generator().manual_seed(seed)
    for _ in range(tokens):
        scores = model(torch.tensor([ids[-model.settings.context :]]))[0, -1]  # (V,)
        ids.append(int(torch.multinomial(scores.softmax(0), 1, generator=generator)))
    return codec.decode(ids)
