"""``python -m bench campaign``: its arguments, its list of stages, and what it prints at the end."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.campaign import stages as known
from bench.campaign.archive import DIARY, RECORDS, take_in
from bench.campaign.clock import Clock, Run, seconds_of
from bench.campaign.run import Campaign, described
from bench.campaign.stages import Stage, configuration, jobs_of, units_of
from bench.commands.merge import MergeError
from bench.core.checked import build_dataclass
from bench.core.files import check_own_folder, remove_abandoned
from bench.core.provenance import provenance
from bench.core.reading import user_path
from bench.core.record import read_all
from bench.errors import ConfigError, stop_with
from bench.interrupts import handled_elsewhere
from bench.processes.process import kill_all
from bench.runner.resolve import Device, resolve_device
from bench.runner.sweep import MISTAKES


@dataclass(frozen=True)
class Arguments:
    """What the command line asks for, as ``conf/help/campaign.txt`` explains it."""

    output: str = ""
    budget: str = "9m"
    device: Device = "auto"
    records: str = ""
    results: str = ""
    only: str = ""

    @property
    def root(self) -> Path:
        """The folder of records and checkpoints."""
        return user_path("results", self.results or (f"{self.output}/records" if self.output else "results/local"))

    @property
    def folder(self) -> Path:
        """The folder of the archive."""
        return user_path("output", self.output)

    @property
    def sources(self) -> list[Path]:
        """What earlier calls have left: folders and archives of records."""
        named = [user_path("records", name) for name in self.records.split(",") if name]
        return [*named, self.folder] if self.output and (self.folder / RECORDS).is_file() else named

    def stages(self) -> list[Stage]:
        """Those asked for, in the campaign's own order; raises ConfigError."""
        wanted, offered = [name for name in self.only.split(",") if name], [stage.name for stage in known.STAGES]
        if wrong := [name for name in wanted if name not in offered]:
            raise ConfigError(f"only has {wrong[0]!r}; allowed: {', '.join(offered)}.")
        return [stage for stage in known.STAGES if not wanted or stage.name in wanted]


def _parsed(settings: Sequence[str]) -> Arguments:
    """The settings ``key=value``, each of the right kind; raises ConfigError."""
    given: dict[str, str] = {}
    for key, equals, value in (one.partition("=") for one in settings):
        if equals and key in given:
            raise ConfigError(f"{key} is {given[key]!r} and {value!r}; give it once.")
        if equals:
            given[key] = value
    keys = list(Arguments.__dataclass_fields__)
    if wrong := [one for one in settings if one.partition("=")[0] not in given or one.partition("=")[0] not in keys]:
        raise ConfigError(f"{wrong[0]!r} is no setting of a campaign; allowed: --list, {'=…, '.join(keys)}=….")
    return build_dataclass(Arguments, given, "")


def _made(field: str, folder: Path) -> None:
    """Make a folder that can be written, without what kills have left in it, or raise ConfigError."""
    check_own_folder(field, folder)
    folder.mkdir(parents=True, exist_ok=True)
    remove_abandoned(folder)


def _taken_in(sources: Sequence[Path], root: Path) -> list[Run]:
    """Bring in what earlier calls have left, and how long things took there."""
    runs: list[Run] = []
    for source in sources:
        try:
            runs += [Run(**row) for row in take_in(source, root).get("runs", [])]
        except TypeError:
            raise ConfigError(f"{source}: {DIARY} is not that of a campaign; remove it from the archive.") from None
    return list(dict.fromkeys(runs))


def _list(stages: Sequence[Stage], device: str, root: Path) -> None:
    """Print the stages with what is missing of each."""
    done = {record.cell_id for record in read_all(root) if record.status not in ("error", "timeout")}
    left = 0
    with configuration():
        for stage in stages:
            try:
                units = units_of(stage, jobs_of(stage, device, elsewhere=device == "cuda"))
            except MISTAKES as error:
                print(f"{stage.name}: cannot run here: {error}")
                continue
            counts = [sum(cell.cell_id(unit.job.data_hash) not in done for cell in unit.cells) for unit in units]
            cells = sum(len(unit.cells) for unit in units)
            left += sum(counts)
            print(f"{stage.name}: {sum(counts)} of {cells} cells missing: {stage.why}")
            for label, count in {unit.label: count for unit, count in zip(units, counts, strict=True) if count}.items():
                print(f"  {count}  {label}")
    print(f"{left} cells missing in all")


def _sum_up(campaign: Campaign) -> None:
    """Print what ran, what failed, what stays behind and what is left."""
    outcomes = campaign.outcomes
    for one in outcomes:
        failed = f", failed: {one.failures[0]}" if one.failures else ""
        print(f"{one.stage.name}: {one.ran} ran, {one.done_before} done before, {one.left} left{failed}")
    print("".join(f"{line}\n" for line in described(campaign.memory())), end="")
    for checkpoint in campaign.left_behind:
        size = f"{checkpoint.folder} ({checkpoint.bytes / 2**20:,.0f} MiB)"
        print(f"checkpoint {size} is too large to be carried; without that folder its run starts anew")
    left = sum(one.left for one in outcomes)
    unseen = [one.stage.name for one in outcomes if one.units is None and not one.failures]
    parts = [f"{left} cells left"] * bool(left) + [f"not looked at: {', '.join(unseen)}"] * bool(unseen)
    done = "everything else is done" if any(one.failures for one in outcomes) else "everything is done"
    print(f"call again: {'; '.join(parts)}" if parts else done)


def run(settings: Sequence[str], list_only: bool) -> None:
    """Run a campaign, or list its stages; a wrong setting ends the program with one sentence and status 2.

    A stage that failed, or a cell of it, does so with status 1, once everything else has run.

    ``settings`` are ``key=value`` each.
    """
    try:
        arguments = _parsed(settings)
        stages, budget_s = arguments.stages(), seconds_of(arguments.budget)
        device = arguments.device if list_only else resolve_device(arguments.device)
        if not arguments.output and not list_only:
            raise ConfigError("output has no value; name the folder for the archive, as in output=campaign.")
        if arguments.output:
            _made("output", arguments.folder)
        if not list_only or arguments.records:
            _made("results", arguments.root)
        runs = _taken_in(arguments.sources, arguments.root)
        if list_only:
            _list(stages, device, arguments.root)
            return
        read_all(arguments.root)  # what cannot be read is to be known before anything runs
    except MergeError as error:
        stop_with(error.sentences[-1])
    except MISTAKES as error:
        stop_with(str(error))
    clock = Clock(budget_s, provenance(on_cpu=device == "cpu").device, runs)
    campaign = Campaign(stages, device, arguments.root, arguments.folder, clock)
    with handled_elsewhere():
        campaign.run()
    if campaign.signal:
        kill_all()
    _sum_up(campaign)
    if campaign.signal:
        print(f"interrupted: {campaign.recorded}; the same command goes on", file=sys.stderr)
        raise SystemExit(128 + campaign.signal)
    if any(one.failures for one in campaign.outcomes):
        raise SystemExit(1)
