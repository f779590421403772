"""The workload ``pointer``: its labels and sides, its batches, its model, its probes and its errors."""

import itertools
import re

import numpy as np
import pytest
import torch
from torch import nn

import comera
from baselines import dense
from bench.core.checked import build_dataclass
from bench.core.identity import identity
from bench.data.corpus import DataError
from bench.data.wordpiece import PairTokenizer
from bench.errors import ConfigError
from bench.protocol import Data
from bench.workloads import open_workload
from bench.workloads.encoder import EncoderSettings, EncoderWorkload
from bench.workloads.pointer.corpus import CLASSES, FIRST_WORD, NO_LABEL, UNKNOWN, pointer_text
from bench.workloads.pointer.model import PointerModel, PointerSettings
from bench.workloads.pointer.workload import EQUAL, FREQUENCY, PointerWorkload

CONTEXT = 12
SMALL = {"layers": 1, "width": 32, "heads": 2, "feed_forward": 64, "vocabulary": 60, "context": CONTEXT}
SMALL |= {"evaluated": 200, "probe_windows": 2000}
SIDES = ("train", "validation", "test")
PIECES = {"tokens": "wordpiece", "vocabulary": 90}


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COMERA_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of 80 drawn words of 1 to 7 letters, so that some are unknown to a vocabulary of 60."""
    source = np.random.default_rng(0)
    letters = np.array([*"abcdefghijklmnopqrstuvwxyz"])
    words = ["".join(source.choice(letters, source.integers(1, 8))) for _ in range(80)]
    shares = 1 / np.arange(5, 85)
    path = tmp_path_factory.mktemp("words")
    for number in range(30):
        chosen = source.choice(words, 2000, p=shares / shares.sum())
        (path / f"{number}.txt").write_text("3, ".join(chosen).upper() + "\n")
    return path


def opened(folder, **changes):
    return open_workload("pointer", PointerSettings(**(SMALL | changes)), Data(data_folder=str(folder)), False)


@pytest.fixture(scope="module")
def workload(folder, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMERA_CACHE", str(tmp_path_factory.mktemp("cache")))
        return opened(folder)


def test_every_word_of_the_text_has_an_id_and_what_the_id_stands_for(tmp_path):
    """Of a single file the first nine tenths come first, so that the place of each word there is plain."""
    known = {"of": 400, "zebra": 300, "apple": 200, "moon": 100}
    words = [word for word, count in known.items() for _ in range(count)]
    np.random.default_rng(1).shuffle(words)
    (tmp_path / "one.txt").write_text("".join(word.title() + "?1" for word in words))
    text = pointer_text(str(tmp_path), "*", (), FIRST_WORD + 3, 3)
    ids = {"of": 8, "zebra": 9, "apple": 10, "moon": UNKNOWN}
    assert text.ids[:850].tolist() == [ids[word] for word in words[:850]]
    assert text.places.tolist() == [*range(len(text.ids))]
    steps, ranges = (dict(zip(words[:850], each[:850].tolist(), strict=True)) for each in (text.steps, text.ranges))
    assert steps == {word: 1 + len(word) % 4 for word in known}
    assert ranges["moon"] == NO_LABEL < ranges["apple"] < ranges["of"] < ranges["zebra"]


def plain_labels(text, start, hops):
    """The labels of a window by words: which begin in it, where each way leads, and what begins there."""
    number_at = dict(zip(text.places.tolist(), range(len(text.places)), strict=True))
    labels = []
    for place in range(start, start + CONTEXT):
        found, number = [], number_at.get(place)
        for _ in range(hops):
            if number is not None and text.ranges[number] != NO_LABEL:
                number = min(number + int(text.steps[number]), len(text.places) - 1)
                outside = text.places[number] >= start + CONTEXT
                number = None if outside or text.ranges[number] == NO_LABEL else number
            else:
                number = None
            found.append(NO_LABEL if number is None else int(text.ranges[number]))
        labels.append(found)
    return labels


@pytest.mark.parametrize("changes", [{"hops": 1}, {"hops": 2}, {"hops": 3}, {"hops": 2, **PIECES}])
def test_labels_are_those_of_a_plain_loop(folder, changes):
    workload = opened(folder, evaluated=50, **changes)
    starts = workload.text.grid("validation", CONTEXT, 50)
    [batch] = workload.batches("validation", len(starts), 0, True)
    assert batch["tokens"].tolist() == [workload.text.ids[start : start + CONTEXT].tolist() for start in starts]
    expected = [plain_labels(workload.text, start, changes["hops"]) for start in starts.tolist()]
    assert batch["labels"].tolist() == expected
    assert (batch["tokens"] == UNKNOWN).any() == ("tokens" not in changes)
    assert {*batch["labels"].unique().tolist()} == {NO_LABEL, *range(CLASSES)}


def test_the_label_of_a_word_in_pieces_lies_at_its_first_piece(tmp_path, monkeypatch):
    """A text of 1,000 words over a vocabulary given by hand; pointers count words, not pieces."""
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "##b", "##c", "zed", "up"]
    (tmp_path / "bert_vocab").mkdir()
    (tmp_path / "bert_vocab" / "vocab.txt").write_text("\n".join(vocabulary))
    monkeypatch.setenv("COMERA_DATA", str(tmp_path))
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "one.txt").write_text("abc zed up ab q " * 200)
    workload = opened(tmp_path / "text", **PIECES, context=10)
    batch = next(workload.batches("validation", 1, 0, True))
    text = workload.text
    # abc points 4 words ahead to q, which is unknown; zed 4 to abc; up 3 to abc; ab 3 to zed
    pieces = {"abc": [4, 5, 6], "zed": [7], "up": [8], "ab": [4, 5], "q": [1]}
    ranges = dict(zip(pieces, text.ranges[:5].tolist(), strict=True))
    assert ranges["abc"] == ranges["ab"] < ranges["up"] < ranges["zed"]
    assert ranges["q"] == NO_LABEL
    assert text.block == 25  # pieces, of the 40 of a block's 25 words
    assert text.ids[:25].tolist() == [piece for word in [*pieces] * 4 for piece in pieces[word]][:25]
    assert text.places[:8].tolist() == [0, 3, 4, 5, 7, 8, 11, 12]
    assert batch["tokens"].tolist() == [text.ids[:10].tolist()]
    # 0 to 9: a b c zed up a b q a b; zed's way ends at 8, up's at 8, ab's leaves the window
    expected = [NO_LABEL] * 10
    expected[3] = expected[4] = ranges["abc"]
    assert batch["labels"][0, :, 0].tolist() == expected


def test_pieces_are_made_once_and_their_vocabulary_is_kept(folder, monkeypatch):
    encoded, encode = [], PairTokenizer.encode
    monkeypatch.setattr(PairTokenizer, "encode", lambda *given: encoded.append(1) or encode(*given))
    pointer_text.cache_clear()
    one = opened(folder, **PIECES, evaluated=10)
    other = opened(folder, **PIECES, evaluated=11)
    assert other.text is one.text
    assert len(encoded) == 1
    pointer_text.cache_clear()  # as in another process
    monkeypatch.setattr("bench.workloads.pointer.corpus.train_vocabulary", lambda *_: pytest.fail("trained anew"))
    again = opened(folder, **PIECES, evaluated=12)
    assert len(encoded) == 2
    assert (again.text.ids == one.text.ids).all()
    assert again.data_hash == one.data_hash != opened(folder, evaluated=10).data_hash


def test_words_are_no_part_of_older_cells():
    assert "tokens" not in identity(PointerSettings())
    assert identity(PointerSettings(tokens="wordpiece"))["tokens"] == "wordpiece"


def test_a_workload_held_on_a_device_has_the_same_batches(workload):
    held = workload.held_on("cpu")
    assert held is not workload
    drawn = (itertools.islice(each.batches("train", 8, 3, True), 3) for each in (workload, held))
    for one, other in zip(*drawn, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in ("tokens", "labels"))
    on_meta = next(workload.held_on("meta").batches("train", 8, 3, True))
    assert {tensor.device.type for tensor in on_meta.values()} == {"meta"}
    assert on_meta["labels"].shape == (8, CONTEXT, 1)


def test_ranges_are_about_equally_frequent(workload):
    ranges = workload.text.ranges[workload.text.ranges != NO_LABEL]
    shares = np.bincount(ranges, minlength=CLASSES) / len(ranges)
    assert shares.min() > 0.02
    assert shares.max() < 0.3


def test_windows_stay_within_a_block_and_sides_within_theirs(workload):
    text = workload.text
    blocks = {side: text.blocks(side) for side in SIDES}
    together = np.sort(np.concatenate([*blocks.values()]))
    assert together.tolist() == [*range(0, len(text.ids) // text.block * text.block, text.block)]
    assert {int(start) // text.block % 40 for start in blocks["validation"]} == {7}
    assert {int(start) // text.block % 40 for start in blocks["test"]} == {27}
    for side in SIDES:
        starts = text.draw(side, CONTEXT, 5000, np.random.default_rng(0))
        assert {*(starts // text.block * text.block)} <= {*blocks[side]}
        assert (starts % text.block).max() == text.block - CONTEXT
        assert (starts % text.block).min() == 0
        grid = [text.ids[start : start + CONTEXT] for start in text.grid(side, CONTEXT, 10)]
        own = {tuple(text.ids[at : at + CONTEXT]) for start in blocks[side] for at in range(start, start + text.block)}
        assert {*map(tuple, grid)} <= own


@pytest.mark.parametrize("start", [0, 1, 5])
def test_a_later_start_is_the_same(workload, start):
    batches = [*itertools.islice(workload.batches("train", 8, 3, True), 8)]
    again = workload.batches("train", 8, 3, True, start=start)
    for one, other in zip(batches[start:], again, strict=False):
        assert all(torch.equal(one[name], other[name]) for name in ("tokens", "labels"))
    other = next(workload.batches("train", 8, 4, True))
    assert not torch.equal(other["tokens"], batches[0]["tokens"])


@pytest.mark.parametrize("size", [1, 7, 4000])
def test_an_epoch_has_the_batches_that_it_is_said_to_have(workload, size):
    assert len([*workload.batches("train", size, 0, True)]) == workload.batches_per_epoch(size)
    batch = next(workload.batches("validation", 5, 0, True))
    assert batch["tokens"].shape == (5, CONTEXT)
    assert batch["labels"].shape == (5, CONTEXT, 1)
    with pytest.raises(ValueError, match="batch_size is"):
        workload.batches("train", workload.training_examples + 1, 0, True)


@pytest.mark.parametrize("changes", [{}, {"hops": 2}, {"pre_norm": False}, {"compress_table": True, "layers": 2}])
def test_targets_are_the_matrices_of_the_blocks_and_the_table_if_asked_for(folder, changes):
    workload = opened(folder, **changes)
    with torch.device("meta"):
        modules = dict(workload.build().named_modules())
    targets = workload.targets()
    assert {name for name, role in targets.items() if role == "embedding"} == (
        {"embeddings.word"} if "compress_table" in changes else set()
    )
    linear = {name for name, module in modules.items() if isinstance(module, nn.Linear)}
    assert {*targets} - {"embeddings.word"} == linear - {"classifier.hidden", "classifier.classes"}
    assert len(linear) == 6 * workload.settings.layers + 2


@pytest.mark.parametrize("ratio", [1.0, 1.3, 3.0, 8.0])
@pytest.mark.parametrize("changes", [{}, {"hops": 2, "pre_norm": False, "layers": 3}])
def test_a_narrower_model_has_the_wanted_size_and_the_same_targets(ratio, changes):
    with torch.device("meta"):
        model = PointerModel(PointerSettings(**changes))
        size = sum(parameter.numel() for parameter in model.parameters())
        narrow = dense.build(dense.Settings(ratio=ratio), "narrow").adapt(model, {})
    assert sum(parameter.numel() for parameter in narrow.parameters()) == pytest.approx(size / ratio, rel=0.02)
    assert {name for name, _ in narrow.named_modules()} == {name for name, _ in model.named_modules()}


def test_pre_norm_ends_in_a_norm_and_is_no_part_of_older_cells():
    assert "pre_norm" not in identity(EncoderSettings())
    assert identity(EncoderSettings(pre_norm=True))["pre_norm"] is True
    post, pre = (PointerModel(PointerSettings(**SMALL, pre_norm=pre_norm)) for pre_norm in (False, True))
    assert {*pre.state_dict()} - {*post.state_dict()} == {"norm.weight", "norm.bias"}
    x = torch.randn(2, CONTEXT, SMALL["width"])
    assert pre.encode(x, None).mean(-1).abs().max() < 1e-5


def test_weights_start_with_the_stated_deviations():
    torch.manual_seed(0)
    model = PointerModel(PointerSettings())
    assert float(model.embeddings.word.weight.detach().std()) == pytest.approx(0.02, rel=0.02)
    for name in ("blocks.0.attention.query", "blocks.1.feed_forward.contract", "classifier.hidden"):
        weight = model.get_submodule(name).weight
        assert float(weight.detach().std()) == pytest.approx(0.02 * (768 / 128) ** 0.5, rel=0.03)


def trained(workload, steps, batch_size=32):
    torch.manual_seed(0)
    model = workload.build()
    optimizer = comera.Muon(model, lr=0.03, lr_dense=3e-3)
    epochs = (workload.batches("train", batch_size, seed, True) for seed in itertools.count())
    for step, batch in enumerate(itertools.islice(itertools.chain.from_iterable(epochs), steps)):
        for group in optimizer.param_groups:
            group["lr"] *= 1 if step < steps / 2 else 0.95
        optimizer.zero_grad()
        workload.loss(model, batch).backward()
        optimizer.step()
    return model


def test_a_small_model_beats_the_frequencies_of_the_classes_in_60_steps(workload):
    found, guess = workload.evaluate(trained(workload, 60)).metrics, workload.probes()[FREQUENCY].metrics
    for side in ("", "test_"):
        assert found[f"{side}loss"] < guess[f"{side}loss"] - 0.05
        assert found[f"{side}accuracy"] > guess[f"{side}accuracy"] + 5


def test_two_hops_are_trained_side_by_side(folder):
    workload = opened(folder, hops=2)
    model = workload.build()
    batch = next(workload.batches("train", 8, 0, True))
    scores = model(batch["tokens"])
    assert scores.shape == (8, CONTEXT, 2, CLASSES)
    each = [
        nn.functional.cross_entropy(scores[:, :, hop].flatten(0, 1), batch["labels"][:, :, hop].flatten())
        for hop in range(2)
    ]
    torch.testing.assert_close(workload.loss(model, batch), sum(each) / 2)
    metrics = workload.evaluate(model).metrics
    for side in ("", "test_"):
        hops = [metrics[f"{side}accuracy_hop_{hop}"] for hop in (1, 2)]
        assert metrics[f"{side}accuracy"] == pytest.approx(sum(hops) / 2)
    one = opened(folder)
    assert torch.equal(next(one.batches("train", 8, 0, True))["labels"][..., 0], batch["labels"][..., 0])
    assert one.data_hash != workload.data_hash


def test_a_batch_without_labels_has_the_loss_0(workload):
    batch = next(workload.batches("train", 2, 0, True))
    batch["labels"].fill_(NO_LABEL)
    assert float(workload.loss(workload.build(), batch).detach()) == 0


def test_probes_beat_guessing_and_are_kept(workload, monkeypatch):
    probes = workload.probes()
    losses = {name: probe.metrics["loss"] for name, probe in probes.items()}
    accuracies = {name: probe.metrics["accuracy"] for name, probe in probes.items()}
    assert min(losses, key=losses.get) == "skip pairs of four times the data"
    assert losses[EQUAL] < losses["equal-size n-grams"] < losses[FREQUENCY]
    assert accuracies[EQUAL] > accuracies["bag of words"] > accuracies[FREQUENCY]
    metric = workload.metric
    assert (metric.guess, metric.probe) == (losses[FREQUENCY], losses[EQUAL])
    monkeypatch.setattr(PointerWorkload, "_fitted", lambda *_: pytest.fail("fitted anew"))
    assert workload.probes() == probes


@pytest.mark.parametrize(
    ("content", "changes", "said"),
    [
        (None, {}, "which is not a folder"),
        ("1 2 3", {}, "no words of the letters a to z"),
        ("one two three", {}, "words; pointer.context=12 needs at least 960"),
        ("eel " * 1000, {}, None),
        ("eel " * 1000, {"hops": 3}, "have no label with pointer.hops=3"),
        ("one two", {"files": "*.md"}, "see pointer.files"),
        (
            "abc def " * 1000,
            {**PIECES, "vocabulary": 16},
            r"pointer.vocabulary is 16; the characters of .* need at least 17\.$",
        ),
    ],
)
def test_text_that_gives_no_labels_is_one_sentence(tmp_path, content, changes, said):
    if content is not None:
        (tmp_path / "one.txt").write_text(content)
    folder = tmp_path if content is not None else tmp_path / "missing"
    if said is None:
        assert opened(folder, **changes).training_examples
        return
    with pytest.raises(DataError, match=said) as caught:
        opened(folder, **changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"hops": 10, "context": 5}, "hops is 10 and context is 5; hops must be below context"),
        ({"hops": 0}, "pointer.hops is 0; allowed: whole numbers from 1 up"),
        ({"heads": 3}, "heads is 3; allowed: divisors of the width 128"),
        ({"vocabulary": 8}, "pointer.vocabulary is 8; allowed: whole numbers from 9"),
        ({"dropout": 1.0}, "pointer.dropout is 1.0"),
        ({"pre_norm": 1}, "pointer.pre_norm is 1; allowed: true, false"),
        ({"packages": []}, "pointer.packages is "),
        ({"tokens": "pieces"}, "pointer.tokens is 'pieces'; allowed: words, wordpiece"),
    ],
)
def test_a_wrong_setting_is_one_sentence(values, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        build_dataclass(PointerSettings, values, "pointer")


def test_the_encoder_shares_the_names_of_its_targets(workload):
    encoder = EncoderWorkload.open(EncoderSettings(layers=1), Data("synthetic"), True, {})
    assert {*workload.targets()} == {*encoder.targets()} - {"embeddings.word", "classifier.hidden"}
