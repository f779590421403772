"""Lists of numbers and words in sentences."""

from collections.abc import Sequence


def listed(numbers: Sequence[float]) -> str:
    """Numbers in a sentence.

    >>> listed([1.5, 2, 100]), listed([2])
    ('1.5, 2 and 100', '2')
    """
    return joined([f"{number:.3g}" for number in numbers])


def joined(words: Sequence[str]) -> str:
    """Words in a sentence.

    >>> joined(["1.5x", "2.1x", "2.6x"]), joined(["4x"])
    ('1.5x, 2.1x and 2.6x', '4x')
    """
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
