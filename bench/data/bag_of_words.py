"""Linear model on bags of words: a text classifier that does not beat it has not used the word order."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

#: Strengths of regularisation that are tried, on a tenth of the training rows that is held out for it.
_STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0)


#: Words of each text, as numbers, and its label.
Rows = Sequence[tuple[Sequence[int], int]]


def answers(train: Rows, validation: Rows, width: int, seed: int = 0) -> NDArray[np.bool_]:
    """Return whether a logistic regression on which words a text has answers each validation row rightly.

    Args:
        train, validation: rows whose words are numbers below ``width``.
        width: how many words there are; words of different sentences of a pair are different words.
        seed: of the choice of rows on which the strength of regularisation is chosen.

    >>> rows = [([n % 2, 2 + n % 3], n % 2) for n in range(60)]
    >>> bool(answers(rows, rows[:10], width=5).all())
    True
    """
    from scipy.sparse import csr_array  # both take a second to import, and only a probe needs them
    from sklearn.linear_model import LogisticRegression

    def matrix(rows: Rows) -> csr_array:
        words = [sorted(set(found)) for found, _ in rows]
        ends = np.cumsum([0, *map(len, words)])
        columns = np.concatenate([np.asarray(one, dtype=np.int64) for one in words])
        return csr_array((np.ones(len(columns), np.float32), columns, ends), shape=(len(rows), width))

    features, labels = matrix(train), np.array([label for _, label in train])
    order = np.random.default_rng(seed).permutation(len(labels))
    held_out, kept = np.split(order, [max(len(order) // 10, 1)])

    def fitted(strength: float, rows: NDArray[np.int64]) -> LogisticRegression:
        return LogisticRegression(C=strength, max_iter=1000).fit(features[rows], labels[rows])

    scores = {one: fitted(one, kept).score(features[held_out], labels[held_out]) for one in _STRENGTHS}
    best = fitted(max(scores, key=lambda one: scores[one]), order)
    right: NDArray[np.bool_] = best.predict(matrix(validation)) == np.array([label for _, label in validation])
    return right
