"""The grid of contraction plans: what its ratios are, what it says of the planner, and what is left out."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pandas as pd
import pytest
from made_up_plans import TOO_LARGE, grid, planned
from made_up_records import CPU, CUDA, campaign
from redrawn import drawn_once

from bench.core.intervals import Estimate
from bench.core.record import Record, write
from figures.artifacts.beyond import plans
from figures.artifacts.beyond.plans import PlansRow, fixed_plans, ratios_of, rows_of, sentences, share_within
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


def rows(*records: Record) -> list[PlansRow]:
    [page] = select_plans(records)
    return rows_of(page)


def tidy_of(figure: Drawn) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(next(figure.files[name] for name in figure.files if name.endswith("csv")).decode()))


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


def test_every_shape_has_a_row_and_every_candidate_a_line(drawn: dict[str, Drawn]) -> None:
    for device, unsupported in ((CPU, 18), (CUDA, 0)):
        table, tidy = drawn[device].table, tidy_of(drawn[device])
        assert len(table) == 180
        assert (table["chosen"] == "unsupported").sum() == unsupported
        assert len(tidy) == 5 * (180 - unsupported) + unsupported
    assert set(drawn[CPU].table["remarks"]) == {"", TOO_LARGE}
    said = f"18 of 180 shapes are left out: 18 x unsupported: {TOO_LARGE}"
    assert said in drawn[CPU].notes


def test_a_ratio_is_that_of_two_medians() -> None:
    times = {name: [50.0, 60.0, 70.0] for name in NAMES} | {"halves in": [9.0, 10.0, 30.0], "cores": [11.0, 12.0, 12.5]}
    [row] = rows(planned(times, contraction="cores", dense_ms=[24.0, 24.0, 24.0]))
    assert row.choice is not None
    assert (row.choice.best.name, row.choice.is_best) == ("halves in", False)
    ratio = row.choice.ratio
    assert ratio.value == pytest.approx(1.2)
    assert ratio.low is not None
    assert ratio.high is not None
    assert ratio.low < 1.2 < ratio.high
    assert row.choice.over_dense is not None
    assert row.choice.over_dense.value == pytest.approx(0.5)


def test_the_best_itself_has_the_ratio_one() -> None:
    [row] = rows(timed(best=20.0, chosen=10.0))
    assert row.choice is not None
    assert row.choice.is_best
    assert row.choice.ratio == Estimate(1.0, 1.0, 1.0, 3)


def test_a_time_of_first_calls_is_marked_and_has_no_interval() -> None:
    times = {name: [10.0, 10.5, 11.0] for name in NAMES} | {"cores": [60.0]}
    [row] = rows(planned(times, contraction="cores"))
    assert row.choice is not None
    assert (row.choice.ratio.value, row.choice.ratio.low) == (pytest.approx(60 / 10.5), None)
    [figure] = tables([planned(times, contraction="cores")], {})
    assert figure.table["chosen, ms"].tolist() == [f"60.0 {ONCE}"]
    assert any(note.startswith(f"{ONCE} timed by its first calls alone") for note in figure.notes)
    [figure] = tables([planned({name: [10.0] for name in NAMES})], {})
    assert ONCE not in figure.table["chosen, ms"].item()  # one block was asked for


def test_a_chosen_plan_without_memory_is_left_out_with_its_reason() -> None:
    one = timed()
    one.samples["plans"][1] |= {"ms": [], "message": "needs about 9 MiB, 1 MiB are free"}
    [figure] = tables([one, timed(tokens=1)], {})
    assert "1 of 2 shapes are left out: 1 x no time: 'cores' needs about 9 MiB, 1 MiB are free." in figure.notes
    assert figure.table["chosen / best"].tolist() == ["1.00", "-"]


def test_what_has_no_record_is_said() -> None:
    found = rows(timed(tokens=1), timed(tokens=128, order=2))
    assert [(row.slot.order, row.slot.tokens, row.status) for row in found] == [
        (2, 1, "not recorded"),
        (2, 128, "ok"),
        (3, 1, "ok"),
        (3, 128, "not recorded"),
    ]
    assert sentences(found)[-1] == "2 of 4 shapes are left out: 2 x not recorded."


def judged(ratios: list[float]) -> list[str]:
    return sentences(rows(*(timed(chosen=10.0 * ratio, tokens=place) for place, ratio in enumerate(ratios, start=1))))


@pytest.mark.parametrize(
    ("ratios", "outcome"),
    [
        ([1.0] * 60, "Met."),
        ([1.0] * 54 + [1.49] * 6, "Met."),
        ([1.0] * 59, "Missed: 59 shapes."),
        ([1.0] * 53 + [1.2] * 7, "Missed: 88.3% within 1.10."),
        ([1.0] * 59 + [1.6], "Missed: 1 beyond 1.50."),
        ([1.0, 1.6], "Missed: 2 shapes, 50.0% within 1.10, 1 beyond 1.50."),
    ],
)
def test_the_planner_is_held_to_what_is_asked_of_it(ratios: list[float], outcome: str) -> None:
    asked = "Asked: at least 60 shapes, 90% of them within 1.10, none beyond 1.50."
    assert judged(ratios)[0].endswith(f"{asked} {outcome}")


def test_the_sentences_count_shapes_and_name_the_worst() -> None:
    said = judged([1.0] * 8 + [1.05, 1.3])
    assert said[0].startswith(
        "10 shapes measured: the chosen plan is within 1.10 of the best measured candidate in 90.0% of the shapes "
        "(9 of 10) and within 1.50 in 100.0% of the shapes (10 of 10)."
    )
    assert "median 1.00, 90th percentile 1.08" in said[1]
    assert "The worst choice: 1.30 at 768 → 768, 6 cores, ranks up to 30, 10 tokens, 'cores' in place of" in said[1]
    assert said[2].startswith("Of the 1 shapes beyond 1.10, 0 have a range that reaches down to it.")


def test_one_plan_for_every_shape_is_held_against_the_planner() -> None:
    found = rows(timed(best=10.0, chosen=12.0), timed(best=30.0, chosen=10.0, tokens=1))
    assert ratios_of(found) == pytest.approx([1.0, 1.2])
    assert fixed_plans(found)["halves"] == pytest.approx([1.0, 3.0])
    assert fixed_plans(found)["dense"] == pytest.approx([5.0, 5.0])
    assert share_within(fixed_plans(found)["halves"], 1.1) == 0.5
    assert any("'halves' 50%, at worst 3.00; 'cores' 50%, at worst 1.20" in said for said in sentences(found))


def test_times_over_the_dense_layer_s_are_summed_up() -> None:
    said = sentences(rows(timed(dense_ms=[20.0] * 3), timed(tokens=1, dense_ms=[5.0] * 3)))
    assert any("faster than nn.Linear in 1 of 2 shapes; its time over nn.Linear's: median 1.25" in one for one in said)


def test_settings_are_never_mixed_and_the_newest_record_counts() -> None:
    old = timed(chosen=99.0, recorded_at="2000-01-01T00:00:00+00:00")
    stray = timed(tokens=1, precision="bf16", status="unsupported", message="made up.")
    [figure] = tables([old, timed(), stray], {})
    assert figure.table[["tokens", "chosen / best"]].to_numpy().tolist() == [["128", "1.00"]]
    assert any(note.startswith("1 record(s)") and "bf16" in note for note in figure.notes)
    assert any(note.startswith("1 further record(s)") for note in figure.notes)
    assert tables([stray], {}) == []


def test_older_code_is_marked() -> None:
    old = timed(tokens=1, recorded_at="2000-01-01T00:00:00+00:00", code_id="code-0")
    [figure] = tables([timed(), old], {})
    assert figure.table["chosen"].tolist() == ["cores †", "cores"]
    assert set(tidy_of(figure)["older_code"]) == {True, False}


def test_a_grid_without_any_time_is_drawn_and_says_so() -> None:
    [figure] = render([timed(status="error", message="made up", samples={}, contraction="")], {})
    assert figure.facts[-1] == "No shape has been measured."
    assert figure.notes == ("1 of 1 shapes are left out: 1 x error: made up.",)
    assert len(figure.files) == 4
