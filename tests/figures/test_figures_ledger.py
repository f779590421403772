"""The claims ledger: a rule for every claim and no other, verdicts by device, and the command that prints it."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import made_up_code
import pandas as pd
import pytest
from made_up_dlrm import click_runs, grid, trained_clicks
from made_up_lookups import lookup_campaign, timed_lookup
from made_up_records import CPU, CUDA, PARAMETERS, campaign, record, timed
from made_up_sweeps import sweep_campaign, timed_beside
from made_up_toggles import toggled, toggled_campaign
from made_up_training import FULL_SIZE_MIB, curve, point, ranks, trained, training_campaign

from bench.core.record import SCHEMA_VERSION, Record, path_of, write
from figures.__main__ import main as figures_main
from figures.claims.claims import LEDGER, LedgerError, read_claims
from figures.ledger import judging
from figures.ledger.judging import Entry, claims_of, judge, rules_of, summary
from figures.ledger.pages import COMPARED, WIDTH, to_csv, to_markdown_page, to_text
from figures.records.select import Toggles
from figures.registry import artifacts

ROOT = Path(__file__).parents[2]
IDS = list(claims_of(artifacts().values()))
CLAIMS = claims_of(artifacts().values())
GRAPH = Toggles(cuda_graph=True)
DECIDED = rules_of(artifacts().values())
RULES = {claim: rule for claim, (rule, _) in DECIDED.items()}
EXPERIMENTS = {claim: owner.experiments for claim, (_, owner) in DECIDED.items()}


def main(arguments: list[str]) -> int:
    return figures_main(["claims", *arguments])


def everything(device: str) -> list[Record]:
    """Every experiment that a rule names, on one device."""
    return [
        *campaign(device),
        *lookup_campaign(device),
        *toggled_campaign(device),
        *sweep_campaign(device),
        *training_campaign(device=device),
        *grid(device),
        *click_runs(device=device),
        *made_up_code.campaign(device),
        *made_up_code.runs(device=device),
        *in_fp8(0.8, device=device),
        *clicks_in_fp8(0.0, device=device),
        *layers_in_fp8(1.2, 2.0, device=device),
        *by_lte(0.34, device=device),
    ]


def entry_of(records: list[Record], claim: str) -> Entry:
    return {entry.claim.id: entry for entry in judge(records)}[claim]


def epochs(ratio: float, device: str = CUDA, **columns: object) -> list[Record]:
    """Fig. 1 at batch 1, without noise: GaLore takes ``ratio`` times as long as CoMERA; with CUDA Graph on a GPU."""
    arms = (("comera", 8.0), ("galore", 8.0 * ratio))
    return [timed(arm, [ms] * 5, device=device, cuda_graph=device == CUDA, **columns) for arm, ms in arms]


def lookups(ratio: float, device: str = CUDA, **place: object) -> list[Record]:
    """Fig. 5 at its batch sizes, without noise: the plain look-up takes ``ratio`` times as long and as much memory."""
    records = []
    for batch in (10_000, 20_000, 40_000):
        for variant, size in (("optimized", 8.0), ("plain", 8.0 * ratio)):
            peak = {"peak_memory_allocated_mib": size if device == CUDA else None, "peak_memory_predicted_mib": size}
            records.append(timed_lookup(variant, [size] * 5, batch, device=device, **peak, **place))
    return records


def graphs(ratio: float, device: str = CUDA) -> list[Record]:
    """Fig. 7 with CUDA Graph, without noise."""
    return [
        toggled(arm, GRAPH, [ms] * 5, batch, device=device)
        for batch in (32, 64, 128)
        for arm, ms in (("comera", 8.0), ("dense", 8.0 * ratio))
    ]


def swept(speed_ups: tuple[float, ...], device: str = CUDA) -> list[Record]:
    """Fig. 12 at one batch size: dense over CoMERA at ratios 1.5, 4, 16 and 64, without noise."""
    return [
        timed_beside(arm, [ms] * 5, ratio, 32, device=device)
        for ratio, speed_up in zip((1.5, 4.0, 16.0, 64.0), speed_ups, strict=True)
        for arm, ms in (("comera", 8.0), ("dense", 8.0 * speed_up))
    ]


def late(ratio: float, device: str = CPU, **columns: object) -> list[Record]:
    """A late run toward 0.2 whose model is ``ratio`` times smaller than dense."""
    curve = [point([True] * 9 + [False], 900, "late", ranks(0.2))]
    sizes = {"stored_mib": FULL_SIZE_MIB / ratio, "tensorized_mib": 0.7, "dense_tensorized_mib": 253.67}
    return [trained("comera", "late", 0.2, curve, device=device, **(sizes | columns))]


def test_every_claim_has_exactly_one_rule_and_no_rule_is_without_a_claim() -> None:
    assert sorted(RULES) == sorted(IDS)
    assert len(set(IDS)) == len(IDS)


def test_the_ledger_is_the_one_that_was_handed_over() -> None:
    original = ROOT.parent / "shared" / "paper" / "claims.csv"
    if not original.is_file():
        pytest.skip("the original is not at hand")
    assert LEDGER.read_bytes() == original.read_bytes()


@pytest.mark.parametrize("claim", RULES)
def test_a_rule_names_experiments_that_there_are(claim: str) -> None:
    rule = RULES[claim]
    assert EXPERIMENTS[claim]
    assert rule.expression
    assert rule.device in ("cpu", "cuda", "any")
    for experiment in EXPERIMENTS[claim]:
        assert (ROOT / "bench" / "conf" / "experiment" / f"{experiment}.yaml").is_file()


def in_fp8(share: float, seeds: int = 3, device: str = CPU) -> list[Record]:
    """CoMERA in FP32, and with FP8's products, of which so many answers are right."""
    return [
        trained(
            "comera",
            curve=curve(seed, "comera", right),
            seed=seed,
            precision=precision,
            experiment="fig14_sst2",
            cell_id=f"{precision}-{seed}",
            device=device,
        )
        for seed in range(seeds)
        for precision, right in (("fp32", 0.8), ("fp8", share))
    ]


def clicks_in_fp8(shift: float, dataset: str = "criteo", device: str = CPU) -> list[Record]:
    return [
        trained_clicks(
            "comera",
            seed,
            moved,
            dataset,
            experiment="table_dlrm_fp8",
            precision=precision,
            cell_id=f"{precision}-{seed}",
            device=device,
        )
        for seed in range(3)
        for precision, moved in (("fp32", 0.0), ("fp8", shift))
    ]


def by_lte(*shares: float, dataset: str = "mnli_12k", **columns: Any) -> list[Record]:
    """LTE with as many settings as shares of right answers among three classes."""
    return [
        trained(
            "lte",
            curve=curve(0, "lte", share),
            method_settings={"alpha": 64.0 * (number + 1)},
            dataset=dataset,
            experiment="lte",
            cell_id=f"lte-{number}",
            **columns,
        )
        for number, share in enumerate(shares)
    ]


def layers_in_fp8(first: float, second: float, device: str = CUDA) -> list[Record]:
    """The paper's two shapes, at which FP8 is so many times faster than FP32."""
    records = []
    for columns, gain in ((1024, first), (4096, second)):
        sizes = {
            "workload_settings": {"in_features": 1024, "out_features": columns},
            "device": "cuda" if device == CUDA else "cpu",
        }
        rows = [
            {"name": name, "ms": [ms + block / 100 for block in range(5)], "message": ""}
            for name, ms in (("fp32", 10.0 * gain), ("fp8", 10.0))
        ]
        records.append(
            record(
                "comera",
                10_000,
                measure="fp8",
                device=device,
                experiment="table_fp8",
                workload="linear",
                driver="made up" if device == CUDA else "",
                config_json=json.dumps(sizes),
                samples={"precisions": rows},
                cell_id=f"fp8-{columns}",
            )
        )
    return records


CASES = [
    ("fp8-accuracy", in_fp8(0.8), "reproduced"),
    ("fp8-accuracy", in_fp8(0.5), "not reproduced"),
    ("fp8-accuracy", in_fp8(0.8, seeds=1), "not tested here"),
    ("fp8-dlrm", clicks_in_fp8(0.0), "reproduced"),
    ("fp8-dlrm", clicks_in_fp8(0.0, "synthetic_low_rank"), "not tested here"),
    ("fp8-larger-is-better", layers_in_fp8(1.2, 2.0), "reproduced"),
    ("fp8-larger-is-better", layers_in_fp8(2.0, 1.2), "not reproduced"),
    ("fp8-larger-is-better", layers_in_fp8(1.2, 1.2), "partly"),
    ("galore-time-b1", epochs(2.5), "reproduced"),
    ("galore-time-b1", epochs(1.2), "partly"),
    ("galore-time-b1", epochs(0.9), "not reproduced"),
    ("galore-time-b1", epochs(2.5, CPU), "not tested here"),
    ("lookup-time", lookups(4.5), "reproduced"),
    ("lookup-time", lookups(2.0), "partly"),
    ("lookup-time", lookups(0.9), "not reproduced"),
    ("lookup-time", lookups(4.5, CPU), "not tested here"),
    ("graph-speedup", graphs(3.0), "reproduced"),
    ("graph-speedup", graphs(1.5), "partly"),
    ("graph-speedup", graphs(0.5), "not reproduced"),
    ("graph-speedup", graphs(3.0, CPU), "not tested here"),
    ("ratio-monotone", swept((0.9, 2.0, 3.0, 4.0)), "reproduced"),
    ("ratio-monotone", swept((1.09, 2.0, 3.0, 4.0)), "reproduced"),
    ("ratio-monotone", swept((1.11, 2.0, 3.0, 4.0)), "partly"),
    ("ratio-monotone", swept((1.5, 2.0, 3.0, 4.0)), "partly"),
    ("ratio-monotone", swept((1.5, 3.0, 2.0, 1.0)), "not reproduced"),
    ("ratio-monotone", swept((0.9, 2.0, 3.0, 4.0), CPU), "not tested here"),
    ("lte-convergence", by_lte(0.34, 0.33), "reproduced"),
    ("lte-convergence", by_lte(0.34, 0.7), "partly"),
    ("lte-convergence", by_lte(0.6, 0.7), "not reproduced"),
    ("lte-convergence", by_lte(0.6, dataset="nli_pool"), "not tested here"),
    ("lte-convergence", by_lte(0.6, dense_mib=2.8), "not tested here"),
    ("mnli-late02-ratio", late(90.0), "reproduced"),
    ("mnli-late02-ratio", late(60.0), "partly"),
    ("mnli-late02-ratio", late(20.0), "not reproduced"),
    ("mnli-late02-ratio", late(90.0, dense_mib=2.8), "not tested here"),
    ("recsys-time", grid(CUDA, "criteo", faster=2.5), "reproduced"),
    ("recsys-time", grid(CUDA, "criteo", faster=1.2), "partly"),
    ("recsys-time", grid(CUDA, "criteo", faster=0.9), "not reproduced"),
    ("recsys-time", grid(CUDA, faster=2.5), "not tested here"),
    ("dlrm-curve", click_runs("criteo", worse=0.001), "reproduced"),
    ("dlrm-curve", click_runs("criteo", worse=0.05), "not reproduced"),
    ("dlrm-curve", click_runs(), "not tested here"),
    ("dlrm-nce", click_runs("criteo"), "reproduced"),
    ("codebert-speedup", made_up_code.campaign(), "reproduced"),
    ("codebert-speedup", made_up_code.campaign(ratios=(1.5, 1.6)), "partly"),
    ("codebert-speedup", made_up_code.campaign(ratios=(0.9, 0.9)), "not reproduced"),
    ("codebert-speedup", made_up_code.campaign(CPU), "not tested here"),
    ("codebert-curve", made_up_code.runs(last=1.5), "reproduced"),
    ("codebert-curve", made_up_code.runs(last=1.7), "not reproduced"),
    ("codebert-curve", made_up_code.runs(parameters=1000), "not tested here"),
]


@pytest.mark.parametrize(("claim", "records", "outcome"), CASES)
def test_every_experiment_decides_a_claim_in_every_way(claim: str, records: list[Record], outcome: str) -> None:
    entry = entry_of(records, claim)
    assert entry.outcome == outcome, entry.why
    [verdict] = entry.verdicts
    assert (verdict.outcome, verdict.why) == (outcome, entry.why)
    assert verdict.ours_text != "none"  # what a device cannot decide is shown all the same
    own = {record.experiment for record in records}
    others = [one for one in judge(records) if not own & set(one.experiments)]
    assert {one.outcome for one in others} == {"not tested here"}


def test_every_experiment_has_such_cases() -> None:
    assert {EXPERIMENTS[claim] for claim, _, _ in CASES} == set(EXPERIMENTS.values()) - {()}


MAKERS: dict[str, Callable[[float], list[Record]]] = {
    "galore-time-b1": epochs,
    "lookup-time": lookups,
    "lookup-memory": lookups,
    "graph-speedup": graphs,
    "mnli-late02-ratio": late,
}


@pytest.mark.parametrize("claim", MAKERS)
def test_the_tolerance_is_the_one_by_which_the_verdict_falls(claim: str) -> None:
    low = CLAIMS[claim].low
    assert low is not None
    need = low - RULES[claim].tolerance
    assert entry_of(MAKERS[claim](need + 0.01), claim).outcome == "reproduced"
    assert entry_of(MAKERS[claim](need - 0.01), claim).outcome == "partly"


def test_a_cpu_decides_nothing_that_is_about_a_gpu() -> None:
    for entry in judge(everything(CPU)):
        assert [verdict.device for verdict in entry.verdicts] == [CPU]
        if entry.rule.device == "cuda":
            assert entry.outcome == "not tested here"
            assert "about a GPU" in entry.why
            assert entry.verdicts[0].ours_text != "none"
    assert {entry.claim.id for entry in judge(everything(CUDA)) if entry.rule.device == "cuda"} >= {"lte-time"}


def test_each_device_has_a_verdict_and_the_decided_ones_count() -> None:
    entry = entry_of(epochs(2.5) + epochs(5.0, CPU), "galore-time-b1")
    assert [(one.device, one.outcome) for one in entry.verdicts] == [(CPU, "not tested here"), (CUDA, "reproduced")]
    assert entry.outcome == "reproduced"
    assert CPU in entry.why
    assert CUDA in entry.why
    other = [dataclasses.replace(one, device="Made-up GPU 8000") for one in epochs(0.5)]
    assert entry_of(epochs(2.5) + other, "galore-time-b1").outcome == "partly"


def test_figures_of_one_device_that_disagree_make_it_partly_and_are_named() -> None:
    entry = entry_of(lookups(4.5, dataset="zipf") + lookups(0.5, dataset="uniform"), "lookup-time")
    [verdict] = entry.verdicts
    assert verdict.outcome == "partly"
    assert "30,522 x 768, uniform: 0 of 3" in verdict.why
    assert "30,522 x 768, zipf: 3 of 3" in verdict.why
    assert "4.50x at batch 10000" in verdict.ours_text
    assert "on CUDA, 30,522 x 768, zipf" in verdict.ours_text


def test_a_figure_that_decides_nothing_does_not_count() -> None:
    bf16 = lookups(9.0, dataset="uniform", precision="bf16")
    [verdict] = entry_of(lookups(4.5, dataset="zipf") + bf16, "lookup-time").verdicts
    assert verdict.outcome == "reproduced"
    assert "uniform" not in verdict.ours_text


def test_pages_of_fig1_that_decide_nothing_do_not_count() -> None:
    eager = [dataclasses.replace(one, cuda_graph=False) for one in epochs(0.5)]
    bf16 = epochs(0.5, precision="bf16")
    [verdict] = entry_of(epochs(2.5) + eager + bf16, "galore-time-b1").verdicts
    assert verdict.outcome == "reproduced"
    assert verdict.ours_text == "2.50x at batch 1 (time, on CUDA, CUDA Graph on)"
    [verdict] = entry_of(eager + bf16, "galore-time-b1").verdicts
    assert verdict.outcome == "not tested here"
    assert "fp32: The claim is about captured steps" in verdict.why
    assert "bf16, CUDA Graph: The claim is about FP32" in verdict.why


def test_small_presets_decide_nothing() -> None:
    records = [dataclasses.replace(one, experiment="accuracy_small") for one in late(90.0)]
    entry = entry_of(records, "mnli-late02-ratio")
    assert entry.verdicts == ()
    assert entry.why == "No record of accuracy or code_stages; make some: python -m bench experiment=accuracy."


def test_without_records_every_claim_is_there_with_its_reason() -> None:
    entries = judge([])
    assert [entry.claim.id for entry in entries] == IDS
    assert summary(entries).endswith(f"{len(IDS)} not tested here.")
    for entry in entries:
        assert entry.why.startswith("No record of" if entry.experiments else "No experiment of")


def test_the_text_is_readable_and_names_every_claim_once() -> None:
    entries = judge(everything(CPU) + everything(CUDA))
    text, page = to_text(entries), to_markdown_page(entries)
    assert " ".join(text.splitlines()[:2]).startswith(summary(entries))
    assert max(map(len, text.splitlines())) <= WIDTH
    twice = {entry.claim.id for entry in judging.compared(entries)}  # they lead the page too
    for printed in (text, page):
        words = re.findall(r"[\w-]+", printed)
        assert {name: words.count(name) for name in IDS} == {name: 1 + (name in twice) for name in IDS}
    for artifact in {entry.claim.artifact for entry in entries}:
        assert f"\n{artifact}\n" in text
        assert f"\n## {artifact}\n" in page


def test_the_summary_counts_what_the_table_says() -> None:
    entries = judge(everything(CUDA))
    published, fair = summary(entries).split(" With the fair baseline: ")
    assert published.startswith(f"{len(IDS)} claims as published: ")
    for words, outcomes in (
        (published.partition(": ")[2], [entry.outcome for entry in entries]),
        (fair, [entry.fair_outcome for entry in entries]),
    ):
        counts = {outcome: int(count) for count, outcome in re.findall(r"(\d+) ([a-z ]+)", words)}
        assert {name: count for name, count in counts.items() if count} == dict(Counter(outcomes))


def test_what_the_fair_baseline_changes_is_listed_with_its_reason() -> None:
    peaks = {"comera": 1e5, "galore": 9.2e5, "galore:per_layer": 2e5}
    predicted = [
        record(arm, 1, measure="predict", predicted_for="cuda", peak_memory_predicted_mib=size)
        for arm, size in peaks.items()
    ]
    entries = judge(predicted)
    [entry] = judging.compared(entries)
    assert (entry.claim.id, entry.outcome, entry.fair_outcome) == ("galore-memory-b1", "predicted", "not reproduced")
    assert entry.is_changed
    assert "records decide 1 of them with the fair baseline, which changes 1 outcome." in judging.fairness(entries)
    for page in (to_text(entries), to_markdown_page(entries)):
        assert page.index(COMPARED) < page.index("lte-memory")
        assert "galore:per_layer / comera" in page


def test_low_rank_of_equal_size_is_a_rival_in_every_claim_on_memory() -> None:
    peaks = {"comera": 1e5, "galore": 9.2e5, "low_rank@size": 1.5e5}
    entry = fairly_judged(peaks, PARAMETERS)
    assert (entry.outcome, entry.fair_outcome) == ("predicted", "not reproduced")
    assert "low_rank@size / comera" in entry.verdicts[0].fair.ours_text


@pytest.mark.parametrize("count", [3_994_947, 1_460_000, None])
def test_a_rival_of_another_size_does_not_pass_as_equal_whatever_its_name(count: int | None) -> None:
    peaks = {"comera": 1e5, "galore": 9.2e5, "low_rank@size": 0.9e5}
    entry = fairly_judged(peaks, {**PARAMETERS, "low_rank@size": count})
    assert entry.fair_outcome == "not tested here"


def test_a_rival_is_of_equal_size_by_its_parameters_alone() -> None:
    entry = fairly_judged(
        {"comera": 1e5, "galore": 9.2e5, "low_rank@rank": 1.5e5}, dict.fromkeys(PARAMETERS, 1_500_000)
    )
    assert entry.fair_outcome == "not reproduced"


def fairly_judged(peaks: dict[str, float], parameters: dict[str, int | None]) -> Entry:
    """GaLore's claim on memory by predictions of so many MiB for arms of so many parameters."""
    predicted = [
        record(
            arm,
            1,
            measure="predict",
            predicted_for="cuda",
            peak_memory_predicted_mib=size,
            parameters=parameters.get(arm),
        )
        for arm, size in peaks.items()
    ]
    return next(one for one in judge(predicted) if one.claim.id == "galore-memory-b1")


def test_without_a_rival_a_cpu_page_says_so_before_all_else() -> None:
    entry = entry_of(epochs(2.5, CPU), "galore-time-b1")
    assert "nor a stronger form of galore is recorded" in entry.verdicts[0].fair.why


def test_claims_roll_up_by_figure() -> None:
    lines = {line.artifact: line for line in judging.rolled_up(judge(epochs(2.5) + graphs(3.0, CPU)))}
    assert lines["fig1"] == judging.RollUp("fig1", 5, 5, 1, 1, 1, 0, 0)
    assert lines["fig7"] == judging.RollUp("fig7", 1, 1, 1, 0, 0, 0, 0)
    assert sum(line.claims for name, line in lines.items() if name != "all") == lines["all"].claims == len(IDS)


def test_transcriptions_from_memory_are_marked() -> None:
    entries = judge(epochs(2.5))
    text, page, table = to_text(entries), to_markdown_page(entries), pd.read_csv(io.StringIO(to_csv(entries)))
    assert re.search(r"lte-time .*\n *3x\?: ", text)
    assert re.search(r"galore-time-b1 .*\n *2x: ", text)
    assert "| lte-time | 3x? |" in page
    recalled = set(table.loc[table["standing"].str.contains("unconfirmed"), "claim"])
    with LEDGER.open(encoding="utf-8", newline="") as file:
        assert recalled == {row["id"] for row in csv.DictReader(file) if row["status"] == "recalled"}


def test_the_csv_has_a_line_per_claim_and_device() -> None:
    table = pd.read_csv(io.StringIO(to_csv(judge(epochs(2.5) + epochs(5.0, CPU)))))
    assert list(table["claim"].drop_duplicates()) == IDS
    line = table.set_index(["claim", "device"]).loc[("galore-time-b1", CUDA)]
    assert line["verdict"] == "reproduced"
    assert (line["tolerance"], line["tolerance_unit"], line["device_kind"]) == (0.5, "x", "cuda")
    assert "2.50x at batch 1" in line["ours"]


GUARDED = """
import sys
from typing import Any
class Guard:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "comera", "baselines", "hydra", "omegaconf"}:
            raise AssertionError("the ledger imported " + name)
sys.meta_path.insert(0, Guard())
from figures.__main__ import main
sys.exit(main())
"""


@pytest.mark.slow
def test_the_same_records_give_the_same_bytes_without_torch(tmp_path: Path) -> None:
    records = everything(CPU) + epochs(2.5)
    write(records, tmp_path)
    printed = []
    for number in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", GUARDED, "claims", "--records", str(tmp_path)],
            cwd=ROOT,
            env={"PYTHONHASHSEED": number, "PYTHONPATH": str(ROOT), "COLUMNS": f"{60 * int(number)}"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    random.Random(0).shuffle(records)
    assert printed == [to_text(judge(records))] * 2


def test_the_command_prints_in_three_forms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(epochs(2.5), tmp_path)
    for form, written in (("text", to_text), ("markdown", to_markdown_page), ("csv", to_csv)):
        assert main(["--records", str(tmp_path), "--format", form]) == 0
        assert capsys.readouterr().out == written(judge(epochs(2.5)))


def newer(folder: Path) -> None:
    write(epochs(2.5), folder)
    path = path_of(epochs(2.5)[0], folder)
    path.write_text(path.read_text().replace(f'version": {SCHEMA_VERSION}', f'version": {SCHEMA_VERSION + 1}'))


def older(folder: Path) -> None:
    first, second = epochs(2.5)
    write([dataclasses.replace(first, schema_version=0), second], folder)


def torn(folder: Path) -> None:
    write(epochs(2.5), folder)
    path_of(epochs(2.5)[0], folder).write_text("{")


def odd_samples(folder: Path) -> None:
    write([dataclasses.replace(one, samples={"blocks": 3}) for one in epochs(2.5)], folder)


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (Path.rmdir, "a folder with records is expected"),
        (Path.exists, "no record; make some with python -m bench"),
        (newer, f"schema_version is {SCHEMA_VERSION + 1}, this program reads up to {SCHEMA_VERSION}"),
        (older, "schema_version is 0; a whole number from 1 is expected"),
        (torn, "not a readable JSON record"),
        (odd_samples, "samples.blocks is a int, expected a list"),
    ],
)
def test_records_that_cannot_be_judged_are_one_sentence(
    prepare: Callable[[Path], object], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "records"
    folder.mkdir()
    prepare(folder)
    assert main(["--records", str(folder)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert words in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--format", "html"], "'html'"), (["--record"], "--record"), (["fig1"], "unrecognized arguments: fig1")],
)
def test_mistaken_arguments_are_one_sentence(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def without_first_claim(text: str) -> str:
    return re.sub(r"\ntime-epoch-speedup,.*", "", text)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda text: text.replace(",stated,", ",sated,"), "status is 'sated'; allowed: stated, public, recalled."),
        (lambda text: text.replace("lte-time", "galore-time-b1"), "a second claim 'galore-time-b1'"),
        (lambda text: text.replace("lte-time", "late-time"), "has a claim 'late-time', which no rule decides"),
        (without_first_claim, "lacks the claim 'time-epoch-speedup'"),
    ],
)
def test_a_ledger_that_was_edited_is_one_sentence(
    edit: Callable[[str], str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    edited = tmp_path / "claims.csv"
    edited.write_text(edit(LEDGER.read_text(encoding="utf-8")), encoding="utf-8")
    monkeypatch.setattr(judging, "read_claims", lambda: read_claims(edited))
    write(epochs(2.5), tmp_path / "records")
    assert main(["--records", str(tmp_path / "records")]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert words in said.err


def test_a_missing_ledger_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="not a readable ledger"):
        judge([], read_claims(tmp_path / "none.csv"))
