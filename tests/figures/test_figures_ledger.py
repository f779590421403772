"""The claims ledger: a rule for every claim, one verdict per device, and what its pages and their reader are told."""

import csv
import dataclasses
import io
import re
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
from made_up import CPU, CUDA, epochs, graphs, lookups, raced, record, stages_of_accuracy
from pages import CLAIMS, REFERENCE, ROOT, RULES, redrawn, refused

from bench.commands.reproduce import recorded
from bench.core.record import Record, read_all, write
from bench.errors import TERMINAL
from figures.__main__ import main
from figures.claims.claims import LEDGER, LedgerError, read_claims
from figures.ledger import judging
from figures.ledger.judging import Entry, judge, summary
from figures.ledger.pages import COMPARED, to_csv, to_markdown_page, to_text

IDS = list(CLAIMS)
PLAN = {"measure": "predict", "predicted_for": "cuda"}

#: Peaks in MiB, as small as those of the encoder at batch 1.
GALORE_MIB = {"comera": 71.5, "galore": 784.3}


def galore(ratio: float, device: str = CUDA) -> list[Record]:
    """GaLore takes ``ratio`` times as long as CoMERA at batch 1."""
    return raced({1: ratio}, "galore", device, spread=0.0)


def everything(device: str) -> list[Record]:
    return [
        *epochs(device),
        *galore(2.5, device),
        *stages_of_accuracy(device=device),
        *(lookups(4.5) if device == CUDA else []),
    ]


def entry_of(records: list[Record], claim: str) -> Entry:
    [entry] = judge(records, only={claim})
    return entry


def test_every_claim_has_exactly_one_rule_of_experiments_that_there_are() -> None:
    assert sorted(RULES) == sorted(IDS)
    for rule, owner in RULES.values():
        assert rule.expression
        assert rule.device in ("cpu", "cuda", "any")
        for experiment in owner.experiments:
            assert experiment in recorded()


def test_the_ledger_is_the_one_that_was_handed_over() -> None:
    original = ROOT.parent / "shared" / "paper" / "claims.csv"
    if not original.is_file():
        pytest.skip("the original is not at hand")
    assert LEDGER.read_bytes() == original.read_bytes()


def test_a_cpu_decides_nothing_that_is_about_a_gpu() -> None:
    for entry in judge(everything(CPU)):
        if entry.rule.device == "cuda" and entry.verdicts:
            assert (entry.outcome, [one.device for one in entry.verdicts]) == ("not tested here", [CPU])
            assert "about a GPU" in entry.why


def test_each_device_has_a_verdict_and_the_decided_ones_count() -> None:
    entry = entry_of(galore(2.5) + galore(5.0, CPU), "galore-time-b1")
    assert [(one.device, one.outcome) for one in entry.verdicts] == [(CPU, "not tested here"), (CUDA, "reproduced")]
    assert entry.outcome == "reproduced"
    assert CPU in entry.why
    assert CUDA in entry.why
    other = [dataclasses.replace(one, device="Made-up GPU 8000") for one in galore(0.5)]
    assert entry_of(galore(2.5) + other, "galore-time-b1").outcome == "partly"


def test_pages_of_one_device_that_disagree_make_it_partly_and_those_that_decide_nothing_do_not_count() -> None:
    [verdict] = entry_of(lookups(4.5, dataset="zipf") + lookups(0.5, dataset="uniform"), "lookup-time").verdicts
    assert verdict.outcome == "partly"
    assert "uniform: 0 of 3" in verdict.why
    assert "zipf: 3 of 3" in verdict.why
    bf16 = lookups(9.0, dataset="uniform", precision="bf16")
    [verdict] = entry_of(lookups(4.5, dataset="zipf") + bf16, "lookup-time").verdicts
    assert verdict.outcome == "reproduced"
    assert "uniform" not in verdict.ours_text


def test_experiments_that_no_rule_names_decide_nothing() -> None:
    small = [dataclasses.replace(one, experiment="accuracy_small") for one in stages_of_accuracy()]
    entry = entry_of(small, "mnli-late02-ratio")
    assert entry.verdicts == ()
    assert entry.why.endswith("make some: python -m bench experiment=accuracy.")


def test_without_records_every_claim_is_there_with_its_reason() -> None:
    entries = judge([])
    assert [entry.claim.id for entry in entries] == IDS
    assert {entry.outcome for entry in entries} == {"not tested here"}
    for entry in entries:
        assert entry.why.startswith("No record of" if entry.experiments else "No experiment of")


def test_the_pages_name_every_claim_and_count_what_they_say() -> None:
    entries = judge(everything(CPU) + everything(CUDA))
    text, markdown = to_text(entries), to_markdown_page(entries)
    assert " ".join(text.splitlines()[:3]).startswith(summary(entries))
    assert max(map(len, text.splitlines())) <= TERMINAL
    twice = {entry.claim.id for entry in judging.compared(entries)}  # they lead the page too
    on_beds = {entry.claim.id for entry in entries if entry.beds}  # they have a table on the Markdown page
    for printed in (text, markdown):
        words = re.findall(r"[\w-]+", printed)
        again = twice if printed is text else twice | on_beds
        assert {name: words.count(name) for name in IDS} == {name: 1 + (name in again) for name in IDS}
    published, fair = summary(entries).split(" With the fair baseline: ")
    for words, outcomes in (
        (published.partition(": ")[2], [entry.outcome for entry in entries]),
        (fair, [entry.fair_outcome for entry in entries]),
    ):
        counts = {outcome: int(count) for count, outcome in re.findall(r"(\d+) ([a-z ]+)", words)}
        assert {name: count for name, count in counts.items() if count} == dict(Counter(outcomes))


def test_what_the_fair_baseline_changes_leads_the_page() -> None:
    sizes = {"comera": 1e5, "galore": 9.2e5, "galore:per_layer": 2e5}
    entries = judge([record(arm, peak_memory_predicted_mib=size, **PLAN) for arm, size in sizes.items()])
    [entry] = judging.compared(entries)
    assert (entry.claim.id, entry.outcome, entry.fair_outcome) == ("galore-memory-b1", "predicted", "not reproduced")
    assert entry.is_changed
    assert "records decide 1 of them with the fair baseline, which changes 1 outcome." in judging.fairness(entries)
    for printed in (to_text(entries), to_markdown_page(entries)):
        assert printed.index(COMPARED) < printed.index("lte-memory")
        assert "galore:per_layer over comera" in printed


def test_bf16_is_a_stronger_form_where_both_sides_ran_in_it() -> None:
    in_fp32, in_bf16 = (
        raced(dict.fromkeys((1, 32, 64, 128), 2.5), "dense"),
        raced({128: 1.2}, "dense", precision="bf16"),
    )
    entry = entry_of(in_fp32 + in_bf16, "time-epoch-speedup")
    assert (entry.outcome, entry.fair_outcome) == ("reproduced", "partly")
    assert "dense, bf16, CUDA Graph over comera" in entry.fair_why
    alone = [one for one in in_bf16 if one.arm == "comera"]
    assert entry_of(in_fp32 + alone, "time-epoch-speedup").fair_outcome == "not tested here"


def test_low_rank_of_equal_size_is_a_line_of_its_own() -> None:
    sizes = {"comera": 1e5, "galore": 9.2e5, "galore:per_layer": 8.8e5, "low_rank@size": 0.9e5}
    entries = judge([record(arm, peak_memory_predicted_mib=size, **PLAN) for arm, size in sizes.items()])
    entry = {entry.claim.id: entry for entry in entries}["galore-memory-b1"]
    assert (entry.outcome, entry.fair_outcome) == ("predicted", "predicted")
    assert "low_rank" not in entry.fair_why
    assert "comera over low_rank@size" in entry.alternative.why
    [line] = [line for line in to_markdown_page(entries).splitlines() if "| low rank of equal size |" in line]
    assert "CoMERA does not take less" in line


def test_no_fair_reason_names_a_method_that_the_claim_does_not() -> None:
    records = [one for name in ("fig1", "fig1_memory", "prediction") for one in read_all(REFERENCE, name)]
    for entry in judge(records):
        for words in (entry.fair_why, entry.rule.fair_quantity):
            assert not re.search("low_rank|uncompressed", words), entry.claim.id


def test_claims_on_memory_for_cuda_rest_on_one_set_of_predictions() -> None:
    found = {
        device: [record(arm, peak_memory_predicted_mib=size, device=device, **PLAN) for arm, size in sizes.items()]
        for device, sizes in (
            ("1 thread", {"comera": 1e5, "galore": 9.2e5, "galore:per_layer": 8.8e5}),
            ("2 threads", {"comera": 1e5, "galore": 9.2e5}),
        )
    }
    entry = entry_of([*found["1 thread"], *found["2 threads"]], "galore-memory-b1")
    assert [one.fair_outcome for one in entry.verdicts] == ["predicted", "predicted"]
    assert len({one.fair.why for one in entry.verdicts}) == 1


def test_a_peak_that_the_allocator_measured_goes_before_a_prediction() -> None:
    predicted = [record(arm, peak_memory_predicted_mib=size, **PLAN) for arm, size in GALORE_MIB.items()]
    about = {"measure": "allocator_peak", "experiment": "prediction", "device": CUDA, "driver": "1"}
    measured = [
        record(arm, peak_memory_predicted_mib=size, peak_memory_allocated_mib=size + 64, predicted_for="cuda", **about)
        for arm, size in GALORE_MIB.items()
    ]
    [cpu, gpu] = entry_of([*predicted, *measured, *raced({32: 2.0}, "galore")], "galore-memory-b1").verdicts
    assert "11.0x at batch 1" in cpu.ours_text
    assert "6.26x at batch 1" in cpu.ours_text
    assert gpu.ours_text == "6.26x at batch 1 (memory, galore over comera, allocated on CUDA, plain steps)"


def test_claims_roll_up_by_figure() -> None:
    lines = judging.rolled_up(judge(galore(2.5) + graphs({32: 3.0}, "", device=CPU))).set_index("artifact")
    assert lines.loc["fig1"].tolist() == [5, 5, 1, 1, 1, 0, 0]
    assert lines.loc["fig7"].tolist() == [1, 1, 1, 0, 0, 0, 0]
    assert lines["claims"].drop("all").sum() == lines["claims"]["all"] == len(IDS)


def test_the_csv_has_a_line_per_claim_and_device_and_marks_transcriptions() -> None:
    entries = judge(galore(2.5) + galore(5.0, CPU))
    table = pd.read_csv(io.StringIO(to_csv(entries)))
    assert list(table["claim"].drop_duplicates()) == IDS
    line = table.set_index(["claim", "device"]).loc[("galore-time-b1", CUDA)]
    decided = line[["verdict", "tolerance", "tolerance_unit", "device_kind"]]
    assert decided.tolist() == ["reproduced", 0.5, "x", "cuda"]
    assert "2.50x at batch 1" in line["ours"]
    recalled = set(table.loc[table["standing"].str.contains("unconfirmed"), "claim"])
    with LEDGER.open(encoding="utf-8", newline="") as file:
        assert recalled == {row["id"] for row in csv.DictReader(file) if row["status"] == "recalled"}
    assert "| lte-time | 3x? |" in to_markdown_page(entries)


def test_the_command_prints_a_line_per_claim_or_all_in_three_forms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(galore(2.5), tmp_path)
    entries = judge(galore(2.5)[::-1])

    def printed(*words: str) -> str:
        assert main(["claims", *words, "--records", str(tmp_path)]) == 0
        return capsys.readouterr().out

    for form, written in (("text", to_text), ("markdown", to_markdown_page), ("csv", to_csv)):
        assert printed("--all", "--format", form) == written(entries)
    short = printed().splitlines()
    assert max(map(len, short)) <= TERMINAL
    assert [line.split()[0] for line in short if line.split()[:1] and line.split()[0] in IDS] == IDS
    assert len(short) < len(IDS) + 10


def test_the_command_prints_the_reasons_of_named_claims(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(galore(2.5), tmp_path)
    assert main(["claims", "galore-time-b1", "lte-time", "--records", str(tmp_path)]) == 0
    words = re.findall(r"[\w-]+", capsys.readouterr().out)
    assert {name for name in words if name in IDS} == {"galore-time-b1", "lte-time"}
    assert "tolerance" in words


@pytest.mark.slow
def test_the_same_records_give_the_same_bytes_without_torch(tmp_path: Path) -> None:
    records = everything(CPU) + galore(2.5)
    records = list({one.cell_id: one for one in records}.values())  # one file each
    write(records, tmp_path / "records")
    _, printed = redrawn(["claims", "--all"], tmp_path / "records", tmp_path / "out")
    assert printed == to_text(judge(records[::-1]))


HEAD = "id,artifact,workload,quantity,method,setting,kind,value_low,value_high,unit,status,note\n"
LINE = "a,fig1,encoder,q,comera,s,{},\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (HEAD + LINE.format("value,two,2,x,stated"), "line 2: not a claim"),
        (HEAD + LINE.format("value,2,2,x,guessed"), "status is 'guessed'; allowed"),
        (HEAD + LINE.format("number,2,2,x,stated"), "kind is 'number'; allowed: value, range"),
        (HEAD + LINE.format("value,,,x,stated"), "line 2: kind is 'value'; a value or range has"),
        (HEAD + LINE.format("statement yes,1,1,x,stated"), "a statement neither"),
        (HEAD + 2 * LINE.format("value,2,2,x,stated"), "line 3: a second claim 'a'"),
        ("id,quantity\na,b\n", "not a claim"),
        (None, "not a readable ledger"),
    ],
)
def test_a_malformed_ledger_is_named_with_its_line(content: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "claims.csv"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(LedgerError, match=message):
        read_claims(path)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ((",stated,", ",sated,"), "status is 'sated'; allowed: stated, public, recalled."),
        (("lte-time", "galore-time-b1"), "a second claim 'galore-time-b1'"),
        (("lte-time", "late-time"), "has a claim 'late-time', which no rule decides"),
        ((r"\ntime-epoch-speedup,.*", ""), "lacks the claim 'time-epoch-speedup'"),
        (None, "not a readable ledger"),
    ],
)
def test_a_ledger_that_was_edited_is_one_sentence(
    edit: tuple[str, str] | None,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    edited = tmp_path / "claims.csv"
    if edit:
        edited.write_text(re.sub(*edit, LEDGER.read_text(encoding="utf-8")), encoding="utf-8")
    monkeypatch.setattr(judging, "read_claims", lambda: read_claims(edited))
    write(galore(2.5), tmp_path / "records")
    assert words in refused(["claims"], tmp_path, capsys)
