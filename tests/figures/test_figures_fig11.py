"""Fig. 11: every product of the chosen plans, forward and backward, as the planner itself would list them."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made_up_plans import ORDERS, RANKS, TOKENS, planned
from made_up_records import CPU, CUDA, campaign
from matplotlib.figure import Figure
from redrawn import drawn_once

from bench.core.record import Record, RecordError, write
from comera.contraction import Plan, candidates
from comera.contraction import Product as PlannerProduct
from comera.tensor_train import TTShape
from figures.artifacts import fig11
from figures.page.drawn import Drawn
from figures.page.tensor_diagrams import draw_backward, draw_forward, draw_network, summed_by
from figures.records.plans import MeasuredPlan, Planned, PlannedProduct, planned_of

render = fig11.ARTIFACT.render
LAYERS = ((768, 768), (768, 3072))

#: Records of other measures.
OTHERS = [dataclasses.replace(record, experiment="fig11") for record in campaign(CUDA)]


def campaign_of_plans(device: str = CPU) -> list[Record]:
    counts = (1, 128, 4096) if device == CPU else (128,)
    return [
        planned(layer=layer, tokens=tokens, device=device, experiment="fig11") for layer in LAYERS for tokens in counts
    ]


@pytest.fixture(scope="module")
def drawn() -> dict[str, Drawn]:
    """The pages without pictures."""
    return {figure.device: figure for figure in tables(campaign_of_plans() + campaign_of_plans(CUDA))}


def tables(records: list[Record]) -> list[Drawn]:
    """The pages without pictures, also of plans of another experiment."""
    return dataclasses.replace(fig11.ARTIFACT, experiments=("fig11", "contraction"), draw=None).render(records, {})


def tidy_of(figure: Drawn) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(next(figure.files[name] for name in figure.files if name.endswith("csv")).decode()))


def the_planner_s(one: Planned) -> list[tuple[MeasuredPlan, Plan]]:
    """Every candidate of a record beside the plan that it is a record of."""
    shape = TTShape(one.slot.in_features, one.slot.out_features, one.in_modes, one.out_modes, one.ranks)
    return list(zip(one.candidates, candidates(shape, one.slot.tokens), strict=True))


def everything() -> list[Planned]:
    shapes = [(order, ranks, tokens) for order in (1, *ORDERS) for ranks in RANKS for tokens in TOKENS]
    return [planned_of(planned(order=order, ranks=ranks, tokens=tokens)) for order, ranks, tokens in shapes]


@pytest.mark.slow
def test_the_command_draws_the_same_bytes_from_the_same_records(tmp_path: Path) -> None:
    write(campaign_of_plans(CUDA) + OTHERS, tmp_path / "records")
    written, printed = drawn_once("fig11", tmp_path / "records", tmp_path / "out")
    assert set(written) == {f"fig11-made-up-gpu-9000.{ending}" for ending in ("png", "svg", "md", "csv")}
    [again] = render(campaign_of_plans(CUDA)[::-1], {})
    assert written == again.files
    assert "768 → 3,072" in printed


def test_devices_are_never_mixed(drawn: dict[str, Drawn]) -> None:
    assert set(drawn) == {CPU, CUDA}
    for device, figure in drawn.items():
        assert {record.device for record in figure.records} == {device}
    assert render(OTHERS, {}) == []


def same(ours: tuple[PlannedProduct, ...], theirs: tuple[PlannerProduct, ...]) -> None:
    assert [dataclasses.asdict(one) for one in ours] == [dataclasses.asdict(one) for one in theirs]
    assert [one.flops for one in ours] == [one.flops for one in theirs]
    assert [one.moved_mib for one in ours] == pytest.approx([one.numbers * 4 / 2**20 for one in theirs])


def test_products_gradients_and_what_is_kept_are_the_planner_s() -> None:
    for one in everything():
        for ours, theirs in the_planner_s(one):
            same(ours.products, theirs.products)
            same(ours.backward, theirs.backward)
            assert ours.flops == sum(product.flops for product in (*ours.products, *ours.backward))
            assert sum(ours.kept_mib.values()) == pytest.approx(ours.saved_mib)


def test_every_bond_and_every_in_mode_is_summed_over_exactly_once() -> None:
    for one in everything():
        half = len(one.in_modes)
        for plan in one.candidates:
            bonds, modes = summed_by(plan, half)
            assert set(bonds) == set(range(1, 2 * half))
            assert set(modes) == set(range(1, half + 1))
            assert {*bonds.values(), *modes.values()} == set(range(1, len(plan.products) + 1))


def test_what_is_summed_over_is_the_inner_dimension() -> None:
    for one in everything():
        half = len(one.in_modes)
        for plan in one.candidates:
            bonds, modes = summed_by(plan, half)
            for number, product in enumerate(plan.products, start=1):
                inner = 1
                for core in (core for core, step in modes.items() if step == number):
                    inner *= one.in_modes[core - 1]
                for bond in (bond for bond, step in bonds.items() if step == number):
                    inner *= one.ranks[bond - 1]
                assert product.inner == inner


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_diagrams_name_every_tensor_and_number_every_product(order: int) -> None:
    one = planned_of(planned(order=order))
    for plan in one.candidates:
        count, cores = len(plan.products), [f"G{core}" for core in range(1, 2 * order + 1)]
        results = [product.result for product in plan.products]

        def texts(draw: Any, *arguments: Any) -> list[str]:
            axes = Figure().add_subplot()
            draw(axes, *arguments, 2.2)
            return sorted(text.get_text() for text in axes.texts)

        forward = [*cores, "x", *results, *map(str, range(1, count + 1))]
        assert texts(draw_forward, plan) == sorted(forward)
        backward = [f"d{name}" for name in (*cores, "x", *results)] + list(map(str, range(count + 1, 3 * count + 1)))
        assert texts(draw_backward, plan) == sorted(backward)
        network = texts(draw_network, one, plan)
        for label in (*cores, "x", *map(str, (*one.in_modes, *one.out_modes, *one.ranks))):
            assert label in network
        for first, last in plan.segments:
            assert first == last or f"G{first}-{last}" in network


def test_the_csv_lists_all_products_in_the_order_in_which_they_run(drawn: dict[str, Drawn]) -> None:
    tidy = tidy_of(drawn[CPU])
    for _, steps in tidy.groupby(["out_features", "tokens"]):
        assert list(steps["number"]) == list(range(1, len(steps) + 1))
        assert list(steps["pass"]) == ["forward"] * (len(steps) // 3) + ["backward"] * (2 * len(steps) // 3)
        assert steps["flops"].sum() == steps["plan_flops"].iloc[0]
    halves = tidy[(tidy["out_features"] == 768) & (tidy["tokens"] == 128)].set_index("result")
    names = ["left", "right", "rows", "inner", "columns", "flops"]
    assert halves.loc["z1", names].tolist() == ["x", "G1-3", 128, 768, 30, 2 * 128 * 768 * 30]
    assert halves.loc["dG1-3", names[:5]].tolist() == ["xᵀ", "dz1", 768, 128, 30]
    assert halves.loc["z1", "moved_mib"] == pytest.approx((128 * 768 + 768 * 30 + 128 * 30) / 2**18, rel=1e-5)
    assert halves.loc["z1", "kept_mib"] == pytest.approx(128 * 30 / 2**18, rel=1e-5)
    assert pd.isna(halves.loc["y", "kept_mib"])
    assert set(halves["dense_flops"]) == {6 * 128 * 768 * 768}


def test_a_line_per_plan_stands_beside_the_dense_layer_and_the_left_to_right_order(drawn: dict[str, Drawn]) -> None:
    table = drawn[CPU].table.set_index(["layer", "tokens"])
    assert len(table) == 6
    halves = table.loc[("768 → 768", "128")]
    columns = ["plan", "MFLOP", "FLOPs / dense", "FLOPs / left to right", "kept, MiB"]
    assert halves[columns].tolist() == ["halves", "44.1", "0.0974x", "0.728x", "0.587"]
    assert halves["nn.Linear, ms"] == "5.00"
    assert table.loc[("768 → 768", "1"), columns[:4]].tolist() == ["cores", "0.473", "0.134x", "1.00x"]


def test_times_are_medians_and_the_fastest_is_the_least_of_them() -> None:
    times = {name: [50.0, 60.0, 70.0] for name in ("halves", "cores", "dense", "halves in", "halves out")}
    one = planned(times | {"cores": [9.0, 10.0, 30.0]}, contraction="halves", experiment="fig11", dense_ms=[1.0, 2.0])
    [figure] = tables([one])
    read = figure.table.iloc[0]
    assert read[["measured, ms", "fastest", "fastest, ms", "nn.Linear, ms"]].tolist() == [
        "60.0",
        "cores",
        "10.0",
        "1.50",
    ]
    once = planned(times | {"halves": [60.0]}, contraction="halves", experiment="fig11")
    [figure] = tables([once])
    assert figure.table["measured, ms"].tolist() == ["60.0 §"]
    assert any(note.startswith("§") for note in figure.notes)


def test_failed_cells_are_shown_with_their_reason() -> None:
    failed = planned(tokens=1, status="oom", message="made up:\nno room", samples={}, contraction="")
    [figure] = render([dataclasses.replace(failed, experiment="fig11")], {})
    assert figure.table["plan"].tolist() == ["oom"]
    assert any(note.endswith("1 token: oom: made up: no room.") for note in figure.notes)
    assert len(figure.files) == 4


def test_the_newest_record_is_drawn_and_older_code_is_said() -> None:
    old = planned(recorded_at="2000-01-01T00:00:00+00:00", code_id="code-0")
    [figure] = tables([planned(tokens=4096), planned(), old])
    assert not tidy_of(figure)["older_code"].any()
    assert any(note.startswith("1 further record(s)") for note in figure.notes)
    [figure] = tables([planned(tokens=4096), old])
    assert set(tidy_of(figure).groupby("tokens")["older_code"].all().items()) == {(128, True), (4096, False)}
    assert any(note.startswith("†") for note in figure.notes)
    assert figure.table["layer"].tolist() == ["768 → 768 †", "768 → 768"]


def changed(**columns: Any) -> Record:
    """A record whose first candidate has other columns."""
    one = planned()
    one.samples["plans"][0] |= columns
    return one


PRODUCT = {"left": "x", "right": "G1", "result": "y", "rows": 1, "inner": 1, "columns": 1}


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (planned(samples={}), "KeyError('shape')"),
        (planned(contraction="fastest"), "the chosen plan 'fastest' is not among them"),
        (changed(ms=[0.0]), "times must be above 0"),
        (changed(ms="soon"), "cannot be read"),
        (changed(products=[PRODUCT | {"left": "z1"}]), "y = z1 · G1 uses what is not there yet"),
        (changed(products=[PRODUCT | {"result": "z1"}]), "forms no y"),
        (changed(products=[PRODUCT | {"depth": 1}]), "cannot be read"),
        (planned(config_json="{}"), "plans need in_features, out_features, order and ranks in config_json"),
    ],
)
def test_plans_that_cannot_be_read_are_one_sentence(one: Record, words: str) -> None:
    with pytest.raises(RecordError) as error:
        tables([one])
    assert str(error.value).startswith(f"record {one.cell_id}: ")
    assert words in str(error.value)
    assert "\n" not in str(error.value)
