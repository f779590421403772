"""The pages of the site: the files of the repository under their own paths, so that their links hold as they are.

A hook of MkDocs. No sentence is written for the site alone: the list of figures is made of their titles.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Link, Navigation
from mkdocs.structure.pages import Page

from bench.core.record import read_all
from figures.explorer.page import page

ROOT = Path(__file__).resolve().parents[2]

#: Files that pages consist of or link to, beside those of ``docs``.
PATTERNS = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs/*.md",
    "docs/site/*.css",
    "figures/rendered/reference/*",
    "results/README.md",
    "results/frozen/README.md",
    "results/frozen/*/*",
    "results/reference/robustness/*.jsonl",
)
UNKNOWN = "docs/results.html#what-speaks-against-comera-and-what-has-not-been-tested"
INDEX = "figures/rendered/reference/index.md"
EXPLORER, EXPLORED = "explorer.html", "docs/measuring.md#the-explorer"

_ROLE = re.compile(r":(?:func|class|meth|attr|mod|data):(?=<code|`)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files that MkDocs found under ``docs``; what the theme brings stays."""
    kept = [file for file in files if Path(file.abs_src_path or "/").is_relative_to(ROOT / "docs") is False]
    found = {path.relative_to(ROOT) for pattern in PATTERNS for path in ROOT.glob(pattern) if path.is_file()}
    own = [File.generated(config, str(path), abs_src_path=str(ROOT / path)) for path in sorted(found)]
    drawn = sorted(path for path in found if path.match("figures/rendered/reference/*.md"))
    explorer = page(read_all(ROOT / "results" / "reference"), None)
    made = {INDEX: _index(drawn), EXPLORER: explorer}
    return Files([*kept, *own, *(File.generated(config, name, content=text) for name, text in made.items())])


def _index(drawn: list[Path]) -> str:
    """Return a list of all figures and tables with the first lines of their captions."""
    lines = ["# Figures and tables", ""]
    for path in drawn:
        title, _, caption = (ROOT / path).read_text(encoding="utf-8").partition("\n")
        device = caption.strip().partition("\n")[0]
        lines.append(f"* [{title.removeprefix('# ')}]({path.name}): {device}")
    return "\n".join(lines) + "\n"


def on_nav(nav: Navigation, **_: object) -> Navigation:
    """Add the explorer of all records to the menu, and what is not known, a section of the results."""
    places = [item.file.src_uri for item in nav.items if isinstance(item, Page)]
    nav.items.insert(places.index("docs/results.md") + 1, Link("What is not known", UNKNOWN))
    nav.items.insert(places.index("docs/results.md") + 1, Link("Explorer of the records", EXPLORER))
    return nav


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Lead the first page's link to the explorer to the page itself, which the repository does not hold."""
    return markdown.replace(EXPLORED, EXPLORER, 1) if page.file.src_uri == "README.md" else markdown


def on_page_content(html: str, **_: object) -> str:
    """Leave out the roles of Sphinx, by which docstrings name what they refer to."""
    return _ROLE.sub("", html)
