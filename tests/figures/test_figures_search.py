"""The table of settings tried: a row per run, what differs between them, which came out best, failures included."""

from __future__ import annotations

import dataclasses
import io
import itertools
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made_up_records import CPU, CUDA
from made_up_training import EARLY_SIZE, other_run, pages_of, point, ranks, text_of, trained, training_campaign

from bench.core.record import Record, write
from figures.__main__ import main
from figures.artifacts.tables.search import about, short, table
from figures.page.drawn import Drawn
from figures.records.studies import searches
from figures.registry import artifacts

RATES, LATE, *_ = artifacts()["table_search"].experiments
RATE_WEIGHTS = {"size_weight": 10.0, "rho": 1.0}


def tried(
    arm: str, right: int, stage: str = "early", target: float | None = None, experiment: str = RATES, **columns: Any
) -> Record:
    """A run with so many of ten answers right; without a status to say it finished."""
    settings, seed = columns["method_settings"], columns.get("seed", 0)
    step = 600 if stage == "early" else 900
    shape = {} if arm == "dense" else ranks(target or 1.0)
    curve = None if "status" in columns else [point([i < right for i in range(10)], step, stage, shape)]
    sizes = {} if arm == "dense" or curve is None else EARLY_SIZE
    known = {"train_loss": 0.62895} if curve else {}
    name = "-".join(map(str, (arm, stage, target, seed, *settings.values()))).replace(":", "-")
    return trained(arm, stage, target, curve, **({"experiment": experiment, "cell_id": name} | sizes | known | columns))


def comera(lr_cores: float, lr_dense: float, right: int, **columns: Any) -> Record:
    settings = {"lr_cores": lr_cores, "gamma": 0.01, "lr_dense": lr_dense, **RATE_WEIGHTS}
    return tried("comera", right, method_settings=settings, **columns)


def dense(lr: float, right: int, **columns: Any) -> Record:
    return tried("dense", right, method_settings={"lr": lr}, **columns)


def rates() -> list[Record]:
    """Three settings per arm, the highest ones failed or no better than guessing."""
    return [
        comera(1e-3, 5e-4, 0, status="diverged", message="made up: NaN after 12 steps."),
        comera(1e-4, 5e-5, 6),
        comera(3e-4, 1.5e-4, 7),
        dense(1.25e-4, 5),
        dense(5e-5, 8),
        dense(2e-5, 7),
    ]


def late(size_weight: float, right: int, size: float, rho: float = 1.0, **columns: Any) -> Record:
    settings = {"lr_cores": 3e-4, "rho": rho, "size_weight": size_weight}
    sizes = {"size_fraction": size, "size_target": 0.5}
    return tried("comera", right, "late", 0.5, LATE, method_settings=settings, **(sizes | columns))


def render(records: list[Record]) -> list[Drawn]:
    return pages_of("table_search", records)


def table_of(records: list[Record]) -> pd.DataFrame:
    [drawn] = render(records)
    return drawn.table


def best_of(records: list[Record]) -> list[str]:
    table = table_of(records)
    return list(table["settings"][table["best"] == "best"])


def test_each_run_has_a_row_with_what_differs_and_its_numbers() -> None:
    table = table_of(rates())
    assert list(zip(table["arm"], table["settings"], strict=True)) == [
        ("dense", "lr 2e-5"),
        ("dense", "lr 5e-5"),
        ("dense", "lr 1.25e-4"),
        ("comera", "lr_cores 1e-4, lr_dense 5e-5"),
        ("comera", "lr_cores 3e-4, lr_dense 1.5e-4"),
        ("comera", "lr_cores 1e-3, lr_dense 5e-4"),
    ]
    row = table.iloc[4]
    assert (row["stage"], row["seed"], row["accuracy, %"]) == ("early", "0", "70.0 [39.7, 89.2]")
    assert (row["best"], row["at an edge"]) == ("best", "inside")
    assert not {"S", "S0"} & {*table.columns}  # no run aimed at a size


def test_csv_has_a_column_per_differing_setting() -> None:
    [drawn] = render(rates())
    tidy = pd.read_csv(io.StringIO(text_of(drawn, ".csv")))
    assert [name for name in tidy.columns if name.startswith("setting_")] == [
        "setting_lr",
        "setting_lr_cores",
        "setting_lr_dense",
    ]
    assert tidy["setting_lr_cores"].dropna().tolist() == [1e-4, 3e-4, 1e-3]
    assert tidy["best"].tolist() == [False, True, False, False, True, False]
    assert tidy["status"].tolist() == ["ok"] * 5 + ["diverged"]
    assert tidy["train_steps"].dropna().tolist() == [600] * 5
    assert tidy["train_loss"].dropna().tolist() == [0.62895] * 5
    assert tidy["size_fraction"].tolist()[3:5] == [1.0, 1.0]


def test_failed_runs_are_shown_with_their_reason() -> None:
    [drawn] = render(rates())
    row = drawn.table.iloc[5]
    assert row["accuracy, %"] == "diverged"
    assert "| diverged |" in text_of(drawn, ".md")
    assert "made up: NaN after 12 steps." in text_of(drawn, ".md")
    said = "comera, early, lr_cores 1e-3, lr_dense 5e-4, seed 0: diverged: made up: NaN after 12 steps.\n"
    assert said in drawn.to_text()


def test_where_every_run_failed_none_is_best() -> None:
    failed = [comera(rate, rate, 0, status=status) for rate, status in ((1e-3, "diverged"), (1e-4, "timeout"))]
    [drawn] = render(failed)
    assert best_of(failed) == []
    assert list(drawn.table["accuracy, %"]) == ["timeout", "diverged"]
    assert "Equal budget: 2 tries per arm." in drawn.notes


@pytest.mark.parametrize(
    ("records", "best"),
    [
        (rates(), ["lr 5e-5", "lr_cores 3e-4, lr_dense 1.5e-4"]),
        ([dense(2e-5, 7), dense(5e-5, 7)], []),  # alike
        ([dense(2e-5, 7), dense(5e-5, 7), dense(1e-4, 6)], ["lr 2e-5", "lr 5e-5"]),
        ([dense(2e-5, 7)], []),  # of one try nothing was chosen
        ([dense(2e-5, 5), dense(2e-5, 9, seed=1), dense(5e-5, 8), dense(5e-5, 8, seed=1)], ["lr 5e-5", "lr 5e-5"]),
        ([dense(2e-5, 6), dense(5e-5, 8), dense(5e-5, 0, seed=1, status="diverged")], ["lr 2e-5"]),
        ([late(1.0, 9, 0.53), late(10.0, 8, 0.45), late(100.0, 3, 0.36)], ["size_weight 10 (price of size 11)"]),
    ],
)
def test_best_is_the_highest_accuracy_that_reached_its_size(records: list[Record], best: list[str]) -> None:
    assert best_of(records) == best


def edges_of(records: list[Record]) -> dict[str, set[str]]:
    """By arm, what the CSV says of the places of the best values."""
    [drawn] = render(records)
    tidy = pd.read_csv(io.StringIO(text_of(drawn, ".csv")), keep_default_na=False)
    assert list(tidy["best_edge"]) == ["" if cell == "-" else cell for cell in drawn.table["at an edge"]]
    return {arm: set(found) - {""} for arm, found in tidy.groupby("arm")["best_edge"]}


@pytest.mark.parametrize("count", [2, 3, 4, 6])
def test_a_best_is_at_an_edge_exactly_where_nothing_was_tried_beyond_it(count: int) -> None:
    rates = [1e-4 * 2**power for power in range(count)]
    for best in range(count):
        records = [dense(rate, 9 if place == best else 8 - place % 2) for place, rate in enumerate(rates)]
        expected = {0: "lr lowest", count - 1: "lr highest"}.get(best, "inside")
        assert edges_of(records) == {"dense": {expected}}
        [drawn] = render(records[::-1])
        [said] = [note for note in drawn.notes if f"dense (lr {short(rates[best])}, " in note] or [""]
        assert (f"of {count})" in said) == (expected != "inside")


def test_a_search_is_judged_for_each_dataset_and_each_arm() -> None:
    rates, first, second = (1e-4, 1e-3, 1e-2), (5, 7, 9), (9, 7, 5)
    records = [
        tried(arm, right, method_settings={"lr": rate}, dataset=name, cell_id=f"{arm}-{name}-{rate}", data_hash=name)
        for arm, name, reached in (("dense", "sst2", first), ("low_rank", "sst2", second), ("dense", "mnli", second))
        for rate, right in zip(rates, reached, strict=True)
    ]
    found = {}
    for page in render(records):
        tidy = pd.read_csv(io.StringIO(text_of(page, ".csv")), keep_default_na=False)
        found |= {
            (dataset, arm): edge
            for dataset, arm, edge in zip(tidy["dataset"], tidy["arm"], tidy["best_edge"], strict=True)
            if edge
        }
    assert found == {("sst2", "dense"): "lr highest", ("sst2", "low_rank"): "lr lowest", ("mnli", "dense"): "lr lowest"}


@pytest.mark.parametrize(
    ("records", "edge"),
    [
        ([dense(2e-5, 7)], {"not searched"}),
        ([dense(2e-5, 7), dense(2e-5, 8, seed=1)], {"not searched"}),
        ([dense(2e-5, 7), dense(5e-5, 7)], set()),  # alike: none is best
        ([dense(2e-5, 7), dense(5e-5, 7), dense(1e-4, 6)], {"inside"}),  # one of two alike
        ([dense(2e-5, 6), dense(5e-5, 8), dense(1e-4, 0, status="diverged")], {"inside"}),  # beyond it was a failure
        ([dense(2e-5, 6), dense(5e-5, 0, status="diverged")], {"lr lowest"}),
    ],
)
def test_one_value_is_no_search_and_a_failed_run_was_tried(records: list[Record], edge: set[str]) -> None:
    assert edges_of(records) == {"dense": edge}


def test_settings_that_move_together_are_judged_each_by_its_own_values() -> None:
    def lte(alpha: float, lr: float, right: int) -> Record:
        return tried("lte", right, method_settings={"alpha": alpha, "lr": lr, "scope": "all", "bias": True})

    tangled = [lte(64.0, 1e-4, 9), lte(4096.0, 5e-5, 5), lte(4096.0, 5e-4, 6)]
    assert edges_of(tangled) == {"lte": {"alpha lowest"}}  # lr inside
    as_one = [lte(64.0, 1e-5, 5), lte(512.0, 1e-4, 9), lte(4096.0, 1e-3, 6)]
    assert edges_of(as_one) == {"lte": {"inside"}}
    grid = [lte(a, r, 9 if (a, r) == (64.0, 1e-4) else 5) for a, r in itertools.product((64.0, 512.0), (1e-4, 1e-3))]
    assert edges_of(grid) == {"lte": {"alpha lowest, lr lowest"}}
    found = [about(page, table(page))["slots"] for records in (tangled, as_one, grid) for page in searches(records)]
    assert [[slot.tangled for slot in slots] for slots in found] == [[True], [False], [False]]


def test_a_late_stage_shows_its_size_and_the_price_of_it() -> None:
    early = tried("comera", 9, experiment=LATE, method_settings={"lr_cores": 3e-4, "rho": 1.0, "size_weight": 1.0})
    [drawn] = render([late(1000.0, 5, 0.36), late(1.0, 9, 0.53), early])
    table = drawn.table
    assert list(table["stage"]) == ["early", "late 0.5", "late 0.5"]
    assert list(table["settings"]) == [
        "size_weight 1",
        "size_weight 1 (price of size 2)",
        "size_weight 1000 (price of size 1001)",
    ]
    assert list(table["S0"]) == ["-", "0.500", "0.500"]
    assert list(table["S <= S0"]) == ["-", "no", "yes"]
    assert any(note.startswith("price of size: 1 + size_weight / rho") for note in drawn.notes)
    assert "Each run trains 600 steps (early), 900 steps (late 0.5)." in drawn.notes
    assert "Unequal budget, tries: comera, early: 1; comera, late 0.5: 2." in drawn.notes


def test_the_price_follows_rho_and_is_absent_without_it() -> None:
    table = table_of([late(10.0, 8, 0.4, rho=rho) for rho in (0.0, 0.3, 1.0)])
    assert list(table["settings"]) == ["rho 0", "rho 0.3 (price of size 34.33)", "rho 1 (price of size 11)"]


def test_the_budget_is_counted_and_no_claim_is_judged() -> None:
    [drawn] = render(rates())
    assert {"Each run trains 600 steps.", "Equal budget: 3 tries per arm."} <= {*drawn.notes}
    assert drawn.verdicts == ()
    [drawn] = render(rates()[:-1])
    assert "Unequal budget, tries: dense: 2; comera: 3." in drawn.notes


def test_variants_are_arms_of_their_own() -> None:
    table = table_of(
        [
            tried("low_rank", 8, method_settings={"lr": 1e-3}),
            tried("low_rank", 7, method_settings={"lr": 1e-4}),
            tried("low_rank:linear", 6, method_settings={"lr": 1e-3}),
            tried("low_rank:linear", 5, method_settings={"lr": 1e-4}),
        ]
    )
    assert list(table["arm"][table["best"] == "best"]) == ["low_rank", "low_rank:linear"]


def test_device_dataset_and_experiment_have_tables_of_their_own() -> None:
    records = [*rates(), late(1.0, 9, 0.53), *(dataclasses.replace(one, device=CUDA) for one in rates())]
    drawn = render(records)
    assert {(one.device, one.title) for one in drawn} == {
        (CPU, f"Settings tried in {RATES}: sst2"),
        (CUDA, f"Settings tried in {RATES}: sst2"),
        (CPU, f"Settings tried in {LATE}: sst2"),
    }
    assert len({name for one in drawn for name in one.files}) == 6


def test_the_newest_record_of_a_setting_is_shown_and_other_budgets_are_left_out() -> None:
    again = dataclasses.replace(dense(5e-5, 9), recorded_at="2009-01-01T00:00:00+00:00", cell_id="z", code_id="code-b")
    shorter = dense(5e-5, 9, training={"stages": [{"name": "early", "steps": 5}]})
    [drawn] = render([*rates(), again, dataclasses.replace(shorter, cell_id="short")])
    row = drawn.table.iloc[1]
    assert (row["accuracy, %"][:4], row["arm"]) == ("90.0", "dense")
    assert set(drawn.table["arm"].drop(1)) == {"dense †", "comera †"}
    page = text_of(drawn, ".md")
    assert "1 further training record(s) of the cells shown are left out" in page
    assert "of another setting: early steps 5, not 600." in page


def test_settings_read_as_in_a_config() -> None:
    assert [short(value) for value in (0.0, 1e-3, 1.25e-4, 0.05, 30, True, None, "optimized")] == [
        "0",
        "1e-3",
        "1.25e-4",
        "0.05",
        "30",
        "true",
        "null",
        "optimized",
    ]


def test_the_files_are_called_after_device_data_and_experiment() -> None:
    records = [*rates(), late(1.0, 9, 0.53), late(10.0, 8, 0.45)]
    files = {name: content for page in render(records) for name, content in page.files.items()}
    stems = [f"table_search-made-up-cpu-2-threads-sst2-{name.replace('_', '-')}" for name in (RATES, LATE)]
    assert set(files) == {f"{stem}.{ending}" for stem in stems for ending in ("md", "csv")}
    assert {name: content for page in render(records[::-1]) for name, content in page.files.items()} == files


@pytest.mark.parametrize(("metric", "values", "best"), [("auc", (0.7, 0.8), "lr 2"), ("loss", (0.7, 0.8), "lr 1")])
def test_best_follows_the_direction_of_the_metric(metric: str, values: tuple[float, float], best: str) -> None:
    runs = [
        other_run("dense", [value], metric, method_settings={"lr": lr}, cell_id=str(lr), experiment=RATES)
        for lr, value in enumerate(values, start=1)
    ]
    [page] = render(runs)
    assert list(page.table["settings"][page.table["best"] == "best"]) == [best]
    words = {"auc": "best: the highest AUC of an arm", "loss": "best: the lowest loss of an arm"}[metric]
    assert words in text_of(page, ".md")
    assert "100 warm-up steps" in text_of(page, ".md")


def test_either_experiment_is_enough_and_neither_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, records, status in (("late", [late(1.0, 9, 0.53)], 0), ("neither", training_campaign(), 2)):
        write(records, tmp_path / name)
        out = tmp_path / f"{name}-out"
        assert main(["table_search", "--records", str(tmp_path / name), "--out", str(out)]) == status
        assert out.is_dir() == (status == 0)
    assert capsys.readouterr().err == (
        f"{tmp_path / 'neither'}: no training record below "
        "accuracy_search/ or late_search/ or code_search/ or code_prices/ or code_stages_search/ or dlrm_search/; "
        "make some with: python -m bench experiment=accuracy_search.\n"
    )
