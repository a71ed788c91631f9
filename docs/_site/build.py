"""Builds the documentation site: the pages of `docs/`, an API reference and a file index. `make docs` runs it.

What always holds: nothing made here is committed. The reference and the file index come from docstrings whenever the
site is built; a page's link to a file outside of `docs/` leads to that file in the repository; a link or an anchor that
leads nowhere fails the build. The pages are prepared before the site generator sees them, so that it needs no hooks and
can be replaced by another that reads mkdocs.yml.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCE = ROOT / "src"
PREPARED = ROOT / "build" / "site-source"

# The public modules, in the order of the reference.
REFERENCE = {
    "tidelog": "The clients, worker pools, tables, and the types that their calls take and give.",
    "tidelog.errors": "Every error that a client raises on purpose.",
    "tidelog.serialization": "Serializers, deserializers, and the client of a schema registry.",
    "tidelog.pipeline": "What the file of a pipeline declares.",
    "tidelog.spark": "Topics as a data source of Spark.",
    "tidelog.testing": "A broker inside your tests.",
}
_LINK = re.compile(r"\]\((\.\./[^)#\s]+)(#[^)\s]*)?\)")


class BrokenLinkError(Exception):
    """A page links to a file that does not exist."""


def prepare(into: Path) -> None:
    """Write all pages of the site as the generator reads them."""
    shutil.rmtree(into, ignore_errors=True)
    repository = _repository()
    for path in sorted(DOCS.rglob("*")):
        uri = path.relative_to(DOCS).as_posix()
        if path.is_dir() or uri.startswith("_site/") or "__pycache__" in uri:
            continue
        target = into / uri
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            target.write_text(with_links_to(repository, uri, path.read_text(encoding="utf-8")), encoding="utf-8")
        else:
            shutil.copy(path, target)
    (into / "reference").mkdir()
    _write_reference(into / "reference")
    index = with_links_to(repository, "file-index.md", _file_index())
    (into / "file-index.md").write_text(index, encoding="utf-8")


def _repository() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["urls"]["Repository"]).rstrip("/")


def with_links_to(repository: str, uri: str, markdown: str) -> str:
    """Let links of a page to files outside of `docs/` lead to the repository."""

    def to_repository(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(uri), link[1]))
        if target.startswith("docs/"):
            return link[0]
        if not (ROOT / target).exists():
            raise BrokenLinkError(f"docs/{uri} links to {target}, which does not exist")
        kind = "tree" if (ROOT / target).is_dir() else "blob"
        return f"]({repository}/{kind}/main/{target}{link[2] or ''})"

    return _LINK.sub(to_repository, markdown)


def public_names(module: str) -> dict[str, str]:
    """The names that people import from a module, and the path under which each is defined."""
    imported = importlib.import_module(module)
    found: dict[str, str] = {}
    for name in imported.__all__:
        if not name.startswith("__"):
            home = str(getattr(getattr(imported, name), "__module__", ""))
            found[name] = f"{home if home.startswith('tidelog.') else module}.{name}"
    return found


def _write_reference(into: Path) -> None:
    """One page a module; a name that several modules offer is described where it comes first."""
    described: dict[str, str] = {}
    for module, about in REFERENCE.items():
        lines = [f"# {module}", "", about, ""]
        for name, path in sorted(public_names(module).items()):
            if path in described:
                lines += [f"## {module}.{name}", "", f"The same as [{described[path]}.{name}][{path}].", ""]
                continue
            described[path] = module
            lines += [f"::: {path}", "    options:", f"      heading: {module}.{name}", f"      toc_label: {name}", ""]
        (into / f"{module}.md").write_text("\n".join(lines), encoding="utf-8")


def _file_index() -> str:
    lines = ["# File index", "", "Every module, by the first sentence of its docstring.", ""]
    for package in sorted({path.parent for path in SOURCE.rglob("*.py")}):
        entries = list(_entries(package))
        if entries:
            lines += [f"## {package.relative_to(ROOT)}", "", *entries, ""]
    return "\n".join(lines)


def _entries(package: Path) -> Iterator[str]:
    for path in sorted(package.glob("*.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        if docstring:
            sentence = re.split(r"(?<=[.:;])\s", " ".join(docstring.split("\n\n")[0].split()), maxsplit=1)[0]
            yield f"- [`{path.name}`](../{path.relative_to(ROOT)}): {sentence.rstrip(':;')}"


def main() -> int:
    arguments = argparse.ArgumentParser(description="Build the documentation site.")
    arguments.add_argument("--into", type=Path, default=ROOT / "site", help="where the site goes (default: site)")
    into = arguments.parse_args().into
    try:
        prepare(PREPARED)
    except BrokenLinkError as error:
        print(error, file=sys.stderr)
        return 1
    # The generator's makers print an advertisement for their next one unless told not to.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    # Not with --quiet, which also keeps warnings from failing the build.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(into.resolve())]
    built = subprocess.run(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True, check=False)
    if built.returncode:
        print("\n".join(line for line in built.stderr.splitlines() if "INFO" not in line), file=sys.stderr)
    return built.returncode


if __name__ == "__main__":
    sys.exit(main())
