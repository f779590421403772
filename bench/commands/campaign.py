"""``python -m bench campaign``: run experiments one after another, resume, and stop after some seconds.

Each run is a ``python -m bench`` in a new process. Recorded cells are not measured again, and a training goes on at its
last checkpoint, so the same command goes on where the last call stopped. A run that fails does not stop the others.
"""

import itertools
import re
import shlex
import sys
import time
from collections.abc import Sequence

from bench.commands.programs import status_of
from bench.commands.reproduce import targets
from bench.core.reading import read_regular, user_path
from bench.errors import ConfigError, experiments, stop_with

_INTERRUPTED = (130, 143)  # exit statuses after Ctrl-C and SIGTERM (:mod:`bench.interrupts`)


def planned(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split a campaign's words into its runs, in order, and the settings that all of them share.

    A word is ``experiment=NAME``, perhaps with settings of its own in the same word; a target of
    ``conf/reproduce.yaml``, which stands for its runs; ``key=value`` for all runs; or ``@FILE``, which has such words,
    one a line, and lines that begin with #. Raises ConfigError: a word is none of these, names no experiment there is,
    or no run is named.

    >>> planned(["experiment=fig7", "reproduce-fig1", "experiment=fig1 precision=bf16", "device=cuda"])
    (['experiment=fig7', 'experiment=fig1', 'experiment=fig1_memory', 'experiment=fig1 precision=bf16'], \
['device=cuda'])
    """
    runs: list[str] = []
    shared: list[str] = []
    for word in itertools.chain.from_iterable(map(_lines, words)):
        if word in targets():
            runs += targets()[word].runs
        elif experiment := re.search(r"(?:^|\s)experiment=(\S*)", word):
            if experiment[1] not in experiments():
                raise ConfigError(f"experiment is {experiment[1]!r}; allowed: {', '.join(experiments())}.")
            runs.append(word)
        elif re.fullmatch(r"[+~]?[\w./]+=.*", word, flags=re.DOTALL):
            shared.append(word)
        else:
            raise ConfigError(
                f"{word!r} is not allowed; give experiment=NAME, a target of make reproduce or key=value."
            )
    names = [word.partition("=")[0] for word in shared]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"{twice[0]} is given twice; give it once.")
    if not runs:
        raise ConfigError("no run is named; name one or more, as in experiment=fig1.")
    return runs, shared


def _lines(word: str) -> list[str]:
    """Return the words of a file that ``@FILE`` names, else the word itself."""
    if not word.startswith("@"):
        return [word]
    try:
        lines = read_regular(user_path("@FILE", word[1:])).decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{word} cannot be read ({error}); name a file of runs, one a line.") from None
    return [line for line in lines if line.strip() and not line.startswith("#")]


def run(words: Sequence[str], stop_after: float | None) -> None:
    """Run what :func:`planned` finds in ``words`` and print how it ended; end with status 1 if a run failed.

    After ``stop_after`` seconds the run under way is stopped as by SIGTERM; None is for no limit. Raises ConfigError: a
    word is wrong, or ``stop_after`` is no positive number.
    """
    runs, shared = planned(words)
    if stop_after is not None and not 0 < stop_after < float("inf"):
        raise ConfigError(f"--stop-after is {stop_after:g}; allowed: seconds above 0.")
    deadline = None if stop_after is None else time.monotonic() + stop_after
    failed: list[str] = []
    ended = 0
    for number, words_of_run in enumerate(runs, start=1):
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            break
        limit = "" if left is None else f", {left:,.0f} s left"
        print(f"run {number}/{len(runs)}{limit}: {words_of_run}", file=sys.stderr, flush=True)
        status = status_of(["-m", "bench", *shlex.split(words_of_run), *shared], left)
        if status is None:
            break
        if status in _INTERRUPTED:
            raise SystemExit(status)
        ended += 1
        failed += [words_of_run] if status else []
    stopped = f"; stopped after {stop_after:g} s, the same command goes on" if ended < len(runs) else ""
    print(f"{ended - len(failed)} of {len(runs)} runs are done{stopped}")
    if failed:
        stop_with(f"{len(failed)} of the runs failed: {'; '.join(failed)}.", status=1)
