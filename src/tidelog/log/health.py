"""Whether a log may still be used, and what disk errors and damaged files turn into.

What always holds: once offline, a log stays so until it is reopened, and its users are notified of the error
that took it offline, once; a disk that is full takes nothing offline where all that was begun could be undone; every
OSError leaves as LogStorageError, and damage found while reading as LogCorruptionError that names the file and the
place.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tidelog.log.errors import LogCorruptionError, LogStorageError, NoRoomError
from tidelog.log.scan import CorruptSegmentError

logger = logging.getLogger(__name__)

# The last two: the process or the machine can't open another file.
_OUT_OF_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE})


def is_out_of_room(error: OSError) -> bool:
    """Whether the disk works and only has no room: what was refused may succeed later, and all before it is safe."""
    return error.errno in _OUT_OF_ROOM


class LogHealth:
    """Whether one log is online, and if not, why."""

    __slots__ = ("_offline_reason", "_on_failure", "_partition", "_topic", "is_damaged")

    def __init__(self, topic: str, partition: int, on_failure: Callable[[str], None] | None = None) -> None:
        """`on_failure` is called with the reason by the thread that met the error; without it the reason is logged."""
        self._topic = topic
        self._partition = partition
        self._offline_reason: str | None = None
        self._on_failure = on_failure
        # It is offline because of its own files: the disk works, and other logs on it are not affected.
        self.is_damaged = False

    @property
    def name(self) -> str:
        return f"{self._topic}-{self._partition}"

    @property
    def is_offline(self) -> bool:
        return self._offline_reason is not None

    def check_online(self) -> None:
        if self._offline_reason is not None:
            raise LogStorageError(self._offline_reason)

    def move(self, on_failure: Callable[[str], None]) -> None:
        """The files are in another data directory from now on."""
        self._on_failure = on_failure

    def take_offline(self, reason: str) -> None:
        """Refuse everything from now on."""
        if self._offline_reason is None:
            self._offline_reason = f"{self.name}: {reason}"

    def take_damaged_offline(self, reason: str) -> None:
        """As `take_offline`, because the files of this very log can't be used."""
        if self._offline_reason is None:
            self.is_damaged = True
            self._offline_reason = reason
            logger.error("%s", reason)

    def go_offline(self, reason: str) -> LogStorageError:
        """As `take_offline`, for an error that was just met; the error to raise."""
        if self._offline_reason is None:
            self.take_offline(f"{reason}; the log is offline")
            if self._on_failure is not None:
                self._on_failure(f"{self.name}: {reason}")
            else:
                logger.error("%s", self._offline_reason)
        return LogStorageError(self._offline_reason or reason)

    @contextmanager
    def storage(self, action: str, *, is_undone: bool = False) -> Iterator[None]:
        """Around changes that can't be undone when the disk fails in the middle; `is_undone`: a full disk undoes it."""
        try:
            yield
        except OSError as error:
            raise self.refuse(action, error) if is_undone else self.go_offline(f"{action} failed: {error}") from error

    def refuse(self, action: str, error: OSError) -> LogStorageError:
        """The error to raise for a change that left everything as it was: after a full disk the log stays in use."""
        if is_out_of_room(error):
            return NoRoomError(f"{self.name}: {action} failed and was undone: {error}")
        return self.go_offline(f"{action} failed: {error}")

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Around reads, which leave everything as it was."""
        self.check_online()
        try:
            yield
        except CorruptSegmentError as error:
            raise LogCorruptionError(self._topic, self._partition, error.path, error.position, error.reason) from error
        except OSError as error:
            raise LogStorageError(f"{self.name}: read failed: {error}") from error
