"""The generated corpus; its labels are derived again here, by reading the sentences without its code."""

import os
import re
import subprocess
import sys
from collections import Counter

import numpy as np

from bench.data.corpus import LABELS
from bench.data.synthetic import synthetic_corpus

#: Content hash of the corpus at its default arguments.
PINNED = "01b99815ff2763e2170313c7bd508f14ab930f548d4cd0369097706658f3a221"

NUMBERS = dict(
    zip(["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"], range(1, 11), strict=True)
)

BREEDS = {
    "dogs": "poodles beagles terriers spaniels",
    "birds": "sparrows ravens parrots geese",
    "apes": "gorillas gibbons chimpanzees orangutans",
    "musicians": "drummers violinists pianists singers",
    "workers": "plumbers bakers carpenters farmers",
    "children": "boys girls toddlers pupils",
}
BREEDS["animals"] = " ".join(BREEDS[name] for name in ("dogs", "birds", "apes"))
BREEDS["people"] = " ".join(BREEDS[name] for name in ("musicians", "workers", "children"))
ALL_BREEDS = f"{BREEDS['animals']} {BREEDS['people']}".split()

BASE_FORMS = {
    "opened": "open",
    "closed": "close",
    "lifted": "lift",
    "dropped": "drop",
    "pushed": "push",
    "pulled": "pull",
    "found": "find",
    "lost": "lose",
    "bought": "buy",
    "sold": "sell",
    "cleaned": "clean",
    "stained": "stain",
    "hid": "hide",
    "showed": "show",
    "mended": "mend",
    "broke": "break",
}
PAST_FORMS = {base: past for past, base in BASE_FORMS.items()}
PASTS = list(BASE_FORMS)
OPPOSITE = {PASTS[index]: PASTS[index ^ 1] for index in range(len(PASTS))}

COLOURS = ["red", "blue", "green", "yellow", "black", "white"]
ROOMS = {"indoors": ["kitchen", "library", "attic", "cellar"], "outdoors": ["park", "garden", "forest", "street"]}
ALL_ROOMS = ROOMS["indoors"] + ROOMS["outdoors"]

SENTENCE = re.compile(
    r"(?P<bound>at least |at most |more than |fewer than )?(?P<count>\w+) (?P<kind>\w+) "
    r"(?P<negation>did not |never |failed to )?(?P<verb>\w+) the "
    rf"(?:(?P<colour>{'|'.join(COLOURS)}) )?(?P<thing>\w+)(?: in the (?P<room>\w+)| (?P<side>indoors|outdoors))?\."
)


def true_in(sentence: str) -> tuple[str, tuple[str, str], np.ndarray]:
    """The thing, the two possible actions, and in which scenes (count, kind, action, colour, place) it is true."""
    match = SENTENCE.fullmatch(sentence[0].lower() + sentence[1:])
    assert match, sentence
    counts = np.arange(1, 11)
    number = NUMBERS.get(match["count"], 0)
    if match["count"] == "some":
        count = counts > 0
    else:
        bound = (match["bound"] or "").strip()
        count = {
            "": counts == number,
            "at least": counts >= number,
            "at most": counts <= number,
            "more than": counts > number,
            "fewer than": counts < number,
        }[bound]
    kinds = BREEDS.get(match["kind"], match["kind"]).split()
    kind = np.array([breed in kinds for breed in ALL_BREEDS])
    past = PAST_FORMS.get(match["verb"], match["verb"]) if match["negation"] else match["verb"]
    actions = (*sorted((past, OPPOSITE[past])), "neither")
    action = np.array([(name == past) != bool(match["negation"]) for name in actions])
    colour = np.array([match["colour"] in (None, name) for name in COLOURS])
    rooms = ROOMS[match["side"]] if match["side"] else [match["room"]] if match["room"] else ALL_ROOMS
    room = np.array([name in rooms for name in ALL_ROOMS])
    assert all(slot.any() for slot in (count, kind, colour, room)), sentence
    scenes = np.einsum("a,b,c,d,e->abcde", count, kind, action, colour, room)
    return match["thing"], actions[:2], scenes


def test_every_label_is_what_the_scenes_say():
    corpus = synthetic_corpus()
    for rows in (corpus.train[:1500], corpus.validation[:600]):
        for premise, hypothesis, label in rows:
            thing, actions, given = true_in(premise)
            assert true_in(hypothesis)[:2] == (thing, actions)
            both = given & true_in(hypothesis)[2]
            derived = "entailment" if (both == given).all() else "neutral" if both.any() else "contradiction"
            assert derived == LABELS[label], (premise, hypothesis)


def test_the_corpus_is_balanced_distinct_and_disjoint():
    corpus = synthetic_corpus()
    assert corpus.name == "synthetic"
    for rows, size in ((corpus.train, 12_000), (corpus.validation, 1_500)):
        assert Counter(row.label for row in rows) == dict.fromkeys(range(3), size // 3)
        assert len({row[:2] for row in rows}) == size
    assert not {row.premise for row in corpus.train} & {row.premise for row in corpus.validation}


def test_the_same_arguments_give_the_same_corpus_in_every_process():
    """The hash is pinned: a change of the grammar changes the data of every record made with it."""
    command = [sys.executable, "-c", "from bench.data.synthetic import *; print(synthetic_corpus().content_hash)"]
    hashes = {
        subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert hashes == {synthetic_corpus().content_hash} == {PINNED}


def test_seed_and_sizes_matter():
    corpora = [
        synthetic_corpus(train=300, validation=30),
        synthetic_corpus(train=300, validation=30, seed=1),
        synthetic_corpus(train=300, validation=33),
    ]
    assert len({corpus.content_hash for corpus in corpora}) == 3
    assert [len(corpus.validation) for corpus in corpora] == [30, 30, 33]
