"""Figure scaling: what its page says of made-up steps on two ranks and of models on paper."""

from __future__ import annotations

import io
import math

import pandas as pd
import pytest
from made_up_records import CUDA
from made_up_scaling import RATES, STEPS, measured, on_paper, scaling_campaign, varied

from bench.core.record import Record
from figures.artifacts.beyond.distributed.paper import Case, arm_of, rate_words
from figures.claims.claims import read_claims
from figures.page.drawn import Drawn
from figures.registry import artifacts


def page_of(records: list[Record]) -> Drawn:
    [page] = artifacts()["scaling"].render(records, read_claims())
    return page


def note(page: Drawn, words: str) -> str:
    return next((one for one in page.notes if words in one), "")


@pytest.fixture(scope="module")
def page() -> Drawn:
    return page_of(scaling_campaign())


def test_what_goes_against_comera_comes_first(page) -> None:
    assert page.notes[0].startswith("PowerSGD of rank 4 sends 3.52 times fewer bytes than CoMERA: 1.60 MiB")
    assert "error buffer" in page.notes[0]
    rival = note(page, "that of dense+powersgd_4")
    assert "encoder, 2 ranks, this machine: above 20 Mbit/s" in rival
    assert not page.verdicts


def test_a_page_has_a_row_per_step_and_its_files(page) -> None:
    assert len(page.table) == len(RATES) * len(STEPS)
    dense = page.table[(page.table["arm"] == "dense") & (page.table["link"] == "100 Mbit/s")].iloc[0]
    assert dense["/ comera"].startswith("29.")
    assert {name.rpartition(".")[2] for name in page.files} == {"png", "svg", "md", "csv"}
    assert page.files[next(name for name in page.files if name.endswith("png"))].startswith(b"\x89PNG")


def test_the_page_says_whether_the_model_holds(page) -> None:
    assert note(page, "The model is within 15% of the measured steps: 32 of 32 are")
    apart = [measured(arm, mbit, 1.4 if arm == "dense" and mbit == 100.0 else 1.0) for mbit in RATES for arm in STEPS]
    found = note(page_of([*apart, *on_paper()]), "The model is not within 15% of the measured steps: 31 of 32 are")
    assert "the farthest is dense at 100 Mbit/s, -2" in found


def test_what_the_exchange_computes_is_from_other_rates_alone() -> None:
    """PowerSGD's own work, 500 ms beside 1,600, is known from a second rate; with one rate nothing of it is."""
    one = page_of([*(measured(arm, 1000.0) for arm in STEPS), *on_paper()])
    assert note(one, "is not within 15% of the measured steps: 6 of 8 are; the farthest is dense+powersgd_32")
    two = page_of([*(measured(arm, mbit) for arm in STEPS for mbit in (1000.0, 10_000.0)), *on_paper()])
    assert note(two, "is within 15% of the measured steps: 16 of 16 are")


def test_each_step_is_held_against_the_compute_measured_with_it() -> None:
    """A machine that is twice as slow while one rate is measured is no error of the model."""
    slow = Record(**{**vars(measured("comera", 1000.0)), "compute_time_ms": 600.0})
    slower = Record(**{**vars(slow), "samples": measured("comera", 1000.0, 659 / 359).samples})
    page = page_of([measured("comera", 100.0), slower, measured("comera", 10_000.0), *on_paper()])
    assert note(page, "The model is within 15% of the measured steps: 3 of 3 are")


def test_buckets_and_local_steps_are_arms_of_their_own() -> None:
    changes = ({"bucket_mib": 1.0}, {"bucket_mib": 25.0}, {"exchange": "local_steps", "local_steps": 4}, {})
    some = [
        Record(**{**vars(measured("comera", mbit)), **one, "cell_id": f"{mbit}-{place}", "pairing": str(place)})
        for mbit in (100.0, 1000.0)
        for place, one in enumerate(changes)
    ]
    page = page_of([*some, *on_paper()])
    expected = {"comera", "comera, buckets of 1 MiB", "comera, buckets of 25 MiB", "comera+local_steps, every 4"}
    assert {str(arm).removesuffix(" ‡") for arm in page.table["arm"]} == expected
    assert note(page, "‡ ratio unpaired")
    steps = page.table[page.table["link"] == "100 Mbit/s"].set_index("arm")["model, ms"].astype(float)
    assert steps["comera+local_steps, every 4 ‡"] < steps["comera"]
    assert page.files[next(name for name in page.files if name.endswith("png"))]


def test_without_parameters_on_paper_nothing_of_powersgd_is_modelled() -> None:
    page = page_of([measured(arm, mbit) for mbit in RATES for arm in STEPS])
    modelled = page.table[page.table["model, ms"] != "-"]["arm"]
    assert "dense" in set(modelled)
    assert not any("powersgd" in arm for arm in modelled)
    assert not note(page, "On paper a rank is")


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
    page = page_of([*(measured(arm, mbit) for mbit in RATES for arm in ("comera", "dense")), *shards, *paper])
    found = {arm.partition(" ")[0]: model != "-" for arm, model in page.table[["arm", "model, ms"]].itertuples(False)}
    assert found == {"comera": True, "dense": True, "dense+fsdp2": is_modelled}


def test_the_model_alone_is_a_page_that_says_so() -> None:
    page = page_of(on_paper())
    assert page.title == "Bytes and time of a step on several ranks, on paper"
    assert "Nothing measured" in page.facts[1]
    assert len(page.table) == 0
    assert page.files[next(name for name in page.files if name.endswith("svg"))]


def test_a_link_without_a_limit_stands_apart_and_a_failed_step_says_why() -> None:
    records = [measured(arm, mbit) for mbit in (100.0, None) for arm in ("comera", "dense")]
    failed = {"status": "oom", "message": "no memory", "samples": {}, "step_time_median_ms": None}
    broken = Record(**{**vars(measured("lora", 100.0)), **failed})
    page = page_of([*records, broken, *on_paper()])
    assert list(page.table["link"].unique()) == ["100 Mbit/s", "not limited"]
    [row] = [one for one in page.table.to_dict("records") if one["arm"] == "lora"]
    assert (row["step, ms"], row["remarks"]) == ("oom", "no memory")
    assert page.files[next(name for name in page.files if name.endswith("png"))]


def test_devices_and_settings_stand_apart() -> None:
    other = [measured("comera", 100.0, device=CUDA), measured("dense", 100.0, device=CUDA)]
    pages = artifacts()["scaling"].render([*scaling_campaign(), *other], read_claims())
    assert len(pages) == 2
    four = Record(**{**vars(measured("comera", 100.0)), "world_size": 4, "cell_id": "four"})
    page = page_of([*scaling_campaign(), four])
    assert note(page, "1 measurements are left out, of another setting: ranks 4, not 2.")


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


def test_cases_in_words() -> None:
    curves = {"comera": lambda gbit: 10 + 1 / gbit, "dense": lambda gbit: 5 + 10 / gbit, "lora": lambda _: 1000.0}
    case = Case("here", curves)
    assert case.sentence("dense") == "here: below 1.8 Gbit/s"
    assert case.sentence("lora") == "here: at every rate"
    assert case.sentence("galore") == ""
    assert case.below("comera", "lora") == math.inf
    assert Case("here", {**curves, "dense": lambda _: 1.0}).sentence("dense") == "here: at none"
    slower = {**curves, "dense": lambda gbit: 2 + 0.5 / gbit + gbit}
    assert Case("here", slower).sentence("dense") == "here: above 8.1 Gbit/s"
    assert [rate_words(rate) for rate in (0.05, 0.5, 1.0, 3600.0)] == [
        "50 Mbit/s",
        "500 Mbit/s",
        "1 Gbit/s",
        "3,600 Gbit/s",
    ]
