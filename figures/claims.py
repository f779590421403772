"""The claims ledger: what was published, and what a verdict on it consists of.

How a verdict falls is told where its rules are: :mod:`figures.fig1_claims` for time and peak memory,
:mod:`figures.training_claims` for sizes, ranks and accuracy.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

LEDGER = Path(__file__).with_name("published") / "claims.csv"
FULL_SIZE_PARAMETERS = 66_957_315

Outcome = Literal["reproduced", "partly", "not reproduced", "not tested here"]


class LedgerError(ValueError):
    """A ledger that cannot be read; the message is one sentence."""


@dataclass(frozen=True)
class Claim:
    """One line of the ledger."""

    id: str
    quantity: str
    setting: str
    kind: str  # "value", "range", "statement yes", "statement no"
    low: float | None
    high: float | None
    unit: str
    status: str  # "stated", "public", "recalled"

    @property
    def published(self) -> str:
        if self.low is None or self.high is None:
            return self.kind.removeprefix("statement ")
        number = f"{self.low:g}" if self.low == self.high else f"{self.low:g}-{self.high:g}"
        return f"{number}{'' if self.unit in ('x', '%') else ' '}{self.unit}"

    @property
    def standing(self) -> str:
        return "recalled: unconfirmed transcription" if self.status == "recalled" else self.status


def read_claims(path: Path = LEDGER) -> dict[str, Claim]:
    """Read the ledger; raises LedgerError with one sentence when it is unreadable or a line is malformed."""
    claims = {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for line, row in enumerate(csv.DictReader(file), start=2):
                try:
                    low, high = (float(row[name]) if row[name] else None for name in ("value_low", "value_high"))
                    claim = Claim(
                        row["id"], row["quantity"], row["setting"], row["kind"], low, high, row["unit"], row["status"]
                    )
                except (KeyError, TypeError, ValueError) as error:
                    raise LedgerError(f"{path}, line {line}: not a claim ({error!r}).") from None
                if claim.status not in ("stated", "public", "recalled"):
                    raise LedgerError(
                        f"{path}, line {line}: status is {claim.status!r}; allowed: stated, public, recalled."
                    )
                claims[claim.id] = claim
    except (OSError, UnicodeDecodeError) as error:
        raise LedgerError(f"{path}: not a readable ledger ({error}).") from None
    return claims


class Found(Protocol):
    """What these records say about a claim; as a string, the number, with its heading, what it is a number of."""

    @property
    def heading(self) -> str: ...


@dataclass(frozen=True)
class Verdict:
    """What became of one published claim on one device."""

    claim: Claim
    ours: Sequence[Found]
    device: str
    outcome: Outcome
    why: str

    @property
    def ours_text(self) -> str:
        """What was found, gathered under headings."""
        gathered: dict[str, list[str]] = {}
        for found in self.ours:
            gathered.setdefault(found.heading, []).append(str(found))
        return "; ".join(f"{', '.join(numbers)} ({words})" for words, numbers in gathered.items()) or "none"

    def __str__(self) -> str:
        claim = self.claim
        subject = ", ".join(filter(None, (claim.quantity, claim.setting)))
        return (
            f"{claim.id}: {self.outcome} on {self.device}. {subject}: published "
            f"{claim.published} ({claim.standing}), ours {self.ours_text}. {self.why}"
        )


def known(claims: dict[str, Claim], wanted: Collection[str]) -> None:
    """Make sure that the ledger has all claims that are to be judged; raises LedgerError where it lacks one."""
    for claim_id in wanted:
        if claim_id not in claims:
            raise LedgerError(f"the ledger has no claim {claim_id!r}; it has: {', '.join(claims)}.")
