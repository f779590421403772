"""What the long checks share: their arguments, and where their results go."""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bench.core.files import write_whole
from bench.core.provenance import provenance

ROOT = Path(__file__).resolve().parents[2]


def arguments_of(description: str | None, count: int, parts: Sequence[str] = ()) -> argparse.Namespace:
    """``--count``, ``--seed`` and ``--into``; with ``parts`` also ``--only``, None unless it is given."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=count, help=f"how many (default: {count})")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn (default: 0)")
    parser.add_argument(
        "--into", type=Path, default=ROOT / "results" / "reference" / "robustness", help="folder of the report"
    )
    if parts:
        parser.add_argument("--only", choices=parts, help="one part, with its share of the count (default: all)")
    return parser.parse_args()


def write_report(name: str, given: argparse.Namespace, lines: list[dict[str, Any]]) -> None:
    """Write the report, its first line with commit, seed and counts, and print that one; status 1 over a failure."""
    where = provenance(on_cpu=True)
    command = ["git", "status", "--porcelain", "--", "comera", "baselines", "bench", "figures"]
    differs = subprocess.run(command, cwd=ROOT, capture_output=True, check=False).stdout
    about = {
        "check": name,
        "commit": where.git_commit,
        "tree_differs": bool(differs.strip()),
        "code_id": where.code_id,
        "device": where.device,
        "torch_version": torch.__version__,
        "seed": given.seed,
    }
    head, *others = lines
    text = "".join(f"{json.dumps(line)}\n" for line in ({**about, **head}, *others))
    write_whole({given.into / f"{name}.jsonl": text.encode()})
    print(json.dumps({**about, **head}, indent=1))
    sys.exit(1 if head["failures"] else 0)
