"""Makes a run of pytest the gate: its exit status, failures without traceback, and a list of verdicts at the end."""

from collections.abc import Generator
from dataclasses import dataclass, field

import pytest

from bench.gate import GateError, Regression
from bench.gate.baseline import read_baseline


@dataclass
class Verdicts:
    """What has come out so far. ``stopped`` says why something could not run; ``remarks`` are of what is green."""

    green: int = 0
    regressions: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def add(self, name: str, error: BaseException | None, remark: str | None) -> None:
        """Take in how one test ended."""
        if isinstance(error, Regression):
            first, *more = str(error).splitlines()
            self.regressions.append(f"{first} (and {len(more)} more)" if more else first)
        elif isinstance(error, GateError):
            self.stopped += [str(error)] if str(error) not in self.stopped else []  # several tests may meet one reason
        elif error is not None:
            self.stopped.append(f"{name} broke with {type(error).__name__}, see above.")
        else:
            self.green += 1
            self.remarks += [f"{name}: {remark}"] if remark else []

    def exit_status(self, status: int) -> int:
        """0 green, 1 a regression, 2 the gate could not run; ``status`` is pytest's own."""
        if self.regressions:
            return 1
        return 2 if status else 0


VERDICTS = pytest.StashKey[Verdicts]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[VERDICTS] = Verdicts()


@pytest.hookimpl(trylast=True)  # after what -k deselects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run nothing where there is no baseline to compare with."""
    if any("baseline" in getattr(item, "fixturenames", ()) for item in items):
        try:
            read_baseline()
        except GateError as error:
            config.stash[VERDICTS].stopped.append(str(error))
            items.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    error = call.excinfo.value if call.excinfo and report.failed else None
    if isinstance(error, GateError | Regression):
        report.longrepr = str(error)
    if error or (call.when == "call" and report.passed):
        benchmark = getattr(item, "funcargs", {}).get("benchmark")
        item.config.stash[VERDICTS].add(item.name, error, benchmark and benchmark.extra_info.get("verdict"))
    return report


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.exitstatus = session.config.stash[VERDICTS].exit_status(exitstatus)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    verdicts = config.stash[VERDICTS]
    terminalreporter.section("gate")
    for title, lines in (
        ("regression", verdicts.regressions),
        ("could not run", verdicts.stopped),
        ("remark", verdicts.remarks),
    ):
        for line in lines:
            terminalreporter.write_line(f"{title}: {line}")
    terminalreporter.write_line(
        f"{verdicts.green} green, {len(verdicts.regressions)} regressions, {len(verdicts.stopped)} could not run"
    )
