"""The clients that a Spark worker process keeps between tasks, so that micro-batches don't have to reconnect.

What always holds: a client is used by one task at a time, and only in the process that created it; there are at most
`CLIENTS_MAX`; those unused for `IDLE_S` are closed when the next task starts, and all when the process exits.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping

from tidelog.client.consumer.settings import ConsumerSettings
from tidelog.client.errors import ClientError
from tidelog.spark.split_reader import SplitClient

CLIENTS_MAX = 8
IDLE_S = 300.0

_Key = tuple[tuple[str, str], ...]


class _Kept:
    """An idle client."""

    def __init__(self, key: _Key, client: SplitClient) -> None:
        self.key = key
        self.client = client
        self.since_s = time.monotonic()


class ClientCache:
    """The clients of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[_Kept] = []
        self._pid = os.getpid()

    @contextlib.contextmanager
    def client(self, settings: Mapping[str, str]) -> Iterator[SplitClient]:
        """A client for the duration of one task; it is closed after an error."""
        key = tuple(sorted(settings.items()))
        client = self._take(key) or SplitClient(ConsumerSettings.read(settings, {}))
        try:
            yield client
        except GeneratorExit:
            self._keep(key, client)  # Spark doesn't need any more rows
            raise
        except BaseException:
            client.close()
            raise
        self._keep(key, client)

    def _take(self, key: _Key) -> SplitClient | None:
        with self._lock:
            if self._pid != os.getpid():
                # Forked from a process that had clients; they belong to the parent.
                self._kept.clear()
                self._pid = os.getpid()
            now_s = time.monotonic()
            old = [kept for kept in self._kept if now_s - kept.since_s > IDLE_S]
            self._kept = [kept for kept in self._kept if kept not in old]
            found = next((kept for kept in reversed(self._kept) if kept.key == key), None)
            if found is not None:
                self._kept.remove(found)
        _close(old)
        return None if found is None else found.client

    def _keep(self, key: _Key, client: SplitClient) -> None:
        with self._lock:
            self._kept.append(_Kept(key, client))
            surplus = self._kept[:-CLIENTS_MAX]
            del self._kept[:-CLIENTS_MAX]
        _close(surplus)

    def close(self) -> None:
        """Close all clients; called when the process exits."""
        with self._lock:
            kept, self._kept = self._kept, []
        if self._pid == os.getpid():
            _close(kept)


def _close(kept: list[_Kept]) -> None:
    for each in kept:
        with contextlib.suppress(ClientError):
            each.client.close()


CLIENTS = ClientCache()
atexit.register(CLIENTS.close)
