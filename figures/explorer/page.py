"""The explorer: one HTML file with every record, filters, a plot, the Pareto front, and the command behind each point.

It needs nothing but itself: the charting library, plotly.js of the package plotly, rides inside.
"""

import importlib.resources
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.core.record import Record
from figures.explorer.points import content_of
from figures.text import templates

TEMPLATES = Path(__file__).parent / "templates"

TITLE = "CoMERA's bench: every record"


def page(records: Sequence[Record], own: tuple[list[dict[str, Any]], Mapping[str, Any]] | None = None) -> bytes:
    """Return the page as HTML in UTF-8: the same records give the same bytes.

    Args:
        records: to be shown.
        own: the points of a model of the user's own, and what else is known of it
            (:func:`figures.explorer.points.own_points`).
    """
    content = content_of(records, own)
    data = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    library = importlib.resources.files("plotly") / "package_data" / "plotly.min.js"
    shown = {
        "title": TITLE,
        "data": data,
        "plotly": library.read_text(encoding="utf-8"),
        "filters": content["filters"],
        "own": content["own"],
        "points": len(content["points"]),
        "failed": content["failed"],
    }
    return templates(TEMPLATES, autoescape=True).get_template("explorer.html").render(shown).encode()
