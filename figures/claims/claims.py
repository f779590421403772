"""What was published, claim by claim, and what a verdict on a claim consists of.

Rules (:mod:`figures.claims.rule`) belong to the artifacts that they are judged on; :mod:`figures.ledger.judging`
gathers the verdicts of all of them.
"""

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from figures.text import InputError

LEDGER = Path(__file__).parents[1] / "published" / "claims.csv"

#: ``by construction``: the settings alone give it, before anything is trained. ``predicted``: no device measured it.
Outcome = Literal["reproduced", "by construction", "predicted", "partly", "not reproduced", "not tested here"]

#: Those that agree with what was published.
AGREEING: tuple[Outcome, ...] = ("reproduced", "by construction", "predicted")
Kind = Literal["value", "range", "statement yes", "statement no"]
Status = Literal["stated", "public", "recalled"]


class LedgerError(InputError):
    """A ledger that cannot be read."""


@dataclass(frozen=True)
class Claim:
    """One claim; those of this project are the lines of ``published/claims.csv``.

    Raises:
        LedgerError: a kind or status that there is not, or a value where there can be none.
    """

    id: str
    artifact: str  # the figure or table that it is found in; "abstract" or "text"
    quantity: str
    setting: str
    kind: str  # one of Kind
    low: float | None
    high: float | None
    unit: str
    status: str  # one of Status
    workload: str = ""  # whose records can decide it; any where empty

    def __post_init__(self) -> None:
        for column, allowed in (("kind", Kind), ("status", Status)):
            if getattr(self, column) not in get_args(allowed):
                raise LedgerError(f"{column} is {getattr(self, column)!r}; allowed: {', '.join(get_args(allowed))}")
        if (self.low is None or self.high is None) != self.kind.startswith("statement"):
            raise LedgerError(
                f"kind is {self.kind!r}; a value or range has value_low and value_high, a statement neither"
            )

    @property
    def unconfirmed(self) -> bool:
        """Return whether it was transcribed from memory."""
        return self.status == "recalled"

    @property
    def published(self) -> str:
        if self.low is None or self.high is None:
            return self.kind.removeprefix("statement ")
        number = f"{self.low:g}" if self.low == self.high else f"{self.low:g}-{self.high:g}"
        return f"{number}{'' if self.unit in ('x', '%') else ' '}{self.unit}"

    @property
    def subject(self) -> str:
        """Return what is claimed, in words; a published ratio says which is over which."""
        quantity = self.quantity.replace("/", " over ") if " ratio " in self.quantity else self.quantity
        return ", ".join(filter(None, (quantity, self.setting)))

    @property
    def standing(self) -> str:
        return "recalled: unconfirmed transcription" if self.unconfirmed else self.status


_COLUMNS = [one.name for one in fields(Claim) if one.name not in ("low", "high")]


def read_claims(path: Path = LEDGER) -> dict[str, Claim]:
    """Read the ledger; raises LedgerError with one sentence when it is unreadable or a line is malformed."""
    claims: dict[str, Claim] = {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for line, row in enumerate(csv.DictReader(file), start=2):
                try:
                    words: dict[str, Any] = {name: row[name] for name in _COLUMNS}
                    for end in ("low", "high"):
                        words[end] = float(row[f"value_{end}"]) if row[f"value_{end}"] else None
                    claim = Claim(**words)
                except LedgerError as error:
                    raise LedgerError(f"{path}, line {line}: {error}.") from None
                except (KeyError, TypeError, ValueError) as error:
                    raise LedgerError(f"{path}, line {line}: not a claim ({error!r}).") from None
                if claim.id in claims:
                    raise LedgerError(f"{path}, line {line}: a second claim {claim.id!r}.")
                claims[claim.id] = claim
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise LedgerError(f"{path}: not a readable ledger ({error}).") from None
    return claims


@dataclass(frozen=True)
class Finding:
    """A number that bears on a claim, in words; its heading says what it is a number of."""

    heading: str
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Judgement:
    """What one page of records makes of a claim: the outcome, why, and the numbers that it rests on."""

    outcome: Outcome
    why: str
    ours: Sequence[Any] = ()  # as Finding, with a heading

    @property
    def ours_text(self) -> str:
        gathered: dict[str, list[str]] = {}
        for found in self.ours:
            gathered.setdefault(found.heading, []).append(str(found))
        parts = [f"{', '.join(numbers)} ({words})" for words, numbers in gathered.items()]
        return "; ".join(parts) or "none"


def by_bounds(spans: Iterable[tuple[float, float]], least: float = -math.inf, most: float = math.inf) -> Outcome:
    """Return the outcome of bounds that all should lie between two numbers: they do, none does, or some do.

    >>> by_bounds([(0.1, 0.3)], most=0.5), by_bounds([(0.6, 0.7)], most=0.5), by_bounds([(0.1, 0.7)], most=0.5)
    ('reproduced', 'not reproduced', 'partly')
    """
    found = list(spans)
    if all(least <= low and high <= most for low, high in found):
        return "reproduced"
    return "not reproduced" if all(high < least or low > most for low, high in found) else "partly"


def untested(why: str, ours: Sequence[Any] = ()) -> Judgement:
    """Return the judgement that records decide nothing."""
    return Judgement("not tested here", why, ours)


def undecided(reasons: Iterable[str], ours: Sequence[Any] = ()) -> Judgement | None:
    """Return the first reason why records decide nothing, if there is one; the others are empty."""
    why = next(filter(None, reasons), "")
    return untested(why, ours) if why else None


@dataclass(frozen=True)
class Verdict:
    """What became of one published claim on one device: as it was published, and against the fair baseline.

    The fair baseline is the strongest form of the rival that the claim names, and of CoMERA; ``fair`` is None where no
    rival takes part in a claim, which then has one outcome. ``bed`` is the judgement on other data, where these tell
    methods apart. ``alternative`` compares CoMERA with a method that the claim does not name; it changes no outcome.
    """

    claim: Claim
    device: str
    published: Judgement
    fair: Judgement | None = None
    bed: Judgement | None = None
    alternative: Judgement | None = None

    @property
    def outcome(self) -> Outcome:
        return self.published.outcome

    @property
    def fair_outcome(self) -> Outcome:
        return self.fair.outcome if self.fair else self.outcome

    @property
    def why(self) -> str:
        return self.published.why

    @property
    def ours(self) -> Sequence[Any]:
        return self.published.ours

    @property
    def ours_text(self) -> str:
        return self.published.ours_text
