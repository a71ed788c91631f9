"""Whoever registers the format in an environment that Spark would not use is told."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import tidelog.spark


class Session:
    """The one thing that `register` uses of a session."""

    def __init__(self) -> None:
        self.registered: list[Any] = []
        self.dataSource = self

    def register(self, source: Any) -> None:
        self.registered.append(source)


def register() -> None:
    session: Any = Session()
    tidelog.spark.register(session)
    assert session.registered == [tidelog.spark.TidelogDataSource]


def test_another_python_is_told_with_the_fix(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    other = tmp_path / "python3"
    other.touch(mode=0o755)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    register()
    assert f"{other}, which may not have tidelog installed" in caplog.text
    assert "tidelog.spark.use_this_python()" in caplog.text
    assert f"set PYSPARK_PYTHON={sys.executable}" in caplog.text


def test_this_python_needs_no_word(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    register()
    monkeypatch.setenv("PYSPARK_PYTHON", "python-of-my-own")
    monkeypatch.setenv("PATH", "")
    register()
    assert caplog.text == ""
