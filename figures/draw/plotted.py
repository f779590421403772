"""A digest of what a picture shows: numbers, words and scales, whatever version drew the pixels."""

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch


def plotted_digest(figure: Figure) -> str:
    """Return a hash of the figure's data, labels and notes; positions on the page and looks do not count.

    Example:
        >>> figure = Figure()
        >>> [line] = figure.subplots().plot([1, 2], [3, 4])
        >>> before = plotted_digest(figure)
        >>> line.set_color("red")
        >>> plotted_digest(figure) == before
        True
        >>> line.set_ydata([3, 5])
        >>> plotted_digest(figure) == before
        False
    """
    return hashlib.sha256("\n".join(_of_figure(figure)).encode()).hexdigest()[:16]


def _of_figure(figure: Figure) -> Iterator[str]:
    yield from (text.get_text() for text in figure.texts)
    everything = [
        *figure.axes,
        *(inset for axes in figure.axes for inset in axes.child_axes if isinstance(inset, Axes)),
    ]
    for axes in everything:
        for axis in (axes.xaxis, axes.yaxis):
            yield f"axis {axis.get_label_text()} {axis.get_scale()} {_numbers(axis.get_view_interval())}"
            yield f"ticks {_numbers(axis.get_majorticklocs())}"
        yield f"titles {axes.get_title()} {axes.get_title('left')} {axes.get_title('right')}"
        yield from (f"line {_numbers(line.get_xydata())}" for line in axes.lines)
        for patch in axes.patches:
            if isinstance(patch, FancyArrowPatch):  # its path depends on the resolution
                continue
            yield f"patch {_numbers(patch.get_patch_transform().transform(patch.get_path().vertices))}"
        for collection in axes.collections:
            paths = (_numbers(path.vertices) for path in collection.get_paths())
            yield f"collection {_numbers(collection.get_offsets())} {' '.join(paths)}"
        yield from (f"text {text.get_text()} {_numbers(text.get_position())}" for text in axes.texts)
        yield from (f"image {_numbers(image.get_array())}" for image in axes.images)
    for legend in (*figure.legends, *(axes.get_legend() for axes in everything)):
        yield from (f"legend {text.get_text()}" for text in (legend.get_texts() if legend else ()))


def _numbers(values: Any) -> str:
    """To five digits, so that no rounding of another library counts."""
    return " ".join(f"{value + 0.0:.5g}" for value in np.asarray(values, dtype=float).ravel())
