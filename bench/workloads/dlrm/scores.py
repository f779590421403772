"""Scores of click predictions: accuracy, area under the curve, log loss, normalised cross entropy; and a probe."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]
Clicks = NDArray[np.bool_]

#: Held-out lines go into so many groups of equal size, whose metrics tell how much those of all lines may vary.
_GROUPS, _LEAST = 50, 500  # and how many lines make a group, at least


def log_losses(scores: Scores, clicks: Clicks) -> Scores:
    """Return the binary cross entropy of every line, in nats, from logits.

    >>> log_losses(np.array([0.0, 2.0]), np.array([True, False])).round(3).tolist()
    [0.693, 2.127]
    """
    return np.logaddexp(0.0, np.where(clicks, -scores, scores))


def base_entropy(clicks: Clicks) -> float:
    """Log loss of the base rate: the entropy of the share of clicks, in nats; raises ValueError where all are alike."""
    share = float(clicks.mean())
    if not 0 < share < 1:
        raise ValueError(f"{share:.0%} of {clicks.size:,} lines are clicks, so that no metric is defined")
    return float(-share * np.log(share) - (1 - share) * np.log1p(-share))


def metrics(scores: Scores, clicks: Clicks) -> dict[str, float]:
    """Return ``nce``, the log loss over the base rate's; ``accuracy`` in percent, ``auc`` and ``log_loss``.

    Normalised cross entropy: He et al., Practical Lessons from Predicting Clicks on Ads at Facebook (2014), section 3.

    >>> found = metrics(np.array([2.0, 1.0, -1.0, -2.0]), np.array([True, False, True, False]))
    >>> found["accuracy"], found["auc"], round(found["nce"], 3)
    (50.0, 0.75, 1.039)
    """
    from sklearn.metrics import roc_auc_score  # slow to import, and not needed where steps are timed

    if not np.isfinite(scores).all():  # after training that has diverged
        return dict.fromkeys(("nce", "accuracy", "auc", "log_loss"), float("nan"))
    loss = float(log_losses(scores, clicks).mean())
    return {
        "nce": loss / base_entropy(clicks),
        "accuracy": 100 * float(((scores > 0) == clicks).mean()),
        "auc": float(roc_auc_score(clicks, scores)),
        "log_loss": loss,
    }


def groups(scores: Scores, clicks: Clicks) -> dict[str, list[float]]:
    """Return the metrics of each of up to 50 groups of consecutive lines; empty where lines are too few for ten groups.

    The log loss of every group is normalised by the base rate of all lines, so that groups of one size have ``nce`` as
    their mean.
    """
    number = min(_GROUPS, clicks.size // _LEAST)
    if number < 10:
        return {}
    size, entropy = clicks.size // number, base_entropy(clicks)
    found: dict[str, list[float]] = {}
    for place in range(0, number * size, size):
        part = slice(place, place + size)
        one = metrics(scores[part], clicks[part])
        for name, value in {**one, "nce": one["log_loss"] / entropy}.items():
            found.setdefault(name, []).append(value)
    return found


def probe(train: tuple[Any, Clicks], validation: tuple[Any, Clicks]) -> dict[str, float]:
    """Fit a logistic regression on the counts (lines, 13) and score it on the validation lines; both must have clicks.

    >>> source = np.random.default_rng(0)
    >>> counts = source.normal(size=(400, 13)); clicks = counts[:, 0] + source.normal(size=400) > 0
    >>> probe((counts[:200], clicks[:200]), (counts[200:], clicks[200:]))["auc"] > 0.7
    True
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=200)).fit(*train)
    return metrics(model.decision_function(validation[0]), validation[1])
