"""Arms of the pages on several ranks: their names, their order, and how they are drawn."""

from bench.core.record import Record
from figures.arms import COMERA, DENSE, RANK_RIVAL, SIZE_RIVAL
from figures.draw.style import DENSE_STROKE, EARLY_STROKE, INK, STROKES, Fill, Stroke

#: Arms in drawing order, and how they are drawn; others follow with what is left.
STYLE: dict[str, tuple[Stroke, Fill]] = {
    COMERA: (EARLY_STROKE, Fill("#1d2f4f", edge="#ffffff")),
    SIZE_RIVAL: (STROKES[0], Fill("#8fc1d4", "\\\\\\", edge="#4f8396")),
    RANK_RIVAL: (Stroke("#4f8396", (0, (1, 1)), "v"), Fill("#d9ecf3", "//", edge="#4f8396")),
    "lora": (STROKES[1], Fill("#7d4468", "////", edge="#ffffff")),
    "galore": (STROKES[2], Fill("#0f4d3a", "xx", edge="#ffffff")),
    DENSE: (DENSE_STROKE, Fill("#cf6f33", edge="#ffffff")),
    "dense+ddp_bf16": (STROKES[3], Fill("#dddddd", "...", edge=INK)),
    "dense+powersgd_4": (STROKES[4], Fill("#f3e9bd", "xxx", edge="#8a7d45")),
    "dense+powersgd_32": (Stroke("#8a7d45", (0, (2, 1)), "<"), Fill("#ffffff", "---", edge=INK)),
    "dense:row_wise": (DENSE_STROKE, Fill("#cf6f33", edge="#ffffff")),
}
_OTHER = (Stroke("#444444", (0, (4, 1, 1, 1)), "h", filled=False), Fill("#bbbbbb", "oo"))


def by_arm(arm: str) -> tuple[int, str]:
    """Return the place of an arm in drawing order."""
    return (list(STYLE).index(arm) if arm in STYLE else len(STYLE)), arm


def style(arm: str) -> tuple[Stroke, Fill]:
    """Return the stroke and fill of an arm; with another exchange or bucket those that it has without."""
    plain = arm.partition(",")[0]
    return STYLE.get(plain) or STYLE.get(plain.partition("+")[0], _OTHER)


def label(record: Record) -> str:
    """Return the arm, with the size of its buckets and the steps between averages where they were set."""
    bucket = "" if record.bucket_mib is None else f", buckets of {record.bucket_mib:g} MiB"
    return record.arm + bucket + ("" if record.local_steps is None else f", every {record.local_steps}")


def base_arm(record: Record) -> str:
    """Return the arm without its exchange."""
    return record.arm.removesuffix(f"+{record.exchange}") if record.exchange else record.arm
