"""Drawing records by the command: twice, in processes of their own or in this one, or once."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from pathlib import Path

from figures.__main__ import main

ROOT = Path(__file__).parents[2]

GUARDED = """
import sys
class Guard:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "comera", "baselines", "hydra", "omegaconf", "galore_torch", "peft"}:
            raise AssertionError("drawing imported " + name)
sys.meta_path.insert(0, Guard())
from figures.__main__ import main
status = main(sys.argv[1:])
assert "torch" not in sys.modules
sys.exit(status)
"""


def redrawn(name: str, records: Path, out: Path) -> tuple[dict[str, bytes], str]:
    """The files of a figure by name, and what was printed; both must be equal under two hash seeds, without torch."""
    written, printed = [], []
    for number in ("1", "2"):
        folder = out / number
        done = subprocess.run(
            [sys.executable, "-c", GUARDED, name, "--records", str(records), "--out", str(folder)],
            cwd=ROOT,
            env={"PYTHONHASHSEED": number, "PYTHONPATH": str(ROOT), "HOME": str(out)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        written.append({path.name: path.read_bytes() for path in sorted(folder.iterdir())})
        printed.append(done.stdout.replace(str(folder), ""))
    assert written[0] == written[1]
    assert printed[0] == printed[1]
    return written[0], printed[0]


def drawn_once(name: str, records: Path, out: Path) -> tuple[dict[str, bytes], str]:
    """The files of a figure by name, and what was printed."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main([name, "--records", str(records), "--out", str(out)]) == 0
    return {path.name: path.read_bytes() for path in sorted(out.iterdir())}, printed.getvalue()


def redrawn_here(name: str, records: Path, out: Path) -> tuple[dict[str, bytes], str]:
    """As :func:`redrawn`, in this process, which takes less time."""
    (first, printed), (second, again) = (drawn_once(name, records, out / number) for number in "12")
    assert first == second
    assert printed.replace(str(out / "1"), "") == again.replace(str(out / "2"), "")
    return first, printed.replace(str(out / "1"), "")
