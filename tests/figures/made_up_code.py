"""Made-up records of the workload code: times and memory of the full model in both phases, and runs through them."""

from __future__ import annotations

import dataclasses

from made_up_records import CPU, CUDA, record, sizes, timed
from made_up_training import other_run

from figures.artifacts import fig10
from figures.artifacts.fig10 import FULL_SIZE

WORDS = {"model": "24-encoder masked language model", "epoch": "", "example": "row", "examples_per_epoch": 100}
SMALL = {"comera": fig10.FULL_SIZE / 4.23, "low_rank@size": fig10.FULL_SIZE / 4.3, "dense": fig10.FULL_SIZE}


def campaign(device=CUDA, ratios=(2.0, 2.4), small=SMALL):
    """Both phases, of the same tokens, dense slower than comera by these ratios; and predictions for CUDA."""
    records = []
    for number, (length, batch) in enumerate(((128, 8), (512, 2))):
        common = {"sequence_length": length, "workload": "code", "workload_words": WORDS, "device": device}
        for arm, count in small.items():
            means = [100 * (ratios[number] if arm == "dense" else 1) * (1 + 0.001 * block) for block in range(6)]
            one = timed(arm, means, batch, parameters=round(count), experiment="fig10_time", **common)
            peaks = sizes(arm, batch, "cuda")
            plan = record(
                arm, batch, measure="predict", predicted_for="cuda", parameters=round(count), **common, **peaks
            )
            pairing = f"phase-{number}"
            records.append(dataclasses.replace(one, cell_id=f"{arm}-{length}".replace("@", "-"), pairing=pairing))
            records.append(
                dataclasses.replace(plan, cell_id=f"{arm}-{length}-plan".replace("@", "-"), experiment="fig10_memory")
            )
    return records


def runs(first=2.0, last=1.52, parameters=FULL_SIZE, device=CPU):
    """Dense from 2.0 to 1.5 nats, CoMERA to others; dense takes twice the time."""
    wanted = {"dense": ((2.0, 1.5), None), "comera": ((first, last), 0.5)}
    found = []
    for arm, (values, target) in wanted.items():
        one = other_run(arm, values, metric="loss", size=10.0, target=target)
        curve = [{**row, "seconds": 60.0 * row["step"] * (2 if arm == "dense" else 1)} for row in one.samples["curve"]]
        words = {
            **one.workload_words,
            "metric": {**one.metric, "unit": "nats", "probe": 1.8, "probe_text": "bigram model"},
        }
        changes = {"experiment": "code_phases", "workload": "code", "workload_words": words, "device": device}
        samples = {**one.samples, "curve": curve}
        found.append(dataclasses.replace(one, samples=samples, dense_mib=parameters * 4 / 2**20, **changes))
    return found
