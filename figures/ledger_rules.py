"""By claim of the ledger: the experiments and the expression over their records that decide it, and how exactly.

Nothing is judged here. The tolerances are those of the modules that judge: :mod:`figures.fig1_claims`,
:mod:`figures.fig5_claims`, :mod:`figures.fig7_claims`, :mod:`figures.fig12_claims`, :mod:`figures.training_claims`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from figures import fig1, fig5, fig5_claims, fig7, fig7_claims, fig12, fig12_claims
from figures.fig1_claims import FIG1_RULES
from figures.ranks import BLOCK
from figures.runs import EXPERIMENT, PAPER_TARGETS
from figures.training_claims import MARGIN, RATIO_SLACK, SAME_SIZE, SEEDS_NEEDED, SIZE_SLACK, late_name

DeviceKind = Literal["cpu", "cuda", "any"]

#: The experiments whose records each judging module reads.
FIG1, FIG5, FIG7, FIG12 = fig1.EXPERIMENTS, fig5.EXPERIMENTS, fig7.EXPERIMENTS, fig12.EXPERIMENTS
TRAINING = (EXPERIMENT,)


@dataclass(frozen=True)
class Rule:
    """What decides one claim.

    >>> Rule(("fig1",), "epoch time, lte / comera", "cuda", 0.5, "x").tolerance_text
    '0.5x'
    """

    experiments: tuple[str, ...]  # whose records; none where no experiment is about the claim yet
    expression: str  # over their records; where they give an interval, all of it, and at every batch size named
    device: DeviceKind  # the kind of device that times or trains; "any" too where a prediction may decide
    tolerance: float = 0.0  # by how much ours may miss what was published, or dense, and still hold
    unit: str = ""  # of the tolerance
    untested: str = ""  # why, where no experiment is about the claim

    @property
    def tolerance_text(self) -> str:
        """The tolerance with its unit, or ``none``."""
        if not self.tolerance:
            return "none"
        return f"{self.tolerance:g}{'' if self.unit in ('x', '%') else ' '}{self.unit}"


_REACHES, _ABOVE = ">= published - tolerance", "> 1"
_PARTLY = "(from half of it, where that is > 1: partly)"


def _of_fig1(ratios: Mapping[str, str]) -> dict[str, Rule]:
    """The rules of Fig. 1, by claim; ``ratios`` says in words what each is judged on."""
    rules = {}
    for rule in FIG1_RULES:
        if rule.claim_id in ratios:
            batches = ", ".join(map(str, rule.batches))
            words = f"{ratios[rule.claim_id]}, batch {batches} {f'{_REACHES} {_PARTLY}' if rule.slack else _ABOVE}"
            rules[rule.claim_id] = Rule(FIG1, words, rule.device, rule.slack, "x" if rule.slack else "")
    return rules


def _size(run: str) -> Rule:
    words = f"stored_mib of {run}, worst seed <= published + tolerance"
    return Rule(TRAINING, words, "any", SIZE_SLACK, "MiB")


def _compression(quotient: str, run: str) -> Rule:
    words = f"{quotient} of {run}, worst seed {_REACHES} (from half of it: partly)"
    return Rule(TRAINING, words, "any", RATIO_SLACK, "x")


def _accuracy(run: str) -> Rule:
    words = f"accuracy on MNLI of {run}, {SEEDS_NEEDED} seeds {_REACHES}"
    return Rule(TRAINING, words, "any", MARGIN, "points")


def _late(target: float) -> dict[str, Rule]:
    name, run = late_name(target), f"comera after its late stage toward {target:g}"
    return {
        f"{name}-ratio": _compression("dense_mib / stored_mib", run),
        f"{name}-layers": _compression("dense_tensorized_mib / tensorized_mib", run),
        f"{name}-acc": _accuracy(run),
    }


def _not_yet(subject: str, expression: str, device: DeviceKind = "any") -> Rule:
    return Rule((), expression, device, untested=f"No experiment of this bench covers {subject} yet.")


def _looked_up(quantity: str, device: DeviceKind) -> Rule:
    batches = ", ".join(f"{batch:,}" for batch in fig5_claims.BATCHES)
    words = f"{quantity} of plain / optimized, forward and backward, {batches} indices {_REACHES} {_PARTLY}"
    return Rule(FIG5, words, device, fig5_claims.SLACK, "x")


_EARLY = "comera after its early stage"

#: By the claim's id.
RULES: Mapping[str, Rule] = MappingProxyType(
    {
        **_of_fig1(
            {
                "time-epoch-speedup": "epoch time of dense / comera, both with CUDA Graph",
                "galore-time-b1": "epoch time of galore / comera with CUDA Graph",
                "galore-memory-b1": "peak memory of galore / comera, allocated or predicted for CUDA",
                "lte-time": "epoch time of lte / comera, both with CUDA Graph",
                "galore-all-batches": "epoch time and peak memory of galore / comera with CUDA Graph",
                "lte-memory": "peak memory of lte / comera, allocated or predicted for CUDA",
            }
        ),
        "lte-convergence": Rule(
            (), "accuracy on MNLI of lte with its default settings > chance", "any",
            untested="No experiment of this bench trains LTE to convergence.",
        ),
        "mnli-dense-size": Rule(
            TRAINING, "stored_mib of dense / published - 1 within +-tolerance", "any", 100 * SAME_SIZE, "%"
        ),
        "mnli-early-size": _size(_EARLY),
        "mnli-early-ratio": _compression("dense_mib / stored_mib", _EARLY),
        "mnli-late02-size": _size("comera after its late stage toward 0.2"),
        "mnli-dense-acc": _accuracy("dense"),
        "mnli-early-acc": _accuracy(_EARLY),
        **{claim: rule for target in PAPER_TARGETS for claim, rule in _late(target).items()},
        "mnli-same-accuracy": Rule(
            TRAINING,
            f"accuracy on MNLI of {_EARLY} - that of dense after as many steps, {SEEDS_NEEDED} seeds >= -tolerance",
            "any", MARGIN, "points",
        ),
        "ranks-removed": Rule(
            TRAINING, f"ranks after a late stage: in every seed some layer of block {BLOCK} has none left", "any"
        ),
        "graph-speedup": Rule(
            FIG7,
            "epoch time of dense / comera, both with CUDA Graph, FP32, batch "
            f"{', '.join(map(str, fig7_claims.BATCHES['cuda']))} {_REACHES} {_PARTLY}",
            "cuda", fig7_claims.SLACK, "x",
        ),
        "ratio-monotone": Rule(
            FIG12,
            "epoch time of dense / comera, by ratio: surely higher at the largest than at the smallest, nowhere surely "
            "falling, and at the smallest not surely > 1 + tolerance",
            "cuda", fig12_claims.MARGIN, "x",
        ),
        "lookup-time": _looked_up("step time", "cuda"),
        "lookup-memory": _looked_up("peak memory, allocated or predicted for CUDA,", "any"),
        "dlrm-size": _not_yet("DLRM", "stored size of dense / comera"),
        "dlrm-memory": _not_yet("DLRM", "peak memory of dense / comera, batch 10,000"),
        "dlrm-accuracy": _not_yet("DLRM", "accuracy of comera less that of dense"),
        "dlrm-nce": _not_yet("DLRM", "normalized cross entropy of comera less that of dense"),
        "recsys-time": _not_yet("DLRM", "epoch time of dense / comera", "cuda"),
        "dlrm-opt-plain": _not_yet("DLRM", "epoch time and peak memory of plain / optimized comera", "cuda"),
        "dlrm-opt-dense": _not_yet("DLRM", "peak memory of dense / optimized comera"),
        "dlrm-curve": _not_yet("DLRM", "final loss of comera less that of dense"),
        "codebert-ratio": _not_yet("CodeBERT", "stored size of dense / comera"),
        "codebert-speedup": _not_yet("CodeBERT", "pre-training time of dense / comera, over both phases", "cuda"),
        "codebert-curve": _not_yet("CodeBERT", "loss of comera less that of dense, by step and phase"),
        "fp8-larger-is-better": _not_yet("FP8", "step time of FP32 / FP8-mix, by shape", "cuda"),
        "fp8-dlrm": _not_yet("FP8 or DLRM", "accuracy of FP8 / FP32 less that of FP32, batch 10,000", "cuda"),
        "fp8-accuracy": _not_yet("FP8", "accuracy of mixed precision less that of FP32", "cuda"),
    }
)  # fmt: skip
