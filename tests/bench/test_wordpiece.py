"""Tokenisation: the pair's shape, truncation, both sources of a vocabulary, and training that repeats itself."""

import os
from pathlib import Path

import pytest
from small_cells import one_line

from bench.data.corpus import Corpus, DataError, Pair
from bench.data.synthetic import synthetic_corpus
from bench.data.wordpiece import BERT_VOCABULARY_SIZE, SPECIAL_TOKENS, PairTokenizer, find_vocabulary, train_vocabulary

WORDS = [*SPECIAL_TOKENS, "the", "cat", "sat", "##s", "on", "mat", ".", "cafe"]


def write_vocabulary(root: Path, tokens) -> Path:
    path = root / "bert_vocab" / "vocab.txt"
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8")
    return path


def corpus_of(name: str, *sentences: str) -> Corpus:
    rows = [Pair(sentence, sentence, 0) for sentence in sentences]
    return Corpus(name, f"hash of {name}", rows, rows)


def test_a_pair_reads_as_bert_reads_it():
    (ids, types), *rest = PairTokenizer(WORDS).encode([("The CATS sat.", "Café, mats!"), ("", "")], 32)
    tokens = [WORDS[index] for index in ids]
    assert tokens == [
        "[CLS]",
        "the",
        "cat",
        "##s",
        "sat",
        ".",
        "[SEP]",
        "cafe",
        "[UNK]",
        "mat",
        "##s",
        "[UNK]",
        "[SEP]",
    ]
    assert types == [0] * 7 + [1] * 6
    assert rest == [([2, 3], [0, 0])]  # no second sentence, no second separator


def test_the_longer_sentence_is_cut_first_and_the_separators_stay():
    tokenizer = PairTokenizer(WORDS)
    (ids, types), (even, _) = tokenizer.encode([("the " * 40, "cat sat"), ("the " * 40, "cat " * 40)], 16)
    assert [WORDS[index] for index in ids] == ["[CLS]", *["the"] * 11, "[SEP]", "cat", "sat", "[SEP]"]
    assert types == [0] * 13 + [1] * 3
    assert len(even) == 16
    assert abs(even.count(5) - even.count(6)) <= 1
    assert len(tokenizer.encode([("the " * 40, "cat sat")], 30)[0][0]) == 30  # the length of one call does not stick


def test_text_cannot_forge_special_tokens():
    ((ids, _),) = PairTokenizer(WORDS).encode([("[SEP] [PAD]", "[CLS]")], 32)
    assert ids.count(3) == 2
    assert ids.count(2) == 1
    assert 0 not in ids


def test_the_vocabulary_at_hand_is_taken_if_it_fits(tmp_path):
    write_vocabulary(tmp_path, WORDS)
    corpus, environ = corpus_of("tiny", "the cat", "a cat"), {"COMERA_DATA": str(tmp_path)}
    assert find_vocabulary(corpus, 100, environ) == tuple(WORDS)
    trained = train_vocabulary(corpus, 100)
    assert find_vocabulary(corpus, 100, {}) == find_vocabulary(corpus, 100, {"COMERA_DATA": ""}) == trained
    big = tmp_path / "big"
    write_vocabulary(big, [*WORDS, *(f"word{number}" for number in range(100))])
    assert find_vocabulary(corpus, 100, {"COMERA_DATA": str(big)}) == trained


@pytest.mark.parametrize(
    ("tokens", "named"),
    [
        (["the", *WORDS], ("line 1", "'the'", "[PAD]")),
        ([], ("line 1", "''", "[PAD]")),
        ([token for token in WORDS if token != "[SEP]"], ("[SEP]",)),
        ([*WORDS, "cat"], ("'cat' 2 times",)),
    ],
)
def test_an_unusable_vocabulary_is_named(tmp_path, tokens, named):
    path = write_vocabulary(tmp_path, tokens)
    with one_line(DataError, path, *named):
        find_vocabulary(synthetic_corpus(), environ={"COMERA_DATA": str(tmp_path)})


def test_a_trained_vocabulary_covers_its_corpus():
    corpus = synthetic_corpus()
    vocabulary = train_vocabulary(corpus)
    assert vocabulary[: len(SPECIAL_TOKENS)] == SPECIAL_TOKENS
    assert len(set(vocabulary)) == len(vocabulary) <= BERT_VOCABULARY_SIZE
    encoded = PairTokenizer(vocabulary).encode([row[:2] for row in corpus.validation], 128)
    unknown = SPECIAL_TOKENS.index("[UNK]")
    assert all(unknown not in ids for ids, _ in encoded)
    assert max(len(ids) for ids, _ in encoded) < 64  # whole words, mostly


@pytest.mark.skipif("COMERA_DATA" not in os.environ, reason="COMERA_DATA is not set")
def test_the_bert_vocabulary_has_its_known_ids():
    vocabulary = find_vocabulary(synthetic_corpus())
    assert len(vocabulary) == BERT_VOCABULARY_SIZE
    known = {"[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103, "the": 1996, "hello": 7592}
    assert {token: vocabulary.index(token) for token in known} == known
    ((ids, types),) = PairTokenizer(vocabulary).encode([("Hello, the World!", "Unaffable")], 128)
    assert ids == [101, 7592, 1010, 1996, 2088, 999, 102, 14477, 20961, 3468, 102]
    assert types == [0] * 7 + [1] * 4
