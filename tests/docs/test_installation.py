"""The package installs as the README says: with a C compiler, and without one."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tidelog.common.extras import install_command

ROOT = Path(__file__).parents[2]
DEADLINE_S = 280


@pytest.fixture
def source_tree(tmp_path: Path) -> Path:
    """What a source distribution holds, with the generated C files where they exist: making them is slow."""
    tree = tmp_path / "source"
    leave_out = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", tree / "src", ignore=leave_out)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, tree)
    if (ROOT / "build" / "cython").is_dir():
        shutil.copytree(ROOT / "build" / "cython", tree / "build" / "cython")
    return tree


def run(*command: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_it_installs_without_a_compiler(source_tree: Path, tmp_path: Path) -> None:
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), ".", cwd=source_tree, CC="/bin/false")
    (wheel,) = tmp_path.glob("*.whl")
    target = tmp_path / "installed"
    run(*pip, "install", "--no-deps", "--target", str(target), str(wheel), cwd=tmp_path)
    assert not list(target.rglob("*.so"))
    printed = run(sys.executable, "-m", "tidelog", "version", cwd=tmp_path, PYTHONPATH=str(target))
    assert "record kernel not compiled" in printed
    found = run(sys.executable, "-c", "import tidelog; print(tidelog.__file__)", cwd=tmp_path, PYTHONPATH=str(target))
    assert found.startswith(str(target))


def test_an_extra_is_added_to_an_installation_from_a_clone() -> None:
    """Error messages name this command, so it must not need a Tidelog in an index, which `--no-index` rules out."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = ",".join(sorted(set(project["optional-dependencies"]) - {"dev"}))
    command = shlex.split(install_command(extras))
    pip = (sys.executable, "-m", *command[:1], "--disable-pip-version-check")
    printed = run(*pip, *command[1:], "--no-index", "--dry-run", cwd=ROOT)
    assert f"Requirement already satisfied: tidelog[{extras}]" in printed


def test_the_package_index_gets_links_that_work_there(source_tree: Path) -> None:
    run(sys.executable, "setup.py", "-q", "egg_info", cwd=source_tree, TIDELOG_PURE_PYTHON="1")
    (metadata,) = source_tree.rglob("PKG-INFO")
    text = metadata.read_text(encoding="utf-8")
    assert "Description-Content-Type: text/markdown" in text
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert links
    assert not [link for link in links if not link.startswith(("https://", "#"))]
    anchors = {link for link in links if link.startswith("#")}
    assert anchors, "links within the page stay as they are"


def test_a_release_needs_its_version_everywhere(tmp_path: Path) -> None:
    (tmp_path / "src" / "tidelog").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    (tmp_path / "src" / "tidelog" / "__init__.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.3 - 2026-01-31\n")
    check = runpy.run_path(str(ROOT / ".ci" / "check_version.py"))["problems"]
    assert check("1.2.3", tmp_path) == []
    assert len(check("1.2.4", tmp_path)) == 3
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n")
    assert check("1.2.3", tmp_path) == ["CHANGELOG.md has no section '## 1.2.3 - YYYY-MM-DD'"]
