"""Spark's workers run in this environment, with the installed pyspark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

import tidelog.spark
from tidelog.spark.worker_python import worker_python

HOME = Path(pyspark.__file__).parent
ZIPS = [str(file) for file in (HOME / "python" / "lib").glob("*.zip")]


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    monkeypatch.setenv("PYSPARK_PYTHON", "")  # put back afterwards, whatever the test does
    monkeypatch.delenv("PYSPARK_PYTHON")


def run(code: str, path: list[str]) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": ":".join(path)}
    command = [worker_python(), "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_installed_pyspark_is_found_before_the_copy_that_spark_ships(tmp_path: Path) -> None:
    assert ZIPS
    told = run("import sys, pyspark; print(sys.prefix); print(pyspark.__file__)", [*ZIPS, str(tmp_path)])
    assert told == [sys.prefix, str(HOME / "__init__.py")]


def test_the_copy_is_left_out_by_any_of_its_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Spark resolves symbolic links on the way to it."""
    link = tmp_path / "packages"
    link.symlink_to(HOME.resolve().parent)
    monkeypatch.setattr(pyspark, "__file__", str(link / "pyspark" / "__init__.py"))
    for place in (link / "pyspark", HOME.resolve()):
        zips = [str(place / "python" / "lib" / Path(each).name) for each in ZIPS]
        told = run("import sys; print(*sys.path, sep=chr(10))", [*zips, str(tmp_path)])
        assert str(tmp_path) in told
        assert not set(told) & set(zips)


def test_the_rest_of_the_path_is_kept(tmp_path: Path) -> None:
    places = [str(tmp_path / "with a blank"), str(tmp_path / "other.zip")]
    told = run("import sys; print(*sys.path, sep=chr(10))", [ZIPS[0], places[0], *ZIPS[1:], places[1]])
    assert [place for place in told if place in places] == places
    assert not set(told) & set(ZIPS)


def test_it_is_written_once() -> None:
    first = worker_python()
    written = os.stat(first).st_mtime_ns
    assert worker_python() == first
    assert os.stat(first).st_mtime_ns == written
    assert [each.name for each in Path(first).parent.iterdir()] == [Path(first).name]


def test_without_a_place_to_write_this_interpreter_serves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert worker_python() == sys.executable


def test_a_choice_of_the_user_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    tidelog.spark.use_this_python()
    assert os.environ["PYSPARK_PYTHON"] == worker_python()
    monkeypatch.setenv("PYSPARK_PYTHON", "python-of-my-own")
    tidelog.spark.use_this_python()
    assert os.environ["PYSPARK_PYTHON"] == "python-of-my-own"
