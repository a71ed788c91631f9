"""Whether a log may still be used, and what disk errors and damaged files turn into.

What always holds: once offline, a log stays so until it is opened anew; every OSError leaves as LogStorageError, and
damage found while reading as LogCorruptionError that names the file and the place.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from tidelog.log.errors import LogCorruptionError, LogStorageError
from tidelog.log.scan import CorruptSegmentError

logger = logging.getLogger(__name__)


class LogHealth:
    """The part of a partition's log that knows its name and why it is offline."""

    __slots__ = ("_offline_reason", "partition", "topic")

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self._offline_reason: str | None = None

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def is_offline(self) -> bool:
        return self._offline_reason is not None

    def check_online(self) -> None:
        if self._offline_reason is not None:
            raise LogStorageError(self._offline_reason)

    def take_offline(self, reason: str) -> None:
        """Refuse everything from now on."""
        if self._offline_reason is None:
            self._offline_reason = f"{self.name}: {reason}"

    def go_offline(self, reason: str) -> LogStorageError:
        """As `take_offline`, for an error that was just met; the error to raise."""
        self.take_offline(f"{reason}; the log is offline")
        logger.error("%s", self._offline_reason)
        return LogStorageError(self._offline_reason or reason)

    @contextmanager
    def storage(self, action: str) -> Iterator[None]:
        """Around changes that can't be undone when the disk fails in the middle."""
        try:
            yield
        except OSError as error:
            raise self.go_offline(f"{action} failed: {error}") from error

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Around reads, which leave everything as it was."""
        self.check_online()
        try:
            yield
        except CorruptSegmentError as error:
            raise LogCorruptionError(self.topic, self.partition, error.path, error.position, error.reason) from error
        except OSError as error:
            raise LogStorageError(f"{self.name}: read failed: {error}") from error
