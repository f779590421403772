"""The committed records: those that were made under schema 1 are there, with the same values and identities."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from small_cells import ROOT

from bench.core.cell import Cell
from bench.core.record import Record, paths_below, read_all
from bench.core.table import as_csv, line_of, readme, table_path
from bench.core.times import epoch_time_s
from bench.core.vocabulary import BAG_OF_WORDS
from bench.protocol import Data
from bench.workloads import open_cell_workload, recorded_words

REFERENCE = ROOT / "results" / "reference"

#: By experiment and cell, a hash of what the record's file held before the records were carried over from schema 1. A
#: record that is measured anew leaves it. It leaves out the epoch time, which follows from the samples.
CARRIED_OVER = json.loads(Path(__file__).with_name("reference_records.json").read_text())


@pytest.fixture(scope="module")
def records() -> list[Record]:
    """All of them; reading refuses another schema, and a record that lies where it does not belong."""
    return read_all(REFERENCE)


def as_version_1(content: dict[str, Any]) -> dict[str, Any]:
    """The content of a record's file as schema 1 had it."""
    old = {**content, "schema_version": 1, "samples": dict(content["samples"])}
    del old["workload_words"]
    old["samples"].pop("reach", None)  # which the sentence of schema 1 had alone
    if old["measure"] == "allocator_peak":
        old["measure"] = "witness"
        old["config_json"] = old["config_json"].replace('"measure":"allocator_peak"', '"measure":"witness"')
    old |= {f"validation_{name}": value for name, value in old.pop("metrics").items()}
    if "curve" in old["samples"]:
        old["samples"]["curve"] = [point_as_version_1(row) for row in old["samples"]["curve"]]
    return old


def point_as_version_1(row: dict[str, Any]) -> dict[str, Any]:
    old = dict(row)
    answers = old.pop("per_example")
    assert answers["count"] == old["validation_examples"]
    return (
        old | {f"validation_{name}": value for name, value in old.pop("metrics").items()} | {"correct": answers["bits"]}
    )


def digest(content: dict[str, Any]) -> str:
    """What is null or empty counts as missing, since it reads the same."""
    old = {name: value for name, value in as_version_1(content).items() if name != "epoch_time_s"}
    kept = {name: value for name, value in old.items() if value is not None and value not in ("", {})}
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def test_every_record_of_schema_1_is_there_with_the_same_values():
    found = set()  # a cell may have been measured again on another device
    for path in paths_below(REFERENCE):
        content = json.loads(path.read_text())
        if content["cell_id"] in CARRIED_OVER.get(content["experiment"], {}):
            found.add((content["experiment"], content["cell_id"], digest(content)))
    assert sum(map(len, CARRIED_OVER.values())) == 179  # of 672: the others were made anew, or left with an experiment
    lost = {(e, c) for e, cells in CARRIED_OVER.items() for c in cells if (e, c, cells[c]) not in found}
    assert lost == set()


@pytest.mark.parametrize("change", [{"stored_mib": 1.0}, {"brand_new": 1}])
def test_the_hash_is_of_the_values(change):
    path = next(path for path in paths_below(REFERENCE, "accuracy"))
    content = json.loads(path.read_text())
    assert digest(content) == CARRIED_OVER["accuracy"][content["cell_id"]] != digest(content | change)


def test_the_epoch_time_of_every_record_with_blocks_is_that_of_its_samples(records):
    """What figures show is the same function of the samples."""
    timed = [record for record in records if record.status == "ok" and record.samples.get("blocks")]
    assert len(timed) > 400
    for record in timed:
        of_samples = epoch_time_s(record)
        assert (record.epoch_time_s is None) == (of_samples is None), record.cell_id
        assert (record.epoch_time_s or 0.0) == pytest.approx(of_samples or 0.0, rel=1e-9), record.cell_id


def test_the_words_that_schema_1_lacked_are_those_of_its_workloads(records):
    drawn = {(r.workload, r.dataset): r for r in records if r.dataset in ("synthetic", "normal", "uniform", "zipf")}
    assert {workload for workload, _ in drawn} == {"encoder", "linear", "lookup"}
    for (_, dataset), record in drawn.items():
        workload = open_cell_workload(Cell.from_json(record.config_json), Data(dataset))
        assert recorded_words(workload) == record.workload_words


def test_cells_have_the_identities_that_they_had_when_they_were_measured(records):
    """Adding columns, a new schema and a renamed measure have changed none."""
    for record in records:
        cell = Cell.from_json(record.config_json)
        assert cell.cell_id(record.data_hash) == record.cell_id
        assert (cell.to_json(), cell.measure) == (record.config_json, record.measure)


@pytest.mark.parametrize(
    "experiment", sorted({path.relative_to(REFERENCE).parts[0] for path in paths_below(REFERENCE)})
)
def test_the_committed_tables_are_current(experiment, records):
    """``python -m bench.core.table results/reference`` makes them anew."""
    lines = [line_of(record) for record in records if record.experiment == experiment]
    assert table_path(REFERENCE, experiment).read_text() == as_csv(lines)


def test_the_page_on_columns_is_current():
    """``python -m bench.core.table > results/README.md`` makes it anew."""
    assert (ROOT / "results" / "README.md").read_text() == readme()


def test_every_column_has_words():
    assert Record.__dataclass_fields__.keys() - {"samples", "extra"} == {
        name for name, column in Record.__dataclass_fields__.items() if column.metadata.get("text")
    }


def test_the_bag_of_words_that_words_name_is_the_recorded_one() -> None:
    recorded = {one.dataset: one.metrics["accuracy"] for one in read_all(REFERENCE, "probe")}
    own = {dataset: accuracy for dataset, accuracy in BAG_OF_WORDS.items() if dataset != "mnli"}
    assert own == {dataset: recorded[dataset] for dataset in own}
    assert BAG_OF_WORDS["mnli"] == recorded["nli_pool"]
