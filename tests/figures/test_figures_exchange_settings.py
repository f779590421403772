"""The page on bucket sizes and local steps: its lines, ratios and points."""

import dataclasses

import pandas as pd
import pytest
from made_up_scaling import of_settings, varied

from bench.core.record import Record
from figures.artifacts.beyond.distributed import exchange_settings as artifact
from figures.page.drawn import Drawn


def table_of(records: list[Record]) -> pd.DataFrame:
    [page] = artifact.select(records)
    return artifact.table(page)


def drawn(records: list[Record]) -> Drawn:
    [page] = artifact.ARTIFACT.render(records, {})
    return page


BOTH = [*of_settings(100.0), *of_settings(1000.0)]


def test_rare_averages_take_gain_away() -> None:
    """Dense takes 0.25 of its step with 16 local steps, CoMERA 0.5 of its own: half of the gain is left."""
    table = table_of(BOTH)
    dense = table[(table["varied"] == "local_steps") & (table["link_mbit"] == 100) & (table["arm"] == "dense")]
    one, sixteen = dense.set_index("value")["over_comera"]
    assert one > 1
    assert sixteen == pytest.approx(one / 2, rel=0.05)


def test_a_ratio_is_to_comera_with_the_same_setting_over_the_same_link() -> None:
    table = table_of(BOTH)
    assert table.loc[table["arm"] == "comera", "over_comera"].isna().all()
    ours = table[table["arm"] == "comera"].set_index(["varied", "link_mbit", "value"])["step_ms"]
    for line in table[table["arm"] == "dense"].to_dict("records"):
        own = ours[line["varied"], line["link_mbit"], line["value"]]
        assert line["over_comera"] == pytest.approx(line["step_ms"] / own, rel=0.08)
        assert line["over_comera_low"] <= line["over_comera"] <= line["over_comera_high"]
        assert line["step_ms_bounds"] == "range"


def test_a_small_bucket_takes_longer() -> None:
    table = table_of(of_settings(100.0, small=1.5))
    small, large = table[(table["varied"] == "bucket_mib") & (table["arm"] == "comera")]["step_ms"]
    assert small == pytest.approx(1.5 * large)


def test_lines_go_by_setting_link_value_and_arm() -> None:
    page = drawn(BOTH)
    assert len(page.table) == 16
    assert list(page.table["link, setting"].unique()) == [
        *("100 Mbit/s, bucket, MiB", "1 Gbit/s, bucket, MiB"),
        *("100 Mbit/s, local steps", "1 Gbit/s, local steps"),
    ]
    assert page.table.loc[:3, ["value", "arm"]].to_numpy().tolist() == [
        ["1", "comera"],
        ["1", "dense"],
        ["25", "comera"],
        ["25", "dense"],
    ]
    assert page.table.loc[0, "time / comera"] == "1"


def test_points_and_whiskers_are_the_table_s() -> None:
    table = table_of(BOTH)
    panels = drawn(BOTH).files._draw().axes  # type: ignore[misc]
    assert [axes.get_xlabel() for axes in panels] == ["bucket, MiB"] * 2 + ["local steps"] * 2
    mine = table[(table["varied"] == "bucket_mib") & (table["link_mbit"] == 100) & (table["arm"] == "dense")]
    lines = [list(line.get_ydata()) for line in panels[0].lines]
    assert list(mine["step_ms"]) in lines
    assert mine.loc[mine.index[0], ["step_ms_low", "step_ms_high"]].tolist() in lines


def test_one_setting_alone_is_a_page() -> None:
    page = drawn([record for record in of_settings() if record.local_steps])
    assert len(page.table) == 4
    assert page.title == "Step time of several ranks by the steps between two averages"


def test_what_was_timed_apart_or_failed_or_is_older_is_marked() -> None:
    records = of_settings()
    apart = dataclasses.replace(
        records[0], pairing="elsewhere", code_id="older", recorded_at="2000-01-01T00:00:00+00:00"
    )
    page = drawn([apart, *records[1:]])
    marked = page.table[(page.table["link, setting"] == "100 Mbit/s, bucket, MiB") & (page.table["value"] == "1")]
    assert marked["arm"].tolist() == ["comera †", "dense"]
    assert marked["time / comera"].iloc[1].endswith("‡")
    assert {note[0] for note in page.notes} >= {"†", "‡"}
    broken = dataclasses.replace(records[1], status="oom", message="no memory.", samples={}, step_time_median_ms=None)
    page = drawn([records[0], broken, *records[2:]])
    assert "oom" in set(page.table["step, ms"])
    assert any(note.endswith("oom: no memory.") for note in page.notes)


def test_another_batch_is_left_out_with_words() -> None:
    records = of_settings()
    other = dataclasses.replace(varied(records[0], "scaling_buckets", 1.0, bucket_mib=4.0), batch_size=16)
    page = drawn([*records, other])
    assert len(page.table) == 8
    assert any("batch 16, not 8" in note for note in page.notes)
