"""The process's log lines can be read by people and by programs."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator

import pytest

from tidelog.server.logging_setup import set_up_logging


@pytest.fixture(autouse=True)
def _logging_is_put_back() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def _log_a_failure() -> None:
    try:
        raise RuntimeError("broken pipe")
    except RuntimeError:
        logging.getLogger("tidelog.test").exception("can't write %s", "ä")


def test_text_lines_have_time_level_and_logger(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("info")
    logging.getLogger("tidelog.test").debug("not this")
    logging.getLogger("tidelog.test").info("this")
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO    tidelog\.test: this\n", capsys.readouterr().err
    )


def test_a_traceback_follows_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("info")
    _log_a_failure()
    assert "can't write ä\nTraceback" in capsys.readouterr().err


def test_json_lines_hold_everything_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("debug", as_json=True)
    _log_a_failure()
    (line,) = capsys.readouterr().err.splitlines()
    parsed = json.loads(line)
    assert (parsed["level"], parsed["logger"], parsed["message"]) == ("error", "tidelog.test", "can't write ä")
    assert "RuntimeError: broken pipe" in parsed["traceback"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", parsed["time"])


@pytest.mark.parametrize("as_json", [False, True])
def test_a_name_that_a_client_chose_can_neither_fill_the_log_nor_forge_a_line(
    capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    set_up_logging("info", as_json=as_json)
    logger = logging.getLogger("tidelog.test")
    logger.info("group %s: gone", "x\n2026-01-01T00:00:00.000Z INFO    tidelog: all is well \x1b[2J")
    logger.info("group %s: gone", "ä" * 32_000)
    first, second = capsys.readouterr().err.splitlines()
    assert "x\\n2026" in (json.loads(first)["message"] if as_json else first)
    assert "\x1b" not in first
    assert len(second) < 2500
    assert "äää" in second
