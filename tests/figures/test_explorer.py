"""The explorer: the points of the records, and the page in a real browser, on a phone too, and without a mouse.

The browser is skipped where no Chromium is found; it fails there if the environment sets CI_REQUIRES_BROWSER.
"""

import contextlib
import json
import math
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from made_up import epochs

from bench.commands.reproduce import targets
from bench.core.record import Record, read_all, write
from bench.core.times import step_time_ms
from figures.__main__ import main
from figures.explorer.points import AXES, command_of, content_of
from figures.explorer.questions import ALIKE, QUESTIONS

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "results" / "reference"
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE_MS = 120_000  # a busy machine is slow, not wrong
PHONE = {"width": 390, "height": 844}


def step_ms(record: Record) -> float | None:
    """The time of a step in ms; None where the cell has none."""
    found = step_time_ms(record) if record.status == "ok" else None
    return found.value if found else record.step_time_median_ms if record.status == "ok" else None


@pytest.fixture(scope="module")
def records() -> list[Any]:
    return read_all(REFERENCE)


@pytest.fixture(scope="module")
def content(records) -> dict[str, Any]:
    return content_of(records, None)


def test_each_record_with_two_values_is_a_point(records, content) -> None:
    times = {record.cell_id: time for record in records if (time := step_ms(record))}
    wanted = [
        record
        for record in records
        if record.status == "ok"
        and sum(getattr(record, name, None) is not None for name in AXES) + (record.cell_id in times) > 1
    ]
    assert len(content["points"]) == len(wanted) > 900
    for point, record in zip(content["points"], wanted, strict=True):
        assert (point["cell_id"], point["arm"]) == (record.cell_id, record.arm)
        assert point.get("step_time_ms") == times.get(record.cell_id)
        assert point.get("parameters") == record.parameters
    axes = {"step_time_ms", "peak_memory_predicted_mib", "parameters", "metric_accuracy"}
    assert axes <= content["axes"].keys()
    assert content["axes"]["step_time_ms"]["less"]
    assert not content["axes"]["metric_accuracy"]["less"]


def test_each_question_leaves_like_points_and_the_first_is_of_the_newest_device(records, content) -> None:
    assert [question["words"] for question in content["questions"]] == [question.words for question in QUESTIONS]
    for question in content["questions"]:
        left = [
            point
            for point in content["points"]
            if question["x"] in point
            and question["y"] in point
            and all(str(point.get(key)) == value for key, value in question["filters"].items())
        ]
        assert len(left) > 3, question
        assert all(len({point[key] for point in left}) == 1 for key in ALIKE), question
    first = content["questions"][0]["filters"]
    newest = max((r for r in records if r.experiment == "fig1" and r.batch_size == 8), key=lambda r: r.recorded_at)
    assert first == {"source": "fig1", "batch_size": "8", "device": newest.device}


def test_a_model_of_the_users_own_is_asked_about_first() -> None:
    point = {"source": "your model", "arm": "dense", "device": "H100", "batch_size": 8}
    point |= {"least_time_ms": 2.0, "peak_memory_predicted_mib": 9.0, "command": "predict"}
    first = content_of(epochs(), ([point], {"model": "it"}))["questions"][0]
    assert (first["x"], first["filters"]) == ("least_time_ms", {"source": "your model", "batch_size": "8"})


def test_commands_name_experiments_that_are_there(records) -> None:
    known = {path.stem for path in (ROOT / "bench" / "conf" / "experiment").glob("*.yaml")}
    for record in records:
        words = shlex.split(command_of(record))
        assert words[:3] == ["python", "-m", "bench"]
        if words[3] == "reproduce":
            assert words[4] in targets()
            continue
        settings = dict(word.split("=") for word in words[3:])
        assert settings["experiment"] in known
        assert int(settings.get("batch_size", record.batch_size)) == record.batch_size
        assert settings.get("methods", f"[{record.arm}]").replace("'", "") == f"[{record.arm}]"


def test_a_command_for_ranks_names_them_and_their_link() -> None:
    [alone, *_] = epochs()
    together = replace(alone, measure="run", world_size=2, exchange="ddp")
    assert "world_size=" not in command_of(alone)
    assert command_of(together).endswith("world_size=2")


def test_the_page_is_the_same_bytes_again(tmp_path, capsys) -> None:
    write(epochs(), tmp_path / "records")
    pages = []
    for name in ("one", "other"):
        assert main(["explore", "--records", str(tmp_path / "records"), "--out", str(tmp_path / name)]) == 0
        pages.append((tmp_path / name / "explorer.html").read_bytes())
    assert pages[0] == pages[1]
    assert "explorer.html" in capsys.readouterr().out
    assert not re.search(rb"<(?:script|link|img)[^>]+(?:src|href)=.https?:", pages[0])


@pytest.fixture(scope="module")
def explorer(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("explorer")
    assert main(["explore", "--records", str(REFERENCE), "--out", str(out)]) == 0
    return out / "explorer.html"


def without_browser(reason: str) -> NoReturn:
    if os.environ.get("CI_REQUIRES_BROWSER"):
        pytest.fail(f"CI_REQUIRES_BROWSER is set, but {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        without_browser(f"none of {', '.join(NAMES)} is found")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        without_browser("the package playwright is not installed")
    with (
        sync_playwright() as playwright,
        contextlib.closing(
            playwright.chromium.launch(executable_path=found, args=list(FLAGS), timeout=PATIENCE_MS)
        ) as one,
    ):
        yield one


def overflow(page: Any) -> int:
    return page.evaluate("document.documentElement.scrollWidth - window.innerWidth")


@pytest.fixture
def page(browser: Any, explorer: Path) -> Iterator[Any]:
    """The page opened from disk; what it asks for, and what the browser complains about, fails the test."""
    asked: list[str] = []
    complaints: list[str] = []
    one = browser.new_page(viewport={"width": 1280, "height": 900})
    try:
        one.set_default_timeout(PATIENCE_MS)
        one.on("request", lambda request: asked.append(request.url))
        one.on("console", lambda message: complaints.append(message.text))
        one.on("pageerror", lambda error: complaints.append(str(error)))
        one.goto(explorer.as_uri())
        yield one
    finally:
        one.close()
    assert {url for url in asked if not url.startswith(("data:", "blob:"))} == {explorer.as_uri()}
    assert complaints == []


def ask(page: Any, place: int) -> None:
    page.locator("#questions button").nth(place).click()


def choose(page: Any, **filters: str) -> None:
    for key, value in filters.items():
        page.locator(f"#filter-{key}").select_option(value)


FIG1 = {"source": "fig1", "device": "AMD EPYC, 2 threads", "batch_size": "8"}


@pytest.mark.slow
def test_filters_leave_like_cells_and_the_front_is_theirs(page, records) -> None:
    choose(page, **FIG1)
    wanted = [
        record
        for record in records
        if (record.experiment, record.device, record.batch_size) == ("fig1", FIG1["device"], 8)
        and step_ms(record) is not None
        and record.peak_memory_predicted_mib is not None
    ]
    values = [(record.arm, step_ms(record), record.peak_memory_predicted_mib) for record in wanted]
    assert len(set(values)) == len(wanted) > 3
    rows = page.locator("#table tbody tr")
    assert rows.count() == len(wanted)
    front = [
        arm
        for arm, time, memory in values
        if not any(t <= time and m <= memory and (t, m) != (time, memory) for _, t, m in values)
    ]
    drawn = [(row.locator("td").nth(1).text_content(), row.locator("td").nth(7).text_content()) for row in rows.all()]
    assert sorted(arm for arm, said in drawn if said == "yes") == sorted(front)
    assert all(arm in page.locator("#answer").text_content() for arm in front)
    assert page.locator("#plot .trace.scatter .js-line").count() == 1
    page.get_by_role("button", name="show all").click()
    page.wait_for_function("document.querySelectorAll('#table tbody tr').length === 200")
    assert page.locator("#plot .trace.scatter .js-line").count() == 0
    assert page.locator("#answer strong").count() == 0


@pytest.mark.slow
def test_a_click_on_a_point_shows_its_record_and_command(page) -> None:
    choose(page, **FIG1, arm="comera")
    assert page.locator("#details").is_hidden()
    page.locator("#plot .points path").first.click(force=True)
    assert page.locator("#details").is_visible()
    assert page.locator("#details-heading").text_content().startswith("comera, batch 8, AMD EPYC")
    command = page.locator("#command").text_content()
    assert command.startswith("python -m bench experiment=fig1 batch_size=8 dataset=")
    assert page.locator("#columns th", has_text="git_commit").count() == 1


@pytest.mark.slow
def test_all_can_be_reached_without_a_mouse_and_has_a_name(page) -> None:
    choose(page, **FIG1)
    names = page.evaluate(
        """() => Array.from(document.querySelectorAll("select, button, input"), one =>
          one.getAttribute("aria-label") || one.closest("label")?.textContent.trim() || one.textContent.trim())"""
    )
    assert all(names)
    of_comera = "record of comera, batch 8, AMD EPYC, 2 threads"
    boxes = [("combobox", "across"), ("combobox", "method"), ("checkbox", "Pareto front")]
    for role, name in (*boxes, ("region", "Table of the points")):
        assert page.get_by_role(role, name=name).count() == 1, name
    buttons = page.locator("#table tbody button").all()
    named = [button.get_attribute("aria-label") for button in buttons]
    assert len(set(named)) == len(named) > 3
    of_it = [name for name in named if name.startswith(of_comera)]
    assert of_it == [of_comera] or sorted(of_it) == [f"{of_comera}, {n + 1} of {len(of_it)}" for n in range(len(of_it))]
    assert re.search(r", \d+ points; the table below has them", page.locator("#plot").get_attribute("aria-label"))
    page.locator("#x").focus()
    for _ in range(60):
        page.keyboard.press("Tab")
        label = page.evaluate("document.activeElement.getAttribute('aria-label') || ''")
        if label.startswith("record of"):
            break
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "details"
    assert page.locator("#details-heading").text_content() in label


@pytest.mark.slow
def test_the_fastest_method_at_batch_8_is_found_in_two_clicks(page, records) -> None:
    times = {
        record.arm: time
        for record in records
        if (record.experiment, record.device, record.batch_size) == ("fig1", FIG1["device"], 8)
        and (time := step_ms(record))
    }
    fastest = min(times, key=times.__getitem__)
    answer = page.locator("#answer strong").first
    assert answer.text_content() == fastest  # the page opens on it
    ask(page, 3)
    assert answer.text_content() != fastest
    ask(page, 0)
    assert answer.text_content() == fastest
    assert page.locator("#questions button[aria-pressed=true]").count() == 1
    choose(page, batch_size="1")
    assert page.locator("#questions button[aria-pressed=true]").count() == 0


#: Pairs of parts of the page that overlap, by selector.
OVERLAPS = """() => {
  const parts = ["header", "#questions button", "#choices", "#asked", "#answer", "#plot", "#legend li", "#table"]
    .flatMap(name => [...document.querySelectorAll(name)].map(part => [name, part.getBoundingClientRect()]));
  const beside = (a, b) => a.right <= b.left + 1 || b.right <= a.left + 1;
  const apart = (a, b) => beside(a, b) || a.bottom <= b.top + 1 || b.bottom <= a.top + 1;
  const near = ([, a], n) => parts.slice(n + 1).filter(([, b]) => !apart(a, b));
  return parts.flatMap((part, n) => near(part, n).map(([other]) => [part[0], other]));
}"""


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [{"width": 1280, "height": 900}, PHONE])
def test_nothing_overlaps_and_the_plot_takes_the_scheme(page, size, scheme) -> None:
    page.set_viewport_size(size)
    page.emulate_media(color_scheme=scheme)
    page.reload()
    for place in range(len(QUESTIONS)):
        ask(page, place)
        page.wait_for_function("document.querySelector('#plot .main-svg').clientWidth <= innerWidth")
        assert page.evaluate(OVERLAPS) == []
        assert overflow(page) <= 0
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
    assert page.evaluate("getComputedStyle(document.querySelector('#plot .main-svg')).backgroundColor") == paper


@pytest.mark.slow
def test_the_page_paints_within_a_second(page) -> None:
    paints = []
    for _ in range(3):  # the best of three, since other processes may hold the processor
        page.reload()
        paints.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
    assert min(paints) < 1000


@pytest.mark.slow
def test_it_fits_a_phone(page) -> None:
    page.set_viewport_size(PHONE)
    page.reload()
    page.locator("#choices summary").click()
    choose(page, **FIG1)
    page.get_by_role("button", name=re.compile("^record of")).first.click()
    page.wait_for_function("document.querySelector('#plot .main-svg').clientWidth <= innerWidth")
    assert overflow(page) <= 0
    assert page.locator("#plot .points path").first.is_visible()


@pytest.mark.slow
def test_metrics_and_sizes_can_be_axes(page) -> None:
    page.locator("#x").select_option("stored_mib")
    page.locator("#y").select_option("metric_accuracy")
    page.locator("#log").uncheck()
    page.get_by_role("button", name="show all").click()
    shown = json.loads(page.locator("#data").text_content())["points"]
    both = [point for point in shown if "stored_mib" in point and "metric_accuracy" in point]
    assert 5 < len(both) == int(re.search(r"(\d+) points", page.locator("#table caption").text_content())[1])
    assert all(math.isfinite(point["metric_accuracy"]) for point in both)
