"""The figures and tables there are: who draws each, of whose records, and which command makes those."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.core.record import Record
from figures import (
    fig1,
    fig5,
    fig6,
    fig7,
    fig11,
    fig12,
    pareto,
    plans,
    prediction,
    table_correctness,
    table_mnli,
    table_products,
    table_profile,
    table_ranks,
    table_search,
    table_tensorization,
    truncation,
)
from figures.claims import Claim
from figures.report import Drawn
from figures.runs import EXPERIMENT


@dataclass(frozen=True)
class Artifact:
    """A figure or table that can be asked for by name."""

    render: Callable[[Sequence[Record], dict[str, Claim]], list[Drawn]]
    heading: str  # of its section in the report
    summary: str
    experiments: tuple[str, ...] = (EXPERIMENT,)  # whose records it is made of
    measure: str | None = "train"  # of its records; None for any
    made_by: str = "python -m bench experiment=accuracy"

    def of(self, records: Sequence[Record]) -> list[Record]:
        """Those of the records that it is made of, experiment by experiment."""
        mine = [record for name in self.experiments for record in records if record.experiment == name]
        return [record for record in mine if self.measure in (None, record.measure)]


ARTIFACTS = {
    "fig1": Artifact(
        fig1.render,
        "Fig. 1: time and memory of every method",
        "time per epoch and peak memory of every arm, by batch size; an image per device, precision and toggles",
        fig1.EXPERIMENTS,
        None,
        "make reproduce-fig1",
    ),
    "fig5": Artifact(
        fig5.render,
        "Fig. 5: look-up of an embedding table",
        "time and peak memory of a table look-up by each variant; an image per device, table and distribution",
        fig5.EXPERIMENTS,
        None,
        "make reproduce-fig5",
    ),
    "fig6": Artifact(
        fig6.render,
        "Fig. 6: validation accuracy per epoch",
        "validation accuracy per epoch, dense against CoMERA; an image per device and dataset",
    ),
    "fig7": Artifact(
        fig7.render,
        "Fig. 7: CUDA Graph and compile",
        "time per epoch with CUDA Graph (on a CPU, compile) off and on, dense against CoMERA; an image per device",
        fig7.EXPERIMENTS,
        "run",
        "make reproduce-fig7",
    ),
    "fig11": Artifact(
        fig11.render,
        "Fig. 11: contraction paths",
        "contraction plans chosen for the encoder's layers as tensor diagrams, step by step; an image per device",
        fig11.EXPERIMENTS,
        "plan",
        "make reproduce-fig11",
    ),
    "fig12": Artifact(
        fig12.render,
        "Fig. 12: compression of the whole model",
        "time per epoch, peak memory and FLOPs against the compression of the whole model, beside dense; "
        "an image per device, precision and toggles",
        fig12.EXPERIMENTS,
        None,
        "make sweep-ratios",
    ),
    "plans": Artifact(
        plans.render,
        "The planner on a grid of shapes",
        "the contraction planner's choice over the best measured candidate on a grid of shapes; an image per device",
        plans.EXPERIMENTS,
        "plan",
        "make plan-grid",
    ),
    "prediction": Artifact(
        prediction.render,
        "Predicted and allocated memory",
        "error of the predicted peak memory by arm, wherever the allocator's was measured; an image per device",
        prediction.EXPERIMENTS,
        None,
        "make reproduce-prediction",
    ),
    "table_correctness": Artifact(
        table_correctness.render,
        "Correctness on the device",
        "layers, look-ups and steps on a device against float64 on a CPU: errors and what was allowed; "
        "a table per device",
        (table_correctness.EXPERIMENT,),
        "check",
        f"python -m bench experiment={table_correctness.EXPERIMENT}",
    ),
    "table_profile": Artifact(
        table_profile.render,
        "Where the time goes",
        "time of a step by kind of work, with launches and bytes, CoMERA beside dense; a table per device",
        (table_profile.EXPERIMENT,),
        "profile",
        f"python -m bench experiment={table_profile.EXPERIMENT}",
    ),
    "table_products": Artifact(
        table_products.render,
        "Products by precision",
        "time and error of the layers' products in FP32, TF32, BF16 and FP8; a table per device",
        (table_products.EXPERIMENT,),
        "products",
        f"python -m bench experiment={table_products.EXPERIMENT}",
    ),
    "pareto": Artifact(
        pareto.render,
        "Accuracy against size",
        "accuracy against the size of the model, with the Pareto front; an image per device and dataset",
        (pareto.EXPERIMENT,),
        made_by=f"python -m bench experiment={pareto.EXPERIMENT}",
    ),
    "table_mnli": Artifact(
        table_mnli.render,
        "Accuracy and size by stage",
        "accuracy with its interval, size and compression of dense, early and late stages, beside the published; "
        "a table per device and dataset",
    ),
    "table_ranks": Artifact(
        table_ranks.render,
        "Ranks by stage",
        "ranks of the fifth encoder block before training and after each stage; a table per device and dataset",
    ),
    "table_search": Artifact(
        table_search.render,
        "Settings tried",
        "settings tried for each method with the loss, accuracy and size they reached; "
        "a table per device, dataset and experiment",
        table_search.EXPERIMENTS,
        made_by=f"python -m bench experiment={table_search.EXPERIMENTS[0]}",
    ),
    "table_tensorization": Artifact(
        table_tensorization.render,
        "Modes and ranks of the encoder's matrices",
        "modes, ranks, sizes, FLOPs and time of the encoder's matrices: dense, in the paper's tensorization, in the "
        "solver's; a table per device",
        (table_tensorization.EXPERIMENT,),
        "run",
        "make reproduce-table-tensorization",
    ),
    "truncation": Artifact(
        truncation.render,
        "What truncation saves",
        "step time, peak memory and accuracy against the physically truncated size; an image per device and dataset",
    ),
}
