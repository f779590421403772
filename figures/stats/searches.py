"""Trainings whose rate was searched: what each arm was tried at, which rate was chosen, what seeds reached with it.

A rate is chosen by the loss on the data for choosing, of the seed that has most rates; what is reported is the loss on
data that nothing was chosen by, at the chosen rate, over all seeds.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from figures import frame
from figures.arms import DENSE
from figures.stats.seeds import with_estimates
from figures.stats.sizes import TOLERANCE
from figures.text import significant
from figures.times import ratios
from figures.times import steps as step_times

#: The metric that nothing is chosen by.
REPORTED = "test_loss"

#: So many seeds at least on either side let a difference be told from chance.
ENOUGH_SEEDS = 3

#: The share of pages without any difference on which one may be called sure.
LEVEL = 0.05

#: The columns of an arm that was searched.
_SLOT = ["arm", "optimizer", "ratio"]

#: The settings of arms that are part of their names, where they are given: how blocks are cut, and the share of dense's
#: blocks.
_NAMED = {"btt": ("rank", "depth"), "grouped": ("groups", "depth"), "dense:small": ("depth",)}

#: The columns of its training that a line has.
_SIZES = (
    *("parameters", "stored_mib", "train_steps", "peak_memory_predicted_mib"),
    *("tensorized_mib", "size_fraction", "size_target"),
)

#: The columns that are equal for all trainings of a page: model, data, length, clipping.
_SHARED = (
    *(*frame.MODEL, "data_hash", "batch_size", "precision", "stages.*"),
    *("training.schedule.*", "training.recipe.clip"),
)

#: And those of trainings by a recipe: it is equal but for optimizer and rates.
SETTING = (
    *(*_SHARED, "training.recipe.*"),
    *(f"!training.recipe.{name}" for name in ("optimizer", "lr", "momentum", "per_core")),
)

#: The name in recipes of the optimizer that an arm brings along.
OWN = "own"


def _by_slot(df: pd.DataFrame) -> pd.DataFrame:
    """Return trainings, or timed steps, with the arm, optimizer and ratio that they are of; dense has no ratio.

    Arms under comparison differ in no other setting of their own than those of :data:`_NAMED` and whose rate a core
    has, which are part of their names. A step timed beside others has the ratio of their job.
    """
    per_core = frame.column(df, "training.recipe.per_core", False).astype(bool)
    settings = pd.Series("", df.index, dtype=object)
    for arm, name in [(arm, name) for arm, names in _NAMED.items() for name in names]:
        own = frame.column(df, f"method.{name}").where(df["arm"] == arm)
        settings += pd.Series([f" {name} {one:.3g}" if pd.notna(one) else "" for one in own], df.index, dtype=object)
    return df.assign(
        arm=df["arm"] + settings + per_core.map({True: ", rates per core", False: ""}),
        optimizer=frame.column(df, "training.recipe.optimizer", ""),
        ratio=df["ratio"].where(df["arm"] != DENSE),
    )


def _rates(runs: pd.DataFrame) -> pd.Series:
    """Return the rate of the matrices: the recipe's, or the first among the settings of an arm with its own optimizer.

    That of rank-control entries is none of these.
    """
    rate = pd.to_numeric(frame.column(runs, "training.recipe.lr"), errors="coerce")
    is_own = frame.column(runs, "training.recipe.optimizer") == OWN
    for name in (*frame.matching(runs, ["method.lr_*", "!method.lr_ranks", "!method.lr_dense"]), "method.lr"):
        rate = rate.where(rate.notna() | ~is_own, pd.to_numeric(frame.column(runs, name), errors="coerce"))
    return rate


def searched(runs: pd.DataFrame, timed: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return a line per arm, optimizer and ratio at the chosen rate, in the order of their first trainings.

    ``run`` is the training of the searched seed, ``rates`` are those tried; ``timed`` may have the step of some, which
    is also given over that of dense in the same job.
    ``start_loss`` is that before the first step of trainings that start from trained weights.
    ``chosen`` has the labels in ``runs`` of one training per seed at the chosen rate, or at any where none ended well.
    """
    df = _by_slot(runs).assign(
        rate=_rates(runs),
        depth=frame.column(runs, "method.depth", 1.0).fillna(1.0),
        groups=pd.to_numeric(frame.column(runs, "method.groups"), errors="coerce"),
        reported=[metrics.get(REPORTED) for metrics in runs["metrics"]],
        begun=frame.column(runs, "samples.start").map(lambda start: (start or {}).get(REPORTED)),
        chosen_by=runs["training"].map(lambda run: run.leading if run.status == "ok" else None),
    )
    used = [*_SLOT, "rate", "seed", "depth", "groups", "reported", "begun", "chosen_by", "training", *_SIZES]
    lines = []
    for slot, every in df[used].groupby(_SLOT, sort=False, dropna=False):  # of hundreds of columns
        tried = every.dropna(subset="rate").drop_duplicates(["rate", "seed"], keep="last")
        most = tried[tried["seed"] == tried["seed"].mode().min()].sort_values("rate")  # of the seed with most rates
        best = most.dropna(subset="chosen_by").sort_values("chosen_by", kind="stable").head(1)
        chosen = tried[tried["rate"].isin(best["rate"])] if len(best) else tried.drop_duplicates("seed", keep="last")
        reached = chosen["reported"].dropna()
        at_edge = best["rate"].isin(most["rate"].agg(["min", "max"])).any()
        remarks = ["best rate at an edge of those tried"] if at_edge else []
        if len(reached) < ENOUGH_SEEDS:
            remarks.append(f"{len(reached)} seed{'s' * (len(reached) != 1)}")
        line = {
            "run": next(iter(best["training"]), None),
            "chosen": tuple(chosen.index),
            "rates": list(most["rate"]),
            "lr": best["rate"].min(),
            "chosen_by": best["chosen_by"].min(),
            "depth": best["depth"].min(),
            "groups": best["groups"].min(),
            "at_edge": at_edge,
            "start_loss": pd.to_numeric(chosen["begun"]).mean(),
            "test_loss": reached.mean(),
            "test_loss_low": reached.min(),
            "test_loss_high": reached.max(),
            "seeds": len(reached),
            "losses": tuple(reached),
            "remarks": "; ".join(remarks) if len(best) else "no training ended well",
        }
        line |= {name: next(iter(best[name]), None) for name in _SIZES}
        lines.append({**dict(zip(_SLOT, slot, strict=True)), **line})
    found = pd.DataFrame(lines).astype({"parameters": "Int64", "train_steps": "Int64"})
    if timed is None:
        return found
    steps = _by_slot(timed).assign(job=timed["ratio"])
    beside = steps[steps["arm"] == DENSE].drop_duplicates(["optimizer", "job"], keep="last")
    steps = steps.merge(beside[["optimizer", "job", "times"]], "left", ["optimizer", "job"], suffixes=("", "_dense"))
    steps = steps.drop_duplicates(_SLOT, keep="last", ignore_index=True)
    over = ratios(steps["times"], steps["times_dense"].where(steps["arm"] != DENSE))
    steps = with_estimates(steps[[*_SLOT, "cell_id", "times"]], {"step_over_dense": over})
    values: Any = [step and step.value for step in step_times(steps["times"])]
    steps = steps.assign(step_time_ms=values)
    found = found.merge(steps.drop(columns="times"), "left", _SLOT)
    return found.assign(training_s=found["step_time_ms"].astype(float) * found["train_steps"].astype(float) / 1e3)


def against(lines: pd.DataFrame, rivals: pd.DataFrame, on: list[str], same_size: bool = True) -> pd.DataFrame:
    """Return how far the losses of lines are apart from the first rival that is alike ``on`` some columns.

    Args:
        lines, rivals: lines of searches; what has no rival, or is its own, is left out.
        on: the columns that are equal.
        same_size: whether the parameters are too, within 2 %.

    Returns:
        ``apart``, the difference; ``rival``, the label of the rival's line; ``beside``: ``below`` or ``above`` where
        all seeds of one are, three or more a side, else ``mixed``; ``seeds``; ``p``, the probability of so great a
        difference by chance, of :func:`chance`, and ``least_p``, the least that so many seeds can give.
        :func:`with_sure` says which are sure, :func:`worded` puts them in words.
    """
    pairs = lines.reset_index().merge(rivals.reset_index(), on=on, suffixes=("", "_rival"))
    sizes = (pairs["parameters"] / pairs["parameters_rival"]).astype(float)
    pairs = pairs[((sizes - 1).abs() <= TOLERANCE) | (not same_size)]
    pairs = pairs.drop_duplicates("index").set_index("index")
    pairs = pairs[pairs.index != pairs["index_rival"]]
    pairs = pairs.dropna(subset=["test_loss", "test_loss_rival"])
    is_probe = pairs["seeds_rival"].isna()  # one number, which is known
    enough = (pairs["seeds"] >= ENOUGH_SEEDS) & (is_probe | (pairs["seeds_rival"] >= ENOUGH_SEEDS))
    below = enough & (pairs["test_loss_high"] < pairs["losses_rival"].map(min))
    above = enough & (pairs["test_loss_low"] > pairs["losses_rival"].map(max))
    counts = [(len(one.losses), len(one.losses_rival)) for one in frame.each(pairs)]
    found = {
        "apart": pairs["test_loss"] - pairs["test_loss_rival"],
        "rival": pairs["index_rival"],
        "beside": np.select([below, above], ["below", "above"], "mixed"),
        "seeds": pairs["seeds"],
        "p": [
            chance(one.losses, one.losses_rival) if ok else 1.0
            for ok, one in zip(enough, frame.each(pairs), strict=True)
        ],
        "least_p": [least_chance(*count) if ok else 1.0 for ok, count in zip(enough, counts, strict=True)],
    }
    return pd.DataFrame(found, index=pairs.index)


def chance(losses: Sequence[float], rivals: Sequence[float]) -> float:
    """Return the two-sided probability of so great a difference of means by chance, by an exact permutation test.

    A single rival is a number that is known: then the signs of the differences to it are permuted. With three seeds a
    side it is 0.1 at least, so that no difference of three seeds can be sure.

    >>> chance([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])
    0.1
    >>> chance([1.0, 2.0, 3.0], [4.0])
    0.25
    """
    return _chance(tuple(losses), tuple(rivals))


@functools.lru_cache(maxsize=4096)  # several pages, and the documents, compare the same trainings
def _chance(losses: tuple[float, ...], rivals: tuple[float, ...]) -> float:
    from scipy.stats import permutation_test  # takes a second to import

    if len(rivals) == 1:
        samples, kind = (np.subtract(losses, rivals[0]),), "samples"
        return float(permutation_test(samples, np.mean, permutation_type=kind, vectorized=True).pvalue)

    def apart(one: Any, other: Any, axis: int) -> Any:
        return np.mean(one, axis=axis) - np.mean(other, axis=axis)

    return float(permutation_test((losses, rivals), apart, permutation_type="independent", vectorized=True).pvalue)


def least_chance(losses: int, rivals: int) -> float:
    """Return the least value that :func:`chance` has for so many losses, where each is below each of the rivals.

    >>> least_chance(3, 3), least_chance(3, 1)
    (0.1, 0.25)
    """
    return 2 / 2**losses if rivals == 1 else 2 / math.comb(losses + rivals, losses)


def are_sure(probabilities: Sequence[float], least: Sequence[float]) -> list[bool]:
    """Return which of all comparisons of a page are sure, at :data:`LEVEL` with Holm's correction.

    The correction counts the comparisons that could be sure at all. Which could, follows from the ``least`` values that
    their seeds allow, not from losses (Tarone, Biometrics 46, 1990): pairs of three seeds, whose probability is 0.1 at
    least, do not stand in the way of one with six.

    >>> are_sure([0.04, 0.001, 0.03], [0.0, 0.0, 0.0])
    [False, True, False]
    >>> are_sure([0.1, 0.002], [0.1, 0.002])
    [False, True]
    """
    allowed = np.asarray(least, dtype=float)
    count = next(n for n in range(1, len(allowed) + 2) if (allowed <= LEVEL / n).sum() <= n)
    counted = np.flatnonzero(allowed <= LEVEL / count)
    sure, left = [False] * len(allowed), len(counted)
    for place in sorted(map(int, counted), key=lambda place: probabilities[place]):
        if probabilities[place] * left > LEVEL:
            break
        sure[place], left = True, left - 1
    return sure


def with_sure(*comparisons: pd.DataFrame) -> list[pd.DataFrame]:
    """Return all comparisons of a page (:func:`against`) with a column ``sure`` (:func:`are_sure`)."""
    every = pd.concat(comparisons)
    sure = iter(are_sure(list(every["p"]), list(every["least_p"])))
    return [found.assign(sure=[next(sure) for _ in found.index]) for found in comparisons]


def worded(comparison: pd.DataFrame) -> pd.Series:
    """Return the differences of a comparison of :func:`with_sure` in words: how great, and how they stand."""
    return pd.Series([_words(one) for one in frame.each(comparison)], comparison.index, dtype=object)


def _words(one: Any) -> str:
    apart = f"{'-' if one.apart < 0 else '+'}{significant(abs(one.apart))}"
    if one.sure:
        return f"{apart} (sure)"
    return apart if one.beside == "mixed" else f"{apart} ({one.seeds} of {one.seeds} {one.beside})"


def comparable(df: pd.DataFrame, what: str) -> tuple[pd.DataFrame, list[str]]:
    """Return the newest training of each cell of one setting, oldest first, and sentences on those left out.

    Sentences call the trainings ``what``. Arms with an optimizer of their own share what is no part of the recipe.
    """
    is_own = frame.column(df, "training.recipe.optimizer") == OWN
    kept, left_out = frame.narrow(df[~is_own], SETTING, ["cell_id"], what)
    if is_own.any():
        like = next(iter(frame.settings(kept, _SHARED)), None)
        theirs, more = frame.narrow(df[is_own], _SHARED, ["cell_id"], what, like)
        kept, left_out = pd.concat([kept, theirs]), [*left_out, *more]
    return frame.oldest_first(frame.newest(kept, ["cell_id"])), left_out
