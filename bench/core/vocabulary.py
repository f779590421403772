"""Words that the bench and its figures have in common; nothing here needs torch."""

from typing import Any

#: Labelled training rows of the complete MultiNLI corpus, which are the paper's epoch.
MNLI_TRAIN_ROWS = 392_702

#: In words.
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")

#: Accuracy in percent of a linear probe on bags of words, as the records of experiment ``probe`` have it. MNLI as a
#: whole, which is not at hand, has the pool's: with more to learn from, such a probe does no worse.
BAG_OF_WORDS = {"nli_pool": 52.54566653711621, "mnli_12k": 49.77328669516777}
BAG_OF_WORDS["mnli"] = BAG_OF_WORDS["nli_pool"]


def encoder_words(dataset: str, layers: int, classes: int) -> dict[str, Any]:
    """Return the words for an encoder with so many layers and classes, on a dataset."""
    metric = {
        "name": "accuracy",
        "text": "validation accuracy",
        "unit": "%",
        "higher_is_better": True,
        "guess": 100 / classes,
        "probe": BAG_OF_WORDS.get(dataset),
        "probe_text": "bag of words",
    }
    return {
        "model": f"{NUMBERS[layers] if layers < len(NUMBERS) else layers}-encoder transformer",
        "epoch": f"An epoch is the paper's whatever the data: {MNLI_TRAIN_ROWS:,} examples padded to 128 tokens.",
        "example": "example",
        "examples_per_epoch": MNLI_TRAIN_ROWS,
        "metric": metric,
    }
