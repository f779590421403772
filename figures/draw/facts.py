"""Facts that captions state about a page, as values; the sentences are in the templates."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import pandas as pd

from bench.core.intervals import MIN_LAUNCHES
from bench.core.samples import BUSY, Machine, slowdown_of
from figures.arms import by_arm
from figures.columns import bounds_kinds
from figures.frame import Page, each
from figures.stats.time_values import PAPER_EXAMPLES
from figures.text import one_line
from figures.times import known


def listed(page: Page, column: str) -> str:
    """Return the distinct values of a column of the page's records, empty ones apart."""
    return ", ".join(str(value) for value in page.values(column) if value != "")


def days(page: Page) -> str:
    """Return the first and the last day on which its records were made."""
    return span(page.df["recorded_at"].str[:10], " to ")


def span(values: Iterable[int | str], between: str = "-") -> str:
    """Return the least and the greatest of some values, as text.

    >>> span([3, 9, 5]), span([3]), span([])
    ('3-9', '3', '')
    """
    found = sorted(set(values))
    return f"{found[0]}{between}{found[-1]}" if len(found) > 1 else "".join(map(str, found))


def made_elsewhere(page: Page) -> dict[str, int]:
    """Return how many of its records were made on other devices than the page's, by device."""
    found = page.df.loc[page.df["made_on"] != page.df["device"], "made_on"]
    return {str(device): int(count) for device, count in found.value_counts().sort_index().items()}


class Machines(NamedTuple):
    """On how many machines records were measured, and of how many records that is not known."""

    known: int
    unknown: int
    records: int


def machines(df: pd.DataFrame) -> Machines:
    """Return the machines that records were measured on."""
    ran = df.loc[(df["measure"] != "predict") & (df["status"] == "ok"), "machine"]
    return Machines(ran.nunique(), int(ran.isna().sum()), len(ran))


def switched(page: Page, column: str) -> str:
    """Return whether a toggle, ``cuda_graph`` or ``compile``, was on or off, or both."""
    return " / ".join("on" if value else "off" for value in page.values(column))


def lengths(page: Page) -> str:
    """Return the lengths of sequences; empty where there are none."""
    found = listed(page, "sequence_length")
    return "" if found == "1" else found


class Timed(NamedTuple):
    """How many undisturbed blocks, launches and calls the times of a page are of; empty where nothing was timed."""

    blocks: str
    launches: str
    calls: str


def timed(df: pd.DataFrame) -> Timed:
    """Return of what the times in these records are."""
    found = [times for times in known(df["times"]) if times and times.means]
    launches = [{launch for launch, _ in times.means} for times in found]
    calls = [len(set(times.calls.values())) for times in found]
    return Timed(span(len(times.means) for times in found), span(map(len, launches)), span(calls))


def other_calls(page: Any, over: str) -> dict[tuple[int, int], str]:
    """Return the arms that were timed in fewer calls than one that they are compared with, by both numbers of calls."""
    found: dict[tuple[int, int], list[str]] = {}
    for _, here in page.runs[page.runs["status"] == "ok"].groupby("batch_size"):
        calls = {one.arm: set(one.times.pairings.values()) for one in each(here)}
        for arm in sorted(calls, key=by_arm):
            if calls[arm] < calls.get(over, set()) and arm not in found.setdefault(
                (len(calls[arm]), len(calls[over])), []
            ):
                found[len(calls[arm]), len(calls[over])].append(arm)
    return {numbers: ", ".join(arms) for numbers, arms in found.items()}


def epochs(page: Page) -> list[str]:
    """Return what an epoch is, as the workloads' records have it."""
    found = dict.fromkeys(str(words["epoch"]) for words in page.own["workload_words"])
    return [words for words in found if words]


def models(page: Page) -> str:
    """Return what the records' workloads call their models."""
    return ", ".join(dict.fromkeys(str(words["model"]) for words in page.own["workload_words"]))


def other_lengths(page: Page) -> str:
    """Return the lengths timed where these are not the 128 tokens of the paper's epoch that times are given in."""
    of = page.own[page.own["measure"] == "run"]
    papers = all(words["examples_per_epoch"] == PAPER_EXAMPLES for words in of["workload_words"])
    found = sorted(set(of["sequence_length"]))
    return ", ".join(map(str, found)) if found and papers and found != [128] else ""


def has_unpaired(table: pd.DataFrame) -> bool:
    """Return whether a ratio of the table has two sides that were not timed together."""
    return any((table[name] == "unpaired").any() for name in table if str(name).endswith("pairing"))


def undisturbed(table: pd.DataFrame, subject: str = "arm") -> list[str]:
    """Return the cells whose time has no undisturbed block."""
    found = table[table["blocks"] == 0] if "blocks" in table else table[:0]
    return [f"{one[subject]}, batch {one['batch_size']}" for one in found.to_dict("records")]


def failures(table: pd.DataFrame, subject: str = "arm", place: str = "batch_size") -> list[tuple[str, str, str]]:
    """Return what failed for which reason, and where, as subjects, places and a reason, each reason once.

    Args:
        table: with the CSV's columns; those that end in ``_status`` and ``_message`` count.
        subject, place: the columns that say what failed, and where.

    Example:
        >>> table = pd.DataFrame({"arm": "lte", "batch_size": [1, 8], "time_status": "unsupported",
        ...     "time_message": "LTE needs a batch of 16"})
        >>> failures(table)
        [('lte', '1, 8', 'LTE needs a batch of 16')]
    """
    found: dict[tuple[str, str], dict[str, None]] = {}
    for name in [str(name) for name in table if str(name).endswith("_message")]:
        status = name.removesuffix("_message") + "_status"
        for line in table[table[name].fillna("").astype(str) != ""].to_dict("records"):
            if line[status] not in ("ok", "not in the grid", "not recorded"):
                found.setdefault((str(line[subject]), str(line[name]).rstrip(".")), {})[str(line[place])] = None
    gathered: dict[tuple[str, str], list[str]] = {}
    for (who, reason), places in found.items():
        gathered.setdefault((reason, ", ".join(places)), []).append(who)
    return [(", ".join(who), places, reason) for (reason, places), who in gathered.items()]


def reasons(table: pd.DataFrame, *names: str) -> dict[str, list[str]]:
    """Return by message the lines that have it, each by its values in some columns.

    Example:
        >>> table = pd.DataFrame({"arm": ["dense", "lora"], "form": "tf32", "message": "needs a GPU."})
        >>> reasons(table, "arm", "form")
        {'needs a GPU': ['dense, tf32', 'lora, tf32']}
    """
    found: dict[str, dict[str, None]] = {}
    for line in table[table["message"].fillna("") != ""].to_dict("records"):
        who = ", ".join(str(line[name]) for name in names)
        found.setdefault(one_line(line["message"]), {})[who] = None
    return {reason: list(who) for reason, who in found.items()}


class Busy(NamedTuple):
    """Records timed while the machine was busy: how many of how many, the worst factor, and which cells."""

    slow: int
    of: int
    factor: float
    cells: str


def busy(df: pd.DataFrame) -> Busy | None:
    """Return which records' times a busy machine has lengthened, by the best calibration that all of them know."""
    ran, best = each(df[df["status"] == "ok"]), dict[Machine, float]()
    for machine, ms in (one for record in ran for one in record.times.quickest.items()):
        best[machine] = min(ms, best.get(machine, ms))
    found = [(one, factor) for one in ran if (factor := slowdown_of(one.times.calibrations, best)) is not None]
    slow = sorted((by_arm(one.arm), one.arm, one.batch_size, factor) for one, factor in found if factor > BUSY)
    if not slow:
        return None
    batches: dict[str, dict[str, None]] = {}
    for _, arm, batch, _ in slow:
        batches.setdefault(arm, {})[f"{batch:,}"] = None
    cells = "; ".join(f"{arm}, batch {' and '.join(sizes)}" for arm, sizes in batches.items())
    return Busy(len(slow), len(found), max(factor for *_, factor in slow), cells)


def has_arm(page: Page, part: str) -> bool:
    """Return whether the name of an arm on the page contains a part, such as ``@size``."""
    return any(part in arm for arm in page.df["arm"])


def is_timed(page: Page, method: str) -> bool:
    """Return whether any form of a method was measured."""
    df = page.df
    return bool(((df["method"] == method) & (df["status"] == "ok") & (df["measure"] != "predict")).any())


def is_dirty(page: Page) -> bool:
    """Return whether a record comes from a tree with uncommitted changes."""
    return bool(page.df["git_dirty"].any())


#: Fewer launches than this give a range, no interval.
FEWEST_LAUNCHES = MIN_LAUNCHES

#: What the bounds of a table are, in words.
bounds = bounds_kinds
