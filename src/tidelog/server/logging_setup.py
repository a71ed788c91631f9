"""How a broker process logs: one line per event on standard error, as text or as JSON.

What always holds: a line starts with the time in UTC. A traceback follows its line in text, and is a field in JSON. A
message is one line of bounded length, whatever client-supplied names it quotes. Only the process's entry point calls
this; a broker embedded in another process leaves that process's logging alone.
"""

from __future__ import annotations

import json
import logging
import sys
import time

# Clients may choose names of 32 kB, and some lines quote several.
_MESSAGE_LENGTH_MAX = 2000

LEVELS = ("debug", "info", "warning", "error")


def _one_line(message: str) -> str:
    """The message with everything escaped that could look like another line or move a terminal's cursor."""
    if len(message) > _MESSAGE_LENGTH_MAX:
        message = message[:_MESSAGE_LENGTH_MAX] + "..."
    if message.isprintable():
        return message
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in message)


class _TextFormatter(logging.Formatter):
    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03dZ %(levelname)-7s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name that logging gives it
        record.message = _one_line(record.message)
        return super().formatMessage(record)


class _JsonFormatter(logging.Formatter):
    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _one_line(record.getMessage()),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def set_up_logging(level: str = "info", *, as_json: bool = False) -> None:
    """Send the log of this process to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if as_json else _TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
