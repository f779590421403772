"""Sizes of models: told by the parameters that records hold, never by the name of an arm."""

#: Parameters of the paper's dense encoder.
FULL_SIZE_PARAMETERS = 66_957_315

#: How far the parameters of two arms may be apart, as a share, that count as of equal size.
TOLERANCE = 0.02


def equal_size(one: float | None, other: float | None) -> bool:
    """Return whether two counts of parameters are known and within 2 % of each other.

    >>> equal_size(1_487_547, 1_490_157), equal_size(3_994_947, 1_490_157), equal_size(None, 1_490_157)
    (True, False, False)
    """
    return bool(one and other) and abs(one / other - 1) <= TOLERANCE  # type: ignore[operator]
