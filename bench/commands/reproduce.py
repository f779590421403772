"""``python -m bench reproduce TARGET``: run the experiments of a figure or table one after another, then draw it.

``conf/reproduce.yaml`` has the targets; make hands those of its pattern rules here. Each experiment is a command of its
own in a new process, so that the same target goes on where it was stopped.
"""

import re
import shlex
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import yaml

from bench.commands.programs import status_of
from bench.errors import CONF, TERMINAL, ConfigError, experiments


@dataclass(frozen=True)
class Target:
    """A figure or table, or several, with what makes the records.

    >>> target = targets()["sweep-ratios"]
    >>> [words[2:4] for words in target.commands("a b")][:2]
    [['experiment=ratios', "results='a b'"], ['experiment=ratios', 'name=ratios_memory']]
    >>> target.commands("a b")[-1]
    ['-m', 'figures', 'fig12', '--records', 'a b']
    """

    does: str  # in a line
    takes: str = "minutes"  # on two cores
    runs: Sequence[str] = ()  # arguments of ``python -m bench``, without the folder of results, in order
    note: str = ""  # printed before the commands
    draws: Sequence[str] = ()  # arguments of ``python -m figures``, without the folder of records

    def commands(self, results: str) -> list[list[str]]:
        """Return the arguments of Python, command by command."""
        runs = [["-m", "bench", *shlex.split(words), f"results='{results}'"] for words in self.runs]
        return runs + [["-m", "figures", *shlex.split(words), "--records", results] for words in self.draws]


@cache
def targets() -> dict[str, Target]:
    """Return all targets, by the names that make uses."""
    content = yaml.safe_load((CONF / "reproduce.yaml").read_text(encoding="utf-8"))
    return {name: Target(**entry) for name, entry in content.items()}


@cache
def recorded() -> dict[str, str]:
    """Return what records in each folder: an experiment, a line of a target, or a target with several or a search.

    >>> recorded()["fig1"]
    'experiment=fig1'
    >>> recorded()["fig5_memory"]
    'experiment=fig5 name=fig5_memory measure=predict device=cuda'
    >>> recorded()["probe_text"]
    'reproduce compare-formats'
    """
    lines: dict[str, str] = {}
    for target, words in ((target, words) for target, one in targets().items() for words in one.runs):
        if found := re.match(r"(search )?(experiment=\w+ )name=(\w+)", words):
            search, experiment, name = found.groups()
            is_another = lines.setdefault(name, words) != words and lines[name].startswith(experiment)
            lines[name] = f"reproduce {target}" if search or is_another else lines[name]
    return {**lines, **{name: f"experiment={name}" for name in experiments()}}


def listed() -> str:
    """Return what each target does and how long it takes."""
    width = max(map(len, targets()))
    wrapper = textwrap.TextWrapper(TERMINAL, subsequent_indent=" " * (width + 9), break_on_hyphens=False)
    lines = [f"  make {name:{width}}  {one.does} ({one.takes})" for name, one in targets().items()]
    return "\n".join(map(wrapper.fill, lines))


def run(target: str, results: str) -> None:
    """Run a target's commands; the first that fails ends the program with its status.

    Raises ConfigError: there is no target of this name.
    """
    if not target:
        print(listed())
        return
    if target not in targets():
        near = [name for name in targets() if name.partition("-")[2] == target.replace("_", "-")]
        offered = f"give {' or '.join(near)}" if near else f"allowed: {', '.join(targets())}"
        raise ConfigError(f"target is {target!r}; {offered}.")
    commands = targets()[target].commands(results)
    if note := targets()[target].note:
        print(f"{target}: {note}", file=sys.stderr, flush=True)
    for number, words in enumerate(commands, start=1):
        print(f"{target}, {number} of {len(commands)}: python {' '.join(words)}", file=sys.stderr, flush=True)
        if status := status_of(words):
            raise SystemExit(status)
