"""A linear layer in every precision: error, bytes, the least time on GPUs, and where one was at hand its time.

What FP8 can gain is read from the rooflines: its arithmetic where operations bound a product, its storage where bytes
do. A tensorized layer is bound by bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.core.intervals import Estimate, mean_estimate, paired_ratio
from bench.core.record import Record
from figures.artifact import Artifact
from figures.claims.claims import Claim, Finding, Judgement
from figures.claims.ratio import ON_CPU
from figures.claims.rule import Rule
from figures.page.drawn import Caption
from figures.page.notes import closing_notes, device_fact
from figures.records.select import COMERA, DENSE, PRECISIONS, Selected, pages_by_device, workload_settings
from figures.text import REMARKS, Column, bounds, one_line, ratio_text, significant

#: Forms of the rooflines that nothing was computed in: they say what storage would give.
_BYTES_ALONE = ("fp8, bf16", "fp8 stored")
FORMS = (*PRECISIONS, *_BYTES_ALONE)
GPUS = ("h100", "h200", "l4", "rtx3090", "rtx4090")

#: From which ratio of least times on a form counts as a gain.
_GAIN = 1.05


@dataclass(frozen=True)
class Fp8Row:
    """One layer of one arm in one form."""

    record: Record
    form: str
    measured: Mapping[str, Any]  # what the measure has of the precision; empty where it has none
    roofline: Mapping[str, Any]
    all_ms: Mapping[str, Sequence[float]]  # of every precision of the record

    @property
    def shape(self) -> tuple[int, int, int]:
        sizes = workload_settings(self.record)
        return self.record.batch_size, sizes["in_features"], sizes["out_features"]

    @property
    def layer(self) -> str:
        rows, inputs, outputs = self.shape
        return f"{rows:,} x {inputs:,} to {outputs:,}"

    @property
    def time(self) -> Estimate | None:
        return mean_estimate(list(ms)) if (ms := self.all_ms.get(self.form)) else None

    def gain(self, over: str) -> Estimate | None:
        """How many times faster it is than another precision, block by block."""
        slow, fast = self.all_ms.get(over), self.all_ms.get(self.form)
        return paired_ratio(dict(enumerate(slow)), dict(enumerate(fast))) if slow and fast else None

    def least_ms(self, gpu: str) -> float | None:
        """The larger bound on a device; None where it does not multiply so."""
        found = (self.roofline.get("gpus") or {}).get(gpu)
        return None if found is None else max(found["operations_ms"], found["traffic_ms"])

    def bound_by(self, gpu: str) -> str:
        found = self.roofline["gpus"][gpu]
        return "operations" if found["operations_ms"] >= found["traffic_ms"] else "traffic"


def rows_of(page: Selected) -> list[Fp8Row]:
    """Rows by layer, dense before tensorized, from the most exact form to the least."""
    rows = []
    for record in page.shown:
        measured = {one["name"]: one for one in record.samples.get("precisions", ())}
        lines = {one["form"]: one for one in record.samples.get("rooflines", ())}
        times = {name: one["ms"] for name, one in measured.items() if one["ms"]}
        for form in FORMS:
            line = lines.get(form) or lines.get(form.partition("_")[0], {})
            if form in measured or form in lines:
                rows.append(Fp8Row(record, form, measured.get(form, {}), line, times))
    return sorted(rows, key=lambda row: (row.shape, row.record.arm != DENSE, row.record.arm, FORMS.index(row.form)))


def columns(_: Selected, rows: Sequence[Fp8Row]) -> list[Column[Fp8Row]]:
    def number(name: str, text: str = "{:.1e}") -> Column[Fp8Row]:
        return Column(
            name.replace("_", " "),
            lambda row: None if row.measured.get(name) is None else text.format(row.measured[name]),
            lambda row: {name: row.measured.get(name)},
        )

    def least(gpu: str) -> Column[Fp8Row]:
        def text(row: Fp8Row) -> str | None:
            time = row.least_ms(gpu)
            return None if time is None else f"{significant(time)} {row.bound_by(gpu)[0]}"

        return Column(gpu, text, lambda row: {f"{gpu}_least_ms": row.least_ms(gpu)})

    def tidy(row: Fp8Row) -> dict[str, object]:
        tokens, inputs, outputs = row.shape
        return {
            "device": row.record.device,
            "rows": tokens,
            "in_features": inputs,
            "out_features": outputs,
            "arm": row.record.arm,
            "form": row.form,
            "arithmetic": row.measured.get("arithmetic"),
            "mib": row.roofline.get("mib"),
            **bounds("ms", row.time),
            **bounds("gain_over_fp32", row.gain("fp32")),
            **bounds("gain_over_bf16", row.gain("bf16")),
            "message": row.measured.get("message", ""),
            "cell_id": row.record.cell_id,
        }

    timed = any(row.all_ms for row in rows)
    return [
        Column("layer", lambda row: row.layer, tidy, left=True),
        Column("arm", lambda row: row.record.arm, left=True),
        Column("form", lambda row: row.form, left=True),
        number("error"),
        number("gradient_error"),
        number("largest"),
        number("bound"),
        Column("MiB", lambda row: significant(row.roofline.get("mib"))),
        *(
            [
                Column("ms", lambda row: significant(row.time.value) if row.time else None),
                Column("over fp32", lambda row: ratio_text(row.gain("fp32"))),
                Column("over bf16", lambda row: ratio_text(row.gain("bf16"))),
            ]
            if timed
            else []
        ),
        *map(least, GPUS),
        Column("what ran", lambda row: row.measured.get("arithmetic") or None, left=True),
        Column(REMARKS, lambda row: one_line(row.measured.get("message", "")), left=True),
    ]


def _against(rows: Sequence[Fp8Row], arm: str, form: str) -> list[tuple[Fp8Row, str, float]]:
    """By layer and GPU, how many times less the least time of a form is than BF16's."""
    own = {(row.shape, row.record.arm, row.form): row for row in rows}
    found = []
    for row in rows:
        rival = own.get((row.shape, row.record.arm, "bf16"))
        if row.record.arm != arm or row.form != form or rival is None:
            continue
        for gpu in GPUS:
            mine, theirs = row.least_ms(gpu), rival.least_ms(gpu)
            if mine and theirs:
                found.append((row, gpu, theirs / mine))
    return found


def findings(rows: Sequence[Fp8Row]) -> list[str]:
    """Where FP8 can and cannot gain over BF16, in sentences."""
    lines = []
    for arm in (DENSE, COMERA):
        for form, words in (("fp8, bf16", "products in FP8, all else in BF16,"), ("fp8 stored", "storage in FP8")):
            ratios = [ratio for *_, ratio in _against(rows, arm, form)]
            if ratios:
                gains = sum(ratio >= _GAIN for ratio in ratios)
                lines.append(
                    f"{arm}: by the rooflines {words} can gain over BF16 in {gains} of {len(ratios)} pairs of layer "
                    f"and GPU, {min(ratios):.2f}x to {max(ratios):.2f}x."
                )
    return lines


def caption(page: Selected, rows: Sequence[Fp8Row]) -> Caption:
    return Caption(
        title="A linear layer by precision: errors, bytes and least times",
        facts=(device_fact(page), *findings(rows)),
        notes=(
            "error, gradient error: relative, in the Euclidean norm, of the output and of all gradients, against the "
            "same layer in float64; largest: of an output, in parts of Σ|a||b|; bound: what roundings can add up to.",
            "MiB: what the forward products read and write at least. h100 to rtx4090: least time in ms by rated peaks, "
            "o: bound by operations, t: by traffic; a dash where tensor cores do not multiply so.",
            "fp8: all but the products in FP32, the paper's FP8-mix; fp8, bf16: all but the products in BF16; fp8 "
            "stored: input and output in FP8 too. The last two are bytes and bounds alone.",
            *closing_notes(page),
        ),
        remarks=[
            f"{row.layer}, {row.record.arm}, {row.form}: {one_line(row.measured['message'])}."
            for row in rows
            if row.measured.get("message")
        ],
    )


def judge(_: Claim, page: Selected, rows: Sequence[Fp8Row]) -> Judgement:
    """The gain of FP8 over FP32 in time grows from the first of the paper's shapes to the second."""
    gains = {
        row.shape: row.gain("fp32")
        for row in rows
        if row.record.arm == COMERA and row.form == "fp8" and row.shape[0] == 10_000
    }
    timed = {shape: gain for shape, gain in sorted(gains.items()) if gain is not None}
    if len(timed) < 2:
        return Judgement("not tested here", "No times of FP8 and FP32 at both of the paper's shapes; a GPU has them.")
    found = [Finding(f"FP32 / FP8, {shape[1]:,} to {shape[2]:,}", ratio_text(gain)) for shape, gain in timed.items()]
    if page.kind == "cpu":
        return Judgement("not tested here", ON_CPU, found)
    first, *others = timed.values()
    last = others[-1]
    if last.low is not None and first.high is not None and last.low > first.high:
        return Judgement("reproduced", "The gain of the larger shape is surely larger.", found)
    if last.high is not None and first.low is not None and last.high < first.low:
        return Judgement("not reproduced", "The gain of the larger shape is surely smaller.", found)
    return Judgement("partly", "The gains of the two shapes are not surely apart.", found)


ARTIFACT: Artifact[Selected] = Artifact(
    name="table_fp8",
    heading="FP8 and BF16 by shape",
    summary="error, bytes and least times of a linear layer in every precision; a table per device",
    experiments=("table_fp8",),
    measure="fp8",
    made_by="make reproduce-table-fp8",
    order=145,
    select=pages_by_device,
    rows=rows_of,
    columns=columns,
    caption=caption,
    section="layer",
    keys=("layer", "arm", "form"),
    breaks=("h100",),
    rules=(
        Rule(
            "fp8-larger-is-better",
            "time of FP32 / FP8-mix at (10,000; 1,024; 4,096) over that at 1,024",
            "> 1",
            "cuda",
            judge=judge,
        ),
    ),
)
