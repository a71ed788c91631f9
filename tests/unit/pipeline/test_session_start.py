"""A JVM that ends while it starts is starting it again; what is wrong with it is said."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkRuntimeError

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.session import _create


class Builder:
    """Raises these errors one after another, then gives a session."""

    def __init__(self, *conditions: str) -> None:
        self.conditions = list(conditions)

    def getOrCreate(self) -> Any:  # noqa: N802  # Spark calls it so
        if self.conditions:
            raise PySparkRuntimeError(errorClass=self.conditions.pop(0), messageParameters={})
        return "session"


def test_it_is_started_once_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        made: Any = _create(Builder("JAVA_GATEWAY_EXITED"), tmp_path)
    assert made == "session"
    assert "starting it again" in caplog.text


def test_a_second_end_is_an_error_that_names_the_log(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"see .*spark\.log"):
        _create(Builder("JAVA_GATEWAY_EXITED", "JAVA_GATEWAY_EXITED"), tmp_path / "spark.log")


def test_other_errors_are_not_tried_again(tmp_path: Path) -> None:
    builder = Builder("NO_ACTIVE_SESSION", "JAVA_GATEWAY_EXITED")
    with pytest.raises(PySparkRuntimeError):
        _create(builder, tmp_path)
    assert builder.conditions == ["JAVA_GATEWAY_EXITED"]
