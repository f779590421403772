"""A trained model of text on disk: written with its settings, read again, and continuing a prompt."""

import dataclasses
import hashlib
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

#: The settings in which a model must agree with the one whose weights it starts from.
_SIZES = ("blocks", "width", "heads", "inner", "context", "tokens")


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


def start_of(folder: str, settings: TextSettings) -> tuple[dict[str, torch.Tensor], str]:
    """Return the weights of the dense model that :func:`save` wrote, by name, and a hash of them.

    ``folder`` has the model, or a folder with it and no other model. Raises ConfigError: it has none or several, one
    that is not dense, or one of other sizes than ``settings``; or ``folder`` is empty.
    """
    if not folder:
        raise ConfigError("start is empty; name the folder of a trained model, as in start=results/local/.models/text.")
    path = Path(folder).expanduser()
    within = [found.parent for found in sorted(path.glob(f"*/{SETTINGS}"))]
    if len(within) > 1:
        raise ConfigError(f"start is {folder}, which has {len(within)} models; name one: {within[0]}, for example.")
    model = load(within[0] if within else path)
    given = {name: getattr(model.settings, name) for name in _SIZES}
    if other := [name for name in _SIZES if given[name] != getattr(settings, name)]:
        words = " ".join(f"text.{'feed_forward' if name == 'inner' else name}={given[name]}" for name in other)
        raise ConfigError(f"start is {folder}, whose model has other sizes; give {words}.")
    weights = model.state_dict()
    if weights.keys() != CausalLanguageModel(model.settings, model.vocabulary).state_dict().keys():
        raise ConfigError(f"start is {folder}, whose model is not dense; train one by methods=[dense].")
    digest = hashlib.sha256()
    for name, values in sorted(weights.items()):
        digest.update(f"{name} {tuple(values.shape)}".encode() + values.numpy().tobytes())
    return weights, digest.hexdigest()


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
