"""The command ``python -m bench list``: a line for each experiment, method, workload and measure, and all settings."""

import json
import re
import textwrap
from collections.abc import Iterator

from bench.errors import CONF, TERMINAL, experiments
from bench.measures import available as measures
from bench.measures import named
from bench.protocol.methods import available as methods
from bench.protocol.methods import purpose
from bench.workloads import available as workloads
from bench.workloads import config_sections, workload_class


def listed() -> str:
    """Return the purpose of everything a run can be asked for, then the settings of all sections, as text.

    A plug-in whose purpose does not fit one line of the terminal takes several.
    """
    kinds = {
        "experiments (experiment=NAME)": {name: _experiment(name) for name in experiments()},
        "methods (methods=[NAME,NAME])": {name: purpose(name) for name in methods()},
        "workloads (workload=NAME)": {name: _workload(name) for name in workloads()},
        "measures (measure=NAME)": {name: named(name).words for name in measures()},
        "settings (SECTION.NAME=VALUE)": {
            section: ", ".join(f"{name}={json.dumps(value)}" for name, value in settings.items())
            for section, settings in config_sections().items()
        },
    }
    width = max(len(name) for lines in kinds.values() for name in lines)
    return "\n\n".join("\n".join([f"{kind}:", *_table(lines, width)]) for kind, lines in kinds.items()) + "\n"


def _table(lines: dict[str, str], width: int) -> Iterator[str]:
    """Yield lines of a name of at most ``width`` columns and its text."""
    wrapper = textwrap.TextWrapper(TERMINAL, subsequent_indent=" " * (width + 4), break_on_hyphens=False)
    for name, text in lines.items():
        yield wrapper.fill(f"  {name:{width}}  {text or '-'}")


def _experiment(name: str) -> str:
    """Return the first comment of an experiment's file, behind Hydra's own."""
    lines = (CONF / "experiment" / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if re.match("# [^@]", line))[2:].rstrip(".")


def _workload(name: str) -> str:
    """Return the first line of the docstring of a workload's class, with its section if that has another name."""
    kind = workload_class(name)
    words = (kind.__doc__ or "").partition("\n")[0].rstrip(".")
    return words if kind.section == name else f"{words} ({kind.section}.*)"
