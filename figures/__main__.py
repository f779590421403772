"""``python -m figures [draw] FIGURE``, and ``all``, ``docs``, ``claims``, ``explore``."""

import argparse
import collections
import functools
import io
import os
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import Any, NoReturn

from bench.errors import KILLED, TERMINAL, ConfigError, packages_needed, unwritten
from bench.interrupts import end_early, interruptible
from figures.early import check_out

if __name__ == "__main__":
    end_early()  # the imports below take a second
    check_out(sys.argv[1:])

with packages_needed():
    import pandas as pd

    from bench.core.files import check_folder, remove_abandoned, write_whole
    from bench.core.reading import user_path
    from bench.core.record import Record, RecordError, read_all
    from figures import frame
    from figures.documents import filled
    from figures.ledger.judging import claims_of, judge
    from figures.ledger.pages import to_csv, to_details, to_lines, to_markdown_page, to_text
    from figures.redraw import Contents, draw_all, not_drawn
    from figures.registry import artifacts, by_name
    from figures.text import InputError

FORMATS = {"text": to_text, "markdown": to_markdown_page, "csv": to_csv}
RENDERED = Path("figures") / "rendered"
EXPLORER = "explorer.html"

#: What a full disk leaves.
_UNWRITTEN = "files that are there are whole, and the same command draws them again"


class FiguresParser(argparse.ArgumentParser):
    """A parser that raises InputError."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see {self.prog} --help.")


def _epilog() -> str:
    lines = ["figures and tables:"]
    wrapper = textwrap.TextWrapper(TERMINAL, subsequent_indent=" " * 23, break_on_hyphens=False)
    for name, (artifact, *_) in by_name().items():
        lines.append(wrapper.fill(f"  {name:<20} {artifact.summary.partition(';')[0]}"))
    return (
        "\n".join(lines)
        + """

Written for each: .svg (figures alone), .md (table and verdicts) and .csv (tidy numbers). Also:
python -m figures all, claims, explore, docs (--help says more). FIGURES_PLUGINS=MODULE,MODULE
imports modules of your own that register figures. An example:
python -m figures fig1 --records results/reference"""
    )


#: What each command does, as its help says it.
COMMANDS = {
    "draw": """Draw a figure or table of the paper from records and print the same as a table, with a verdict
on every published claim it touches. Nothing is measured here.""",
    "claims": """Print a line per claim published about the method: reproduced, partly, not reproduced, or not
tested here. With --all, or the names of claims, also what decides it and why. Nothing is measured
here.""",
    "explore": """Write one HTML file in which every record is a point: filters, axes, the Pareto front, and the
command behind each point. Nothing is measured here, and the page loads nothing.""",
    "all": """Draw every figure and table there are records of, in parallel, and write them.
Nothing is measured here. What the tests do:
python -m figures all --check --records results/reference""",
    "docs": "Fill the numbers and tables of README.md and docs/*.md from drawn files and records.",
}


def _parser(program: str) -> FiguresParser:
    parser = FiguresParser(prog=program, add_help=False)
    added = parser.add_subparsers(required=True)
    form = argparse.RawDescriptionHelpFormatter
    about: dict[str, dict[str, Any]] = {
        name: {"description": words, "formatter_class": form} for name, words in COMMANDS.items()
    }
    about["draw"] |= {"prog": program, "epilog": _epilog()}
    commands = {name: added.add_parser(name, **more) for name, more in about.items()}
    work = (draw, claims, explore, draw_everything, fill_documents)
    for (name, one), does in zip(commands.items(), work, strict=True):
        records = Path("results") / ("reference" if name == "docs" else "local")
        where = f"where the records lie (default: {records}; the project's own: results/reference)"
        one.add_argument("--records", metavar="FOLDER", type=Path, default=records, help=where)
        one.set_defaults(work=does, parser=one)
    option = commands["draw"].add_argument
    option("figure", metavar="FIGURE", help="what to draw, by a name below")
    whose = "whose records to show, such as accuracy_small (default: the figure's own)"
    option("--experiment", metavar="NAME", help=whose)
    option("--png", action="store_true", help="write the picture as a PNG too; one that is there is always drawn anew")
    option = commands["claims"].add_argument
    option("claim", metavar="CLAIM", nargs="*", help="print rule, reason and numbers of these claims")
    option("--all", action="store_true", help="print rule, reason and numbers of every claim")
    option("--format", choices=FORMATS, default="text", help="text of 100 columns by default; the others hold all")
    model = "predictions for a model of your own, written by python -m bench advise --html"
    commands["explore"].add_argument("--model", metavar="FILE", type=Path, help=model)
    either = commands["all"].add_mutually_exclusive_group()
    check = "write nothing; name the files that differ, and end with status 1 if there are any"
    either.add_argument("--check", action="store_true", help=check)
    accept = "write only the files that differ; looks of a picture do not count"
    either.add_argument("--accept", action="store_true", help=accept)
    check = "write nothing; end with status 1 if any is out of date"
    commands["docs"].add_argument("--check", action="store_true", help=check)
    out = "where to write (default: figures/rendered/ and the name of the records' folder)"
    for name in COMMANDS.keys() - {"claims"}:
        commands[name].add_argument("--out", metavar="FOLDER", type=Path, help=out)
    return parser


def _folder(arguments: argparse.Namespace) -> Path:
    """Return what ``--records`` names; raises InputError where that is no folder."""
    root = user_path("--records", arguments.records)
    if not root.is_dir():
        raise InputError(f"--records is {str(root)!r}; a folder with records is expected.")
    return root


def _read(root: Path) -> pd.DataFrame:
    """Return all records of a folder; raises InputError where there is none."""
    return frame.of(_records(root))


def _records(root: Path) -> list[Record]:
    """Return the same as records."""
    records = read_all(root)
    if not records:
        make = "make some with python -m bench experiment=NAME, or name results/reference, the project's own"
        raise InputError(f"{root}: no record; {make}.")
    return records


def _out(arguments: argparse.Namespace) -> Path:
    """Return the folder of ``--out``, by default that of the records' name."""
    records = user_path("--records", arguments.records).resolve()
    return user_path("--out", arguments.out or RENDERED / records.name)


def _write(files: Mapping[str, bytes], arguments: argparse.Namespace) -> list[Path]:
    """Write each file whole or not at all, in the place of one that is there; where ``--out`` says."""
    folder = _out(arguments)
    remove_abandoned(folder, below=False)
    write_whole({folder / name: content for name, content in files.items()})
    return [folder / name for name in files]


def draw(arguments: argparse.Namespace) -> None:
    """Read, draw, then write and print; whatever is wrong with the input stops it before anything is written."""
    available, name, experiment = by_name(), arguments.figure, arguments.experiment
    if name not in available:
        raise InputError(f"figure is {name!r}; available: {', '.join(available)}.")
    parts = available[name]
    if experiment is not None:
        if not re.fullmatch(r"[\w-]+", experiment):
            raise InputError(f"--experiment is {experiment!r}; allowed: letters, digits, - and _.")
        parts = [part.for_experiment(experiment) for part in parts]
    root, artifact = _folder(arguments), parts[0]
    check_folder("--out", _out(arguments))
    records = frame.load(root, [one for part in parts for one in (*part.experiments, *part.lenders)])
    folders = " or ".join(f"{name}/" for name in artifact.experiments)
    if all(part.of(records).empty for part in parts):
        kind = {"train": "training record", "run": "timed record"}.get(artifact.measure or "", "record")
        raise InputError(f"{root}: no {kind} below {folders}; make some with: {artifact.command}.")
    claims = claims_of(artifacts().values())
    pages = [page for part in parts for page in part.render(records, claims)]
    if not pages:
        shown = f"is one that {artifact.name} shows; make some with: {artifact.command}"
        raise InputError(f"{root}: no record below {folders} {shown}.")
    names = [page.files.names_in(_out(arguments), arguments.png) for page in pages]
    files = [  # all are drawn before the first one is written
        {name: page.files[name] for name in some} for page, some in zip(pages, names, strict=True)
    ]
    written = [_write(content, arguments) for content in files]
    for page, paths in zip(pages, written, strict=True):
        sys.stdout.write(f"{page.to_text()}Written: {', '.join(map(str, paths))}\n\n")


def draw_everything(arguments: argparse.Namespace) -> int:
    """Draw all, then write all, write what differs, or name what differs; return the exit status."""
    root, folder = _folder(arguments), _out(arguments)
    if not arguments.check:
        check_folder("--out", folder)
    elif not folder.is_dir():
        raise InputError(f"--out is {str(folder)!r}; a folder with drawn files is expected.")
    records = _read(root)
    contents_of: Contents = "none" if arguments.check else "differing" if arguments.accept else "all"
    drawn = dict(draw_all(records, folder, contents_of))
    names = [name for outcome in drawn.values() for name in outcome.names]
    differing = sorted(name for outcome in drawn.values() for name in outcome.differing)
    if not names:
        raise InputError(f"{root}: no record that a figure or table shows; make some with: make reproduce-fig1.")
    said = []
    if without := sorted(name for name, outcome in drawn.items() if not outcome.names):
        said.append(f"Not drawn, for want of records: {', '.join(without)}.")
    if arguments.check:
        said += [f"differs: {folder / name}" for name in differing]
    else:
        contents = collections.ChainMap(*(outcome.contents for outcome in drawn.values()))
        paths = sorted(_write(contents, arguments))
        said += [f"written: {one}" for one in (paths if arguments.accept else [f"{len(paths)} files"])]
    stale = not_drawn(folder, names)
    said += [f"no figure draws: {folder / name}" for name in stale]
    said.append(f"{len(names) - len(differing)} of {len(names)} files were as they are drawn.")
    print(*said, sep="\n")
    if not arguments.check or not (differing or stale):
        return 0
    hint = "python -m figures all --accept writes those that differ; remove those that no figure draws."
    print(hint, file=sys.stderr)
    return 1


def fill_documents(arguments: argparse.Namespace) -> int:
    """Fill the places of README and docs, or only name the files that are out of date; the exit status."""
    root, drawn = _folder(arguments), _out(arguments)
    ledger = functools.cache(lambda: to_markdown_page(judge(_read(root))))
    paths = [Path("README.md"), *sorted(Path("docs").glob("*.md"))]
    if not paths[0].is_file():
        raise InputError("README.md is not in this folder; run the command in the project's root.")
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    filled_texts = {path: filled(text, (drawn, root), ledger) for path, text in texts.items()}
    changed = {path: new.encode() for path, new in filled_texts.items() if new != texts[path]}
    for path in changed:
        print(f"{'out of date' if arguments.check else 'written'}: {path}")
    if not arguments.check:
        write_whole(changed)
    return 1 if changed and arguments.check else 0


def claims(arguments: argparse.Namespace) -> None:
    """Read, judge and print; whatever is wrong with the input stops it before anything is printed."""
    named, known = set(arguments.claim), claims_of(artifacts().values())
    if unknown := sorted(named - known.keys()):
        raise InputError(f"claim is {unknown[0]!r}; allowed: {', '.join(known)}.")
    entries = judge(_read(_folder(arguments)), only=named or None)
    in_short = to_details if named else to_text if arguments.all else to_lines
    sys.stdout.write((in_short if arguments.format == "text" else FORMATS[arguments.format])(entries))


def explore(arguments: argparse.Namespace) -> None:
    """Read, write the page and print where it lies; wrong input stops it before anything is written."""
    from figures.explorer.page import page
    from figures.explorer.points import own_points

    own = own_points(user_path("--model", arguments.model)) if arguments.model else None
    root = user_path("--records", arguments.records)
    check_folder("--out", _out(arguments))
    lacking = own is not None and not (root.is_dir() and read_all(root))
    records = [] if lacking else _records(_folder(arguments))
    print(*_write({EXPLORER: page(records, own)}, arguments))


def main(argv: Sequence[str] | None = None, program: str = "python -m figures") -> int:
    """Return the exit status: 0, or after one sentence 2 for wrong input, 1 for, say, a full disk."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] not in COMMANDS:
        words.insert(0, "draw")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    with interruptible():
        return _run(words, program)


def _run(words: Sequence[str], program: str) -> int:
    """Run the command of the first word; the exit status, as :func:`main`."""
    try:
        arguments, others = _parser(program).parse_known_args(words)
        if others:
            arguments.parser.error(f"unrecognized arguments: {' '.join(others)}")
        status: int | None = arguments.work(arguments)
        sys.stdout.flush()
    except (ConfigError, InputError, RecordError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader, such as head, has seen enough; all files are written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except BrokenExecutor:
        print(f"error: {KILLED}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {unwritten(error, _UNWRITTEN)}", file=sys.stderr)
        return 1
    return status or 0


if __name__ == "__main__":
    sys.exit(main())
