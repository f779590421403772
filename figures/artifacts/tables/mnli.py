"""The paper's table on MNLI: accuracy, size and compression of dense training and of CoMERA's stages, per dataset."""

from collections.abc import Sequence

from figures.artifact import Artifact
from figures.claims.claims import read_claims
from figures.claims.training import CLAIMED, CLAIMED_DATASET, MARGIN, MNLI
from figures.page import training as shared
from figures.page.drawn import Caption
from figures.page.notes import closing_notes, first_upper
from figures.records.select import DENSE
from figures.records.studies import Spread, Study, StudyRow
from figures.text import Column, bounds


def _published(study: Study, name: str, quantity: str) -> list[Column[StudyRow]]:
    """Published numbers, which stand in the table only beside the model that they are about; those transcribed from
    memory carry a question mark.
    """
    claims = read_claims()

    def text(row: StudyRow) -> str | None:
        claim = claims.get(f"{CLAIMED.get(row.slot)}-{quantity}")
        if claim is None:
            return None
        return f"{claim.published.removesuffix('%').removesuffix(' MiB')}{'?' if claim.unconfirmed else ''}"

    return [Column(name, text)] if study.is_papers and study.is_full_size else []


def columns(study: Study, rows: Sequence[StudyRow]) -> list[Column[StudyRow]]:
    metric = study.metric
    replaced = Spread.of({run.dense_tensorized_mib for row in rows for run in row.finished.values()} - {None})

    def slot(row: StudyRow) -> dict[str, object]:
        return {"stage": row.slot.stage, "target_ratio": row.slot.target, "target_mib": row.slot.target_mib}

    def is_dense(row: StudyRow) -> bool:
        return row.slot.arm == DENSE and row.status == "ok"

    def times(name: str, column: str, dense: bool) -> Column[StudyRow]:
        def text(row: StudyRow) -> str | None:
            spread = row.spread(column)
            return "1" if dense and is_dense(row) else f"{spread}x" if spread else None

        return shared.spread_column(name, column, text)

    def layers(row: StudyRow) -> object:
        spread = replaced if is_dense(row) else row.spread("tensorized_mib")
        return "0 (all cut)" if spread is not None and spread.high == 0 else spread

    return [
        shared.head_column(study, slot),
        shared.score_column(metric),
        *_published(study, "paper, MNLI: %", "acc"),
        Column(
            metric.heading.replace(metric.short, "dense then", 1),
            lambda row: row.dense_score,
            lambda row: bounds(f"dense_{metric.name}_then", row.dense_score),
        ),
        shared.less_column(metric, "dense", lambda row: row.less_dense),
        shared.spread_column("total, MiB", "stored_mib"),
        *_published(study, "paper: MiB", "size"),
        times("total ratio", "total_ratio", True),
        *_published(study, "paper: total", "ratio"),
        shared.spread_column("layers, MiB", "tensorized_mib", layers),
        times("layers ratio", "tensorized_ratio", replaced is not None),
        *_published(study, "paper: layers", "layers"),
        shared.spread_column("S", "size_fraction", spread=False),
        shared.spread_column("S0", "size_target", spread=False),
        Column("S <= S0", lambda row: shared.reached(row.size_met), lambda row: {"size_met": row.size_met}),
        shared.remarks_column(),
    ]


def _notes(study: Study) -> list[str]:
    several, unit = len(study.seeds) > 1, study.metric.unit_apart
    less = f"less dense: the difference to it{f' in {unit}' if unit else ''}"
    if study.values_are != "none":
        less += f", by paired bootstrap over the same {shared.validation_words(study)}"
        less += " and over seeds" if several else ""
    comparable = f"; comparable within {MARGIN:g} points" if study.is_papers else ""
    lines = [
        shared.metric_words(study, study.rows),
        f"dense then: dense after as many steps. {less}{comparable}.",
        "layers: the tensorized layers, and in dense the weights they stand in for. ratio: dense size over this size.",
        shared.size_words(study),
        *shared.one_seed_note(study),
        *shared.dense_note(study),
    ]
    if several:
        lines.append("Sizes are means over seeds; the least and the greatest stand in the CSV.")
    if study.is_papers and study.is_full_size:
        lines.append("paper: published for MNLI and FP32; ? marks what is recalled, an unconfirmed transcription.")
    elif study.is_papers:
        lines.append("The model is not the paper's size, so no published number stands beside it.")
    return lines


def caption(study: Study, rows: Sequence[StudyRow]) -> Caption:
    """On MNLI the paper's table; on other data the same columns, said to be about these data."""
    after = ", after the paper's table on MNLI" if study.is_papers else ""
    return Caption(
        title=f"{first_upper(study.metric.short)} and size of dense training and CoMERA's stages: "
        f"{'MNLI' if study.dataset == CLAIMED_DATASET else repr(study.dataset) + after}",
        facts=shared.facts(study),
        notes=(*_notes(study), *closing_notes(study)),
        remarks=shared.absences(rows),
    )


ARTIFACT = Artifact(
    name="table_mnli",
    heading="Accuracy and size by stage",
    summary="accuracy with its bounds, size and compression of dense, early and late stages, beside the published; "
    "a table per device and dataset",
    order=130,
    **shared.OF_STUDIES,
    rows=lambda study: study.rows,
    columns=columns,
    caption=caption,
    rules=MNLI,
    keys=(shared.RUN,),
    breaks=("total, MiB",),
)
