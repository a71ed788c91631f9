"""The admin clients as objects: made, used by several, closed, left behind."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import logging
import os
import threading
import time
import warnings
from collections.abc import Callable

import pytest

from tidelog import Admin, AsyncAdmin
from tidelog.bench.brokers import BrokerProcess
from tidelog.client.errors import ClosedError, ConfigError, ConnectError, ForkedError

FreshName = Callable[[str], str]
NOBODY = "127.0.0.1:1"


def test_settings_have_kafkas_names_or_those_of_python(client_cluster: BrokerProcess) -> None:
    with Admin({"bootstrap.servers": client_cluster.bootstrap, "client.id": "dotted"}) as admin:
        assert admin.settings["client.id"] == "dotted"
        assert admin.describe_cluster().nodes
    with Admin({"client.id": "dotted"}, bootstrap_servers=[client_cluster.bootstrap], client_id="keyword") as admin:
        assert admin.settings["client.id"] == "keyword"
        assert admin.describe_cluster().nodes


@pytest.mark.parametrize("kind", [Admin, AsyncAdmin])
def test_unknown_settings_are_refused_with_a_hint(kind: type[Admin] | type[AsyncAdmin]) -> None:
    threads = threading.active_count()
    with pytest.raises(ConfigError, match=r"Admin has no setting 'bootstrap_server'; did you mean 'bootstrap_servers'"):
        kind(bootstrap_server="127.0.0.1:9092")  # type: ignore[call-arg]  # on purpose
    assert threading.active_count() == threads


def test_nobody_listens() -> None:
    began_s = time.monotonic()
    with Admin(bootstrap_servers=NOBODY) as admin, pytest.raises(ConnectError, match="connection refused"):
        admin.list_topics()
    assert time.monotonic() - began_s < 10


def test_a_closed_client_says_so(client_cluster: BrokerProcess) -> None:
    admin = Admin(bootstrap_servers=client_cluster.bootstrap)
    admin.close()
    admin.close()
    with pytest.raises(ClosedError, match="this admin client is closed"):
        admin.list_topics()

    async def use() -> None:
        async with AsyncAdmin(bootstrap_servers=client_cluster.bootstrap) as asynchronous:
            assert await asynchronous.list_topics() is not None
        await asynchronous.close()
        with pytest.raises(ClosedError, match="this admin client is closed"):
            await asynchronous.list_topics()

    asyncio.run(use())


def test_threads_and_sockets_end_with_close(client_cluster: BrokerProcess) -> None:
    def files() -> int:
        return len(os.listdir("/proc/self/fd"))

    with Admin(bootstrap_servers=client_cluster.bootstrap) as admin:
        admin.describe_cluster()
    threads, files_before = threading.active_count(), files()
    for _ in range(5):
        with Admin(bootstrap_servers=client_cluster.bootstrap) as admin:
            admin.describe_cluster()
    assert threading.active_count() == threads
    assert files() == files_before


def test_several_threads_may_use_one_client(client_cluster: BrokerProcess, fresh_name: FreshName) -> None:
    names = [fresh_name("shared") for _ in range(8)]
    with (
        Admin(bootstrap_servers=client_cluster.bootstrap) as admin,
        concurrent.futures.ThreadPoolExecutor(8) as pool,
    ):
        created = list(pool.map(lambda name: admin.create_topics([name]), names))
        assert [list(results.succeeded) for results in created] == [[name] for name in names]
        assert not admin.delete_topics(names).errors


def test_calls_on_one_loop_run_side_by_side(client_cluster: BrokerProcess, fresh_name: FreshName) -> None:
    async def use() -> None:
        names = [fresh_name("beside") for _ in range(5)]
        async with AsyncAdmin(bootstrap_servers=client_cluster.bootstrap) as admin:
            created = await asyncio.gather(*(admin.create_topics([name]) for name in names))
            assert [list(results.succeeded) for results in created] == [[name] for name in names]

    asyncio.run(use())


def test_a_client_belongs_to_its_loop(client_cluster: BrokerProcess) -> None:
    admin = AsyncAdmin(bootstrap_servers=client_cluster.bootstrap)
    with asyncio.Runner() as first:
        first.run(admin.describe_cluster())
        with pytest.raises(RuntimeError, match="belongs to another event loop"):
            asyncio.run(admin.describe_cluster())
        first.run(admin.close())


def test_a_client_that_is_not_closed_is_told_of(client_cluster: BrokerProcess) -> None:
    threads = threading.active_count()
    admin = Admin(bootstrap_servers=client_cluster.bootstrap)
    admin.describe_cluster()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del admin
        gc.collect()
    assert [str(warning.message) for warning in caught] == ["Admin was not closed"]
    assert threading.active_count() == threads


def test_errors_that_nobody_looks_at_are_logged(
    client_cluster: BrokerProcess, fresh_name: FreshName, caplog: pytest.LogCaptureFixture
) -> None:
    with Admin(bootstrap_servers=client_cluster.bootstrap) as admin, caplog.at_level(logging.ERROR):
        admin.create_topics(["not/valid"])
        assert "an error of an admin call was never checked: topic not/valid" in caplog.text
        caplog.clear()
        assert admin.create_topics(["not/valid"]).errors
        assert not caplog.text


def test_a_forked_child_is_refused_and_the_parent_goes_on(client_cluster: BrokerProcess) -> None:
    with Admin(bootstrap_servers=client_cluster.bootstrap) as admin:
        admin.describe_cluster()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                admin.describe_cluster()
            except ForkedError:
                admin.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert admin.describe_cluster().nodes
