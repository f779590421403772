"""``python -m bench campaign``: its arguments, its list of stages, and what it prints at the end."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.campaign import stages as known
from bench.campaign.archive import DIARY, RECORDS, take_in
from bench.campaign.clock import Clock, Run, seconds_of
from bench.campaign.memory import described
from bench.campaign.run import Campaign, Outcome
from bench.campaign.stages import Stage, configuration, jobs_of, units_of
from bench.commands.merge import MergeError
from bench.core.provenance import provenance
from bench.core.record import read_all
from bench.errors import ConfigError, stop_with
from bench.runner.resolve import DEVICES, resolve_device
from bench.runner.sweep import MISTAKES

_DESCRIPTION = """\
Runs the missing cells of all experiments, in order of value, inside a time budget, and leaves records.tar.gz in
output, for python -m bench merge. The same command goes on where the last call stopped. On a machine that forgets,
bring what came back: records=FOLDER with records.tar.gz and the checkpoints beside it.

  output=FOLDER        where archives and campaign.json go
  budget=9m            time for this call, as 540s, 9m, 1.5h
  device=auto          auto, cpu, cuda
  records=A,B          folders or archives of records that count as done; those of older code do, too, and are marked
  results=FOLDER       where records and checkpoints are kept meanwhile (default: records in output)
  only=NAME,NAME       some of the stages:

{stages}
"""

_KEYS = ("output", "budget", "device", "records", "results", "only")


@dataclass(frozen=True)
class Arguments:
    """What the command line asks for, checked.

    Args:
        output: where archives go; None where nothing but the list is wanted.
        results: where records are kept.
    """

    output: Path | None
    results: Path
    records: tuple[Path, ...]
    budget_s: float
    device: str
    stages: tuple[Stage, ...]


def description() -> str:
    """What the command does, for its help."""
    width = max(len(stage.name) for stage in known.STAGES)
    return _DESCRIPTION.format(stages="\n".join(f"  {stage.name:{width}}  {stage.why}" for stage in known.STAGES))


def _checked(settings: Sequence[str], list_only: bool) -> Arguments:
    """The settings ``key=value`` as they are meant; raises ConfigError."""
    given: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or key not in _KEYS:
            raise ConfigError(f"{setting!r} is no setting of a campaign; allowed: --list, {'=…, '.join(_KEYS)}=….")
        given[key] = value
    device = given.get("device", "auto")
    if device not in DEVICES:
        raise ConfigError(f"device is {device!r}; allowed: {', '.join(DEVICES)}.")
    if not list_only:
        device = resolve_device(device)
    output = Path(given["output"]) if given.get("output") else None
    if output is None and not list_only:
        raise ConfigError("output has no value; name the folder for the archive, as in output=campaign.")
    default = output / "records" if output is not None else Path("results") / "local"
    records = tuple(Path(name) for name in given.get("records", "").split(",") if name)
    return Arguments(
        output=output,
        results=Path(given["results"]) if given.get("results") else default,
        records=records,
        budget_s=seconds_of(given.get("budget", "9m")),
        device=device,
        stages=_chosen(given.get("only", "")),
    )


def _chosen(names: str) -> tuple[Stage, ...]:
    """The stages of these names, in the campaign's own order; all of them if there are no names."""
    wanted = [name for name in names.split(",") if name]
    offered = [stage.name for stage in known.STAGES]
    for name in wanted:
        if name not in offered:
            raise ConfigError(f"only has {name!r}; allowed: {', '.join(offered)}.")
    return tuple(stage for stage in known.STAGES if not wanted or stage.name in wanted)


def _made(field: str, folder: Path) -> None:
    """Make a folder that can be written, or raise ConfigError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(f"{field} is '{folder}', which cannot be written ({error.strerror}); name another.") from None


def _taken_in(arguments: Arguments) -> list[Run]:
    """Bring in what earlier calls have left, and how long things took there."""
    sources = list(arguments.records)
    if arguments.output is not None and (arguments.output / RECORDS).is_file():
        sources.append(arguments.output)
    runs: list[Run] = []
    for source in sources:
        diary = take_in(source, arguments.results)
        runs += _runs_of(diary, source)
    return list(dict.fromkeys(runs))


def _runs_of(diary: Mapping[str, object], source: Path) -> list[Run]:
    rows = diary.get("runs", [])
    try:
        return [Run(**row) for row in rows]  # type: ignore[attr-defined]
    except TypeError:
        raise ConfigError(f"{source}: {DIARY} is not that of a campaign; remove it from the archive.") from None


def _list(arguments: Arguments) -> None:
    """Print the stages with what is missing of each."""
    done = {record.cell_id for record in read_all(arguments.results) if record.status not in ("error", "timeout")}
    elsewhere = arguments.device == "cuda"
    left = 0
    with configuration():
        for stage in arguments.stages:
            try:
                units = units_of(stage, jobs_of(stage, arguments.device, elsewhere))
            except MISTAKES as error:
                print(f"{stage.name}: cannot run here: {error}")
                continue
            missing = {
                unit.label: count
                for unit in units
                if (count := sum(cell.cell_id(unit.job.data_hash) not in done for cell in unit.cells))
            }
            cells = sum(len(unit.cells) for unit in units)
            left += sum(missing.values())
            print(f"{stage.name}: {sum(missing.values())} of {cells} cells missing: {stage.why}")
            for label, count in missing.items():
                print(f"  {count}  {label}")
    print(f"{left} cells missing in all")


def _summed_up(outcomes: Sequence[Outcome], campaign: Campaign) -> None:
    """Print what ran, what failed, what stays behind and what is left."""
    for one in outcomes:
        failed = f", failed: {one.failures[0]}" if one.failures else ""
        print(f"{one.stage.name}: {one.ran} ran, {one.done_before} done before, {one.left} left{failed}")
    for line in described(campaign.memory()):
        print(line)
    for one_left in campaign.left_behind:
        print(
            f"checkpoint {one_left.folder} ({one_left.bytes / 2**20:,.0f} MiB) is too large to be carried; "
            "without that folder its run starts anew"
        )
    left = sum(one.left for one in outcomes)
    unseen = [one.stage.name for one in outcomes if one.units is None and not one.failures]
    if left or unseen:
        parts = [f"{left} cells left"] * bool(left) + [f"not looked at: {', '.join(unseen)}"] * bool(unseen)
        print(f"call again: {'; '.join(parts)}")
    elif any(one.failures for one in outcomes):
        print("everything else is done")
    else:
        print("everything is done")


def run(settings: Sequence[str], list_only: bool) -> None:
    """Run a campaign, or list its stages; a wrong setting ends the program with one sentence and status 2.

    Args:
        settings: each as ``key=value``.
        list_only: whether to list.
    """
    try:
        arguments = _checked(settings, list_only)
        if arguments.output is not None:
            _made("output", arguments.output)
        if not list_only or arguments.records:
            _made("results", arguments.results)
        runs = _taken_in(arguments)
        if list_only:
            _list(arguments)
            return
        read_all(arguments.results)  # what cannot be read is to be known before anything runs
    except MergeError as error:
        stop_with(error.sentences[-1])
    except MISTAKES as error:
        stop_with(str(error))
    assert arguments.output is not None
    here = provenance(on_cpu=arguments.device == "cpu")
    campaign = Campaign(
        arguments.stages,
        arguments.device,
        arguments.results,
        arguments.output,
        Clock(arguments.budget_s, here.device, runs),
    )
    campaign.run()
    _summed_up(campaign.outcomes, campaign)
