"""``python -m figures FIGURE``: draw a figure or table from records, print its table and verdicts."""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
import tempfile
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from bench.record import Record, RecordError, read_all
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
    table_mnli,
    table_ranks,
    table_search,
    table_tensorization,
    truncation,
)
from figures.claims import Claim, LedgerError, read_claims
from figures.report import Drawn
from figures.runs import EXPERIMENT


@dataclass(frozen=True)
class Artifact:
    """A figure or table that can be asked for by name."""

    render: Callable[[Sequence[Record], dict[str, Claim]], list[Drawn]]
    summary: str
    experiments: tuple[str, ...] = (EXPERIMENT,)  # whose records it is made of
    measure: str | None = "train"  # of its records; None for any
    made_by: str = "python -m bench experiment=accuracy"


ARTIFACTS = {
    "fig1": Artifact(
        fig1.render,
        "time per epoch and peak memory of every arm, by batch size; an image per device",
        fig1.EXPERIMENTS,
        None,
        "make reproduce-fig1",
    ),
    "fig5": Artifact(
        fig5.render,
        "time and peak memory of a table look-up by each variant; an image per device, table and distribution",
        fig5.EXPERIMENTS,
        None,
        "make reproduce-fig5",
    ),
    "fig6": Artifact(
        fig6.render, "validation accuracy per epoch, dense against CoMERA; an image per device and dataset"
    ),
    "fig7": Artifact(
        fig7.render,
        "time per epoch with CUDA Graph (on a CPU, compile) off and on, dense against CoMERA; an image per device",
        fig7.EXPERIMENTS,
        "run",
        "make reproduce-fig7",
    ),
    "fig11": Artifact(
        fig11.render,
        "contraction plans chosen for the encoder's layers as tensor diagrams, step by step; an image per device",
        fig11.EXPERIMENTS,
        "plan",
        "make reproduce-fig11",
    ),
    "fig12": Artifact(
        fig12.render,
        "time per epoch, peak memory and FLOPs against the compression of the whole model, beside dense; "
        "an image per device, precision and toggles",
        fig12.EXPERIMENTS,
        None,
        "make sweep-ratios",
    ),
    "plans": Artifact(
        plans.render,
        "the contraction planner's choice over the best measured candidate on a grid of shapes; an image per device",
        plans.EXPERIMENTS,
        "plan",
        "make plan-grid",
    ),
    "prediction": Artifact(
        prediction.render,
        "error of the predicted peak memory by arm, wherever the allocator's was measured; an image per device",
        prediction.EXPERIMENTS,
        None,
        "make reproduce-prediction",
    ),
    "pareto": Artifact(
        pareto.render,
        "accuracy against the size of the model, with the Pareto front; an image per device and dataset",
        (pareto.EXPERIMENT,),
        made_by=f"python -m bench experiment={pareto.EXPERIMENT}",
    ),
    "table_mnli": Artifact(
        table_mnli.render,
        "accuracy with its interval, size and compression of dense, early and late stages, beside the published; "
        "a table per device and dataset",
    ),
    "table_ranks": Artifact(
        table_ranks.render,
        "ranks of the fifth encoder block before training and after each stage; a table per device and dataset",
    ),
    "table_search": Artifact(
        table_search.render,
        "settings tried for each method with the loss, accuracy and size they reached; "
        "a table per device, dataset and experiment",
        table_search.EXPERIMENTS,
        made_by=f"python -m bench experiment={table_search.EXPERIMENTS[0]}",
    ),
    "table_tensorization": Artifact(
        table_tensorization.render,
        "modes, ranks, sizes, FLOPs and time of the encoder's matrices: dense, in the paper's tensorization, in the "
        "solver's; a table per device",
        (table_tensorization.EXPERIMENT,),
        "run",
        "make reproduce-table-tensorization",
    ),
    "truncation": Artifact(
        truncation.render,
        "step time, peak memory and accuracy against the physically truncated size; an image per device and dataset",
    ),
}
RENDERED = Path("figures") / "rendered"


class InputError(Exception):
    """Something the user can put right; the message is one sentence."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see python -m figures --help.")


def _epilog() -> str:
    lines = ["figures and tables (the experiments whose records they are made of):"]
    for name, artifact in ARTIFACTS.items():
        text = f"{artifact.summary} (records: {', '.join(artifact.experiments)})."
        lines += textwrap.wrap(text, 110, initial_indent=f"  {name:<21}", subsequent_indent=" " * 23)
    lines += [
        "",
        "Written for each: .png and .svg (figures alone), .md (table and verdicts) and .csv (tidy numbers).",
        "Records are made by python -m bench; a make target reproduce-… does both: make help.",
    ]
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m figures",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Draw a figure or table of the paper from records and print the same as a table, with a verdict\n"
        "on every published claim it touches. Nothing is measured here.",
        epilog=_epilog(),
    )
    parser.add_argument("figure", metavar="FIGURE", help=f"what to draw: {', '.join(ARTIFACTS)}")
    parser.add_argument(
        "--records", metavar="FOLDER", type=Path, default=Path("results") / "local",
        help="where the records lie (default: results/local; the project's own: results/reference)",
    )  # fmt: skip
    parser.add_argument(
        "--out", metavar="FOLDER", type=Path,
        help="where to write (default: figures/rendered/ and the name of the records' folder)",
    )  # fmt: skip
    parser.add_argument(
        "--experiment", metavar="NAME",
        help="whose training records to show (default: as listed below; those of the small presets: accuracy_small, "
        "ratios_accuracy_small)",
    )  # fmt: skip
    return parser


def _artifact(name: str, experiment: str | None) -> Artifact:
    """What was asked for, on the records of ``experiment`` if one is named."""
    if name not in ARTIFACTS:
        raise InputError(f"figure is {name!r}; available: {', '.join(ARTIFACTS)}.")
    artifact = ARTIFACTS[name]
    if experiment is None:
        return artifact
    if artifact.measure != "train":
        trained = ", ".join(other for other, one in ARTIFACTS.items() if one.measure == "train")
        raise InputError(f"--experiment is {experiment!r}, but {name} shows no training; it is for: {trained}.")
    if not re.fullmatch(r"[\w-]+", experiment):
        raise InputError(f"--experiment is {experiment!r}; allowed: letters, digits, - and _.")
    return replace(artifact, experiments=(experiment,), made_by=f"python -m bench experiment={experiment}")


def _folders(artifact: Artifact) -> str:
    return " or ".join(f"{experiment}/" for experiment in artifact.experiments)


def _records(artifact: Artifact, root: Path) -> list[Record]:
    if not root.is_dir():
        raise InputError(f"--records is {str(root)!r}; a folder with records is expected.")
    found = [record for experiment in artifact.experiments for record in read_all(root, experiment)]
    records = [record for record in found if artifact.measure in (None, record.measure)]
    if not records:
        kind = {"train": "training record", "run": "timed record"}.get(artifact.measure or "", "record")
        raise InputError(f"{root}: no {kind} below {_folders(artifact)}; make some with: {artifact.made_by}.")
    return records


def _write(files: dict[str, bytes], folder: Path) -> None:
    """Write each file whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=".", suffix=".partial")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), 0o644)
        os.replace(temporary, folder / name)


def run(argv: Sequence[str] | None = None) -> None:
    """Read, draw, then write and print; whatever is wrong with the input stops it before anything is written."""
    arguments = _parser().parse_args(argv)
    artifact = _artifact(arguments.figure, arguments.experiment)
    root: Path = arguments.records
    out: Path = arguments.out or RENDERED / root.resolve().name
    everything = artifact.render(_records(artifact, root), read_claims())
    if not everything:
        raise InputError(
            f"{root}: no record below {_folders(artifact)} is one that {arguments.figure} shows; make some with: "
            f"{artifact.made_by}."
        )
    for drawn in everything:
        try:
            _write(drawn.files, out)
        except OSError as error:
            raise InputError(f"--out is {str(out)!r}; cannot write there ({error.strerror}).") from None
    for drawn in everything:
        sys.stdout.write(drawn.to_text())
        sys.stdout.write("Written: " + ", ".join(str(out / name) for name in drawn.files) + "\n\n")


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0, or 2 after one sentence on what is wrong."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        run(argv)
    except (InputError, RecordError, LedgerError) as error:
        print(error, file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader, such as head, has seen enough; the files are all written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
