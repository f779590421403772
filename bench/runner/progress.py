"""One progress bar for a whole sweep, with the time left; without a terminal plain lines, one every half a minute."""

import threading
import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bench.core.cell import Cell
from bench.core.record import Record
from bench.core.samples import BUSY, best_calibrations_ms, slowdown
from bench.measures import named

#: Without a terminal, a line says what a sweep is at when none was printed for so many seconds.
SILENCE_S = 30.0


class SweepProgress:
    """Progress of a sweep over ``cells``, weighted by what they are expected to cost."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._weights = {cell.to_json(): named(cell.measure).cost(cell) for cell in cells}
        self._names = names_of(cells)
        self._left = dict(self._weights)
        self._finished: set[str] = set()
        self.errors: list[str] = []  # of the cells that ended in one, a sentence each
        self._slowdowns: list[float] = []  # of the timed cells, by the calibration product
        self._start = self._printed = time.monotonic()
        self._at, self._before = "", 0.0
        self._console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=self._console,
            disable=not self._console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task(self._counter, total=sum(self._weights.values()))
        self._bar.start()
        self._closed = threading.Event()
        if not self._console.is_terminal:
            threading.Thread(target=self._break_silence, daemon=True).start()

    def _break_silence(self) -> None:
        while not self._closed.wait(max(self._printed + SILENCE_S - time.monotonic(), 0.0)):
            if time.monotonic() - self._printed >= SILENCE_S:  # else something was printed meanwhile
                self._print(f"{self._share()}{self._at}")

    def _share(self) -> str:
        """Return how much is done and about how long the rest takes, by what the cells are expected to cost."""
        total, left = sum(self._weights.values()), sum(self._left.values())
        worked = total - left - self._before  # what was done before took none of the time
        seconds = (time.monotonic() - self._start) * left / worked if worked > 0.01 * left else None
        rest = "" if seconds is None else f", about {max(round(seconds / 60), 1):,} min left"
        return f"sweep {1.0 - left / total if total else 1.0:.0%} done{rest}"

    def _print(self, text: str) -> None:
        self._printed = time.monotonic()
        minutes, seconds = divmod(int(self._printed - self._start), 60)
        line = f"[{minutes:02d}:{seconds:02d} min] {self._counter}  {text}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def advance(self, cell: Cell, share: float, at: str = "", /) -> None:
        """Note that a share of a cell's work is done, and what it is at; the shares of a cell add up to 1 at most."""
        key = cell.to_json()
        if at:
            self._at = f"  {self._names[key]}{_target(cell)}  {at}"
        done = min(share * self._weights[key], self._left[key])
        self._left[key] -= done
        self._bar.advance(self._task, done)

    def failed(self) -> str:
        """Return a sentence on the cells that ended in an error; empty if none did."""
        if not self.errors:
            return ""
        count = f"{len(self.errors)} of {len(self._weights)} cell(s) ended in an error"
        first = self.errors[0].removesuffix(".")
        return f"{count}, the first: {first}; all are recorded, and the same command tries these again."

    def busy(self) -> str:
        """Return a sentence on the cells that were timed on a busy machine; empty if none was."""
        found = [factor for factor in self._slowdowns if factor > BUSY]
        if not found:
            return ""
        return (
            f"machine was busy: in {len(found)} of {len(self._slowdowns)} timed cell(s) a fixed product took up to "
            f"{max(found):.1f} times its best, so these times may be too long; on a quiet machine, the same command "
            "with reuse=never times them again."
        )

    def interrupted(self) -> str:
        """Return what is recorded, for the sentence on an interrupt."""
        return f"{len(self._finished)} of {len(self._weights)} cells recorded; the same command goes on"

    def recorded(self, cell: Cell, record: Record) -> None:
        """Note that a cell is recorded, and how busy the machine was if it was timed."""
        if (factor := slowdown(record, best_calibrations_ms([record]))) is not None:
            self._slowdowns.append(factor)
        text = named(record.measure).text(record) if record.status == "ok" else record.message
        self.finish(cell, f"{record.status}: {text}", is_error=record.status == "error")

    def done_before(self, cell: Cell) -> None:
        """Note that a cell has a record already."""
        self._before += self._left[cell.to_json()]
        self.finish(cell, "done before")

    def finish(self, cell: Cell, outcome: str, is_error: bool = False) -> None:
        """Note that a cell is recorded and print what came of it; once, where several jobs have the same cell."""
        if is_error:
            self.errors.append(f"{self._names[cell.to_json()]}, batch {cell.batch_size}: {outcome}")
        if cell.to_json() in self._finished:
            return
        self.advance(cell, 1.0)
        self._finished.add(cell.to_json())
        self._bar.update(self._task, description=self._counter)
        self.note(cell, outcome)

    @property
    def _counter(self) -> str:
        return f"{len(self._finished)}/{len(self._weights)} cells"

    def note(self, cell: Cell, text: str) -> None:
        """Print a line on a cell: how far it has come, or what came of it."""
        where = f"{'on' if named(cell.measure).on_device else 'for'} {cell.device}"
        name = f"{self._names[cell.to_json()]}{_target(cell)}"
        self._print(f"{cell.experiment} batch {cell.batch_size} {where}  {name}  {text}")

    def close(self) -> None:
        """Take the bar down."""
        self._closed.set()
        self._bar.stop()


def names_of(cells: Sequence[Cell]) -> dict[str, str]:
    """Return arms, with the settings and data in which cells of an arm differ within this sweep."""
    names = {}
    for cell in cells:
        known, own = [_distinctions(other) for other in cells if other.arm == cell.arm], _distinctions(cell)
        differing = [name for name in own if any(other.get(name) != own[name] for other in known)]
        names[cell.to_json()] = " ".join([cell.arm, *(f"{name}={own[name]}" for name in differing)])
    return names


def _distinctions(cell: Cell) -> dict[str, object]:
    toggles = {name: getattr(cell, name) for name in ("precision", "cuda_graph", "compile")}
    recipe = cell.training.get("recipe", {})
    return {"dataset": cell.dataset, **toggles, **cell.workload_settings, **cell.method_settings, **recipe}


def _target(cell: Cell) -> str:
    last = cell.training["stages"][-1] if "stages" in cell.training else {}
    if last.get("target_mib") is not None:
        return f", {last['target_mib']:g} MiB, seed {cell.seed}"
    share = f" to {last['target']:g}" if last.get("target") is not None else ""
    return f", {last['name']} stage{share}, seed {cell.seed}" if last else ""
