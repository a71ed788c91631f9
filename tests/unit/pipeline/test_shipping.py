"""The archive for executors: what is in it, and that Python imports tidelog from what was unpacked of it."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pyarrow
import pytest

from tidelog.pipeline.shipping import UNPACKED, shipping_settings


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A pipeline's file with a module and a package beside it, and what is neither."""
    directory = tmp_path / "project"
    (directory / "pricing").mkdir(parents=True)
    (directory / "data").mkdir()
    (directory / "pricing" / "__init__.py").write_text("TAX = 20\n")
    (directory / "pricing" / "rates.txt").write_text("20\n")
    (directory / "data" / "orders.json").write_text("{}")
    (directory / "names.py").write_text("NAME = 'taxes'\n")
    (directory / "taxes.py").write_text("from names import NAME\n")
    (directory / "notes.md").write_text("")
    return directory


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")


def test_the_archive_has_the_modules_beside_the_file(project: Path, tmp_path: Path) -> None:
    settings = shipping_settings(project / "taxes.py", tmp_path)
    archive, _, name = settings["spark.archives"].partition("#")
    assert settings["spark.executorEnv.PYTHONPATH"] == name == UNPACKED
    with tarfile.open(archive) as tar:
        names = set(tar.getnames())
    assert {"taxes.py", "names.py", "pricing/__init__.py", "pricing/rates.txt", "tidelog/__init__.py"} <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith(("data", "notes"))]
    assert not [name for name in names if name.startswith(("/", ".."))]


def test_an_interpreter_without_tidelog_imports_it_from_the_archive(project: Path, tmp_path: Path) -> None:
    settings = shipping_settings(project / "taxes.py", tmp_path)
    with tarfile.open(settings["spark.archives"].partition("#")[0]) as tar:
        tar.extractall(tmp_path / UNPACKED, filter="data")
    packages = tmp_path / "packages"
    packages.mkdir()
    place = Path(pyarrow.__file__).parent.parent
    for name in ("pyarrow", "pyarrow.libs", "numpy", "numpy.libs"):
        if (place / name).exists():
            (packages / name).symlink_to(place / name)
    # The client and the kernel are what tasks use; pyspark itself is not in this interpreter.
    code = (
        "import names, pricing, taxes, tidelog.records.arrow as arrow, tidelog; tidelog.Consumer; print(arrow.__file__)"
    )
    done = subprocess.run(
        [Path(sys.executable).resolve(), "-S", "-c", code],
        env={"PYTHONPATH": os.pathsep.join([UNPACKED, str(packages)])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert f"/{UNPACKED}/tidelog/" in done.stdout or done.stdout.startswith(UNPACKED)


def test_the_driver_finds_the_same_where_it_is(project: Path, tmp_path: Path) -> None:
    shipping_settings(project / "taxes.py", tmp_path)
    paths = os.environ["PYTHONPATH"].split(os.pathsep)
    assert paths[0] == str(project)
    assert paths[-1] == "/somewhere"
    assert any((Path(path) / "crc32c").exists() for path in paths)
