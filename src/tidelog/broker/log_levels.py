"""The levels of this broker's loggers, which clients may see and change while it runs (KIP-412).

What always holds: only loggers that exist have a level here (the root and Tidelog's own), so clients can't make new
ones; a resource with one bad change is not changed at all. Levels have Kafka's names and are gone when the process
ends. They are the process's: brokers that share one share its levels, too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Final

from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.config_values import AlterOperation, ConfigChange

logger = logging.getLogger(__name__)

ROOT: Final = "root"
_OURS: Final = "tidelog"

_LEVELS: Final = {
    # Python has no such level, and nothing is logged at it: all that there is, as with DEBUG.
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}


def logger_levels() -> list[tuple[str, str]]:
    """All loggers by name, with the levels that apply to them: their own, or that of the nearest above."""
    return [(name, _level_name(_logger(name).getEffectiveLevel())) for name in sorted(_names())]


def check_changes(changes: Iterable[ConfigChange]) -> None:
    """Whether these can be made; raises KafkaError."""
    names = _names()
    for change in changes:
        if change.operation not in (AlterOperation.SET, AlterOperation.DELETE):
            message = f"{change.operation.name} operation is not allowed for the BROKER_LOGGER resource."
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        if change.name not in names:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Logger {change.name} does not exist!")
        if change.operation is AlterOperation.SET and change.value not in _LEVELS:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"Can't set the level of {change.name} to {change.value}. Valid levels are {', '.join(_LEVELS)}.",
            )
        if change.operation is AlterOperation.DELETE and change.name == ROOT:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Removing the level of the {ROOT} logger is not allowed.")


def apply_changes(changes: Sequence[ConfigChange]) -> None:
    """Make changes that were checked."""
    for change in changes:
        if change.operation is AlterOperation.SET and change.value is not None:
            _logger(change.name).setLevel(_LEVELS[change.value])
            logger.warning("set the level of logger %s to %s", change.name, change.value)
        else:
            _logger(change.name).setLevel(logging.NOTSET)
            logger.warning("logger %s has the level of the one above it again", change.name)


def _names() -> set[str]:
    known = tuple(logging.root.manager.loggerDict)
    return {ROOT, _OURS, *(name for name in known if name.startswith(f"{_OURS}."))}


def _logger(name: str) -> logging.Logger:
    return logging.root if name == ROOT else logging.getLogger(name)


def _level_name(level: int) -> str:
    """The last of Kafka's levels that is not above this one."""
    return max(
        (name for name, number in _LEVELS.items() if number <= level), key=lambda name: _LEVELS[name], default="TRACE"
    )
