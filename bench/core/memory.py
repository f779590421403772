"""How far a predicted peak of memory is from a measured one, and how far it may be."""

#: The error that a prediction is allowed, by kind of device: rounding by the allocator and what lives inside kernels.
TOLERANCE = {"cpu": 0.02, "cuda": 0.05}


def prediction_error(predicted: float, measured: float) -> float:
    """The error of a predicted peak as a share of the measured one; below zero, too little was predicted.

    >>> round(prediction_error(95.0, 100.0), 3)
    -0.05
    """
    return predicted / measured - 1
