"""WordPiece tokenisation of sentence pairs, as BERT (uncased) reads them: ``[CLS] premise [SEP] hypothesis [SEP]``.

A pair without a hypothesis is a single sentence: ``[CLS] sentence [SEP]``.

The vocabulary is BERT's own where ``COMERA_DATA/bert_vocab/vocab.txt`` is at hand and fits the model's table, and is
trained on the corpus otherwise. Text is split and cleaned in the same way in both cases.

Training in the ``tokenizers`` library gives other ids, and near the end of the vocabulary other tokens, every time it
runs: it numbers the characters in the order of a randomised hash table, and these numbers break ties between equally
frequent merges. :func:`train_vocabulary` therefore hands it the sorted characters as the first entries.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

# Batches are small: threads would gain little, and the library warns about every fork after it has used them.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from bench.core.reading import read_regular
from bench.data.corpus import Corpus, DataError
from bench.data.nli import DATA_VARIABLE

PADDING_ID = 0  # the first must have this id: the encoder's embedding keeps that row at zero
PADDING, UNKNOWN, START, SEPARATOR, MASK = SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
BERT_VOCABULARY_SIZE = 30_522  # size of BERT's uncased vocabulary, the paper's

#: Training is on the first so many pairs; more would change little and take long on full MNLI.
_TRAINING_PAIRS = 50_000


class PairTokenizer:
    """Turns sentence pairs into token ids under a fixed vocabulary; a token's id is its position there."""

    def __init__(self, vocabulary: Sequence[str]) -> None:
        self.vocabulary = tuple(vocabulary)
        self.vocabulary_hash = hashlib.sha256("\n".join(self.vocabulary).encode()).hexdigest()
        ids = {token: index for index, token in enumerate(self.vocabulary)}
        self._tokenizer = _bert_tokenizer(models.WordPiece(vocab=ids, unk_token=UNKNOWN))
        ends = ((SEPARATOR, ids[SEPARATOR]), (START, ids[START]))
        self._tokenizer.post_processor = processors.BertProcessing(*ends)

    def encode(self, pairs: Sequence[tuple[str, str]], length: int) -> list[tuple[list[int], list[int]]]:
        """Encode (premise, hypothesis) pairs as (token ids, token type ids), without padding.

        A pair longer than ``length`` tokens loses tokens from the end of the longer sentence.

        >>> tokenizer = PairTokenizer([*SPECIAL_TOKENS, "a", "cat"])
        >>> tokenizer.encode([("A cat", "a dog")], length=8)
        [([2, 5, 6, 3, 5, 1, 3], [0, 0, 0, 0, 1, 1, 1])]
        """
        self._tokenizer.enable_truncation(length, strategy="longest_first")
        texts = [pair if pair[1] else pair[0] for pair in pairs]
        return [(encoding.ids, encoding.type_ids) for encoding in self._tokenizer.encode_batch(texts)]


def _bert_tokenizer(model: models.WordPiece) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def find_vocabulary(
    corpus: Corpus, size: int = BERT_VOCABULARY_SIZE, environ: Mapping[str, str] = os.environ
) -> tuple[str, ...]:
    """Return BERT's vocabulary if it is present and has at most ``size`` tokens, else one trained on ``corpus``."""
    return bert_vocabulary(size, environ) or train_vocabulary(corpus, size)


def bert_vocabulary(size: int, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return BERT's vocabulary; empty if it is not present or has more than ``size`` tokens."""
    root = environ.get(DATA_VARIABLE, "")
    path = Path(root) / "bert_vocab" / "vocab.txt"
    found = read_vocabulary(path) if root and path.is_file() else ()
    return found if len(found) <= size else ()


def read_vocabulary(path: Path) -> tuple[str, ...]:
    """Read a vocabulary file, one token a line; raises :class:`DataError` for an unusable file."""
    try:
        text = read_regular(path).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error})") from None
    vocabulary = tuple(line.rstrip("\r") for line in text.rstrip("\n").split("\n"))
    if vocabulary[0] != PADDING:
        raise DataError(f"{path}, line 1: the token is {vocabulary[0]!r}; it must be {PADDING}")
    for token in (UNKNOWN, START, SEPARATOR):
        if token not in vocabulary:
            raise DataError(f"{path} lacks the token {token}; a vocabulary needs {', '.join(SPECIAL_TOKENS[:4])}")
    if len(set(vocabulary)) != len(vocabulary):
        token, times = Counter(vocabulary).most_common(1)[0]
        raise DataError(f"{path} holds the token {token!r} {times} times; every token must be there once")
    return vocabulary


@lru_cache(maxsize=4)
def train_vocabulary(corpus: Corpus, size: int = BERT_VOCABULARY_SIZE) -> tuple[str, ...]:
    """Train a WordPiece vocabulary of at most ``size`` tokens on the training split, equal in every process.

    A size that has no room for the corpus's characters raises DataError.
    """
    rows = corpus.rows("train")
    pairs = (rows[index] for index in range(min(len(rows), _TRAINING_PAIRS)))
    texts = [text for pair in pairs for text in pair[:2]]
    tokenizer = _bert_tokenizer(models.WordPiece(unk_token=UNKNOWN))
    alphabet = sorted(set(tokenizer.normalizer.normalize_str(" ".join(texts))) - {" "})
    first = [*SPECIAL_TOKENS, *alphabet, *(f"##{character}" for character in alphabet)]
    if len(first) > size:
        raise DataError(f"vocabulary is {size}; the characters of {corpus.name} alone need at least {len(first)}")
    # A merge makes a token of two; the library takes memory for all that it may make, and ends the process without it.
    size = min(size, len(first) + sum(map(len, texts)))
    trainer = trainers.WordPieceTrainer(vocab_size=size, min_frequency=2, show_progress=False, special_tokens=first)
    tokenizer.train_from_iterator(texts, trainer)
    ids: dict[str, int] = tokenizer.get_vocab()
    return tuple(sorted(ids, key=ids.__getitem__))
