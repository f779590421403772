"""The grid of contraction plans: what its ratios are, what it says of the planner, and what is left out."""

from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made_up_plans import TOO_LARGE, grid, planned
from made_up_records import CPU, CUDA, campaign
from redrawn import drawn_once

from bench.core.record import Record, write
from figures.artifacts.beyond import plans
from figures.page.drawn import Drawn
from figures.records.plans import ONCE, select_plans, slot_of

render = plans.ARTIFACT.render
#: The pages without pictures.
tables = dataclasses.replace(plans.ARTIFACT, draw=None).render
#: Records of other measures.
OTHERS = [dataclasses.replace(record, experiment="contraction") for record in campaign(CPU)]
NAMES = ("halves", "cores", "dense", "halves in", "halves out")


def timed(best: float = 10.0, chosen: float = 10.0, **where: object) -> Record:
    """Plans of which 'halves' takes ``best`` ms, 'cores', the chosen one, ``chosen`` ms, and the others 50 ms."""
    times = {name: [50.0] * 3 for name in NAMES} | {"halves": [best] * 3, "cores": [chosen] * 3}
    return planned(times, **({"contraction": "cores"} | where))  # type: ignore[arg-type]


def table_of(*records: Record) -> pd.DataFrame:
    [page] = select_plans(records)
    return plans.table(page)


def shape_of(record: Record) -> Mapping[str, Any]:
    """The one shape of a table."""
    [one] = plans.shapes(table_of(record)).to_dict("records")
    return {str(name): value for name, value in one.items()}


def about(*records: Record) -> dict[str, Any]:
    [page] = select_plans(records)
    return plans.about(page, plans.table(page))


@pytest.fixture(scope="module")
def drawn() -> dict[str, Drawn]:
    return {figure.device: figure for figure in tables(grid() + grid(CUDA, seed=8) + OTHERS, {})}


@pytest.mark.slow
def test_the_command_draws_the_same_bytes_from_the_same_records(tmp_path: Path) -> None:
    some = [one for one in grid() if slot_of(one).order < 4 and slot_of(one).ranks < 256]
    assert {record.status for record in some} == {"ok", "unsupported"}
    write(some, tmp_path / "records")
    written, printed = drawn_once("plans", tmp_path / "records", tmp_path / "out")
    assert set(written) == {f"plans-made-up-cpu-2-threads.{ending}" for ending in ("png", "svg", "md", "csv")}
    [again] = render(some[::-1] + OTHERS, {})
    assert written == again.files
    assert "Asked: at least 60 shapes" in printed


def test_devices_are_never_mixed(drawn: dict[str, Drawn]) -> None:
    assert set(drawn) == {CPU, CUDA}
    for device, figure in drawn.items():
        assert {record.device for record in figure.records} == {device}
    assert render(OTHERS, {}) == []


def test_every_shape_has_a_cell_and_every_candidate_a_line(drawn: dict[str, Drawn]) -> None:
    for device, unsupported in ((CPU, 18), (CUDA, 0)):
        table, lines = drawn[device].table, pd.read_csv(io.BytesIO(csv_of(drawn[device])))
        cells = table.set_index(["layer", "cores", "ranks up to"])
        assert cells.shape == (4 * 3 * 3, 5)
        assert (cells == "unsupported").to_numpy().sum() == unsupported
        assert len(lines) == 5 * (180 - unsupported) + unsupported
        assert set(lines["message"].dropna()) == ({TOO_LARGE} if unsupported else set())
    assert f"18 of 180 shapes were not measured: unsupported: {TOO_LARGE}" in drawn[CPU].notes


def csv_of(figure: Drawn) -> bytes:
    return next(figure.files[name] for name in figure.files if name.endswith("csv"))


def test_a_ratio_is_that_of_two_medians() -> None:
    times = {name: [50.0, 60.0, 70.0] for name in NAMES} | {"halves in": [9.0, 10.0, 30.0], "cores": [11.0, 12.0, 12.5]}
    one = shape_of(planned(times, contraction="cores", dense_ms=[24.0, 24.0, 24.0]))
    assert (one["chosen"], one["best"], one["status"]) == ("cores", "halves in", "ok")
    assert one["chosen_over_best"] == pytest.approx(1.2)
    assert one["chosen_over_best_low"] < 1.2 < one["chosen_over_best_high"]
    assert one["chosen_over_best_bounds"] == "range"
    assert (one["chosen_over_dense"], one["dense_ms"]) == (pytest.approx(0.5), 24.0)


def test_the_best_itself_has_the_ratio_one() -> None:
    one = shape_of(timed(best=20.0, chosen=10.0))
    assert one["chosen"] == one["best"] == "cores"
    assert [one[f"chosen_over_best{end}"] for end in ("", "_low", "_high")] == [1.0] * 3


def test_a_time_of_first_calls_is_explained_and_has_no_bounds() -> None:
    times = {name: [10.0, 10.5, 11.0] for name in NAMES} | {"cores": [60.0]}
    one = planned(times, contraction="cores")
    assert shape_of(one)["chosen_over_best"] == pytest.approx(60 / 10.5)
    assert pd.isna(shape_of(one)["chosen_over_best_low"])
    [figure] = tables([one], {})
    assert any(note.startswith(ONCE) for note in figure.notes)
    [figure] = tables([planned({name: [10.0] for name in NAMES})], {})  # one block was asked for
    assert not any(note.startswith(ONCE) for note in figure.notes)


def test_a_chosen_plan_without_memory_is_left_out_with_its_reason() -> None:
    one = timed()
    one.samples["plans"][1] |= {"ms": [], "message": "needs about 9 MiB, 1 MiB are free"}
    found = about(one, timed(tokens=1))
    assert found["left_out"] == {"no time: 'cores' needs about 9 MiB, 1 MiB are free": 1}
    [figure] = tables([one, timed(tokens=1)], {})
    assert figure.table[["1 tokens", "128 tokens"]].to_numpy().tolist() == [["cores 1.00x", "no time"]]


def test_what_has_no_record_is_said() -> None:
    records = timed(tokens=1), timed(tokens=128, order=2)
    found = plans.shapes(table_of(*records))
    assert found[["cores", "tokens", "status"]].to_numpy().tolist() == [
        [4, 1, "not recorded"],
        [4, 128, "ok"],
        [6, 1, "ok"],
        [6, 128, "not recorded"],
    ]
    assert about(*records)["left_out"] == {"not recorded": 2}


def judged(ratios: list[float]) -> dict[str, Any]:
    return about(*(timed(chosen=10.0 * ratio, tokens=place) for place, ratio in enumerate(ratios, start=1)))


@pytest.mark.parametrize(
    ("ratios", "missed"),
    [
        ([1.0] * 60, []),
        ([1.0] * 54 + [1.49] * 6, []),
        ([1.0] * 59, ["59 shapes"]),
        ([1.0] * 53 + [1.2] * 7, ["88.3% within 1.10"]),
        ([1.0] * 59 + [1.6], ["1 beyond 1.50"]),
        ([1.0, 1.6], ["2 shapes", "50.0% within 1.10", "1 beyond 1.50"]),
    ],
)
def test_the_planner_is_held_to_what_is_asked_of_it(ratios: list[float], missed: list[str]) -> None:
    assert judged(ratios)["missed"] == missed
    assert (plans.NEAR, plans.FAR, plans.SHARE, plans.SHAPES) == (1.1, 1.5, 0.9, 60)


def test_shapes_are_counted_by_how_good_the_choice_is() -> None:
    found = judged([1.0] * 8 + [1.05, 1.3])
    assert [found[name] for name in ("measured", "near", "far", "doubtful")] == [10, 9, 10, 0]
    times = {name: [50.0] * 3 for name in NAMES} | {"halves": [9.0, 10.0, 13.0], "cores": [12.0, 13.0, 14.0]}
    assert about(planned(times, contraction="cores"))["doubtful"] == 1


def test_one_plan_for_every_shape_is_held_against_the_planner() -> None:
    found = table_of(timed(best=10.0, chosen=12.0), timed(best=30.0, chosen=10.0, tokens=1))
    assert sorted(plans.shapes(found)["chosen_over_best"]) == pytest.approx([1.0, 1.2])
    assert plans.fixed_plans(found)["halves"] == pytest.approx([1.0, 3.0])
    assert plans.fixed_plans(found)["dense"] == pytest.approx([5.0, 5.0])
    lacking = timed()
    lacking.samples["plans"][0] |= {"ms": [], "message": "needs more memory"}
    assert plans.fixed_plans(table_of(lacking))["halves"] == [math.inf]


def test_times_over_the_dense_layer_s_are_counted() -> None:
    found = about(timed(dense_ms=[20.0] * 3), timed(tokens=1, dense_ms=[5.0] * 3))
    assert (found["faster_than_dense"], found["beside_dense"]) == (1, 2)


def test_settings_are_never_mixed_and_the_newest_record_counts() -> None:
    old = timed(chosen=99.0, recorded_at="2000-01-01T00:00:00+00:00")
    stray = timed(tokens=1, precision="bf16", status="unsupported", message="made up.")
    [figure] = tables([old, timed(), stray], {})
    assert figure.table.drop(columns=["layer", "cores", "ranks up to"]).to_dict("records") == [
        {"128 tokens": "cores 1.00x"}
    ]
    assert any(note.startswith("1 record(s)") and "bf16" in note for note in figure.notes)
    assert any(note.startswith("1 further record(s)") for note in figure.notes)
    assert tables([stray], {}) == []


def test_older_code_is_marked() -> None:
    old = timed(tokens=1, recorded_at="2000-01-01T00:00:00+00:00", code_id="code-0")
    [figure] = tables([timed(), old], {})
    assert figure.table[["1 tokens", "128 tokens"]].to_numpy().tolist() == [["cores 1.00x †", "cores 1.00x"]]
    assert set(table_of(timed(), old)["older_code"]) == {True, False}
    assert any(note.startswith("†") for note in figure.notes)


def test_the_picture_has_a_cell_per_shape_and_a_curve_per_plan() -> None:
    [figure] = render([timed(), timed(tokens=1, best=10.0, chosen=12.0, dense_ms=[24.0] * 3)], {})
    cells, curves, over_dense = figure.files._draw().axes[0], *figure.files._draw().axes[-4:-2]  # type: ignore[misc]
    assert sorted(text.get_text() for text in cells.texts)[:3] == ["C", "C", "H 1.200"]
    lines = [list(line.get_xdata()) for line in curves.lines]
    assert [1.0, 1.0, pytest.approx(1.2), 4.0] in lines
    [line] = [line for line in over_dense.lines if line.get_marker() != "None"]
    assert list(line.get_ydata()) == pytest.approx([0.5, 2.0])


def test_a_grid_without_any_time_is_drawn_and_says_so() -> None:
    [figure] = render([timed(status="error", message="made up", samples={}, contraction="")], {})
    assert figure.facts[-1] == "No shape has been measured."
    assert "1 of 1 shapes were not measured: error: made up." in figure.notes
    assert len(figure.files) == 4
