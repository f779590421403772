"""The workload ``encoder``: a BERT-shaped transformer encoder that classifies sentences or pairs of them.

At the default settings it is the six-encoder model of the paper, 66,957,315 parameters: 23,440,896 in the word
embedding, 43,057,152 in 37 linear weights (six in each block, one in the classifier), and 459,267 in positions,
segments, the class layer, LayerNorms and biases.

Shapes: B examples, T tokens, D width, H heads, C classes.
"""

import copy
import hashlib
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from itertools import chain
from typing import Annotated, Any, Self

import torch
from pydantic import Field
from torch import nn
from torch.nn import functional as F

from bench.core.checked import Allowed, Flag, Layers, Length, Rows, Width
from bench.core.identity import LATER
from bench.core.vocabulary import MNLI_TRAIN_ROWS, encoder_words
from bench.data.bag_of_words import answers
from bench.data.corpus import Corpus, Pair
from bench.data.nli import find_corpus
from bench.data.wordpiece import PADDING_ID, PairTokenizer, find_vocabulary
from bench.protocol import Batch, Data, Evaluation, Gated, Metric, Role, Words
from bench.workloads.base import BaseWorkload, check_batch_size
from comera.contraction.merging import autocast_type
from comera.dropout import Dropout

#: An epoch in Figs. 1, 7 and 12 is the paper's, all of MNLI, whatever data is at hand.
PAPER_EXAMPLES_PER_EPOCH = MNLI_TRAIN_ROWS

_LAYER_NORM_EPS = 1e-9
_INITIAL_STD = 0.02
_EVALUATION_BATCH = 64
_TOKENISED_TOGETHER = 4096  # rows that are handed to the tokenizer at a time
_POOLED_BATCHES = 64  # that are sorted by length together


@dataclass(frozen=True)
class EncoderSettings:
    """Sizes of the encoder. The defaults are the paper's.

    With ``pre_norm`` each sub-layer reads a normalised copy of its input, and a last LayerNorm follows the blocks.

    Raises ValueError: heads that do not divide the width, or sequences that are longer than there are positions.
    """

    layers: Layers = 6
    width: Width = 768
    heads: Width = 12
    feed_forward: Width = 3072
    vocabulary: Rows = 30522
    positions: Length = 512
    classes: Annotated[int, Field(ge=2, le=2**18), Allowed(f"whole numbers from 2 to {2**18:,}")] = 3
    dropout: Annotated[float, Field(ge=0, lt=1), Allowed("numbers from 0 to below 1")] = 0.1
    # The shortest sequence that can hold two sentences has a token of each between [CLS] and two [SEP].
    sequence_length: Annotated[int, Field(ge=5, le=2**20), Allowed(f"whole numbers from 5 to {2**20:,}")] = 128
    pre_norm: Flag = field(default=False, metadata=LATER)

    def __post_init__(self) -> None:
        if self.width % self.heads:
            divisors = ", ".join(str(number) for number in range(1, self.width + 1) if self.width % number == 0)
            raise ValueError(f"heads is {self.heads}; allowed: divisors of the width {self.width} ({divisors})")
        if self.sequence_length > self.positions:
            raise ValueError(f"sequence_length is {self.sequence_length}; allowed: 5 to positions ({self.positions})")


class Embeddings(nn.Module):
    """Sum of word, position and, with ``segments``, segment embedding, normalised."""

    def __init__(self, settings: EncoderSettings, segments: bool = True) -> None:
        super().__init__()
        self.word = nn.Embedding(settings.vocabulary, settings.width, padding_idx=PADDING_ID)
        self.position = nn.Embedding(settings.positions, settings.width)
        if segments:
            self.segment = nn.Embedding(2, settings.width)
        self.norm = nn.LayerNorm(settings.width, eps=_LAYER_NORM_EPS)
        self.dropout = Dropout(settings.dropout)

    def forward(self, input_ids: torch.Tensor, token_type_ids: torch.Tensor | None = None) -> torch.Tensor:
        places = torch.arange(input_ids.shape[1], device=input_ids.device)  # (T,)
        total = self.word(input_ids) + self.position(places)
        if token_type_ids is not None:
            total = total + self.segment(token_type_ids)
        return self.dropout(self.norm(total))  # (B, T, D)


class Attention(nn.Module):
    """Multi-head self-attention over the tokens that ``mask`` allows."""

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__()
        self.heads = settings.heads
        self.query, self.key, self.value, self.output = (nn.Linear(settings.width, settings.width) for _ in range(4))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        layers = (self.query, self.key, self.value)
        query, key, value = (layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in layers)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)  # (B, H, T, D/H)
        return self.output(mixed.transpose(1, 2).flatten(-2))  # (B, T, D)


class FeedForward(nn.Module):
    """Two linear maps with a GELU between them."""

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__()
        self.expand = nn.Linear(settings.width, settings.feed_forward)
        self.contract = nn.Linear(settings.feed_forward, settings.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.contract(F.gelu(self.expand(x)))


class Block(nn.Module):
    """An encoder block: each sub-layer's output is dropped out and added to the sub-layer's input.

    Post-LN normalises the sum. ``pre_norm`` normalises what the sub-layer reads instead.
    """

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__()
        self.pre_norm = settings.pre_norm
        self.attention = Attention(settings)
        self.attention_norm = nn.LayerNorm(settings.width, eps=_LAYER_NORM_EPS)
        self.feed_forward = FeedForward(settings)
        self.feed_forward_norm = nn.LayerNorm(settings.width, eps=_LAYER_NORM_EPS)
        self.dropout = Dropout(settings.dropout)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        if self.pre_norm:
            x = x + self.dropout(self.attention(self.attention_norm(x), mask))
            return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        x = self.attention_norm(x + self.dropout(self.attention(x, mask)))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))


def additive_mask(mask: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """Return a mask as numbers to add to scores, 0 where it is True, else -inf: once for all blocks.

    ``scaled_dot_product_attention`` would make the same numbers anew in each.

    >>> additive_mask(torch.tensor([True, False]), torch.bfloat16)
    tensor([0., -inf], dtype=torch.bfloat16)
    """
    return mask.to(kind).log_()


class Classifier(nn.Module):
    """Class scores from the first token: ``classes(tanh(hidden(x_CLS)))``."""

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__()
        self.hidden = nn.Linear(settings.width, settings.width)
        self.classes = nn.Linear(settings.width, settings.classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # A copy: as a view, the rows would keep all tokens of the last block alive for backward.
        return self.classes(torch.tanh(self.hidden(x[:, 0].contiguous())))


class Encoder(nn.Module):
    """Embeddings and blocks, followed by a last LayerNorm with ``pre_norm``; a subclass adds its head."""

    def __init__(self, settings: EncoderSettings, segments: bool = True) -> None:
        super().__init__()
        self.embeddings = Embeddings(settings, segments)
        self.blocks = nn.ModuleList(Block(settings) for _ in range(settings.layers))
        self.norm = nn.LayerNorm(settings.width, eps=_LAYER_NORM_EPS) if settings.pre_norm else None

    def encode(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Return the output (B, T, D) of the blocks on embedded tokens ``x`` (B, T, D).

        ``mask`` is True where attention may look; None: everywhere.
        """
        if mask is not None:
            mask = additive_mask(mask, autocast_type(x.device.type) or x.dtype)
        for block in self.blocks:
            x = block(x, mask)
        return x if self.norm is None else self.norm(x)


class EncoderClassifier(Encoder):
    """The dense model.

    Dropout acts after the embeddings and after each sub-layer, not on the attention probabilities: without it,
    ``scaled_dot_product_attention`` can take a fused kernel on every device, and all arms do the same arithmetic.
    Embeddings and linear weights start from N(0, 0.02²), biases at zero and LayerNorms as the identity, as in BERT; the
    draws come from torch's global generator, so seed it first. Positions are added to padded places as well; nothing
    attends to them.

    >>> model = EncoderClassifier(EncoderSettings(layers=1, width=8, heads=2, feed_forward=16, vocabulary=50))
    >>> ids = torch.tensor([[2, 7, 3, 9, 3, 0]])
    >>> model(ids, ids != 0, torch.tensor([[0, 0, 0, 1, 1, 0]])).shape
    torch.Size([1, 3])
    """

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__(settings)
        self.classifier = Classifier(settings)
        self.apply(initialise)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> torch.Tensor:
        """Return class scores (B, C) of ``input_ids`` (B, T); ``attention_mask`` (B, T) is True at real tokens."""
        positions = self.embeddings.position.num_embeddings
        if input_ids.shape[1] > positions:
            raise ValueError(f"the sequence has {input_ids.shape[1]} tokens; the model has positions for {positions}")
        mask = attention_mask.bool()[:, None, None, :]  # (B, 1, 1, T): the same for all heads and queries
        return self.classifier(self.encode(self.embeddings(input_ids, token_type_ids), mask))


@torch.no_grad()
def initialise(module: nn.Module, std: float = _INITIAL_STD) -> None:
    """Start a layer as BERT does: weights from N(0, std²), biases and the padding row at zero."""
    if isinstance(module, nn.Linear | nn.Embedding):
        module.weight.normal_(std=std)
    if isinstance(module, nn.Linear):
        module.bias.zero_()
    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
        module.weight[module.padding_idx].zero_()


def block_targets(layers: int) -> dict[str, Role]:
    """Return the six matrices of each block by name, in the order of the forward pass."""
    attention, feed_forward = ("query", "key", "value", "output"), ("expand", "contract")
    roles: dict[str, Role] = {f"attention.{name}": "attention" for name in attention}
    roles |= {f"feed_forward.{name}": "feed_forward" for name in feed_forward}
    return {f"blocks.{number}.{name}": role for number in range(layers) for name, role in roles.items()}


#: Token ids of one row, how many of them belong to the first sentence, and the label.
EncodedRow = tuple["array[int]", int, int]


class EncoderWorkload(BaseWorkload):
    """BERT-shaped encoder that classifies sentences or pairs of them.

    Static batches are tokenised when they are asked for; a workload that is held on a device keeps their rows there.
    Batches of varying length need the length of every row, so the first of them tokenises the whole split, which is
    then kept.
    """

    name, Settings, section, from_data = "encoder", EncoderSettings, "model", ("classes",)
    gated = (Gated("encoder", EncoderSettings(), (1, 32), dataset="synthetic"),)
    examples_per_epoch: int | None = PAPER_EXAMPLES_PER_EPOCH
    loss_unit = "nats"

    def __init__(self, settings: EncoderSettings, corpus: Corpus, tokenizer: PairTokenizer) -> None:
        if settings.classes < len(corpus.labels):
            labels = ", ".join(corpus.labels)
            raise ValueError(f"classes is {settings.classes}; the labels {labels} need at least {len(corpus.labels)}")
        if len(tokenizer.vocabulary) > settings.vocabulary:
            least = len(tokenizer.vocabulary)
            raise ValueError(f"vocabulary is {settings.vocabulary}; the tokenizer needs at least {least}")
        self.settings, self.corpus, self.tokenizer, self.dataset = settings, corpus, tokenizer, corpus.name
        self._encoded: dict[str, list[EncodedRow]] = {}
        self._device: str | None = None  # on which rows of static batches are held
        self._held: dict[str, tuple[torch.Tensor, set[int]]] = {}  # by split, with the places of those that are there
        parts = (corpus.content_hash, tokenizer.vocabulary_hash, str(settings.sequence_length))
        self.data_hash = hashlib.sha256("\n".join(parts).encode()).hexdigest()
        self.training_examples = len(corpus.train)
        self.sequence_length = settings.sequence_length
        words = encoder_words(corpus.name, settings.layers, settings.classes)
        self.metric = Metric(**words["metric"])
        self.words = Words(words["model"], words["epoch"], words["example"])

    @classmethod
    def settings_of(cls, data: Data) -> dict[str, Any]:
        """Return the settings with as many classes as the data has labels."""
        corpus = find_corpus(data.dataset, data.data_folder, data.fetch, check=False)
        return {"classes": len(corpus.labels)}

    @classmethod
    def open(cls, settings: EncoderSettings, data: Data, check: bool, environ: Mapping[str, str] = os.environ) -> Self:
        """Return the workload on the data of :func:`bench.data.nli.find_corpus`, and the vocabulary that fits."""
        corpus = find_corpus(data.dataset, data.data_folder, data.fetch, environ, check)
        return cls(settings, corpus, PairTokenizer(find_vocabulary(corpus, settings.vocabulary, environ)))

    def build(self) -> EncoderClassifier:
        return EncoderClassifier(self.settings)

    def targets(self) -> dict[str, Role]:
        """Return the word embedding and the linear weights that methods act on, in the order of the forward pass."""
        return {
            "embeddings.word": "embedding",
            **block_targets(self.settings.layers),
            "classifier.hidden": "classifier",
        }

    def batches(self, split: str, batch_size: int, seed: int, static: bool, start: int = 0) -> Iterator[Batch]:
        """Yield ``split`` ("train" or "validation") once as CPU tensors, or on the device that holds the workload.

        ``input_ids`` and ``token_type_ids`` are int64 (B, T), ``attention_mask`` is bool (B, T), True at real tokens,
        and ``labels`` int64 (B,). Training rows are shuffled by ``seed`` (give each epoch its own), validation rows
        come in order. With ``static`` every batch is padded to the sequence length and a last training batch that is
        not full is dropped, so that all shapes are equal. Otherwise a batch is padded to its longest row, no row is
        left out, and training batches are bucketed: rows of similar length come together, in random order. Validation
        always has every row. Batches before number ``start`` cost nothing.
        """
        rows = self.corpus.rows(split)
        check_batch_size(batch_size)
        if static and split == "train" and batch_size > len(rows):
            raise ValueError(f"batch_size is {batch_size}; allowed: 1 to the {len(rows)} training rows")
        chunks: Sequence[Sequence[int]] = _in_order(rows, batch_size)
        if not static:
            encoded = self._encode(split)
            if split == "train":
                chunks = _bucketed([len(ids) for ids, _, _ in encoded], batch_size, seed)
            return (self._pad([encoded[index] for index in chunk]) for chunk in chunks[start:])
        if split == "train":
            order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed)).tolist()
            chunks = [order[i : i + batch_size] for i in range(0, len(rows) - batch_size + 1, batch_size)]
        if self._device is not None:
            return (self._gathered(split, chunk) for chunk in chunks[start:])
        length = self.settings.sequence_length
        return (self._pad(self._tokenise([rows[index] for index in chunk]), length) for chunk in chunks[start:])

    def held_on(self, device: str) -> Self:
        """Return the workload with the rows of static batches on a device: each is tokenised once, then gathered."""
        held = copy.copy(self)
        held._device, held._held = device, {}
        return held

    def _gathered(self, split: str, chunk: Sequence[int]) -> Batch:
        """Return a static batch of the rows at these places, on the device that holds them."""
        rows, length = self.corpus.rows(split), self.settings.sequence_length
        if split not in self._held:
            self._held[split] = torch.zeros(len(rows), 3 + length, dtype=torch.int32, device=self._device), set()
        packed, known = self._held[split]
        if missing := [place for place in chunk if place not in known]:
            encoded = self._tokenise([rows[place] for place in missing])
            packed[torch.tensor(missing, device=self._device)] = _packed(encoded, length).to(packed)
            known.update(missing)
        return _unpacked(packed[torch.tensor(chunk, device=self._device)])

    def _tokenise(self, pairs: Sequence[Pair]) -> list[EncodedRow]:
        encoded = self.tokenizer.encode([pair[:2] for pair in pairs], self.settings.sequence_length)
        rows = zip(encoded, pairs, strict=True)
        return [(array("i", ids), types.count(0), pair.label) for (ids, types), pair in rows]

    def _encode(self, split: str) -> list[EncodedRow]:
        """Encode all rows of a split."""
        if split not in self._encoded:
            rows = self.corpus.rows(split)
            parts = (self._tokenise([rows[index] for index in chunk]) for chunk in _in_order(rows, _TOKENISED_TOGETHER))
            self._encoded[split] = list(chain.from_iterable(parts))
        return self._encoded[split]

    @staticmethod
    def _pad(rows: Sequence[EncodedRow], length: int | None = None) -> Batch:
        """Return a batch of these rows, padded to ``length`` or to the longest of them."""
        return _unpacked(_packed(rows, length or max(len(ids) for ids, _, _ in rows)))

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Mean cross entropy of a batch that lies on the model's device."""
        return F.cross_entropy(_scores(model, batch), batch["labels"])

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> Evaluation:
        """Return ``accuracy`` in percent, mean ``loss``, and whether each row was answered rightly; the mode stays."""
        device = next(model.parameters()).device
        encoded = self._encode("validation")
        # Rows of similar length together; the order changes neither the answers nor, but for rounding, their mean.
        order = torch.tensor([len(ids) for ids, _, _ in encoded]).argsort(stable=True).tolist()
        right, loss = [False] * len(order), 0.0
        was_training = model.training
        model.eval()
        try:
            for chunk in (order[i : i + _EVALUATION_BATCH] for i in range(0, len(order), _EVALUATION_BATCH)):
                batch = {name: tensor.to(device) for name, tensor in self._pad([encoded[row] for row in chunk]).items()}
                scores, labels = _scores(model, batch).float(), batch["labels"]
                loss += F.cross_entropy(scores, labels, reduction="sum").item()
                for row, answer in zip(chunk, (scores.argmax(-1) == labels).tolist(), strict=True):
                    right[row] = answer
        finally:
            model.train(was_training)
        return Evaluation({"accuracy": 100 * sum(right) / len(right), "loss": loss / len(right)}, right)

    def probes(self) -> dict[str, Evaluation]:
        """Return linear models on bags of words: of all sentences, and of the second one of a pair alone.

        In the bag of a pair the words of its second sentence are told apart by whether the first one has them too.
        """
        train, validation = self._encode("train"), self._encode("validation")
        width = len(self.tokenizer.vocabulary)

        def bag(ids: Sequence[int], first: int) -> list[int]:
            shared = set(ids[:first])
            return [*shared, *((2 if word in shared else 1) * width + word for word in ids[first:])]

        def second(ids: Sequence[int], first: int) -> list[int]:
            return list(ids[first:])

        paired = any(len(ids) > first for ids, first, _ in validation)
        bags = {"bag of words": bag, **({"bag of words of the second sentence": second} if paired else {})}
        found = {}
        for name, words in bags.items():
            fitted, tried = ([(words(ids, first), label) for ids, first, label in rows] for rows in (train, validation))
            right = answers(fitted, tried, 3 * width)
            found[name] = Evaluation({"accuracy": 100 * float(right.mean())}, right.tolist())
        return found


def _packed(rows: Sequence[EncodedRow], length: int) -> torch.Tensor:
    """Return rows as integers (B, 3 + T): number of tokens, of those in the first sentence, label, padded tokens."""
    return torch.tensor(
        [[len(ids), first, label, *ids, *[PADDING_ID] * (length - len(ids))] for ids, first, label in rows]
    )


def _unpacked(packed: torch.Tensor) -> Batch:
    """Return the batch of rows from :func:`_packed`, on their device."""
    lengths, firsts, labels, ids = packed.long().split([1, 1, 1, packed.shape[1] - 3], dim=1)
    places = torch.arange(ids.shape[1], device=packed.device)  # (T,)
    mask = places < lengths
    return {  # no views: a step that keeps one for backward would keep all packed rows
        "input_ids": ids.clone(memory_format=torch.contiguous_format),
        "attention_mask": mask,
        "token_type_ids": (mask & (places >= firsts)).long(),
        "labels": labels.flatten().clone(),
    }


def _in_order(rows: Sized, batch_size: int) -> list[range]:
    return [range(i, min(i + batch_size, len(rows))) for i in range(0, len(rows), batch_size)]


def _bucketed(lengths: Sequence[int], batch_size: int, seed: int) -> list[list[int]]:
    """Yield random batches of rows of similar length: shuffle, sort within pools of many batches, shuffle batches."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(lengths), generator=generator).tolist()
    pool = batch_size * _POOLED_BATCHES
    pools = [sorted(order[i : i + pool], key=lengths.__getitem__) for i in range(0, len(order), pool)]
    batches = [rows[i : i + batch_size] for rows in pools for i in range(0, len(rows), batch_size)]
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


def _scores(model: nn.Module, batch: Batch) -> torch.Tensor:
    return model(batch["input_ids"], batch["attention_mask"], batch["token_type_ids"])


WORKLOAD = EncoderWorkload
