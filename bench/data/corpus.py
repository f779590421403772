"""Interface of every source of sentences: rows, a name, the labels and a hash of their content."""

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

#: The classes of natural-language inference; a label is an index into this tuple.
LABELS = ("entailment", "neutral", "contradiction")


class DataError(ValueError):
    """Data that is missing or malformed; the message is one sentence for the user."""


class Pair(NamedTuple):
    """One example; ``label`` indexes the corpus's labels, and the hypothesis of a single sentence is empty."""

    premise: str
    hypothesis: str
    label: int


class Rows(Protocol):
    """Examples by position, so that a file need not be parsed before its rows are wanted."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Pair: ...


@dataclass(frozen=True)
class Corpus:
    """Training and validation examples. Two corpora are equal when name and content are."""

    name: str
    content_hash: str  # sha256 over the rows of both splits as stored
    train: Rows = field(compare=False, repr=False)
    validation: Rows = field(compare=False, repr=False)
    labels: tuple[str, ...] = LABELS

    def rows(self, split: str) -> Rows:
        """Return the rows of ``split``; an unknown split raises ValueError."""
        if split not in ("train", "validation"):
            raise ValueError(f"split is {split!r}; allowed: train, validation")
        return self.train if split == "train" else self.validation

    def check(self) -> None:
        """Read every row once, so that a malformed one raises :class:`DataError` now and not during training."""
        for rows in (self.train, self.validation):
            for index in range(len(rows)):
                rows[index]
