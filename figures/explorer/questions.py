"""The questions on which the explorer opens: each sets both axes and the filters, so that one click answers it."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

#: Columns in which points must agree before a Pareto front, or a best method, compares like with like.
ALIKE = ("workload", "dataset", "device", "precision", "batch_size")


@dataclass(frozen=True)
class ExplorerQuestion:
    """A question about records, as the axes and filters that answer it.

    Args:
        words: the question as the page prints it.
        x, y: names of the axes, of :data:`figures.explorer.points.AXES` or a metric's.
        filters: values by column; :func:`asked` adds those that the records leave open.
        log: use logarithmic axes.
    """

    words: str
    x: str
    y: str
    filters: Mapping[str, Any] = field(default_factory=dict)
    log: bool = True


TIME, MEMORY = "step_time_ms", "peak_memory_predicted_mib"

#: Asked first where a model of the user's own was predicted.
OWN = ExplorerQuestion(
    "Your model at batch 8: which method could be fastest, and which needs least memory?",
    "least_time_ms",
    MEMORY,
    {"source": "your model", "batch_size": 8},
)

_FEW = 3  # points, too few to answer a question

#: The page opens on the first of these that its records answer.
QUESTIONS = (
    ExplorerQuestion(
        "Which method is fastest at batch 8, and which needs least memory?",
        TIME,
        MEMORY,
        {"source": "fig1", "batch_size": 8},
    ),
    ExplorerQuestion(
        "Which should need the least memory on a GPU at batch 128?",
        "parameters",
        MEMORY,
        {"source": "fig1_memory", "device": "cuda, predicted", "batch_size": 128},
    ),
    ExplorerQuestion("How much time does more compression save?", "ratio", TIME, {"source": "ratios"}),
    ExplorerQuestion(
        "Which format gives a language model the lowest loss?",
        "parameters",
        "metric_loss",
        {"source": "formats_tiny"},
        log=False,
    ),
    ExplorerQuestion(
        "Do smaller tables cost a recommender quality?", "stored_mib", "metric_nce", {"source": "fig9"}, log=False
    ),
)


def asked(points: Sequence[Mapping[str, Any]], questions: Iterable[ExplorerQuestion]) -> list[dict[str, Any]]:
    """Return the questions that the points answer, each with the filters that leave like points.

    A filter that a question leaves open takes the value of the newest point, such as the newest device, of those values
    that more than :data:`_FEW` points have, if any.

    Example:
        >>> question = ExplorerQuestion("Which is fastest?", "time", "memory", {"batch_size": 8})
        >>> old, new = ({"device": name, "batch_size": 8, "time": 1, "memory": 2, "recorded_at": name} for name in "ab")
        >>> [answer["filters"] for answer in asked([old, new], [question])]
        [{'batch_size': '8', 'device': 'b'}]
        >>> asked([old, new], [ExplorerQuestion("Which is smallest?", "time", "size")])
        []
    """
    answered = []
    for question in questions:
        left = [point for point in points if {question.x, question.y} <= point.keys()]
        for key, value in question.filters.items():
            left = [point for point in left if point.get(key) == value]
        if not left:
            continue
        filters = dict(question.filters)
        for key in ALIKE:
            counts = Counter(point.get(key) for point in left)
            enough = [point for point in left if counts[point.get(key)] > _FEW] or left
            newest = max(enough, key=lambda point: (point.get("recorded_at", ""), point.get("cell_id", "")))
            if key in newest and len({point.get(key) for point in left}) > 1:
                filters[key] = newest[key]
                left = [point for point in left if point.get(key) == newest[key]]
        answered.append({**vars(question), "filters": {key: str(value) for key, value in filters.items()}})
    return answered
