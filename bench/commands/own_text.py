"""The end of ``python -m bench experiment=text``: losses beside those of n-grams, and the folders of the models."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.commands.programs import aligned
from bench.core.cell import Cell
from bench.core.reading import user_path
from bench.core.record import Record
from bench.protocol import Workload
from bench.runner.configuration import composed, configuration, job_configuration
from bench.runner.resolve import resolve
from bench.runner.results import Results
from bench.training.trained import trained_model
from bench.workloads import open_cell_workload
from bench.workloads.text.model import CausalLanguageModel
from bench.workloads.text.saved import save
from bench.workloads.text.workload import EQUAL

_HEADINGS = ("model", "numbers", "loss", "test loss", "saved in")

#: Methods whose models :func:`comera.load_pretrained` makes of dense ones.
_SAVED = ("btt", "comera", "dense")

_NOTE = """Losses in nats per token: loss on text held out to choose by, test loss on text held out to report.
numbers: parameters, or counts of an n-gram; the equal-size one may store as many as dense has."""


def ending(settings: Sequence[str]) -> str:
    """Return the table of the trainings that settings name, and three lines that load a model; saves the models.

    Without a finished training it is empty.
    """
    parts = []
    with configuration():
        for overrides in composed(settings)[1]:
            config = job_configuration(overrides)
            job = resolve(config)
            results = Results(user_path("results", config["results"]), "config")
            found = [(cell, results.answer(cell, job.data_hash)) for cell in job.cells]
            ended = [(cell, record) for cell, record in found if record is not None and record.status == "ok"]
            if ended:
                workload = open_cell_workload(job.cells[0], job.data)
                folders = [_saved(cell, workload, results, job.data_hash) for cell, _ in ended]
                parts.append(_table(workload, [record for _, record in ended], folders))
    return "\n".join(parts)


def _saved(cell: Cell, workload: Workload, results: Results, data_hash: str) -> Path | None:
    """Save the trained model of a cell and return its folder; None where there is no model that can be loaded."""
    if cell.method not in _SAVED:
        return None
    model = trained_model(cell, workload, results.upkeep(cell, data_hash, resume=True))
    if not isinstance(model, CausalLanguageModel):
        return None
    name = f"{cell.arm.replace(':', '-')}-{cell.cell_id(data_hash)[:8]}"
    folder = results.root / ".models" / cell.experiment / name  # hidden, since a visible one holds records
    save(model, folder)
    return folder


def _row(name: str, numbers: int, losses: Mapping[str, float], folder: str) -> tuple[str, ...]:
    return name, f"{numbers:,}", f"{losses['loss']:.4f}", f"{losses['test_loss']:.4f}", folder


def _lines(folders: Sequence[Path | None]) -> list[str]:
    """Return the Python that loads the first saved model and continues a prompt; nothing without one."""
    folder = next(filter(None, folders), None)
    if folder is None:
        return []
    return [
        "",
        "from bench.workloads.text.saved import continued, load",
        f"model = load({str(folder)!r})",
        'print(continued(model, "The "))',
    ]


def _table(workload: Workload, records: Sequence[Record], folders: Sequence[Path | None]) -> str:
    rows: list[tuple[str, ...]] = [_HEADINGS]
    for record, folder in zip(records, folders, strict=True):
        rows.append(_row(record.arm, record.parameters or 0, record.metrics, str(folder or "-")))
    for name, probe in workload.probes().items():
        if name.startswith((EQUAL, "best")):
            rows.append(_row(name.removesuffix(" model"), int(probe.metrics["numbers"]), probe.metrics, "-"))
    return "\n".join(["", *aligned(rows), "", _NOTE, *_lines(folders), ""])
