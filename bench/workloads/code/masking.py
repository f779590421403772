"""Masking of tokens that a model is to fill in, and their replacements (BERT's rule).

Of every row the same number of tokens is chosen, so that all batches have one shape: 15 % of its length. Of these, 80 %
are replaced by ``[MASK]``, 10 % by a random token, and 10 % stay. Everything is drawn from the numbers given, so the
arms of a comparison see the same.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from bench.protocol import Batch
from bench.workloads.code.tokens import FIRST_ID, MASK_ID

SHARE = 0.15  # of the tokens
MASKED, REPLACED = 0.8, 0.1  # of those chosen


def chosen_count(length: int) -> int:
    """Return how many tokens of a row of ``length`` are chosen.

    >>> [chosen_count(length) for length in (64, 128, 512)]
    [10, 19, 77]
    """
    return max(round(SHARE * length), 1)


def masked(rows: NDArray[np.integer], seed: Sequence[int], tokens: int) -> Batch:
    """Return a batch of rows (B, T): ``input_ids`` (B, T), ``positions`` and ``labels`` (B, K), all int64 on the CPU.

    Special tokens are chosen only where a row has too few others. ``tokens`` is the size of the vocabulary.

    >>> batch = masked(np.arange(3, 23)[None], (0, 7), 50)
    >>> batch["positions"].tolist(), batch["labels"].tolist()
    ([[0, 11, 14]], [[3, 14, 17]])
    >>> batch["input_ids"].gather(1, batch["positions"]).tolist()
    [[2, 14, 2]]
    """
    ids = rows.astype(np.int64)
    source = np.random.default_rng(seed)
    order = source.random(ids.shape) + (ids < FIRST_ID)
    count = chosen_count(ids.shape[1])
    positions = np.sort(np.argsort(order, axis=1, kind="stable")[:, :count], axis=1)
    labels = np.take_along_axis(ids, positions, 1)
    fate, random = source.random(labels.shape), source.integers(FIRST_ID, tokens, labels.shape)
    seen = np.where(fate < MASKED, MASK_ID, np.where(fate < MASKED + REPLACED, random, labels))
    np.put_along_axis(ids, positions, seen, 1)
    arrays = {"input_ids": ids, "positions": positions, "labels": labels}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
