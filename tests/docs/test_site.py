"""The documentation site builds without a warning, has every page and every public name, and no link leads nowhere."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

# Two builds at once would be in each other's way.
pytestmark = pytest.mark.xdist_group("site")

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "docs" / "_site" / "build.py"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("site")
    built = subprocess.run([sys.executable, BUILD, "--into", into], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr[-5000:]
    return into


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.append(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


def test_no_link_leads_nowhere(site: Path) -> None:
    """Also in what the theme and the reference add, which the generator itself does not check."""
    pages = {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    broken = [
        f"{path.relative_to(site)}: {link}"
        for path, page in pages.items()
        for link in page.links
        if not _leads_somewhere(site, pages, path, link)
    ]
    assert broken == []
    assert sum(len(page.links) for page in pages.values()) > 1000


def _leads_somewhere(site: Path, pages: dict[Path, Page], path: Path, link: str) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return parts.scheme in ("https", "mailto", "data")
    target = path
    if parts.path:
        target = Path(os.path.normpath(path.parent / unquote(parts.path)))
    if target.is_dir():
        target /= "index.html"
    if not target.is_relative_to(site) or not target.is_file():
        return False
    return not parts.fragment or target not in pages or unquote(parts.fragment) in pages[target].anchors


def test_every_page_and_every_public_name_is_found_by_search(site: Path) -> None:
    builder = runpy.run_path(str(BUILD))
    found = {entry["location"] for entry in json.loads((site / "search" / "search_index.json").read_text())["docs"]}
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index"}
    assert {page for page in pages if f"{page}/" not in found} == set()
    for module in builder["REFERENCE"]:
        anchors = {path for path in builder["public_names"](module).values() if path.startswith("tidelog.")}
        assert anchors
        documented = {location.partition("#")[2] for location in found}
        assert anchors - documented == set()


def test_the_site_needs_nothing_from_elsewhere(site: Path) -> None:
    """No scripts, styles or fonts of other hosts: it works offline and tells nobody who reads it."""
    text = (site / "index.html").read_text(encoding="utf-8")
    page = Page(site / "index.html")
    assert "fonts.googleapis" not in text
    assert [link for link in page.links if link.endswith((".js", ".css")) and "//" in link] == []
