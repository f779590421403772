"""Measured steps of several ranks: their arms, how these are drawn, and their times beside CoMERA's."""

import math
from functools import cached_property
from typing import ClassVar

import pandas as pd

from figures import frame
from figures.arms import COMERA, DENSE, RANK_RIVAL, SIZE_RIVAL
from figures.draw.style import DENSE_STROKE, EARLY_STROKE, INK, STROKES, Fill, Stroke
from figures.frame import TIMING, known
from figures.stats.time_values import step_columns, time_ratio
from figures.text import bounds, pairing

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

#: What is equal for all steps of a page.
SAME = (*TIMING, "!bucket_mib", "!local_steps", "batch_size", "precision", "threads")


def by_arm(arm: str) -> tuple[int, str]:
    """Return the place of an arm in drawing order."""
    return (list(STYLE).index(arm) if arm in STYLE else len(STYLE)), arm


def style(arm: str) -> tuple[Stroke, Fill]:
    """Return the stroke and fill of an arm; with another exchange or bucket those that it has without."""
    plain = arm.partition(",")[0]
    return STYLE.get(plain) or STYLE.get(plain.partition("+")[0], _OTHER)


def rate_words(gbit: float) -> str:
    """Return a rate as people say it.

    >>> rate_words(0.0314), rate_words(2.345), rate_words(1234.5), rate_words(math.inf)
    ('31 Mbit/s', '2.3 Gbit/s', '1,234 Gbit/s', 'not limited')
    """
    if gbit < 0.9995:
        return f"{1e3 * gbit:.3g} Mbit/s" if gbit >= 0.1 else f"{1e3 * gbit:.2g} Mbit/s"
    if gbit < 100:
        return f"{gbit:.2g} Gbit/s"
    return "not limited" if gbit == math.inf else f"{gbit:,.0f} Gbit/s"


def base_arms(df: pd.DataFrame) -> list[str]:
    """Return the arms of records without their exchange."""
    pairs = zip(df["arm"], df["exchange"], strict=True)
    return [arm.removesuffix(f"+{exchange}") for arm, exchange in pairs]


class StepsPage(frame.Page):
    """The newest measured step of each cell: an arm, by its column ``label``, at values of the columns ``order``."""

    order: ClassVar = ["link_mbit"]

    @cached_property
    def steps(self) -> pd.DataFrame:
        """Return the steps in order, with ``arm`` as the page has it, times in ms and ratios to CoMERA's.

        ``link_mbit`` is infinite for a link without a limit, which ``link`` names.
        """
        df = self.df[self.df["measure"] == "run"]
        df = df.assign(
            arm=df["label"],
            place=df["label"].map(by_arm),
            link_mbit=df["link_mbit"].fillna(math.inf),
            older_code=df["cell_id"].isin(self.older_code),
            message=df["message"].where(df["status"] != "ok", ""),
        ).sort_values([*self.order, "place"], ignore_index=True)
        df["link"] = (df["link_mbit"] / 1e3).map(rate_words)
        ours = df.loc[df["arm"] == COMERA, [*self.order, "record"]].drop_duplicates(self.order, keep="last")
        references = df[self.order].merge(ours, how="left")["record"].where(df["arm"] != COMERA)
        ratios = [time_ratio(*pair) for pair in zip(df["record"], known(references), strict=True)]
        launches = "time_over_comera_launches"
        over = [{**bounds("time_over_comera", one), launches: one and one.launches} for one in ratios]
        columns = [*bounds("time_over_comera", None), launches]
        found = pd.DataFrame(over, df.index, columns).assign(time_pairing=list(map(pairing, ratios)))
        return df.drop(columns="launches").join([step_columns(df["record"]), found])
