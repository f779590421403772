"""A generated corpus of premise/hypothesis pairs, for machines without data or network.

**Grammar.** A sentence describes one scene::

    COUNT KIND ACTION the [COLOUR] OBJECT [PLACE].
    "At least three poodles did not open the red door in the kitchen."

It has five slots besides the object, which premise and hypothesis share. What a slot says is the set of values it
allows: counts run from one to ten, so "at most three" allows {1, 2, 3} and "some" all ten; "dogs" allows every breed
of dog; "did not open", "never opened" and "failed to open" allow closing and doing neither; an unstated colour or place
allows any.

**Rules.** Premise and hypothesis speak of the same scene. Compare what they say slot by slot:

1. a slot *excludes* when no value is allowed by both: poodles/beagles, opened/closed, three/at least five;
2. a slot *follows* when the hypothesis allows all that the premise allows: poodles/dogs, opened/did not close,
   three/at least two, red/(unstated);
3. otherwise it is *open*: dogs/poodles, at least two/five, (unstated)/in the park.

The label is *contradiction* if any slot excludes, else *entailment* if all slots follow, else *neutral*. This is the
same as asking whether the hypothesis is true in none, in all or in some of the scenes in which the premise is true.

**Draw.** Row ``i`` has label ``LABELS[i % 3]``, so every split is exactly balanced. A premise is drawn, then a
hypothesis: one slot decides that a pair is neutral or a contradiction, the others follow. All pairs are distinct and no
premise of the training split is in validation. Random numbers come from ``random.Random(seed).random()`` alone, whose
sequence Python guarantees across versions.

The corpus is meant to be learnt in minutes, so single words give much away: a contradiction usually negates the action,
an entailment usually says less, a neutral hypothesis usually adds a detail. The hypothesis alone does not decide the
label all the same: counting its words gets a bit over half of the labels right (a test bounds it).
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from random import Random
from typing import Literal, Self, TypeVar

from bench.data.corpus import LABELS, Corpus, DataError, Pair

Relation = Literal["follows", "excludes", "open"]

_EXACT_WEIGHT = 4  # a term of a premise that allows one value only is drawn that many times as often as another
#: How often count, kind, action, colour and place decide a pair of a label, relative to each other.
_DECISIVE: dict[str, tuple[Relation, tuple[int, ...]]] = {
    "neutral": ("open", (1, 2, 0, 4, 4)),
    "contradiction": ("excludes", (1, 1, 4, 1, 1)),
}
#: How often a slot that follows repeats the premise's words, where it could also say less.
_REPEAT_SHARES = {
    "entailment": (0.7, 0.1, 0.95, 0.1, 0.1),
    "neutral": (0.9, 0.9, 0.95, 0.9, 0.9),
    "contradiction": (0.9, 0.7, 0.95, 0.7, 0.7),
}


@dataclass(frozen=True)
class Term:
    """A way to fill a slot, and the values it allows."""

    words: str
    allows: frozenset[str]

    def relation(self, hypothesis: "Term") -> Relation:
        """Return the relation of ``hypothesis`` to this term of the premise."""
        if not self.allows & hypothesis.allows:
            return "excludes"
        return "follows" if self.allows <= hypothesis.allows else "open"


@dataclass(frozen=True)
class Slot:
    """The terms of one slot; ``premises`` lists those a premise is drawn from, exact ones repeated."""

    premises: tuple[Term, ...]
    hypotheses: Mapping[Term, Mapping[Relation, tuple[Term, ...]]]

    @classmethod
    def of(cls, terms: Iterable[Term]) -> Self:
        terms = tuple(terms)
        table: dict[Term, dict[Relation, tuple[Term, ...]]] = {}
        for premise in terms:
            table[premise] = {"follows": (), "excludes": (), "open": ()}
            for term in terms:
                table[premise][premise.relation(term)] += (term,)
        premises = (term for term in terms for _ in range(_EXACT_WEIGHT if len(term.allows) == 1 else 1))
        return cls(tuple(premises), table)


def _counts() -> Iterable[Term]:
    numbers = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]

    def term(words: str, first: int, last: int) -> Term:
        return Term(words, frozenset(numbers[first - 1 : last]))

    yield term("some", 1, 10)
    for number, word in enumerate(numbers, 1):
        if 2 <= number <= 9:
            yield term(word, number, number)
        if 3 <= number <= 8:
            yield term(f"at least {word}", number, 10)
            yield term(f"at most {word}", 1, number)
            yield term(f"more than {word}", number + 1, 10)
            yield term(f"fewer than {word}", 1, number - 1)


_KINDS = {
    "animals": {
        "dogs": ("poodles", "beagles", "terriers", "spaniels"),
        "birds": ("sparrows", "ravens", "parrots", "geese"),
        "apes": ("gorillas", "gibbons", "chimpanzees", "orangutans"),
    },
    "people": {
        "musicians": ("drummers", "violinists", "pianists", "singers"),
        "workers": ("plumbers", "bakers", "carpenters", "farmers"),
        "children": ("boys", "girls", "toddlers", "pupils"),
    },
}
_COLOURS = ("red", "blue", "green", "yellow", "black", "white")
_PLACES = {"indoors": ("kitchen", "library", "attic", "cellar"), "outdoors": ("park", "garden", "forest", "street")}


def _either(words: str, values: Iterable[str], exact: str = "{}") -> Iterable[Term]:
    """Return a term that allows all of the values, then one for each."""
    values = tuple(values)
    yield Term(words, frozenset(values))
    yield from (Term(exact.format(value), frozenset({value})) for value in values)


def _kinds() -> Iterable[Term]:
    for group, classes in _KINDS.items():
        yield Term(group, frozenset(chain(*classes.values())))
        for name, kinds in classes.items():
            yield from _either(name, kinds)


def _places() -> Iterable[Term]:
    yield Term("", frozenset(chain(*_PLACES.values())))
    for name, places in _PLACES.items():
        yield from _either(name, places, "in the {}")


#: Two opposite actions as (past, base form), and what they are done to. Doing neither is possible too.
_OPPOSITES = (
    (("opened", "open"), ("closed", "close"), ("door", "gate", "window", "box")),
    (("lifted", "lift"), ("dropped", "drop"), ("chair", "basket", "stone", "lamp")),
    (("pushed", "push"), ("pulled", "pull"), ("cart", "table", "sledge", "wagon")),
    (("found", "find"), ("lost", "lose"), ("key", "coin", "map", "ring")),
    (("bought", "buy"), ("sold", "sell"), ("boat", "bicycle", "clock", "mirror")),
    (("cleaned", "clean"), ("stained", "stain"), ("carpet", "shirt", "curtain", "plate")),
    (("hid", "hide"), ("showed", "show"), ("letter", "photograph", "book", "mask")),
    (("mended", "mend"), ("broke", "break"), ("fence", "radio", "toy", "bottle")),
)


def _actions(first: tuple[str, str], second: tuple[str, str]) -> Iterable[Term]:
    for (past, base), (opposite, _) in ((first, second), (second, first)):
        yield Term(past, frozenset({past}))
        for words in (f"did not {base}", f"never {past}", f"failed to {base}"):
            yield Term(words, frozenset({opposite, "neither"}))


_TOPICS = tuple((Slot.of(_actions(first, second)), objects) for first, second, objects in _OPPOSITES)
_COUNT, _KIND, _COLOUR, _PLACE = (Slot.of(terms) for terms in (_counts(), _kinds(), _either("", _COLOURS), _places()))

Item = TypeVar("Item")


def _pick(random: Random, items: Sequence[Item]) -> Item:
    return items[int(random.random() * len(items))]


def _sentence(terms: Sequence[Term], thing: str) -> str:
    count, kind, action, colour, place = (term.words for term in terms)
    words = " ".join(word for word in (count, kind, action, "the", colour, thing, place) if word)
    return f"{words[0].upper()}{words[1:]}."


def _draw(random: Random, label: str) -> tuple[str, str]:
    """Draw a premise, then a hypothesis whose relation to it is ``label``."""
    action, things = _pick(random, _TOPICS)
    slots, thing = (_COUNT, _KIND, action, _COLOUR, _PLACE), _pick(random, things)
    premise = [_pick(random, slot.premises) for slot in slots]
    hypothesis = [
        term if random.random() < share else _pick(random, slot.hypotheses[term]["follows"])
        for slot, term, share in zip(slots, premise, _REPEAT_SHARES[label], strict=True)
    ]
    if label in _DECISIVE:
        relation, weights = _DECISIVE[label]
        choices = [slot.hypotheses[term][relation] for slot, term in zip(slots, premise, strict=True)]
        decisive = _pick(random, [index for index, weight in enumerate(weights) for _ in range(weight)])
        if not choices[decisive]:
            return _draw(random, label)
        hypothesis[decisive] = _pick(random, choices[decisive])
    return _sentence(premise, thing), _sentence(hypothesis, thing)


def _rows(random: Random, size: int, banned_premises: frozenset[str]) -> list[Pair]:
    rows: list[Pair] = []
    seen: set[tuple[str, str]] = set()
    while len(rows) < size:
        label = len(rows) % len(LABELS)
        pair = _draw(random, LABELS[label])
        if pair not in seen and pair[0] not in banned_premises:
            seen.add(pair)
            rows.append(Pair(*pair, label))
    return rows


@lru_cache(maxsize=4)
def synthetic_corpus(train: int = 12_000, validation: int = 1_500, seed: int = 0) -> Corpus:
    """Generate the corpus "synthetic" of so many rows per split; the same arguments always give the same rows.

    A size that is no multiple of 3 (the classes balance) from 3 to 300,000 raises DataError.

    >>> corpus = synthetic_corpus(train=300, validation=30)
    >>> corpus.name, len(corpus.train), LABELS[corpus.train[0].label]
    ('synthetic', 300, 'entailment')
    """
    for name, size in (("train", train), ("validation", validation)):
        if not 3 <= size <= 300_000 or size % 3:
            raise DataError(f"{name} is {size}; allowed: multiples of 3 from 3 to 300,000")
    random = Random(seed)
    train_rows = _rows(random, train, frozenset())
    validation_rows = _rows(random, validation, frozenset(pair.premise for pair in train_rows))
    digest = hashlib.sha256(b"synthetic\n")
    for rows in (train_rows, validation_rows):
        digest.update(repr([tuple(pair) for pair in rows]).encode())
    return Corpus("synthetic", digest.hexdigest(), tuple(train_rows), tuple(validation_rows))
