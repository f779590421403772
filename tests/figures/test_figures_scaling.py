"""Figure scaling: what its page says of made-up steps on two ranks and of models on paper."""

from __future__ import annotations

import io
from typing import Any

import pandas as pd
import pytest
from made_up_records import CUDA
from made_up_scaling import RATES, STEPS, measured, on_paper, scaling_campaign, varied

from bench.core.record import Record
from bench.estimate.communication import LINKS
from figures.artifacts.beyond.distributed import scaling
from figures.artifacts.beyond.distributed.paper import QUICKEST, Case, arm_of, rate_words
from figures.claims.claims import read_claims
from figures.page.drawn import Drawn
from figures.registry import artifacts


def page_of(records: list[Record]) -> Drawn:
    [page] = artifacts()["scaling"].render(records, read_claims())
    return page


def tables(records: list[Record]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The CSV's lines, and a line per measured step by arm and link."""
    [page] = scaling.select(records)
    table = scaling.table(page)
    steps = scaling.measured(page, table)
    return table, steps.set_index(["arm", "link"]) if len(steps) else steps


def about(records: list[Record]) -> dict[str, Any]:
    [page] = scaling.select(records)
    return scaling.about(page, scaling.table(page))


@pytest.fixture(scope="module")
def page() -> Drawn:
    return page_of(scaling_campaign())


def test_a_page_has_a_line_per_arm_and_its_files(page) -> None:
    table = page.table.set_index("arm")
    assert list(table.index)[:2] == ["comera", "low_rank@size"]
    assert len(table) == len(STEPS)
    steps = [name for name in table if name.startswith("step, ms, ")]
    assert steps == [f"step, ms, {words}" for words in ("10 Mbit/s", "100 Mbit/s", "1 Gbit/s", "10 Gbit/s")]
    value, ratio = table.loc["dense", "step, ms, 100 Mbit/s"].split()
    own = float(table.loc["comera", "step, ms, 100 Mbit/s"].replace(",", ""))
    assert float(ratio.strip("(x)")) == pytest.approx(float(value.replace(",", "")) / own, rel=0.05)
    assert {name.rpartition(".")[2] for name in page.files} == {"png", "svg", "md", "csv"}
    assert page.files[next(name for name in page.files if name.endswith("png"))].startswith(b"\x89PNG")
    assert not page.verdicts


def test_what_is_sent_and_held_is_counted_per_step_and_rank() -> None:
    _, steps = tables(scaling_campaign())
    ours, fewest = (steps.loc[(arm, "1 Gbit/s")] for arm in ("comera", "dense+powersgd_4"))
    assert ours["sent_analytic_mib"] / fewest["sent_analytic_mib"] == pytest.approx(3.52, rel=0.01)
    assert ours["sent_interface_mib"] == pytest.approx(1.006 * ours["sent_buckets_mib"])
    assert ours["exchange_memory_mib"] == ours["sent_buckets_mib"]


def test_a_ratio_is_to_comera_over_the_same_link() -> None:
    _, steps = tables(scaling_campaign())
    for (_, link), one in steps.iterrows():
        own = steps.loc[("comera", link), "step_time_ms"]
        if one.name[0] != "comera":  # type: ignore[index]
            assert one["time_over_comera"] == pytest.approx(one["step_time_ms"] / own, rel=0.08)
            assert one["time_over_comera_low"] <= one["time_over_comera"] <= one["time_over_comera_high"]
    assert steps.loc["comera", "time_over_comera"].isna().all()


def test_the_page_says_whether_the_model_holds() -> None:
    found = about(scaling_campaign())["fit"]
    assert (found["near"], found["of"]) == (32, 32)
    apart = [measured(arm, mbit, 1.4 if arm == "dense" and mbit == 100.0 else 1.0) for mbit in RATES for arm in STEPS]
    found = about([*apart, *on_paper()])["fit"]
    assert (found["near"], found["of"], found["arm"], found["link"]) == (31, 32, "dense", "100 Mbit/s")
    assert found["worst"] == pytest.approx(1 / 1.4 - 1, abs=0.05)


def test_what_the_exchange_computes_is_from_other_rates_alone() -> None:
    """PowerSGD's own work, 500 ms beside 1,600, is known from a second rate; with one rate nothing of it is."""
    one = about([*(measured(arm, 1000.0) for arm in STEPS), *on_paper()])["fit"]
    assert (one["near"], one["of"], one["arm"]) == (6, 8, "dense+powersgd_32")
    two = about([*(measured(arm, mbit) for arm in STEPS for mbit in (1000.0, 10_000.0)), *on_paper()])["fit"]
    assert (two["near"], two["of"]) == (16, 16)


def test_each_step_is_held_against_the_compute_measured_with_it() -> None:
    """A machine that is twice as slow while one rate is measured is no error of the model."""
    slow = Record(**{**vars(measured("comera", 1000.0)), "compute_time_ms": 600.0})
    slower = Record(**{**vars(slow), "samples": measured("comera", 1000.0, 659 / 359).samples})
    found = about([measured("comera", 100.0), slower, measured("comera", 10_000.0), *on_paper()])["fit"]
    assert (found["near"], found["of"]) == (3, 3)


def test_buckets_and_local_steps_are_arms_of_their_own() -> None:
    changes = ({"bucket_mib": 1.0}, {"bucket_mib": 25.0}, {"exchange": "local_steps", "local_steps": 4}, {})
    some = [
        Record(**{**vars(measured("comera", mbit)), **one, "cell_id": f"{mbit}-{place}", "pairing": str(place)})
        for mbit in (100.0, 1000.0)
        for place, one in enumerate(changes)
    ]
    _, steps = tables([*some, *on_paper()])
    local = "comera+local_steps, every 4"
    assert set(steps.index.get_level_values("arm")) == {
        *("comera", "comera, buckets of 1 MiB", "comera, buckets of 25 MiB", local)
    }
    assert steps.loc[(local, "100 Mbit/s"), "model_ms"] < steps.loc[("comera", "100 Mbit/s"), "model_ms"]
    page = page_of([*some, *on_paper()])
    assert page.table.set_index("arm").loc[local, "step, ms, 1 Gbit/s"].endswith("x ‡)")
    assert any(note.startswith("‡") for note in page.notes)
    assert page.files[next(name for name in page.files if name.endswith("png"))]


def test_without_parameters_on_paper_nothing_of_powersgd_is_modelled() -> None:
    _, steps = tables([measured(arm, mbit) for mbit in RATES for arm in STEPS])
    modelled = set(steps[steps["model_ms"].notna()].index.get_level_values("arm"))
    assert "dense" in modelled
    assert not any("powersgd" in arm for arm in modelled)


def with_blocks(record: Record) -> Record:
    """A record on paper that tells of each parameter whether it is in a block; here matrices are."""
    rows = [{**row, "in_block": row["kind"] == "matrix"} for row in record.samples["tensors"]]
    return Record(**{**vars(record), "samples": {**record.samples, "tensors": rows}})


@pytest.mark.parametrize(
    ("paper", "is_modelled"),
    [(on_paper(), False), ([with_blocks(one) for one in on_paper()], True), ([], False)],
    ids=["older code", "places known", "no paper"],
)
def test_fsdp2_is_modelled_where_the_places_of_parameters_are_known(paper, is_modelled) -> None:
    shards = [varied(measured("dense", mbit), "scaling", 1.0, exchange="fsdp2") for mbit in RATES]
    _, steps = tables([*(measured(arm, mbit) for mbit in RATES for arm in ("comera", "dense")), *shards, *paper])
    found = steps["model_ms"].notna().groupby("arm").all()
    assert dict(found) == {"comera": True, "dense": True, "dense+fsdp2": is_modelled}


def test_the_model_alone_is_a_page_that_says_so() -> None:
    page = page_of(on_paper())
    assert page.title == "Bytes and time of a step on several ranks, on paper"
    assert "Nothing measured" in page.facts[1]
    assert len(page.table) == 0
    assert page.files[next(name for name in page.files if name.endswith("svg"))]


def test_a_link_without_a_limit_stands_apart_and_a_failed_step_says_why() -> None:
    records = [measured(arm, mbit) for mbit in (100.0, None) for arm in ("comera", "dense")]
    failed = {"status": "oom", "message": "no memory.", "samples": {}, "step_time_median_ms": None}
    broken = Record(**{**vars(measured("lora", 100.0)), **failed})
    page = page_of([*records, broken, *on_paper()])
    assert list(page.table.columns[3:]) == ["step, ms, 100 Mbit/s", "step, ms, not limited"]
    assert page.table.set_index("arm").loc["lora"].tolist()[2:] == ["oom", "-"]
    assert "lora, 100 Mbit/s: no memory." in page.notes
    times = page.files._draw().axes[1]  # type: ignore[misc]
    assert "no limit" in [name.get_text() for name in times.get_xticklabels()]
    assert 40_000.0 in [x for line in times.lines if len(line.get_xdata()) == 1 for x in line.get_xdata()]


def test_points_are_the_table_s(page) -> None:
    table, steps = tables(scaling_campaign())
    sent, times, *panels = page.files._draw().axes  # type: ignore[misc]
    points = [(x, y) for line in times.lines if len(line.get_xdata()) == 1 for x, y in [*zip(*line.get_data())]]  # noqa: B905
    assert sorted(points) == sorted(zip(steps["mbit"], steps["step_time_ms"], strict=True))
    own = sorted(x for line in sent.lines if line.get_marker() == "o" for x in line.get_xdata())
    assert own == sorted(steps.groupby("arm")["sent_buckets_mib"].median())
    weak = table[(table["quantity"] == "step, weak scaling") & (table["of"] == "encoder") & (table["arm"] == "comera")]
    ethernet = weak[weak["link"] == "Ethernet, 10 Gbit/s"]
    assert list(ethernet["value"]) in [list(line.get_ydata()) for line in panels[0].lines]


def test_the_arm_that_takes_least_covers_every_rate_of_each_case() -> None:
    table, _ = tables(scaling_campaign())
    winners = table[table["quantity"] == "least time up to"]
    assert list(dict.fromkeys(winners["of"])) == [
        *("encoder, 2 ranks, this machine", "encoder, 64 H100", "code model, 64 H100", "DLRM, 64 H100"),
    ]
    for _, part in winners.groupby("of"):
        assert part["value"].is_monotonic_increasing
        assert part["value"].iloc[-1] == QUICKEST
        assert (part["arm"] != part["arm"].shift()).all()
    curves = {"comera": lambda gbit: 10 + 1 / gbit, "dense": lambda gbit: 5 + 10 / gbit}
    assert [(arm, high) for arm, _, high in Case("here", curves).winners] == [
        ("comera", pytest.approx(1.8, rel=1e-3)),
        ("dense", QUICKEST),
    ]


def test_devices_and_settings_stand_apart() -> None:
    other = [measured("comera", 100.0, device=CUDA), measured("dense", 100.0, device=CUDA)]
    pages = artifacts()["scaling"].render([*scaling_campaign(), *other], read_claims())
    assert len(pages) == 2
    four = Record(**{**vars(measured("comera", 100.0)), "world_size": 4, "cell_id": "four"})
    page = page_of([*scaling_campaign(), four])
    assert any("of another setting: ranks 4, not 2." in note for note in page.notes)


def test_the_csv_has_the_model_on_paper(page) -> None:
    lines = pd.read_csv(io.BytesIO(next(data for name, data in page.files.items() if name.endswith("csv"))))
    weak = lines[(lines["quantity"] == "step, weak scaling") & (lines["of"] == "code")]
    assert set(weak["arm"]) == {arm_of("dense", one) for one in ("ddp", "ddp_bf16", "powersgd_4", "powersgd_32")} | {
        "comera",
        "low_rank@size",
    }
    assert weak[weak["link"].str.startswith("NVLink")]["ranks"].max() == 256
    assert weak[weak["link"].str.startswith("Ethernet")]["ranks"].max() == 1024
    slow = weak[(weak["ranks"] == 8) & (weak["arm"] == "dense")].set_index("link")["value"]
    assert slow["Ethernet, 1 Gbit/s"] > slow["Ethernet, 10 Gbit/s"] > slow["InfiniBand NDR, 400 Gbit/s"]


def test_weak_scaling_keeps_the_batch_of_a_rank_and_strong_the_rows_of_all() -> None:
    [page] = scaling.select(scaling_campaign())
    one = next(paper for paper in page.papers if (paper.workload, paper.arm) == ("encoder", "comera"))
    table, link = scaling.table(page), LINKS["ethernet_10"]
    own = table[(table["of"] == "encoder") & (table["arm"] == "comera") & (table["link"] == link.words)]
    at_eight = own[own["ranks"] == 8].set_index("quantity")["value"]
    assert at_eight["step, weak scaling"] == one.training(32).step_ms(8, link)
    assert at_eight["step, strong scaling"] == one.training(32 * 32 / 8).step_ms(8, link)


def test_rates_in_words() -> None:
    assert [rate_words(rate) for rate in (0.05, 0.5, 1.0, 3600.0)] == [
        "50 Mbit/s",
        "500 Mbit/s",
        "1 Gbit/s",
        "3,600 Gbit/s",
    ]
