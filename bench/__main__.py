"""Command line: ``python -m bench [run] experiment=NAME [key=value …]``, or another command (:data:`COMMANDS`)."""

import argparse
import os
import sys
from concurrent.futures import BrokenExecutor

from bench.core.files import temporary_folder
from bench.core.processors import check_threads
from bench.errors import CONF, KILLED, Mistake, Parser, packages_needed, stop_with, unwritten
from bench.interrupts import interruptible

COMMANDS = {
    "run": "measure the cells of an experiment; the word may be left out",
    "search": "search every arm's rate, then train further seeds",
    "reproduce": "measure what a figure or table needs, and draw it",
    "advise": "does structured training pay for a model of your own?",
    "predict": "memory, work, least time of a step on any device",
    "claims": "print the verdict of the records on each published claim",
    "explore": "write one HTML page in which every record is a point",
    "list": "what experiments, methods, workloads and measures are for",
}

#: Commands of figures, a floor above, which runs as a program of its own.
_READERS = {"claims": "figures.claims", "explore": "figures.explorer"}


def _parser() -> Parser:
    """Return the parser of all commands."""
    form = argparse.RawDescriptionHelpFormatter
    parser = Parser(
        prog="python -m bench",
        usage="python -m bench [run] experiment=NAME [key=value ...]\n       python -m bench COMMAND ...",
        description="Measure time, memory and accuracy of training methods. Details: python -m bench COMMAND --help",
        epilog="python -m bench experiment=fig1 batch_size=8    measures Fig. 1's arms at one batch size\n"
        "python -m bench list                            names what there is to ask for",
        formatter_class=form,
    )
    # longer than any command, so that argparse leaves room for each in one line
    subparsers = parser.add_subparsers(prog="python -m bench", metavar="COMMAND ...", dest="command")
    commands: dict[str, argparse.ArgumentParser] = {}
    for name, does in COMMANDS.items():
        text = CONF / "help" / f"{name}.txt"
        description = text.read_text(encoding="utf-8") if text.exists() else does
        commands[name] = subparsers.add_parser(name, help=does, description=description, formatter_class=form)
        if name in ("run", "search"):
            commands[name].add_argument("settings", metavar="key=value", nargs="*")
    further = "train the best rate with further seeds (default: 1,2; empty for none)"
    commands["search"].add_argument("--seeds", metavar="LIST", default="1,2", help=further)
    commands["reproduce"].add_argument("target", metavar="TARGET", nargs="?", default="", help="left out: list all")
    where = "where records go (default: results/local)"
    commands["reproduce"].add_argument("--results", metavar="FOLDER", default="results/local", help=where)
    return parser


def _run(settings: list[str]) -> None:
    """Run a sweep; a mistake that its words show ends the program before the heavy imports."""
    from bench.runner.wording import checked_arguments

    words = checked_arguments(settings)
    from bench.runner import sweep

    sweep.run(words)
    if "experiment=text" in words:
        from bench.commands.own_text import ending

        print(ending(words), end="")


def main() -> None:
    """Dispatch on the command; without one it is ``run``."""
    arguments = sys.argv[1:] or ["--help"]
    if "=" in arguments[0] or (arguments[0][:1] == "-" and arguments[0] not in ("-h", "--help")):
        arguments = ["run", *arguments]
    if arguments[0][:1] != "-" and arguments[0] not in COMMANDS:
        stop_with(f"the first word is {arguments[0]!r}; allowed: {', '.join(COMMANDS)}.")
    with interruptible(), packages_needed():
        try:
            temporary_folder()  # named before anything asks Python for one
            check_threads()
            if arguments[0] not in _READERS:  # what only reads records loads no rival
                from baselines._quiet import silence

                silence()
            _command(arguments)
        except Mistake as error:
            stop_with(str(error))
        except BrokenPipeError:  # the reader, such as head, has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(1) from None
        except BrokenExecutor:
            stop_with(KILLED, status=1)
        except OSError as error:
            stop_with(unwritten(error), status=1)


def _command(arguments: list[str]) -> None:
    """Run the command that the first word names."""
    command, asks_help = arguments[0], bool({"-h", "--help"} & set(arguments))
    if command in _READERS:
        from bench.commands.programs import status_of

        raise SystemExit(status_of(["-m", _READERS[command], *arguments[1:]]))
    from bench.commands.early import check_inputs

    check_inputs(arguments[1:])
    if command == "advise":
        from bench.advise.command import main as advise

        advise(arguments[1:])
    elif command == "predict":
        from bench.commands.predict.command import main as predict

        predict(arguments[1:])
    elif command == "run" and not asks_help:
        _run(arguments[1:])
    else:
        _dispatch(_parser(), arguments)


def _dispatch(parser: Parser, arguments: list[str]) -> None:
    """Run a command whose arguments the parser defines."""
    given, others = parser.parse_known_args(arguments)
    if given.command == "search":
        given.settings += others
    elif others:
        parser.error(f"{others[0]} is no argument of {given.command}")
    match given.command:
        case "search":
            from bench.runner.wording import checked_arguments

            settings = checked_arguments(given.settings)  # before the imports of a search, which take seconds
            from bench.commands import search

            search.run(settings, given.seeds)
        case "reproduce":
            from bench.commands import reproduce

            reproduce.run(given.target, given.results)
        case "list":
            from bench.commands.listing import listed

            print(listed(), end="")


if __name__ == "__main__":
    main()
