"""The clients that a worker keeps: one task at a time has one, few are kept, and none after a failure or a fork."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.spark import worker_clients
from tidelog.spark.worker_clients import CLIENTS_MAX, IDLE_S, ClientCache

SETTINGS = {"bootstrap.servers": "127.0.0.1:9092"}


class Client:
    """Stands in for connections."""

    made: list[Client]

    def __init__(self, settings: object) -> None:
        self.is_closed = False
        self.made.append(self)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Client]:
    Client.made = []
    monkeypatch.setattr(worker_clients, "SplitClient", Client)
    return Client.made


def use(cache: ClientCache, **settings: str) -> Any:
    with cache.client({**SETTINGS, **{name.replace("_", "."): text for name, text in settings.items()}}) as client:
        return client


def test_a_client_is_used_again(made: list[Client]) -> None:
    cache = ClientCache()
    assert use(cache) is use(cache)
    assert len(made) == 1


def test_other_settings_have_their_own_client(made: list[Client]) -> None:
    cache = ClientCache()
    assert use(cache) is not use(cache, client_id="other")
    assert len(made) == 2


def test_two_tasks_at_once_have_two(made: list[Client]) -> None:
    cache = ClientCache()
    with cache.client(SETTINGS) as one, cache.client(SETTINGS) as other:
        assert one is not other
    assert not any(client.is_closed for client in made)


def test_after_an_error_the_client_is_not_kept(made: list[Client]) -> None:
    cache = ClientCache()
    with pytest.raises(RuntimeError, match="a task failed"), cache.client(SETTINGS):
        raise RuntimeError("a task failed")
    assert made[0].is_closed
    use(cache)
    assert len(made) == 2


def test_a_task_that_wants_no_more_rows_leaves_its_client_to_the_next(made: list[Client]) -> None:
    cache = ClientCache()

    def rows() -> Any:
        with cache.client(SETTINGS):
            yield 1
            yield 2

    reading = rows()
    next(reading)
    reading.close()
    use(cache)
    assert len(made) == 1


def test_few_are_kept(made: list[Client]) -> None:
    cache = ClientCache()
    for number in range(CLIENTS_MAX + 3):
        use(cache, client_id=str(number))
    assert [client.is_closed for client in made] == [True] * 3 + [False] * CLIENTS_MAX


def test_those_that_nobody_used_are_closed(made: list[Client], monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ClientCache()
    now_s = 1000.0
    monkeypatch.setattr("tidelog.spark.worker_clients.time.monotonic", lambda: now_s)
    use(cache)
    now_s += IDLE_S + 1
    use(cache, client_id="other")
    assert [client.is_closed for client in made] == [True, False]


def test_a_forked_process_makes_its_own(made: list[Client], monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ClientCache()
    use(cache)
    monkeypatch.setattr("tidelog.spark.worker_clients.os.getpid", lambda: -1)
    use(cache)
    assert len(made) == 2
    assert not made[0].is_closed  # it is the parent's


def test_all_are_closed_at_the_end(made: list[Client]) -> None:
    cache = ClientCache()
    use(cache)
    cache.close()
    assert made[0].is_closed
