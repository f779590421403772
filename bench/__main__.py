"""Command line: ``python -m bench [run] experiment=NAME [key=value …]``, or another command (:data:`COMMANDS`)."""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

from bench.core.plugins import VARIABLE, import_plugins
from bench.errors import CONF, ConfigError, Parser, check_arguments, experiments, reworded, stop_with

COMMANDS = {
    "run": "measure the cells of an experiment; the word may be left out",
    "campaign": "run what is missing of all experiments, within a budget",
    "predict": "memory, work, least time of a step on any device",
    "compare": "the records of two folders or commits side by side",
    "speed": "print the speed ratios of the tensorized layer and step",
    "merge": "bring records from other folders and archives together",
    "claims": "print the verdict of the records on each published claim",
    "report": "write one HTML page: verdicts, figures and tables",
}

#: Commands that a module of figures answers. It is run by its name: a floor does not import the one above it.
_READERS = {"claims": "figures.ledger_command", "report": "figures.report_command"}

_RUN = f"""\
A key is any setting of bench/conf/config.yaml or of a workload's section; a value with commas sweeps over it and
replaces the experiment's axis:
  python -m bench experiment=fig1 batch_size=2,4 methods=[comera,dense] settings.comera.ranks=16
  python -m bench experiment=accuracy dataset=sst2 seed=0,1 training.early_epochs=3 'training.targets=[0.5]'
  python -m bench experiment=steps workload=lookup name=lookups      (steps, memory, training, check: of any workload)

Records go to results/local, one JSON file per cell. What is recorded is not measured again (reuse=exact), so a sweep
that was stopped goes on where it was; a training run goes on from its last checkpoint, bit for bit (resume=false starts
it anew). Draw with: python -m figures FIGURE (--help lists the figures)

On a cluster every job of a sweep, such as a batch size, can have a GPU of its own (extra: pip install -e '.[slurm]';
defaults: bench/conf/launchers.yaml; hydra/launcher=submitit_local rehearses it on one machine):
  python -m bench experiment=fig1 hydra/launcher=submitit_slurm device=cuda hydra.launcher.partition=NAME

{VARIABLE}=MODULE,MODULE in the environment imports modules of your own first, here and in the jobs of a cluster, so
that the workloads and measures that they register can be asked for by name (bench.workloads.register,
bench.measures.register). An installed package offers its own through entry points instead.
"""

_COMPARE = """\
Show the records of two results folders or commits side by side, cell by cell: time of a step, memory, FLOPs and, of
training runs, what validation gave. A name is a folder where there is one of that name, else a commit, whose
results/reference is read. Ratios are B over A. What only one of the two has is named below the tables. Records of
different devices are never compared with one another."""

_MERGE = """\
Bring the records of other results folders and of archives (.tar.gz and the like) into one folder: those of a cluster's
workers, of another machine, of a colleague. What lies in hidden folders, such as checkpoints, is left where it is.
Of two different records of one cell, the one that went well stays; if both or neither did, the one recorded later.
Printed are the numbers of records taken, already there, replaced and kept, then every record that was replaced or kept.
Nothing is written unless everything can be read: an unreadable record, one of a newer schema, or an archive that is
damaged or would reach outside of its folder ends the merge with exit status 2."""


def _known() -> str:
    """What there is to ask for, by name."""
    from bench.measures import available as measures
    from bench.measures import named
    from bench.protocol.methods import available as methods
    from bench.workloads import available as workloads
    from bench.workloads import config_sections, workload_class

    lines = [f"experiments: {', '.join(experiments())}", f"methods:     {', '.join(methods())}"]
    lines += [f"workloads:   {', '.join(f'{name} ({workload_class(name).section}.*)' for name in workloads())}"]
    lines += ["measures:", *(f"  {name:15} {named(name).words}" for name in measures()), "sections:"]
    for section, settings in config_sections().items():
        values = ", ".join(f"{name}={json.dumps(value)}" for name, value in settings.items())
        lines += textwrap.wrap(values, 120, initial_indent=f"  {section:10} ", subsequent_indent=" " * 13)
    return "\n".join([*lines, ""])


def _parser(asked: str) -> Parser:
    """The parser of all commands.

    Args:
        asked: the command whose help is wanted, ``--help`` for that of all, or empty: what there is to ask for takes
            long to find.
    """
    known = _known() if asked in ("run", "-h", "--help") else ""
    form = argparse.RawDescriptionHelpFormatter
    parser = Parser(
        prog="python -m bench",
        usage="python -m bench [run] experiment=NAME [key=value ...]\n       python -m bench COMMAND ...",
        description="Measure time, memory and accuracy of training methods. Details: python -m bench COMMAND --help",
        epilog=known,
        formatter_class=form,
    )
    commands = parser.add_subparsers(prog="python -m bench", metavar="COMMAND", dest="command")
    described = {"run": f"{known}\n{_RUN}", "compare": _COMPARE, "merge": _MERGE}
    subparsers = {
        name: commands.add_parser(name, help=text, description=described.get(name, text), formatter_class=form)
        for name, text in COMMANDS.items()
    }
    for name in ("run", "campaign"):
        subparsers[name].add_argument("arguments", metavar="key=value", nargs="*", help="settings")
    if asked == "campaign":
        from bench.campaign.command import description

        subparsers["campaign"].description = description()
    subparsers["campaign"].add_argument("--list", action="store_true", help="print the stages and what is missing")
    compare = subparsers["compare"]
    compare.epilog = "Example: python -m bench compare results/reference results/local --experiment fig1"
    compare.add_argument("a", metavar="A", help="a results folder or a commit, the one to compare with")
    compare.add_argument("b", metavar="B", help="a results folder or a commit, the one in question")
    compare.add_argument("--experiment", metavar="NAME", help="the only one to compare (default: all)")
    compare.add_argument("--format", choices=("text", "csv"), default="text", help="(default: text)")
    subparsers["speed"].add_argument(
        "--rounds", type=int, default=10, help="interleaved rounds per ratio (default 10, at least 2)"
    )
    source = "a results folder, or an archive of one"
    subparsers["merge"].add_argument("sources", metavar="SOURCE", type=Path, nargs="+", help=source)
    subparsers["merge"].add_argument(
        "--into", metavar="FOLDER", type=Path, default=Path("results") / "local",
        help="where the records go (default: results/local)",
    )  # fmt: skip
    return parser


def run(arguments: list[str]) -> None:
    """The Hydra application. Its errors and OmegaConf's end the program with one sentence."""
    check_arguments(arguments)
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from bench.runner import sweep
    from bench.runner.launching import register_launchers

    os.environ["HYDRA_FULL_ERROR"] = "1"  # exceptions come here instead of being printed
    if any(one.startswith("experiment=") for one in arguments) and not any(one[0] == "-" for one in arguments):
        arguments = [
            *arguments,
            "--multirun",
        ]  # as in every experiment; Hydra forgets it over a mistake in its own part
    sys.argv[1:] = arguments
    try:
        sweep.register_resolvers()
        sweep.register_settings()
        register_launchers()
        application: Callable[[], None] = hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(
            sweep.job
        )
        application()
    except sweep.MISTAKES as error:
        stop_with(str(error))
    except (HydraException, OmegaConfBaseException) as error:
        stop_with(reworded(error))
    except (Exception, KeyboardInterrupt) as error:
        sweep.interrupted(error)
        raise


def main() -> None:
    """Dispatch on the command; without one it is ``run``."""
    arguments = sys.argv[1:]
    if arguments in ([], ["campaign"]):
        arguments = [*arguments, "--help"]
    command, asks_help = arguments[0], bool({"-h", "--help"} & set(arguments))
    if "=" in command or (command[0] == "-" and command not in ("-h", "--help")):
        command, arguments = "run", ["run", *arguments]
    if command[0] != "-" and command not in COMMANDS:
        stop_with(f"the first word is {command!r}; allowed: {', '.join(COMMANDS)}.")
    try:
        import_plugins()
        if command in _READERS:
            sys.argv[1:] = arguments[1:]
            runpy.run_module(_READERS[command], run_name="__main__", alter_sys=True)
        elif command == "predict":
            from bench.commands.predict import main as predict

            predict(arguments[1:])
        elif command == "run" and not asks_help:
            run(arguments[1:])
        else:
            _parsed(_parser(command if asks_help else ""), arguments)
    except ConfigError as error:
        stop_with(str(error))


def _parsed(parser: Parser, arguments: list[str]) -> None:
    """Run a command whose arguments are options and words of its own."""
    parsed, others = parser.parse_known_args(arguments)
    if parsed.command == "campaign":
        from bench.campaign.command import run as campaign

        campaign([*parsed.arguments, *others], parsed.list)
    elif others:
        parser.error(f"{others[0]} is no argument of {parsed.command}")
    elif parsed.command == "speed":
        from bench.commands.speed import run as speed

        speed(parsed.rounds)
    elif parsed.command == "merge":
        from bench.commands.merge import run as merge

        merge(parsed.sources, parsed.into)
    elif parsed.command == "compare":
        from bench.commands.compare import run as compare

        compare(parsed.a, parsed.b, parsed.experiment, parsed.format)


if __name__ == "__main__":
    main()
