"""A report of committed records in a real browser: it asks for nothing, shows all pictures, fits a phone, prints.

It is of the artifacts with the widest pictures and tables; all are drawn by test_figures_redraw.py.

Skipped where no Chromium is found; fails there if the environment sets CI_REQUIRES_BROWSER.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from figures.__main__ import main
from figures.registry import artifacts

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
SHOWN = ("fig1", "fig12", "activations", "formats")

pytestmark = pytest.mark.slow  # a report is drawn first

#: Font size in CSS pixels of every piece of text that is shown, with the text.
TEXT_SIZES = """() => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), sizes = [];
  while (walker.nextNode()) {
    const text = walker.currentNode.data.trim();
    if (text) sizes.push([parseFloat(getComputedStyle(walker.currentNode.parentElement).fontSize), text.slice(0, 40)]);
  }
  return sizes;
}"""


def without_browser(reason: str) -> NoReturn:
    if os.environ.get("CI_REQUIRES_BROWSER"):
        pytest.fail(f"CI_REQUIRES_BROWSER is set, but {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    records, out = tmp_path_factory.mktemp("reference"), tmp_path_factory.mktemp("report")
    found = artifacts()
    for experiment in {one for name in SHOWN for one in (*found[name].experiments, *found[name].lenders)}:
        if (REFERENCE / experiment).is_dir():  # an artifact is drawn from what there is
            shutil.copytree(REFERENCE / experiment, records / experiment)
    assert main(["report", "--records", str(records), "--out", str(out)]) == 0
    return out / "report.html"


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


@pytest.fixture(scope="module")
def opened(browser: Any, report: Path) -> Iterator[Any]:
    """The report opened from disk; whatever the browser complains about or asks for meanwhile fails the last test."""
    asked, complaints = [], []
    with contextlib.closing(browser.new_page()) as one:
        one.set_default_timeout(PATIENCE_MS)
        one.on("request", lambda request: asked.append(request.url))
        one.on("console", lambda message: complaints.append(message.text))
        one.on("pageerror", lambda error: complaints.append(str(error)))
        one.goto(report.as_uri())
        one.evaluate("document.querySelectorAll('details[open]').forEach(one => one.dataset.wasOpen = '')")
        yield one
    assert [url for url in asked if not url.startswith("data:")] == [report.as_uri()]
    assert complaints == []


@pytest.fixture
def page(opened: Any) -> Any:
    """The same as it was when it was opened, on a wide screen: opening it anew takes long."""
    opened.set_viewport_size({"width": 1280, "height": 900})
    opened.emulate_media(media="screen", color_scheme="light")
    opened.evaluate("document.querySelectorAll('details').forEach(one => one.open = 'wasOpen' in one.dataset)")
    opened.evaluate("scrollTo(0, 0)")
    return opened


def overflow(page: Any) -> int:
    return page.evaluate("document.documentElement.scrollWidth - window.innerWidth")


def test_every_picture_is_there_and_the_verdicts_come_first(page: Any) -> None:
    pictures = page.evaluate(
        "Array.from(document.images, i => [i.complete, i.naturalWidth, i.naturalHeight, i.clientWidth, i.alt])"
    )
    for name in SHOWN:
        rendered = (ROOT / "figures" / "rendered" / "reference").glob(f"{name}-*.svg")
        assert page.locator(f"#{name} img").count() == len(list(rendered)) > 0, name
    for complete, width, height, shown, alternative in pictures:
        assert complete
        assert min(width, height, shown) > 100
        assert alternative
    assert page.locator("table:visible").first.get_attribute("class") == "verdicts"
    assert page.locator("main > section").first.get_attribute("id") == "verdicts"
    assert overflow(page) <= 0


def test_it_fits_a_phone_and_reads_there(page: Any) -> None:
    page.set_viewport_size(PHONE)
    for closed in (True, False):
        assert overflow(page) <= 0
        beyond = page.evaluate(
            """() => Array.from(document.querySelectorAll("body *")).filter(e => !e.closest(".scroll, thead")
              && e.getClientRects().length && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML)"""
        )
        assert [one[:200] for one in beyond] == []
        small = [(size, text) for size, text in page.evaluate(TEXT_SIZES) if size < 12]
        assert small == []
        if closed:
            page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    wide = page.locator(".scroll:has(> table)").first
    assert wide.evaluate("one => one.scrollWidth > one.clientWidth && one.clientWidth <= innerWidth")


def test_a_phone_is_told_what_goes_on_beyond_the_edge(page: Any) -> None:
    assert not page.locator(".hint").first.is_visible()
    page.set_viewport_size(PHONE)
    heights = "Array.from(document.querySelectorAll('td, tbody th'), e => e.getBoundingClientRect().height)"
    assert max(page.evaluate(heights)) < 300
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    hidden = "one => one.scrollWidth > one.clientWidth"
    figures = page.locator("figure.scroll").element_handles()
    assert len(figures) == page.locator(".hint:visible").count() > 0
    assert all(one.evaluate(hidden) for one in figures)
    for table in page.locator("div.scroll").element_handles():
        assert table.evaluate("one => getComputedStyle(one).backgroundAttachment") == "local, local, scroll, scroll"
    of_data = "Array.from(document.querySelectorAll('.data td'), e => e.getBoundingClientRect().height)"
    assert max(page.evaluate(of_data)) < 300


def test_details_open_at_a_click(page: Any) -> None:
    closed = page.locator("details.numbers:not([open])").first.element_handle()
    table = closed.query_selector("table")
    assert not table.is_visible()
    closed.query_selector("summary").click()
    assert table.is_visible()


def test_links_lead_to_their_sections(page: Any) -> None:
    page.locator("nav a[href='#fig12']").click()
    assert abs(page.locator("#fig12").evaluate("one => one.getBoundingClientRect().top")) < 5


def test_the_csv_is_downloaded_byte_for_byte(page: Any) -> None:
    link = page.locator("#fig1 a[download]").first
    with page.expect_download() as download:
        link.click()
    name = download.value.suggested_filename
    assert name == link.get_attribute("download")
    committed = ROOT / "figures" / "rendered" / "reference" / name
    assert Path(download.value.path()).read_bytes() == committed.read_bytes()


def test_it_prints_whole(page: Any) -> None:
    cell = page.locator("details.numbers:not([open]) td").first
    assert not cell.evaluate("one => one.checkVisibility()")
    page.emulate_media(media="print")
    assert cell.evaluate("one => one.checkVisibility()")
    assert "https://arxiv.org" in page.evaluate(
        "getComputedStyle(document.querySelector('a[href^=http]'), '::after').content"
    )
    printed = page.pdf(format="A4", prefer_css_page_size=True)
    pages = len(re.findall(rb"/Type\s*/Page\b", printed))
    assert printed.startswith(b"%PDF-")
    assert pages > len(page.query_selector_all("main > section"))


def test_a_dark_screen_keeps_pictures_on_white(page: Any) -> None:
    page.emulate_media(color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert page.locator("figure").first.evaluate("one => getComputedStyle(one).backgroundColor") == "rgb(255, 255, 255)"
