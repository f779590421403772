"""The documentation as a site: strict, with every public name, and without a link that leads nowhere."""

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

import comera

ROOT = Path(__file__).resolve().parent.parent


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder


class Links(HTMLParser):
    """What a page links to and shows, and the anchors that it has."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors.update(value for key in ("id", "name") if (value := values.get(key)))
        target = values.get("href" if tag == "a" else "src" if tag == "img" else "")
        if target and not re.match(r"[a-z]+:|//", target):
            self.targets.append(target)


def test_public_names_are_in_the_reference() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^::: comera\.(\w+)$", page, flags=re.MULTILINE))
    assert named == set(comera.__all__) - {"__version__"}


@pytest.mark.slow
def test_links_lead_somewhere_and_pictures_are_there(site) -> None:
    pages = {page: Links(page) for page in site.rglob("*.html") if page.name != "404.html"}
    assert len(pages) > 20
    seen = 0
    for page, links in pages.items():
        for target in links.targets:
            path, anchor = urldefrag(unquote(target))
            file = (page.parent / path).resolve() if path else page
            file = file / "index.html" if file.is_dir() else file
            assert file.is_file(), f"{page.relative_to(site)}: {target}"
            if anchor and file in pages and not anchor.startswith("__"):
                assert anchor in pages[file].anchors, f"{page.relative_to(site)}: {target}"
            seen += 1
    assert seen > 500


@pytest.mark.slow
def test_examples_are_code_and_no_role_is_left(site) -> None:
    page = (site / "docs" / "api.html").read_text(encoding="utf-8")
    assert page.count('<div class="language-pycon') + page.count('class="highlight"') > 25
    assert "&gt;&gt;&gt;" in page or 'class="gp"' in page
    assert not re.search(r":(?:func|class|mod|meth):", page)
    for name in comera.__all__:
        assert name == "__version__" or f'id="comera.{name}"' in page, name


@pytest.mark.slow
def test_a_page_is_called_in_the_menu_by_its_heading(site) -> None:
    home = (site / "index.html").read_text(encoding="utf-8")
    menu = home[home.index("md-nav--primary") :]
    entries = re.findall(
        r'<a href="([^"#]+)" class="md-nav__link">.*?<span class="md-ellipsis">\s*(.*?)\s*<', menu, re.S
    )
    names = dict(entries)
    assert [name for _, name in entries][:2] == ["The library", "Does it pay?"]
    assert names.pop("explorer.html") == "Explorer of the records"
    assert len(names) > 10
    for target, name in names.items():
        page = (site / target).read_text(encoding="utf-8")
        assert re.search(r"<h1[^>]*>(.*?)<a", page, re.S)[1].strip() == name, target
    assert (site / "explorer.html").stat().st_size > 1_000_000
    assert home.index("<img") < home.index('<a href="explorer.html">') < home.index("<table")


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 420])
def test_code_and_tables_scroll_inside_their_box(site, width) -> None:
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no Chromium is found")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = chromium.new_page(viewport={"width": width, "height": 900})
        for name in ("index.html", "docs/library.html", "docs/measuring.html", "results/index.html"):
            page.goto((site / name).as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        chromium.close()
